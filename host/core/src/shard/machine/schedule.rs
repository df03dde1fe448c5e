//! The times at which the machine must examine an entity, or itself, without an event.

use std::collections::BTreeSet;

use super::super::entity::ResidentEntity;
use crate::ids::Entity;

#[derive(Clone, Debug, Default)]
pub(super) struct Schedule {
    /// When the machine's own work is due.
    next_wake: Option<u64>,
    /// The entities with a due time, ordered by [`ResidentEntity::timer`].
    timers: BTreeSet<(u64, Entity)>,
    /// Entities that only wait for the shard's claim or the node's lease.
    stalled: BTreeSet<Entity>,
}

impl Schedule {
    /// When the next tick is due.
    pub(super) fn next_wake(&self) -> Option<u64> {
        let timer = self.timers.first().map(|(at, _)| *at);
        self.next_wake.into_iter().chain(timer).min()
    }

    pub(super) fn wake_by(&mut self, at: u64) {
        self.next_wake = Some(self.next_wake.map_or(at, |wake| wake.min(at)));
    }

    /// Clears the machine's own due time at a tick; later work sets it again.
    pub(super) fn on_tick(&mut self) {
        self.next_wake = None;
    }

    /// Schedules an examination of the entity at that time. An earlier timer is kept: moving it with each message
    /// would cost more than one unnecessary examination.
    pub(super) fn wake_entity_by(&mut self, entity: &Entity, state: &mut ResidentEntity, at: u64) {
        if state.timer.is_none_or(|timer| at < timer) {
            if let Some(timer) = state.timer.replace(at) {
                self.timers.remove(&(timer, entity.clone()));
            }
            self.timers.insert((at, entity.clone()));
        }
    }

    /// Takes the next entity that is due.
    pub(super) fn take_due(&mut self, now: u64) -> Option<Entity> {
        if self.timers.first().is_some_and(|(at, _)| *at <= now) {
            return self.timers.pop_first().map(|(_, entity)| entity);
        }
        None
    }

    /// Records that the entity waits for the shard's claim or the node's lease.
    pub(super) fn stall(&mut self, entity: &Entity) {
        self.stalled.insert(entity.clone());
    }

    #[cfg(debug_assertions)]
    pub(super) fn is_stalled(&self, entity: &Entity) -> bool {
        self.stalled.contains(entity)
    }

    pub(super) fn take_stalled(&mut self) -> BTreeSet<Entity> {
        std::mem::take(&mut self.stalled)
    }

    /// Removes an entity that has left memory.
    pub(super) fn forget(&mut self, entity: &Entity, timer: Option<u64>) {
        if let Some(timer) = timer {
            self.timers.remove(&(timer, entity.clone()));
        }
        self.stalled.remove(entity);
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shard::mailbox::QueuedTotal;

    #[test]
    fn an_entity_is_due_once_at_its_earliest_time() {
        let mut schedule = Schedule::default();
        let (a, b) = (Entity::new("t", "a"), Entity::new("t", "b"));
        let [mut first, mut second] =
            [0, 0].map(|now| ResidentEntity::new(now, &QueuedTotal::default()));
        schedule.wake_entity_by(&a, &mut first, 50);
        schedule.wake_entity_by(&a, &mut first, 20);
        schedule.wake_entity_by(&a, &mut first, 90);
        schedule.wake_entity_by(&b, &mut second, 30);
        schedule.wake_by(25);
        assert_eq!((first.timer, schedule.next_wake()), (Some(20), Some(20)));
        assert_eq!(schedule.take_due(19), None);
        assert_eq!(schedule.take_due(40), Some(a));
        assert_eq!(schedule.next_wake(), Some(25), "the machine's own due time");
        schedule.on_tick();
        schedule.forget(&b, second.timer);
        assert_eq!((schedule.take_due(99), schedule.next_wake()), (None, None));
    }
}
