//! Instances: how they are loaded, get a slot, and are started, run, stopped and dropped.

use std::sync::Arc;

use super::revisions::Choice;
use super::{
    Action, Entity, GuestReply, Head, Machine, MessageId, Mutation, Outcome, TurnId, codes,
};
use crate::codec::CodecError;
use crate::message::{Message, MessageKind};
use crate::records::{JournalExtent, LoadedEntity, SubscriptionCounts};
use crate::shard::entity::Stage;
use crate::shard::outbox::Outbox;
use crate::shard::stored::Amount;
use crate::shard::subscriptions::Subscriptions;
use crate::shard::timers::Timers;
use crate::shard::{ActivationOutcome, Channels, StartReason, StopReason, TurnOutput, TurnResult};

impl Machine {
    pub(super) fn on_loaded(
        &mut self,
        entity: &Entity,
        generation: u64,
        result: Result<LoadedEntity, String>,
    ) {
        let Some(state) = self.residents.get_mut(entity) else { return };
        if state.stage != Stage::Loading || state.generation != generation {
            return;
        }
        let extra = match &result {
            Ok(LoadedEntity { head: Some(head), .. }) => extra_of(head),
            _ => Ok(HeadExtra::default()),
        };
        let outcome = match result.and_then(|loaded| Ok((loaded, extra?))) {
            Ok((mut loaded, extra)) => {
                let HeadExtra {
                    journal,
                    is_purged,
                    is_removed,
                    channels,
                    generation,
                    subscriptions,
                    schema,
                } = extra;
                state.lanes.reload(
                    &mut loaded,
                    self.context.now.cluster_time,
                    &self.context.settings,
                );
                state.head = loaded.head.unwrap_or_default();
                state.is_headless = state.head.version == 0 || is_removed;
                state.stored = Amount::of(&state.head);
                if is_removed {
                    // This cannot fail: the field was just read.
                    let set = state.head.set_removed(false);
                    debug_assert!(set.is_ok(), "{set:?}");
                }
                (state.revision, state.schema) = (state.head.revision, schema);
                state.timers = Timers::load(loaded.timers);
                (state.journal, state.is_purged) = (journal, is_purged);
                state.expires = state.head.expires_at.is_some();
                state.channels.reload(channels, generation);
                state.subscriptions = Subscriptions::unread(subscriptions);
                state.is_marked = state.head.remembered;
                state.must_start &= state.is_marked;
                let old = std::mem::take(&mut state.outbox);
                let version = state.head.version;
                state.outbox = Outbox::load(loaded.outbox, loaded.dead_letters, version, old);
                state.outbox.limit_fan_out(self.context.settings.fan_out_page);
                state.wake_up = state.needed_wake_up();
                (state.is_read, state.must_read) = (true, false);
                state.stage = Stage::Loaded;
                let mut choice = self.choose_revision(entity);
                if matches!(choice, Choice::Refuse(_)) {
                    self.restart_before_migration(entity);
                    choice = self.choose_revision(entity);
                }
                let Choice::Refuse(outcome) = choice else {
                    return self.advance(entity);
                };
                return self.refuse_revision(entity, &outcome);
            }
            Err(why) => {
                self.recovery.pause(&self.context);
                let text = format!("cannot load {entity}: {why}");
                Outcome::not_run_retryable(codes::STORE_UNAVAILABLE, text, 1_000)
            }
        };
        self.give_up(entity, &outcome);
    }

    pub(super) fn on_slot(&mut self, entity: &Entity, generation: u64) {
        if self.on_second_slot(entity, generation) {
            return;
        }
        let has_due_timer = self
            .residents
            .get(entity)
            .is_some_and(|state| self.due_firing(entity, state).is_some());
        let turn = self.claim.next_turn();
        let wanted = self.residents.get_mut(entity).filter(|state| {
            matches!(state.stage, Stage::AwaitingSlot(_)) && state.generation == generation
        });
        let Some(state) = wanted else {
            // The request has been withdrawn: `ReleaseSlot` is on its way.
            return;
        };
        let has_work = state.queued_messages() > 0 || has_due_timer;
        if !has_work && !state.must_start {
            state.stage = Stage::Loaded;
            self.context.push(Action::ReleaseSlot { entity: entity.clone(), generation });
            return self.advance(entity);
        }
        let (choice, floor) = (self.choose_revision(entity), self.floor);
        let Some(state) = self.residents.get_mut(entity) else { return };
        floor.lift(state);
        let revision = match choice {
            Choice::Run(revision, schema) => {
                state.stage = Stage::Starting(turn);
                state.schema = schema;
                revision
            }
            Choice::Migrate { revision, from_schema, to_schema } => {
                state.stage = Stage::Migrating(turn, revision, to_schema);
                let (entity, records) = (entity.clone(), state.turn_records());
                let action = Action::Migrate { entity, generation, revision, from_schema, records };
                return self.context.push(action);
            }
            Choice::Refuse(outcome) => return self.refuse_revision(entity, &outcome),
        };
        state.revision = revision;
        let reason = match state.head.version {
            _ if state.head.deleted => StartReason::FirstMessage,
            0 => StartReason::FirstMessage,
            _ if has_work => StartReason::Message,
            _ => StartReason::Remembered,
        };
        let (entity, records) = (entity.clone(), state.turn_records());
        self.context.push(Action::Activate { entity, generation, revision, reason, records });
    }

    pub(super) fn on_activated(
        &mut self,
        entity: &Entity,
        generation: u64,
        result: ActivationOutcome,
    ) {
        let Some(result) = self.on_second_activated(entity, generation, result) else { return };
        let Some(state) = self.residents.get(entity) else { return };
        if state.generation != generation {
            return;
        }
        let result = match (result, &state.stage) {
            (ActivationOutcome::Started(output), Stage::Starting(_)) => {
                ActivationOutcome::Started(self.within_quota(entity, output))
            }
            (result, _) => result,
        };
        let Some(state) = self.residents.get_mut(entity) else { return };
        let turn = match state.stage {
            Stage::Starting(turn) => turn,
            Stage::Migrating(turn, revision, schema) => {
                return self.on_migrated(entity, turn, (revision, schema), result);
            }
            _ => return,
        };
        let outcome = match result {
            ActivationOutcome::Started(
                output @ TurnOutput { result: TurnResult::Replied(_), .. },
            ) => {
                state.stage = Stage::Idle;
                state.must_start = false;
                self.recovery.on_started(entity);
                state.passivates = output.passivate;
                state.passivate_after = output.passivate_after.flatten();
                if state.passivate_after.is_some() {
                    state.last_used = self.context.now.mono;
                }
                if output.changes_nothing() {
                    // Nothing was committed, so only a pause after failures ends: one after a refusal continues.
                    state.start_backoff.take_if(|pause| pause.failures > 0);
                } else {
                    state.start_turn = Some(turn);
                    self.commit_hook(entity, turn, output);
                }
                return self.advance(entity);
            }
            ActivationOutcome::Started(TurnOutput {
                result: TurnResult::Failed { code, message, retry_after },
                ..
            }) => Outcome::NotRun {
                code,
                message,
                retry_after,
                owner_hint: None,
                suggested_created_ms: None,
            },
            ActivationOutcome::Failed { code, message, retry_after } => Outcome::NotRun {
                code,
                message,
                retry_after,
                owner_hint: None,
                suggested_created_ms: None,
            },
            // A start turn has no caller, so drivers never refuse it. If one does, the turn is retried.
            ActivationOutcome::Started(TurnOutput {
                result: TurnResult::Refused { code, message, retry_after },
                ..
            }) => Outcome::NotRun {
                code,
                message,
                retry_after: Some(retry_after),
                owner_hint: None,
                suggested_created_ms: None,
            },
        };
        self.on_failed_start(entity, &outcome);
    }

    pub(super) fn on_turn_done(
        &mut self,
        entity: &Entity,
        generation: u64,
        turn: TurnId,
        result: TurnOutput,
    ) {
        let Some(result) = self.on_second_done(entity, generation, turn, result) else { return };
        let Some(state) = self.residents.get(entity) else { return };
        if state.generation != generation {
            return;
        }
        if state.second.is_some()
            && matches!(state.stage, Stage::Running(running, _) | Stage::Firing(running, _) if running == turn)
        {
            self.end_second_with_turn(entity);
        }
        let result = match self.residents.get(entity).map(|state| &state.stage) {
            Some(Stage::Running(running, _) | Stage::Firing(running, _)) if *running == turn => {
                self.within_quota(entity, result)
            }
            _ => result,
        };
        let Some(state) = self.residents.get_mut(entity) else { return };
        match state.stage {
            Stage::Running(running, id) if running == turn => {
                state.last_used = self.context.mono();
                state.stage = Stage::Idle;
                state.asks.clear();
                state.calls.clear();
                state.passivate_after = result.passivate_after.unwrap_or(state.passivate_after);
                if result.passivate || state.passivates {
                    state.pending_stop = state.pending_stop.or(Some(StopReason::Passivated));
                }
                self.on_message_done(entity, turn, id, result);
                self.advance(entity);
            }
            Stage::Firing(running, ref firing) if running == turn => {
                let firing = firing.clone();
                state.asks.clear();
                state.calls.clear();
                self.on_fired(entity, turn, &firing, result);
                self.advance(entity);
            }
            Stage::Stopping(stopping) if stopping == turn => {
                if !result.changes_nothing() {
                    self.commit_hook(entity, turn, result);
                }
                self.drop_instance(entity);
                self.advance(entity);
            }
            _ => {}
        }
    }

    /// Handles a query whose sender is gone. If other copies joined it, they are still served; otherwise the query
    /// ends without a turn.
    pub(super) fn on_abandoned(&mut self, entity: &Entity, generation: u64, turn: TurnId) {
        let id = match self.take_abandoned(entity, generation, turn) {
            Some(id) => id,
            None => {
                let Some(state) = self.residents.get_mut(entity) else { return };
                let Stage::Running(running, id) = state.stage else { return };
                let is_query = |id| {
                    let entry = state.entries.get(id);
                    entry.is_some_and(|it| it.message.kind == MessageKind::Query)
                };
                if (running, state.generation) != (turn, generation) || !is_query(&id) {
                    return;
                }
                state.stage = Stage::Idle;
                id
            }
        };
        let Some(state) = self.residents.get_mut(entity) else { return };
        let Some(entry) = state.entries.get_mut(&id) else { return };
        let gone = entry.message.reply_token;
        entry.reply_tokens.retain(|token| *token != gone);
        let outcome =
            Outcome::not_run_retryable(codes::CALLER_GONE, "the caller's connection is closed", 0);
        if let Some(next) = entry.reply_tokens.first().copied() {
            entry.message =
                Arc::new(Message { reply_token: next, ..Message::clone(&entry.message) });
            self.put_back(entity, id);
            self.context.reply(gone, outcome);
        } else {
            entry.reply_tokens.push(gone);
            self.finish(entity, &id, outcome, false);
        }
        self.advance(entity);
    }

    /// Commits the changes of a turn of the guest that handles neither a message nor a timer.
    pub(super) fn commit_hook(&mut self, entity: &Entity, turn: TurnId, mut output: TurnOutput) {
        output.delete = false;
        let nothing = TurnResult::Replied(GuestReply::Result(bytes::Bytes::new()));
        if let TurnResult::Replied(answer) = std::mem::replace(&mut output.result, nothing) {
            self.commit_turn(entity, turn, None, None, (answer, output));
        }
    }

    pub(super) fn on_message_done(
        &mut self,
        entity: &Entity,
        turn: TurnId,
        id: MessageId,
        result: TurnOutput,
    ) {
        let forget = self.context.has_mutation(Mutation::SkipErrorRecording);
        let Some(state) = self.residents.get_mut(entity) else { return };
        let Some(message) = state.entries.get(&id).map(|entry| entry.message.clone()) else {
            return;
        };
        match result.result.clone() {
            TurnResult::Failed { code, message, retry_after } => {
                if retry_after.is_none() {
                    self.on_guest_failure(entity, &code, &message);
                }
                self.finish(
                    entity,
                    &id,
                    Outcome::NotRun {
                        code,
                        message,
                        retry_after,
                        owner_hint: None,
                        suggested_created_ms: None,
                    },
                    retry_after.is_none(),
                );
                self.drop_instance(entity);
            }
            TurnResult::Refused { code, message, retry_after } => {
                let retry_after = Some(retry_after);
                let outcome = Outcome::NotRun {
                    code,
                    message,
                    retry_after,
                    owner_hint: None,
                    suggested_created_ms: None,
                };
                self.finish(entity, &id, outcome, false);
            }
            TurnResult::Replied(answer) if message.kind == MessageKind::Query => {
                self.answer_query(entity, &id, answer);
            }
            TurnResult::Replied(answer) => {
                if forget && matches!(answer, GuestReply::Error { .. }) {
                    let version = state.head.version;
                    let outcome = Outcome::Final { reply: answer, version };
                    return self.finish(entity, &id, outcome, true);
                }
                self.commit_turn(entity, turn, Some(id), None, (answer, result));
                if let Some(state) = self.residents.get_mut(entity) {
                    state.mailbox.unpark(&id);
                }
            }
        }
    }

    /// Handles a query's answer, which waits for the commits of what it has read.
    pub(super) fn answer_query(&mut self, entity: &Entity, id: &MessageId, answer: GuestReply) {
        let bound = self.context.settings.max_lanes;
        let gated = !self.context.has_mutation(Mutation::ReplyBeforeCommit);
        let Some(state) = self.residents.get_mut(entity) else { return };
        let Some(message) = state.entries.get(id).map(|entry| entry.message.clone()) else {
            return;
        };
        state.lanes.record_query_answered(&message, bound);
        state.mailbox.unpark(id);
        let version = state.head.version;
        match state.gate.back_mut() {
            Some(turn) if gated => turn.queries.push((*id, answer, version)),
            _ => self.finish_query(entity, id, answer, version),
        }
    }

    /// Sends a query's answer, but only if the lease is valid by a clock reading from after the request arrived (R8).
    pub(super) fn finish_query(
        &mut self,
        entity: &Entity,
        id: &MessageId,
        answer: GuestReply,
        version: u64,
    ) {
        let outcome = if self.lease.may_reply(&self.context) {
            Outcome::Final { reply: answer, version }
        } else {
            Outcome::not_run_retryable(
                codes::STORE_UNAVAILABLE,
                "the node's lease was not renewed in time",
                500,
            )
        };
        self.finish(entity, id, outcome, false);
    }

    pub(super) fn on_evict(&mut self, entity: &Entity) {
        if self.evict_second(entity) {
            return;
        }
        match self.residents.get(entity) {
            Some(state)
                if state.stage == Stage::Idle
                    && !state.mailbox.has_next()
                    && !self.lease.is_paused(&self.context) =>
            {
                self.stop_when_idle(entity, StopReason::Evicted);
            }
            Some(state) if state.stage.has_instance() => {
                self.context.push(Action::RefuseEviction { entity: entity.clone() });
            }
            // The instance is gone: `ReleaseSlot` is on its way.
            _ => {}
        }
    }

    /// Stops the instance as soon as it is idle.
    pub(super) fn stop_when_idle(&mut self, entity: &Entity, reason: StopReason) {
        if let Some(state) = self.residents.get_mut(entity)
            && state.stage.has_instance()
        {
            state.pending_stop = Some(reason);
            self.advance(entity);
        }
    }

    pub(super) fn begin_stop(&mut self, entity: &Entity, reason: StopReason) {
        let revision = self.residents.get(entity).map_or(0, |state| state.revision);
        let has_stop = self.types.has_stop_hook(entity, revision);
        // The hook is a turn, so a shard that stops while it is suspended drops its instances without it.
        if !has_stop || self.lease.is_paused(&self.context) {
            return self.drop_instance(entity);
        }
        let turn = self.claim.next_turn();
        let stop_by = self.context.mono().saturating_add(self.context.settings.stop_timeout);
        if let Some(state) = self.residents.get_mut(entity) {
            state.stage = Stage::Stopping(turn);
            state.stop_hook_deadline = Some(stop_by);
            let (generation, records) = (state.generation, state.turn_records());
            let entity = entity.clone();
            self.context.push(Action::CallStopHook { entity, generation, turn, reason, records });
        }
    }

    /// Drops the instance, or cancels its activation. A running message returns to the front of the mailbox.
    pub(super) fn drop_instance(&mut self, entity: &Entity) {
        self.end_second(entity);
        let Some(state) = self.residents.get(entity) else { return };
        if let Stage::Running(_, id) = state.stage {
            self.put_back(entity, id);
        }
        self.restart_remembered(entity);
        let Some(state) = self.residents.get_mut(entity) else { return };
        let generation = state.generation;
        if state.stage.has_instance() {
            self.context.push(Action::DropInstance { entity: entity.clone(), generation });
        }
        if state.stage.has_slot() {
            self.context.push(Action::ReleaseSlot { entity: entity.clone(), generation });
        }
        state.stage = Stage::AwaitingCommits;
        state.asks.clear();
        state.calls.clear();
        state.pending_stop = None;
        state.stop_hook_deadline = None;
        state.passivates = false;
        state.mailbox.unpark_all();
    }
}

/// What a head says about what is stored outside it.
#[derive(Default)]
struct HeadExtra {
    journal: JournalExtent,
    /// Whether records from before a deletion remain.
    is_purged: bool,
    /// Whether the head was made from the shard's floor.
    is_removed: bool,
    channels: Channels,
    generation: u64,
    subscriptions: SubscriptionCounts,
    schema: u32,
}

fn extra_of(head: &Head) -> Result<HeadExtra, String> {
    let extra = || {
        let channels = head.channels()?;
        // Those of a deleted entity only wait to be removed.
        let channels = if head.deleted { Channels::default() } else { channels };
        Ok(HeadExtra {
            journal: head.journal()?,
            is_purged: head.is_purged()?,
            is_removed: head.is_removed()?,
            channels,
            generation: head.generation()?,
            subscriptions: head.subscriptions()?,
            schema: head.schema()?,
        })
    };
    extra().map_err(|error: CodecError| error.to_string())
}
