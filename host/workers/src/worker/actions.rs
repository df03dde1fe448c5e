//! Executes the machines' actions: calls to the store, the sandbox or the network.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use futures::FutureExt;
use ostraca_codes::{Code, codes};
use ostraca_core::ids::{Entity, TurnId};
use ostraca_core::message::{Message, MessageKind};
use ostraca_core::records::{ClaimOutcome, Commit, CommitOutcome};
use ostraca_core::shard::{Action, Event, Firing, StartReason, StopReason};
use ostraca_stats::{Stats, Work};
use ostraca_store::entity::commit_bytes;
use ostraca_store::{Scan, ScanKind, ScannedRecord, StoreError};
use ostraca_trace::{Role, Span};
use ostraca_wasm::text::printable;
use ostraca_wasm::{Instance, InstanceSpec, TurnRecords};
use ostraca_wire::server::BudgetExceeded;

use super::completions::{Completion, Ran, StartOutcome};
use super::head_scans::HeadScan;
use super::machines::{InstanceState, MachineId, WaitingTurn};
use super::panics::{Panicked, contained};
use super::stored_state::{STATE_PAGE, StoredState};
use super::tasks::TaskGroupKey;
use super::{PendingReply, Worker};
use crate::guest_types::{self, TurnOrigin, turn_records};
use crate::{EntityMessage, EntityMessageContent, WorkerReport};

impl Worker {
    pub(super) fn execute(&mut self, id: MachineId, action: Action) {
        let Some(slot) = self.machines.get_mut(id) else { return };
        let shard = || slot.machine.ownership().shard.clone();
        match action {
            Action::Claim(claim) => {
                slot.pending_store_calls += 1;
                self.claims.push((id, claim));
            }
            Action::Commit(commit) => {
                slot.pending_store_calls += 1;
                slot.committed_bytes += commit_bytes(&commit) as u64;
                let lanes = commit.head.lanes.len() + commit.head.spilled_lane_count as usize;
                self.deps.gauges.entity_lanes.observe_size(lanes);
                let span = self.commit_span(&commit);
                self.commits.push((id, *commit, span));
                self.flush_gate.close();
            }
            Action::Load { entity, generation } => {
                self.loads.push((id, shard(), entity, generation));
                slot.pending_store_calls += 1;
            }
            Action::ScanWakes { number, from, max_records } => {
                let wake = |record| match record {
                    ScannedRecord::Wake(due, entity) => Some((due, entity)),
                    _ => None,
                };
                let kind = ScanKind::Wakes { from };
                self.scan_shard(id, kind, (max_records, STATE_PAGE.1), wake, move |page| {
                    Event::WakesScanned { number, page }
                });
            }
            Action::ScanRemembered { number, from, max_records } => {
                let mark = |record| match record {
                    ScannedRecord::Remembered(entity) => Some(entity),
                    _ => None,
                };
                let kind = ScanKind::Remembered { from };
                self.scan_shard(id, kind, (max_records, STATE_PAGE.1), mark, move |page| {
                    Event::RememberedScanned { number, page }
                });
            }
            Action::ScanHeads { number, after, max_records } => {
                self.scan_heads(HeadScan { machine: id, number, after, max_records });
            }
            Action::ReadChannel { entity, reader, channel, from, max_items, max_bytes } => {
                let item = |record| match record {
                    ScannedRecord::ChannelItem(number, item) => Some((number, item)),
                    _ => None,
                };
                let kind = ScanKind::Channel { entity: entity.clone(), channel, from };
                let size = (max_items.min(STATE_PAGE.0), max_bytes.min(STATE_PAGE.1));
                self.scan_shard(id, kind, size, item, move |page| {
                    let items = page.map(|(items, _)| items);
                    Event::ChannelRead { entity, reader, items }
                });
            }
            Action::ScanKeys { entity, generation, max_records } => {
                let key = |record| match record {
                    ScannedRecord::State(key, _) => Some(key),
                    _ => None,
                };
                let kind = ScanKind::State(entity.clone());
                self.scan_shard(id, kind, (max_records, STATE_PAGE.1), key, move |page| {
                    Event::KeysScanned { entity, generation, page }
                });
            }
            Action::RequestSlot { entity, generation, purpose } => {
                self.instance_slots.request((shard(), entity), generation, purpose);
            }
            Action::ReleaseSlot { entity, generation } => {
                self.instance_slots.release(&(shard(), entity), generation);
            }
            Action::RefuseEviction { entity } => {
                self.instance_slots.eviction_refused(&(shard(), entity))
            }
            Action::MarkIdle { entity } => self.instance_slots.idle((shard(), entity)),
            Action::Activate { entity, generation, revision, reason, records } => {
                let records = all_records(records);
                let is_second = reason == StartReason::BesideTurn;
                let reason = guest_types::start_reason(reason);
                let first = match is_second {
                    true => FirstTurn::StartForQueries(reason),
                    false => FirstTurn::Start(reason),
                };
                self.activate(id, entity, (generation, revision), first, records);
            }
            Action::Migrate { entity, generation, revision, from_schema, records } => {
                let records = all_records(records);
                let first = FirstTurn::Migrate(from_schema);
                self.activate(id, entity, (generation, revision), first, records);
            }
            Action::MigrationFailed { entity, revision, from_schema, why } => {
                Stats::count(&self.deps.stats.failed_migrations);
                tracing::warn!(
                    entity = &*printable(&entity.to_string()),
                    revision,
                    from_schema,
                    "an entity could not be migrated and stays on an earlier revision: {}",
                    printable(&why)
                );
                let (entity_type, why) = (entity.entity_type.clone(), format!("{entity}: {why}"));
                self.report(WorkerReport::MigrationFailed { entity_type, revision, why });
            }
            Action::Run { generation, turn, version, message, records } => {
                let span = self.turn_span(&message);
                let traceparent = traceparent_of(span.as_ref(), &message);
                let asks = self.ask_sink(id, &message.target, generation, traceparent);
                let calls = match message.kind {
                    MessageKind::Command => self.call_sink(id, &message.target, (generation, turn)),
                    MessageKind::Query => None,
                };
                let mut records = records.map(|records| Box::new(turn_records(*records)));
                if asks.is_some() || calls.is_some() {
                    let records = records.get_or_insert_default();
                    (records.asks, records.calls) = (asks, calls);
                }
                self.run(id, (generation, turn, version), message, records, span);
            }
            Action::Fire { entity, generation, turn, version: _, firing, records } => {
                let asks = self.ask_sink(id, &entity, generation, &Arc::default());
                let calls = self.call_sink(id, &entity, (generation, turn));
                let records = all_records(records);
                let records = TurnRecords { asks, calls, ..records };
                self.fire(id, entity, (generation, turn), &firing, records);
            }
            Action::TimerGaveUp { entity, name, attempts, why } => {
                tracing::warn!(
                    entity = &*printable(&entity.to_string()),
                    timer = &*printable(&name),
                    attempts,
                    "a timer failed too often: {}",
                    printable(&why)
                );
            }
            Action::Ask { asker, turn, ask, remaining } => {
                let to = ask.target.clone();
                self.send(id, asker, to, EntityMessageContent::Ask(turn, ask, remaining));
            }
            Action::AnswerAsk { entity, generation, place, outcome } => {
                self.answer_ask(id, &entity, generation, place, *outcome);
            }
            Action::ReleaseCall { entity, generation, place, key } => {
                self.release_call(id, &entity, generation, place, key);
            }
            Action::SendAskNote { entity, target, note } => {
                self.send(id, entity, target, EntityMessageContent::AskNote(*note));
            }
            Action::Tell { sender, number, tell } => {
                let to = tell.target.clone();
                self.send(id, sender, to, EntityMessageContent::Tell(number, tell));
            }
            Action::AskSender { entity, sender } => {
                self.send(id, entity, sender, EntityMessageContent::FirstTell);
            }
            Action::TellGaveUp { sender, number, target, why } => {
                tracing::warn!(
                    entity = &*printable(&sender.to_string()),
                    to = &*printable(&target.to_string()),
                    number,
                    "a tell became a dead letter: {}",
                    printable(&why)
                );
            }
            Action::CallStopHook { entity, generation, turn, reason, records } => {
                let records = all_records(records);
                self.stop(id, entity, (generation, turn), reason, records);
            }
            Action::DropInstance { entity, generation } => {
                self.drop_instance(id, &entity, generation)
            }
            Action::Reply { token, outcome } => self.reply(id, token, outcome),
            Action::Lost { current, message } => {
                let owner = Box::new(slot.machine.ownership().clone());
                self.report(WorkerReport::ShardLost(owner, current, message));
            }
            Action::Escalate { entity, why } => {
                let (shard, epoch) = (slot.shard(), slot.epoch());
                let name = printable(&entity.to_string()).into_owned();
                tracing::warn!(entity = name, %shard, "a failure is escalated: {}", printable(&why));
                self.report(WorkerReport::ShardEscalated(shard, epoch));
            }
            Action::ForgetStopped { entity } => {
                Stats::count(&self.deps.stats.stopped_forgotten);
                let name = printable(&entity.to_string()).into_owned();
                tracing::warn!(
                    entity = name,
                    "more entities were stopped than `entities.max-stopped` allows: this one may start again"
                );
            }
            Action::Stopped => slot.owes_stopped = true,
        }
    }

    /// Queues an entity's message, to be sent with the others of the round.
    fn send(&mut self, id: MachineId, from: Entity, to: Entity, content: EntityMessageContent) {
        let Some(slot) = self.machines.get(id) else { return };
        let (shard, epoch) = (slot.shard(), slot.epoch());
        self.messages.push(EntityMessage { shard, epoch, from, to, content });
    }

    /// Sends all store calls of this round, as one batch for each kind of call.
    pub(super) fn flush_store_calls(&mut self) {
        if !self.claims.is_empty() {
            let claims = std::mem::take(&mut self.claims);
            let requests = claims.iter().map(|(_, claim)| (**claim).clone()).collect();
            let answer = contained(&self.deps.stats, self.deps.entity_store.claim(requests));
            self.tasks.push(
                TaskGroupKey::StoreCalls,
                async move {
                    let failed =
                        |why: Panicked| vec![ClaimOutcome::Failed(why.to_string()); claims.len()];
                    let outcomes = answer.await.unwrap_or_else(failed);
                    Completion::Claims(claims, outcomes)
                }
                .boxed_local(),
            );
        }
        let mut all = std::mem::take(&mut self.commits);
        let mut commits = all.drain(..).peekable();
        while let Some(first) = commits.next() {
            // A call is answered as a whole: a large commit gets its own call, so that no other commit waits for it.
            let alone = writes_much(&first.1);
            let capacity = if alone { 1 } else { commits.len() + 1 };
            let (mut names, mut requests) =
                (Vec::with_capacity(capacity), Vec::with_capacity(capacity));
            let mut spans = Vec::new();
            let mut next = Some(first);
            while let Some((id, commit, span)) = next {
                names.push((id, commit.entity.clone(), commit.head.turn));
                requests.push(commit);
                spans.extend(span);
                next = commits.next_if(|(_, commit, _)| !alone && !writes_much(commit));
            }
            let gauges = self.deps.gauges.clone();
            self.deps.stats.commits.fetch_add(requests.len() as u64, Ordering::Relaxed);
            gauges.commit_batches.observe_size(requests.len());
            let sent = Instant::now();
            let answer = contained(&self.deps.stats, self.deps.entity_store.commit(requests));
            self.tasks.push(
                TaskGroupKey::StoreCalls,
                async move {
                    let unknown =
                        |why: Panicked| vec![CommitOutcome::Unknown(why.to_string()); names.len()];
                    let outcomes = answer.await.unwrap_or_else(unknown);
                    gauges.commit_durations.observe(sent.elapsed());
                    drop(spans);
                    Completion::Commits(names, outcomes)
                }
                .boxed_local(),
            );
        }
        drop(commits);
        self.commits = all;
        self.flush_gate.open();
        if !self.loads.is_empty() {
            let mut loads = Vec::with_capacity(self.loads.len());
            let mut requests = Vec::with_capacity(self.loads.len());
            for (id, shard, entity, generation) in self.loads.drain(..) {
                loads.push((id, entity.clone(), generation));
                requests.push((shard, entity));
            }
            let answer = contained(&self.deps.stats, self.deps.entity_store.load(requests));
            self.tasks.push(
                TaskGroupKey::StoreCalls,
                async move {
                    let failed = |why: Panicked| {
                        let error = StoreError::Unavailable(why.to_string());
                        vec![Err(error); loads.len()]
                    };
                    let results = answer.await.unwrap_or_else(failed);
                    Completion::Loads(loads, results)
                }
                .boxed_local(),
            );
        }
    }

    /// Reads a page of a shard's records, and passes what `pick` makes of them to the machine.
    fn scan_shard<T: 'static>(
        &mut self,
        id: MachineId,
        kind: ScanKind,
        (max_records, max_bytes): (usize, usize),
        pick: fn(ScannedRecord) -> Option<T>,
        event: impl FnOnce(Result<(Vec<T>, bool), String>) -> Event + 'static,
    ) {
        let Some(slot) = self.machines.get_mut(id) else { return };
        slot.pending_store_calls += 1;
        let shard = slot.machine.ownership().shard.clone();
        let scan = Scan { shard, kind, after: None, max_records, max_bytes };
        let answer = contained(&self.deps.stats, self.deps.entity_store.scan(scan));
        self.tasks.push(
            TaskGroupKey::StoreCalls,
            async move {
                let failed = |why: Panicked| Err(StoreError::Unavailable(why.to_string()));
                let page = answer.await.unwrap_or_else(failed);
                let page = page.map_err(|error| error.to_string()).map(|page| {
                    let more = page.next_cursor.is_some();
                    (page.records.into_iter().filter_map(pick).collect(), more)
                });
                Completion::Scanned(id, Box::new(event(page)))
            }
            .boxed_local(),
        );
    }

    fn activate(
        &mut self,
        id: MachineId,
        entity: Entity,
        (generation, revision): (u64, u64),
        first: FirstTurn,
        records: TurnRecords,
    ) {
        Stats::count(match first {
            FirstTurn::Start(_) | FirstTurn::StartForQueries(_) => &self.deps.stats.activations,
            FirstTurn::Migrate(_) => &self.deps.stats.migrations,
        });
        let Some(state) = self.machines.get_mut(id) else { return };
        let shard = state.machine.ownership().shard.clone();
        let for_queries = matches!(first, FirstTurn::StartForQueries(_));
        let instances = match for_queries {
            true => &mut state.second_instances,
            false => &mut state.instances,
        };
        instances.insert(entity.clone(), (generation, InstanceState::Starting));
        state.running += 1;
        let entry = self.types.get(&entity.entity_type);
        let program = entry.and_then(|entry| entry.program_of(revision).cloned());
        let Some(program) = program else {
            // Not expected: a machine activates only entities of types that were announced to it, and only runnable
            // revisions are announced.
            return self.tasks.push_ready(Completion::Started(
                id,
                entity,
                generation,
                StartOutcome::UnknownType,
            ));
        };
        let store = self.deps.entity_store.clone();
        let source = StoredState::new(store, shard.clone(), entity.clone())
            .after_commits(self.flush_gate.clone());
        let identity = guest_types::identity(shard, &entity, revision);
        let values = guest_types::hook_values(self.deps.clock.utc_ms());
        let entity_type = entity.entity_type.clone();
        let origin = TurnOrigin { entity_type, utc_ms: values.utc_ms, ..TurnOrigin::default() };
        let work =
            if matches!(first, FirstTurn::Migrate(_)) { Work::Migration } else { Work::Start };
        let figures = self.figures.of(&entity.entity_type, &work);
        let starting = contained(&self.deps.stats, async move {
            let began = Instant::now();
            let spec = InstanceSpec { identity, state: Box::new(source), values, records };
            match program.instantiate(spec).await {
                Ok(mut instance) => {
                    let turn = match first {
                        FirstTurn::Start(reason) => instance.start(reason).await,
                        FirstTurn::StartForQueries(reason) => {
                            instance.start_for_queries(reason).await
                        }
                        FirstTurn::Migrate(from_schema) => instance.migrate(from_schema).await,
                    };
                    figures.turn_ended(began.elapsed());
                    StartOutcome::Started(Box::new(instance), Box::new(turn), origin)
                }
                Err(error) => StartOutcome::Failed(error),
            }
        });
        self.tasks.push(
            TaskGroupKey::Turns(entity.entity_type.clone()),
            starting
                .map(move |started| {
                    let started = started.unwrap_or_else(StartOutcome::Panicked);
                    Completion::Started(id, entity, generation, started)
                })
                .boxed_local(),
        );
    }

    /// Takes the idle instance out of the machine's entry, to run it.
    fn take(&mut self, id: MachineId, entity: &Entity, generation: u64) -> Option<Box<Instance>> {
        let state = self.machines.get_mut(id)?;
        self.instance_slots.busy(&(state.machine.ownership().shard.clone(), entity.clone()));
        // Pekko #1463: a message must reach neither another entity's sandbox nor another generation of its own
        // entity.
        let live = state.instance_mut(entity, generation)?;
        if !matches!(live, InstanceState::Idle(_)) {
            return None;
        }
        match std::mem::replace(live, InstanceState::Starting) {
            InstanceState::Idle(instance) => {
                *live = InstanceState::Busy(instance.interrupt_handle(), WaitingTurn::default());
                state.running += 1;
                state.turns += 1;
                Some(instance)
            }
            other => {
                *live = other;
                None
            }
        }
    }

    fn run(
        &mut self,
        id: MachineId,
        (generation, turn, version): (u64, TurnId, u64),
        message: Arc<Message>,
        records: Option<Box<TurnRecords>>,
        mut span: Option<Span>,
    ) {
        let entity = message.target.clone();
        let abandoned = |waiting: &PendingReply| waiting.back.is_abandoned();
        if message.kind == MessageKind::Query
            && self.pending_replies.get(&message.reply_token).is_some_and(abandoned)
        {
            // An accepted command runs even if nothing waits for it any more (promise 8); running a query would be
            // pointless.
            fail(&mut span, codes::CALLER_GONE);
            return self.tasks.push_ready(Completion::Abandoned(id, entity, generation, turn));
        }
        self.figures.count_turn(&entity);
        let Some(mut instance) = self.take(id, &entity, generation) else {
            fail(&mut span, codes::INSTANCE_DROPPED);
            return self.tasks.push_ready(Completion::Turn(id, entity, generation, turn, None));
        };
        let now = self.deps.clock.now().mono;
        let key = self.deps.random_key.get();
        let traceparent = traceparent_of(span.as_ref(), &message).clone();
        let context =
            guest_types::message_context(&message, &traceparent, version, now, key, records);
        let tracestate = span.is_some().then(|| message.context.tracestate.clone());
        let (entity_type, utc_ms) = (message.target.entity_type.clone(), message.context.utc_ms);
        let origin = TurnOrigin { entity_type, traceparent, tracestate, utc_ms };
        // A command runs even if its reply is not awaited any more.
        let waiting = self.pending_replies.get(&message.reply_token);
        let charge = waiting.map(|waiting| waiting.charge.clone());
        let figures = waiting.map(|waiting| waiting.figures.clone());
        let figures = figures.unwrap_or_else(|| self.figures.of_message(&message));
        let running = contained(&self.deps.stats, async move {
            // Checked when the turn starts, since an earlier turn may have exhausted the reply budget after this
            // one was scheduled.
            if let Some(full) = charge.as_ref().and_then(|charge| charge.exceeded_reply_budget()) {
                fail(&mut span, BudgetExceeded::CODE);
                return (instance, Ran::Refused(full));
            }
            let began = Instant::now();
            let result =
                Box::new(instance.message(context, &message.method, message.body.clone()).await);
            figures.turn_ended(began.elapsed());
            if let ostraca_wasm::TurnResult::Failed(failure) = &result.result {
                fail(&mut span, failure.code);
            }
            drop(span);
            if let (Some(charge), ostraca_wasm::TurnResult::Ok(body)) = (charge, &result.result) {
                charge.set_reply_size(body.len() as u64);
            }
            (instance, Ran::Turn(result, origin))
        });
        self.tasks.push(
            TaskGroupKey::Turns(entity.entity_type.clone()),
            running
                .map(move |done| Completion::Turn(id, entity, generation, turn, Some(done)))
                .boxed_local(),
        );
    }

    fn fire(
        &mut self,
        id: MachineId,
        entity: Entity,
        (generation, turn): (u64, TurnId),
        firing: &Firing,
        records: TurnRecords,
    ) {
        self.figures.count_turn(&entity);
        let now = self.deps.clock.now().mono;
        self.deps.turn_quotas.charge(&entity.entity_type, now);
        let Some(mut instance) = self.take(id, &entity, generation) else {
            return self.tasks.push_ready(Completion::Turn(id, entity, generation, turn, None));
        };
        let figures = self.figures.of(&entity.entity_type, &Work::Timer);
        let key = self.deps.random_key.get();
        let (firing, values) = guest_types::timer_firing(&entity, firing, key);
        let entity_type = entity.entity_type.clone();
        let origin = TurnOrigin { entity_type, utc_ms: values.utc_ms, ..TurnOrigin::default() };
        let firing = contained(&self.deps.stats, async move {
            let began = Instant::now();
            let result = Box::new(instance.timer(&firing, values, records).await);
            figures.turn_ended(began.elapsed());
            (instance, Ran::Turn(result, origin))
        });
        self.tasks.push(
            TaskGroupKey::Turns(entity.entity_type.clone()),
            firing
                .map(move |done| Completion::Turn(id, entity, generation, turn, Some(done)))
                .boxed_local(),
        );
    }

    fn stop(
        &mut self,
        id: MachineId,
        entity: Entity,
        (generation, turn): (u64, TurnId),
        reason: StopReason,
        records: TurnRecords,
    ) {
        let Some(mut instance) = self.take(id, &entity, generation) else {
            return self.tasks.push_ready(Completion::Turn(id, entity, generation, turn, None));
        };
        let figures = self.figures.of(&entity.entity_type, &Work::Stop);
        let reason = guest_types::stop_reason(reason);
        let values = guest_types::hook_values(self.deps.clock.utc_ms());
        let entity_type = entity.entity_type.clone();
        let origin = TurnOrigin { entity_type, utc_ms: values.utc_ms, ..TurnOrigin::default() };
        let stopping = contained(&self.deps.stats, async move {
            let began = Instant::now();
            let result = Box::new(instance.stop(reason, values, records).await);
            figures.turn_ended(began.elapsed());
            (instance, Ran::Turn(result, origin))
        });
        self.tasks.push(
            TaskGroupKey::StopHooks(entity.entity_type.clone()),
            stopping
                .map(move |done| Completion::Turn(id, entity, generation, turn, Some(done)))
                .boxed_local(),
        );
    }

    /// The span of a message's turn, if its sender wants a trace.
    fn turn_span(&self, message: &Message) -> Option<Span> {
        let Message { target, method, context, .. } = message;
        let mut span = self.deps.tracer.span(
            &context.traceparent,
            &context.tracestate,
            Role::Internal,
            || format!("turn {}.{method}", target.entity_type).into(),
        )?;
        span.set_entity(&target.entity_type, &target.id);
        Some(span)
    }

    /// The span of a turn's commit, below that of the turn, whose result is being handled. A commit that the machine
    /// sends later, or that is no turn's of a guest, has none.
    fn commit_span(&self, commit: &Commit) -> Option<Span> {
        let (turn, origin) = self.turn_trace.as_ref()?;
        if commit.head.turn != *turn {
            return None;
        }
        let (parent, state) = (&origin.traceparent, origin.tracestate.as_deref()?);
        let mut span = self.deps.tracer.span(parent, state, Role::Client, || "commit".into())?;
        span.set("ostraca.records", i64::try_from(commit.writes.len()).unwrap_or(i64::MAX));
        Some(span)
    }

    fn drop_instance(&mut self, id: MachineId, entity: &Entity, generation: u64) {
        let Some(slot) = self.machines.get_mut(id) else { return };
        if let Some(InstanceState::Busy(interrupt, _)) = slot.remove_instance(entity, generation) {
            interrupt.interrupt();
        }
    }
}

/// Marks the span of a turn as failed.
fn fail(span: &mut Option<Span>, code: Code) {
    if let Some(span) = span {
        span.set("error.type", code.as_str());
        span.fail(code.as_str());
    }
}

/// The trace context of a turn: its own span's, or else what came with its message.
fn traceparent_of<'a>(span: Option<&'a Span>, message: &'a Message) -> &'a Arc<str> {
    span.map_or(&message.context.traceparent, Span::traceparent)
}

/// What an instance runs first.
enum FirstTurn {
    Start(ostraca_wasm::StartReason),
    /// The start of a second instance, which runs queries beside a waiting turn.
    StartForQueries(ostraca_wasm::StartReason),
    /// The migration from this schema, after which the instance is dropped.
    Migrate(u32),
}

/// What an entity has besides its state, whether or not there is anything.
fn all_records(records: Option<Box<ostraca_core::shard::TurnRecords>>) -> TurnRecords {
    records.map_or_else(TurnRecords::default, |records| turn_records(*records))
}

/// Whether a commit occupies the store for as long as many small ones.
fn writes_much(commit: &Commit) -> bool {
    commit.writes.len() > 64 || commit_bytes(commit) > 256 << 10
}
