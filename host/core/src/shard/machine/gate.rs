//! The output gate: nothing is answered before it is durable (promise 2, R3).

use std::sync::Arc;

use bytes::Bytes;

use super::claim::ShardClaim;
use super::context::Context;
use super::{
    Action, Entity, GuestReply, Head, Machine, MessageId, Mutation, Outcome, OwnerHint,
    RecordedReply, TurnId, codes,
};
use crate::extensions::Extensions;
use crate::records::{Commit, CommitOutcome, CommitRefusal, RecordKey, RecordWrite};
use crate::shard::entity::GatedTurn;
use crate::shard::timers::{Firing, move_wake_up};
use crate::shard::{TurnOutput, expiry};

/// The shard's unanswered commits. Their turns wait at the gates of their entities.
#[derive(Clone, Debug, Default)]
pub(super) struct Gate {
    /// Number of commits that were sent and have not been answered.
    outstanding: usize,
    /// Commits that wait for the shard to be claimed again.
    unsent: Vec<Commit>,
}

impl Gate {
    /// Whether a sent commit has not been answered.
    pub(super) fn has_outstanding(&self) -> bool {
        self.outstanding > 0
    }

    /// Sends a commit, or keeps it until the next claim is granted.
    fn submit(&mut self, context: &mut Context, claim: &ShardClaim, commit: Commit) {
        if claim.may_commit() {
            self.outstanding += 1;
            context.push(Action::Commit(Box::new(commit)));
        } else {
            self.unsent.push(commit);
        }
    }

    fn on_answer(&mut self) {
        self.outstanding = self.outstanding.saturating_sub(1);
    }

    /// Sends the waiting commits under the granted claim.
    pub(super) fn send_unsent(&mut self, context: &mut Context, claim: &ShardClaim) {
        for mut commit in std::mem::take(&mut self.unsent) {
            commit.claim = claim.current().clone();
            self.outstanding += 1;
            context.push(Action::Commit(Box::new(commit)));
        }
    }

    /// The entities of the waiting commits, in order.
    pub(super) fn entities_with_unsent(&self) -> Vec<Entity> {
        self.unsent.iter().map(|commit| commit.entity.clone()).collect()
    }

    /// Takes the waiting commits of one entity, or of all entities.
    fn take_unsent(&mut self, only: Option<&Entity>) -> Vec<Commit> {
        let is_taken = |commit: &mut Commit| only.is_none_or(|entity| *entity == commit.entity);
        self.unsent.extract_if(.., is_taken).collect()
    }
}

/// The effects of a turn, as its commit writes them.
#[derive(Debug)]
pub(super) struct Effects {
    /// The command that the turn ran, if any.
    pub(super) message: Option<MessageId>,
    pub(super) reply: GuestReply,
    /// Changes to the state.
    pub(super) state: Vec<(bytes::Bytes, Option<bytes::Bytes>)>,
    /// Changes to timers, outbox, dead letters and journal.
    pub(super) records: Vec<RecordWrite>,
    pub(super) state_bytes: Option<u64>,
    /// The firing that the turn ran, or whose failure it records, if any.
    pub(super) firing: Option<Arc<Firing>>,
    /// Whether the head gets the revision and the schema that the entity runs. Otherwise it keeps those of the last turn
    /// of its guest.
    pub(super) sets_revision: bool,
}

impl Effects {
    /// The effects of a turn that does not call the guest.
    pub(super) fn of_records(records: Vec<RecordWrite>) -> Self {
        let reply = GuestReply::Result(bytes::Bytes::new());
        let (state, sets_revision) = (Vec::new(), false);
        Self {
            message: None,
            reply,
            state,
            records,
            state_bytes: None,
            firing: None,
            sets_revision,
        }
    }
}

impl Machine {
    /// Applies a turn's changes to timers, outbox and journal, and commits the turn.
    pub(super) fn commit_turn(
        &mut self,
        entity: &Entity,
        turn: TurnId,
        message: Option<MessageId>,
        firing: Option<Arc<Firing>>,
        (reply, mut output): (GuestReply, TurnOutput),
    ) {
        let is_result = matches!(reply, GuestReply::Result(_));
        if output.delete && is_result {
            let nothing = Effects::of_records(Vec::new());
            let deletion = Effects { message, firing, reply, sets_revision: true, ..nothing };
            return self.delete(entity, turn, deletion, output.tells);
        }
        let keeps_timer = self.context.has_mutation(Mutation::KeepFiredTimer);
        let reuses_numbers = self.context.has_mutation(Mutation::ReuseEventNumbers);
        let of_type = self.types.of(entity);
        let remembers = of_type.is_some_and(|settings| settings.remembers);
        let time_to_live = of_type.map_or(0, |settings| settings.time_to_live);
        if !output.emits.is_empty()
            && let Some(state) = self.residents.get(entity)
        {
            output.tells.extend(self.fan_outs(entity, state, &output.emits));
        }
        let Some(state) = self.residents.get_mut(entity) else { return };
        let version = state.head.version + 1;
        let fired = firing.as_deref().filter(|_| !keeps_timer);
        let mut records = state.timers.apply(fired, output.timers, version);
        records.extend(state.outbox.apply(output.tells, version, self.context.now.cluster_time));
        if !output.journal.is_empty() {
            let mut extent = state.journal.clone();
            records.extend(output.journal.apply(&mut extent, version));
            // This fails only if a later release has filled the head with its own fields.
            let set = state.head.set_journal(&extent);
            if !reuses_numbers {
                state.journal = extent;
            }
            debug_assert!(set.is_ok(), "{set:?}");
        }
        if !output.emits.is_empty() {
            records.extend(self.emit(entity, output.emits));
        }
        let Some(state) = self.residents.get_mut(entity) else { return };
        // A turn of the stop hook, and one of the start hook alone, does not make its entity a remembered one.
        let is_default = remembers && is_result && (message.is_some() || firing.is_some());
        let remembered = output.remember.unwrap_or(state.head.remembered || is_default);
        if remembered != state.head.remembered {
            let value = remembered.then(Bytes::new);
            records.push(RecordWrite { key: RecordKey::Remembered, value });
            state.head.remembered = remembered;
        }
        if std::mem::take(&mut state.head.deleted) {
            // It said when the head is examined.
            state.head.expires_at = None;
        }
        let is_input = message.is_some() || firing.is_some();
        if time_to_live > 0 || output.expiry.is_some() || state.head.expires_at.is_some() {
            let utc = self.context.now.utc;
            expiry::apply(&mut state.head, output.expiry, is_input, time_to_live, utc);
            state.expires |= state.head.expires_at.is_some();
        }
        let (state, state_bytes) = (output.writes, output.state_bytes);
        let sets_revision = true;
        let effects =
            Effects { message, reply, state, records, state_bytes, firing, sets_revision };
        self.commit(entity, turn, effects);
    }

    /// Commits the effects of a turn. Its changes to the records outside the state must already be
    /// applied.
    pub(super) fn commit(&mut self, entity: &Entity, turn: TurnId, effects: Effects) {
        let Effects {
            message: id,
            reply,
            state: writes,
            mut records,
            state_bytes,
            firing,
            sets_revision,
        } = effects;
        let keep_lanes = !self.context.has_mutation(Mutation::IgnoreLanes);
        let keep_watermark = !self.context.has_mutation(Mutation::WatermarkNotCommitted);
        let Some(state) = self.residents.get_mut(entity) else { return };
        let from = state.head.version;
        let version = from + 1;
        let mut writes: Vec<RecordWrite> = writes
            .into_iter()
            .map(|(key, value)| RecordWrite { key: RecordKey::State(key), value })
            .collect();
        let message = id.and_then(|id| state.entries.get(&id)).map(|entry| entry.message.clone());
        let (lanes, spilled_lane_count, lane_writes) = match message {
            Some(message) if keep_lanes => {
                // Nobody reads the result of a tell.
                let kept = match (&message.sender, &reply) {
                    (Some(_), GuestReply::Result(_)) => GuestReply::Result(bytes::Bytes::new()),
                    _ => reply.clone(),
                };
                let recorded = RecordedReply {
                    sequence: message.id.sequence,
                    digest: message.digest,
                    version,
                    reply: kept,
                    extensions: Extensions::default(),
                };
                state.lanes.record(
                    &message,
                    recorded,
                    self.context.now.cluster_time,
                    &self.context.settings,
                )
            }
            _ => state.lanes.take_head_and_writes(None),
        };
        writes.extend(lane_writes);
        writes.append(&mut records);
        let wake_up = state.needed_wake_up();
        if !self.context.has_mutation(Mutation::SkipWakeIndex) {
            writes.extend(move_wake_up(state.wake_up, wake_up));
        }
        state.wake_up = wake_up;
        state.is_headless = false;
        let head = &mut state.head;
        (head.version, head.turn, head.spilled_lane_count) = (version, turn, spilled_lane_count);
        head.state_bytes = state_bytes.unwrap_or(head.state_bytes);
        if sets_revision {
            head.revision = state.revision;
        }
        if keep_watermark {
            head.watermark = state.lanes.watermark();
        }
        if sets_revision && state.head.schema().ok() != Some(state.schema) {
            // This fails only if a later release has filled the head with its own fields.
            let set = state.head.set_schema(state.schema);
            debug_assert!(set.is_ok(), "{set:?}");
        }
        if state.timers.depend_on_commits() {
            let count = u32::try_from(state.timers.map().len()).unwrap_or(u32::MAX);
            // This fails only if a later release has filled the head with its own fields.
            let set = state.head.set_timer_count(count);
            debug_assert!(set.is_ok(), "{set:?}");
        }
        if state.outbox.depends_on_commits() {
            let set = state.head.set_outbox_counts(state.outbox.counts());
            debug_assert!(set.is_ok(), "{set:?}");
        }
        if state.lanes.tell_watermark() > 0 {
            let set = state.head.set_tell_watermark(state.lanes.tell_watermark());
            debug_assert!(set.is_ok(), "{set:?}");
        }
        let stored = state.change_stored();
        let head = Head { lanes, ..state.head.clone() };
        state.gate.push_back(GatedTurn {
            turn,
            message: id,
            reply,
            version,
            remembered: state.head.remembered,
            queries: Vec::new(),
            firing,
            stored,
            leaves: state.stored,
        });
        let commit = Commit {
            claim: self.claim.current().clone(),
            entity: entity.clone(),
            expected_version: from,
            head,
            writes,
            extensions: Extensions::default(),
        };
        self.gate.submit(&mut self.context, &self.claim, commit);
        if self.context.has_mutation(Mutation::ReplyBeforeCommit)
            && let Some(gated) = self.residents.get(entity).and_then(|state| state.gate.back())
            && let Some(id) = gated.message
        {
            let outcome = Outcome::Final { reply: gated.reply.clone(), version };
            self.finish(entity, &id, outcome, false);
        }
    }

    pub(super) fn on_committed(&mut self, entity: &Entity, turn: TurnId, outcome: CommitOutcome) {
        if !self.claim.ran(&turn) {
            return;
        }
        self.gate.on_answer();
        let Some(state) = self.residents.get_mut(entity) else { return };
        let Some(at) = state.gate.iter().position(|gated| gated.turn == turn) else { return };
        let Some(gated) = state.gate.remove(at) else { return };
        let firing = gated.firing.clone();
        let started = state.start_turn.take_if(|start| *start == turn).is_some();
        let migrated = state.migration.take_if(|(migration, ..)| *migration == turn);
        let is_unknown = matches!(outcome, CommitOutcome::Unknown(_));
        if matches!(outcome, CommitOutcome::Refused(_)) {
            state.stored -= gated.stored;
        }
        let refusal = match outcome {
            CommitOutcome::Committed | CommitOutcome::AlreadyCommitted => {
                state.start_backoff = None;
                self.floor.on_committed(state, gated.version);
                self.stored.on_committed(entity, gated.version, gated.stored, gated.leaves);
                state.outbox.on_durable(gated.version);
                let most = self.context.settings.channel_buffer;
                state.channels.on_durable(gated.version, most, self.context.mono());
                state.is_marked = gated.remembered;
                if let Some(id) = gated.message {
                    let outcome = Outcome::Final { reply: gated.reply, version: gated.version };
                    self.finish(entity, &id, outcome, false);
                }
                for (id, answer, version) in gated.queries {
                    self.finish_query(entity, &id, answer, version);
                }
                self.ask_sender(entity);
                return self.advance(entity);
            }
            CommitOutcome::Unknown(why) => {
                let message = format!("the outcome of the commit is unknown: {why}");
                if self.context.has_mutation(Mutation::UnknownIsNotRun) {
                    Outcome::not_run_retryable(codes::COMMIT_REFUSED, message, 10)
                } else {
                    self.claim.on_unknown_commit();
                    self.stored.reset();
                    Outcome::Unknown { message }
                }
            }
            CommitOutcome::Refused(CommitRefusal::VersionMismatch { stored }) => {
                Outcome::not_run_retryable(
                    codes::COMMIT_REFUSED,
                    format!(
                        "the turn was not based on the stored version {stored}, so it was discarded"
                    ),
                    10,
                )
            }
            CommitOutcome::Refused(CommitRefusal::LimitReached(why))
                if started || migrated.is_some() =>
            {
                return self.pause_after_refused_start(entity, &why);
            }
            CommitOutcome::Refused(CommitRefusal::LimitReached(why)) => {
                Outcome::not_run_retryable(codes::STORE_FULL, why, 1_000)
            }
            CommitOutcome::Refused(CommitRefusal::TooLarge(why))
                if started || migrated.is_some() =>
            {
                self.discard_uncommitted(entity);
                if let Some((_, revision, from_schema)) = migrated {
                    let why = format!("{}: {why}", codes::TURN_TOO_LARGE);
                    return self.give_up_migration(entity, revision, from_schema, &why);
                }
                return self.on_failed_start(entity, &Outcome::not_run(codes::TURN_TOO_LARGE, why));
            }
            // The turn would be refused on any node and at any time.
            CommitOutcome::Refused(CommitRefusal::TooLarge(why)) => {
                if let Some(firing) = firing.clone() {
                    state.refused_firing = Some((firing, why.clone()));
                }
                Outcome::not_run(codes::TURN_TOO_LARGE, why)
            }
            CommitOutcome::Refused(CommitRefusal::ClaimMismatch { current }) => {
                let message = self.claim.belongs_to_another();
                let hint = current.as_deref().map(OwnerHint::from);
                if self.claim.may_be_lost_by_commit() {
                    self.lose_shard(current, message.clone());
                }
                Outcome::not_run_retryable(codes::NOT_OWNER, message, 100).with_owner_hint(hint)
            }
        };
        // Queries that read the turn's effects may have read something that was never committed: they count as not run.
        for (id, ..) in gated.queries {
            let outcome = Outcome::not_run_retryable(
                codes::COMMIT_REFUSED,
                "the query had read the effects of a turn that was not committed",
                10,
            );
            self.finish(entity, &id, outcome, false);
        }
        if let Some(id) = gated.message {
            self.finish(entity, &id, refusal, false);
        }
        self.discard_uncommitted(entity);
        if let Some(state) = self.residents.get(entity)
            && state.refused_firing.is_none()
            && (firing.is_some() || gated.message.is_none() && state.must_read && !is_unknown)
        {
            // The store may refuse for a while, and no caller delays the next attempt. After an unknown outcome, the
            // new claim of the shard delays it.
            self.wakes.postpone(&self.context, entity);
        }
        self.advance(entity);
    }

    /// Discards everything of the entity that ran ahead of the store, and its commits that were not sent.
    pub(super) fn discard_uncommitted(&mut self, entity: &Entity) {
        self.drop_instance(entity);
        self.doubt_timers(entity);
        let outcome = Outcome::not_run_retryable(
            codes::COMMIT_REFUSED,
            "an earlier turn was not committed",
            10,
        );
        self.drop_unsent_commits(Some(entity), &outcome);
    }

    /// Ends turns whose commits were never sent to the store: they had no effect.
    pub(super) fn drop_unsent_commits(&mut self, only: Option<&Entity>, outcome: &Outcome) {
        for commit in self.gate.take_unsent(only) {
            let Some(state) = self.residents.get_mut(&commit.entity) else { continue };
            let turn = commit.head.turn;
            let Some(at) = state.gate.iter().position(|gated| gated.turn == turn) else { continue };
            let Some(gated) = state.gate.remove(at) else { continue };
            state.stored -= gated.stored;
            for id in gated.message.into_iter().chain(gated.queries.into_iter().map(|(id, ..)| id))
            {
                self.finish(&commit.entity, &id, outcome.clone(), false);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{ClusterId, Epoch, Incarnation, ShardId, ShardPath};
    use crate::rows::Member;
    use crate::shard::{Ownership, Settings};

    fn claiming(context: &mut Context) -> ShardClaim {
        let shard = ShardPath { namespace: "n".into(), pool: "p".into(), shard: ShardId(1) };
        let (cluster, epoch, node) = (ClusterId(1), Epoch(1), "a".into());
        let incarnation = Incarnation::default();
        ShardClaim::new(
            context,
            Ownership { cluster, shard, epoch, owner: Member { node, incarnation } },
        )
    }

    fn commit(claim: &ShardClaim, entity: &str) -> Commit {
        Commit {
            claim: claim.current().clone(),
            entity: Entity::new("t", entity),
            expected_version: 0,
            head: Head::default(),
            writes: Vec::new(),
            extensions: Extensions::default(),
        }
    }

    #[test]
    fn r3_commits_wait_for_the_claim_and_keep_their_order() {
        let mut context = Context::new(Settings::default());
        let mut claim = claiming(&mut context);
        let mut gate = Gate::default();
        for entity in ["a", "b", "a"] {
            gate.submit(&mut context, &claim, commit(&claim, entity));
        }
        assert!(!gate.has_outstanding() && gate.entities_with_unsent().len() == 3);
        assert_eq!(gate.take_unsent(Some(&Entity::new("t", "b"))).len(), 1);
        assert!(claim.take_answer(1) && !claim.take_answer(1), "an answer counts once");
        claim.on_granted(&context);
        claim.on_unknown_commit();
        claim.claim_again(&mut context);
        assert!(claim.take_answer(2));
        claim.on_granted(&context);
        gate.send_unsent(&mut context, &claim);
        gate.submit(&mut context, &claim, commit(&claim, "c"));
        let sent = std::iter::from_fn(|| context.poll()).filter_map(|action| match action {
            Action::Commit(commit) => Some((commit.entity.id.to_string(), commit.claim.number)),
            _ => None,
        });
        assert_eq!(sent.collect::<Vec<_>>(), ["a", "a", "c"].map(|id| (id.to_owned(), 2)));
        (0..3).for_each(|_| gate.on_answer());
        assert!(!gate.has_outstanding());
    }
}
