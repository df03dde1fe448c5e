//! The cluster as this node sees it: what commands show, and what a start waits for.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, PoisonError};

use ostraca_sharding::ids::{Epoch, NodeId, ShardId};
use ostraca_sharding::message::Now;
use ostraca_sharding::node::{Machine, Notice};
use ostraca_sharding::rows::{ManagerRow, Member, NodeRow, ShardRow, Standing, shard_at};
use tokio::sync::watch;

use crate::clock::{boot_millis, wall_millis};

/// A moment's picture.
#[derive(Clone, Debug, Default)]
pub(crate) struct View {
    /// This node's life, once it is registered.
    pub(crate) member: Option<Member>,
    /// Its lease lapsed.
    pub(crate) suspended: bool,
    pub(crate) manager: Option<ManagerRow>,
    /// When the manager's row was last seen to change, on this node's clock.
    pub(crate) manager_since: u64,
    pub(crate) nodes: BTreeMap<NodeId, NodeRow>,
    /// In order; empty until the rows were read.
    pub(crate) shards: Vec<ShardRow>,
    /// What this node holds, and whether it serves it.
    pub(crate) held: BTreeMap<ShardId, (Epoch, bool)>,
    /// Hosts that cannot run every deployed type, with those types: known to the manager only.
    pub(crate) unfit: Vec<(NodeId, Vec<String>)>,
    /// It has left.
    pub(crate) left: bool,
}

impl View {
    pub(crate) fn of(machine: &Machine, now: Now, before: &Self) -> Self {
        let manager = machine.manager_row().cloned();
        let same = before.manager.as_ref().map(|row| row.term) == manager.as_ref().map(|r| r.term);
        let mut shards = Vec::new();
        for (chunk, row) in machine.assignments() {
            // A chunk that is missing leaves its place empty.
            shards.resize(shard_at(chunk, 0).0 as usize - 1, ShardRow::default());
            shards.extend(row.shards.iter().cloned());
        }
        Self {
            member: machine.member(),
            suspended: machine.suspended(),
            manager,
            manager_since: if same { before.manager_since } else { now.mono },
            nodes: machine.nodes().map(|(node, row)| (node.clone(), row.clone())).collect(),
            shards,
            held: machine.held().map(|(shard, epoch, serving)| (shard, (epoch, serving))).collect(),
            unfit: machine.unfit().map(|(node, types)| (node.clone(), types.to_vec())).collect(),
            left: before.left,
        }
    }

    /// Whether this life of a node lives, as far as its row says.
    pub(crate) fn alive(&self, member: &Member) -> bool {
        self.nodes.get(&member.node).is_some_and(|row| {
            row.incarnation == member.incarnation && row.standing == Standing::Live
        })
    }

    /// A shard's epoch, as far as its row says.
    pub(crate) fn epoch(&self, shard: ShardId) -> Epoch {
        self.row(shard).map_or_else(Epoch::default, |row| row.epoch)
    }

    /// Who owns a shard and lives, as far as rows say.
    pub(crate) fn owner(&self, shard: ShardId) -> Option<&Member> {
        self.row(shard)?.owner.as_ref().filter(|owner| self.alive(owner))
    }

    fn row(&self, shard: ShardId) -> Option<&ShardRow> {
        self.shards.get((shard.0 as usize).checked_sub(1)?)
    }

    /// Whether nodes other than that one drain and have not left: they need the store for it.
    pub(crate) fn others_leave(&self, me: &NodeId) -> bool {
        let leaves = |row: &NodeRow| row.standing == Standing::Live && row.is_emptied();
        self.nodes.iter().any(|(node, row)| node != me && leaves(row))
    }

    /// Whether nodes other than that one live.
    pub(crate) fn others_live(&self, me: &NodeId) -> bool {
        self.nodes.iter().any(|(node, row)| node != me && row.standing == Standing::Live)
    }

    /// Whether every shard has a live owner that this node knows, or nobody can own any; and all of its own serve.
    pub(crate) fn settled(&self, shards: u32) -> bool {
        let hosts = self
            .nodes
            .values()
            .any(|row| row.roles.host && row.standing == Standing::Live && !row.is_emptied());
        let owned = self
            .shards
            .iter()
            .filter(|row| row.owner.as_ref().is_some_and(|owner| self.alive(owner)))
            .count();
        let mine = |row: &ShardRow| row.owner.is_some() && row.owner == self.member;
        let named = self.shards.iter().filter(|row| mine(row)).count();
        let serving = self.held.values().filter(|(_, serving)| *serving).count();
        self.member.is_some()
            && (!hosts || (owned == shards as usize && serving >= named.min(owned)))
    }
}

/// One thing that happened.
#[derive(Clone, Debug)]
pub(crate) struct Happened {
    /// Counts this node's events, from 1.
    pub(crate) number: u64,
    /// Cluster time in milliseconds.
    pub(crate) at: u64,
    /// Milliseconds on this node's own clock.
    pub(crate) mono: u64,
    /// Milliseconds since 1970.
    pub(crate) wall_ms: u64,
    pub(crate) notice: Notice,
}

/// Events that are kept for whoever asks later.
const KEPT: usize = 4_096;

/// What happened in the cluster, as this node saw it: the last 4,096.
#[derive(Debug)]
pub(crate) struct Events {
    ring: Mutex<VecDeque<Happened>>,
    last: watch::Sender<u64>,
}

impl Default for Events {
    fn default() -> Self {
        Self { ring: Mutex::default(), last: watch::Sender::new(0) }
    }
}

impl Events {
    pub(crate) fn put(&self, at: u64, notice: Notice) {
        let mut ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        let number = ring.back().map_or(0, |last| last.number) + 1;
        let (mono, wall_ms) = (boot_millis(), wall_millis());
        ring.push_back(Happened { number, at, mono, wall_ms, notice });
        if ring.len() > KEPT {
            ring.pop_front();
        }
        drop(ring);
        self.last.send_replace(number);
    }

    /// Those after a number, at most so many.
    pub(crate) fn after(&self, number: u64, most: usize) -> Vec<Happened> {
        let ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        ring.iter().filter(|event| event.number > number).take(most).cloned().collect()
    }

    /// The number of the last one, and how to wait for more.
    pub(crate) fn watch(&self) -> watch::Receiver<u64> {
        self.last.subscribe()
    }
}
