//! The numbers of members.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::future::join_all;
use ostraca_store::{ClusterStore, CompareAndSet, MemoryStore};
use ostraca_store_kubernetes::numbers::{Clock, Number, Numbers, PREFIX, RenewError};
use ostraca_test_servers::kubernetes::ApiServer;

use super::{CLUSTER, create};

const LEASE: Duration = Duration::from_secs(10);
const MARGIN: Duration = Duration::from_secs(4);

/// A clock that the test moves.
#[derive(Clone, Default)]
struct Time(Arc<AtomicU64>);

impl Time {
    fn pass(&self, seconds: u64) {
        self.0.fetch_add(seconds, Ordering::SeqCst);
    }

    fn clock(&self) -> Clock {
        let now = self.0.clone();
        Arc::new(move || Duration::from_secs(now.load(Ordering::SeqCst)))
    }
}

fn memory() -> Arc<dyn ClusterStore> {
    Arc::new(MemoryStore::new(1, CLUSTER, "test"))
}

fn member(store: &Arc<dyn ClusterStore>, time: &Time, name: &str) -> Numbers {
    Numbers::new(store.clone(), time.clock(), name, LEASE, MARGIN)
}

async fn acquire(numbers: &mut Numbers) -> Number {
    numbers.acquire().await.expect("a number")
}

#[tokio::test]
async fn e5_a_member_gets_the_smallest_free_number() {
    let (store, time) = (memory(), Time::default());
    let mut held = Vec::new();
    for expected in 0..4 {
        let number = acquire(&mut member(&store, &time, "m")).await;
        assert_eq!(number.number(), expected);
        held.push(number);
    }
    // A hole is filled, and the others keep their numbers.
    held.remove(1).release().await.expect("released");
    assert_eq!(acquire(&mut member(&store, &time, "new")).await.number(), 1);
    for (mut number, expected) in held.into_iter().zip([0, 2, 3]) {
        number.renew().await.expect("renewed");
        assert_eq!(number.number(), expected);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e5_members_that_compete_get_different_numbers() {
    let server = ApiServer::start();
    let store: Arc<dyn ClusterStore> = Arc::new(create(&server).await);
    let time = Time::default();
    let mut members: Vec<_> = (0..12).map(|_| member(&store, &time, "m")).collect();
    let numbers = join_all(members.iter_mut().map(acquire)).await;
    let mut numbers: Vec<_> = numbers.iter().map(Number::number).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (0..12).collect::<Vec<_>>());
}

#[tokio::test]
async fn r8_a_number_lapses_by_the_observers_clock_alone() {
    let (store, time) = (memory(), Time::default());
    let mut first = acquire(&mut member(&store, &time, "first")).await;
    let mut observer = member(&store, &time, "observer");
    // The observer holds another number while it observes; each step is its renewal.
    let mut own = acquire(&mut observer).await;
    assert_eq!(own.number(), 1);
    for _ in 0..5 {
        time.pass(3);
        first.renew().await.expect("renewed");
        own.release().await.expect("released");
        own = acquire(&mut observer).await;
        assert_eq!(own.number(), 1, "it was renewed");
    }
    // It has seen the last renewal for 14 s only after five steps.
    for step in 1..=5 {
        time.pass(3);
        own.release().await.expect("released");
        own = acquire(&mut observer).await;
        assert_eq!(own.number(), if step < 5 { 1 } else { 0 }, "step {step}");
    }
    assert_eq!(first.renew().await, Err(RenewError::Lost(0)));
}

#[tokio::test]
async fn r8_an_observer_that_was_late_starts_anew() {
    let (store, time) = (memory(), Time::default());
    let mut first = acquire(&mut member(&store, &time, "first")).await;
    let mut observer = member(&store, &time, "observer");
    let own = acquire(&mut observer).await;
    // The observer was away for longer than any lease: it has not seen that nobody renewed.
    time.pass(100);
    own.release().await.expect("released");
    let own = acquire(&mut observer).await;
    assert_eq!(own.number(), 1, "it counts the lease as just renewed");
    // So does one that has just started.
    assert_eq!(acquire(&mut member(&store, &time, "new")).await.number(), 2);
    first.renew().await.expect("renewed");
}

#[tokio::test]
async fn r8_a_holder_stops_before_others_take_over() {
    let (store, time) = (memory(), Time::default());
    let mut number = acquire(&mut member(&store, &time, "m")).await;
    time.pass(7);
    assert!(number.is_held());
    time.pass(1);
    assert!(!number.is_held(), "80 % of the lease have passed");
    number.renew().await.expect("nobody took it");
    assert!(number.is_held());
}

#[tokio::test]
async fn a_lost_answer_to_a_renewal_loses_no_number() {
    let (store, time) = (memory(), Time::default());
    let mut number = acquire(&mut member(&store, &time, "m")).await;
    // The same row at another revision, as after a renewal whose answer was lost.
    let row = store.list(PREFIX).await.expect("rows").0.remove(0);
    let (key, value) = (row.key, Some(row.value));
    let renewal = CompareAndSet { key, expected: Some(row.revision), value };
    store.compare_and_set(renewal).await.expect("renewed");
    time.pass(8);
    let refused = number.renew().await.expect_err("refused");
    assert!(matches!(refused, RenewError::Store(error) if error.is_retryable()));
    assert!(!number.is_held(), "it counts only from the next renewal");
    number.renew().await.expect("renewed");
    assert!(number.is_held());
}
