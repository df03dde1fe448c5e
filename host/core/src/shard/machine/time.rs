//! What happens because time passes, and because a type is deployed anew.

use super::*;

impl Machine {
    pub(super) fn on_type(&mut self, now: Now, kind: Arc<str>, settings: TypeSettings) {
        let known = self.types.get(&kind).map(|old| old.revision);
        if known.is_some_and(|known| known > settings.revision) {
            // Word of an older deployment that came late: it must not run on what the newer one wrote (R24).
            return;
        }
        let newer = known.is_some_and(|known| known < settings.revision);
        self.types.insert(kind.clone(), settings);
        if newer {
            let of_type: Vec<_> =
                self.entities.keys().filter(|entity| entity.entity_type == kind).cloned().collect();
            for entity in of_type {
                self.stop_when_idle(now, &entity, StopReason::Redeployed);
            }
        }
    }

    pub(super) fn tick(&mut self, now: Now) {
        self.next_wake = None;
        if let Some(at) = self.claim_at {
            if at <= now.mono {
                self.send_claim();
            } else {
                self.wake_by(at);
            }
        }
        // Those that are due now, once each: what is due again at once is for the next tick.
        let mut due = Vec::new();
        while self.timers.first().is_some_and(|(at, _)| *at <= now.mono) {
            let Some((_, entity)) = self.timers.pop_first() else { break };
            if let Some(state) = self.entities.get_mut(&entity) {
                state.timer = None;
            }
            due.push(entity);
        }
        for entity in due {
            self.tick_entity(now, &entity);
        }
        if let Some(at) = self.stop_at {
            if at <= now.mono {
                self.stop_at = None;
                let outcome = self
                    .rebalancing_outcome("the shard's stop deadline passed while the message ran");
                for entity in self.entities.keys().cloned().collect::<Vec<_>>() {
                    self.give_up(&entity, &outcome);
                }
            } else {
                self.wake_by(at);
            }
        }
    }

    pub(super) fn tick_entity(&mut self, now: Now, entity: &Entity) {
        let paused = self.is_paused();
        let Some(state) = self.entities.get(entity) else { return };
        for id in state.mailbox.expired(now.mono) {
            self.finish_expired(entity, &id);
        }
        let Some(state) = self.entities.get(entity) else { return };
        let impatient = match paused {
            true => Vec::new(),
            false => state.mailbox.park_expired(now.mono),
        };
        for id in impatient {
            let outcome = Outcome::not_run_retryable(
                codes::OUT_OF_ORDER,
                "the message before this one did not come within `order-timeout`",
                0,
            );
            self.finish(entity, &id, outcome, false);
        }
        let settings = &self.settings;
        let Some(state) = self.entities.get(entity) else { return };
        if let Stage::AwaitingSlot(since) = state.stage
            && since + settings.instance_slot_timeout <= now.mono
        {
            let outcome = Outcome::not_run_retryable(
                codes::OVERLOADED,
                "no room for another live instance came within `instance-slot-timeout`",
                500,
            );
            self.give_up(entity, &outcome);
            return;
        }
        if state.stop_hook_deadline.is_some_and(|at| at <= now.mono) {
            // Its hook is worth no more time: the instance is dropped as it stands.
            self.drop_instance(entity);
        }
        let Some(state) = self.entities.get(entity) else { return };
        let idle = self.types.get(&entity.entity_type).map_or(u64::MAX, |t| t.idle_timeout);
        if state.stage == Stage::Idle
            && state.entries.is_empty()
            && !paused
            && state.last_used.saturating_add(idle) <= now.mono
        {
            self.stop_when_idle(now, entity, StopReason::Idle);
        } else {
            self.advance(now, entity);
        }
    }

    /// Makes sure that the entity is looked at by the time that it next needs it. A timer that is too early stays: moving
    /// it at each message would cost more than the look.
    pub(super) fn wake_for(&mut self, entity: &Entity) {
        let Some(at) = self.entities.get(entity).and_then(|state| self.due(entity, state)) else {
            return;
        };
        let Some(state) = self.entities.get_mut(entity) else { return };
        if state.timer.is_none_or(|timer| at < timer) {
            if let Some(timer) = state.timer.replace(at) {
                self.timers.remove(&(timer, entity.clone()));
            }
            self.timers.insert((at, entity.clone()));
        }
    }

    /// When time alone changes something for the entity.
    fn due(&self, entity: &Entity, state: &ResidentEntity) -> Option<u64> {
        let paused = self.is_paused();
        let stage = match state.stage {
            Stage::Unloaded if !paused && self.phase == Phase::Serving => {
                state.start_backoff.map(|pause| pause.ends_at(!state.entries.is_empty()))
            }
            Stage::AwaitingSlot(since) => Some(since + self.settings.instance_slot_timeout),
            Stage::Idle if !paused && state.entries.is_empty() => self
                .types
                .get(&entity.entity_type)
                .map(|settings| state.last_used.saturating_add(settings.idle_timeout)),
            _ => None,
        };
        let deadline = state.mailbox.first_deadline();
        let parked = state.mailbox.first_parked_until().filter(|_| !paused);
        stage.into_iter().chain(deadline).chain(parked).chain(state.stop_hook_deadline).min()
    }

    /// An entity that could go on, or will be able to, and that no event and no timer will have anybody look at.
    #[cfg(debug_assertions)]
    pub(super) fn find_stuck_entity(&self) -> Option<&Entity> {
        let overlooked = |(entity, state): &(&Entity, &ResidentEntity)| {
            let stalled = self.is_paused() || self.stalled.contains(entity);
            let waits = match state.stage {
                Stage::Unloaded => stalled || state.start_backoff.is_some(),
                Stage::Loaded => stalled || !state.mailbox.has_next(),
                Stage::Idle => {
                    let asked = state.mailbox.has_next()
                        || state.pending_stop.is_some()
                        || state.passivates;
                    stalled || !asked || state.gate.len() >= self.settings.max_gated_turns
                }
                Stage::AwaitingCommits => !state.gate.is_empty(),
                // An answer will come.
                _ => true,
            };
            let due = self.due(entity, state);
            !waits || due.is_some_and(|due| state.timer.is_none_or(|timer| due < timer))
        };
        let ended = matches!(self.phase, Phase::Lost | Phase::Stopped);
        self.entities.iter().filter(|_| !ended).find(overlooked).map(|(entity, _)| entity)
    }
}
