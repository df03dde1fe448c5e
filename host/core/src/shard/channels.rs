//! An entity's channels: the items that its turns emit, and which of them stay in the store.
//!
//! The items of a channel are numbered from 1 without gaps. The head keeps only which numbers there are and how large
//! the items are, so a turn that emits reads nothing (E16). To remove old items by their size without reading them, the
//! head also keeps *cuts*: places between turns, about a sixteenth of what is kept apart, and items are removed up to
//! one of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::entity_copy::ChannelCopy;
use crate::codec;
use crate::extensions::Extensions;
use crate::records::{ChannelCut, ChannelExtent, ChannelItem, RecordKey, RecordWrite};

/// Bytes charged for each item in addition to its data, to account for disk overhead.
pub const ITEM_CHARGE: u64 = 100;

/// Number of parts into which the kept items are divided by cuts.
const PARTS: u64 = 16;

/// A commit deletes at most this many old records of a channel more than it adds.
const MOST_DELETED: u64 = 64;

/// An item that a turn emits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Emit {
    /// The channel.
    pub channel: Arc<str>,
    /// The guest's own bytes.
    pub data: Bytes,
}

/// How many of its last items each channel keeps in the store. A channel exceeds neither limit, except that it always
/// keeps the items of the last turn that emitted; it may keep a sixteenth less.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChannelKeep {
    /// Maximum number of items; 0 keeps none.
    pub items: u64,
    /// Maximum size in bytes, including 100 bytes for each item; 0 keeps none.
    pub bytes: u64,
}

impl ChannelKeep {
    fn keeps(self) -> bool {
        self.items > 0 && self.bytes > 0
    }
}

/// The channels that an entity has emitted on, by name.
pub type Channels = BTreeMap<Arc<str>, ChannelExtent>;

/// An item, with what identifies it in its entity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NumberedItem {
    pub(super) channel: Arc<str>,
    pub(super) number: u64,
    pub(super) item: Arc<ChannelItem>,
}

/// Emits the items of the turn that makes this version. Returns them, and the writes.
pub(super) fn emit(
    channels: &mut Channels,
    emits: Vec<Emit>,
    keep: ChannelKeep,
    version: u64,
    utc_ms: u64,
) -> (Vec<NumberedItem>, Vec<RecordWrite>) {
    let mut writes = Vec::new();
    let mut added = BTreeMap::<Arc<str>, u64>::new();
    let items = emits
        .into_iter()
        .map(|Emit { channel, data }| {
            let of = channels.entry(channel.clone());
            let extent = of.or_insert_with(|| ChannelExtent::new(channel.clone()));
            let number = extent.next;
            let item = ChannelItem { version, utc_ms, data, extensions: Extensions::default() };
            append(extent, &item, keep);
            if keep.keeps() {
                let value = Some(Bytes::from(codec::encode(&item).unwrap_or_default()));
                let key = RecordKey::ChannelItem { channel: channel.clone(), number };
                writes.push(RecordWrite { key, value });
            }
            *added.entry(channel.clone()).or_default() += 1;
            NumberedItem { channel, number, item: item.into() }
        })
        .collect();
    for (channel, count) in added {
        if let Some(extent) = channels.get_mut(&channel) {
            cut(extent, keep);
            writes.extend(delete_dropped(extent, count));
        }
    }
    (items, writes)
}

/// Restores a channel that was exported, in the turn that makes this version. Returns the writes.
pub(super) fn restore(
    channels: &mut Channels,
    copy: ChannelCopy,
    keep: ChannelKeep,
    version: u64,
) -> Vec<RecordWrite> {
    let ChannelCopy { name, first: number, start, items } = copy;
    let mut extent = ChannelExtent {
        next: number,
        first: ChannelCut { number, version, start },
        end: start,
        stored: number,
        ..ChannelExtent::new(name.clone())
    };
    let mut writes = Vec::new();
    for (utc_ms, data) in items {
        let number = extent.next;
        let item = ChannelItem { version, utc_ms, data, extensions: Extensions::default() };
        append(&mut extent, &item, keep);
        if keep.keeps() {
            let value = Some(Bytes::from(codec::encode(&item).unwrap_or_default()));
            let key = RecordKey::ChannelItem { channel: name.clone(), number };
            writes.push(RecordWrite { key, value });
        }
    }
    cut(&mut extent, keep);
    channels.insert(name, extent);
    writes
}

fn append(extent: &mut ChannelExtent, item: &ChannelItem, keep: ChannelKeep) {
    let here = ChannelCut { number: extent.next, version: item.version, start: extent.end };
    let begins_turn = extent.last_version != item.version;
    if extent.kept() == 0 {
        extent.first = here;
    } else if begins_turn {
        let last = extent.cuts.last().unwrap_or(&extent.first);
        let is_due = here.number.saturating_sub(last.number) >= keep.items.div_ceil(PARTS)
            || here.start.saturating_sub(last.start) >= keep.bytes.div_ceil(PARTS);
        if is_due {
            extent.cuts.push(here);
        }
    }
    if !keep.keeps() && extent.stored == extent.next {
        extent.stored += 1;
    }
    extent.next += 1;
    extent.end += item.data.len() as u64 + ITEM_CHARGE;
    extent.last_version = item.version;
}

/// Drops the oldest items beyond what is kept.
fn cut(extent: &mut ChannelExtent, keep: ChannelKeep) {
    if !keep.keeps() {
        extent.cuts.clear();
        let (number, version, start) = (extent.next, extent.last_version, extent.end);
        extent.first = ChannelCut { number, version, start };
        return;
    }
    let exceeds =
        |extent: &ChannelExtent| extent.kept() > keep.items || extent.bytes() > keep.bytes;
    let mut dropped = 0;
    while exceeds(extent)
        && let Some(next) = extent.cuts.get(dropped)
    {
        extent.first = *next;
        dropped += 1;
    }
    extent.cuts.drain(..dropped);
}

/// Deletes records of items that are no longer kept. Each commit deletes more than it adds, so none remains forever.
fn delete_dropped(extent: &mut ChannelExtent, added: u64) -> Vec<RecordWrite> {
    let until = extent.first.number.min(extent.stored + added + MOST_DELETED);
    let channel = &extent.name;
    let delete = |number| RecordWrite {
        key: RecordKey::ChannelItem { channel: channel.clone(), number },
        value: None,
    };
    let writes = (extent.stored..until).map(delete).collect();
    extent.stored = until;
    writes
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const NAME: &str = "news";

    /// Emits items of these sizes in one turn. Returns the writes as text: `3` for a record, `-3` for a deletion.
    fn turn(channels: &mut Channels, keep: ChannelKeep, version: u64, sizes: &[usize]) -> String {
        let emits =
            sizes.iter().map(|size| Emit { channel: NAME.into(), data: vec![0; *size].into() });
        let (items, writes) = emit(channels, emits.collect(), keep, version, 5);
        let last = channels[NAME].next;
        let numbers: Vec<u64> = items.iter().map(|item| item.number).collect();
        assert!(numbers.iter().copied().eq(last - numbers.len() as u64..last), "{numbers:?}");
        let text = |write: &RecordWrite| match &write.key {
            RecordKey::ChannelItem { channel, number } if &**channel == NAME => {
                format!("{}{number}", if write.value.is_some() { "" } else { "-" })
            }
            other => panic!("{other:?}"),
        };
        writes.iter().map(text).collect::<Vec<_>>().join(" ")
    }

    fn keep(items: u64, bytes: u64) -> ChannelKeep {
        ChannelKeep { items, bytes }
    }

    fn kept(channels: &Channels) -> (u64, u64) {
        (channels[NAME].first.number, channels[NAME].next)
    }

    #[test]
    fn items_are_numbered_without_gaps_and_know_their_turn() {
        let mut channels = Channels::new();
        assert_eq!(turn(&mut channels, keep(9, 9_999), 7, &[1, 2]), "1 2");
        assert_eq!(turn(&mut channels, keep(9, 9_999), 8, &[3]), "3");
        let extent = &channels[NAME];
        assert_eq!(
            (extent.next, extent.last_version, extent.bytes(), extent.kept()),
            (4, 8, 306, 3)
        );
        assert_eq!(extent.first, ChannelCut { number: 1, version: 7, start: 0 });
        assert_eq!(extent.cuts, [ChannelCut { number: 3, version: 8, start: 203 }]);
    }

    #[test]
    fn the_oldest_items_beyond_the_number_are_dropped() {
        let mut channels = Channels::new();
        let mut stored = BTreeSet::<u64>::new();
        for version in 1..=500 {
            for write in turn(&mut channels, keep(40, 1 << 20), version, &[0, 0]).split(' ') {
                match write.strip_prefix('-') {
                    Some(gone) => assert!(stored.remove(&gone.parse().unwrap())),
                    None => assert!(stored.insert(write.parse().unwrap())),
                }
            }
            let extent = &channels[NAME];
            assert!(extent.kept() <= 40 && extent.cuts.len() <= 32, "{extent:?}");
            assert!(version < 20 || extent.kept() >= 36, "at most a sixteenth less: {extent:?}");
            assert_eq!(extent.first.version, extent.first.number.div_ceil(2), "between turns");
            assert_eq!(stored.len() as u64, extent.kept(), "no record is left behind");
        }
    }

    #[test]
    fn the_oldest_items_beyond_the_size_are_dropped() {
        let mut channels = Channels::new();
        for version in 1..=300 {
            turn(&mut channels, keep(1 << 20, 16_000), version, &[version as usize % 800]);
            let extent = &channels[NAME];
            assert!(extent.bytes() <= 16_000 && extent.cuts.len() <= 32, "{extent:?}");
            assert!(version < 120 || extent.bytes() >= 13_000, "{extent:?}");
        }
    }

    #[test]
    fn the_last_turns_items_are_kept_even_beyond_the_limit() {
        let mut channels = Channels::new();
        assert_eq!(turn(&mut channels, keep(2, 50), 1, &[900, 900, 900]), "1 2 3");
        assert_eq!(kept(&channels), (1, 4));
        assert_eq!(turn(&mut channels, keep(2, 50), 2, &[900]), "4 -1 -2 -3");
        assert_eq!(kept(&channels), (4, 5));
    }

    #[test]
    fn a_channel_that_keeps_nothing_writes_nothing() {
        let mut channels = Channels::new();
        for none in [keep(0, 100), keep(100, 0)] {
            assert_eq!(turn(&mut channels, none, 1, &[1, 2]), "");
            let extent = &channels[NAME];
            assert_eq!((extent.kept(), extent.stored), (0, extent.next));
        }
        assert_eq!(
            turn(&mut channels, keep(9, 9_999), 2, &[1]),
            "5",
            "a later deployment keeps items"
        );
        assert_eq!(kept(&channels), (5, 6));
        assert_eq!(turn(&mut channels, keep(0, 0), 3, &[1]), "-5 -6", "and another one does not");
        assert_eq!((kept(&channels), channels[NAME].stored), ((7, 7), 7));
    }

    #[test]
    fn one_commit_deletes_few_records_and_none_stays_forever() {
        let mut channels = Channels::new();
        turn(&mut channels, keep(1_000, 1 << 30), 1, &[0; 1_000]);
        let deletions = |text: &str| text.split(' ').filter(|it| it.starts_with('-')).count();
        let first = turn(&mut channels, keep(1_000, 1 << 30), 2, &[0]);
        assert_eq!((kept(&channels), deletions(&first)), ((1_001, 1_002), 65));
        let many = turn(&mut channels, keep(1_000, 1 << 30), 3, &[0; 50]);
        assert_eq!(deletions(&many), 114, "more than it adds");
        for version in 4..20 {
            turn(&mut channels, keep(1_000, 1 << 30), version, &[0]);
        }
        assert_eq!(channels[NAME].stored, 1_001);
    }
}
