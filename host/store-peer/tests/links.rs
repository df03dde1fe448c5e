//! What happens to calls when links break, are slow, or do not exist.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use common::remote::{Remote, quick};
use common::{claim, shard, turn};
use futures::FutureExt;
use futures::executor::block_on;
use ostraca_core::ids::{Entity, ShardPath};
use ostraca_core::records::{
    Claim, ClaimOutcome, Commit, CommitOutcome, CommitRefusal, LoadedEntity, RecordKey, RecordWrite,
};
use ostraca_store::conformance::{CLUSTER, CLUSTER_NAME};
use ostraca_store::{
    ClusterStore, CompareAndSet, CompareAndSetError, EntityStore, MemoryStore, Page, RowEvent,
    Scan, ScanKind, StoreError, StoreFuture, StoreIdentity,
};
use ostraca_store_peer::ClientOptions;

fn memory() -> Arc<MemoryStore> {
    Arc::new(MemoryStore::new(1, CLUSTER, CLUSTER_NAME))
}

/// Waits until the condition holds.
fn wait(what: &str, is: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(20);
    while !is() {
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn links(remote: &Remote) -> usize {
    remote.weather.links.load(Ordering::Relaxed)
}

fn responds(remote: &Remote) -> bool {
    block_on(remote.a.current_claims(vec![shard()])).is_ok()
}

fn claimed(remote: &Remote, number: u64) -> Claim {
    let claim = claim("a", number);
    assert_eq!(block_on(remote.a.claim(vec![claim.clone()])), [ClaimOutcome::Granted]);
    claim
}

fn version(store: &impl EntityStore, id: &str) -> u64 {
    let loaded = block_on(store.load(vec![(shard(), Entity::new("counter", id))])).remove(0);
    loaded.unwrap().head.map_or(0, |head| head.version)
}

#[test]
fn a_commit_of_an_old_link_has_no_effect_after_a_new_hello() {
    let store = memory();
    let remote = Remote::new(&store, 0);
    let first = claimed(&remote, 1);
    for claim_again in [true, false] {
        remote.weather.held.store(true, Ordering::Relaxed);
        let commits: Vec<_> =
            (0..3).map(|from| remote.a.commit(vec![turn(&first, "x", from)])).collect();
        remote.weather.break_links();
        for commit in commits {
            assert!(matches!(block_on(commit)[..], [CommitOutcome::Unknown(_)]));
        }
        remote.weather.held.store(false, Ordering::Relaxed);
        wait("the link comes back", || responds(&remote));
        if claim_again {
            // The same claim again fences nothing: only the links do, in both rounds.
            claimed(&remote, 1);
        }
        assert_eq!(remote.weather.deliver_late(), 3);
        assert_eq!(version(&*store, "x"), 0, "claimed again: {claim_again}");
    }
    assert_eq!(block_on(remote.a.commit(vec![turn(&first, "x", 0)])), [CommitOutcome::Committed]);
}

#[test]
fn a_row_write_of_an_old_link_is_lost_after_a_new_hello() {
    let store = memory();
    let remote = Remote::new(&store, 0);
    let make = CompareAndSet { key: "row".into(), expected: None, value: Some("late".into()) };
    remote.control.held.store(true, Ordering::Relaxed);
    let lost = remote.rows.compare_and_set(make);
    remote.control.break_links();
    let unknown = block_on(lost);
    assert!(
        matches!(unknown, Err(CompareAndSetError::Store(StoreError::Unavailable(_)))),
        "{unknown:?}"
    );
    remote.control.held.store(false, Ordering::Relaxed);
    wait("the link comes back", || block_on(remote.rows.get("row")) == Ok(None));
    assert_eq!(remote.control.deliver_late(), 1);
    assert_eq!(block_on(store.get("row")), Ok(None));
}

#[test]
fn a_row_is_read_again_over_the_next_link() {
    let store = memory();
    let remote = Remote::new(&store, 0);
    let make = CompareAndSet { key: "row".into(), expected: None, value: Some("1".into()) };
    block_on(store.compare_and_set(make)).unwrap();
    for round in 0..50 {
        remote.control.held.store(round % 2 == 0, Ordering::Relaxed);
        let (get, list) = (remote.rows.get("row"), remote.rows.list("r"));
        remote.control.held.store(false, Ordering::Relaxed);
        remote.control.break_links();
        assert!(block_on(get).unwrap().is_some(), "round {round}");
        assert_eq!(block_on(list).unwrap().0.len(), 1, "round {round}");
    }
    remote.control.held.store(true, Ordering::Relaxed);
    let lost = remote.rows.get("row");
    remote.control.cut.store(true, Ordering::Relaxed);
    remote.control.break_links();
    assert!(matches!(block_on(lost), Err(StoreError::Unavailable(_))));
}

#[test]
fn without_a_link_calls_fail_at_once_and_leave_no_doubt() {
    let store = memory();
    let remote = Remote::new(&store, 0);
    let claim = claimed(&remote, 1);
    for weather in [&remote.weather, &remote.control] {
        weather.cut.store(true, Ordering::Relaxed);
        weather.break_links();
    }
    wait("the link is gone", || !responds(&remote) && block_on(remote.rows.get("a")).is_err());
    let refused = block_on(remote.a.commit(vec![turn(&claim, "x", 0), turn(&claim, "y", 0)]));
    assert_eq!(refused.len(), 2);
    for outcome in refused {
        let CommitOutcome::Refused(CommitRefusal::LimitReached(why)) = outcome else {
            panic!("{outcome:?}")
        };
        assert!(why.contains("store"), "{why}");
    }
    let failed = block_on(remote.a.claim(vec![claim.clone()]));
    assert!(matches!(failed[..], [ClaimOutcome::Failed(_)]), "{failed:?}");
    let loaded = block_on(remote.a.load(vec![(shard(), Entity::new("counter", "x"))]));
    assert!(matches!(loaded[..], [Err(StoreError::Unavailable(_))]), "{loaded:?}");
    let cas = CompareAndSet { key: "a".into(), expected: None, value: Some("1".into()) };
    let conflict = block_on(remote.rows.compare_and_set(cas));
    assert!(
        matches!(conflict, Err(CompareAndSetError::Store(StoreError::Unavailable(_)))),
        "{conflict:?}"
    );
    assert_eq!(block_on(remote.rows.watch("", 0).next()), RowEvent::ResyncRequired);
    let blob = block_on(remote.a.put_blob("blob".into()));
    assert!(matches!(blob, Err(StoreError::Unavailable(_))), "{blob:?}");
    assert_eq!(version(&*store, "x"), 0);

    remote.weather.cut.store(false, Ordering::Relaxed);
    wait("the link comes back", || responds(&remote));
    assert_eq!(block_on(remote.a.commit(vec![turn(&claim, "x", 0)])), [CommitOutcome::Committed]);
}

#[test]
fn calls_take_effect_in_the_order_in_which_they_were_made() {
    let store = memory();
    let remote = Remote::new(&store, 0);
    let first = claimed(&remote, 1);
    let mut commits = Vec::new();
    for from in 0..500 {
        commits.push(remote.a.commit(vec![turn(&first, "x", from)]));
    }
    let second = remote.a.claim(vec![claim("a", 2)]);
    let late = remote.a.commit(vec![turn(&first, "x", 500)]);
    assert!(matches!(
        block_on(late)[..],
        [CommitOutcome::Refused(CommitRefusal::ClaimMismatch { .. })]
    ));
    assert_eq!(block_on(second), [ClaimOutcome::Granted]);
    for commit in commits.into_iter().rev() {
        assert_eq!(block_on(commit), [CommitOutcome::Committed]);
    }
}

/// A memory store that does not respond while a test blocks it.
struct Stubborn {
    store: Arc<MemoryStore>,
    silent: AtomicBool,
}

impl Stubborn {
    fn respond<T: Send + 'static>(&self, answer: StoreFuture<T>) -> StoreFuture<T> {
        if self.silent.load(Ordering::Relaxed) {
            futures::future::pending().boxed()
        } else {
            answer
        }
    }
}

impl EntityStore for Stubborn {
    fn identity(&self) -> StoreIdentity {
        EntityStore::identity(&*self.store)
    }

    fn claim(&self, claims: Vec<Claim>) -> StoreFuture<Vec<ClaimOutcome>> {
        self.respond(self.store.claim(claims))
    }

    fn current_claims(
        &self,
        shards: Vec<ShardPath>,
    ) -> StoreFuture<Result<Vec<Option<Claim>>, StoreError>> {
        self.respond(self.store.current_claims(shards))
    }

    fn commit(&self, turns: Vec<Commit>) -> StoreFuture<Vec<CommitOutcome>> {
        self.respond(self.store.commit(turns))
    }

    fn load(
        &self,
        entities: Vec<(ShardPath, Entity)>,
    ) -> StoreFuture<Vec<Result<LoadedEntity, StoreError>>> {
        self.respond(self.store.load(entities))
    }

    fn scan(&self, scan: Scan) -> StoreFuture<Result<Page, StoreError>> {
        self.respond(self.store.scan(scan))
    }

    fn put_blob(&self, bytes: Bytes) -> StoreFuture<Result<[u8; 32], StoreError>> {
        self.respond(self.store.put_blob(bytes))
    }

    fn get_blob(&self, digest: [u8; 32]) -> StoreFuture<Result<Option<Bytes>, StoreError>> {
        self.respond(self.store.get_blob(digest))
    }
}

#[test]
fn a_slow_call_times_out_alone_and_its_link_stays() {
    let store = memory();
    let stubborn = Arc::new(Stubborn { store: store.clone(), silent: false.into() });
    let options = ClientOptions { call_timeout: Duration::from_millis(200), ..quick() };
    let remote = Remote::with(stubborn.clone(), store.clone(), 0, options);
    let claim = claimed(&remote, 1);
    let before = links(&remote);
    stubborn.silent.store(true, Ordering::Relaxed);
    let unanswered = remote.a.commit(vec![turn(&claim, "x", 0)]);
    let behind = remote.a.load(vec![(shard(), Entity::new("counter", "x"))]);
    stubborn.silent.store(false, Ordering::Relaxed);
    let outcome = block_on(unanswered);
    let [CommitOutcome::Unknown(why)] = &outcome[..] else { panic!("{outcome:?}") };
    assert!(why.contains("call_timeout"), "{why}");
    assert!(matches!(block_on(behind)[..], [Err(StoreError::Unavailable(_))]));
    std::thread::sleep(Duration::from_millis(600));
    assert_eq!(links(&remote), before, "a ping was answered: the link is intact");
    claimed(&remote, 2);
    assert_eq!(version(&remote.a, "x"), 1, "after the claim the outcome is known");
}

#[test]
fn a_link_that_answers_no_ping_is_closed() {
    let store = memory();
    let options = ClientOptions { call_timeout: Duration::from_millis(200), ..quick() };
    let remote = Remote::with(store.clone(), store.clone(), 0, options);
    let claim = claimed(&remote, 1);
    let before = links(&remote);
    remote.weather.held.store(true, Ordering::Relaxed);
    let outcome = block_on(remote.a.commit(vec![turn(&claim, "x", 0)]));
    let [CommitOutcome::Unknown(_)] = &outcome[..] else { panic!("{outcome:?}") };
    wait("a new link", || links(&remote) > before);
    remote.weather.held.store(false, Ordering::Relaxed);
    wait("the store responds", || responds(&remote));
}

#[test]
fn a_response_in_time_counts_even_if_it_is_polled_late() {
    let store = memory();
    let options = ClientOptions { call_timeout: Duration::from_millis(40), ..quick() };
    let remote = Remote::with(store.clone(), store.clone(), 0, options);
    let claim = claimed(&remote, 1);
    let before = links(&remote);
    let commit = remote.a.commit(vec![turn(&claim, "x", 0)]);
    let dropped = remote.a.commit(vec![turn(&claim, "y", 0)]);
    drop(dropped);
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(block_on(commit), [CommitOutcome::Committed]);
    assert_eq!(links(&remote), before, "the link was kept");
    assert_eq!(version(&remote.a, "y"), 1);
}

#[test]
fn a_watch_is_lost_with_its_link_and_a_list_catches_up() {
    let store = memory();
    let remote = Remote::new(&store, 0);
    let set = |key: &str| {
        let cas = CompareAndSet { key: key.into(), expected: None, value: Some("v".into()) };
        block_on(store.compare_and_set(cas)).unwrap()
    };
    let (_, from) = block_on(remote.rows.list("")).unwrap();
    let mut watch = remote.rows.watch("", from);
    let first = set("one");
    assert_eq!(block_on(watch.next()).key_and_revision(), Some(("one", first)));
    remote.control.break_links();
    set("two");
    assert_eq!(block_on(watch.next()), RowEvent::ResyncRequired);
    assert_eq!(
        block_on(watch.next()),
        RowEvent::ResyncRequired,
        "after a resync event only resync events"
    );
    wait("the link comes back", || block_on(remote.rows.list("")).is_ok());
    let (rows, now) = block_on(remote.rows.list("")).unwrap();
    assert_eq!(rows.len(), 2);
    let mut fresh = remote.rows.watch("", now);
    let third = set("three");
    assert_eq!(block_on(fresh.next()).key_and_revision(), Some(("three", third)));
}

#[test]
fn a_watch_may_wait_longer_than_the_call_timeout() {
    let store = memory();
    let options = ClientOptions { call_timeout: Duration::from_millis(80), ..quick() };
    let remote = Remote::with(store.clone(), store.clone(), 0, options);
    let mut watch = remote.rows.watch("", 0);
    let changes = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(400));
        let cas = CompareAndSet { key: "k".into(), expected: None, value: Some("v".into()) };
        block_on(store.compare_and_set(cas)).unwrap()
    });
    let event = block_on(watch.next());
    assert_eq!(event.key_and_revision(), Some(("k", changes.join().unwrap())));
}

#[test]
fn an_oversized_call_is_split_without_losing_order() {
    let store = memory();
    let remote = Remote::new(&store, 0);
    let claim = claimed(&remote, 1);
    let with_value = |from: u64, size: usize| {
        let mut turn = turn(&claim, "x", from);
        let key = RecordKey::State(Bytes::from(from.to_string()));
        turn.writes = vec![RecordWrite { key, value: Some(vec![7; size].into()) }];
        turn
    };
    remote.weather.max_call.store(3_000, Ordering::Relaxed);
    remote.weather.max_answer.store(4_000, Ordering::Relaxed);
    let turns = (0..20).map(|from| with_value(from, 1_000)).collect();
    assert!(block_on(remote.a.commit(turns)).iter().all(|it| *it == CommitOutcome::Committed));
    let too_large = block_on(remote.a.commit(vec![with_value(20, 1_000), with_value(21, 4_000)]));
    let [CommitOutcome::Committed, CommitOutcome::Refused(CommitRefusal::TooLarge(why))] =
        &too_large[..]
    else {
        panic!("{too_large:?}")
    };
    assert!(why.contains("peers.max-frame"), "{why}");

    let kind = ScanKind::State(Entity::new("counter", "x"));
    let (limit, limit_bytes) = (1000, usize::MAX);
    let mut scan =
        Scan { shard: shard(), kind, after: None, max_records: limit, max_bytes: limit_bytes };
    let mut records = 0;
    loop {
        let page = block_on(remote.a.scan(scan.clone())).unwrap();
        records += page.records.len();
        scan.after = page.next_cursor;
        if scan.after.is_none() {
            break;
        }
    }
    assert_eq!(records, 21);
    for id in ["y", "z"] {
        let mut turn = turn(&claim, id, 0);
        turn.head.spilled_lane_count = 1;
        let lane = ostraca_core::records::Lane {
            session: ostraca_core::ids::ScopedSessionId([1; 16]),
            last_sequence: 1,
            used_at: 1,
            newest_created: 1,
            principal_tag: 1,
            replies: vec![],
            extensions: Default::default(),
        };
        turn.head.lanes = vec![lane.into(); 100];
        let sent = block_on(store.commit(vec![turn]));
        assert_eq!(sent, [CommitOutcome::Committed]);
    }
    let entities = ["y", "z"].map(|id| (shard(), Entity::new("counter", id)));
    let loaded = block_on(remote.a.load(entities.to_vec()));
    assert!(loaded.iter().all(Result::is_ok), "each one fits into a response: {loaded:?}");
    remote.weather.max_call.store(1 << 20, Ordering::Relaxed);
    remote.weather.max_answer.store(20 << 20, Ordering::Relaxed);
    let many = (0..3_000).map(|n| (shard(), Entity::new("counter", n.to_string()))).collect();
    assert_eq!(block_on(remote.a.load(many)), vec![Ok(LoadedEntity::default()); 3_000]);
    remote.weather.max_answer.store(1_000, Ordering::Relaxed);
    let loaded = block_on(remote.a.load(entities.to_vec()));
    assert!(loaded.iter().all(|it| matches!(it, Err(StoreError::LimitExceeded(_)))), "{loaded:?}");
}

#[test]
fn dropping_the_store_ends_its_links() {
    let store = memory();
    let remote = Remote::new(&store, 0);
    let mut watch = remote.rows.watch("", 0);
    assert!(watch.next().now_or_never().is_none());
    drop(watch);
    drop(remote);
    wait("nothing uses the backend", || Arc::strong_count(&store) == 1);
}
