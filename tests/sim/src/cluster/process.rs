//! One process of a node: its machines, its clock, and its pending work.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use ostraca_core::ids::{Entity, Epoch, NodeId, ShardId};
use ostraca_core::message::{MessageKind, Now, ReplyToken};
use ostraca_core::node::{self, NodeIdentity};
use ostraca_core::quota::Full;
use ostraca_core::rows::Member;
use ostraca_core::shard::{self, WorkerSlots};

use super::asks::AskingTurn;
use super::databases::ShardMap;
use super::gateway::Gateway;
use super::net::ConnId;
use crate::guest::Instance;
use crate::passivation::Delay;
use crate::timers;

/// Identifies a process. Never reused: a restarted node is another process.
pub(super) type Pid = usize;

/// A shard's machine and its pending work.
pub(super) struct Hosted {
    pub(super) epoch: Epoch,
    pub(super) machine: shard::Machine,
    /// The live instances, by entity and generation.
    pub(super) instances: BTreeMap<(Entity, u64), Instance>,
    /// The entities that had an instance here.
    pub(super) started: BTreeSet<Entity>,
    /// Pending activations, by entity and generation.
    pub(super) starting: BTreeSet<(Entity, u64)>,
    /// The pending activations that are migrations, with the revision that migrates.
    pub(super) migrating: BTreeMap<(Entity, u64), u64>,
    /// The generations of second instances.
    pub(super) second: BTreeSet<u64>,
    /// The turns that wait for asks, by entity and generation.
    pub(super) asking: BTreeMap<(Entity, u64), AskingTurn>,
    /// What the instances' last turns say about their passivation.
    pub(super) delays: BTreeMap<Entity, Delay>,
    /// Slots requested or held, by entity and generation.
    pub(super) slots: BTreeSet<(Entity, u64)>,
    /// The database in which its last claim was granted.
    pub(super) database: Option<u64>,
    /// The quotas that its namespace has used up, as it was last told.
    pub(super) full: Full,
    /// When the next tick is due, in the world's time.
    pub(super) armed: Option<u64>,
}

/// Who waits for a shard machine's reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReplyTo {
    /// This process's own gateway, which sent the message with this tag, and the message's kind.
    Gateway(ReplyToken, MessageKind),
    /// A peer, with the link of its message, the peer's own tag for it, and its kind.
    Peer(ConnId, u64, MessageKind),
}

/// A command from the node's machine to its shards, in transit between their threads.
#[derive(Clone, Debug)]
pub(super) enum Order {
    Adopt(ShardId, Epoch, Member),
    Stop(ShardId, Epoch, shard::StopReason),
    Forget(ShardId, Epoch),
    Renewed(u64, u64),
    /// A shard's own lease, from when and for how long.
    ShardLease(ShardId, Epoch, u64, u64),
    Suspend,
    Resume,
}

/// One process.
pub(super) struct Process {
    pub(super) site: usize,
    pub(super) node: NodeId,
    pub(super) alive: bool,
    pub(super) paused_until: u64,
    /// Until when its control thread is stalled, while its workers continue.
    pub(super) stalled_until: u64,
    /// Its clock has a random start, runs slightly fast or slow (the rate is in thousandths), and may have been paused.
    pub(super) offset: u64,
    pub(super) rate: u64,
    pub(super) stood: u64,
    /// When it started and when it last resumed from a pause, in the world's time.
    pub(super) started: u64,
    pub(super) woke: u64,
    /// When it last resumed and could tell from its clock that it had been paused.
    pub(super) woke_detected_at: u64,
    /// When the newest rows that it received became durable, in the world's time.
    pub(super) heard_at: u64,
    pub(super) machine: node::Machine,
    pub(super) identity: NodeIdentity,
    pub(super) settings: node::Settings,
    pub(super) script: Vec<(Now, node::Event, Vec<node::Action>)>,
    pub(super) armed: Option<u64>,
    pub(super) member: Option<Member>,
    /// Since when it has been suspended, by its own clock.
    pub(super) suspended: Option<u64>,
    /// Whether its claims were read and confirmed since it was suspended.
    pub(super) read_back: bool,
    pub(super) orders: VecDeque<Order>,
    /// Notifications from the shards to the node's machine, in transit.
    pub(super) shard_reports: VecDeque<node::Event>,
    pub(super) shards: BTreeMap<ShardId, Hosted>,
    pub(super) cap: WorkerSlots,
    pub(super) lease_sent: Option<u64>,
    /// How long its shards rely on the last renewal.
    pub(super) lease: u64,
    pub(super) shards_suspended: bool,
    pub(super) gateway: Gateway,
    pub(super) askers: BTreeMap<ReplyToken, (ReplyTo, ShardId, Epoch)>,
    /// Connections to the store: for rows, and for entities.
    pub(super) control: Option<ConnId>,
    pub(super) bulk: Option<ConnId>,
    /// Since when it has had the connection for rows, and when its lease last lapsed.
    pub(super) control_since: u64,
    pub(super) lapsed_at: u64,
    /// When it last got the answer to a write that took longer than the timeout for acknowledgements.
    pub(super) held_up_at: u64,
    pub(super) registered_at: u64,
    /// Links to peers, and the peers' addresses from rows.
    pub(super) links: BTreeMap<NodeId, (ConnId, Member)>,
    pub(super) addresses: BTreeMap<NodeId, usize>,
    /// When the `EntityStore` last answered anything, in the world's time.
    pub(super) store_answered: u64,
    /// By hand-off: when its begin-hand-off was first sent, and whether the owner was asked to stop the shard.
    pub(super) begun: BTreeMap<ostraca_core::rows::HandOffId, (u64, bool)>,
    pub(super) leaving: bool,
    /// When it lost an arbitration.
    pub(super) lost_at: Option<u64>,
    /// The flags that reached it: their numbers, and who sent them.
    pub(super) flags: BTreeSet<(u64, Member)>,
    /// Whether it cannot run a deployed type.
    pub(super) has_unrunnable_type: bool,
    /// The map of shards to databases that it knows, and the shards that it last found to be elsewhere.
    pub(super) map: Arc<ShardMap>,
    /// The shards that it served when loads were last measured.
    pub(super) measured: BTreeSet<(ShardId, Epoch)>,
    pub(super) misplaced: Vec<(ShardId, Epoch)>,
}

impl Process {
    /// The reading of its clock.
    pub(super) fn mono(&self, now: u64) -> u64 {
        self.offset + now.saturating_sub(self.stood) * self.rate / 1000
    }

    /// The world's time at which this clock shows `mono`.
    pub(super) fn world_time(&self, mono: u64) -> u64 {
        mono.saturating_sub(self.offset).saturating_mul(1000) / self.rate + self.stood + 1
    }

    /// When its control thread last resumed, after a pause of the thread or the process.
    pub(super) fn woke_late(&self) -> u64 {
        self.woke.max(self.stalled_until)
    }

    /// Whether it is running now.
    pub(super) fn awake(&self, now: u64) -> bool {
        self.alive && self.paused_until <= now
    }

    /// The time that its machines are given.
    pub(super) fn reads(&self, now: u64) -> Now {
        let incarnation = self.member.as_ref().map_or(0, |it| it.incarnation.counter);
        Now { mono: self.mono(now), cluster_time: now, utc: timers::utc(now, incarnation) }
    }
}
