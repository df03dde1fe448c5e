//! Limits the number and the memory of live instances: decides which entity gets a slot, and which one is asked to
//! give one up.
//!
//! All shard machines of a thread share one limit. [`EvictionOrder`] chooses among the idle instances; the machine of
//! the chosen one decides whether it can be evicted.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::eviction_order::EvictionOrder;
use super::instance_memory::{InstanceKey, InstanceMemory};
use super::settings::SlotPurpose;
use super::slot_requests::{SlotHolder, SlotRequests};
use crate::ids::{ShardId, ShardPath};

/// While messages wait for slots, one of this many slots goes to a timer.
const SLOTS_PER_TIMER: u32 = 8;

/// A bounded number of slots, and a budget for the memory of those who hold them.
#[derive(Debug)]
pub(super) struct InstanceSlots {
    capacity: usize,
    memory: InstanceMemory,
    granted: HashMap<SlotHolder, u64>,
    /// The slots of second instances. Their holders also have a slot in `granted`.
    granted_second: HashMap<SlotHolder, u64>,
    order: EvictionOrder,
    /// Requests for messages. They take precedence over those for timers (R14), but timers get every eighth slot.
    requests: SlotRequests,
    timer_requests: SlotRequests,
    /// Requests for the recovery of remembered entities, which get only slots that nothing else wants.
    recovery_requests: SlotRequests,
    /// Number of slots granted to messages while timers waited, since a timer last got one.
    passed_timers: u32,
    evicting: HashSet<SlotHolder>,
}

impl InstanceSlots {
    /// Allows `most` live instances, but at least one, of any size.
    pub(super) fn new(most: usize) -> Self {
        let capacity = most.max(1);
        Self {
            capacity,
            memory: InstanceMemory::new(u64::MAX),
            granted: HashMap::new(),
            granted_second: HashMap::new(),
            order: EvictionOrder::new(capacity),
            requests: SlotRequests::default(),
            timer_requests: SlotRequests::default(),
            recovery_requests: SlotRequests::default(),
            passed_timers: 0,
            evicting: HashSet::new(),
        }
    }

    /// Allows live instances of this many bytes in total. If they have more, idle ones are evicted, and no slot is
    /// granted. A single instance may be larger.
    pub(super) fn with_memory(mut self, bytes: u64) -> Self {
        self.memory = InstanceMemory::new(bytes);
        self
    }

    /// The number of slots held.
    pub(super) fn granted(&self) -> usize {
        self.granted.len() + self.granted_second.len()
    }

    /// The bytes of the instances that hold slots, as far as they have been reported.
    pub(super) fn held_bytes(&self) -> u64 {
        self.memory.held()
    }

    /// The bytes of the instances of each shard, as far as they have been reported.
    pub(super) fn held_bytes_by_shard(&self) -> BTreeMap<ShardId, u64> {
        self.memory.held_by_shard()
    }

    /// Records the size in bytes of a holder's instance with this generation. A late report about an instance that has
    /// ended changes nothing.
    pub(super) fn report_size(&mut self, holder: &SlotHolder, generation: u64, bytes: u64) {
        let is_second = self.granted_second.get(holder) == Some(&generation);
        if is_second || self.granted.get(holder) == Some(&generation) {
            self.memory.report(&(holder.clone(), is_second), bytes);
        }
    }

    /// Whether every slot is held.
    pub(super) fn is_full(&self) -> bool {
        self.granted() >= self.capacity
    }

    /// Requests a slot. Of several requests with the same generation, that for a message counts, or else that for a
    /// timer. A holder that has a slot may request another one, for its second instance.
    pub(super) fn request(&mut self, holder: SlotHolder, generation: u64, purpose: SlotPurpose) {
        if self.holds(&holder, generation) || self.requests.contains(&holder, generation) {
            return;
        }
        match purpose {
            SlotPurpose::Message => {
                self.timer_requests.withdraw(&holder, generation);
                self.recovery_requests.withdraw(&holder, generation);
                self.requests.push(holder, generation);
            }
            SlotPurpose::Timer => {
                self.recovery_requests.withdraw(&holder, generation);
                self.timer_requests.push(holder, generation);
            }
            SlotPurpose::Recovery if self.timer_requests.contains(&holder, generation) => {}
            SlotPurpose::Recovery => self.recovery_requests.push(holder, generation),
        }
    }

    /// Returns a slot, or withdraws the request for it.
    pub(super) fn release(&mut self, holder: &SlotHolder, generation: u64) {
        if self.granted.get(holder) == Some(&generation) {
            self.granted.remove(holder);
            self.order.remove(holder);
            self.memory.remove(&(holder.clone(), false));
            self.evicting.remove(holder);
        } else if self.granted_second.get(holder) == Some(&generation) {
            self.granted_second.remove(holder);
            self.memory.remove(&(holder.clone(), true));
            self.evicting.remove(holder);
        } else {
            self.requests.withdraw(holder, generation);
            self.timer_requests.withdraw(holder, generation);
            self.recovery_requests.withdraw(holder, generation);
        }
    }

    /// Releases all slots and withdraws all requests of a shard whose machine can no longer do so itself.
    pub(super) fn remove_shard(&mut self, shard: &ShardPath) {
        let others = |(of, _): &SlotHolder| of != shard;
        self.granted.retain(|holder, _| others(holder));
        self.granted_second.retain(|holder, _| others(holder));
        self.evicting.retain(others);
        self.requests.remove_shard(shard);
        self.timer_requests.remove_shard(shard);
        self.recovery_requests.remove_shard(shard);
        self.order.remove_shard(shard);
        self.memory.remove_shard(shard);
    }

    /// Records that a holder is idle and may be evicted. A holder that is already idle keeps its position, since
    /// machines repeat this call when commits complete.
    pub(super) fn idle(&mut self, holder: SlotHolder) {
        self.order.idle(holder);
    }

    /// Records that a holder is no longer idle.
    pub(super) fn busy(&mut self, holder: &SlotHolder) {
        self.order.busy(holder);
    }

    /// Grants the next request for a message or a timer, if a slot is free and the memory budget is not used up.
    pub(super) fn grant_urgent(&mut self) -> Option<(SlotHolder, u64, SlotPurpose)> {
        if !self.has_free() {
            return None;
        }
        let ((holder, generation), purpose) = self.next_urgent()?;
        self.add(&holder, generation);
        Some((holder, generation, purpose))
    }

    /// Grants the next request for a recovery, if nothing else waits.
    pub(super) fn grant_recovery(&mut self) -> Option<(SlotHolder, u64)> {
        self.next_recovery().filter(|holder| self.may_recover(holder))?;
        let (holder, generation) = self.recovery_requests.pop()?;
        self.add(&holder, generation);
        Some((holder, generation))
    }

    /// The holder of the next request for a recovery.
    pub(super) fn next_recovery(&self) -> Option<&SlotHolder> {
        self.recovery_requests.first()
    }

    /// Whether a slot could be granted to this holder's recovery: one is free, and nothing else wants it. An instance
    /// that would exceed the budget would be evicted again, and recovery would start it again.
    pub(super) fn may_recover(&self, holder: &SlotHolder) -> bool {
        self.has_free()
            && self.requests.is_empty()
            && self.timer_requests.is_empty()
            && self.memory.fits(holder)
    }

    /// Whether this slot has been granted.
    pub(super) fn holds(&self, holder: &SlotHolder, generation: u64) -> bool {
        self.granted.get(holder) == Some(&generation)
            || self.granted_second.get(holder) == Some(&generation)
    }

    /// Whether this entity has a slot.
    pub(super) fn is_holder(&self, holder: &SlotHolder) -> bool {
        self.granted.contains_key(holder)
    }

    fn has_free(&self) -> bool {
        !self.is_full() && (!self.memory.is_full() || self.granted.is_empty())
    }

    /// Records that a slot has been granted.
    pub(super) fn add(&mut self, holder: &SlotHolder, generation: u64) {
        if self.granted.contains_key(holder) {
            // A second instance. Only it can be evicted, since the first one waits.
            self.granted_second.insert(holder.clone(), generation);
            self.memory.add((holder.clone(), true));
        } else {
            self.granted.insert(holder.clone(), generation);
            self.order.add(holder.clone());
            self.memory.add((holder.clone(), false));
        }
    }

    fn next_urgent(&mut self) -> Option<((SlotHolder, u64), SlotPurpose)> {
        let timers_turn = self.passed_timers + 1 >= SLOTS_PER_TIMER || self.requests.is_empty();
        if timers_turn && let Some(request) = self.timer_requests.pop() {
            self.passed_timers = 0;
            return Some((request, SlotPurpose::Timer));
        }
        if !self.timer_requests.is_empty() {
            self.passed_timers += 1;
        }
        Some((self.requests.pop()?, SlotPurpose::Message))
    }

    /// The next idle holder to evict: if there are more requests than evictions in progress, or if instances exceed the
    /// memory budget.
    pub(super) fn evict(&mut self) -> Option<SlotHolder> {
        let free = self.capacity.saturating_sub(self.granted());
        let waiting = self.requests.len() + self.timer_requests.len();
        let lacks_slots = waiting > self.evicting.len() + free;
        if !lacks_slots && !self.memory.must_evict(waiting > 0) {
            return None;
        }
        let holder = self.order.take_first()?;
        self.begin_eviction(&holder);
        Some(holder)
    }

    /// Records that a holder is being evicted.
    pub(super) fn begin_eviction(&mut self, holder: &SlotHolder) {
        self.order.busy(holder);
        self.evicting.insert(holder.clone());
        self.memory.set_leaving(&self.evictable(holder), true);
    }

    /// Records that a holder's eviction was refused.
    pub(super) fn eviction_refused(&mut self, holder: &SlotHolder) {
        self.evicting.remove(holder);
        self.memory.set_leaving(&(holder.clone(), false), false);
        self.memory.set_leaving(&(holder.clone(), true), false);
    }

    /// The instance of a holder that leaves if the holder is evicted: the second one, if it has two.
    fn evictable(&self, holder: &SlotHolder) -> InstanceKey {
        (holder.clone(), self.granted_second.contains_key(holder))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{Entity, ShardId};

    impl InstanceSlots {
        /// Grants the next request of any kind.
        fn grant(&mut self) -> Option<(SlotHolder, u64)> {
            let urgent = self.grant_urgent().map(|(holder, generation, _)| (holder, generation));
            urgent.or_else(|| self.grant_recovery())
        }
    }

    fn holder(id: &str) -> SlotHolder {
        let shard = ShardPath { namespace: "n".into(), pool: "p".into(), shard: ShardId(1) };
        (shard, Entity::new("t", id))
    }

    #[test]
    fn the_longest_idle_instance_is_evicted_first() {
        let mut cap = InstanceSlots::new(2);
        for id in ["a", "b", "c"] {
            cap.request(holder(id), 1, SlotPurpose::Message);
        }
        assert_eq!(cap.grant(), Some((holder("a"), 1)));
        assert_eq!(cap.grant(), Some((holder("b"), 1)));
        assert_eq!(cap.grant(), None, "the limit is reached");
        assert_eq!(cap.evict(), None, "no holder is idle");
        cap.idle(holder("a"));
        cap.idle(holder("b"));
        cap.busy(&holder("a"));
        cap.idle(holder("a"));
        cap.idle(holder("b"));
        assert_eq!(cap.evict(), Some(holder("b")));
        assert_eq!(cap.evict(), None, "one eviction per request");
        cap.release(&holder("b"), 1);
        assert_eq!(cap.grant(), Some((holder("c"), 1)));
        assert_eq!(cap.granted(), 2);
    }

    #[test]
    fn a_removed_shard_holds_and_requests_no_slots() {
        let of =
            |shard, id: &str| (ShardPath { shard: ShardId(shard), ..holder(id).0 }, holder(id).1);
        let mut cap = InstanceSlots::new(3);
        for (shard, id) in [(1, "a"), (2, "b"), (1, "c"), (1, "d"), (2, "e")] {
            cap.request(of(shard, id), 1, SlotPurpose::Message);
        }
        while cap.grant().is_some() {}
        cap.idle(of(1, "a"));
        cap.idle(of(2, "b"));
        cap.idle(of(1, "c"));
        assert_eq!(cap.evict(), Some(of(1, "a")));
        cap.remove_shard(&of(1, "a").0);
        assert_eq!(cap.grant(), Some((of(2, "e"), 1)), "`d` was removed with its shard");
        assert_eq!((cap.granted(), cap.grant()), (2, None));
        cap.request(of(3, "f"), 1, SlotPurpose::Message);
        assert_eq!(cap.grant(), Some((of(3, "f"), 1)));
        cap.request(of(3, "g"), 1, SlotPurpose::Message);
        assert_eq!(cap.evict(), Some(of(2, "b")), "`a` and `c` were removed");
        assert_eq!(cap.evict(), None);
    }

    #[test]
    fn a_refused_eviction_passes_to_the_next_instance() {
        let mut cap = InstanceSlots::new(2);
        for id in ["a", "b"] {
            cap.request(holder(id), 1, SlotPurpose::Message);
            assert!(cap.grant().is_some());
            cap.idle(holder(id));
        }
        cap.request(holder("c"), 1, SlotPurpose::Message);
        assert_eq!(cap.evict(), Some(holder("a")));
        assert_eq!(cap.evict(), None, "one eviction per request");
        cap.eviction_refused(&holder("a"));
        assert_eq!(cap.evict(), Some(holder("b")));
    }

    #[test]
    fn only_slot_holders_are_evicted_and_only_when_full() {
        let mut cap = InstanceSlots::new(2);
        cap.request(holder("a"), 1, SlotPurpose::Message);
        assert!(cap.grant().is_some());
        cap.idle(holder("a"));
        cap.request(holder("b"), 1, SlotPurpose::Message);
        assert_eq!(cap.evict(), None, "a slot is free");
        let mut cap = InstanceSlots::new(1);
        cap.request(holder("a"), 1, SlotPurpose::Message);
        assert!(cap.grant().is_some());
        cap.request(holder("b"), 1, SlotPurpose::Message);
        cap.idle(holder("b"));
        assert_eq!(cap.evict(), None, "the holder waits for a slot and does not hold one");
    }

    #[test]
    fn a_second_instance_counts_and_can_be_evicted_alone() {
        let mut cap = InstanceSlots::new(2);
        cap.request(holder("a"), 1, SlotPurpose::Message);
        assert!(cap.grant().is_some());
        cap.request(holder("a"), 2, SlotPurpose::Message);
        assert_eq!(cap.grant(), Some((holder("a"), 2)));
        cap.request(holder("b"), 3, SlotPurpose::Message);
        assert_eq!((cap.granted(), cap.grant(), cap.evict()), (2, None, None));
        cap.idle(holder("a"));
        assert_eq!((cap.evict(), cap.evict()), (Some(holder("a")), None));
        cap.release(&holder("a"), 2);
        assert_eq!((cap.granted(), cap.grant()), (1, Some((holder("b"), 3))));
        cap.release(&holder("b"), 3);
        cap.request(holder("a"), 4, SlotPurpose::Message);
        assert_eq!(cap.grant(), Some((holder("a"), 4)));
        cap.remove_shard(&holder("a").0);
        assert_eq!(cap.granted(), 0);
    }

    #[test]
    fn k31_recovery_gets_only_what_nothing_else_wants() {
        let mut cap = InstanceSlots::new(2);
        cap.request(holder("r1"), 1, SlotPurpose::Recovery);
        cap.request(holder("r2"), 1, SlotPurpose::Recovery);
        cap.request(holder("t"), 1, SlotPurpose::Timer);
        cap.request(holder("m"), 1, SlotPurpose::Message);
        let mut granted = [cap.grant(), cap.grant()].map(|it| it.map(|(holder, _)| holder));
        granted.sort();
        assert_eq!(granted, [Some(holder("m")), Some(holder("t"))]);
        cap.idle(holder("m"));
        assert_eq!((cap.grant(), cap.evict()), (None, None), "recovery evicts nothing");
        cap.release(&holder("m"), 1);
        assert_eq!(cap.grant(), Some((holder("r1"), 1)));
        // A message for an entity that waits for recovery replaces that request.
        cap.request(holder("r2"), 1, SlotPurpose::Message);
        cap.release(&holder("t"), 1);
        assert_eq!(cap.grant(), Some((holder("r2"), 1)));
        cap.release(&holder("r1"), 1);
        assert_eq!(cap.grant(), None, "it has its slot");
        cap.request(holder("r2"), 1, SlotPurpose::Recovery);
        assert_eq!(cap.grant(), None, "nor does a late request for recovery get another one");
        cap.request(holder("r3"), 1, SlotPurpose::Message);
        cap.request(holder("r3"), 1, SlotPurpose::Recovery);
        assert_eq!(cap.grant(), Some((holder("r3"), 1)));
        cap.release(&holder("r3"), 1);
        assert_eq!(cap.grant(), None, "one request remained of the two");
        cap.request(holder("r3"), 1, SlotPurpose::Recovery);
        cap.release(&holder("r3"), 1);
        assert_eq!(cap.grant(), None, "it was withdrawn");
    }

    #[test]
    fn a_withdrawal_affects_one_request_of_one_holder() {
        let mut cap = InstanceSlots::new(3);
        for (id, generation) in [("a", 7), ("a", 8), ("b", 7)] {
            cap.request(holder(id), generation, SlotPurpose::Message);
        }
        cap.release(&holder("a"), 7);
        assert_eq!(cap.grant(), Some((holder("a"), 8)));
        assert_eq!(cap.grant(), Some((holder("b"), 7)));
    }

    #[test]
    fn r14_messages_get_slots_before_timers() {
        let mut cap = InstanceSlots::new(1);
        for id in ["a", "b", "c", "d"] {
            cap.request(holder(id), 7, SlotPurpose::Timer);
        }
        cap.request(holder("m"), 1, SlotPurpose::Message);
        // A message arrives for an entity whose timer waits for a slot.
        cap.request(holder("c"), 7, SlotPurpose::Message);
        cap.release(&holder("b"), 7);
        let mut order = String::new();
        while let Some((holder, generation)) = cap.grant() {
            order.push_str(&holder.1.id);
            cap.release(&holder, generation);
        }
        assert_eq!(order, "mcad", "each holder once, except for the withdrawn request");
    }

    #[test]
    fn messages_do_not_starve_timers_of_slots() {
        let mut cap = InstanceSlots::new(1);
        cap.request(holder("t"), 1, SlotPurpose::Timer);
        let granted = (1..).find(|number| {
            cap.request(holder(&format!("m{number}")), 1, SlotPurpose::Message);
            let (holder, generation) = cap.grant().unwrap();
            cap.release(&holder, generation);
            &*holder.1.id == "t"
        });
        assert_eq!(granted, Some(8));
    }

    #[test]
    fn a_withdrawn_slot_request_is_not_granted() {
        let mut cap = InstanceSlots::new(1);
        cap.request(holder("a"), 7, SlotPurpose::Message);
        cap.release(&holder("a"), 7);
        assert_eq!(cap.grant(), None);
        assert_eq!(cap.granted(), 0);
    }

    /// Slots for five instances with a budget of 100 bytes, of which three have reported 30 bytes each.
    fn with_budget() -> InstanceSlots {
        let mut cap = InstanceSlots::new(5).with_memory(100);
        for id in ["a", "b", "c"] {
            cap.request(holder(id), 1, SlotPurpose::Message);
            assert!(cap.grant().is_some());
            cap.report_size(&holder(id), 1, 30);
            cap.idle(holder(id));
        }
        cap
    }

    #[test]
    fn instances_beyond_the_memory_budget_are_evicted() {
        let mut cap = with_budget();
        assert_eq!((cap.held_bytes(), cap.evict()), (90, None));
        cap.report_size(&holder("c"), 1, 60);
        assert_eq!(cap.evict(), Some(holder("a")), "it has grown");
        assert_eq!((cap.evict(), cap.held_bytes()), (None, 120), "one is enough");
        cap.request(holder("d"), 1, SlotPurpose::Message);
        assert_eq!(cap.grant(), None, "the budget is used up until it has left");
        cap.release(&holder("a"), 1);
        assert_eq!((cap.held_bytes(), cap.grant()), (90, Some((holder("d"), 1))));
        assert_eq!(cap.held_bytes(), 150, "until it reports, it counts as the last one did");
        cap.report_size(&holder("d"), 1, 5);
        assert_eq!((cap.held_bytes(), cap.evict()), (95, None));
    }

    #[test]
    fn a_message_evicts_an_instance_when_memory_is_used_up() {
        let mut cap = with_budget();
        cap.report_size(&holder("c"), 1, 40);
        cap.request(holder("d"), 1, SlotPurpose::Message);
        assert_eq!((cap.is_full(), cap.grant()), (false, None));
        assert_eq!((cap.evict(), cap.evict()), (Some(holder("a")), None));
        cap.eviction_refused(&holder("a"));
        assert_eq!(cap.evict(), Some(holder("b")), "the next one instead");
        cap.release(&holder("b"), 1);
        assert_eq!(cap.grant(), Some((holder("d"), 1)));
    }

    #[test]
    fn a_single_instance_may_exceed_the_memory_budget() {
        let mut cap = InstanceSlots::new(5).with_memory(100);
        cap.request(holder("a"), 1, SlotPurpose::Message);
        assert!(cap.grant().is_some());
        cap.report_size(&holder("a"), 1, 500);
        cap.idle(holder("a"));
        assert_eq!(cap.evict(), None, "nothing needs its space");
        cap.request(holder("b"), 1, SlotPurpose::Message);
        assert_eq!((cap.grant(), cap.evict()), (None, Some(holder("a"))));
        cap.release(&holder("a"), 1);
        assert_eq!(cap.grant(), Some((holder("b"), 1)), "even if it may be as large");
    }

    #[test]
    fn both_instances_of_an_entity_count_towards_the_budget() {
        let mut cap = InstanceSlots::new(5).with_memory(100);
        for (id, generation) in [("a", 1), ("a", 2), ("b", 3)] {
            cap.request(holder(id), generation, SlotPurpose::Message);
            assert!(cap.grant().is_some());
            cap.report_size(&holder(id), generation, 30);
        }
        assert_eq!((cap.granted(), cap.held_bytes(), cap.evict()), (3, 90, None));
        cap.report_size(&holder("a"), 2, 50);
        assert_eq!(cap.held_bytes(), 110, "the second one has grown");
        cap.idle(holder("a"));
        assert_eq!((cap.evict(), cap.evict()), (Some(holder("a")), None), "one is enough");
        cap.release(&holder("a"), 2);
        assert_eq!((cap.granted(), cap.held_bytes()), (2, 60), "the first one remains");
        cap.report_size(&holder("a"), 2, 5);
        assert_eq!(cap.held_bytes(), 60, "a late report about the second one");
        cap.report_size(&holder("a"), 1, 40);
        cap.release(&holder("a"), 1);
        assert_eq!(cap.held_bytes(), 30);
        // Two instances of one entity are not the single one that may be larger.
        cap.release(&holder("b"), 3);
        for generation in [4, 5] {
            cap.request(holder("a"), generation, SlotPurpose::Message);
            assert!(cap.grant().is_some());
            cap.report_size(&holder("a"), generation, 60);
        }
        cap.idle(holder("a"));
        assert_eq!(cap.evict(), Some(holder("a")));
        cap.remove_shard(&holder("a").0);
        assert_eq!((cap.granted(), cap.held_bytes()), (0, 0));
    }

    #[test]
    fn k31_recovery_starts_nothing_that_memory_would_evict() {
        let mut cap = with_budget();
        cap.request(holder("r"), 1, SlotPurpose::Recovery);
        assert_eq!((cap.grant(), cap.evict()), (None, None), "it would exceed the budget");
        cap.release(&holder("a"), 1);
        assert_eq!(cap.grant(), Some((holder("r"), 1)));
    }
}
