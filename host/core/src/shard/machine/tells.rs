//! Tells: how the shard's entities send the tells in their outboxes, and how they handle the answers (R19).
//!
//! To its targets, a sending entity is a session, and a tell's number is its sequence. At most one tell is in flight to
//! each target. It is sent again under the same number until an answer shows what became of it:
//!
//! - it ran: its entry is deleted, in the entity's next commit or in a separate one;
//! - the target answered with an application error: the tell becomes a dead letter;
//! - the target failed, or refused the tell for a reason other than being busy: the tell is resent after a pause that
//!   doubles, and becomes a dead letter after the last attempt;
//! - anything else shows nothing: the tell is resent, and no attempt is counted.
//!
//! A target keeps the lane of a sending entity until the sender confirms that it has nothing more to send there up to
//! the lane's last sequence. The target asks when a lane is old or when there are many.

use bytes::Bytes;

use super::gate::Effects;
use super::timers::shortened;
use super::{Action, Entity, GuestReply, Machine, Mutation, Outcome, Phase, codes};
use crate::message::Message;
use crate::records::RecordWrite;
use crate::shard::entity::{ResidentEntity, Stage};
use crate::shard::{DeadLetterAction, decode_dead_letters, encode_dead_letters};

/// The method of the query with which a target asks a sending entity for its first tell. No guest can declare it.
pub const FIRST_TELL: &str = "\u{1}first-tell";

/// The first pause before an unanswered tell is sent again, in milliseconds, unless a refusal asks for a longer one.
const RESEND_MS: u64 = 20;

impl Machine {
    /// Whether the entity's outbox or its senders' lanes need it in memory now.
    pub(super) fn tells_need(&self, entity: &Entity, state: &ResidentEntity) -> bool {
        if !state.is_read || !matches!(self.claim.phase(), Phase::Claiming | Phase::Serving) {
            return false;
        }
        let (mono, utc) = (self.context.mono(), self.context.now.utc);
        state.lanes.needs_memory()
            || state.outbox.has_in_flight()
            || (state.outbox.has_done() || !state.outbox.ready(mono, utc, 1).is_empty())
                && self.wakes.postponed_until(&self.context, entity).is_none()
    }

    /// When the entity can send its next tell or commit its outbox, on the node's clock.
    pub(super) fn tells_due(&self, entity: &Entity, state: &ResidentEntity) -> Option<u64> {
        if !state.is_read || !self.claim.is_serving() || self.lease.is_paused(&self.context) {
            return None;
        }
        let mono = self.context.mono();
        let wait = state.outbox.wait(mono, self.context.now.utc);
        let send_at = wait.map(|wait| mono.saturating_add(wait));
        match self.wakes.postponed_until(&self.context, entity) {
            None => send_at.filter(|at| *at > mono),
            Some(until) if state.outbox.has_done() => Some(until),
            Some(until) => send_at.map(|at| at.max(until)),
        }
    }

    /// Sends the tells that can be sent, and commits the deletion of those that are done.
    pub(super) fn send_tells(&mut self, entity: &Entity) {
        let Some(state) = self.residents.get(entity) else { return };
        let has_work = !state.outbox.is_empty() || state.outbox.has_done();
        if !state.is_read || !has_work && !state.lanes.has_unsaved_drop() {
            return;
        }
        if !self.claim.is_serving() || !self.lease.may_reply(&self.context) {
            return self.schedule.stall(entity);
        }
        if self.wakes.postponed_until(&self.context, entity).is_some() {
            // The entity is postponed, for example because the store refused a commit of its outbox.
            return;
        }
        let early = self.context.has_mutation(Mutation::TellBeforeCommit);
        let deletes = self.context.has_mutation(Mutation::DeleteSentTell);
        let can_commit =
            matches!(state.stage, Stage::Loaded | Stage::AwaitingSlot(_) | Stage::Idle);
        let Some(state) = self.residents.get_mut(entity) else { return };
        if early {
            state.outbox.on_durable(u64::MAX);
        }
        let targets = self.context.settings.tell_targets;
        let (mono, utc) = (self.context.mono(), self.context.now.utc);
        for (number, tell) in state.outbox.ready(mono, utc, targets) {
            state.outbox.sent(&tell.target);
            if deletes && can_commit {
                state.outbox.finish(&tell.target, number);
            }
            self.context.push(Action::Tell { sender: entity.clone(), number, tell });
        }
        let must_commit = state.outbox.must_delete() || state.lanes.has_unsaved_drop();
        if can_commit
            && (must_commit && state.gate.is_empty() || deletes && state.outbox.has_done())
        {
            self.commit_outbox(entity, Vec::new());
        }
    }

    /// Commits changes to the outbox without calling the guest.
    fn commit_outbox(&mut self, entity: &Entity, mut records: Vec<RecordWrite>) {
        let turn = self.claim.next_turn();
        let Some(state) = self.residents.get_mut(entity) else { return };
        let version = state.head.version + 1;
        records.extend(state.outbox.apply(Vec::new(), version, self.context.now.cluster_time));
        self.commit(entity, turn, Effects::of_records(records));
    }

    pub(super) fn on_tell_answered(
        &mut self,
        sender: &Entity,
        target: &Entity,
        (number, created_ms): (u64, u64),
        outcome: Outcome,
    ) {
        let Some(state) = self.residents.get_mut(sender) else { return };
        // What a copy with another creation time was told says nothing about those with the present one, unless it has
        // run.
        let is_of_other_copy = !matches!(outcome, Outcome::Final { .. })
            && state.outbox.created_ms(target, number) != Some(created_ms);
        let Some(tell) = state.outbox.answered(target, number) else { return };
        if is_of_other_copy {
            self.resend_later(sender, target, RESEND_MS);
            return self.advance(sender);
        }
        match outcome {
            Outcome::Final { reply: GuestReply::Error { code, message }, .. } => {
                self.give_up_tell(sender, target, number, &format!("{code}: {message}"));
            }
            Outcome::Final { .. } => state.outbox.finish(target, number),
            // A later tell of this entity has run there. It was sent only after this one had been answered, and every
            // answer other than a plain result is stored before the next tell is sent: so this one ran.
            Outcome::NotRun { code, .. } if code == codes::SUPERSEDED.as_str() => {
                state.outbox.finish(target, number);
            }
            // No copy of the tell ran, since the target keeps the lanes of sending entities, and none with the old
            // creation time ever will. The new time is stored first: so a later owner of the sender's shard knows it,
            // and never are there copies with two times that may both run.
            Outcome::NotRun { code, suggested_created_ms: Some(created), .. }
                if code == codes::TOO_OLD.as_str() =>
            {
                if can_commit(state) {
                    let version = state.head.version + 1;
                    let records = state.outbox.restamp(target, number, created, version);
                    self.commit_outbox(sender, records);
                } else {
                    self.load_and_resend(sender, target);
                }
            }
            // The deadline of its message passed before the target could run it.
            Outcome::NotRun { code, .. } if code == codes::DEADLINE_EXCEEDED.as_str() => {
                self.resend_later(sender, target, RESEND_MS);
            }
            Outcome::NotRun { retry_after: None, code, message, .. } => {
                let attempts = tell.attempts.saturating_add(1);
                let why = format!("{code}: {message}");
                if attempts >= self.context.settings.tell_attempts.max(1) {
                    self.give_up_tell(sender, target, number, &why);
                } else {
                    let pause = self.context.settings.tell_pause(attempts);
                    let retry_at = self.context.now.utc.saturating_add(pause);
                    if can_commit(state) {
                        let records = state.outbox.fail(target, number, &shortened(&why), retry_at);
                        self.commit_outbox(sender, records);
                    } else {
                        self.load_and_resend(sender, target);
                    }
                }
            }
            Outcome::NotRun { retry_after: Some(wait), .. } => {
                let least = RESEND_MS.max(u64::from(wait));
                self.resend_later(sender, target, least);
            }
            Outcome::Unknown { .. } => self.resend_later(sender, target, RESEND_MS),
        }
        self.advance(sender);
    }

    fn resend_later(&mut self, sender: &Entity, target: &Entity, least: u64) {
        let (mono, most) = (self.context.mono(), self.context.settings.tell_backoff);
        if let Some(state) = self.residents.get_mut(sender) {
            state.outbox.pause(target, mono, least, most);
        }
    }

    /// Handles an answer that must be committed while the entity cannot commit: loads the entity, and resends the tell
    /// so that the answer arrives again.
    fn load_and_resend(&mut self, sender: &Entity, target: &Entity) {
        self.resend_later(sender, target, RESEND_MS);
        if let Some(state) = self.residents.get_mut(sender) {
            state.must_read = true;
        }
    }

    /// Makes the tell a dead letter.
    fn give_up_tell(&mut self, sender: &Entity, target: &Entity, number: u64, why: &str) {
        let Some(state) = self.residents.get_mut(sender).filter(|state| can_commit(state)) else {
            return self.load_and_resend(sender, target);
        };
        let why = shortened(why);
        let version = state.head.version + 1;
        let records = state.outbox.give_up(target, number, &why, version);
        let (sender, target) = (sender.clone(), target.clone());
        self.commit_outbox(&sender, records);
        self.context.push(Action::TellGaveUp { sender, number, target, why });
    }

    /// Asks a sender whether its lane is still needed, if the lane is old or one of many.
    pub(super) fn ask_sender(&mut self, entity: &Entity) {
        let now = self.context.now.cluster_time;
        let Some(state) = self.residents.get_mut(entity) else { return };
        if let Some(sender) = state.lanes.sender_to_ask(now, &self.context.settings) {
            self.context.push(Action::AskSender { entity: entity.clone(), sender });
        }
    }

    pub(super) fn on_sender_answered(
        &mut self,
        entity: &Entity,
        sender: &Entity,
        first: Option<Option<u64>>,
    ) {
        let now = self.context.now.cluster_time;
        if let Some(state) = self.residents.get_mut(entity) {
            state.lanes.on_sender_answered(sender, first, now, &self.context.settings);
            self.advance(entity);
        }
    }

    /// The answer to a target that asks for this entity's first tell; `None` if the message is not such a query.
    pub(super) fn first_tell(&self, state: &ResidentEntity, asks: &Message) -> Option<GuestReply> {
        let target = asks.sender.as_ref().filter(|_| &*asks.method == FIRST_TELL)?;
        let first = state.outbox.first_to(target).map_or(u64::MAX, |first| first);
        Some(GuestReply::Result(Bytes::copy_from_slice(&first.to_be_bytes())))
    }
}

impl Machine {
    /// Resends or drops dead letters, in a turn that does not call the guest.
    pub(super) fn handle_dead_letters(
        &mut self,
        entity: &Entity,
        action: DeadLetterAction,
        message: &Message,
    ) {
        let numbers = decode_dead_letters(&message.body).unwrap_or_default();
        let now = self.context.now.cluster_time;
        let keeps = self.context.has_mutation(Mutation::ResendOldNumber);
        let Some(state) = self.residents.get_mut(entity) else { return };
        let version = state.head.version + 1;
        let (taken, records) =
            state.outbox.take_dead_letters(action, &numbers, version, now, keeps);
        if taken.is_empty() {
            let text = format!("{entity} has none of these dead letters");
            let outcome = Outcome::not_run(codes::UNKNOWN_DEAD_LETTER, text);
            return self.finish(entity, &message.id, outcome, true);
        }
        let reply = GuestReply::Result(encode_dead_letters(&taken).into());
        self.commit_command(entity, message, Effects { reply, ..Effects::of_records(records) });
    }
}

/// Whether a commit without the guest is possible: head and lanes are in memory.
fn can_commit(state: &ResidentEntity) -> bool {
    state.is_read && state.stage.is_loaded()
}
