//! The steps of an entity: from nothing in memory to a running turn, and back. Lanes decide which message runs next
//! (R17).

use super::{
    Action, Entity, Machine, MessageId, Mutation, Outcome, codes, final_outcome, id_reused_text,
};
use crate::shard::StopReason;
use crate::shard::entity::{Stage, StartBackoff};
use crate::shard::lanes::LaneDecision;

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
        self.take_steps(entity);
        self.wake_for(entity);
    }

    fn take_steps(&mut self, entity: &Entity) {
        loop {
            let Some(state) = self.residents.get(entity) else { return };
            if state.is_spent() {
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
                        // An earlier turn was refused while this one ran: the entity will not be loaded again here.
                        let outcome = self.claim.handing_off_outcome();
                        return self.give_up(entity, &outcome);
                    }
                    if !self.claim.is_serving() || self.lease.is_paused(&self.context) {
                        self.schedule.stall(entity);
                        return;
                    }
                    if let Some(pause) = state.start_backoff {
                        let waits = !state.entries.is_empty();
                        if self.context.mono() < pause.ends_at(waits) {
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
                    if self.next_to_run(entity).is_none() {
                        match self.residents.get(entity) {
                            Some(state) if state.is_spent() => continue,
                            _ => return,
                        }
                    }
                    if let Some(state) = self.residents.get_mut(entity) {
                        state.stage = Stage::AwaitingSlot(self.context.mono());
                        let generation = state.generation;
                        self.context
                            .push(Action::RequestSlot { entity: entity.clone(), generation });
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
                    let full = state.gate.len() >= self.context.settings.max_gated_turns;
                    let asked = state.mailbox.has_next() || state.passivates;
                    if asked && (!self.claim.is_serving() || !self.lease.may_reply(&self.context)) {
                        self.schedule.stall(entity);
                        return;
                    }
                    if full {
                        return;
                    }
                    let Some(id) = self.next_to_run(entity) else {
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
                | Stage::Starting(_)
                | Stage::Running(..)
                | Stage::Stopping(_) => return,
            }
        }
    }

    /// Answers or parks messages that need not run now, and returns the first one that can run. It stays in the
    /// mailbox.
    fn next_to_run(&mut self, entity: &Entity) -> Option<MessageId> {
        loop {
            let state = self.residents.get_mut(entity)?;
            let id = state.mailbox.front()?;
            let message = state.entries.get(&id)?.message.clone();
            let expired =
                state.entries.get(&id).is_some_and(|entry| entry.expired(self.context.mono()));
            state.lanes.drop_settled_replies(&id.session, message.settled);
            let verdict = if self.context.has_mutation(Mutation::IgnoreLanes) {
                LaneDecision::Run
            } else {
                let compare = !self.context.has_mutation(Mutation::IgnoreDigest);
                let ordered = !self.context.has_mutation(Mutation::IgnoreOrder);
                self.residents.get(entity)?.lanes.check(&message, compare, ordered)
            };
            let outcome = match verdict {
                LaneDecision::Replay(recorded) => final_outcome(recorded),
                LaneDecision::IdReused => Outcome::not_run(codes::ID_REUSED, id_reused_text(&id)),
                LaneDecision::Superseded => Outcome::not_run(
                    codes::SUPERSEDED,
                    "a later message of its session has run, and no reply to this one is recorded",
                ),
                LaneDecision::SessionForgotten => {
                    let watermark = self.residents.get(entity)?.lanes.watermark();
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
                LaneDecision::Run => return Some(id),
            };
            self.finish(entity, &id, outcome, false);
        }
    }

    fn run(&mut self, entity: &Entity, id: MessageId) {
        let turn = self.claim.next_turn();
        let Some(state) = self.residents.get_mut(entity) else { return };
        let Some(entry) = state.entries.get(&id) else { return };
        let message = entry.message.clone();
        state.mailbox.remove(&id);
        state.stage = Stage::Running(turn, id);
        let action = Action::Run {
            generation: state.generation,
            turn,
            version: state.head.version,
            message,
        };
        self.context.push(action);
    }
}
