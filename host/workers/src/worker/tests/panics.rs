//! The host's own panics, and queries whose replies are no longer awaited.

use std::sync::atomic::{AtomicBool, Ordering};

use ostraca_core::records::{ClaimOutcome, CommitOutcome, LoadedEntity};
use ostraca_stats::Stats;
use ostraca_store::{Page, Scan, StoreError, StoreFuture, StoreIdentity};

use super::*;

/// A memory store that panics once, in the call that the test selects.
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
        *self.at.lock().expect("the lock is not poisoned") = Some(place);
    }

    fn through<T: Send + 'static>(&self, place: &str, answer: StoreFuture<T>) -> StoreFuture<T> {
        let mut at = self.at.lock().expect("the lock is not poisoned");
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
    let mut driver = TestWorker::over(store.clone());
    driver.worker.input(Input::TypeDeployed(guest(&host)));
    driver.renew();
    store.panic_at("claim");
    driver.adopt(1, 1);
    driver.settle().await;
    assert!(driver.reports().is_empty(), "its claim failed");
    tokio::time::sleep(Duration::from_millis(300)).await;
    driver.worker.tick();
    driver.settle().await;
    assert_eq!(driver.reports(), ["serving 1 1"], "the claim was repeated");

    // The guest's `start` reads the state.
    let outcomes = [
        ("load", codes::STORE_UNAVAILABLE),
        ("scan", codes::HOST_PANICKED),
        ("commit", codes::UNKNOWN),
    ];
    for (epoch, (place, outcome)) in (1..).zip(outcomes) {
        driver.renew();
        if place == "commit" {
            // Its `start` is committed separately.
            driver.send(1, "who");
            driver.settle().await;
        }
        store.panic_at(place);
        let fails = driver.send(1, "who");
        driver.settle().await;
        assert!(store.panicked.load(Ordering::Relaxed), "{place}");
        assert_eq!(driver.answer(fails), Some((outcome.into(), epoch)), "{place}");
        assert_eq!(Stats::get(&driver.worker.deps.stats.panics), 1 + epoch, "{place}");
        let works = driver.send(1, "who");
        driver.settle().await;
        assert_eq!(driver.answer(works), Some(("final".into(), epoch)), "{place}");
        // The next round loads the entity again.
        driver.stop(1, epoch);
        driver.settle().await;
        driver.adopt(1, epoch + 1);
        driver.settle().await;
    }
    assert_eq!(host.status().live_instances, 0, "no instance is left over");
}

#[tokio::test]
async fn a_machine_that_panics_loses_its_shard_and_no_other() {
    let host = host();
    let mut driver = TestWorker::new();
    driver.worker.input(Input::TypeDeployed(guest(&host)));
    driver.renew();
    driver.adopt(1, 1);
    driver.adopt(2, 1);
    driver.settle().await;
    assert_eq!(driver.reports(), ["serving 1 1", "serving 2 1"]);
    let live = driver.send(2, "who");
    let done = driver.send(1, "who");
    driver.settle().await;
    assert_eq!(driver.answer(done), Some(("final".into(), 1)));
    assert_eq!(driver.answer(live), Some(("final".into(), 1)));

    let waits = driver.send(1, "who");
    let asks = driver.send_as(1, "read", MessageKind::Query, TestCaller::Waits);
    driver.worker.panics = true;
    let panics = driver.send(1, "who");
    assert_eq!(driver.reports(), ["lost 1 1"]);
    assert_eq!(driver.answer(waits), Some(("unknown".into(), 1)));
    assert_eq!(driver.answer(asks), Some((codes::NOT_OWNER.into(), 1)));
    assert_eq!(driver.answer(panics), Some(("unknown".into(), 1)));
    assert_eq!(Stats::get(&driver.worker.deps.stats.panics), 1);
    // A turn of the machine still runs, so its entry exists, but it is no longer counted.
    let totals = driver.worker.machines.totals();
    assert_eq!((totals.shards, totals.serving, totals.queued), (1, 1, 0));
    let refused = driver.send(1, "who");
    driver.settle().await;
    assert_eq!(driver.answer(refused).map(|(outcome, _)| outcome), Some(codes::NOT_OWNER.into()));
    let other = driver.send(2, "who");
    driver.settle().await;
    assert_eq!(driver.answer(other), Some(("final".into(), 1)), "its neighbour continues");
    assert_eq!(
        (driver.worker.instance_slots.granted(), driver.worker.machines.iter().count()),
        (1, 1)
    );

    driver.adopt(1, 2);
    driver.settle().await;
    let again = driver.send(1, "who");
    driver.settle().await;
    assert_eq!(driver.answer(again), Some(("final".into(), 2)));
    assert!(driver.worker.pending_replies.is_empty());
}

#[tokio::test]
async fn an_abandoned_query_does_not_run_but_a_command_does() {
    let host = host();
    let mut driver = TestWorker::new();
    driver.worker.input(Input::TypeDeployed(guest(&host)));
    driver.renew();
    driver.adopt(1, 1);
    let query = driver.send_as(1, "read", MessageKind::Query, TestCaller::Gone);
    let command = driver.send_as(1, "passivate", MessageKind::Command, TestCaller::Gone);
    let many: Vec<_> = (0..2_000)
        .map(|_| driver.send_as(1, "read", MessageKind::Query, TestCaller::Gone))
        .collect();
    let last = driver.send(1, "who");
    driver.settle().await;
    for abandoned in many.into_iter().chain([query]) {
        let outcome = driver.answer(abandoned).map(|(outcome, _)| outcome);
        assert!(
            outcome
                .as_ref()
                .is_some_and(|it| *it == codes::CALLER_GONE || *it == codes::MAILBOX_FULL),
            "{outcome:?}"
        );
    }
    assert_eq!(driver.answer(command), Some(("final".into(), 1)));
    assert_eq!(driver.answer(last).map(|(_, epoch)| epoch), Some(1));
    assert_eq!(Stats::get(&driver.worker.deps.stats.turns), 1, "{:?}", driver.answer(last));
}
