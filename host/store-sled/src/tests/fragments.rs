//! Fragmented records: no fragment is left over, no matter what the committer has cached for the entity.

use futures::executor::block_on;
use ostraca_core::records::{CommitOutcome, RecordKey, RecordWrite};
use ostraca_store::EntityStore;

use super::{claimed, create, set, turn};
use crate::{Options, SledStore, open_database};

/// The number of fragments in the store in that directory.
fn fragment_count(dir: &std::path::Path) -> usize {
    let config = sled::Config::new().path(dir.join("sled")).segment_size(1 << 20);
    // This waits for the lock, which the store that was just closed holds for a moment longer.
    let db = open_database(&config).unwrap();
    db.scan_prefix(b"K").inspect(|fragment| assert!(fragment.is_ok())).count()
}

#[test]
fn no_fragment_is_left_over_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let store = create(dir.path(), &Options::default());
    let claim = claimed(&store);
    let write = |store: &SledStore, from, size| {
        let mut turn = turn(&claim, "a", from);
        turn.writes = vec![set(b"small".to_vec(), vec![1]), set(b"value".to_vec(), vec![7; size])];
        assert_eq!(block_on(store.commit(vec![turn])), [CommitOutcome::Committed]);
    };
    write(&store, 0, 100_000);
    drop(store);
    assert!(fragment_count(dir.path()) > 20);
    let store = SledStore::open(dir.path(), &Options::default()).unwrap();
    write(&store, 1, 50_000);
    write(&store, 2, 10);
    drop(store);
    assert_eq!(fragment_count(dir.path()), 0);
}

#[test]
fn large_events_and_items_leave_no_fragment_after_restarts() {
    let dir = tempfile::tempdir().unwrap();
    let store = create(dir.path(), &Options::default());
    let claim = claimed(&store);
    let write = |store: &SledStore, from, value: Option<Vec<u8>>| {
        let mut turn = turn(&claim, "a", from);
        let value: Option<bytes::Bytes> = value.map(Into::into);
        let item = RecordKey::ChannelItem { channel: "c".into(), number: 1 };
        turn.writes = [RecordKey::Journal { number: 1 }, item]
            .map(|key| RecordWrite { key, value: value.clone() })
            .into();
        assert_eq!(block_on(store.commit(vec![turn])), [CommitOutcome::Committed]);
    };
    write(&store, 0, Some(vec![7; 100_000]));
    drop(store);
    assert!(fragment_count(dir.path()) > 20);
    let store = SledStore::open(dir.path(), &Options::default()).unwrap();
    write(&store, 1, None);
    drop(store);
    assert_eq!(fragment_count(dir.path()), 0);
}

#[test]
fn entities_evicted_from_the_cache_leave_no_fragment() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options { head_cache: 2, ..Options::default() };
    let store = create(dir.path(), &options);
    let claim = claimed(&store);
    for (from, size) in [(0, 30_000), (1, 10)] {
        for id in ["a", "b", "c", "d", "e", "f"] {
            let mut turn = turn(&claim, id, from);
            turn.writes = vec![set(b"value".to_vec(), vec![7; size])];
            assert_eq!(block_on(store.commit(vec![turn])), [CommitOutcome::Committed]);
        }
    }
    drop(store);
    assert_eq!(fragment_count(dir.path()), 0);
}
