//! The reads of an entity's channels that have not been answered, and which of them must be examined. A turn that emits
//! on one channel examines only the reads of that channel.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::channel_reads::{ChannelPosition, ChannelRead, Lost};
use crate::message::ReplyToken;

/// A read that has not been answered.
#[derive(Clone, Debug)]
pub(super) struct Reader {
    pub(super) token: ReplyToken,
    pub(super) read: ChannelRead,
    /// What was found to be lost while the read went on.
    pub(super) lost: Lost,
    /// The subscriber knows all items of versions up to this one.
    pub(super) after_version: u64,
    /// Whether the item at its position was found in the store as it should be.
    pub(super) is_checked: bool,
    /// When it is answered even if there is no item, on the node's clock.
    until: u64,
    /// The number from which the store is being read for it.
    scan: Option<u64>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct WaitingReads {
    readers: BTreeMap<u64, Reader>,
    by_channel: BTreeMap<Arc<str>, BTreeSet<u64>>,
    /// The reads by the time at which they are answered in any case.
    deadlines: BTreeSet<(u64, u64)>,
    /// The reads that must be examined.
    changed: BTreeSet<u64>,
    last_number: u64,
}

impl WaitingReads {
    pub(super) fn len(&self) -> usize {
        self.readers.len()
    }

    pub(super) fn get(&self, number: u64) -> Option<&Reader> {
        self.readers.get(&number)
    }

    pub(super) fn add(&mut self, token: ReplyToken, read: ChannelRead, until: u64) {
        self.last_number += 1;
        let number = self.last_number;
        self.by_channel.entry(read.channel.clone()).or_default().insert(number);
        self.deadlines.insert((until, number));
        self.changed.insert(number);
        let (lost, after_version, is_checked, scan) = (Lost::Nothing, 0, false, None);
        let reader = Reader { token, read, lost, after_version, is_checked, until, scan };
        self.readers.insert(number, reader);
    }

    pub(super) fn remove(&mut self, number: u64) -> Option<Reader> {
        let reader = self.readers.remove(&number)?;
        self.deadlines.remove(&(reader.until, number));
        self.changed.remove(&number);
        if let Some(others) = self.by_channel.get_mut(&reader.read.channel) {
            others.remove(&number);
            if others.is_empty() {
                self.by_channel.remove(&reader.read.channel);
            }
        }
        Some(reader)
    }

    /// Removes all reads. Returns their tokens.
    pub(super) fn take_all(&mut self) -> Vec<ReplyToken> {
        let last_number = self.last_number;
        let all = std::mem::replace(self, Self { last_number, ..Self::default() });
        all.readers.into_values().map(|reader| reader.token).collect()
    }

    /// Whether a read of this channel waits.
    pub(super) fn waits_for(&self, channel: &str) -> bool {
        self.by_channel.contains_key(channel)
    }

    /// Marks the reads of a channel as to be examined. Returns whether there are any.
    pub(super) fn examine(&mut self, channel: &str) -> bool {
        let Some(numbers) = self.by_channel.get(channel) else { return false };
        self.changed.extend(numbers);
        true
    }

    /// Marks all reads as to be examined.
    pub(super) fn examine_all(&mut self) {
        self.changed.extend(self.readers.keys());
    }

    /// Returns the reads that must be examined, each with whether its time is over, except for those for which the
    /// store is being read.
    pub(super) fn take_changed(&mut self, now: u64) -> Vec<(u64, bool)> {
        let over = self.deadlines.iter().take_while(|(until, _)| *until <= now);
        self.changed.extend(over.map(|(_, number)| *number));
        let changed = std::mem::take(&mut self.changed);
        let readers = changed.into_iter().filter_map(|at| Some((at, self.readers.get(&at)?)));
        let free = readers.filter(|(_, reader)| reader.scan.is_none());
        free.map(|(number, reader)| (number, reader.until <= now)).collect()
    }

    /// When the next read must be answered, on the node's clock.
    pub(super) fn first_deadline(&self) -> Option<u64> {
        self.deadlines.first().map(|(until, _)| *until)
    }

    /// Notes that the store is being read for a read, which has no deadline meanwhile.
    pub(super) fn begin_scan(&mut self, number: u64, from: u64) {
        if let Some(reader) = self.readers.get_mut(&number) {
            reader.scan = Some(from);
            self.deadlines.remove(&(reader.until, number));
        }
    }

    /// Notes that the store was read. Returns the number from which it was read; `None` if the read exists no more.
    pub(super) fn end_scan(&mut self, number: u64) -> Option<u64> {
        let reader = self.readers.get_mut(&number)?;
        self.deadlines.insert((reader.until, number));
        reader.scan.take()
    }

    /// Lets a read go on from another position, which was read from the store.
    pub(super) fn go_on(
        &mut self,
        number: u64,
        from: ChannelPosition,
        after_version: u64,
        lost: Lost,
    ) {
        if let Some(reader) = self.readers.get_mut(&number) {
            reader.read.from = from;
            reader.after_version = after_version;
            reader.lost = reader.lost.and(lost);
            reader.is_checked = true;
            self.changed.insert(number);
        }
    }
}
