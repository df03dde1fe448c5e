//! The host's own panics, and queries that nobody waits for any more.

use std::sync::atomic::{AtomicBool, Ordering};

use ostraca_core::records::{ClaimOutcome, CommitOutcome, LoadedEntity};
use ostraca_stats::Stats;
use ostraca_store::{Page, Scan, StoreError, StoreFuture, StoreIdentity};

use super::*;

/// A memory store that panics once, in the call that the test chooses.
struct Panicking {
    store: MemoryStore,
    at: Mutex<Option<&'static str>>,
    panicked: AtomicBool,
}

impl Panicking {
    fn new() -> Arc<Self> {
        let store = MemoryStore::new(1, ClusterId(1), "test");
        Arc::new(Self { store, at: Mutex::default(), panicked: AtomicBool::new(false) })
    }

    fn panic_at(&self, place: &'static str) {
        self.panicked.store(false, Ordering::Relaxed);
        *self.at.lock().expect("a lock") = Some(place);
    }

    fn through<T: Send + 'static>(&self, place: &str, answer: StoreFuture<T>) -> StoreFuture<T> {
        let mut at = self.at.lock().expect("a lock");
        if *at != Some(place) {
            return answer;
        }
        *at = None;
        self.panicked.store(true, Ordering::Relaxed);
        async { panic!("panic requested by the test") }.boxed()
    }
}

impl EntityStore for Panicking {
    fn identity(&self) -> StoreIdentity {
        EntityStore::identity(&self.store)
    }

    fn open_nonces(&self) -> Vec<u64> {
        EntityStore::open_nonces(&self.store)
    }

    fn claim(&self, claims: Vec<Claim>) -> StoreFuture<Vec<ClaimOutcome>> {
        self.through("claim", self.store.claim(claims))
    }

    fn current_claims(
        &self,
        shards: Vec<ShardPath>,
    ) -> StoreFuture<Result<Vec<Option<Claim>>, StoreError>> {
        self.store.current_claims(shards)
    }

    fn commit(&self, turns: Vec<Commit>) -> StoreFuture<Vec<CommitOutcome>> {
        self.through("commit", self.store.commit(turns))
    }

    fn load(
        &self,
        entities: Vec<(ShardPath, Entity)>,
    ) -> StoreFuture<Vec<Result<LoadedEntity, StoreError>>> {
        self.through("load", self.store.load(entities))
    }

    fn scan(&self, scan: Scan) -> StoreFuture<Result<Page, StoreError>> {
        self.through("scan", self.store.scan(scan))
    }

    fn put_blob(&self, bytes: Bytes) -> StoreFuture<Result<[u8; 32], StoreError>> {
        self.store.put_blob(bytes)
    }

    fn get_blob(&self, digest: [u8; 32]) -> StoreFuture<Result<Option<Bytes>, StoreError>> {
        self.store.get_blob(digest)
    }
}

#[tokio::test]
async fn a_panic_ends_one_message_and_nothing_else() {
    let host = host();
    let store = Panicking::new();
    let mut hand = TestWorker::over(store.clone());
    hand.worker.input(Input::TypeDeployed(guest(&host)));
    hand.renew();
    store.panic_at("claim");
    hand.adopt(1, 1);
    hand.settle().await;
    assert!(hand.reports().is_empty(), "its claim failed");
    tokio::time::sleep(Duration::from_millis(300)).await;
    hand.worker.tick();
    hand.settle().await;
    assert_eq!(hand.reports(), ["serving 1 1"], "and was asked for again");

    // The guest's `start` reads the state.
    let outcomes =
        [("load", codes::STORE_UNAVAILABLE), ("scan", "host-panicked"), ("commit", "unknown")];
    for (epoch, (place, outcome)) in (1..).zip(outcomes) {
        hand.renew();
        if place == "commit" {
            // Its `start` is committed separately.
            hand.send(1, "who");
            hand.settle().await;
        }
        store.panic_at(place);
        let fails = hand.send(1, "who");
        hand.settle().await;
        assert!(store.panicked.load(Ordering::Relaxed), "{place}");
        assert_eq!(hand.answer(fails), Some((outcome.into(), epoch)), "{place}");
        assert_eq!(Stats::get(&hand.worker.deps.stats.panics), 1 + epoch, "{place}");
        let works = hand.send(1, "who");
        hand.settle().await;
        assert_eq!(hand.answer(works), Some(("final".into(), epoch)), "{place}");
        // The next round loads it again.
        hand.stop(1, epoch);
        hand.settle().await;
        hand.adopt(1, epoch + 1);
        hand.settle().await;
    }
    assert_eq!(host.status().live_instances, 0, "no instance is left over");
}

#[tokio::test]
async fn a_machine_that_panics_loses_its_shard_and_no_other() {
    let host = host();
    let mut hand = TestWorker::new();
    hand.worker.input(Input::TypeDeployed(guest(&host)));
    hand.renew();
    hand.adopt(1, 1);
    hand.adopt(2, 1);
    hand.settle().await;
    assert_eq!(hand.reports(), ["serving 1 1", "serving 2 1"]);
    let live = hand.send(2, "who");
    let done = hand.send(1, "who");
    hand.settle().await;
    assert_eq!(hand.answer(done), Some(("final".into(), 1)));
    assert_eq!(hand.answer(live), Some(("final".into(), 1)));

    let waits = hand.send(1, "who");
    let asks = hand.send_as(1, "read", MessageKind::Query, TestCaller::Waits);
    hand.worker.panics = true;
    let panics = hand.send(1, "who");
    assert_eq!(hand.reports(), ["lost 1 1"]);
    assert_eq!(hand.answer(waits), Some(("unknown".into(), 1)));
    assert_eq!(hand.answer(asks), Some((codes::NOT_OWNER.into(), 1)));
    assert_eq!(hand.answer(panics), Some(("unknown".into(), 1)));
    assert_eq!(Stats::get(&hand.worker.deps.stats.panics), 1);
    // Its turn still runs, so its entry exists, but it is no longer counted.
    let totals = hand.worker.machines.totals();
    assert_eq!((totals.shards, totals.serving, totals.queued), (1, 1, 0));
    let refused = hand.send(1, "who");
    hand.settle().await;
    assert_eq!(hand.answer(refused).map(|(outcome, _)| outcome), Some(codes::NOT_OWNER.into()));
    let other = hand.send(2, "who");
    hand.settle().await;
    assert_eq!(hand.answer(other), Some(("final".into(), 1)), "its neighbour goes on");
    assert_eq!((hand.worker.instance_slots.granted(), hand.worker.machines.iter().count()), (1, 1));

    hand.adopt(1, 2);
    hand.settle().await;
    let again = hand.send(1, "who");
    hand.settle().await;
    assert_eq!(hand.answer(again), Some(("final".into(), 2)));
    assert!(hand.worker.pending_replies.is_empty());
}

#[tokio::test]
async fn an_abandoned_query_does_not_run_but_a_command_does() {
    let host = host();
    let mut hand = TestWorker::new();
    hand.worker.input(Input::TypeDeployed(guest(&host)));
    hand.renew();
    hand.adopt(1, 1);
    let query = hand.send_as(1, "read", MessageKind::Query, TestCaller::Gone);
    let command = hand.send_as(1, "passivate", MessageKind::Command, TestCaller::Gone);
    let many: Vec<_> =
        (0..2_000).map(|_| hand.send_as(1, "read", MessageKind::Query, TestCaller::Gone)).collect();
    let last = hand.send(1, "who");
    hand.settle().await;
    for abandoned in many.into_iter().chain([query]) {
        let outcome = hand.answer(abandoned).map(|(outcome, _)| outcome);
        assert!(
            matches!(outcome.as_deref(), Some(codes::CALLER_GONE | codes::MAILBOX_FULL)),
            "{outcome:?}"
        );
    }
    assert_eq!(hand.answer(command), Some(("final".into(), 1)));
    assert_eq!(hand.answer(last).map(|(_, epoch)| epoch), Some(1));
    assert_eq!(Stats::get(&hand.worker.deps.stats.turns), 1, "{:?}", hand.answer(last));
}
