//! A worker: one thread that carries out the actions of its shards' machines.
//!
//! It decides nothing on ownership, order or duplicates: it tells the machines what happened and does what they
//! say. Guests run here, off the network's threads; a guest that runs for long yields at each tick of the epoch,
//! so that the worker's other entities go on. All that one round of the loop asks of the store leaves as one
//! batch: that is where group commit begins.
//!
//! Confusing at first: a round's replies to this node's own gateway leave together at its end, those to other nodes at
//! once; and a machine's slot outlives the machine (see `slots`).

mod actions;
mod completions;
mod dispatch;
mod machines;
mod panics;
mod shards;
mod tasks;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::FutureExt;
use futures::stream::StreamExt;
use ostraca_core::ids::{Entity, Epoch, ShardId, ShardPath};
use ostraca_core::message::{Message, MessageKind, Outcome, ReplyToken};
use ostraca_core::records::{Claim, Commit};
use ostraca_core::shard::{Action, Event, InstanceSlots, Ownership, Settings, StopReason};
use ostraca_store::EntityStore;
use ostraca_wire::server::{Charge, Ticket};
use tokio::sync::{mpsc, oneshot};

use crate::clock::ClusterClock;
use crate::failing::LastFailure;
use crate::gateway::PendingMessage;
use crate::recording::Recorder;
use crate::stats::{Stats, WorkerGauges};
use crate::types::DeployedType;
use machines::{MachineId, MachineTable};
use tasks::Tasks;

/// How often the clock is looked at for deadlines and idle instances.
const TICK: Duration = Duration::from_millis(20);
/// Completions handled before new messages are taken, and messages before the batch leaves.
const ROUND: usize = 256;
/// After so long no further completion is handled in a round: what others wait for leaves first. A guest can take
/// milliseconds at once, in an instruction that copies or fills memory and is not interrupted.
const ROUND_TIME: Duration = Duration::from_millis(1);

/// What a worker is told.
pub(crate) enum Input {
    /// Messages for shards of this worker, in order.
    Messages(Vec<Delivery>),
    /// A type was deployed.
    TypeDeployed(Arc<DeployedType>),
    /// The lease was renewed by a request sent then, and holds so long.
    LeaseRenewed(u64, u64),
    /// A shard was assigned. A machine of a lower epoch is forgotten first; nothing happens if one of this epoch or a
    /// higher one stands, or if the worker stops.
    Adopt(Box<Ownership>),
    /// Give a shard up; [`Report::Stopped`] follows, at once if there is no machine of that epoch. Not if one of a
    /// higher epoch stands.
    StopShard { shard: ShardId, epoch: Epoch, reason: StopReason },
    /// A shard is another's: its machine is dropped and its instances are interrupted. Nothing is reported.
    DropShard { shard: ShardId, epoch: Epoch },
    /// The lease lapsed: no turn starts, in machines adopted later neither (R9).
    Suspend,
    /// It was renewed in the same life (R9).
    Resume,
    /// What is in memory of these entities of a shard?
    Inspect { shard: ShardId, entities: Vec<Entity>, answer: oneshot::Sender<ShardInspection> },
    /// Give every shard up; answered when no instance lives.
    Stop(oneshot::Sender<()>),
}

/// One message for a worker.
pub(crate) struct Delivery {
    pub(crate) shard: ShardId,
    /// Its token is unique on the node.
    pub(crate) message: Arc<Message>,
    pub(crate) reply_to: ReplyTo,
    /// What it costs its sender.
    pub(crate) charge: Arc<Charge>,
}

/// Where a message's answer goes.
pub(crate) enum ReplyTo {
    /// To this node's gateway, under the router's tag.
    Gateway {
        tag: u64,
        /// Who waits for it.
        pending: Option<PendingMessage>,
    },
    /// To the node that sent it, straight.
    Ticket(Ticket),
}

impl ReplyTo {
    /// Whether nobody can get the answer any more: its connection is closed.
    fn is_abandoned(&self) -> bool {
        match self {
            Self::Gateway { pending: parcel, .. } => {
                parcel.as_ref().is_some_and(PendingMessage::is_abandoned)
            }
            Self::Ticket(ticket) => ticket.is_closed(),
        }
    }
}

/// An answer for this node's gateway.
pub(crate) struct WorkerReply {
    pub(crate) tag: u64,
    pub(crate) outcome: Outcome,
    pub(crate) kind: MessageKind,
    /// Of the shard's machine; 0 if there is none here.
    pub(crate) epoch: Epoch,
}

/// Takes the answers of a round, all at once.
pub(crate) trait ReplySink: Send + Sync {
    /// Empties the list.
    fn deliver_replies(&self, answers: &mut Vec<WorkerReply>);
}

/// The answer to [`Input::Inspect`].
#[derive(Debug, Default)]
pub(crate) struct ShardInspection {
    /// Whether the shard's machine is here; if not, nothing is known of its entities.
    pub(crate) held: bool,
    /// In the order in which they were asked for.
    pub(crate) entities: Vec<EntityInspection>,
}

/// What is in memory of one entity.
#[derive(Clone, Debug, Default)]
pub(crate) struct EntityInspection {
    /// It has an instance.
    pub(crate) active: bool,
    /// Messages that wait for a turn of it.
    pub(crate) mailbox_length: usize,
    /// How its last turn failed, if it did.
    pub(crate) last_failure: Option<LastFailure>,
}

/// What a worker says.
pub(crate) enum WorkerReport {
    /// A shard's claim stands; said again when it was claimed anew (R3).
    ShardServing(ShardId, Epoch),
    /// A shard was given up: no instance of it lives, and no commit of it is under way.
    ShardStopped(ShardId, Epoch),
    /// A shard was refused: another claim stands.
    ShardLost(Box<Ownership>, Option<Box<Claim>>, String),
    /// The worker panicked, and its shards with it.
    Panicked(usize),
}

/// Says so if the worker panics: its shards would else be silent while the node looks well.
struct PanicReporter(usize, mpsc::UnboundedSender<WorkerReport>);

impl Drop for PanicReporter {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // Nobody to hear it: the node is going down.
            let _ = self.1.send(WorkerReport::Panicked(self.0));
        }
    }
}

/// What a worker is made of.
pub(crate) struct WorkerDeps {
    pub(crate) index: usize,
    pub(crate) settings: Settings,
    pub(crate) max_instances: usize,
    pub(crate) clock: Arc<ClusterClock>,
    pub(crate) entity_store: Arc<dyn EntityStore>,
    pub(crate) stats: Arc<Stats>,
    pub(crate) gauges: Arc<WorkerGauges>,
    pub(crate) recorder: Option<Recorder>,
    pub(crate) reports: mpsc::UnboundedSender<WorkerReport>,
    pub(crate) replies: Arc<dyn ReplySink>,
}

struct Worker {
    deps: WorkerDeps,
    /// The machine that a shard's messages go to; those before it may stay in `slots`, for what still comes for them.
    by_shard: HashMap<ShardId, MachineId>,
    machines: MachineTable,
    types: HashMap<Arc<str>, Arc<DeployedType>>,
    pending_replies: HashMap<ReplyToken, PendingReply>,
    /// The round's answers for the gateway.
    replies: Vec<WorkerReply>,
    instance_slots: InstanceSlots,
    tasks: Tasks,
    claims: Vec<(MachineId, Arc<Claim>)>,
    commits: Vec<(MachineId, Commit)>,
    loads: Vec<(MachineId, ShardPath, Entity, u64)>,
    renewed: Option<(u64, u64)>,
    suspended: bool,
    stopping: Option<oneshot::Sender<()>>,
    actions: Vec<Action>,
    /// The next machine that is told something panics.
    #[cfg(test)]
    panics: bool,
}

/// A message that was told to a machine and not answered yet.
struct PendingReply {
    slot: MachineId,
    back: ReplyTo,
    kind: MessageKind,
    charge: Arc<Charge>,
}

/// Runs a worker until its inputs end or it was told to stop and has.
pub(crate) async fn run(parts: WorkerDeps, mut inputs: mpsc::UnboundedReceiver<Input>) {
    let _watch = PanicReporter(parts.index, parts.reports.clone());
    let mut worker = Worker::new(parts);
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut looked = Instant::now();
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
            // Time must pass even when there is always something to do. The runtime's timers, guests' among them,
            // fire only when this task yields.
            if looked.elapsed() >= TICK {
                looked = Instant::now();
                worker.tick();
                tokio::task::yield_now().await;
            }
            continue;
        }
        tokio::select! {
            Some(done) = worker.tasks.next(), if !worker.tasks.is_empty() => worker.handle_completion(done),
            input = inputs.recv() => match input {
                Some(input) => worker.input(input),
                None => return worker.end(&mut inputs),
            },
            _ = ticks.tick() => worker.tick(),
        }
    }
}

impl Worker {
    fn new(parts: WorkerDeps) -> Self {
        Self {
            instance_slots: InstanceSlots::new(parts.max_instances),
            deps: parts,
            by_shard: HashMap::new(),
            machines: MachineTable::default(),
            types: HashMap::new(),
            pending_replies: HashMap::new(),
            replies: Vec::new(),
            tasks: Tasks::default(),
            claims: Vec::new(),
            commits: Vec::new(),
            loads: Vec::new(),
            renewed: None,
            suspended: false,
            stopping: None,
            actions: Vec::new(),
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
            // One that comes after the stop would never hear of it.
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
                // Whoever asked may have stopped waiting.
                let _ = answer.send(self.inspect(shard, &entities));
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
        let waiting = PendingReply { slot: id, back, kind: message.kind, charge };
        self.pending_replies.insert(message.reply_token, waiting);
        self.handle_event(id, Event::Message(message));
    }

    fn has_stopped(&self) -> bool {
        self.stopping.is_some()
            && self.machines.iter().all(|(_, slot)| slot.has_ended() && slot.running == 0)
    }

    /// Ends: what came too late is refused, and whoever still waits is told that nobody knows.
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
