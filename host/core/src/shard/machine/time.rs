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
                self.entities.keys().filter(|entity| entity.kind == kind).cloned().collect();
            for entity in of_type {
                self.leave(now, &entity, StopReason::Redeployed);
            }
        }
    }

    pub(super) fn tick(&mut self, now: Now) {
        self.wake = None;
        if let Some(at) = self.claim_at {
            if at <= now.mono {
                self.ask_claim();
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
                let outcome =
                    self.rebalancing("the shard's stop deadline passed while the message ran");
                for entity in self.entities.keys().cloned().collect::<Vec<_>>() {
                    self.give_up(&entity, &outcome);
                }
            } else {
                self.wake_by(at);
            }
        }
    }

    pub(super) fn tick_entity(&mut self, now: Now, entity: &Entity) {
        let paused = self.pauses();
        let Some(state) = self.entities.get(entity) else { return };
        for id in state.mailbox.expired(now.mono) {
            self.refuse_deadline(entity, &id);
        }
        let Some(state) = self.entities.get(entity) else { return };
        let impatient = match paused {
            true => Vec::new(),
            false => state.mailbox.parked_in_vain(now.mono),
        };
        for id in impatient {
            let outcome = Outcome::later(
                codes::OUT_OF_ORDER,
                "the message before this one did not come within `order-wait`",
                0,
            );
            self.refuse(entity, &id, outcome, false);
        }
        let settings = &self.settings;
        let Some(state) = self.entities.get(entity) else { return };
        if let Stage::Waiting(since) = state.stage
            && since + settings.activation_wait <= now.mono
        {
            let outcome = Outcome::later(
                codes::OVERLOADED,
                "no room for another live instance came within `activation-wait`",
                500,
            );
            self.give_up(entity, &outcome);
            return;
        }
        if state.stop_by.is_some_and(|at| at <= now.mono) {
            // Its hook is worth no more time: the instance is dropped as it stands.
            self.close(entity);
        }
        let Some(state) = self.entities.get(entity) else { return };
        let idle = self.types.get(&entity.kind).map_or(u64::MAX, |t| t.idle);
        if state.stage == Stage::Idle
            && state.entries.is_empty()
            && !paused
            && state.last_used.saturating_add(idle) <= now.mono
        {
            self.leave(now, entity, StopReason::Idle);
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
    fn due(&self, entity: &Entity, state: &State) -> Option<u64> {
        let paused = self.pauses();
        let stage = match state.stage {
            Stage::Asleep if !paused && self.phase == Phase::Serving => {
                state.start_pause.map(|pause| pause.ends_at(!state.entries.is_empty()))
            }
            Stage::Waiting(since) => Some(since + self.settings.activation_wait),
            Stage::Idle if !paused && state.entries.is_empty() => self
                .types
                .get(&entity.kind)
                .map(|settings| state.last_used.saturating_add(settings.idle)),
            _ => None,
        };
        let deadline = state.mailbox.first_deadline();
        let parked = state.mailbox.first_parked_until().filter(|_| !paused);
        stage.into_iter().chain(deadline).chain(parked).chain(state.stop_by).min()
    }

    /// An entity that could go on, or will be able to, and that no event and no timer will have anybody look at.
    #[cfg(debug_assertions)]
    pub(super) fn overlooked(&self) -> Option<&Entity> {
        let overlooked = |(entity, state): &(&Entity, &State)| {
            let stalled = self.pauses() || self.stalled.contains(entity);
            let waits = match state.stage {
                Stage::Asleep => stalled || state.start_pause.is_some(),
                Stage::Loaded => stalled || !state.mailbox.has_next(),
                Stage::Idle => {
                    let asked =
                        state.mailbox.has_next() || state.leaving.is_some() || state.passivates;
                    stalled || !asked || state.gate.len() >= self.settings.gate
                }
                Stage::Closing => !state.gate.is_empty(),
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
