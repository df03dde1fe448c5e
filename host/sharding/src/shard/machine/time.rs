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
        let later = self.timers.iter().find(|(at, _)| *at > now.mono).cloned();
        let later = later.map(|later| self.timers.split_off(&later)).unwrap_or_default();
        for (_, entity) in std::mem::replace(&mut self.timers, later) {
            if let Some(state) = self.entities.get_mut(&entity) {
                state.timer = None;
            }
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
        let passed = state.deadlines.iter().take_while(|(at, _)| *at <= now.mono);
        let expired: Vec<_> =
            passed.map(|(_, id)| *id).filter(|id| state.mailbox.contains(id)).collect();
        for id in expired {
            self.refuse_deadline(entity, &id);
        }
        let Some(state) = self.entities.get(entity) else { return };
        let impatient: Vec<_> = match paused {
            true => Vec::new(),
            false => state.mailbox.parked_in_vain(now.mono).collect(),
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
        self.wake_for(entity);
    }

    /// Makes sure that a tick comes when the entity next needs one.
    pub(super) fn wake_for(&mut self, entity: &Entity) {
        let Some(state) = self.entities.get(entity) else { return };
        let deadline = state.first_deadline();
        let paused = self.pauses();
        let parked = state.mailbox.first_parked_until().filter(|_| !paused);
        let slot = match state.stage {
            Stage::Waiting(since) => Some(since + self.settings.activation_wait),
            Stage::Idle if !paused && state.entries.is_empty() => self
                .types
                .get(&entity.kind)
                .map(|settings| state.last_used.saturating_add(settings.idle)),
            _ => None,
        };
        let times = deadline.into_iter().chain(parked).chain(slot).chain(state.stop_by);
        if let Some(at) = times.min() {
            self.wake_entity(entity, at);
        }
    }
}
