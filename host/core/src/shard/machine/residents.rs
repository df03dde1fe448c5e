//! The entities in memory, and the number of messages in their mailboxes.

use std::collections::BTreeMap;
use std::collections::btree_map::Iter;
use std::sync::atomic::Ordering;

use super::super::entity::ResidentEntity;
use super::super::mailbox::QueuedTotal;
use super::context::Context;
use crate::ids::Entity;

#[derive(Clone, Debug, Default)]
pub(super) struct Residents {
    entities: BTreeMap<Entity, ResidentEntity>,
    queued_total: QueuedTotal,
    last_generation: u64,
}

impl Residents {
    pub(super) fn get(&self, entity: &Entity) -> Option<&ResidentEntity> {
        self.entities.get(entity)
    }

    pub(super) fn get_mut(&mut self, entity: &Entity) -> Option<&mut ResidentEntity> {
        self.entities.get_mut(entity)
    }

    pub(super) fn get_or_create(
        &mut self,
        context: &Context,
        entity: &Entity,
    ) -> &mut ResidentEntity {
        self.entities
            .entry(entity.clone())
            .or_insert_with(|| ResidentEntity::new(context.mono(), &self.queued_total))
    }

    pub(super) fn remove(&mut self, entity: &Entity) -> Option<ResidentEntity> {
        self.entities.remove(entity)
    }

    pub(super) fn clear(&mut self) {
        self.entities.clear();
    }

    pub(super) fn len(&self) -> usize {
        self.entities.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entities.is_empty()
    }

    pub(super) fn iter(&self) -> Iter<'_, Entity, ResidentEntity> {
        self.entities.iter()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (&Entity, &mut ResidentEntity)> {
        self.entities.iter_mut()
    }

    /// A snapshot of the entities' names, for a loop that changes the collection.
    pub(super) fn names(&self) -> Vec<Entity> {
        self.entities.keys().cloned().collect()
    }

    /// A number that distinguishes loads, slots and instances of one entity.
    pub(super) fn next_generation(&mut self) -> u64 {
        self.last_generation += 1;
        self.last_generation
    }

    /// The number of messages that wait for a turn.
    pub(super) fn queued_messages(&self) -> usize {
        self.queued_total.load(Ordering::Relaxed)
    }
}
