//! Kept items of channels: R2.

use bytes::Bytes;
use ostraca_core::codec;
use ostraca_core::ids::Entity;
use ostraca_core::records::{ChannelItem, Commit, RecordKey, RecordWrite};

use super::{Factory, done, granted, scan, scan_all, shard, turn};
use crate::{EntityStore, ScanKind, ScannedRecord};

pub(super) fn check<S: EntityStore>(factory: &Factory<S>) {
    items_are_read_by_number_from_any_number(&factory.make());
    large_items_are_whole_and_leave_nothing(factory);
}

fn write(channel: &str, number: u64, data: Option<Bytes>) -> RecordWrite {
    let item =
        |data| ChannelItem { version: number, utc_ms: 7, data, extensions: Default::default() };
    let value = data.map(|data| codec::encode(&item(data)).unwrap().into());
    RecordWrite { key: RecordKey::ChannelItem { channel: channel.into(), number }, value }
}

fn with(mut turn: Commit, writes: Vec<RecordWrite>) -> Commit {
    turn.writes = writes;
    turn
}

/// The items of a channel from a number on, in pages of this many: numbers and sizes.
fn read(
    store: &impl EntityStore,
    (id, channel): (&str, &str),
    from: u64,
    most: usize,
) -> Vec<(u64, usize)> {
    let (entity, channel) = (Entity::new("counter", id), channel.into());
    let mut by = scan(&shard(1), ScanKind::Channel { entity, channel, from });
    by.max_records = most;
    let records = scan_all(store, by).into_iter().flat_map(|page| page.records);
    let record = |record| match record {
        ScannedRecord::ChannelItem(number, item) => {
            assert_eq!(item.version, number, "each item has its own number");
            (number, item.data.len())
        }
        other => panic!("a scan of a channel returned {other:?}"),
    };
    records.map(record).collect()
}

fn items_are_read_by_number_from_any_number(store: &impl EntityStore) {
    let claim = granted(store, 1);
    let numbers = [1, 2, 255, 256, 1 << 40];
    let item = |channel, number, data: &'static str| write(channel, number, Some(data.into()));
    let mut writes: Vec<_> = numbers.iter().map(|number| item("c", *number, "i")).collect();
    writes.extend(["b", "cc", "c c"].map(|channel| item(channel, 7, "other")));
    let turns = vec![
        with(turn(&claim, "a", 0, 1), writes),
        with(turn(&claim, "a\0", 0, 2), vec![item("c", 8, "other")]),
    ];
    done(store, turns);
    let all = numbers.map(|number| (number, 1));
    assert_eq!(read(store, ("a", "c"), 0, 100), all);
    assert_eq!(read(store, ("a", "c"), 1, 2), all, "pages follow each other");
    assert_eq!(read(store, ("a", "c"), 3, 100), all[2..], "from the next number that there is");
    assert_eq!(read(store, ("a", "c"), (1 << 40) + 1, 100), []);
    assert_eq!(read(store, ("a", "cc"), 0, 100), [(7, 5)]);
    assert_eq!(read(store, ("a\0", "c"), 0, 100), [(8, 5)]);
    assert_eq!(read(store, ("a", "none"), 0, 100), []);
    let change = vec![write("c", 1, None), write("c", 2, None), item("c", 300, "new")];
    // Not awaited: a read is ordered after all commits that were queued before it (R2).
    let committed = store.commit(vec![with(turn(&claim, "a", 1, 3), change)]);
    assert_eq!(read(store, ("a", "c"), 0, 3), [(255, 1), (256, 1), (300, 3), (1 << 40, 1)]);
    drop(committed);
}

fn large_items_are_whole_and_leave_nothing<S: EntityStore>(factory: &Factory<S>) {
    let mut store = factory.make();
    let claim = granted(&store, 1);
    for (from, bytes) in (0..).zip([100_000, 5_000, 3, 60_000]) {
        let data = Bytes::from(vec![from as u8; bytes]);
        done(
            &store,
            vec![with(turn(&claim, "a", from, from + 1), vec![write("c", 1, Some(data))])],
        );
        match factory.reopen(store) {
            Some(again) => store = again,
            None => return,
        }
        assert_eq!(read(&store, ("a", "c"), 0, 100), [(1, bytes)]);
    }
    done(&store, vec![with(turn(&claim, "a", 4, 9), vec![write("c", 1, None)])]);
    assert_eq!(read(&store, ("a", "c"), 0, 100), []);
}
