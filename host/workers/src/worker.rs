//! A worker: one thread that carries out the actions of its shards' machines.
//!
//! It does not decide about ownership, order or duplicates: it passes events to the machines and executes their
//! actions. Guests run here, not on the network's threads; a guest that runs for a long time yields at each epoch tick,
//! so that the worker's other entities make progress. All store calls of one round of the loop are sent together: that
//! is where group commit begins.
//!
//! Confusing at first: replies to this node's own gateway are sent together at the end of a round, but those to other
//! nodes immediately; and a machine's entry outlives the machine (see `machines`).

mod actions;
mod activity;
mod asks;
mod calls;
mod completions;
mod dispatch;
mod figures;
mod flush_gate;
mod head_scans;
mod machines;
mod panics;
mod shards;
#[cfg(feature = "stepped")]
pub(crate) mod stepped;
mod stored_state;
mod tasks;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::FutureExt;
use futures::stream::StreamExt;
use ostraca_catalog::DeployedType;
use ostraca_core::ids::{Entity, ShardId, ShardPath, TurnId};
use ostraca_core::message::{Message, MessageKind, Outcome, ReplyToken};
use ostraca_core::quota::FullNamespaces;
use ostraca_core::records::{Claim, Commit};
use ostraca_core::shard::{Action, Event, StopReason, WorkerSlots};
use ostraca_stats::WorkStats;
use ostraca_trace::Span;
use ostraca_wire::server::Charge;
use tokio::sync::{mpsc, oneshot};

use crate::guest_types::TurnOrigin;
use crate::recording::Recorder;
use crate::{
    Delivery, EntityMessage, Input, ReplyTo, ReportSink, WorkerDeps, WorkerReply, WorkerReport,
};
pub use stored_state::StoredState;

use asks::StartedAsk;
use calls::CallUpdate;
use figures::Figures;
use flush_gate::FlushGate;
use head_scans::HeadScans;
use machines::{MachineId, MachineTable};
use tasks::Tasks;

/// Interval at which deadlines and idle instances are checked.
const TICK: Duration = Duration::from_millis(20);
/// Maximum number of completions that are handled before new inputs are accepted, and maximum number of inputs that are
/// accepted before the store calls are sent.
const ROUND: usize = 256;
/// After this time a round handles no further completions, so that output that others wait for is sent first. A guest
/// can take milliseconds for a single instruction that copies or fills memory, which cannot be interrupted.
const ROUND_TIME: Duration = Duration::from_millis(1);

/// Reports a panic of the worker. Otherwise its shards would stop responding while the node appears healthy.
struct PanicReporter(usize, ReportSink);

impl Drop for PanicReporter {
    fn drop(&mut self) {
        if std::thread::panicking() {
            (self.1)(WorkerReport::Panicked(self.0));
        }
    }
}

struct Worker {
    deps: WorkerDeps,
    recorder: Option<Recorder>,
    /// The machine that handles a shard's messages. Earlier machines may remain in `machines`, for events that still
    /// arrive for them.
    by_shard: HashMap<ShardId, MachineId>,
    machines: MachineTable,
    types: HashMap<Arc<str>, Arc<DeployedType>>,
    pending_replies: HashMap<ReplyToken, PendingReply>,
    /// The round's replies to the gateway.
    replies: Vec<WorkerReply>,
    /// The round's entity messages.
    messages: Vec<EntityMessage>,
    /// Asks that running guests have started. The worker keeps a sender, so the channel never closes.
    started_asks: (mpsc::UnboundedSender<StartedAsk>, mpsc::UnboundedReceiver<StartedAsk>),
    /// What happened to the outgoing calls of running guests; never closed either.
    call_updates: (mpsc::UnboundedSender<CallUpdate>, mpsc::UnboundedReceiver<CallUpdate>),
    /// Number of calls that have started and not ended.
    open_calls: usize,
    instance_slots: WorkerSlots,
    tasks: Tasks,
    claims: Vec<(MachineId, Arc<Claim>)>,
    /// Closed while there are `commits`.
    flush_gate: Arc<FlushGate>,
    commits: Vec<(MachineId, Commit, Option<Span>)>,
    /// The turn whose result is being handled.
    turn_trace: Option<(TurnId, TurnOrigin)>,
    loads: Vec<(MachineId, ShardPath, Entity, u64)>,
    head_scans: HeadScans,
    renewed: Option<(u64, u64)>,
    full: FullNamespaces,
    figures: Figures,
    suspended: bool,
    stopping: Option<oneshot::Sender<()>>,
    actions: Vec<Action>,
    /// Entities whose next turn is to fail as if it had trapped.
    #[cfg(feature = "stepped")]
    traps: std::collections::HashSet<Entity>,
    /// Makes the machine that gets the next event panic.
    #[cfg(test)]
    panics: bool,
}

/// A message that a machine has received but not answered yet.
struct PendingReply {
    slot: MachineId,
    back: ReplyTo,
    kind: MessageKind,
    charge: Arc<Charge>,
    received: Instant,
    /// Where its end is counted.
    figures: Arc<WorkStats>,
}

/// Runs a worker until its inputs end, or until it has stopped on request.
pub(crate) async fn run(
    parts: WorkerDeps,
    recorder: Option<Recorder>,
    mut inputs: mpsc::UnboundedReceiver<Input>,
) {
    let _watch = PanicReporter(parts.index, parts.reports.clone());
    let mut worker = Worker::new(parts, recorder);
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut checked = Instant::now();
    let flush_gate = worker.flush_gate.clone();
    loop {
        let mut busy = false;
        let began = Instant::now();
        for _ in 0..ROUND {
            let Some(Some(done)) = worker.tasks.next().now_or_never() else { break };
            worker.handle_completion(done);
            busy = true;
            if began.elapsed() >= ROUND_TIME {
                break;
            }
        }
        busy |= worker.start_asks();
        busy |= worker.update_calls();
        for _ in 0..ROUND {
            match inputs.try_recv() {
                Ok(input) => worker.input(input),
                Err(mpsc::error::TryRecvError::Empty) => break,
                Err(mpsc::error::TryRecvError::Disconnected) => return worker.end(&mut inputs),
            }
            busy = true;
        }
        worker.assign_instance_slots();
        worker.flush_store_calls();
        worker.flush_replies();
        if worker.has_stopped() {
            return worker.end(&mut inputs);
        }
        if busy {
            // Ticks and timers must not wait until there is no work: the runtime's timers, including the guests', fire
            // only when this task yields.
            if checked.elapsed() >= TICK {
                checked = Instant::now();
                worker.tick();
                tokio::task::yield_now().await;
            }
            continue;
        }
        tokio::select! {
            Some(done) = worker.tasks.next(), if !worker.tasks.is_empty() => worker.handle_completion(done),
            () = flush_gate.wanted() => {}
            Some(ask) = worker.started_asks.1.recv() => worker.start_ask(ask),
            Some(update) = worker.call_updates.1.recv() => worker.update_call(update),
            input = inputs.recv() => match input {
                Some(input) => worker.input(input),
                None => return worker.end(&mut inputs),
            },
            _ = ticks.tick() => worker.tick(),
        }
    }
}

impl Worker {
    fn new(parts: WorkerDeps, recorder: Option<Recorder>) -> Self {
        Self {
            instance_slots: WorkerSlots::new(parts.instance_limits, &parts.pool_instance_limits),
            figures: Figures::new(parts.stats.clone()),
            deps: parts,
            recorder,
            by_shard: HashMap::new(),
            machines: MachineTable::default(),
            types: HashMap::new(),
            pending_replies: HashMap::new(),
            replies: Vec::new(),
            messages: Vec::new(),
            started_asks: mpsc::unbounded_channel(),
            call_updates: mpsc::unbounded_channel(),
            open_calls: 0,
            tasks: Tasks::default(),
            claims: Vec::new(),
            flush_gate: Arc::default(),
            commits: Vec::new(),
            turn_trace: None,
            loads: Vec::new(),
            head_scans: HeadScans::default(),
            renewed: None,
            full: FullNamespaces::default(),
            suspended: false,
            stopping: None,
            actions: Vec::new(),
            #[cfg(feature = "stepped")]
            traps: std::collections::HashSet::new(),
            #[cfg(test)]
            panics: false,
        }
    }

    fn input(&mut self, input: Input) {
        match input {
            Input::Messages(messages) => {
                for delivery in messages {
                    self.message(delivery);
                }
            }
            Input::TypeDeployed(entry) => {
                self.deps.stats.failing_entities.deployed(&entry.name);
                self.types.insert(entry.name.clone(), entry.clone());
                self.broadcast_event(&|| Event::TypeDeployed {
                    entity_type: entry.name.clone(),
                    settings: entry.settings(),
                });
            }
            Input::LeaseRenewed(sent, lease) => {
                self.renewed = Some((sent, lease));
                self.broadcast_event(&|| Event::LeaseRenewed { sent_at: sent, lease });
            }
            Input::ShardLeaseRenewed { shard, epoch, sent_at, lease } => {
                self.renew_shard_lease(shard, epoch, sent_at, lease);
            }
            // A machine started after the stop would never be stopped.
            Input::Adopt(owner) if self.stopping.is_none() => self.adopt(*owner),
            Input::Adopt(_) => {}
            Input::StopShard { shard, epoch, reason } => self.stop_shard(shard, epoch, reason),
            Input::DropShard { shard, epoch } => self.forget(shard, epoch),
            Input::Suspend => {
                self.suspended = true;
                self.broadcast_event(&|| Event::Suspend);
            }
            Input::Resume => {
                self.suspended = false;
                self.broadcast_event(&|| Event::Resume);
            }
            Input::Inspect { shard, entities, answer } => {
                // The requester may have stopped waiting.
                let _ = answer.send(self.inspect(shard, &entities));
            }
            Input::MeasureShards { count_stored, answer } => {
                if count_stored {
                    self.broadcast_event(&|| Event::CountStored);
                }
                // The requester may no longer exist.
                let _ = answer.send(self.measure_shards());
            }
            Input::NamespacesFull(full) => {
                self.full = full.clone();
                self.broadcast_event(&|| Event::NamespacesFull(full.clone()));
            }
            Input::CountLive { entity_type, answer } => {
                // The requester may have stopped waiting.
                let _ = answer.send(self.count_live(&entity_type));
            }
            Input::EntityAnswer { shard, epoch, event } => {
                if let Some(id) = self.by_shard.get(&shard).copied()
                    && self.machines.get(id).is_some_and(|slot| slot.epoch() == epoch)
                {
                    self.handle_event(id, *event);
                }
            }
            Input::Stop(done) => {
                self.stopping = Some(done);
                self.stop_all(StopReason::HandedOff);
            }
        }
    }

    fn message(&mut self, Delivery { shard, message, reply_to: back, charge }: Delivery) {
        let Some(id) = self.by_shard.get(&shard).copied() else {
            return self.not_owner(shard, back, message.kind);
        };
        let figures = self.figures.of_message(&message);
        let (kind, received) = (message.kind, Instant::now());
        let waiting = PendingReply { slot: id, back, kind, charge, received, figures };
        self.pending_replies.insert(message.reply_token, waiting);
        if let Some(outcome) = self.quota_refusal(&message) {
            return self.reply(id, message.reply_token, outcome);
        }
        self.handle_event(id, Event::Message(message));
    }

    /// Refuses a message whose namespace has had its turns. What calls no guest is no turn.
    fn quota_refusal(&self, message: &Message) -> Option<Outcome> {
        if !message.calls_guest() {
            return None;
        }
        let now = self.deps.clock.now().mono;
        self.deps.turn_quotas.refusal(&message.target.entity_type, now)
    }

    fn has_stopped(&self) -> bool {
        self.stopping.is_some()
            && self.machines.iter().all(|(_, slot)| slot.has_ended() && slot.running == 0)
    }

    /// Ends the worker: handles the remaining inputs, and answers pending messages with an unknown outcome.
    fn end(mut self, inputs: &mut mpsc::UnboundedReceiver<Input>) {
        inputs.close();
        while let Ok(input) = inputs.try_recv() {
            self.input(input);
        }
        self.tick();
        self.abandon();
        self.flush_replies();
        if let Some(stopped) = self.stopping.take() {
            // The node may have stopped waiting.
            let _ = stopped.send(());
        }
    }
}
