//! PostgreSQL on disks that are full: that of its data, and that of its write-ahead log.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use ostraca_core::records::{
    Claim, ClaimOutcome, Commit, CommitOutcome, CommitRefusal, RecordKey, RecordWrite,
};
use ostraca_store::{ClusterStore, CompareAndSet, CompareAndSetError, EntityStore, StoreError};
use ostraca_store_postgres::PostgresStore;
use ostraca_test_servers::disk::SmallDisk;
use ostraca_test_servers::postgres::{Server, Setup};

use crate::faults::{TIMEOUT, claim, claimed, commit, create, shard, turn, version};

/// Bytes that cannot be compressed. Each number gives others.
fn noise(number: u64, length: usize) -> Bytes {
    let mut bytes = vec![0; length];
    blake3::Hasher::new().update(&number.to_le_bytes()).finalize_xof().fill(&mut bytes);
    bytes.into()
}

/// A turn that needs new space on the disk.
fn large(claim: &Arc<Claim>, from: u64) -> Commit {
    let key = RecordKey::State(from.to_be_bytes().to_vec().into());
    let value = Some(noise(from, 200_000));
    Commit { writes: vec![RecordWrite { key, value }], ..turn(claim, "e", from, 0) }
}

/// Commits turns until one is not committed. Returns the version before it, and its outcome.
async fn commit_until_full(store: &PostgresStore, claim: &Arc<Claim>) -> (u64, CommitOutcome) {
    let mut from = version(store, "e").await;
    let until = Instant::now() + TIMEOUT;
    while Instant::now() < until {
        match commit(store, large(claim, from)).await {
            CommitOutcome::Committed => from += 1,
            other => return (from, other),
        }
    }
    panic!("{from} turns were committed");
}

fn names_the_disk(why: &str) -> bool {
    why.contains("the disk of PostgreSQL is full, free space there") && why.contains("53100")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_data_disk_refuses_writes_until_there_is_room() {
    let disk = SmallDisk::new(128 << 20);
    // The log is elsewhere, so that the server itself survives.
    let log = SmallDisk::new(256 << 20);
    let setup = Setup { data: Some(&disk), log: Some(&log), ..Setup::default() };
    let server = Server::start_as(setup);
    let (store, _) = create(&server).await;
    let own = claim(1, "a");
    claimed(&store, &own).await;
    assert_eq!(commit(&store, large(&own, 0)).await, CommitOutcome::Committed);
    let row = |expected, number| {
        let value = Some(noise(number, 60_000));
        store.compare_and_set(CompareAndSet { key: "a".into(), expected, value })
    };
    let mut last = (row(None, 0).await.expect("written"), 0);
    disk.fill(2 << 20);

    let (acknowledged, full) = commit_until_full(&store, &own).await;
    match full {
        CommitOutcome::Refused(CommitRefusal::LimitReached(why)) => {
            assert!(names_the_disk(&why), "{why}");
        }
        other => panic!("{other:?}"),
    }
    disk.fill(0);
    let why = loop {
        match row(Some(last.0), last.1 + 1).await {
            Ok(revision) => last = (revision, last.1 + 1),
            Err(CompareAndSetError::Store(StoreError::Unavailable(why))) => break why,
            Err(other) => panic!("{other}"),
        }
    };
    assert!(names_the_disk(&why), "{why}");
    match store.put_blob(noise(1, 1 << 20)).await {
        Err(StoreError::Unavailable(why)) => assert!(names_the_disk(&why), "{why}"),
        other => panic!("{other:?}"),
    }
    // What is acknowledged is there, and a refused turn is not.
    assert_eq!(version(&store, "e").await, acknowledged);
    let found = store.get("a").await.expect("read").expect("a row");
    assert_eq!((found.revision, found.value), (last.0, noise(last.1, 60_000)));
    // A claim may need space or not, and either way it decides.
    let next = claim(2, "b");
    let granted = match store.claim(vec![(*next).clone()]).await.remove(0) {
        ClaimOutcome::Granted => true,
        ClaimOutcome::Failed(why) => {
            assert!(names_the_disk(&why), "{why}");
            false
        }
        other => panic!("{other:?}"),
    };
    let current = store.current_claims(vec![shard()]).await.expect("read").remove(0);
    assert_eq!(current.as_ref(), Some(if granted { &*next } else { &*own }));

    disk.free();
    claimed(&store, &next).await;
    let refusal = CommitRefusal::ClaimMismatch { current: Some(Box::new((*next).clone())) };
    let stale = commit(&store, large(&own, acknowledged)).await;
    assert_eq!(stale, CommitOutcome::Refused(refusal));
    let same = commit(&store, large(&next, acknowledged)).await;
    assert_eq!(same, CommitOutcome::Committed, "the same store goes on");
    assert_eq!(version(&store, "e").await, acknowledged + 1);
    row(Some(last.0), 1).await.expect("written");
    store.put_blob(noise(1, 1 << 20)).await.expect("stored");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_log_disk_loses_no_acknowledged_turn() {
    let log = SmallDisk::new(64 << 20);
    let mut server = Server::start_as(Setup { log: Some(&log), ..Setup::default() });
    let (store, _) = create(&server).await;
    let mut own = claim(1, "a");
    claimed(&store, &own).await;
    let mut small = 0;
    for epoch in [2, 3] {
        let outcome = commit(&store, turn(&own, "small", small, 10)).await;
        assert_eq!(outcome, CommitOutcome::Committed);
        small += 1;
        log.fill(2 << 20);
        // The server ends all its processes, since it cannot write its log.
        let (acknowledged, full) = commit_until_full(&store, &own).await;
        assert!(matches!(full, CommitOutcome::Unknown(_)), "{full:?}");
        // It may find a little room when it starts again by itself.
        let mut in_doubt = false;
        for _ in 0..10 {
            match commit(&store, turn(&own, "small", small, 10)).await {
                CommitOutcome::Committed | CommitOutcome::AlreadyCommitted => {
                    (small, in_doubt) = (small + 1, false);
                }
                CommitOutcome::Unknown(_) => in_doubt = true,
                CommitOutcome::Refused(why) => {
                    assert!(matches!(why, CommitRefusal::LimitReached(_)), "{why:?}");
                }
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        log.free();
        server.run();
        // The next claim decides what became of the turns that are in doubt (R3).
        own = claim(epoch, "a");
        let until = Instant::now() + TIMEOUT;
        while store.claim(vec![(*own).clone()]).await != [ClaimOutcome::Granted] {
            assert!(Instant::now() < until, "no claim is granted after the restart");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let found = version(&store, "e").await;
        assert!((acknowledged..=acknowledged + 1).contains(&found), "{found} of {acknowledged}");
        let again = commit(&store, large(&own, acknowledged)).await;
        let expected = match found == acknowledged {
            true => CommitOutcome::Committed,
            false => CommitOutcome::AlreadyCommitted,
        };
        assert_eq!(again, expected);
        let found = version(&store, "small").await;
        assert!((small..=small + u64::from(in_doubt)).contains(&found), "{found} of {small}");
        small = found;
    }
}
