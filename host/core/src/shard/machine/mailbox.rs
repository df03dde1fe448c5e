//! Messages: how they join their copies (R18), and are admitted, refused and finished.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{
    Entity, Machine, MessageId, Mutation, Outcome, codes, deadline_outcome, final_outcome,
    id_reused,
};
use crate::message::Message;
use crate::shard::entity::{PendingMessage, ResidentEntity, Stage};
use crate::shard::lanes::LaneDecision;
use crate::shard::{Action, SlotPurpose};

impl Machine {
    pub(super) fn on_message(&mut self, message: Arc<Message>) {
        let token = message.reply_token;
        if let Some(outcome) = self.admission_refusal(&message) {
            return self.context.reply(token, outcome);
        }
        if self.take_note(&message) || self.take_channel_read(&message) {
            return;
        }
        if let Some(outcome) = self.cycle_refusal(&message) {
            return self.context.reply(token, outcome);
        }
        let entity = message.target.clone();
        let id = message.id;
        let join = !self.context.has_mutation(Mutation::CopiesDontJoin)
            && !self.context.has_mutation(Mutation::IgnoreLanes);
        let compare = !self.context.has_mutation(Mutation::IgnoreDigest);
        let ordered = !self.context.has_mutation(Mutation::IgnoreOrder);
        let copies = self.context.settings.max_copies;
        if let Some(outcome) = self.refusal_during_pause(&message) {
            return self.context.reply(token, outcome);
        }
        let state = self.residents.get_or_create(&self.context, &entity);
        if let Some(entry) = state.entries.get_mut(&id) {
            if join {
                let outcome = if entry.message.digest != message.digest && compare {
                    id_reused(&message)
                } else if entry.reply_tokens.len() >= copies {
                    Outcome::not_run_retryable(
                        codes::TOO_MANY_COPIES,
                        "too many copies of this message are waiting (`max-copies`)",
                        100,
                    )
                } else {
                    entry.reply_tokens.push(token);
                    let latest = entry.deadline.zip(message.deadline).map(|(a, b)| a.max(b));
                    // The deadline never becomes earlier, so the entity's timer is early enough.
                    entry.deadline = latest;
                    state.mailbox.set_deadline(&id, latest);
                    return self.probe_for(&message);
                };
                return self.context.reply(token, outcome);
            }
            // The mutation: answer from memory, ahead of the commit.
            if let LaneDecision::Replay(recorded) = state.lanes.check(&message, false, false, None)
            {
                return self.context.reply(token, final_outcome(recorded));
            }
            return self
                .context
                .reply(token, Outcome::not_run_retryable(codes::OVERLOADED, "mutation", 1));
        }
        let mailbox = self.types.of(&entity).map_or(0, |settings| settings.mailbox_capacity);
        if state.queued_messages() >= mailbox {
            // A parked message gives way to one that can run, which may be the message that it waits for.
            let waits =
                matches!(state.lanes.check(&message, compare, ordered, None), LaneDecision::Wait);
            let gives_way = state.mailbox.last_parked().filter(|_| !waits);
            let outcome = Outcome::not_run_retryable(
                codes::MAILBOX_FULL,
                format!(
                    "the mailbox of {entity} is full: it holds {mailbox} messages (`limits.mailbox`)"
                ),
                50,
            );
            match gives_way {
                Some(parked) => self.finish(&entity, &parked, outcome, false),
                None => {
                    self.context.reply(token, outcome);
                    return self.advance(&entity);
                }
            }
        }
        let state = self.residents.get_or_create(&self.context, &entity);
        state.last_used = self.context.mono();
        let deadline = message.deadline;
        let ask = message.asked_by.is_some().then(|| message.clone());
        let is_reentrant = self.is_reentrant(&message);
        let state = self.residents.get_or_create(&self.context, &entity);
        let entry = PendingMessage { message, reply_tokens: vec![token], deadline };
        state.entries.insert(id, entry);
        state.mailbox.push_back(id, deadline);
        if is_reentrant {
            state.mailbox.set_reentrant(&id);
        }
        if matches!(state.stage, Stage::AwaitingSlot(_))
            && std::mem::replace(&mut state.slot_purpose, SlotPurpose::Message)
                != SlotPurpose::Message
        {
            state.stage = Stage::AwaitingSlot(self.context.mono());
            let (entity, generation) = (entity.clone(), state.generation);
            let purpose = SlotPurpose::Message;
            self.context.push(Action::RequestSlot { entity, generation, purpose });
        }
        self.advance(&entity);
        if let Some(ask) = ask {
            self.probe_for(&ask);
        }
    }

    fn admission_refusal(&self, message: &Message) -> Option<Outcome> {
        if let Some(outcome) = self.claim.refusal() {
            return Some(outcome);
        }
        if self.types.of(&message.target).is_none() {
            let text = format!("no type `{}` is deployed", message.target.entity_type);
            return Some(Outcome::not_run(codes::UNKNOWN_TYPE, text));
        }
        if let Some(outcome) = self.created_in_future(message) {
            return Some(outcome);
        }
        if message.deadline.is_some_and(|at| at <= self.context.mono())
            && !self.context.has_mutation(Mutation::IgnoreDeadline)
        {
            return Some(deadline_outcome());
        }
        None
    }

    /// Refuses a message whose creation time is too far ahead: it would raise the watermark for all sessions (R17).
    fn created_in_future(&self, message: &Message) -> Option<Outcome> {
        let ahead = message.created_ms.saturating_sub(self.context.now.cluster_time);
        let beyond =
            ahead.checked_sub(self.context.settings.max_clock_skew).filter(|beyond| *beyond > 0)?;
        let text = format!(
            "the message was created {ahead} ms ahead of the cluster's time; `max-clock-skew` allows {}",
            self.context.settings.max_clock_skew
        );
        let wait = u32::try_from(beyond).unwrap_or(u32::MAX).min(1_000);
        Some(
            Outcome::not_run_retryable(codes::CREATED_IN_FUTURE, text, wait)
                .with_suggested_created_ms(self.context.now.cluster_time),
        )
    }

    /// Returns a running message to the front of the mailbox.
    pub(super) fn put_back(&mut self, entity: &Entity, id: MessageId) {
        let Some(state) = self.residents.get(entity) else { return };
        let entry = state.entries.get(&id);
        let deadline = entry.and_then(|entry| entry.deadline);
        let is_reentrant = entry.is_some_and(|entry| self.is_reentrant(&entry.message));
        let Some(state) = self.residents.get_mut(entity) else { return };
        state.mailbox.push_front(id, deadline);
        if is_reentrant {
            state.mailbox.set_reentrant(&id);
        }
    }

    /// Ends a pending message. If `poison` is set, its successors in the lane no longer wait for it.
    pub(super) fn finish(
        &mut self,
        entity: &Entity,
        id: &MessageId,
        outcome: Outcome,
        poison: bool,
    ) {
        let bound = self.context.settings.max_lanes;
        let Some(state) = self.residents.get_mut(entity) else { return };
        let Some(entry) = state.entries.remove(id) else { return };
        state.mailbox.remove(id);
        if poison {
            state.lanes.record_refused(&entry.message, bound);
            state.mailbox.unpark(id);
        }
        if let Some((last, others)) = entry.reply_tokens.split_last() {
            others.iter().for_each(|token| self.context.reply(*token, outcome.clone()));
            self.context.reply(*last, outcome);
        }
    }

    pub(super) fn finish_expired(&mut self, entity: &Entity, id: &MessageId) {
        self.finish(entity, id, deadline_outcome(), true);
    }

    /// Ends all messages of an entity that have not run, and removes the entity from memory if nothing needs it there.
    pub(super) fn give_up(&mut self, entity: &Entity, outcome: &Outcome) {
        self.postpone_timers(entity);
        // A message may have begun to start a remembered entity. Recovery has left that to it, and takes over again.
        if let Some(state) = self.residents.get_mut(entity)
            && matches!(state.stage, Stage::Migrating(..) | Stage::Starting(_))
        {
            state.must_start |= state.is_marked;
        }
        self.drop_instance(entity);
        let Some(state) = self.residents.get_mut(entity) else { return };
        let outstanding: BTreeSet<MessageId> = state
            .gate
            .iter()
            .flat_map(|gated| gated.message.iter().chain(gated.queries.iter().map(|(id, ..)| id)))
            .copied()
            .collect();
        state.mailbox.clear();
        state.start_backoff = None;
        let must_start = std::mem::take(&mut state.must_start);
        let ended: Vec<_> =
            state.entries.keys().filter(|id| !outstanding.contains(id)).copied().collect();
        for id in ended {
            self.finish(entity, &id, outcome.clone(), false);
        }
        self.refuse_channel_reads(entity, outcome);
        if must_start {
            self.retry_start(entity);
        }
        // Tells do not keep the entity in memory: if it has any to send, its wake-up brings it back.
        let spent = |state: &ResidentEntity| state.is_spent() && !self.timers_need(entity, state);
        if self.residents.get(entity).is_some_and(spent) {
            self.drop_entity(entity);
        }
    }
}
