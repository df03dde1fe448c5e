//! An etcd without room: at its quota, and on disks that are full.

use futures::future::join_all;
use ostraca_store::{ClusterStore, CompareAndSetError, StoreError};
use ostraca_store_etcd::EtcdStore;
use ostraca_test_servers::disk::SmallDisk;
use ostraca_test_servers::etcd::Cluster;
use tokio::time::Instant;

use super::{TIMEOUT, cas, create, is_unknown, next, revision};

/// Room for what a member allocates at once, which is two segments of its log (64 MB each), and for some data.
const DISK: u64 = 160 << 20;

/// A large value with this number.
fn value(number: u64) -> String {
    format!("{number}:{}", "v".repeat(60_000))
}

fn number(value: &[u8]) -> u64 {
    let text = std::str::from_utf8(value).expect("text");
    text.split(':').next().and_then(|number| number.parse().ok()).expect("a number")
}

/// The number in the row `a` and its revision, as soon as etcd answers.
async fn read(store: &EtcdStore) -> (u64, u64) {
    let until = Instant::now() + TIMEOUT;
    loop {
        match store.get("a").await {
            Ok(row) => {
                let row = row.expect("a row");
                return (number(&row.value), row.revision);
            }
            Err(error) => assert!(Instant::now() < until && error.is_retryable(), "{error}"),
        }
    }
}

/// Overwrites the row `a` with the next number. Returns what it is then, since that may be in doubt.
async fn write(store: &EtcdStore, last: (u64, u64)) -> (u64, u64) {
    match store.compare_and_set(cas("a", Some(last.1), &value(last.0 + 1))).await {
        Ok(revision) => (last.0 + 1, revision),
        Err(error) => {
            assert!(is_unknown(&Err(error)));
            let found = read(store).await;
            assert!((last.0..=last.0 + 1).contains(&found.0), "{found:?} after {last:?}");
            found
        }
    }
}

/// Overwrites the row `a` with higher and higher numbers until that fails. Returns the last number that was
/// acknowledged, and the error.
async fn write_until_full(store: &EtcdStore, mut last: (u64, u64)) -> (u64, StoreError) {
    let until = Instant::now() + TIMEOUT;
    while Instant::now() < until {
        match store.compare_and_set(cas("a", Some(last.1), &value(last.0 + 1))).await {
            Ok(revision) => last = (last.0 + 1, revision),
            Err(CompareAndSetError::Store(error)) => return (last.0, error),
            Err(other) => panic!("{other}"),
        }
    }
    panic!("{} changes were acknowledged", last.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_etcd_at_its_quota_refuses_until_there_is_room() {
    let etcd = Cluster::start_with(1, &["--quota-backend-bytes", "1048576"], &[]);
    let store = create(&etcd).await;
    let (_, from) = store.list("").await.expect("rows");
    let mut watch = store.watch("", from);
    let made = store.compare_and_set(cas("a", None, &value(0))).await.expect("written");
    let (acknowledged, full) = write_until_full(&store, (0, made)).await;
    let text = full.to_string();
    assert!(full.is_retryable() && text.contains("space exceeded"), "{text}");
    for help in ["--quota-backend-bytes", "etcdctl alarm disarm"] {
        assert!(text.contains(help), "{text}");
    }
    // Reads are served. etcd says the same of a change that it has carried out, but that reached the quota.
    let (kept, last) = read(&store).await;
    assert!((acknowledged..=acknowledged + 1).contains(&kept), "{kept} of {acknowledged}");
    // A batch is not let through either.
    let batch = (0..3).map(|at| store.compare_and_set(cas(&format!("b{at}"), None, &value(0))));
    for result in join_all(batch).await {
        let error = result.expect_err("refused");
        assert!(error.to_string().contains("etcd has no space left"), "{error}");
    }
    let revision_text = last.to_string();
    for command in [&["compact", &revision_text][..], &["defrag"], &["alarm", "disarm"]] {
        etcd.ctl(command).unwrap_or_else(|why| panic!("{command:?}: {why}"));
    }
    // The same store goes on, and its watch has missed nothing.
    assert_eq!(read(&store).await, (kept, last));
    let changed = store.compare_and_set(cas("a", Some(last), "1")).await.expect("written");
    let mut seen = 0;
    while seen < changed {
        let event = next(&mut watch).await;
        assert!(revision(&event) > seen, "{event:?} after {seen}");
        seen = revision(&event);
    }
    let stale = store.compare_and_set(cas("a", Some(last), "2")).await.expect_err("refused");
    assert!(
        matches!(&stale, CompareAndSetError::RevisionMismatch(Some(row)) if row.revision == changed),
        "{stale}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_with_full_disks_lose_no_acknowledged_change() {
    let disks: Vec<_> = (0..3).map(|_| SmallDisk::new(DISK)).collect();
    let mut etcd = Cluster::start_on(&disks, &[]);
    let store = create(&etcd).await;
    let (_, from) = store.list("").await.expect("rows");
    let mut watch = store.watch("a", from);
    let made = store.compare_and_set(cas("a", None, &value(0))).await.expect("written");
    // The store uses the first member, which ends; the others go on.
    disks[0].fill(0);
    let mut last = (0, made);
    let until = Instant::now() + TIMEOUT;
    while !etcd.has_ended(0) {
        assert!(Instant::now() < until, "a member with a full disk goes on");
        last = write(&store, last).await;
    }
    for _ in 0..10 {
        last = write(&store, last).await;
    }
    // Without a majority nothing is acknowledged.
    disks.iter().for_each(|disk| disk.fill(0));
    let (acknowledged, why) = write_until_full(&store, last).await;
    assert!(why.is_retryable(), "{why}");
    for disk in &disks {
        disk.free();
    }
    etcd.restart_ended();
    let (found, last) = read(&store).await;
    assert!((acknowledged..=acknowledged + 1).contains(&found), "{found} after {acknowledged}");
    let changed = store.compare_and_set(cas("a", Some(last), &value(0))).await.expect("written");
    while revision(&next(&mut watch).await) < changed {}
}
