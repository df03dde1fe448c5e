//! Members that are killed, paused and restarted, answers that are lost, changes that are forgotten.

use std::collections::HashSet;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures::future::join_all;
use nix::sys::signal::Signal;
use ostraca_store::{ClusterStore, CompareAndSet, CompareAndSetError, RowEvent, StoreError};
use ostraca_store_etcd::{EtcdStore, Options};
use ostraca_test_servers::etcd::Cluster;
use ostraca_test_servers::proxy::Proxy;

use super::{CLUSTER, TIMEOUT, cas, create, is_unknown, next, revision};

/// How long a fault may be felt.
const SERVED: Duration = Duration::from_secs(5);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_that_wait_together_are_one_transaction() {
    let etcd = Cluster::start(1);
    let store = create(&etcd).await;
    let keys: Vec<_> = (0..200).map(|at| format!("row{at:03}")).collect();
    let (_, from) = store.list("").await.expect("rows");
    let mut watch = store.watch("", from);
    let written = join_all(keys.iter().map(|key| store.compare_and_set(cas(key, None, "v")))).await;
    let written: Vec<_> = written.into_iter().map(|it| it.expect("written")).collect();
    // The first one, and then at most 100 in each transaction.
    let transactions: HashSet<_> = written.iter().collect();
    assert!(transactions.len() <= 4, "{} transactions for 200 rows", transactions.len());
    for (key, revision) in keys.iter().zip(&written) {
        let event = next(&mut watch).await;
        assert_eq!(event.key_and_revision(), Some((key.as_str(), *revision)));
    }
    // Changes of one row are not in one transaction.
    let (first, second) =
        (cas("row000", Some(written[0]), "a"), cas("row000", Some(written[0]), "b"));
    let (first, second) = (store.compare_and_set(first), store.compare_and_set(second));
    let first = first.await.expect("written");
    let mismatch = second.await.expect_err("refused");
    assert!(
        matches!(mismatch, CompareAndSetError::RevisionMismatch(Some(row)) if row.revision == first)
    );
}

/// Increments the number in a row again and again. Counts the increments that were acknowledged, and those in doubt.
pub(crate) async fn increment(
    store: Arc<EtcdStore>,
    key: String,
    end: Arc<AtomicBool>,
    last: Arc<AtomicU64>,
) -> (u64, u64) {
    let (mut acknowledged, mut in_doubt) = (0, 0);
    let began = Instant::now();
    while !end.load(Ordering::SeqCst) {
        let Ok(row) = store.get(&key).await else { continue };
        let number = row.as_ref().map_or(0, |row| {
            std::str::from_utf8(&row.value).expect("text").parse::<u64>().expect("a number")
        });
        assert!(
            (acknowledged..=acknowledged + in_doubt).contains(&number),
            "{key} is {number} after {acknowledged} increments and {in_doubt} in doubt"
        );
        let change = cas(&key, row.map(|row| row.revision), &(number + 1).to_string());
        match store.compare_and_set(change).await {
            Ok(_) => {
                acknowledged += 1;
                let now = u64::try_from(began.elapsed().as_millis()).expect("a time");
                last.store(now, Ordering::SeqCst);
            }
            Err(error) => {
                assert!(
                    !matches!(error, CompareAndSetError::RevisionMismatch(_)),
                    "{key}: {error}"
                );
                in_doubt += 1;
            }
        }
    }
    (acknowledged, in_doubt)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_fault_of_a_member_loses_or_doubles_a_change() {
    let mut etcd = Cluster::start(3);
    let store = Arc::new(create(&etcd).await);
    let end: Arc<AtomicBool> = Arc::default();
    let (_, from) = store.list("").await.expect("rows");
    let mut watch = store.watch("row", from);
    let began = Instant::now();
    let rows: Vec<_> = (0..8).map(|at| format!("row{at}")).collect();
    let last: Vec<Arc<AtomicU64>> = rows.iter().map(|_| Arc::default()).collect();
    let tasks: Vec<_> = rows
        .iter()
        .zip(&last)
        .map(|(row, last)| {
            tokio::spawn(increment(store.clone(), row.clone(), end.clone(), last.clone()))
        })
        .collect();
    let served = async |since: Instant| {
        let since = u64::try_from((since - began).as_millis()).expect("a time");
        while !last.iter().all(|last| last.load(Ordering::SeqCst) > since) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let mut waits = Vec::new();
    for round in 0..6 {
        let leader = etcd.leader();
        let member = if round % 2 == 0 { leader } else { (leader + 1) % 3 };
        let since = Instant::now();
        let pauses = round >= 3;
        if pauses {
            etcd.signal(member, Signal::SIGSTOP);
        } else {
            etcd.kill(member);
        }
        tokio::time::timeout(TIMEOUT, served(Instant::now())).await.expect("served without it");
        waits.push(since.elapsed());
        if pauses {
            etcd.signal(member, Signal::SIGCONT);
        } else {
            etcd.restart(member);
        }
        tokio::time::timeout(TIMEOUT, served(Instant::now())).await.expect("served with it");
    }
    println!("each row was changed again after {waits:?} (aim {SERVED:?})");
    end.store(true, Ordering::SeqCst);
    let counts = join_all(tasks).await;
    let (listed, _) = store.list("row").await.expect("rows");
    let mut total = 0;
    for (row, counted) in listed.iter().zip(counts) {
        let (acknowledged, in_doubt) = counted.expect("no panic");
        let number: u64 = std::str::from_utf8(&row.value).expect("text").parse().expect("a number");
        assert!((acknowledged..=acknowledged + in_doubt).contains(&number), "{}", row.key);
        total += acknowledged;
    }
    println!("{total} changes were acknowledged");
    assert!(total > 100, "too few changes: {total}");
    // The watch saw every row's last change, and none twice.
    let (mut seen, mut left) = (0, listed.len());
    while left > 0 {
        let event = next(&mut watch).await;
        let RowEvent::Set(row) = event else { panic!("{event:?} after revision {seen}") };
        assert!(row.revision >= seen, "a change came late or twice");
        seen = row.revision;
        left -= usize::from(listed.contains(&row));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_survives_the_restart_of_all_members() {
    let mut etcd = Cluster::start(3);
    let store = create(&etcd).await;
    let (_, from) = store.list("").await.expect("rows");
    let mut watch = store.watch("", from);
    let mut last = None;
    for _ in 0..3 {
        let written = loop {
            match store.compare_and_set(cas("a", last, "v")).await {
                Ok(revision) => break revision,
                Err(error) => assert!(is_unknown(&Err(error.clone())), "{error}"),
            }
            last = store.get("a").await.expect("a row").map(|row| row.revision);
        };
        last = Some(written);
        while revision(&next(&mut watch).await) < written {}
        etcd.restart_all(|_| {});
    }
    let written = store.compare_and_set(cas("b", None, "v")).await.expect("written");
    assert_eq!(revision(&next(&mut watch).await), written);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_leaves_a_member_that_is_silent() {
    let etcd = Cluster::start(3);
    create(&etcd).await;
    let watch_timeout = Duration::from_millis(300);
    let options = Options { watch_timeout, ..Options::new(etcd.endpoints()) };
    let store = EtcdStore::open(options).await.expect("opened");
    let (_, from) = store.list("").await.expect("rows");
    let mut watch = store.watch("a", from);
    for member in 0..3 {
        etcd.signal(member, Signal::SIGSTOP);
        let until = Instant::now() + TIMEOUT;
        let written = loop {
            let row = store.get("a").await;
            let expected = row.ok().flatten().map(|row| row.revision);
            match store.compare_and_set(cas("a", expected, "v")).await {
                Ok(revision) => break revision,
                Err(error) => assert!(Instant::now() < until, "{error}"),
            }
        };
        // One of the three was watched. Only after 10 s would its connection be given up, too.
        let seeing = async { while revision(&next(&mut watch).await) < written {} };
        let seen = tokio::time::timeout(Duration::from_secs(8), seeing).await;
        assert!(seen.is_ok(), "the watch of member {member} is still waited for");
        etcd.signal(member, Signal::SIGCONT);
    }
}

/// A store behind a proxy in front of a single member, and the same store without it.
async fn proxied() -> (Cluster, Proxy, EtcdStore, EtcdStore) {
    let etcd = Cluster::start(1);
    let direct = create(&etcd).await;
    let proxy = Proxy::start(etcd.port(0)).await;
    let through = Options::new([format!("127.0.0.1:{}", proxy.port())]);
    let store = EtcdStore::open(through).await.expect("opened");
    (etcd, proxy, direct, store)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_that_missed_compacted_changes_must_resync() {
    let (etcd, proxy, direct, behind) = proxied().await;
    let (_, from) = behind.list("").await.expect("rows");
    let mut watch = behind.watch("", from);
    let first = direct.compare_and_set(cas("a", None, "1")).await.expect("written");
    assert_eq!(revision(&next(&mut watch).await), first);
    proxy.hold_answers(true);
    let mut last = first;
    for _ in 0..10 {
        last = direct.compare_and_set(cas("a", Some(last), "2")).await.expect("written");
    }
    etcd.ctl(&["compact", &last.to_string()]).expect("compacted");
    proxy.cut();
    proxy.hold_answers(false);
    assert_eq!(next(&mut watch).await, RowEvent::ResyncRequired);
    let (rows, now) = behind.list("").await.expect("rows");
    assert_eq!(rows[0].revision, last);
    let mut fresh = behind.watch("", now);
    let later = direct.compare_and_set(cas("a", Some(last), "3")).await.expect("written");
    assert_eq!(revision(&next(&mut fresh).await), later);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_answer_is_settled_by_the_nonce_in_the_row() {
    let (_etcd, proxy, direct, store) = proxied().await;
    let store = Arc::new(store);
    // Each change reaches etcd, but not its answer.
    let lose = async |change, meanwhile: Option<(&str, &str)>| {
        proxy.hold_answers(true);
        let CompareAndSet { key, .. } = &change;
        let key = key.clone();
        let before = direct.get(&key).await.expect("read").map(|row| row.revision);
        let changing = tokio::spawn(store.compare_and_set(change));
        let until = Instant::now() + TIMEOUT;
        let now = loop {
            let now = direct.get(&key).await.expect("read").map(|row| row.revision);
            if now != before {
                break now;
            }
            assert!(Instant::now() < until, "the change did not reach etcd");
            tokio::time::sleep(Duration::from_millis(5)).await;
        };
        if let Some((key, value)) = meanwhile {
            direct.compare_and_set(cas(key, now, value)).await.expect("overwritten");
        }
        proxy.cut();
        proxy.hold_answers(false);
        (now, changing.await.expect("no panic"))
    };
    let (made, result) = lose(cas("a", None, "1"), None).await;
    assert_eq!(result, Ok(made.expect("a revision")), "a creation");
    let (changed, result) = lose(cas("a", made, "2"), None).await;
    assert_eq!(result, Ok(changed.expect("a revision")), "a change");
    assert!(changed > made, "it happened once");
    let (_, result) = lose(cas("a", changed, "3"), Some(("a", "4"))).await;
    assert!(is_unknown(&result), "it happened and was overwritten: {result:?}");
    let row = direct.get("a").await.expect("read").expect("a row");
    assert_eq!(row.value, "4");
    let gone = CompareAndSet { key: "a".into(), expected: Some(row.revision), value: None };
    let (none, result) = lose(gone, None).await;
    assert!(none.is_none() && is_unknown(&result), "nobody knows who deleted it: {result:?}");
    // A creation is not repeated, since the row may have been deleted meanwhile.
    proxy.hold_answers(true);
    let making = tokio::spawn(store.compare_and_set(cas("c", None, "1")));
    let until = Instant::now() + TIMEOUT;
    let made = loop {
        match direct.get("c").await.expect("read") {
            Some(row) => break row.revision,
            None => assert!(Instant::now() < until, "the creation did not reach etcd"),
        }
    };
    let delete = CompareAndSet { key: "c".into(), expected: Some(made), value: None };
    direct.compare_and_set(delete).await.expect("deleted");
    proxy.cut();
    proxy.hold_answers(false);
    let result = making.await.expect("no panic");
    assert!(is_unknown(&result), "it was made and deleted: {result:?}");
    assert_eq!(direct.get("c").await, Ok(None), "it stays deleted");
    // What never reached etcd is looked for, and then unknown or made.
    proxy.stop_after(0);
    let changing = tokio::spawn(store.compare_and_set(cas("b", None, "1")));
    tokio::time::sleep(Duration::from_millis(50)).await;
    proxy.cut();
    proxy.go_on();
    let result = changing.await.expect("no panic");
    let found = direct.get("b").await.expect("read").map(|row| row.revision);
    assert!(result.as_ref().ok().copied() == found, "{result:?}, but {found:?}");
}

fn copy(from: &Path, to: &Path) {
    let status = Command::new("cp").arg("-a").arg(from).arg(to).status().expect("cp");
    assert!(status.success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r5_an_etcd_with_an_older_state_stops_the_store() {
    let mut etcd = Cluster::start(1);
    let store = create(&etcd).await;
    let first = store.compare_and_set(cas("a", None, "1")).await.expect("written");
    let backup = etcd.data(0).with_file_name("backup");
    etcd.restart_all(|etcd| copy(&etcd.data(0), &backup));
    let mut last = first;
    for _ in 0..5 {
        let changing = store.compare_and_set(cas("a", Some(last), "2")).await;
        last = changing.unwrap_or(last);
    }
    assert!(last > first, "it was changed after the backup");
    etcd.restart_all(|etcd| {
        std::fs::remove_dir_all(etcd.data(0)).expect("removed");
        copy(&backup, &etcd.data(0));
    });
    let until = Instant::now() + TIMEOUT;
    let why = loop {
        match store.get("a").await {
            Err(StoreError::Stopped(why)) => break why,
            other => assert!(Instant::now() < until, "the store goes on: {other:?}"),
        }
    };
    assert!(why.contains("etcd went back"), "{why}");
    let refused = store.compare_and_set(cas("a", Some(first), "3")).await;
    assert!(matches!(refused, Err(CompareAndSetError::Store(StoreError::Stopped(_)))));
    let open =
        EtcdStore::open(Options { cluster: Some(CLUSTER), ..Options::new(etcd.endpoints()) });
    let found = open.await.expect("opened").identity().durable_sequence;
    assert!(found < last, "a witness of {last} sees that {found} is older");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_end_in_time_while_etcd_is_away() {
    let mut etcd = Cluster::start(1);
    let limit = Duration::from_secs(1);
    create(&etcd).await;
    let options = Options { call_timeout: limit, queue_rows: 8, ..Options::new(etcd.endpoints()) };
    let store = EtcdStore::open(options).await.expect("opened");
    etcd.signal(0, Signal::SIGSTOP);
    let began = Instant::now();
    let calls = (0..100).map(|at| store.compare_and_set(cas(&format!("r{at}"), None, "v")));
    let results = join_all(calls).await;
    assert!(results.iter().all(is_unknown) && began.elapsed() < TIMEOUT, "{:?}", began.elapsed());
    let named = |setting: &str| {
        results.iter().filter(|result| format!("{result:?}").contains(setting)).count()
    };
    let (refused, late) = (named("queue-metadata-ops"), named("call-timeout"));
    assert!(refused >= 50 && late > 0 && refused + late == 100, "{results:?}");
    etcd.signal(0, Signal::SIGCONT);
    let until = Instant::now() + TIMEOUT;
    while store.get("r0").await.is_err() {
        assert!(Instant::now() < until, "it does not recover");
    }
    etcd.kill(0);
    assert!(store.get("r0").await.is_err_and(|error| error.is_retryable()));
}
