//! A disk that fails, hangs, or is full.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::FutureExt;
use futures::executor::block_on;
use ostraca_core::ids::Entity;
use ostraca_core::records::{Claim, ClaimOutcome, CommitOutcome, CommitRefusal};
use ostraca_store::{
    ClusterStore, CompareAndSet, CompareAndSetError, EntityStore, RowEvent, Scan, ScanKind,
    StoreError, StoreFuture,
};

use super::{claimed, create, shard, turn};
use crate::disk::{Disk, RealDisk};
use crate::open::open_on;
use crate::{Options, SledStore};

/// Each sync reports that it has begun, and waits for the result that a test chooses.
#[derive(Debug)]
struct Gated {
    began: Mutex<Sender<()>>,
    end: Mutex<Receiver<bool>>,
}

impl Disk for Gated {
    fn sync(&self, file: &File) -> io::Result<()> {
        self.began.lock().unwrap().send(()).unwrap();
        if self.end.lock().unwrap().recv().unwrap() {
            RealDisk.sync(file)
        } else {
            Err(io::Error::other("injected"))
        }
    }

    fn free(&self, path: &Path) -> io::Result<u64> {
        RealDisk.free(path)
    }
}

fn gated(dir: &Path) -> (SledStore, Receiver<()>, Sender<bool>) {
    gated_with(dir, &Options::default())
}

pub(super) fn gated_with(dir: &Path, options: &Options) -> (SledStore, Receiver<()>, Sender<bool>) {
    drop(create(dir, options));
    let (began, begins) = channel();
    let (ends, end) = channel();
    let disk = Gated { began: Mutex::new(began), end: Mutex::new(end) };
    (open_on(dir, options, Arc::new(disk)).unwrap(), begins, ends)
}

/// Waits until a read is answered, or has read its data and waits for a sync.
pub(super) fn answered<T>(store: &SledStore, read: &mut StoreFuture<T>) -> Option<T> {
    let began = Instant::now();
    loop {
        let answer = read.now_or_never();
        if answer.is_some() || store.progress.is_waited_for() {
            return answer;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "the read waits for something else");
        std::thread::yield_now();
    }
}

fn load(
    store: &SledStore,
) -> StoreFuture<Vec<Result<ostraca_core::records::LoadedEntity, StoreError>>> {
    store.load(vec![(shard(), Entity::new("counter", "a"))])
}

#[test]
fn a_failed_sync_makes_its_batch_unknown_and_stops_the_store() {
    let dir = tempfile::tempdir().unwrap();
    let (store, begins, ends) = gated(dir.path());
    ends.send(true).unwrap();
    let claim = claimed(&store);
    begins.recv().unwrap();
    let sequence = store.identity().durable_sequence;
    let mut watch = store.watch("", sequence);
    let stopping = store.when_stopped();

    let committing = store.commit(vec![turn(&claim, "a", 0), turn(&claim, "a", 7)]);
    begins.recv().unwrap();
    let loading = load(&store);
    let queued = store.commit(vec![turn(&claim, "b", 0)]);
    let cas = CompareAndSet { key: "row".into(), expected: None, value: Some(Bytes::new()) };
    let queued_cas = store.compare_and_set(cas.clone());
    ends.send(false).unwrap();

    for outcome in block_on(committing) {
        assert!(matches!(outcome, CommitOutcome::Unknown(_)), "R3: the whole batch: {outcome:?}");
    }
    let is_stopped = |error| matches!(error, StoreError::Stopped(_));
    assert!(
        is_stopped(block_on(loading).remove(0).unwrap_err()),
        "reads must not return anything that is not durable"
    );
    assert!(block_on(stopping).unwrap().contains("injected"));
    let later = store.commit(vec![turn(&claim, "b", 0)]);
    for commit in [queued, later] {
        let outcome = block_on(commit).remove(0);
        assert!(
            matches!(outcome, CommitOutcome::Refused(CommitRefusal::LimitReached(_))),
            "{outcome:?}"
        );
    }
    for cas in [queued_cas, store.compare_and_set(cas)] {
        assert!(matches!(block_on(cas), Err(CompareAndSetError::Store(StoreError::Stopped(_)))));
    }
    assert!(store.stop_reason().unwrap().contains("injected"));
    assert!(is_stopped(block_on(load(&store)).remove(0).unwrap_err()));
    assert!(is_stopped(block_on(store.current_claims(vec![shard()])).unwrap_err()));
    assert!(is_stopped(block_on(store.list("")).unwrap_err()));
    assert!(is_stopped(block_on(store.get("row")).unwrap_err()));
    let (kind, after) = (ScanKind::Heads, None);
    let scan = Scan { shard: shard(), kind, after, max_records: 1, max_bytes: 1 };
    assert!(is_stopped(block_on(store.scan(scan)).unwrap_err()));
    assert!(is_stopped(block_on(store.put_blob(Bytes::new())).unwrap_err()));
    let outcome = block_on(store.claim(vec![(*claim).clone()])).remove(0);
    assert!(matches!(outcome, ClaimOutcome::Failed(_)));
    assert_eq!(
        block_on(watch.next()),
        RowEvent::ResyncRequired,
        "a watcher learns that no changes will follow"
    );
    assert_eq!(store.identity().durable_sequence, sequence, "the sequence must not advance");
}

#[test]
fn every_caller_of_a_failed_batch_learns_why() {
    let dir = tempfile::tempdir().unwrap();
    let (store, begins, ends) = gated(dir.path());
    ends.send(true).unwrap();
    let claim = claimed(&store);
    begins.recv().unwrap();
    // While this sync runs, the next batch is collected.
    let first = store.commit(vec![turn(&claim, "a", 0)]);
    begins.recv().unwrap();
    let committing = store.commit(vec![turn(&claim, "a", 1)]);
    let claiming = store.claim(vec![Claim { number: 2, ..(*claim).clone() }]);
    let cas = CompareAndSet { key: "row".into(), expected: None, value: Some(Bytes::new()) };
    let setting = store.compare_and_set(cas);
    ends.send(true).unwrap();
    assert_eq!(block_on(first), [CommitOutcome::Committed]);
    begins.recv().unwrap();
    ends.send(false).unwrap();

    let is_reason = |why: &str| assert!(why.contains("sync failed: injected"), "{why}");
    match block_on(committing).remove(0) {
        CommitOutcome::Unknown(why) => is_reason(&why),
        other => panic!("{other:?}"),
    }
    match block_on(claiming).remove(0) {
        ClaimOutcome::Failed(why) => is_reason(&why),
        other => panic!("{other:?}"),
    }
    match block_on(setting) {
        Err(CompareAndSetError::Store(StoreError::Stopped(why))) => is_reason(&why),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_load_returns_only_when_what_it_read_is_durable() {
    let dir = tempfile::tempdir().unwrap();
    let (store, begins, ends) = gated(dir.path());
    ends.send(true).unwrap();
    let claim = claimed(&store);
    begins.recv().unwrap();

    let committing = store.commit(vec![turn(&claim, "a", 0)]);
    begins.recv().unwrap();
    // sled already shows the turn, but its sync has not completed.
    let mut loading = load(&store);
    assert!(answered(&store, &mut loading).is_none());
    ends.send(true).unwrap();
    assert_eq!(block_on(loading).remove(0).unwrap().head.unwrap().version, 1);
    assert_eq!(block_on(committing), [CommitOutcome::Committed]);
}

#[derive(Debug)]
struct Filling(Arc<AtomicU64>);

impl Disk for Filling {
    fn sync(&self, file: &File) -> io::Result<()> {
        RealDisk.sync(file)
    }

    fn free(&self, _: &Path) -> io::Result<u64> {
        Ok(self.0.load(Ordering::Relaxed))
    }
}

#[test]
fn commits_are_refused_only_below_the_low_water_mark() {
    let dir = tempfile::tempdir().unwrap();
    drop(create(dir.path(), &Options::default()));
    let free = Arc::new(AtomicU64::new(1 << 30));
    let options = Options { low_water_check_interval: Duration::ZERO, ..Options::default() };
    let store = open_on(dir.path(), &options, Arc::new(Filling(free.clone()))).unwrap();
    let claim = claimed(&store);
    let commit = |from| block_on(store.commit(vec![turn(&claim, "a", from)])).remove(0);
    assert_eq!(commit(0), CommitOutcome::Committed);
    assert_eq!(store.low_disk_reason(), None);
    free.store(options.low_water_bytes - 1, Ordering::Relaxed);
    match commit(1) {
        CommitOutcome::Refused(CommitRefusal::LimitReached(why)) => {
            assert!(why.contains("store.low-water-bytes"))
        }
        other => panic!("{other:?}"),
    }
    assert!(store.low_disk_reason().is_some_and(|why| why.contains("bytes of disk are free")));
    match block_on(store.put_blob(Bytes::from_static(b"component"))) {
        Err(StoreError::Unavailable(why)) => {
            assert!(why.contains("store.low-water-bytes"), "{why}")
        }
        other => panic!("{other:?}"),
    }
    let lease =
        CompareAndSet { key: "lease".into(), expected: None, value: Some("renewed".into()) };
    assert!(block_on(store.compare_and_set(lease)).is_ok(), "a node can renew its lease");
    free.store(options.low_water_bytes, Ordering::Relaxed);
    assert_eq!(commit(1), CommitOutcome::Committed);
    assert_eq!(store.low_disk_reason(), None);
    assert!(block_on(store.put_blob(Bytes::from_static(b"component"))).is_ok());
}

#[test]
fn a_full_queue_refuses_by_the_name_of_its_setting() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options { queue_commits: 2, queue_bytes: 3000, ..Options::default() };
    let store = create(dir.path(), &options);
    let claim = claimed(&store);
    let refusal = |turns| match block_on(store.commit(turns)).remove(0) {
        CommitOutcome::Refused(CommitRefusal::LimitReached(why)) => why,
        other => panic!("{other:?}"),
    };
    let three = (0..3).map(|from| turn(&claim, "a", from)).collect();
    assert!(refusal(three).contains("store.queue-commits"));
    let mut large = turn(&claim, "a", 0);
    large.writes = vec![super::set(b"k".to_vec(), vec![0; 3000])];
    assert!(refusal(vec![large]).contains("store.queue-bytes"));
    assert_eq!(block_on(store.commit(vec![turn(&claim, "a", 0)])), [CommitOutcome::Committed]);
}

#[test]
fn calls_queued_when_the_store_is_dropped_are_served() {
    let dir = tempfile::tempdir().unwrap();
    let store = create(dir.path(), &Options::default());
    let claim = claimed(&store);
    let calls: Vec<_> = (0..100).map(|from| store.commit(vec![turn(&claim, "a", from)])).collect();
    let loading = load(&store);
    drop(store);
    for call in calls {
        assert_eq!(block_on(call), [CommitOutcome::Committed]);
    }
    assert_eq!(block_on(loading).remove(0).unwrap().head.unwrap().version, 100);
}

#[test]
fn callers_on_many_threads_share_syncs_and_lose_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let store = create(dir.path(), &Options::default());
    let claim = claimed(&store);
    std::thread::scope(|scope| {
        for caller in 0..8 {
            let (store, claim) = (&store, &claim);
            scope.spawn(move || {
                let id = caller.to_string();
                for from in 0..50 {
                    let outcome = block_on(store.commit(vec![turn(claim, &id, from)]));
                    assert_eq!(outcome, [CommitOutcome::Committed]);
                    let entity = vec![(shard(), Entity::new("counter", id.clone()))];
                    let loaded = block_on(store.load(entity)).remove(0).unwrap();
                    assert_eq!(loaded.head.unwrap().version, from + 1);
                }
            });
        }
    });
}

#[test]
fn a_panicking_read_stops_no_other_reads() {
    let dir = tempfile::tempdir().unwrap();
    let store = create(dir.path(), &Options::default());
    for panics in 1..=10 {
        let read = store.read(crate::read_queue::ReadOp::Panic, |_| ());
        block_on(read);
        let claims = store.current_claims(vec![shard()]);
        assert_eq!(block_on(claims), Ok(vec![None]));
        // The panic is counted shortly after the read has failed.
        for _ in 0..1_000 {
            if store.read_panics() == panics {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(store.read_panics(), panics);
    }
}
