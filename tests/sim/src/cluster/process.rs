//! One process of a node: its machines, its clock, and its pending work.

use std::collections::{BTreeMap, VecDeque};

use ostraca_core::ids::{Entity, Epoch, NodeId, ShardId};
use ostraca_core::message::{MessageKind, Now, ReplyToken};
use ostraca_core::node::{self, NodeIdentity};
use ostraca_core::rows::Member;
use ostraca_core::shard::{self, InstanceSlots};

use super::gateway::Gateway;
use super::net::ConnId;
use crate::guest::Instance;

/// Identifies a process. Never reused: a restarted node is another one.
pub(super) type Pid = usize;

/// A shard's machine and what it runs.
pub(super) struct Hosted {
    pub(super) epoch: Epoch,
    pub(super) machine: shard::Machine,
    pub(super) instances: BTreeMap<Entity, Instance>,
    /// Pending activations, by entity.
    pub(super) starting: BTreeMap<Entity, u64>,
    /// Slots requested or held, by entity.
    pub(super) slots: BTreeMap<Entity, u64>,
    /// When a tick is due, in the world's time.
    pub(super) armed: Option<u64>,
}

/// Who waits for a shard machine's reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReplyTo {
    /// This process's own gateway, which sent the message with this tag, and the message's kind.
    Gateway(ReplyToken, MessageKind),
    /// A peer, by the link that its message came through, the peer's own name for it, and its kind.
    Peer(ConnId, u64, MessageKind),
}

/// What the node's machine told, on its way to the shards: its thread is another than theirs.
#[derive(Clone, Debug)]
pub(super) enum Order {
    Adopt(ShardId, Epoch, Member),
    Stop(ShardId, Epoch, shard::StopReason),
    Forget(ShardId, Epoch),
    Renewed(u64, u64),
    Suspend,
    Resume,
}

/// One process.
pub(super) struct Process {
    pub(super) site: usize,
    pub(super) node: NodeId,
    pub(super) alive: bool,
    pub(super) paused_until: u64,
    /// Its control thread is stalled until then, and its workers continue.
    pub(super) stalled_until: u64,
    /// Its clock starts anywhere, runs a little fast or slow, in thousandths, and may have stood still.
    pub(super) offset: u64,
    pub(super) rate: u64,
    pub(super) stood: u64,
    /// When it started, last woke from a pause, and how old its news of rows are, in the world's time.
    pub(super) started: u64,
    pub(super) woke: u64,
    /// When it last woke and could see by its clock that it had slept.
    pub(super) woke_detected_at: u64,
    pub(super) heard_at: u64,
    pub(super) machine: node::Machine,
    pub(super) identity: NodeIdentity,
    pub(super) settings: node::Settings,
    pub(super) script: Vec<(Now, node::Event, Vec<node::Action>)>,
    pub(super) armed: Option<u64>,
    pub(super) member: Option<Member>,
    /// The node machine said suspend, and not yet resume: since this time of its clock.
    pub(super) suspended: Option<u64>,
    /// Claims were read back, and found, since it was suspended.
    pub(super) read_back: bool,
    pub(super) orders: VecDeque<Order>,
    /// What the shards told the node's machine, on its way.
    pub(super) shard_reports: VecDeque<node::Event>,
    pub(super) shards: BTreeMap<ShardId, Hosted>,
    pub(super) cap: InstanceSlots,
    pub(super) lease_sent: Option<u64>,
    /// How long its shards rely on that.
    pub(super) lease: u64,
    pub(super) shards_suspended: bool,
    pub(super) gateway: Gateway,
    pub(super) askers: BTreeMap<ReplyToken, (ReplyTo, ShardId, Epoch)>,
    /// Connections to the store: for rows, and for entities.
    pub(super) control: Option<ConnId>,
    pub(super) bulk: Option<ConnId>,
    /// Since when it has the first, and when its lease last lapsed.
    pub(super) control_since: u64,
    pub(super) lapsed_at: u64,
    /// When a write was last answered that had taken longer than acknowledgements are waited for.
    pub(super) held_up_at: u64,
    pub(super) registered_at: u64,
    /// Links to peers, and the addresses that rows gave them.
    pub(super) links: BTreeMap<NodeId, (ConnId, Member)>,
    pub(super) addresses: BTreeMap<NodeId, usize>,
    /// The last `EntityStore` answer of any kind, in the world's time.
    pub(super) store_answered: u64,
    /// Terms and hand-offs: when it was first said that one begins, and whether it was handed on.
    pub(super) begun: BTreeMap<ostraca_core::rows::HandOffId, (u64, bool)>,
    pub(super) leaving: bool,
    /// It was told that it cannot run a deployed type.
    pub(super) has_unrunnable_type: bool,
}

impl Process {
    /// Its clock's reading.
    pub(super) fn mono(&self, now: u64) -> u64 {
        self.offset + now.saturating_sub(self.stood) * self.rate / 1000
    }

    /// When the world's clock shows what this one shows at `mono`.
    pub(super) fn world_time(&self, mono: u64) -> u64 {
        mono.saturating_sub(self.offset).saturating_mul(1000) / self.rate + self.stood + 1
    }

    /// When its control thread last went on after it stood still, alone or with the process.
    pub(super) fn woke_late(&self) -> u64 {
        self.woke.max(self.stalled_until)
    }

    /// Whether it runs now.
    pub(super) fn awake(&self, now: u64) -> bool {
        self.alive && self.paused_until <= now
    }

    /// What it reads as the time.
    pub(super) fn reads(&self, now: u64) -> Now {
        Now { mono: self.mono(now), cluster_time: now }
    }
}
