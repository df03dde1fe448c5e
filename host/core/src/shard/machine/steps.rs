//! The steps of an entity: from nothing in memory to a running turn, and back. Lanes decide which message runs next
//! (R17).

use super::{
    Action, Entity, Machine, MessageId, Mutation, Outcome, codes, final_outcome, id_reused,
};
use crate::message::Message;
use crate::shard::entity::{ResidentEntity, Stage, StartBackoff};
use crate::shard::lanes::LaneDecision;
use crate::shard::mailbox::Mailbox;
use crate::shard::{OperatorCommand, SlotPurpose, StopReason, TopicMessage};

impl Machine {
    /// Advances the entities that waited for the shard's claim or the node's lease.
    pub(super) fn advance_stalled(&mut self) {
        for entity in self.schedule.take_stalled() {
            self.advance(&entity);
        }
    }

    /// Takes every step that is possible now, and schedules an examination for when time makes another one possible.
    pub(super) fn advance(&mut self, entity: &Entity) {
        #[cfg(test)]
        {
            self.context.visits += 1;
        }
        self.expire_channels(entity);
        self.take_steps(entity);
        if self.residents.get(entity).is_some_and(ResidentEntity::has_work_beside_turns) {
            self.serve_channels(entity);
            self.send_tells(entity);
            self.drive_asks(entity);
            self.release_calls(entity);
            self.serve_beside(entity);
        }
        self.settle_wake(entity);
        self.settle_recovery(entity);
        self.wake_for(entity);
    }

    fn take_steps(&mut self, entity: &Entity) {
        loop {
            let Some(state) = self.residents.get(entity) else { return };
            if self.is_spent(entity, state) {
                return self.drop_entity(entity);
            }
            match state.stage {
                Stage::AwaitingCommits => {
                    if !state.gate.is_empty()
                        && !self.context.has_mutation(Mutation::LoadDuringCommit)
                    {
                        return;
                    }
                    if let Some(state) = self.residents.get_mut(entity) {
                        state.stage = Stage::Unloaded;
                    }
                }
                Stage::Unloaded => {
                    if self.claim.is_stopping() {
                        // An earlier turn was refused while another one ran. The entity will not be loaded here again.
                        let outcome = self.claim.handing_off_outcome();
                        return self.give_up(entity, &outcome);
                    }
                    let waits_for_timers = self.context.has_mutation(Mutation::ReadTimersFirst)
                        && self.wakes.is_unread();
                    if !self.claim.is_serving()
                        || self.lease.is_paused(&self.context)
                        || waits_for_timers
                    {
                        self.schedule.stall(entity);
                        return;
                    }
                    if let Some(pause) = &state.start_backoff {
                        let waits = state.is_wanted();
                        let pause = pause.clone();
                        let first = self.context.settings.start_backoff;
                        if self.context.mono() < pause.ends_at(waits, first) {
                            self.wakes.leave_place(entity);
                            return;
                        }
                        if let Some(state) = self.residents.get_mut(entity) {
                            state.start_backoff =
                                waits.then_some(StartBackoff { retrying: true, ..pause });
                        }
                        if !waits {
                            continue;
                        }
                    }
                    if !self.needs_load(entity) {
                        // The entity waits for answers to its tells.
                        return;
                    }
                    let generation = self.residents.next_generation();
                    if let Some(state) = self.residents.get_mut(entity) {
                        state.stage = Stage::Loading;
                        state.generation = generation;
                    }
                    self.context.push(Action::Load { entity: entity.clone(), generation });
                    return;
                }
                Stage::Loaded => {
                    if !self.claim.is_serving() || self.lease.is_paused(&self.context) {
                        self.schedule.stall(entity);
                        return;
                    }
                    if state.head.deleted && (self.purge(entity) || self.sweep(entity)) {
                        return;
                    }
                    let Some(state) = self.residents.get(entity) else { return };
                    if self.is_expired(entity, state) {
                        if self.is_gate_full(state) {
                            return;
                        }
                        self.expire(entity);
                        continue;
                    }
                    // A delayed tell needs no instance, so it does not wait for timers that do.
                    if let Some(firing) = self.due_tell(entity, state) {
                        if self.is_gate_full(state) {
                            return;
                        }
                        self.fire(entity, firing);
                        continue;
                    }
                    if self.next_to_run(entity).is_none() {
                        match self.residents.get(entity) {
                            Some(state) if state.stage != Stage::Loaded => continue,
                            Some(state) if self.is_spent(entity, state) => continue,
                            // The last message has been answered.
                            Some(state) if self.may_sweep(entity, state) => continue,
                            Some(state) if self.due_firing(entity, state).is_some() => {}
                            Some(state) if state.must_start => {}
                            _ => return,
                        }
                    }
                    let fires = self
                        .residents
                        .get(entity)
                        .is_some_and(|state| self.due_firing(entity, state).is_some());
                    if let Some(state) = self.residents.get_mut(entity) {
                        state.stage = Stage::AwaitingSlot(self.context.mono());
                        let purpose = match (state.mailbox.has_next(), fires) {
                            (true, _) => SlotPurpose::Message,
                            (false, true) => SlotPurpose::Timer,
                            (false, false) => SlotPurpose::Recovery,
                        };
                        state.slot_purpose = purpose;
                        let (entity, generation) = (entity.clone(), state.generation);
                        self.context.push(Action::RequestSlot { entity, generation, purpose });
                    }
                    return;
                }
                Stage::Idle => {
                    if self.lease.is_paused(&self.context) && !self.claim.is_stopping() {
                        // The resumption examines every entity.
                        return;
                    }
                    if let Some(reason) = state.pending_stop {
                        self.begin_stop(entity, reason);
                        continue;
                    }
                    let full = self.is_gate_full(state);
                    let firing = self.due_firing(entity, state);
                    let expired = self.is_expired(entity, state);
                    let asked =
                        state.mailbox.has_next() || state.passivates || firing.is_some() || expired;
                    if asked && (!self.claim.is_serving() || !self.lease.may_reply(&self.context)) {
                        self.schedule.stall(entity);
                        return;
                    }
                    if full {
                        return;
                    }
                    if expired {
                        self.expire(entity);
                        continue;
                    }
                    let next = self.next_to_run(entity);
                    if self.residents.get(entity).is_none_or(|it| it.stage != Stage::Idle) {
                        continue;
                    }
                    // Firings and messages take turns.
                    let may_fire = |state: &ResidentEntity| next.is_none() || !state.fired_last;
                    if let Some(firing) = firing
                        && self.residents.get(entity).is_some_and(may_fire)
                    {
                        self.fire(entity, firing);
                        if self.residents.get(entity).is_some_and(|it| it.stage == Stage::Idle) {
                            continue;
                        }
                        return;
                    }
                    let Some(id) = next else {
                        if let Some(state) = self.residents.get_mut(entity)
                            && std::mem::take(&mut state.passivates)
                        {
                            state.pending_stop = Some(StopReason::Passivated);
                            continue;
                        }
                        self.context.push(Action::MarkIdle { entity: entity.clone() });
                        return;
                    };
                    self.run(entity, id);
                    return;
                }
                Stage::Loading
                | Stage::AwaitingSlot(_)
                | Stage::Migrating(..)
                | Stage::Starting(_)
                | Stage::Running(..)
                | Stage::Firing(..)
                | Stage::Stopping(_)
                | Stage::Purging => return,
            }
        }
    }

    /// Answers or parks messages that need not run now, and returns the first one that can run, which remains
    /// in the mailbox.
    fn next_to_run(&mut self, entity: &Entity) -> Option<MessageId> {
        self.next_of(entity, Mailbox::front)
    }

    /// Like [`Machine::next_to_run`], for the messages of which `front` returns the first one.
    pub(super) fn next_of(
        &mut self,
        entity: &Entity,
        front: fn(&Mailbox) -> Option<MessageId>,
    ) -> Option<MessageId> {
        loop {
            let state = self.residents.get_mut(entity)?;
            let id = front(&state.mailbox)?;
            let entry = state.entries.get(&id)?;
            let (message, expired) = (entry.message.clone(), entry.expired(self.context.mono()));
            state.lanes.drop_settled_replies(&id.session, message.settled);
            if message.is_keyed {
                state.lanes.expire_keys(self.context.now.cluster_time, &self.context.settings);
            }
            let verdict = if self.context.has_mutation(Mutation::IgnoreLanes) {
                LaneDecision::Run
            } else {
                let compare = !self.context.has_mutation(Mutation::IgnoreDigest);
                let ordered = !self.context.has_mutation(Mutation::IgnoreOrder);
                state.lanes.check(&message, compare, ordered, Some(&self.context.settings))
            };
            let outcome = match verdict {
                LaneDecision::Replay(recorded) => final_outcome(recorded),
                LaneDecision::IdReused => id_reused(&message),
                LaneDecision::Superseded => Outcome::not_run(
                    codes::SUPERSEDED,
                    "a later message of its session has run, and no reply to this one is recorded",
                ),
                // Its sender takes this answer for "it will never run", which a crash must not change.
                LaneDecision::SessionForgotten
                    if message.sender.is_some() && !state.has_durable_lanes() =>
                {
                    if !expired {
                        return None;
                    }
                    self.finish_expired(entity, &id);
                    continue;
                }
                LaneDecision::SessionForgotten => {
                    let lanes = &self.residents.get(entity)?.lanes;
                    let watermark = match message.sender {
                        Some(_) => lanes.tell_watermark(),
                        None => lanes.watermark(),
                    };
                    let text = format!(
                        "its session has expired, and it was created at {}, not after {watermark}: it may have run before",
                        message.created_ms
                    );
                    let stamp = self.context.now.cluster_time.max(watermark.saturating_add(1));
                    Outcome::not_run(codes::TOO_OLD, text).with_suggested_created_ms(stamp)
                }
                _ if expired && !self.context.has_mutation(Mutation::IgnoreDeadline) => {
                    self.finish_expired(entity, &id);
                    continue;
                }
                LaneDecision::OutOfOrder => Outcome::not_run_retryable(
                    codes::OUT_OF_ORDER,
                    "the session's previous message was refused",
                    0,
                ),
                LaneDecision::Wait => {
                    let until = self.context.mono() + self.context.settings.order_timeout;
                    let state = self.residents.get_mut(entity)?;
                    state.mailbox.park(id, message.after, until);
                    continue;
                }
                LaneDecision::TooManySenders => {
                    self.ask_sender(entity);
                    Outcome::not_run_retryable(
                        codes::TOO_MANY_SENDERS,
                        "the entity already remembers the maximum number of sending entities (`max-lanes`)",
                        100,
                    )
                }
                LaneDecision::TooManyKeys => Outcome::not_run(
                    codes::TOO_MANY_IDEMPOTENCY_KEYS,
                    "the entity keeps too many idempotency keys or replies to them for this principal to use a new one (`entities.idempotency-keys`, `entities.idempotency-bytes`)",
                ),
                LaneDecision::Run => {
                    if message.sender.is_some() && self.answer_sender(entity, &message) {
                        continue;
                    }
                    if let Some(outcome) = self.creation_refusal(entity, &message) {
                        self.finish(entity, &id, outcome, false);
                        continue;
                    }
                    if let Some(topic) = TopicMessage::of_method(&message.method) {
                        let is_full =
                            self.residents.get(entity).is_none_or(|state| self.is_gate_full(state));
                        if is_full || !self.run_topic_message(entity, topic, &message) {
                            return None;
                        }
                        continue;
                    }
                    let Some(command) = OperatorCommand::of_method(&message.method) else {
                        if let Some(outcome) = self.stopped_outcome(entity) {
                            self.finish(entity, &id, outcome, true);
                            continue;
                        }
                        return Some(id);
                    };
                    if !self.residents.get(entity)?.gate.is_empty() {
                        return None;
                    }
                    if self.run_operator_command(entity, command, &message) {
                        // After a deletion the entity is loaded again.
                        return None;
                    }
                    continue;
                }
            };
            self.finish(entity, &id, outcome, false);
        }
    }

    /// Whether the maximum number of the entity's turns are waiting for their commits.
    pub(super) fn is_gate_full(&self, state: &ResidentEntity) -> bool {
        state.gate.len() >= self.context.settings.max_gated_turns
    }

    /// Answers the message if it asks for the entity's first tell, which needs no instance. Returns whether it did.
    fn answer_sender(&mut self, entity: &Entity, message: &Message) -> bool {
        let answer = self.residents.get(entity).and_then(|state| self.first_tell(state, message));
        let Some(answer) = answer else { return false };
        let Some(state) = self.residents.get_mut(entity) else { return false };
        state.mailbox.remove(&message.id);
        let version = state.head.version;
        match state.gate.back_mut() {
            Some(turn) => turn.queries.push((message.id, answer, version)),
            None => self.finish_query(entity, &message.id, answer, version),
        }
        true
    }

    fn run(&mut self, entity: &Entity, id: MessageId) {
        let (turn, floor) = (self.claim.next_turn(), self.floor);
        let Some(state) = self.residents.get_mut(entity) else { return };
        floor.lift(state);
        let Some(entry) = state.entries.get(&id) else { return };
        let message = entry.message.clone();
        state.mailbox.remove(&id);
        state.stage = Stage::Running(turn, id);
        state.fired_last = false;
        let action = Action::Run {
            generation: state.generation,
            turn,
            version: state.head.version,
            message,
            records: state.turn_records(),
        };
        self.context.push(action);
    }

    /// Whether an entity without an instance must be loaded for a reason that does not depend on time.
    pub(super) fn lacks_load(state: &ResidentEntity) -> bool {
        state.is_wanted()
            || state.outbox.must_delete()
            || state.lanes.has_unsaved_drop()
            || state.is_purged
    }

    /// Whether an entity without an instance must be loaded for any reason.
    fn needs_load(&self, entity: &Entity) -> bool {
        let Some(state) = self.residents.get(entity) else { return false };
        Self::lacks_load(state) || self.is_due(entity, state)
    }

    /// Whether nothing of the entity needs to stay in memory.
    pub(super) fn is_spent(&self, entity: &Entity, state: &ResidentEntity) -> bool {
        state.is_spent()
            && !self.timers_need(entity, state)
            && !self.tells_need(entity, state)
            && !self.purge_needs(entity, state)
    }
}
