//! The slots of one worker's instances, with limits for single pools within the worker's own (K39).

use std::collections::BTreeMap;
use std::sync::Arc;

use super::instance_slots::InstanceSlots;
use super::settings::SlotPurpose;
use super::slot_requests::SlotHolder;
use crate::ids::{ShardId, ShardPath};

/// How many live instances there may be, and how much memory they may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotLimits {
    /// Maximum number of live instances; 0 counts as 1.
    pub instances: usize,
    /// Bytes of live instances beyond which idle ones are evicted.
    pub memory: u64,
}

impl SlotLimits {
    /// The part of one of `sharing` workers that share these evenly: at least one instance.
    #[must_use]
    pub fn share(self, sharing: usize) -> Self {
        let sharing = sharing.max(1);
        Self { instances: (self.instances / sharing).max(1), memory: self.memory / sharing as u64 }
    }

    fn slots(self) -> InstanceSlots {
        InstanceSlots::new(self.instances).with_memory(self.memory)
    }
}

/// The slots of a worker. A request of a pool with limits waits for those first, and only then for the worker's: what a
/// pool lacks by its own limits, it takes only from itself.
#[derive(Debug)]
pub struct WorkerSlots {
    all: InstanceSlots,
    /// The pools with limits, by name.
    pools: BTreeMap<Arc<str>, InstanceSlots>,
}

impl WorkerSlots {
    /// Slots within the worker's limits and, by the pool's name, within those of pools.
    #[must_use]
    pub fn new(limits: SlotLimits, of_pools: &BTreeMap<Arc<str>, SlotLimits>) -> Self {
        let pools = of_pools.iter().map(|(pool, limits)| (pool.clone(), limits.slots()));
        Self { all: limits.slots(), pools: pools.collect() }
    }

    /// Slots for this many instances, of any size and of any pool.
    #[must_use]
    pub fn with_instances(most: usize) -> Self {
        Self::new(SlotLimits { instances: most, memory: u64::MAX }, &BTreeMap::new())
    }

    /// The number of slots held.
    #[must_use]
    pub fn granted(&self) -> usize {
        self.all.granted()
    }

    /// Whether every slot of the worker is held.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.all.is_full()
    }

    /// The bytes of the instances that hold slots, as far as they have been reported.
    #[must_use]
    pub fn held_bytes(&self) -> u64 {
        self.all.held_bytes()
    }

    /// The bytes of the instances of each shard, as far as they have been reported.
    #[must_use]
    pub fn held_bytes_by_shard(&self) -> BTreeMap<ShardId, u64> {
        self.all.held_bytes_by_shard()
    }

    /// Records the size in bytes of a holder's instance with this generation. A late report about an instance that has
    /// ended changes nothing.
    pub fn report_size(&mut self, holder: &SlotHolder, generation: u64, bytes: u64) {
        self.for_each(&holder.0, |slots| slots.report_size(holder, generation, bytes));
    }

    /// Requests a slot, which a later [`WorkerSlots::grant`] grants. Of several requests with the same generation,
    /// that for a message counts, or else that for a timer. A holder that has a slot may request another one, for its
    /// second instance.
    pub fn request(&mut self, holder: SlotHolder, generation: u64, purpose: SlotPurpose) {
        match self.pools.get_mut(&holder.0.pool) {
            Some(pool) if !pool.holds(&holder, generation) => {
                pool.request(holder, generation, purpose);
            }
            // A request that has passed the pool's limits may become one for a message.
            _ => self.all.request(holder, generation, purpose),
        }
    }

    /// Returns a slot, or withdraws the request for it.
    pub fn release(&mut self, holder: &SlotHolder, generation: u64) {
        self.for_each(&holder.0, |slots| slots.release(holder, generation));
    }

    /// Releases all slots and withdraws all requests of a shard whose machine can no longer do so itself.
    pub fn remove_shard(&mut self, shard: &ShardPath) {
        self.for_each(shard, |slots| slots.remove_shard(shard));
    }

    /// Records that a holder is idle and may be evicted. A holder that is already idle keeps its position, since
    /// machines repeat this call when commits complete.
    pub fn idle(&mut self, holder: SlotHolder) {
        // One that waits for the worker's slots has only its pool's.
        if self.all.is_holder(&holder) {
            if let Some(pool) = self.pools.get_mut(&holder.0.pool) {
                pool.idle(holder.clone());
            }
            self.all.idle(holder);
        }
    }

    /// Records that a holder is no longer idle.
    pub fn busy(&mut self, holder: &SlotHolder) {
        self.for_each(&holder.0, |slots| slots.busy(holder));
    }

    /// Grants the next request, if a slot is free and the memory budget is not used up, both of its pool and of the
    /// worker.
    pub fn grant(&mut self) -> Option<(SlotHolder, u64)> {
        for pool in self.pools.values_mut() {
            while let Some((holder, generation, purpose)) = pool.grant_urgent() {
                self.all.request(holder, generation, purpose);
            }
        }
        if let Some((holder, generation, _)) = self.all.grant_urgent() {
            return Some((holder, generation));
        }
        // It takes both slots at once: one that waited for the worker's would keep that of its pool from messages.
        for pool in self.pools.values_mut() {
            if pool.next_recovery().is_some_and(|holder| self.all.may_recover(holder))
                && let Some((holder, generation)) = pool.grant_recovery()
            {
                self.all.add(&holder, generation);
                return Some((holder, generation));
            }
        }
        self.all.grant_recovery()
    }

    /// The next idle holder to evict: if there are more requests than evictions in progress, or if instances exceed the
    /// memory budget.
    pub fn evict(&mut self) -> Option<SlotHolder> {
        for pool in self.pools.values_mut() {
            if let Some(holder) = pool.evict() {
                self.all.begin_eviction(&holder);
                return Some(holder);
            }
        }
        let holder = self.all.evict()?;
        if let Some(pool) = self.pools.get_mut(&holder.0.pool) {
            pool.begin_eviction(&holder);
        }
        Some(holder)
    }

    /// Records that a holder's eviction was refused.
    pub fn eviction_refused(&mut self, holder: &SlotHolder) {
        self.for_each(&holder.0, |slots| slots.eviction_refused(holder));
    }

    fn for_each(&mut self, shard: &ShardPath, mut change: impl FnMut(&mut InstanceSlots)) {
        if let Some(pool) = self.pools.get_mut(&shard.pool) {
            change(pool);
        }
        change(&mut self.all);
    }
}

#[cfg(test)]
mod tests;
