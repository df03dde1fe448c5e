//! A store is backed up while turns go on, as of one moment, and restored.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use bytes::Bytes;
use futures::executor::block_on;
use ostraca_core::ids::Entity;
use ostraca_core::records::{
    Claim, ClaimOutcome, Commit, CommitOutcome, Head, RecordKey, RecordWrite,
};
use ostraca_store::backup::{BackupContents, BackupWriter, Manifest};
use ostraca_store::conformance::copied::{copied, fill, goes_on, read};
use ostraca_store::conformance::{CLUSTER, CLUSTER_NAME, claim_of, shard};
use ostraca_store::transfer::StoreContents;
use ostraca_store::{EntityStore, Scan, ScanKind, ScannedRecord, StoreError};
use ostraca_store_sled::{Options, SledCopyTarget, SledStore};

fn create(dir: &Path) -> SledStore {
    SledStore::create(dir, &Options::default(), CLUSTER, CLUSTER_NAME).expect("a store")
}

/// Backs a store up; returns the backup's name.
fn back_up(store: &SledStore, dir: &Path) -> String {
    let mut writer = BackupWriter::new(dir).expect("a directory");
    let manifest = store.back_up(&mut |section, chunk| {
        writer.add(section, &chunk).map_err(|error| StoreError::Unavailable(error.to_string()))
    });
    writer.finish(manifest.expect("a backup")).expect("a verified backup")
}

fn restore(backups: &Path, name: Option<&str>, to: &Path) -> SledStore {
    let mut source = BackupContents::open(backups, name).expect("a backup");
    let mut target =
        SledCopyTarget::open(to, &Options::default(), &source.identity()).expect("a target");
    copied(&mut source, &mut target).expect("restored");
    drop(target);
    SledStore::open(to, &Options::default()).expect("the restored store")
}

#[test]
fn a_backup_has_all_that_the_store_shows() {
    let root = tempfile::tempdir().expect("a directory");
    let (from, backups) = (root.path().join("from"), root.path().join("backups"));
    let store = create(&from);
    fill(&store);
    let seen = read(&store);
    let first = back_up(&store, &backups);
    goes_on(&store);
    let later = read(&store);
    back_up(&store, &backups);
    // The store goes on; each backup shows what it showed then, and is a store of its own.
    let one = restore(&backups, Some(&first), &root.path().join("one"));
    assert_eq!(read(&one), seen);
    goes_on(&one);
    let two = restore(&backups, None, &root.path().join("two"));
    assert_eq!(read(&two), later);
    let ids = [&store, &one, &two].map(|store| store.identity().store_id);
    assert!(ids[0] != ids[1] && ids[1] != ids[2] && ids[0] != ids[2], "{ids:?}");
}

const ENTITIES: u64 = 300;

fn id(number: u64) -> String {
    format!("e{number:04}")
}

/// The next turn of an entity: it sets `count`, a value that is sometimes large, and a key of its own that the turn
/// after the next removes.
fn turn(claim: &Arc<Claim>, number: u64, version: u64) -> Commit {
    let set = |key: String, value: Option<Vec<u8>>| RecordWrite {
        key: RecordKey::State(key.into()),
        value: value.map(Bytes::from),
    };
    let large = if version.is_multiple_of(3) { 9000 } else { 10 };
    let mut writes = vec![
        set("count".into(), Some(version.to_be_bytes().to_vec())),
        set("body".into(), Some(vec![version as u8; large])),
        set(format!("at-{version}"), Some(vec![])),
    ];
    if version > 2 {
        writes.push(set(format!("at-{}", version - 2), None));
    }
    let mut head = Head { version, revision: 1, ..Head::default() };
    head.turn.number = version;
    Commit {
        claim: claim.clone(),
        entity: Entity::new("t", id(number)),
        expected_version: version - 1,
        head,
        writes,
        extensions: Default::default(),
    }
}

fn state(store: &SledStore, number: u64) -> Vec<(Bytes, Bytes)> {
    let scan = Scan {
        shard: shard(1),
        kind: ScanKind::State(Entity::new("t", id(number))),
        after: None,
        max_records: 100,
        max_bytes: 1 << 20,
    };
    let page = block_on(store.scan(scan)).expect("a page");
    let records = page.records.into_iter().map(|record| match record {
        ScannedRecord::State(key, value) => (key, value),
        other => panic!("{other:?}"),
    });
    records.collect()
}

/// One writer commits the next version of all entities in order, one after the other: so at any moment, the versions
/// from the first entity to the last fall by at most one, once.
#[test]
fn a_backup_shows_one_moment_of_a_store_that_is_written_to() {
    let root = tempfile::tempdir().expect("a directory");
    let backups = root.path().join("backups");
    let store = create(&root.path().join("from"));
    let claim = claim_of(shard(1), 1, 1);
    assert_eq!(block_on(store.claim(vec![claim.clone()])), [ClaimOutcome::Granted]);
    let claim = Arc::new(claim);
    let (ended, acknowledged) = (AtomicBool::new(false), AtomicU64::new(0));
    let (names, before) = thread::scope(|scope| {
        scope.spawn(|| {
            for version in 1.. {
                for number in 0..ENTITIES {
                    if ended.load(Ordering::Relaxed) {
                        return;
                    }
                    let outcome = block_on(store.commit(vec![turn(&claim, number, version)]));
                    assert_eq!(outcome, [CommitOutcome::Committed]);
                    acknowledged.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        while acknowledged.load(Ordering::Relaxed) < 3 * ENTITIES {
            thread::yield_now();
        }
        let mut before = Vec::new();
        let names = (0..5).map(|_| {
            before.push(acknowledged.load(Ordering::Relaxed));
            back_up(&store, &backups)
        });
        let names: Vec<_> = names.collect();
        ended.store(true, Ordering::Relaxed);
        (names, before)
    });
    assert!(acknowledged.load(Ordering::Relaxed) > before[4], "it was written to during backups");
    for (name, before) in names.iter().zip(before) {
        let restored = restore(&backups, Some(name), &root.path().join(name));
        let wanted = (0..ENTITIES).map(|number| (shard(1), Entity::new("t", id(number)))).collect();
        let loaded = block_on(restored.load(wanted));
        let versions: Vec<u64> = loaded
            .into_iter()
            .map(|loaded| loaded.expect("loaded").head.map_or(0, |head| head.version))
            .collect();
        let (first, last) = (versions[0], versions[versions.len() - 1]);
        assert!(first == last || first == last + 1, "{name}: {first} to {last}");
        assert!(versions.windows(2).all(|two| two[0] >= two[1]), "{name}: {versions:?}");
        let turns: u64 = versions.iter().sum();
        assert!(turns >= before, "{name}: {before} turns were acknowledged, {turns} are there");
        for (number, version) in (0..).zip(&versions) {
            let state = state(&restored, number);
            let keys: Vec<_> = state.iter().map(|(key, _)| key.clone()).collect();
            let mut expected = vec![
                Bytes::from(format!("at-{}", version - 1)),
                format!("at-{version}").into(),
                "body".into(),
                "count".into(),
            ];
            expected.sort();
            assert_eq!(keys, expected, "{name}, entity {number} of version {version}");
            let count = state.iter().find(|(key, _)| key == "count").expect("count");
            assert_eq!(count.1, version.to_be_bytes()[..]);
        }
    }
}

#[test]
fn a_second_backup_waits_for_the_first_one() {
    let root = tempfile::tempdir().expect("a directory");
    let store = create(&root.path().join("from"));
    fill(&store);
    let mut refused = None;
    let backup = store.back_up(&mut |_, _| {
        let other: Result<Manifest, _> = store.back_up(&mut |_, _| Ok(()));
        refused = Some(other.expect_err("a second one"));
        Ok(())
    });
    backup.expect("the first one");
    assert!(
        matches!(&refused, Some(StoreError::Unavailable(text)) if text.contains("another backup"))
    );
    // An error of the sink ends the backup, and the next one can run.
    let full = StoreError::Unavailable("the disk is full".into());
    assert_eq!(store.back_up(&mut |_, _| Err(full.clone())), Err(full));
    store.back_up(&mut |_, _| Ok(())).expect("the next one");
}

#[test]
fn too_many_changes_during_a_backup_end_it_by_name() {
    let root = tempfile::tempdir().expect("a directory");
    let options = Options { backup_changes: 20, ..Options::default() };
    let dir = root.path().join("from");
    let store = SledStore::create(&dir, &options, CLUSTER, CLUSTER_NAME).expect("a store");
    fill(&store);
    let claim = claim_of(shard(1), 5, 1);
    assert_eq!(block_on(store.claim(vec![claim.clone()])), [ClaimOutcome::Granted]);
    let claim = Arc::new(claim);
    let mut number = 0;
    let error = store.back_up(&mut |_, _| {
        number += 1;
        let outcome = block_on(store.commit(vec![turn(&claim, number, 3)]));
        // It begins at the floor of the shard.
        assert!(matches!(outcome[0], CommitOutcome::Committed), "{outcome:?}");
        let more = (1..10).map(|more| turn(&claim, number, 3 + more)).collect();
        assert!(block_on(store.commit(more)).iter().all(|it| *it == CommitOutcome::Committed));
        Ok(())
    });
    let text = error.expect_err("too many").to_string();
    assert!(text.contains("store.backup-changes"), "{text}");
    assert!(number > 1);
}
