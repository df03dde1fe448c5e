//! The memory of live instances, and its budget.
//!
//! An instance reports its size when it has started and whenever its size has changed. Until then it counts as much as
//! the instance of its type that reported last.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::slot_requests::SlotHolder;
use crate::ids::{ShardId, ShardPath};

/// An instance: its holder, and whether it is the holder's second one.
pub(super) type InstanceKey = (SlotHolder, bool);

#[derive(Debug)]
pub(super) struct InstanceMemory {
    budget: u64,
    held: u64,
    /// How much of `held` belongs to instances that are being evicted.
    leaving: u64,
    leaving_count: usize,
    by_instance: HashMap<InstanceKey, Size>,
    /// The last report of each type.
    typical: HashMap<Arc<str>, u64>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Size {
    bytes: u64,
    leaves: bool,
}

impl InstanceMemory {
    pub(super) fn new(budget: u64) -> Self {
        let (by_instance, typical) = Default::default();
        Self { budget, held: 0, leaving: 0, leaving_count: 0, by_instance, typical }
    }

    pub(super) fn held(&self) -> u64 {
        self.held
    }

    pub(super) fn held_by_shard(&self) -> BTreeMap<ShardId, u64> {
        let mut held = BTreeMap::new();
        for (((shard, _), _), size) in &self.by_instance {
            *held.entry(shard.shard).or_default() += size.bytes;
        }
        held
    }

    /// Whether the budget leaves nothing for another instance.
    pub(super) fn is_full(&self) -> bool {
        self.held >= self.budget
    }

    /// Whether an instance of this type fits, if it is as large as the last one that reported. The only instance always
    /// fits.
    pub(super) fn fits(&self, holder: &SlotHolder) -> bool {
        self.by_instance.is_empty()
            || self.held.saturating_add(self.typical_of(holder)) <= self.budget
    }

    /// Whether instances must be evicted, so that the budget is kept or, if `wanted`, another instance fits.
    pub(super) fn must_evict(&self, wanted: bool) -> bool {
        let stays = self.held - self.leaving;
        match wanted {
            true => stays >= self.budget,
            // One instance may be larger than the budget.
            false => stays > self.budget && self.by_instance.len() - self.leaving_count > 1,
        }
    }

    pub(super) fn add(&mut self, instance: InstanceKey) {
        self.remove(&instance);
        let size = Size { bytes: self.typical_of(&instance.0), leaves: false };
        self.held += size.bytes;
        self.by_instance.insert(instance, size);
    }

    pub(super) fn remove(&mut self, instance: &InstanceKey) {
        let Some(size) = self.by_instance.remove(instance) else { return };
        self.held -= size.bytes;
        if size.leaves {
            self.leaving -= size.bytes;
            self.leaving_count -= 1;
        }
    }

    pub(super) fn remove_shard(&mut self, shard: &ShardPath) {
        let of_shard = |((of, _), _): &&InstanceKey| of == shard;
        for instance in self.by_instance.keys().filter(of_shard).cloned().collect::<Vec<_>>() {
            self.remove(&instance);
        }
    }

    /// Records the size of an instance.
    pub(super) fn report(&mut self, instance: &InstanceKey, bytes: u64) {
        self.typical.insert(instance.0.1.entity_type.clone(), bytes);
        let Some(size) = self.by_instance.get_mut(instance) else { return };
        self.held = self.held - size.bytes + bytes;
        if size.leaves {
            self.leaving = self.leaving - size.bytes + bytes;
        }
        size.bytes = bytes;
    }

    /// Records whether an instance is being evicted.
    pub(super) fn set_leaving(&mut self, instance: &InstanceKey, leaves: bool) {
        let Some(size) = self.by_instance.get_mut(instance) else { return };
        match (size.leaves, leaves) {
            (false, true) => {
                self.leaving += size.bytes;
                self.leaving_count += 1;
            }
            (true, false) => {
                self.leaving -= size.bytes;
                self.leaving_count -= 1;
            }
            _ => {}
        }
        size.leaves = leaves;
    }

    fn typical_of(&self, holder: &SlotHolder) -> u64 {
        self.typical.get(&holder.1.entity_type).copied().unwrap_or(0)
    }
}
