//! The entities that recovery has yet to start.

use std::collections::{BTreeMap, BTreeSet};

use super::Entity;

/// The entities to start, each once, by the time before which they must not be started, on the node's clock.
#[derive(Clone, Debug, Default)]
pub(super) struct PendingStarts {
    by_time: BTreeSet<(u64, Entity)>,
    times: BTreeMap<Entity, u64>,
}

impl PendingStarts {
    /// Adds an entity. If it is in it already, the earlier time counts: one that is dropped often must not take the
    /// places of others.
    pub(super) fn add(&mut self, at: u64, entity: Entity) {
        if let Some(before) = self.times.get(&entity).copied() {
            if before <= at {
                return;
            }
            self.by_time.remove(&(before, entity.clone()));
        }
        self.times.insert(entity.clone(), at);
        self.by_time.insert((at, entity));
    }

    /// Starts the entities of a type without a pause.
    pub(super) fn end_pauses(&mut self, entity_type: &str) {
        let paused = |(at, entity): &(u64, Entity)| *at > 0 && *entity.entity_type == *entity_type;
        let ended: Vec<_> = self.by_time.extract_if(.., paused).collect();
        for (_, entity) in ended {
            self.times.remove(&entity);
            self.add(0, entity);
        }
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    pub(super) fn len(&self) -> usize {
        self.by_time.len()
    }

    pub(super) fn contains(&self, entity: &Entity) -> bool {
        self.times.contains_key(entity)
    }

    /// How many of them may be started at this time, counted up to `most`.
    pub(super) fn count_due(&self, now: u64, most: usize) -> usize {
        self.by_time.iter().take_while(|(at, _)| *at <= now).take(most).count()
    }

    /// The time of the entity that is to be started first.
    pub(super) fn first_time(&self) -> Option<u64> {
        self.by_time.first().map(|(at, _)| *at)
    }

    /// Removes the entity that is to be started first.
    pub(super) fn pop_first(&mut self) -> Option<Entity> {
        let (_, entity) = self.by_time.pop_first()?;
        self.times.remove(&entity);
        Some(entity)
    }

    /// Drops the entity that would be started last.
    pub(super) fn drop_last(&mut self) {
        if let Some((_, entity)) = self.by_time.pop_last() {
            self.times.remove(&entity);
        }
    }
}
