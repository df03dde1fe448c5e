//! Second instances: queries run on them while a turn of the first instance waits for an ask or a call (R15, R20).
//!
//! A second instance is started when a query has arrived, the waiting turn's predecessors are durable, and a slot is
//! free. It reads its state from the store, so it sees what was committed before the waiting turn. It ends with that
//! turn, before the turn commits: a query that it still runs then goes back to the mailbox and runs on the first
//! instance. So it never reads a part of one version and a part of the next one.

use super::{Action, Entity, Machine, MessageId, Mutation, Outcome, TurnId, codes};
use crate::message::{Message, MessageKind};
use crate::shard::asks::Asks;
use crate::shard::entity::{ResidentEntity, Stage};
use crate::shard::mailbox::Mailbox;
use crate::shard::second_instance::{SecondInstance, SecondStage};
use crate::shard::{
    ActivationOutcome, OperatorCommand, SlotPurpose, StartReason, TurnOutput, TurnResult,
};

impl Machine {
    /// Whether a second instance may run the message.
    pub(super) fn is_reentrant(&self, message: &Message) -> bool {
        message.kind == MessageKind::Query
            && self.types.of(&message.target).is_some_and(|settings| settings.reentrant_queries)
            && OperatorCommand::of_method(&message.method).is_none()
    }

    /// Whether a second instance runs the entity's queries while its turn waits. It must run the same revision as the
    /// first one.
    fn has_reentrant_type(&self, entity: &Entity, state: &ResidentEntity) -> bool {
        self.types
            .of(entity)
            .is_some_and(|it| it.reentrant_queries && it.revision == state.revision)
    }

    /// The asks for which the message would wait at its target: those of the second instance, if that would run it.
    pub(super) fn asks_ahead_of<'a>(
        &self,
        state: &'a ResidentEntity,
        message: &Message,
    ) -> Option<&'a Asks> {
        if !self.is_reentrant(message) || !self.has_reentrant_type(&message.target, state) {
            return Some(&state.asks);
        }
        state.second.as_ref().map(|second| &second.asks)
    }

    /// The generation of the instance for whose asks the message waits.
    pub(super) fn generation_ahead_of(
        &self,
        state: &ResidentEntity,
        message: &Message,
    ) -> Option<u64> {
        if !self.is_reentrant(message) || !self.has_reentrant_type(&message.target, state) {
            return Some(state.generation);
        }
        state.second.as_ref().map(|second| second.generation)
    }

    /// Whether the entity's turn waits, and queries may run beside it now.
    fn may_run_beside(&self, entity: &Entity, state: &ResidentEntity) -> bool {
        let waits = !state.asks.is_empty() || !state.calls.is_empty();
        matches!(state.stage, Stage::Running(..) | Stage::Firing(..))
            && waits
            && self.claim.is_serving()
            && self.has_reentrant_type(entity, state)
    }

    /// Takes every step of the second instance that is possible now.
    pub(super) fn serve_beside(&mut self, entity: &Entity) {
        loop {
            let Some(state) = self.residents.get(entity) else { return };
            let has_query = state.mailbox.front_query().is_some();
            let stage = match &state.second {
                None if !has_query => return,
                None => None,
                Some(second) => Some(second.stage.clone()),
            };
            let may_run = has_query && self.may_run_beside(entity, state);
            if may_run && !self.lease.may_reply(&self.context) {
                return self.schedule.stall(entity);
            }
            match stage {
                // The state of a gated turn is not in the store yet.
                None if may_run && state.gate.is_empty() => {
                    if self.next_of(entity, Mailbox::front_query).is_some() {
                        self.request_second(entity);
                    }
                }
                Some(SecondStage::Failed(outcome)) if may_run => {
                    if let Some(id) = self.next_of(entity, Mailbox::front_query) {
                        self.finish(entity, &id, outcome, false);
                    }
                }
                Some(SecondStage::Idle) if may_run => {
                    if let Some(id) = self.next_of(entity, Mailbox::front_query) {
                        return self.run_beside(entity, id);
                    }
                }
                Some(SecondStage::Idle) => {
                    return self.context.push(Action::MarkIdle { entity: entity.clone() });
                }
                _ => return,
            }
        }
    }

    fn request_second(&mut self, entity: &Entity) {
        let generation = self.residents.next_generation();
        let now = self.context.mono();
        if let Some(state) = self.residents.get_mut(entity) {
            state.second = Some(Box::new(SecondInstance::new(generation, now)));
            let (entity, purpose) = (entity.clone(), SlotPurpose::Message);
            self.context.push(Action::RequestSlot { entity, generation, purpose });
        }
    }

    fn run_beside(&mut self, entity: &Entity, id: MessageId) {
        let turn = self.claim.next_turn();
        let Some(state) = self.residents.get_mut(entity) else { return };
        let (Some(second), Some(entry)) = (&mut state.second, state.entries.get(&id)) else {
            return;
        };
        let message = entry.message.clone();
        second.stage = SecondStage::Running(turn, id);
        state.mailbox.remove(&id);
        let generation = second.generation;
        let (version, records) = (state.head.version, state.turn_records());
        self.context.push(Action::Run { generation, turn, version, message, records });
    }

    /// The second instance with this generation, if there is one.
    fn second_mut(&mut self, entity: &Entity, generation: u64) -> Option<&mut SecondInstance> {
        let second = self.residents.get_mut(entity)?.second.as_deref_mut()?;
        (second.generation == generation).then_some(second)
    }

    /// Handles a slot for a second instance. Returns whether it was for one.
    pub(super) fn on_second_slot(&mut self, entity: &Entity, generation: u64) -> bool {
        let Some(second) = self.second_mut(entity, generation) else { return false };
        if !matches!(second.stage, SecondStage::AwaitingSlot(_)) {
            return true;
        }
        second.stage = SecondStage::Starting;
        let wanted = |state: &&ResidentEntity| {
            state.mailbox.front_query().is_some() && self.may_run_beside(entity, state)
        };
        let Some(state) = self.residents.get(entity).filter(wanted) else {
            self.end_second(entity);
            self.advance(entity);
            return true;
        };
        let (records, reason) = (state.turn_records(), StartReason::BesideTurn);
        let revision = state.revision;
        let entity = entity.clone();
        self.context.push(Action::Activate { entity, generation, revision, reason, records });
        true
    }

    /// Handles the start of a second instance. Returns the result if it is another instance's.
    pub(super) fn on_second_activated(
        &mut self,
        entity: &Entity,
        generation: u64,
        result: ActivationOutcome,
    ) -> Option<ActivationOutcome> {
        let Some(second) = self.second_mut(entity, generation) else { return Some(result) };
        if second.stage != SecondStage::Starting {
            return None;
        }
        let (code, message, retry_after) = match result {
            ActivationOutcome::Started(output) if output.changes_nothing() => match output.result {
                TurnResult::Replied(_) => {
                    second.stage = SecondStage::Idle;
                    self.advance(entity);
                    return None;
                }
                TurnResult::Failed { code, message, retry_after } => (code, message, retry_after),
                TurnResult::Refused { code, message, retry_after } => {
                    (code, message, Some(retry_after))
                }
            },
            // The host refuses this.
            ActivationOutcome::Started(_) => {
                let text = "the start of a second instance changed something";
                (codes::WRITE_IN_QUERY.into(), text.into(), None)
            }
            ActivationOutcome::Failed { code, message, retry_after } => {
                (code, message, retry_after)
            }
        };
        let message = format!("a second instance for queries did not start: {message}");
        let (owner_hint, suggested_created_ms) = (None, None);
        let outcome =
            Outcome::NotRun { code, message, retry_after, owner_hint, suggested_created_ms };
        self.end_second(entity);
        if retry_after.is_none() {
            if let Some(state) = self.residents.get_mut(entity) {
                let mut failed = SecondInstance::new(generation, 0);
                failed.stage = SecondStage::Failed(outcome);
                state.second = Some(Box::new(failed));
            }
        } else {
            self.refuse_queries(entity, &outcome);
        }
        self.advance(entity);
        None
    }

    /// Refuses the queries that wait for a second instance.
    pub(super) fn refuse_queries(&mut self, entity: &Entity, outcome: &Outcome) {
        while let Some(id) = self.next_of(entity, Mailbox::front_query) {
            self.finish(entity, &id, outcome.clone(), false);
        }
    }

    /// Handles the end of a second instance's query. Returns the result if it is another instance's.
    pub(super) fn on_second_done(
        &mut self,
        entity: &Entity,
        generation: u64,
        turn: TurnId,
        output: TurnOutput,
    ) -> Option<TurnOutput> {
        let Some(second) = self.second_mut(entity, generation) else { return Some(output) };
        let SecondStage::Running(running, id) = second.stage else { return None };
        if running != turn {
            return None;
        }
        second.stage = SecondStage::Idle;
        second.asks.clear();
        match output.result {
            TurnResult::Replied(answer) => self.answer_query(entity, &id, answer),
            TurnResult::Refused { code, message, retry_after } => {
                let (owner_hint, suggested_created_ms) = (None, None);
                let retry_after = Some(retry_after);
                let outcome = Outcome::NotRun {
                    code,
                    message,
                    retry_after,
                    owner_hint,
                    suggested_created_ms,
                };
                self.finish(entity, &id, outcome, false);
            }
            TurnResult::Failed { code, message, retry_after } => {
                if retry_after.is_none() {
                    self.on_guest_failure(entity, &code, &message);
                }
                let (owner_hint, suggested_created_ms) = (None, None);
                let outcome = Outcome::NotRun {
                    code,
                    message,
                    retry_after,
                    owner_hint,
                    suggested_created_ms,
                };
                self.finish(entity, &id, outcome, retry_after.is_none());
                self.end_second(entity);
            }
        }
        self.advance(entity);
        None
    }

    /// Handles a query of a second instance whose caller is gone before it ran. Returns its message's id.
    pub(super) fn take_abandoned(
        &mut self,
        entity: &Entity,
        generation: u64,
        turn: TurnId,
    ) -> Option<MessageId> {
        let second = self.second_mut(entity, generation)?;
        match second.stage {
            SecondStage::Running(running, id) if running == turn => {
                second.stage = SecondStage::Idle;
                Some(id)
            }
            _ => None,
        }
    }

    /// Drops the second instance if it is idle. Returns whether it was.
    pub(super) fn evict_second(&mut self, entity: &Entity) -> bool {
        let is_idle = self.residents.get(entity).is_some_and(|state| {
            state.second.as_ref().is_some_and(|second| second.stage == SecondStage::Idle)
        });
        if is_idle {
            self.end_second(entity);
            self.advance(entity);
        }
        is_idle
    }

    /// Ends the second instance because the turn beside it has ended.
    pub(super) fn end_second_with_turn(&mut self, entity: &Entity) {
        if !self.context.has_mutation(Mutation::KeepSecondInstance) {
            self.end_second(entity);
        }
    }

    /// Drops the second instance, if there is one. The query that it runs returns to the front of the mailbox.
    pub(super) fn end_second(&mut self, entity: &Entity) {
        let Some(state) = self.residents.get_mut(entity) else { return };
        let Some(second) = state.second.take() else { return };
        let generation = second.generation;
        if let SecondStage::Running(_, id) = second.stage {
            self.put_back(entity, id);
        }
        if second.has_instance() {
            self.context.push(Action::DropInstance { entity: entity.clone(), generation });
        }
        if second.has_slot() {
            self.context.push(Action::ReleaseSlot { entity: entity.clone(), generation });
        }
    }

    /// When the second instance must be examined next, on the node's clock.
    pub(super) fn second_due(&self, state: &ResidentEntity) -> Option<u64> {
        let second = state.second.as_ref()?;
        let slot = second.slot_due(self.context.settings.instance_slot_timeout);
        slot.into_iter().chain(second.asks.due(self.context.mono())).min()
    }

    /// Whether a query could run beside the waiting turn, but nothing will start it.
    #[cfg(debug_assertions)]
    pub(super) fn overlooks_query(&self, entity: &Entity, state: &ResidentEntity) -> bool {
        let is_ready = match &state.second {
            None => state.gate.is_empty(),
            Some(second) => matches!(second.stage, SecondStage::Idle | SecondStage::Failed(_)),
        };
        is_ready && state.mailbox.front_query().is_some() && self.may_run_beside(entity, state)
    }

    /// Handles a second instance that waits too long for a slot.
    pub(super) fn tick_second(&mut self, entity: &Entity) {
        let timeout = self.context.settings.instance_slot_timeout;
        let due =
            self.residents.get(entity).and_then(|state| state.second.as_ref()?.slot_due(timeout));
        if due.is_some_and(|at| at <= self.context.mono()) {
            self.end_second(entity);
            self.refuse_queries(entity, &no_slot_outcome());
        }
    }
}

/// The refusal of messages whose entity got no slot in time.
pub(super) fn no_slot_outcome() -> Outcome {
    let text = "no instance slot became free within `instance-slot-timeout` (`guests.max-live-instances`, `guests.max-live-memory`, or those of the pool in `guests.pools`)";
    Outcome::not_run_retryable(codes::OVERLOADED, text, 500)
}
