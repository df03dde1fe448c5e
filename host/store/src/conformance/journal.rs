//! Journals: R2, E18.

use bytes::Bytes;
use ostraca_core::codec;
use ostraca_core::ids::Entity;
use ostraca_core::records::{Commit, JournalEvent, JournalSnapshot, RecordKey, RecordWrite};

use super::{Factory, done, granted, scan, scan_all, shard, turn};
use crate::{EntityStore, ScanKind, ScannedRecord};

pub(super) fn check<S: EntityStore>(factory: &Factory<S>) {
    a_journal_is_read_by_number_from_any_number(&factory.make());
    a_journal_is_read_as_of_one_commit(&factory.make());
    large_events_are_whole_and_leave_nothing(factory);
}

fn event(number: u64, data: impl Into<Bytes>) -> RecordWrite {
    let event = JournalEvent { start: number, data: data.into(), extensions: Default::default() };
    let value = Some(codec::encode(&event).unwrap().into());
    RecordWrite { key: RecordKey::Journal { number }, value }
}

fn snapshot(through: u64, data: impl Into<Bytes>) -> RecordWrite {
    let snapshot =
        JournalSnapshot { through, version: 1, data: data.into(), extensions: Default::default() };
    let value = Some(codec::encode(&snapshot).unwrap().into());
    RecordWrite { key: RecordKey::Journal { number: RecordKey::SNAPSHOT }, value }
}

fn without(number: u64) -> RecordWrite {
    RecordWrite { key: RecordKey::Journal { number }, value: None }
}

fn with(mut turn: Commit, writes: Vec<RecordWrite>) -> Commit {
    turn.writes = writes;
    turn
}

/// The journal from a number on, in pages of this many records: numbers and sizes, with number 0 for the snapshot.
fn read(store: &impl EntityStore, id: &str, from: u64, most: usize) -> Vec<(u64, usize)> {
    let entity = Entity::new("counter", id);
    let mut by = scan(&shard(1), ScanKind::Journal { entity, from });
    by.max_records = most;
    let records = scan_all(store, by).into_iter().flat_map(|page| page.records);
    let record = |record| match record {
        ScannedRecord::Event(number, event) => {
            assert_eq!(event.start, number, "each event has its own number");
            (number, event.data.len())
        }
        ScannedRecord::Snapshot(snapshot) => (0, snapshot.data.len()),
        other => panic!("a scan of a journal returned {other:?}"),
    };
    records.map(record).collect()
}

fn a_journal_is_read_by_number_from_any_number(store: &impl EntityStore) {
    let claim = granted(store, 1);
    let numbers = [1, 2, 255, 256, 1 << 40];
    let mut writes: Vec<_> = numbers.iter().map(|number| event(*number, "e")).collect();
    writes.push(snapshot(2, "sum"));
    let of_neighbours = |number| vec![event(number, "other"), snapshot(1, "")];
    let turns = vec![
        with(turn(&claim, "a", 0, 1), writes),
        with(turn(&claim, "a\0", 0, 2), of_neighbours(7)),
        with(turn(&claim, "", 0, 3), of_neighbours(8)),
    ];
    done(store, turns);
    let all: Vec<_> = [(0, 3)].into_iter().chain(numbers.map(|number| (number, 1))).collect();
    assert_eq!(read(store, "a", RecordKey::SNAPSHOT, 100), all);
    assert_eq!(read(store, "a", 1, 2), all[1..], "pages follow each other");
    assert_eq!(read(store, "a", 3, 100), all[3..], "from the next number that there is");
    assert_eq!(read(store, "a", (1 << 40) + 1, 100), []);
    assert_eq!(read(store, "a\0", 0, 100), [(0, 0), (7, 5)]);
    assert_eq!(read(store, "none", 0, 100), []);
}

fn a_journal_is_read_as_of_one_commit(store: &impl EntityStore) {
    let claim = granted(store, 1);
    done(store, vec![with(turn(&claim, "a", 0, 1), vec![event(1, "e"), event(2, "e")])]);
    let change = vec![without(1), event(3, "eee"), snapshot(3, "s")];
    // Not awaited: a read is ordered after all commits that were queued before it (R2).
    let committed = store.commit(vec![with(turn(&claim, "a", 1, 2), change)]);
    assert_eq!(read(store, "a", 0, 100), [(0, 1), (2, 1), (3, 3)]);
    drop(committed);
    let refused = with(turn(&claim, "a", 7, 3), vec![event(4, "e"), without(2)]);
    drop(futures::executor::block_on(store.commit(vec![refused])));
    assert_eq!(read(store, "a", 1, 100), [(2, 1), (3, 3)], "a refused commit has no effect");
}

fn large_events_are_whole_and_leave_nothing<S: EntityStore>(factory: &Factory<S>) {
    let mut store = factory.make();
    let claim = granted(&store, 1);
    for (from, bytes) in (0..).zip([100_000, 5_000, 3, 60_000]) {
        let writes = vec![event(1, vec![from as u8; bytes]), snapshot(1, vec![0; bytes])];
        done(&store, vec![with(turn(&claim, "a", from, from + 1), writes)]);
        assert_eq!(read(&store, "a", 0, 100), [(0, bytes), (1, bytes)]);
        match factory.reopen(store) {
            Some(again) => store = again,
            None => return,
        }
        assert_eq!(read(&store, "a", 0, 100), [(0, bytes), (1, bytes)]);
    }
    done(&store, vec![with(turn(&claim, "a", 4, 9), vec![without(0), without(1)])]);
    assert_eq!(read(&store, "a", 0, 100), []);
}
