//! Requests for slots, in the order in which they arrived. One is withdrawn without a search.

use std::collections::{BTreeMap, HashMap};

use crate::ids::{Entity, ShardPath};

/// The holder of a slot: an entity of a shard.
pub type SlotHolder = (ShardPath, Entity);

#[derive(Debug, Default)]
pub(super) struct SlotRequests {
    by_order: BTreeMap<u64, SlotHolder>,
    /// The order and the generation of each holder's request.
    order_of: HashMap<SlotHolder, (u64, u64)>,
    last: u64,
}

impl SlotRequests {
    pub(super) fn len(&self) -> usize {
        self.by_order.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_order.is_empty()
    }

    pub(super) fn contains(&self, holder: &SlotHolder, generation: u64) -> bool {
        self.order_of.get(holder).is_some_and(|(_, wanted)| *wanted == generation)
    }

    /// Adds a request, which replaces an older one of the same holder.
    pub(super) fn push(&mut self, holder: SlotHolder, generation: u64) {
        self.last += 1;
        if let Some((order, _)) = self.order_of.insert(holder.clone(), (self.last, generation)) {
            self.by_order.remove(&order);
        }
        self.by_order.insert(self.last, holder);
    }

    /// The oldest request.
    pub(super) fn first(&self) -> Option<&SlotHolder> {
        self.by_order.first_key_value().map(|(_, holder)| holder)
    }

    /// Removes the oldest request.
    pub(super) fn pop(&mut self) -> Option<(SlotHolder, u64)> {
        let (_, holder) = self.by_order.pop_first()?;
        let (_, generation) = self.order_of.remove(&holder)?;
        Some((holder, generation))
    }

    /// Removes the request of this holder and generation, if there is one.
    pub(super) fn withdraw(&mut self, holder: &SlotHolder, generation: u64) {
        if let Some((order, wanted)) = self.order_of.get(holder).copied()
            && wanted == generation
        {
            self.order_of.remove(holder);
            self.by_order.remove(&order);
        }
    }

    /// Removes all requests of a shard.
    pub(super) fn remove_shard(&mut self, shard: &ShardPath) {
        self.by_order.retain(|_, (of, _)| of != shard);
        self.order_of.retain(|(of, _), _| of != shard);
    }
}
