//! How the machine handles the passing of time, and new deployments of a type.

use std::sync::Arc;

use super::second_instance::no_slot_outcome;
use super::{Entity, Machine, Outcome, codes};
#[cfg(debug_assertions)]
use crate::shard::Phase;
use crate::shard::entity::{ResidentEntity, Stage};
use crate::shard::{StopReason, TypeSettings};

impl Machine {
    pub(super) fn on_type(&mut self, entity_type: Arc<str>, settings: TypeSettings) {
        let before = self.types.revision(&entity_type);
        if self.types.on_deployed(&self.context, entity_type.clone(), settings) {
            for entity in self.residents.names() {
                if entity.entity_type == entity_type && self.runs_another_revision(&entity) {
                    self.stop_when_idle(&entity, StopReason::Redeployed);
                }
            }
        }
        if self.types.revision(&entity_type) != before {
            self.supervision.release_type(&entity_type);
            self.forget_failed_migrations(&entity_type);
            self.end_pauses(&entity_type);
            self.recovery.on_deployed(&entity_type);
        }
    }

    pub(super) fn tick(&mut self) {
        self.schedule.on_tick();
        if let Some(at) = self.claim.retry(&mut self.context) {
            self.schedule.wake_by(at);
        }
        // Handles each due entity once; an entity that is due again waits for the next tick.
        let mut due = Vec::new();
        while let Some(entity) = self.schedule.take_due(self.context.mono()) {
            if let Some(state) = self.residents.get_mut(&entity) {
                state.timer = None;
            }
            due.push(entity);
        }
        for entity in due {
            self.tick_entity(&entity);
        }
        match self.claim.stop_at() {
            Some(at) if at <= self.context.mono() => {
                self.claim.on_stop_deadline();
                let text = "the shard's stop deadline passed before the message finished";
                let outcome = self.claim.rebalancing_outcome(text);
                for entity in self.residents.names() {
                    self.give_up(&entity, &outcome);
                }
            }
            Some(at) => self.schedule.wake_by(at),
            None => {}
        }
    }

    fn tick_entity(&mut self, entity: &Entity) {
        let paused = self.lease.is_paused(&self.context);
        let Some(state) = self.residents.get(entity) else { return };
        for id in state.mailbox.expired(self.context.mono()) {
            self.finish_expired(entity, &id);
        }
        let Some(state) = self.residents.get(entity) else { return };
        let impatient = match paused {
            true => Vec::new(),
            false => state.mailbox.park_expired(self.context.mono()),
        };
        for id in impatient {
            let outcome = Outcome::not_run_retryable(
                codes::OUT_OF_ORDER,
                "the session's previous message did not arrive within `order-timeout`",
                0,
            );
            self.finish(entity, &id, outcome, false);
        }
        let settings = &self.context.settings;
        let Some(state) = self.residents.get(entity) else { return };
        if let Stage::AwaitingSlot(since) = state.stage
            && since + settings.instance_slot_timeout <= self.context.mono()
        {
            self.give_up(entity, &no_slot_outcome());
            return;
        }
        self.tick_second(entity);
        let Some(state) = self.residents.get(entity) else { return };
        if state.stop_hook_deadline.is_some_and(|at| at <= self.context.mono()) {
            // The stop hook took too long: the instance is dropped without waiting for it.
            self.drop_instance(entity);
        }
        let Some(state) = self.residents.get(entity) else { return };
        match self.idle_end(entity, state) {
            Some((at, reason)) if !paused && at <= self.context.mono() => {
                self.stop_when_idle(entity, reason);
            }
            _ => self.advance(entity),
        }
    }

    /// Schedules the entity's next examination.
    pub(super) fn wake_for(&mut self, entity: &Entity) {
        let of = |state| {
            let timers =
                self.timers_due(entity, state).into_iter().chain(self.tells_due(entity, state));
            let purge = self.purge_due(entity, state);
            self.due(entity, state).into_iter().chain(timers).chain(purge).min()
        };
        let due = self.residents.get(entity).and_then(of);
        if let (Some(at), Some(state)) = (due, self.residents.get_mut(entity)) {
            self.schedule.wake_entity_by(entity, state, at);
        }
    }

    /// When the entity must next be examined even if no event arrives.
    fn due(&self, entity: &Entity, state: &ResidentEntity) -> Option<u64> {
        let paused = self.lease.is_paused(&self.context);
        let stage = match state.stage {
            Stage::Unloaded if !paused && self.claim.is_serving() => {
                let first = self.context.settings.start_backoff;
                let pause = state.start_backoff.as_ref();
                let waits = state.is_wanted();
                pause.map(|pause| pause.ends_at(waits, first))
            }
            Stage::AwaitingSlot(since) => Some(since + self.context.settings.instance_slot_timeout),
            Stage::Idle if !paused => self.idle_end(entity, state).map(|(at, _)| at),
            _ => None,
        };
        let deadline = state.mailbox.first_deadline();
        let parked = state.mailbox.first_parked_until().filter(|_| !paused);
        let asks = state.asks.due(self.context.mono());
        let times = stage.into_iter().chain(deadline).chain(parked).chain(asks);
        let times = times.chain(self.second_due(state));
        times.chain(state.stop_hook_deadline).chain(self.channels_due(state)).min()
    }

    /// An entity that can make progress, now or later, but that no event or timer is going to wake.
    #[cfg(debug_assertions)]
    pub(super) fn find_stuck_entity(&self) -> Option<&Entity> {
        let overlooked = |(entity, state): &(&Entity, &ResidentEntity)| {
            let stalled = self.lease.is_paused(&self.context) || self.schedule.is_stalled(entity);
            // A timer may have become due since the last examination: the next tick examines it.
            let fires = state.timer.is_none() && self.is_due(entity, state);
            // The same applies to the end of a purge's pause.
            let pauses = state.timer.is_some() && state.is_purged;
            let waits = match state.stage {
                Stage::Unloaded => {
                    stalled || state.start_backoff.is_some() || !(Self::lacks_load(state) || fires)
                }
                Stage::Loaded => {
                    stalled
                        || self.is_gate_full(state)
                        || self.purge_waits(entity, state)
                        || pauses
                        || self.waits_for_gate(state)
                        || !(state.mailbox.has_next()
                            || fires
                            || state.must_start
                            || state.is_purged)
                }
                Stage::Idle => {
                    let asked = state.mailbox.has_next()
                        || state.pending_stop.is_some()
                        || state.passivates
                        || fires;
                    stalled || !asked || self.is_gate_full(state) || self.waits_for_gate(state)
                }
                Stage::AwaitingCommits => !state.gate.is_empty(),
                Stage::Running(..) | Stage::Firing(..) => {
                    stalled || !self.overlooks_query(entity, state)
                }
                // The result of an action is pending.
                _ => true,
            };
            let due = self.due(entity, state);
            !waits || due.is_some_and(|due| state.timer.is_none_or(|timer| due < timer))
        };
        let ended = matches!(self.claim.phase(), Phase::Lost | Phase::Stopped);
        self.residents.iter().filter(|_| !ended).find(overlooked).map(|(entity, _)| entity)
    }
}
