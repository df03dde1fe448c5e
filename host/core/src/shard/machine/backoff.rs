//! Pauses before an entity whose start failed is started again, so that a guest that never starts costs little.
//!
//! Only starts are delayed. If a message's turn fails, only that message is refused: a pause after it would let one
//! sender delay all others.

use super::{Entity, Machine, Outcome, ResidentEntity, codes};
use crate::message::Message;
use crate::shard::entity::{Stage, StartBackoff};

impl Machine {
    /// Handles a start turn that the store refused because of a limit. The store would refuse the next one too, so
    /// waiting messages are refused, and later ones wait for a while.
    pub(super) fn pause_after_refused_start(&mut self, entity: &Entity, why: &str) {
        let pause = StartBackoff::after_refusal(
            self.last_backoff(entity),
            self.context.mono(),
            self.context.settings.start_backoff,
            why,
        );
        self.discard_uncommitted(entity);
        let retry_after = u32::try_from(pause.span).unwrap_or(u32::MAX);
        let text = format!("the entity's start was not committed: {why}");
        let outcome = Outcome::not_run_retryable(codes::STORE_FULL, text, retry_after);
        self.pause(entity, &outcome, pause);
    }

    /// Handles a failed start: waiting messages are refused. If the guest caused the failure, later ones wait for a
    /// while.
    pub(super) fn on_failed_start(&mut self, entity: &Entity, outcome: &Outcome) {
        let Outcome::NotRun { retry_after: None, code, message, .. } = outcome else {
            return self.give_up(entity, outcome);
        };
        self.on_guest_failure(entity, code, message);
        if self.supervision.is_stopped(entity) {
            return self.give_up(entity, outcome);
        }
        let pause = StartBackoff::after_failure(
            self.last_backoff(entity),
            self.context.mono(),
            self.context.settings.start_backoff,
            &format!("{code}: {message}"),
        );
        self.pause(entity, outcome, pause);
    }

    fn last_backoff(&self, entity: &Entity) -> Option<StartBackoff> {
        self.residents.get(entity).and_then(|state| state.start_backoff.clone())
    }

    fn pause(&mut self, entity: &Entity, outcome: &Outcome, pause: StartBackoff) {
        // A remembered entity is started again when the pause ends.
        if let Some(state) = self.residents.get_mut(entity)
            && (state.head.remembered | std::mem::take(&mut state.must_start))
        {
            self.start_again_at(entity, pause.until.max(self.context.mono() + 1));
        }
        self.give_up(entity, outcome);
        let state = self.residents.get_or_create(&self.context, entity);
        state.start_backoff = Some(pause);
        self.advance(entity);
    }

    /// Refuses a message whose deadline passes before the entity is started again: to report only the missed deadline
    /// would blame the sender.
    pub(super) fn refusal_during_pause(&self, message: &Message) -> Option<Outcome> {
        let state = self.residents.get(&message.target)?;
        let pause = state.start_backoff.as_ref().filter(|pause| !pause.retrying)?;
        if state.stage != Stage::Unloaded || message.deadline.is_none_or(|at| at > pause.until) {
            return None;
        }
        let left = pause.until.saturating_sub(self.context.mono());
        let text = format!(
            "{} fails to start and is retried in {left} ms; the last attempt failed with {}",
            message.target, pause.why
        );
        let retry_after = u32::try_from(left).unwrap_or(u32::MAX);
        Some(Outcome::not_run_retryable(codes::ENTITY_BACKOFF, text, retry_after))
    }

    /// Ends the pauses after failures of a type's entities, for messages and for timers: the new revision may run.
    pub(super) fn end_pauses(&mut self, entity_type: &str) {
        let mut paused = self.wakes.end_pauses(&self.context, |it| *it.entity_type == *entity_type);
        let failed = |state: &ResidentEntity| {
            state.start_backoff.as_ref().is_some_and(|it| it.failures > 0 && !it.retrying)
        };
        for (entity, state) in self.residents.iter_mut() {
            if *entity.entity_type == *entity_type && failed(state) {
                state.start_backoff = None;
                paused.push(entity.clone());
            }
        }
        for entity in paused {
            self.advance(&entity);
        }
    }
}
