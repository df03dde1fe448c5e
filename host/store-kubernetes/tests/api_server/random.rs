//! Random calls on a server with random faults: what was acknowledged stays, and nothing happens twice.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use ostraca_store::{ClusterStore, CompareAndSetError, RowEvent, StoreError};
use ostraca_store_kubernetes::{KubernetesStore, Options};
use ostraca_test_servers::kubernetes::{ApiServer, Rates};

use super::{TIMEOUT, cas, create, delete, next, options};

/// The seeds of the faults. `OSTRACA_TEST_SEEDS` has another number of them.
fn seeds(usual: u64) -> Range<u64> {
    let wanted = std::env::var("OSTRACA_TEST_SEEDS").ok().and_then(|it| it.parse().ok());
    0..wanted.unwrap_or(usual)
}

/// What a client knows of its row: the numbers that it may have, and whether it may be absent.
#[derive(Debug)]
struct Known {
    numbers: Vec<Option<u64>>,
    revision: u64,
}

/// Increments the number in a row, or deletes and creates it again. After each call, the row must have a value that
/// this allows, and a revision that never goes back.
async fn change(store: Arc<KubernetesStore>, key: String, steps: u64, mut random: u64) -> u64 {
    let (mut known, mut next, mut acknowledged) =
        (Known { numbers: vec![None], revision: 0 }, 1, 0);
    for _ in 0..steps {
        let row = match store.get(&key).await {
            Ok(row) => row,
            Err(error) => {
                assert!(error.is_retryable(), "{key}: {error}");
                continue;
            }
        };
        let number = row.as_ref().map(|row| {
            std::str::from_utf8(&row.value).expect("text").parse::<u64>().expect("a number")
        });
        assert!(known.numbers.contains(&number), "{key} is {number:?}, but {known:?}");
        let revision = row.as_ref().map(|row| row.revision);
        assert!(revision.is_none_or(|it| it >= known.revision), "{key}: {revision:?}, {known:?}");
        known.revision = known.revision.max(revision.unwrap_or_default());
        // What was in doubt and had not happened may still happen, unless the row has changed since.
        random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        let (change, wanted) = match revision {
            Some(revision) if random >> 33 & 3 == 0 => (delete(&key, revision), None),
            revision => (cas(&key, revision, &next.to_string()), Some(next)),
        };
        next += 1;
        match store.compare_and_set(change).await {
            Ok(at) => {
                assert!(at > known.revision, "{key}: revision {at} after {known:?}");
                known = Known { numbers: vec![wanted], revision: at };
                acknowledged += 1;
            }
            // Nobody else writes this row: only an earlier call in doubt can have been first.
            Err(CompareAndSetError::RevisionMismatch(_)) => {
                assert!(known.numbers.len() > 1, "{key}: changed by nobody, {known:?}");
            }
            Err(CompareAndSetError::Store(StoreError::Unavailable(_))) => {
                known.numbers.push(wanted)
            }
            Err(error) => panic!("{key}: {error}"),
        }
    }
    acknowledged
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_fault_loses_or_doubles_a_change() {
    for seed in seeds(8) {
        println!("seed {seed}");
        let server = ApiServer::start();
        let options = Options { page_rows: 3, connections: 4, ..options(&server) };
        create(&server).await;
        let store = Arc::new(KubernetesStore::open(options.clone()).await.expect("opened"));
        let (_, from) = store.list("").await.expect("rows");
        let mut watch = store.watch("rows/", from);
        server.inject(Some(Rates::ALL), seed);
        let keys: Vec<_> = (0..6).map(|at| format!("rows/{at}")).collect();
        let tasks = keys
            .iter()
            .zip(0..)
            .map(|(key, at)| tokio::spawn(change(store.clone(), key.clone(), 40, seed * 100 + at)));
        let counts = join_all(tasks.collect::<Vec<_>>()).await;
        let acknowledged: u64 = counts.into_iter().map(|it| it.expect("no panic")).sum();
        assert!(acknowledged > 100, "too few changes: {acknowledged}");
        server.inject(None, 0);
        // A watch shows each row's last state, in order, or that changes were missed.
        let end = store.compare_and_set(cas("rows/end", None, "")).await.expect("written");
        let (mut last, mut seen): (HashMap<String, RowEvent>, u64) = (HashMap::new(), from);
        while seen < end {
            let event = next(&mut watch).await;
            match event.key_and_revision() {
                Some((key, revision)) => {
                    assert!(revision > seen, "it came late or twice: {event:?} after {seen}");
                    seen = revision;
                    last.insert(key.to_owned(), event);
                }
                None => {
                    seen = store.list("rows/").await.expect("rows").1;
                    watch = store.watch("rows/", seen);
                    last.clear();
                }
            }
        }
        let (rows, _) = store.list("rows/").await.expect("rows");
        for event in last.values() {
            match event {
                RowEvent::Set(row) => assert!(rows.contains(row), "{row:?} is not in {rows:?}"),
                RowEvent::Deleted { key, .. } => assert!(rows.iter().all(|row| row.key != *key)),
                RowEvent::ResyncRequired => {}
            }
        }
        // What this process still has under way ends, and another one sees the same rows.
        drop(store);
        let other = KubernetesStore::open(options).await.expect("opened");
        let (again, _) = tokio::time::timeout(TIMEOUT, other.list("rows/"))
            .await
            .expect("in time")
            .expect("rows");
        assert_eq!(again, rows);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_many_processes_wins_each_change() {
    for seed in seeds(4) {
        let server = ApiServer::start();
        let first = create(&server).await;
        let start = first.compare_and_set(cas("row", None, "0")).await.expect("written");
        server.inject(Some(Rates::SETTLED), seed);
        let mut stores = vec![first];
        for _ in 0..3 {
            let call_timeout = Duration::from_secs(30);
            let opening = KubernetesStore::open(Options { call_timeout, ..options(&server) });
            stores.push(opening.await.expect("opened"));
        }
        let tasks = stores.into_iter().map(|store| {
            tokio::spawn(async move {
                let (mut expected, mut won) = (start, 0_u64);
                while won < 10 {
                    let number = expected.to_string();
                    match store.compare_and_set(cas("row", Some(expected), &number)).await {
                        Ok(revision) => (expected, won) = (revision, won + 1),
                        Err(CompareAndSetError::RevisionMismatch(Some(row))) => {
                            expected = row.revision
                        }
                        Err(CompareAndSetError::Store(StoreError::Unavailable(_))) => {
                            if let Ok(Some(row)) = store.get("row").await {
                                expected = row.revision;
                            }
                        }
                        Err(error) => panic!("{error}"),
                    }
                }
                won
            })
        });
        for won in join_all(tasks.collect::<Vec<_>>()).await {
            assert_eq!(won.expect("no panic"), 10);
        }
    }
}
