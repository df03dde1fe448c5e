//! The committer's cache of heads, so that a commit of an active entity needs no read.

use std::collections::HashMap;

use ostraca_core::ids::TurnId;

/// What the committer knows about an entity's records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CachedHead {
    pub(crate) version: u64,
    pub(crate) turn: TurnId,
    /// Number of fragments of the head's own record.
    pub(crate) fragment_count: u32,
    /// Whether any of the entity's state records may be fragmented; `None`: not looked up yet.
    pub(crate) state_fragmented: Option<bool>,
    /// As `state_fragmented`, for spilled lanes.
    pub(crate) lanes_fragmented: Option<bool>,
    /// As `state_fragmented`, for timers.
    pub(crate) timers_fragmented: Option<bool>,
    /// As `state_fragmented`, for the outbox.
    pub(crate) outbox_fragmented: Option<bool>,
    /// As `state_fragmented`, for the journal.
    pub(crate) journal_fragmented: Option<bool>,
    /// As `state_fragmented`, for the kept items of channels.
    pub(crate) channels_fragmented: Option<bool>,
}

impl CachedHead {
    /// An entity without a head, which has no other records.
    pub(crate) fn none() -> Self {
        let nothing = Some(false);
        Self {
            state_fragmented: nothing,
            lanes_fragmented: nothing,
            timers_fragmented: nothing,
            outbox_fragmented: nothing,
            journal_fragmented: nothing,
            channels_fragmented: nothing,
            ..Self::default()
        }
    }
}

/// Cached heads by their keys, in two generations. A head that is used moves to the young generation. When that
/// holds more than half of the capacity, it becomes the old generation, and the previous old one is dropped. So
/// heads in use remain cached, and most uses cost only a lookup.
#[derive(Debug, Default)]
pub(crate) struct HeadCache {
    young: HashMap<Vec<u8>, CachedHead>,
    old: HashMap<Vec<u8>, CachedHead>,
    capacity: usize,
}

impl HeadCache {
    pub(crate) fn new(capacity: usize) -> Self {
        Self { capacity, ..Self::default() }
    }

    pub(crate) fn get(&mut self, key: &[u8]) -> Option<CachedHead> {
        if let Some(mark) = self.young.get(key) {
            return Some(*mark);
        }
        let (key, mark) = self.old.remove_entry(key)?;
        self.young.insert(key, mark);
        Some(mark)
    }

    pub(crate) fn insert(&mut self, key: Vec<u8>, mark: CachedHead) {
        self.young.insert(key, mark);
    }

    /// Drops heads that have not been used for a long time. Must be called between batches: until a batch is
    /// applied, its heads exist only here.
    pub(crate) fn age(&mut self) {
        if self.young.len() > self.capacity / 2 {
            self.old = std::mem::take(&mut self.young);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cached_heads_in_use_stay_and_others_are_evicted() {
        let mut heads = HeadCache::new(100);
        let key = |number: u32| number.to_be_bytes().to_vec();
        let mark = |version| CachedHead { version, ..CachedHead::default() };
        heads.insert(key(0), mark(7));
        for number in 1..1_000 {
            heads.insert(key(number), mark(1));
            heads.age();
            assert_eq!(heads.get(&key(0)), Some(mark(7)), "in use, after {number}");
            assert!(heads.young.len() + heads.old.len() <= 102);
        }
        assert_eq!(heads.get(&key(1)), None);
        assert_eq!(heads.get(&key(999)), Some(mark(1)));
    }
}
