//! Suspension and resumption of the shard's entities (R9): everything keeps its state, and no turn starts.

use super::{Action, Entity, Machine};
use crate::shard::entity::{ResidentEntity, Stage};

impl Machine {
    pub(super) fn on_suspend(&mut self) {
        self.lease.suspend();
        if !self.lease.is_paused(&self.context) {
            return;
        }
        let waits = |(entity, state): (&Entity, &ResidentEntity)| {
            matches!(state.stage, Stage::AwaitingSlot(_)).then(|| entity.clone())
        };
        let second_waits = |(entity, state): (&Entity, &ResidentEntity)| {
            let second = state.second.as_ref();
            second.is_some_and(|second| !second.has_instance()).then(|| entity.clone())
        };
        for entity in self.residents.iter().filter_map(second_waits).collect::<Vec<_>>() {
            self.end_second(&entity);
        }
        for entity in self.residents.iter().filter_map(waits).collect::<Vec<_>>() {
            // A slot granted during the suspension must not be mistaken for one that is requested after the resumption.
            let next_generation = self.residents.next_generation();
            let Some(state) = self.residents.get_mut(&entity) else { continue };
            let generation = std::mem::replace(&mut state.generation, next_generation);
            state.stage = Stage::Loaded;
            self.context.push(Action::ReleaseSlot { entity, generation });
        }
    }

    pub(super) fn on_resume(&mut self) {
        if !self.lease.resume() {
            return;
        }
        let until = self.context.mono() + self.context.settings.order_timeout;
        for (_, state) in self.residents.iter_mut() {
            // The predecessor of a parked message may have waited during the whole suspension.
            state.mailbox.extend_park_deadlines(until);
        }
        self.schedule.take_stalled();
        for entity in self.residents.names() {
            self.advance(&entity);
        }
    }
}
