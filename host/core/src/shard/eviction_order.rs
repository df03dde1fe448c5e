//! Which idle instance is evicted first: a segmented LRU, so that one scan over many entities does not evict those that
//! are used again and again.
//!
//! An instance starts in the *probationary* segment. When it is used again after a while, it moves to the *protected*
//! segment. Instances are evicted from the probationary segment first, and in each segment those first that have been
//! idle longest. The protected segment holds at most four fifths of the slots: beyond that, its instance that has been
//! idle longest moves back, as if it had just been used. So a hot set that is no longer used makes room for the next
//! one.
//!
//! Uses that follow closely on the first one do not count: a scan that reads each entity and then writes it would
//! otherwise look like a hot set.

use std::collections::{BTreeMap, HashMap};

use super::slot_requests::SlotHolder;
use crate::ids::ShardPath;

#[derive(Debug)]
pub(super) struct EvictionOrder {
    holders: HashMap<SlotHolder, Usage>,
    /// The idle holders of each segment, by the time at which they became idle.
    probationary: BTreeMap<u64, SlotHolder>,
    protected: BTreeMap<u64, SlotHolder>,
    /// Number of protected holders, idle or not, and its maximum.
    protected_count: usize,
    max_protected: usize,
    /// A use counts as another one after this many ticks.
    period: u64,
    /// Counts how often any holder became idle.
    ticks: u64,
}

#[derive(Debug, Default)]
struct Usage {
    /// When the holder first became idle.
    first: Option<u64>,
    /// Since when it is idle, if it is.
    idle: Option<u64>,
    is_protected: bool,
}

impl EvictionOrder {
    pub(super) fn new(capacity: usize) -> Self {
        Self {
            holders: HashMap::new(),
            probationary: BTreeMap::new(),
            protected: BTreeMap::new(),
            protected_count: 0,
            max_protected: capacity - capacity.div_ceil(5),
            period: capacity as u64 / 8,
            ticks: 0,
        }
    }

    /// Adds a holder that got its slot.
    pub(super) fn add(&mut self, holder: SlotHolder) {
        self.remove(&holder);
        self.holders.insert(holder, Usage::default());
    }

    pub(super) fn remove(&mut self, holder: &SlotHolder) {
        self.busy(holder);
        if self.holders.remove(holder).is_some_and(|usage| usage.is_protected) {
            self.protected_count -= 1;
        }
    }

    pub(super) fn remove_shard(&mut self, shard: &ShardPath) {
        self.holders.retain(|(of, _), _| of != shard);
        self.probationary.retain(|_, (of, _)| of != shard);
        self.protected.retain(|_, (of, _)| of != shard);
        self.protected_count = self.holders.values().filter(|usage| usage.is_protected).count();
    }

    /// Records that a holder is idle. One that is already idle keeps its position.
    pub(super) fn idle(&mut self, holder: SlotHolder) {
        let Some(usage) = self.holders.get_mut(&holder) else { return };
        if usage.idle.is_some() {
            return;
        }
        let first = *usage.first.get_or_insert(self.ticks);
        let is_used_again = !usage.is_protected && self.ticks - first > self.period;
        let becomes_protected = is_used_again && self.make_protected_space();
        self.ticks += 1;
        let tick = self.ticks;
        let Some(usage) = self.holders.get_mut(&holder) else { return };
        usage.idle = Some(tick);
        usage.is_protected |= becomes_protected;
        let is_protected = usage.is_protected;
        self.segment(is_protected).insert(tick, holder);
    }

    /// Makes space for one holder in the protected segment, and counts it. Returns false if all of the segment's
    /// holders are busy.
    fn make_protected_space(&mut self) -> bool {
        if self.protected_count < self.max_protected {
            self.protected_count += 1;
            return true;
        }
        let Some((_, oldest)) = self.protected.pop_first() else { return false };
        self.ticks += 1;
        let tick = self.ticks;
        if let Some(usage) = self.holders.get_mut(&oldest) {
            *usage = Usage { first: Some(tick), idle: Some(tick), is_protected: false };
        }
        self.probationary.insert(tick, oldest);
        true
    }

    /// Records that a holder is no longer idle.
    pub(super) fn busy(&mut self, holder: &SlotHolder) {
        let Some(usage) = self.holders.get_mut(holder) else { return };
        let is_protected = usage.is_protected;
        if let Some(tick) = usage.idle.take() {
            self.segment(is_protected).remove(&tick);
        }
    }

    /// Takes the idle holder that is to be evicted first. It stays a holder, and is no longer idle.
    pub(super) fn take_first(&mut self) -> Option<SlotHolder> {
        let first = self.probationary.pop_first().or_else(|| self.protected.pop_first());
        let (_, holder) = first?;
        if let Some(usage) = self.holders.get_mut(&holder) {
            usage.idle = None;
        }
        Some(holder)
    }

    fn segment(&mut self, is_protected: bool) -> &mut BTreeMap<u64, SlotHolder> {
        match is_protected {
            true => &mut self.protected,
            false => &mut self.probationary,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{Entity, ShardId};

    fn holder(id: &str) -> SlotHolder {
        let shard = ShardPath { namespace: "n".into(), pool: "p".into(), shard: ShardId(1) };
        (shard, Entity::new("t", id))
    }

    /// An order of `capacity` slots, which evicts only when all are taken.
    struct Slots(EvictionOrder, usize);

    impl Slots {
        fn new(capacity: usize) -> Self {
            Self(EvictionOrder::new(capacity), capacity)
        }

        /// Uses an entity once. Returns whether it had to be started.
        fn touch(&mut self, id: &str) -> bool {
            let starts = !self.0.holders.contains_key(&holder(id));
            if starts {
                if self.0.holders.len() == self.1 {
                    let victim = self.0.take_first().expect("an idle holder");
                    self.0.remove(&victim);
                }
                self.0.add(holder(id));
            }
            self.0.busy(&holder(id));
            self.0.idle(holder(id));
            starts
        }

        /// Uses entities in turn, several times. Returns how many had to be started in the last round.
        fn touch_all(&mut self, name: &str, count: usize, rounds: usize) -> usize {
            let ids: Vec<_> = (0..count).map(|number| format!("{name}{number}")).collect();
            let round = |slots: &mut Self| ids.iter().filter(|id| slots.touch(id)).count();
            (0..rounds).map(|_| round(self)).last().unwrap_or(0)
        }
    }

    #[test]
    fn one_scan_does_not_evict_the_hot_set() {
        let mut slots = Slots::new(100);
        slots.touch_all("hot", 60, 3);
        slots.touch_all("scanned", 10_000, 1);
        assert_eq!(slots.touch_all("hot", 60, 1), 0);
        // Nor does a scan that uses each entity twice, one after the other.
        for number in 0..10_000 {
            let id = format!("twice{number}");
            assert!(slots.touch(&id) && !slots.touch(&id));
        }
        assert_eq!(slots.touch_all("hot", 60, 1), 0);
    }

    #[test]
    fn a_new_hot_set_replaces_one_that_is_no_longer_used() {
        let mut slots = Slots::new(100);
        slots.touch_all("old", 80, 3);
        slots.touch_all("new", 15, 9);
        slots.touch_all("newer", 15, 9);
        slots.touch_all("scanned", 10_000, 1);
        assert_eq!(slots.touch_all("new", 15, 1) + slots.touch_all("newer", 15, 1), 0);
        assert!(slots.touch_all("old", 80, 1) > 0, "they had to make room");
        let protected = slots.0.holders.values().filter(|usage| usage.is_protected).count();
        assert_eq!((slots.0.protected_count, slots.0.max_protected), (protected, 80));
        assert!(protected <= 80);
    }

    #[test]
    fn a_removed_holder_leaves_its_segment() {
        let mut slots = Slots::new(10);
        slots.touch_all("hot", 5, 3);
        assert_eq!(slots.0.protected_count, 5);
        slots.0.remove(&holder("hot0"));
        slots.0.busy(&holder("hot1"));
        assert_eq!((slots.0.protected_count, slots.0.protected.len()), (4, 3));
        let other = ShardPath { shard: ShardId(2), ..holder("").0 };
        slots.0.remove_shard(&other);
        assert_eq!(slots.0.holders.len(), 4);
        slots.0.remove_shard(&holder("").0);
        assert_eq!((slots.0.protected_count, slots.0.take_first()), (0, None));
    }
}
