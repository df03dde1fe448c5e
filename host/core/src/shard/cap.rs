//! How many instances may live: who gets room, and who is asked to give it up.
//!
//! One cap serves all the shard machines of a thread. It chooses by idleness alone, oldest first; whether
//! an instance can be evicted is its machine's decision.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use crate::ids::{Entity, ShardKey};

/// Whose slot: an entity and the generation of its `WantSlot`.
pub type Holder = (ShardKey, Entity);

/// A bounded number of slots, with the idle holders in order.
#[derive(Debug)]
pub struct LiveCap {
    most: usize,
    held: HashMap<Holder, u64>,
    idle: BTreeMap<u64, Holder>,
    idle_since: HashMap<Holder, u64>,
    waiting: VecDeque<(Holder, u64)>,
    evicting: HashSet<Holder>,
    ticks: u64,
}

impl LiveCap {
    /// A cap of `most` live instances, at least one.
    #[must_use]
    pub fn new(most: usize) -> Self {
        Self {
            most: most.max(1),
            held: HashMap::new(),
            idle: BTreeMap::new(),
            idle_since: HashMap::new(),
            waiting: VecDeque::new(),
            evicting: HashSet::new(),
            ticks: 0,
        }
    }

    /// Slots held.
    #[must_use]
    pub fn held(&self) -> usize {
        self.held.len()
    }

    /// Asks for a slot; it is given by a later [`LiveCap::grant`].
    pub fn want(&mut self, holder: Holder, generation: u64) {
        self.waiting.push_back((holder, generation));
    }

    /// Gives a slot back, or withdraws the wish for it.
    pub fn free(&mut self, holder: &Holder, generation: u64) {
        self.busy(holder);
        if self.held.get(holder) == Some(&generation) {
            self.held.remove(holder);
            self.evicting.remove(holder);
        } else {
            self.waiting.retain(|(other, wanted)| other != holder || *wanted != generation);
        }
    }

    /// Takes back every slot and wish of a shard whose machine cannot give them back any more.
    pub fn forget(&mut self, shard: &ShardKey) {
        let others = |(of, _): &Holder| of != shard;
        self.held.retain(|holder, _| others(holder));
        self.evicting.retain(others);
        self.waiting.retain(|(holder, _)| others(holder));
        self.idle.retain(|_, holder| others(holder));
        self.idle_since.retain(|holder, _| others(holder));
    }

    /// Notes that a holder is idle and may be evicted. One that is idle already keeps its place: machines say so
    /// again when its commits are answered.
    pub fn idle(&mut self, holder: Holder) {
        if self.held.contains_key(&holder) && !self.idle_since.contains_key(&holder) {
            self.ticks += 1;
            self.idle.insert(self.ticks, holder.clone());
            self.idle_since.insert(holder, self.ticks);
        }
    }

    /// Notes that a holder is not idle.
    pub fn busy(&mut self, holder: &Holder) {
        if let Some(tick) = self.idle_since.remove(holder) {
            self.idle.remove(&tick);
        }
    }

    /// The next wish that there is room for.
    pub fn grant(&mut self) -> Option<(Holder, u64)> {
        if self.held.len() >= self.most {
            return None;
        }
        let (holder, generation) = self.waiting.pop_front()?;
        self.held.insert(holder.clone(), generation);
        Some((holder, generation))
    }

    /// The next idle holder to evict, if there are more wishes than evictions under way.
    pub fn evict(&mut self) -> Option<Holder> {
        let free = self.most.saturating_sub(self.held.len());
        if self.waiting.len() <= self.evicting.len() + free {
            return None;
        }
        let (_, holder) = self.idle.pop_first()?;
        self.idle_since.remove(&holder);
        self.evicting.insert(holder.clone());
        Some(holder)
    }

    /// Notes that a holder refused to be evicted.
    pub fn refused(&mut self, holder: &Holder) {
        self.evicting.remove(holder);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::ShardId;

    fn holder(id: &str) -> Holder {
        let shard = ShardKey { namespace: "n".into(), pool: "p".into(), shard: ShardId(1) };
        (shard, Entity::new("t", id))
    }

    #[test]
    fn the_instance_idle_for_longest_gives_its_room_up_first() {
        let mut cap = LiveCap::new(2);
        for id in ["a", "b", "c"] {
            cap.want(holder(id), 1);
        }
        assert_eq!(cap.grant(), Some((holder("a"), 1)));
        assert_eq!(cap.grant(), Some((holder("b"), 1)));
        assert_eq!(cap.grant(), None, "the cap holds");
        assert_eq!(cap.evict(), None, "nobody is idle");
        cap.idle(holder("a"));
        cap.idle(holder("b"));
        cap.busy(&holder("a"));
        cap.idle(holder("a"));
        cap.idle(holder("b"));
        assert_eq!(cap.evict(), Some(holder("b")));
        assert_eq!(cap.evict(), None, "one wish, one eviction");
        cap.free(&holder("b"), 1);
        assert_eq!(cap.grant(), Some((holder("c"), 1)));
        assert_eq!(cap.held(), 2);
    }

    #[test]
    fn a_shard_that_is_forgotten_holds_and_wishes_nothing() {
        let of =
            |shard, id: &str| (ShardKey { shard: ShardId(shard), ..holder(id).0 }, holder(id).1);
        let mut cap = LiveCap::new(3);
        for (shard, id) in [(1, "a"), (2, "b"), (1, "c"), (1, "d"), (2, "e")] {
            cap.want(of(shard, id), 1);
        }
        while cap.grant().is_some() {}
        cap.idle(of(1, "a"));
        cap.idle(of(2, "b"));
        cap.idle(of(1, "c"));
        assert_eq!(cap.evict(), Some(of(1, "a")));
        cap.forget(&of(1, "a").0);
        assert_eq!(cap.grant(), Some((of(2, "e"), 1)), "and not `d`");
        assert_eq!((cap.held(), cap.grant()), (2, None));
        cap.want(of(3, "f"), 1);
        assert_eq!(cap.grant(), Some((of(3, "f"), 1)));
        cap.want(of(3, "g"), 1);
        assert_eq!(cap.evict(), Some(of(2, "b")), "neither `a` nor `c`");
        assert_eq!(cap.evict(), None);
    }

    #[test]
    fn a_holder_that_refuses_to_be_evicted_leaves_it_to_the_next() {
        let mut cap = LiveCap::new(2);
        for id in ["a", "b"] {
            cap.want(holder(id), 1);
            assert!(cap.grant().is_some());
            cap.idle(holder(id));
        }
        cap.want(holder("c"), 1);
        assert_eq!(cap.evict(), Some(holder("a")));
        assert_eq!(cap.evict(), None, "one wish, one eviction");
        cap.refused(&holder("a"));
        assert_eq!(cap.evict(), Some(holder("b")));
    }

    #[test]
    fn nobody_is_evicted_while_there_is_room_or_who_holds_none() {
        let mut cap = LiveCap::new(2);
        cap.want(holder("a"), 1);
        assert!(cap.grant().is_some());
        cap.idle(holder("a"));
        cap.want(holder("b"), 1);
        assert_eq!(cap.evict(), None, "a slot is free");
        let mut cap = LiveCap::new(1);
        cap.want(holder("a"), 1);
        assert!(cap.grant().is_some());
        cap.want(holder("b"), 1);
        cap.idle(holder("b"));
        assert_eq!(cap.evict(), None, "it waits for a slot, and holds none");
    }

    #[test]
    fn a_withdrawal_concerns_one_wish_of_one_holder() {
        let mut cap = LiveCap::new(3);
        for (id, generation) in [("a", 7), ("a", 8), ("b", 7)] {
            cap.want(holder(id), generation);
        }
        cap.free(&holder("a"), 7);
        assert_eq!(cap.grant(), Some((holder("a"), 8)));
        assert_eq!(cap.grant(), Some((holder("b"), 7)));
    }

    #[test]
    fn a_wish_withdrawn_is_not_granted() {
        let mut cap = LiveCap::new(1);
        cap.want(holder("a"), 7);
        cap.free(&holder("a"), 7);
        assert_eq!(cap.grant(), None);
        assert_eq!(cap.held(), 0);
    }
}
