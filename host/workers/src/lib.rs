//! Runs shards: the core's shard machines and their guests, on dedicated threads.
//!
//! A worker is one thread, started by [`spawn`] and driven only by [`Input`]: the gateway sends it messages, the
//! control thread adopts, stops and drops shards, and the loader announces types to it. Its output goes to two
//! sinks that its owner chooses: replies through a [`ReplySink`], everything else through a [`ReportSink`]. It ends
//! after [`Input::Stop`], or when all senders of its inputs have been dropped.
//!
//! A shard stays on one worker, which [`worker_of`] returns. Nothing here decides about ownership, order or
//! duplicates.
//!
//! Confusing at first: a reply can leave in two ways. A message from this node's gateway is answered through the
//! sink, under the router's tag; a message that another node forwarded is answered immediately on its ticket.

mod error;
pub mod guest_types;
mod random_key;
pub mod recording;
mod turn_quotas;
mod worker;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use ostraca_catalog::clock::boot_millis;
use ostraca_catalog::{ClusterClock, DeployedType};
use ostraca_core::ids::{Entity, Epoch, ShardId, TurnId};
use ostraca_core::message::{Message, MessageKind, Outcome};
use ostraca_core::quota::FullNamespaces;
use ostraca_core::records::{Claim, GuestReply, Tell};
use ostraca_core::shard::{
    Ask, AskNote, Event, Ownership, Settings, SlotLimits, StopReason, StoredEntities,
};
use ostraca_stats::{LastFailure, Stats, WorkerGauges};
use ostraca_store::EntityStore;
use ostraca_trace::Tracer;
use ostraca_wire::proto;
use ostraca_wire::server::{Charge, Ticket};
use tokio::sync::{mpsc, oneshot};

pub use error::Error;
pub use random_key::RandomKey;
use recording::Recorder;
pub use turn_quotas::TurnQuotas;
pub use worker::StoredState;
#[cfg(feature = "stepped")]
pub use worker::stepped::SteppedWorker;

/// The dependencies and settings of a worker.
pub struct WorkerDeps {
    /// Its number on the node, from 0.
    pub index: usize,
    /// Settings of its machines.
    pub settings: Settings,
    /// Limits of its live instances.
    pub instance_limits: SlotLimits,
    /// Further limits of those of single pools, by the pool's name.
    pub pool_instance_limits: BTreeMap<Arc<str>, SlotLimits>,
    /// The node's clock.
    pub clock: Arc<ClusterClock>,
    /// The cluster's secret, from which turns get their random numbers. Set before any shard is assigned.
    pub random_key: Arc<OnceLock<RandomKey>>,
    /// The store in which its machines claim, load and commit.
    pub entity_store: Arc<dyn EntityStore>,
    /// The node's counters.
    pub stats: Arc<Stats>,
    /// Starts the spans of turns and commits.
    pub tracer: Tracer,
    /// What entities of namespaces with a quota may still run on the node.
    pub turn_quotas: TurnQuotas,
    /// Its own state, updated every 20 ms.
    pub gauges: Arc<WorkerGauges>,
    /// The directory in which the events and actions of its machines are recorded. Default `None`: no recording.
    pub recording_dir: Option<PathBuf>,
    /// Receives its reports.
    pub reports: ReportSink,
    /// Receives the replies that this node's gateway waits for.
    pub replies: Arc<dyn ReplySink>,
}

/// A started worker.
pub struct WorkerThread {
    /// Sends its inputs. The thread ends when all senders have been dropped.
    pub input: mpsc::UnboundedSender<Input>,
    /// The worker's thread.
    pub thread: std::thread::JoinHandle<()>,
}

/// Starts a worker on its own thread.
///
/// # Errors
/// [`Error::Recording`] or [`Error::Thread`].
pub fn spawn(parts: WorkerDeps) -> Result<WorkerThread, Error> {
    let recorder = recorder(&parts)?;
    let (input, inputs) = mpsc::unbounded_channel();
    let name = format!("ostraca-worker-{}", parts.index);
    let failed = |source| Error::Thread { name: name.clone(), source };
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().build().map_err(failed)?;
    let thread = std::thread::Builder::new()
        .name(name.clone())
        .spawn(move || runtime.block_on(worker::run(parts, recorder, inputs)))
        .map_err(failed)?;
    Ok(WorkerThread { input, thread })
}

fn recorder(parts: &WorkerDeps) -> Result<Option<Recorder>, Error> {
    let Some(dir) = &parts.recording_dir else { return Ok(None) };
    let recorder = Recorder::create(dir, parts.index, boot_millis());
    recorder.map(Some).map_err(|source| Error::Recording { path: dir.clone(), source })
}

/// The index of the worker that a shard is pinned to, given the number of workers.
#[must_use]
pub fn worker_of(shard: ShardId, workers: usize) -> usize {
    shard.0 as usize % workers.max(1)
}

/// A worker's input.
pub enum Input {
    /// Messages for shards of this worker, in order.
    Messages(Vec<Delivery>),
    /// A type was deployed.
    TypeDeployed(Arc<DeployedType>),
    /// The lease was renewed: when the request was sent, and the lease's duration from then, in milliseconds.
    LeaseRenewed(u64, u64),
    /// A shard was assigned. A machine of a lower epoch is dropped first. Nothing happens if there is a machine
    /// of this or a higher epoch, or if the worker is stopping.
    Adopt(Box<Ownership>),
    /// Stops a shard. [`WorkerReport::ShardStopped`] follows, immediately if there is no machine of that epoch.
    /// Nothing happens if there is a machine of a higher epoch.
    StopShard {
        /// The shard.
        shard: ShardId,
        /// The epoch of the machine to stop.
        epoch: Epoch,
        /// The reason that stop hooks get.
        reason: StopReason,
    },
    /// A shard now belongs to another node: its machine is dropped and its instances are interrupted. Nothing is
    /// reported.
    DropShard {
        /// The shard.
        shard: ShardId,
        /// The epoch of the machine to drop; a machine of another epoch is kept.
        epoch: Epoch,
    },
    /// The lease of one shard was renewed, in a pool without a manager (E8). Follows the shard's [`Input::Adopt`].
    ShardLeaseRenewed {
        /// The shard.
        shard: ShardId,
        /// The epoch of its machine; a machine of another epoch ignores it.
        epoch: Epoch,
        /// When the request was sent, on the node's clock.
        sent_at: u64,
        /// The lease's duration from then, in milliseconds.
        lease: u64,
    },
    /// The lease lapsed: no turn starts, not even in machines that are started later (R9).
    Suspend,
    /// The lease was renewed in the same incarnation (R9).
    Resume,
    /// Requests what this worker holds in memory for these entities of a shard.
    Inspect {
        /// The shard.
        shard: ShardId,
        /// Entities of the shard.
        entities: Vec<Entity>,
        /// Receives one result per entity, or none if the shard is not here.
        answer: oneshot::Sender<ShardInspection>,
    },
    /// Requests how many entities of a type have an instance here, by the revision that it runs.
    CountLive {
        /// The type.
        entity_type: Arc<str>,
        /// Receives the numbers.
        answer: oneshot::Sender<BTreeMap<u64, u64>>,
    },
    /// Requests what each shard of this worker has done, and what it holds in memory.
    MeasureShards {
        /// Whether to count stored entities, too: a later answer has them.
        count_stored: bool,
        /// The receiver of the figures.
        answer: oneshot::Sender<Vec<ShardFigures>>,
    },
    /// The namespaces that have used up a quota, in place of those in the last such input.
    NamespacesFull(FullNamespaces),
    /// The answer to a message that an entity of a shard sent.
    EntityAnswer {
        /// The entity's shard.
        shard: ShardId,
        /// The epoch of the machine that sent it; a machine of another epoch ignores the answer.
        epoch: Epoch,
        /// The answer.
        event: Box<Event>,
    },
    /// Stops every shard; answered when no instance is left.
    Stop(oneshot::Sender<()>),
}

/// A message that an entity sends to another one.
#[derive(Clone, Debug)]
pub struct EntityMessage {
    /// The sender's shard, which is on this node.
    pub shard: ShardId,
    /// The epoch of its machine.
    pub epoch: Epoch,
    /// The sender.
    pub from: Entity,
    /// The target.
    pub to: Entity,
    /// The content of the message.
    pub content: EntityMessageContent,
}

/// What an entity sends to another one (R19, R20).
#[derive(Clone, Debug)]
pub enum EntityMessageContent {
    /// A tell with its number.
    Tell(u64, Arc<Tell>),
    /// An ask, the turn that waits for the answer, and how long it still waits, in milliseconds.
    Ask(TurnId, Arc<Ask>, u64),
    /// A note about asks that may wait for each other (R20).
    AskNote(AskNote),
    /// Asks the target for the number of the first tell that it may still send to this entity.
    FirstTell,
}

impl EntityMessage {
    /// Converts the outcome of the message into an event for its sender's machine. `None` if the machine needs no
    /// event.
    #[must_use]
    pub fn answer(&self, outcome: Outcome) -> Option<Event> {
        Some(match &self.content {
            EntityMessageContent::Ask(turn, ask, _) => {
                Event::AskAnswered { asker: self.from.clone(), turn: *turn, id: ask.id, outcome }
            }
            EntityMessageContent::AskNote(_) if matches!(outcome, Outcome::Final { .. }) => {
                return None;
            }
            EntityMessageContent::AskNote(note) => Event::AskNoteLost {
                entity: self.from.clone(),
                target: self.to.clone(),
                note: note.clone(),
            },
            EntityMessageContent::Tell(number, tell) => Event::TellAnswered {
                sender: self.from.clone(),
                target: self.to.clone(),
                number: *number,
                created_ms: tell.created_ms,
                outcome,
            },
            EntityMessageContent::FirstTell => {
                let first = match outcome {
                    Outcome::Final { reply: GuestReply::Result(body), .. } => {
                        <[u8; 8]>::try_from(&body[..]).ok().map(u64::from_be_bytes)
                    }
                    _ => None,
                };
                Event::SenderAnswered {
                    entity: self.from.clone(),
                    sender: self.to.clone(),
                    first: first.map(|first| (first < u64::MAX).then_some(first)),
                }
            }
        })
    }
}

/// One message for a worker.
pub struct Delivery {
    /// The shard of its entity, which must belong to this worker.
    pub shard: ShardId,
    /// The message. Its reply token is unique on the node.
    pub message: Arc<Message>,
    /// Where the reply is sent.
    pub reply_to: ReplyTo,
    /// Its charge against the sender's budget.
    pub charge: Arc<Charge>,
}

/// Where the reply to a message is sent.
pub enum ReplyTo {
    /// To this node's gateway, under the router's tag.
    Gateway {
        /// Returned in [`WorkerReply::tag`].
        tag: u64,
        /// The sender that waits for the reply.
        caller: Arc<dyn Caller>,
    },
    /// Directly to the node that forwarded it.
    Ticket(Ticket),
}

impl ReplyTo {
    /// Whether the reply can no longer be received, because the connection is closed.
    pub(crate) fn is_abandoned(&self) -> bool {
        match self {
            Self::Gateway { caller, .. } => caller.is_abandoned(),
            Self::Ticket(ticket) => ticket.is_closed(),
        }
    }
}

/// The sender of a message that this node's gateway accepted.
pub trait Caller: Send + Sync {
    /// Whether the reply can no longer be received. Once true, it must remain true.
    fn is_abandoned(&self) -> bool;
}

/// A reply for this node's gateway.
pub struct WorkerReply {
    /// The tag of its [`ReplyTo::Gateway`].
    pub tag: u64,
    /// The message's outcome.
    pub outcome: Outcome,
    /// Whether it was a command or a query.
    pub kind: MessageKind,
    /// The epoch of the shard's machine; 0 if there is none here.
    pub epoch: Epoch,
}

/// Receives the replies of a worker, on the worker's thread; must not block.
pub trait ReplySink: Send + Sync {
    /// Takes all replies of a round, and drains the list.
    fn deliver_replies(&self, answers: &mut Vec<WorkerReply>);

    /// Sends all entity messages of a round, and drains the list. Each is answered with an [`Input::EntityAnswer`].
    fn send_messages(&self, messages: &mut Vec<EntityMessage>);
}

/// The response to [`Input::Inspect`].
#[derive(Debug, Default)]
pub struct ShardInspection {
    /// Whether this worker has the shard's machine; if not, nothing is known about the shard's entities.
    pub held: bool,
    /// In the order of the request.
    pub entities: Vec<EntityInspection>,
}

/// What a worker holds in memory for one entity.
#[derive(Clone, Debug, Default)]
pub struct EntityInspection {
    /// Whether the entity has an instance.
    pub active: bool,
    /// Number of messages that wait for a turn of the entity.
    pub mailbox_length: usize,
    /// The failure of its last turn, if that turn failed.
    pub last_failure: Option<LastFailure>,
    /// The revision that its instance runs; 0 without an instance.
    pub running_revision: u64,
    /// The revision to which it could not be migrated, and why.
    pub failed_migration: Option<(u64, Arc<str>)>,
    /// What the shard's machine has in memory about it; `None` if the owner's release does not know that.
    pub activity: Option<proto::EntityActivity>,
}

/// What one shard has done since this node got it, and what it holds in memory (K37, K38).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardFigures {
    /// The shard.
    pub shard: ShardId,
    /// The epoch of its assignment.
    pub epoch: Epoch,
    /// Whether it is being served.
    pub serving: bool,
    /// Turns that have begun, of any kind.
    pub turns: u64,
    /// Bytes of commits that were sent to the store.
    pub committed_bytes: u64,
    /// Bytes of the memory of its instances.
    pub memory_bytes: u64,
    /// Messages that wait for a turn.
    pub queued: u64,
    /// How many entities of each type have an instance. An entity that was only queried counts too.
    pub live: BTreeMap<Arc<str>, u64>,
    /// What is stored of each type; `None` if it has not been counted since this node got the shard.
    pub stored: Option<BTreeMap<Arc<str>, StoredEntities>>,
}

impl ShardFigures {
    /// How many of its entities have an instance.
    #[must_use]
    pub fn live_entities(&self) -> u64 {
        self.live.values().sum()
    }
}

/// Receives the reports of workers, on their threads; must not block.
pub type ReportSink = Arc<dyn Fn(WorkerReport) + Send + Sync>;

/// What a worker reports about its shards.
pub enum WorkerReport {
    /// A shard's claim is confirmed. Sent again when the shard is claimed again (R3).
    ShardServing(ShardId, Epoch),
    /// A failure of one of the shard's entities is escalated: the shard should move to another host (K33).
    ShardEscalated(ShardId, Epoch),
    /// A shard was stopped: no instance of it is left, and no commit of it is pending.
    ShardStopped(ShardId, Epoch),
    /// A shard's claim was refused, because another claim is current.
    ShardLost(Box<Ownership>, Option<Box<Claim>>, String),
    /// An entity could not be migrated, and stays on an earlier revision (R24).
    MigrationFailed {
        /// Its type.
        entity_type: Arc<str>,
        /// The revision to which it was to be migrated.
        revision: u64,
        /// The entity and the reason.
        why: String,
    },
    /// The worker panicked, and its shards are lost.
    Panicked(usize),
}
