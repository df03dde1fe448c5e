//! What the committer remembers of entities' heads, so that a commit of an entity in use reads nothing.

use std::collections::HashMap;

use ostraca_core::ids::TurnId;

/// What is known of an entity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CachedHead {
    pub(crate) version: u64,
    pub(crate) turn: TurnId,
    /// Pieces of the head's own record.
    pub(crate) fragment_count: u32,
    /// Whether a record of its state is in pieces; nothing: not looked.
    pub(crate) state_fragmented: Option<bool>,
    /// The same of its lanes.
    pub(crate) lanes_fragmented: Option<bool>,
}

/// Marks by the heads' keys. Two generations: what is used moves to the younger one, and when that has half of the
/// room the older one is dropped. So what is in use stays, at no cost a use.
#[derive(Debug, Default)]
pub(crate) struct HeadCache {
    young: HashMap<Vec<u8>, CachedHead>,
    old: HashMap<Vec<u8>, CachedHead>,
    room: usize,
}

impl HeadCache {
    pub(crate) fn new(room: usize) -> Self {
        Self { room, ..Self::default() }
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

    /// Forgets what was not used for long. Only between batches: what a batch has not written yet stands here alone.
    pub(crate) fn age(&mut self) {
        if self.young.len() > self.room / 2 {
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
