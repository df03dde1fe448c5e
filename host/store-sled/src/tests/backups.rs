//! The moment that a backup shows.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use ostraca_core::records::CommitOutcome;
use ostraca_store::backup::{BackupRecord, Section, decode_chunk};
use ostraca_store::transfer::Item;

use super::faults::gated_with;
use super::*;

/// The versions of the heads in a chunk.
fn versions(chunk: &[u8]) -> Vec<u64> {
    let records = decode_chunk(chunk).unwrap().into_iter();
    let version = |record| match record {
        BackupRecord::Item(Item::Head { head, .. }) => Some(head.version),
        _ => None,
    };
    records.filter_map(version).collect()
}

#[test]
fn the_last_round_reads_what_changed_until_it_began() {
    let dir = tempfile::tempdir().unwrap();
    let store = create(dir.path(), &Options::default());
    let claim = claimed(&store);
    assert!(store.backup.changed.begin());
    let committed = [CommitOutcome::Committed];
    assert_eq!(block_on(store.commit(vec![turn(&claim, "a", 0)])), committed);
    let mut found = Vec::new();
    let mut sink = |section, chunk: Vec<u8>| {
        if section == Section::Round(3) {
            found.extend(versions(&chunk));
        }
        Ok(())
    };
    store.backup.read_cut(BTreeSet::new(), 3, &mut sink).unwrap();
    assert_eq!(found, [1]);
}

#[test]
fn a_backup_begins_behind_the_batches_before_it() {
    let dir = tempfile::tempdir().unwrap();
    let (store, begins, ends) = gated_with(dir.path(), &Options::default());
    ends.send(true).unwrap();
    let claim = claimed(&store);
    begins.recv().unwrap();
    // Its batch was built when no backup wanted to know what it changes.
    let committing = store.commit(vec![turn(&claim, "a", 0)]);
    begins.recv().unwrap();
    let chunks = AtomicUsize::new(0);
    thread::scope(|scope| {
        let backup = scope.spawn(|| {
            store.back_up(&mut |_, _| {
                chunks.fetch_add(1, Ordering::SeqCst);
                Ok(())
            })
        });
        thread::sleep(Duration::from_millis(200));
        let early = chunks.load(Ordering::SeqCst);
        ends.send(true).unwrap();
        backup.join().unwrap().unwrap();
        assert_eq!(early, 0, "it waits");
    });
    assert_eq!(block_on(committing), [CommitOutcome::Committed]);
    assert!(chunks.load(Ordering::SeqCst) > 0);
}

#[test]
fn r2_a_backup_ends_only_when_its_moment_is_durable() {
    let dir = tempfile::tempdir().unwrap();
    let (store, begins, ends) = gated_with(dir.path(), &Options::default());
    ends.send(true).unwrap();
    let claim = claimed(&store);
    begins.recv().unwrap();
    ends.send(true).unwrap();
    block_on(store.commit(vec![turn(&claim, "a", 0)]));
    begins.recv().unwrap();
    let mut committing = None;
    thread::scope(|scope| {
        let backup = store.back_up(&mut |section, _| {
            // While the records are read, a turn is applied whose sync will fail.
            if section == Section::Round(0) && committing.is_none() {
                committing = Some(store.commit(vec![turn(&claim, "a", 1)]));
                begins.recv().unwrap();
                let ends = ends.clone();
                scope.spawn(move || {
                    thread::sleep(Duration::from_millis(200));
                    ends.send(false).unwrap();
                });
            }
            Ok(())
        });
        let error = backup.expect_err("a moment that never became durable").to_string();
        assert!(error.contains("injected"), "{error}");
    });
    let outcome = block_on(committing.unwrap());
    assert!(matches!(outcome[0], CommitOutcome::Unknown(_)), "{outcome:?}");
}
