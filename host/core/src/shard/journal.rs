//! An entity's journal: events that its turns append (E18).
//!
//! Events are numbered from 1 without gaps. The head keeps only which numbers there are and how large they are, so a
//! turn that appends reads nothing (E16).

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::codec;
use crate::extensions::Extensions;
use crate::records::{JournalEvent, JournalExtent, JournalSnapshot, RecordKey, RecordWrite};

/// Bytes charged for each event and for the snapshot in addition to its data, to account for disk overhead.
pub const EVENT_CHARGE: u64 = 100;

/// The changes that a turn makes to its entity's journal.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JournalChange {
    /// The events that it appends, in order.
    pub events: Vec<Bytes>,
    /// The first event that it keeps, if it removes events: its number, and the bytes of all events before it.
    pub keep_from: Option<(u64, u64)>,
    /// The new snapshot: the number of the last event that it includes, and its data.
    pub snapshot: Option<(u64, Bytes)>,
}

impl JournalChange {
    /// Whether it changes nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.events.is_empty() && self.keep_from.is_none() && self.snapshot.is_none()
    }

    /// Applies the changes of the turn that makes this version. Returns the writes.
    #[must_use]
    pub fn apply(self, extent: &mut JournalExtent, version: u64) -> Vec<RecordWrite> {
        let mut writes = Vec::new();
        let mut write = |number, value: Option<Vec<u8>>| {
            let value = value.map(Bytes::from);
            writes.push(RecordWrite { key: RecordKey::Journal { number }, value });
        };
        let appended = extent.next..;
        for (number, data) in appended.zip(self.events) {
            let (start, bytes) = (extent.end, data.len() as u64);
            let event = JournalEvent { start, data, extensions: Extensions::default() };
            write(number, Some(codec::encode(&event).unwrap_or_default()));
            extent.next = number + 1;
            extent.end = start + bytes + EVENT_CHARGE;
        }
        if let Some((first, start)) = self.keep_from {
            // A turn may remove events that it has appended itself.
            let first = first.clamp(extent.first, extent.next);
            for number in extent.first..first {
                write(number, None);
            }
            extent.first = first;
            extent.start = start.clamp(extent.start, extent.end);
        }
        if let Some((through, data)) = self.snapshot {
            extent.snapshot = through.min(extent.next - 1);
            extent.snapshot_bytes = data.len() as u64 + EVENT_CHARGE;
            extent.snapshot_version = version;
            let (through, extensions) = (extent.snapshot, Extensions::default());
            let snapshot = JournalSnapshot { through, version, data, extensions };
            write(RecordKey::SNAPSHOT, Some(codec::encode(&snapshot).unwrap_or_default()));
        }
        writes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn apply(extent: &mut JournalExtent, change: JournalChange, version: u64) -> Vec<RecordWrite> {
        change.apply(extent, version)
    }

    fn append(events: &[&'static str]) -> JournalChange {
        let events = events.iter().map(|event| Bytes::from_static(event.as_bytes())).collect();
        JournalChange { events, ..JournalChange::default() }
    }

    /// The writes as text: `3 from 101` for an event and where it starts, `-3` for one that is removed, `snapshot 3`.
    fn text(writes: Vec<RecordWrite>) -> Vec<String> {
        let line = |write: RecordWrite| match (write.key, write.value) {
            (RecordKey::Journal { number: RecordKey::SNAPSHOT }, Some(value)) => {
                format!("snapshot {}", codec::decode::<JournalSnapshot>(&value).unwrap().through)
            }
            (RecordKey::Journal { number }, Some(value)) => {
                format!("{number} from {}", codec::decode::<JournalEvent>(&value).unwrap().start)
            }
            (RecordKey::Journal { number }, None) => format!("-{number}"),
            other => panic!("{other:?}"),
        };
        writes.into_iter().map(line).collect()
    }

    #[test]
    fn events_are_numbered_without_gaps_and_know_their_start() {
        let mut extent = JournalExtent::default();
        assert_eq!(text(apply(&mut extent, append(&["a", "bb"]), 7)), ["1 from 0", "2 from 101"]);
        assert_eq!(text(apply(&mut extent, append(&["ccc"]), 7)), ["3 from 203"]);
        assert_eq!((extent.first, extent.next, extent.bytes()), (1, 4, 306));
        assert_eq!(apply(&mut extent, JournalChange::default(), 7), []);
    }

    #[test]
    fn removed_events_are_deleted_and_no_longer_counted() {
        let mut extent = JournalExtent::default();
        apply(&mut extent, append(&["a", "bb", "ccc"]), 7);
        let keep = JournalChange { keep_from: Some((3, 203)), ..JournalChange::default() };
        assert_eq!(text(apply(&mut extent, keep.clone(), 7)), ["-1", "-2"]);
        assert_eq!((extent.first, extent.next, extent.bytes()), (3, 4, 103));
        assert_eq!(apply(&mut extent, keep, 7), [], "they are gone");
        let all = JournalChange { keep_from: Some((9, 9_999)), ..append(&["d"]) };
        assert_eq!(text(apply(&mut extent, all, 7)), ["4 from 306", "-3", "-4"]);
        assert_eq!((extent.first, extent.next, extent.bytes()), (5, 5, 0));
        assert_eq!(
            text(apply(&mut extent, append(&["e"]), 7)),
            ["5 from 407"],
            "no number is reused"
        );
        assert_eq!(extent.bytes(), 101, "the kept events begin where the removed ones end");
    }

    #[test]
    fn a_snapshot_replaces_the_last_one_and_counts() {
        let mut extent = JournalExtent::default();
        let snapshot = |through, data: &'static str| Some((through, Bytes::from(data)));
        let both = JournalChange { snapshot: snapshot(1, "12345"), ..append(&["a"]) };
        assert_eq!(text(apply(&mut extent, both, 7)), ["1 from 0", "snapshot 1"]);
        assert_eq!((extent.snapshot, extent.snapshot_version), (1, 7));
        assert_eq!(extent.bytes(), 101 + 105);
        let only = JournalChange { snapshot: snapshot(7, ""), ..JournalChange::default() };
        assert_eq!(text(apply(&mut extent, only, 7)), ["snapshot 1"], "there is no event 7");
        assert_eq!((extent.snapshot, extent.bytes()), (1, 101 + 100));
    }
}
