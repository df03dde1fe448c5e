//! A state of the modelled cluster.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use ostraca_core::ids::{ClusterId, Epoch, NodeId, ShardId, ShardPath};
use ostraca_core::node::{ControlMessage, Machine, WriteError};
use ostraca_core::records::Claim;
use ostraca_core::rows::{HandOffId, Member, Row, RowKey};

use crate::proof::Proof;
use crate::scope::Budget;

/// The current time on all nodes' clocks. It is constant: as time passes, all stored times are moved back instead.
pub const NOW: u64 = 1_000;

/// The whole state.
#[derive(Clone, Debug)]
pub struct State {
    /// The nodes' processes, by number. `None` if the process is dead or has not been started yet.
    pub nodes: Vec<Option<Process>>,
    /// The `ClusterStore`.
    pub rows: BTreeMap<RowKey, (Row, u64)>,
    /// When each node's row was last renewed.
    pub renewed: BTreeMap<NodeId, u64>,
    /// The `EntityStore`'s claims.
    pub claims: BTreeMap<ShardId, Claim>,
    /// Messages in transit from one node to another, in order.
    pub links: BTreeMap<(usize, usize), VecDeque<(Member, ControlMessage)>>,
    /// Copies that may arrive at any time: sender, receiver, message.
    pub strays: Vec<(Member, usize, ControlMessage)>,
    /// Abandoned requests, which may still reach the store.
    pub delayed_requests: Vec<DelayedRequest>,
    /// The owners that rows have named, by shard and epoch.
    pub named: BTreeMap<(ShardId, Epoch), Member>,
    /// Epochs that their owner has given up.
    pub given_up: BTreeSet<(ShardId, Epoch)>,
    /// The hand-offs that rows have named.
    pub intents: BTreeSet<HandOffId>,
    /// The remaining fault budget.
    pub budget: Budget,
    /// Number of restarts so far.
    pub restarts: u64,
    /// The violated rule.
    pub broken: Option<&'static str>,
    /// The discarded state, if [`crate::proof`] checks it.
    pub proof: Option<Arc<Proof>>,
}

/// A running process of a node.
#[derive(Clone, Debug)]
pub struct Process {
    /// The production core.
    pub machine: Arc<Machine>,
    /// The machine's hash.
    pub digest: u64,
    /// The same machine without pruning, if [`crate::proof`] checks it.
    pub whole: Option<Arc<Machine>>,
    /// The process's calls to the stores, in order.
    pub calls: VecDeque<Call>,
    /// Row changes that the watch has not delivered yet. `None` if the process has no watch.
    pub watch: Option<VecDeque<(RowKey, Row, u64)>>,
    /// Its simplified shard machines.
    pub hosted: BTreeMap<ShardId, Hosted>,
    /// Whether its shards are suspended (R9).
    pub suspended: bool,
    /// Whether it is cut off from the `ClusterStore`.
    pub cut: bool,
    /// Whether its watch delivers nothing while everything else works.
    pub lag: bool,
    /// Whether it is paused by a signal.
    pub paused: bool,
}

/// A call to a store.
#[derive(Clone, Debug, Hash)]
pub enum Call {
    /// A read of all rows.
    List,
    /// A read of one row.
    Read(RowKey),
    /// A write that has not reached the store.
    Write(Write),
    /// The response to a write, in transit.
    Response(RowKey, u64, Result<u64, WriteError>),
    /// A read of claims.
    Claims(u64, Vec<ShardId>),
}

/// A compare-and-set.
#[derive(Clone, Debug, PartialEq, Hash)]
pub struct Write {
    /// The number of the machine's action.
    pub number: u64,
    /// The row's key.
    pub key: RowKey,
    /// The expected revision.
    pub expected: Option<u64>,
    /// The row's new value.
    pub row: Row,
}

/// An abandoned request.
#[derive(Clone, Debug, PartialEq, Hash)]
pub enum DelayedRequest {
    /// A node's compare-and-set.
    Write(usize, Write),
    /// A claim.
    Claim(Claim),
}

/// A shard's machine.
#[derive(Clone, Debug, Hash)]
pub struct Hosted {
    /// Its claim.
    pub claim: Claim,
    /// Its progress.
    pub phase: Phase,
    /// Until when its owner relies on the shard's lease, in a pool without a manager; 0 if it does not.
    pub lease_until: u64,
}

/// The progress of a shard's machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// The claim has not reached the store.
    Claiming,
    /// Another claim is current; the node does not know it yet.
    Refused(Epoch),
    /// The claim was granted and the shard serves; the node does not know it yet.
    Granted,
    /// The shard serves, and the node knows it.
    Serving,
    /// The machine was told to stop. The field says whether it was serving.
    Stopping(bool),
}

impl Phase {
    /// Whether the shard may have live instances.
    pub fn serves(self) -> bool {
        matches!(self, Self::Granted | Self::Serving | Self::Stopping(true))
    }
}

/// The claim of an incarnation on a shard.
pub fn claim_of(shard: ShardId, epoch: Epoch, member: &Member) -> Claim {
    Claim {
        cluster: ClusterId(1),
        shard: ShardPath { namespace: "d".into(), pool: "d".into(), shard },
        epoch,
        owner: member.clone(),
        number: 1,
        extensions: Default::default(),
    }
}

impl State {
    /// The name of a node.
    pub fn name(node: usize) -> NodeId {
        NodeId::from(["a", "b", "c"][node])
    }

    /// The number of a node.
    pub fn number(node: &NodeId) -> usize {
        match &*node.0 {
            "a" => 0,
            "b" => 1,
            _ => 2,
        }
    }

    /// Whether an incarnation has ended, according to the rows.
    pub fn has_ended(&self, member: &Member) -> bool {
        match self.rows.get(&RowKey::Node(member.node.clone())) {
            Some((Row::Node(row), _)) => {
                row.incarnation != member.incarnation
                    || row.status != ostraca_core::rows::NodeStatus::Live
            }
            _ => false,
        }
    }

    /// Running processes that are not paused by a signal.
    pub fn awake(&self) -> impl Iterator<Item = (usize, &Process)> {
        self.nodes.iter().enumerate().filter_map(|(number, process)| {
            Some((number, process.as_ref().filter(|process| !process.paused)?))
        })
    }

    /// Records a violated rule, unless one is recorded already.
    pub fn break_rule(&mut self, rule: &'static str) {
        self.broken.get_or_insert(rule);
    }

    /// The fingerprint by which states are compared.
    pub fn fingerprint(&self) -> u64 {
        hash(self)
    }
}

/// A hash that is the same in every run.
pub fn hash(of: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    hasher.finish()
}

impl Process {
    /// Prunes a changed machine and hashes it again. Whether the machine has new information is not part of a state:
    /// the machine may be nudged at any time instead.
    pub fn digest(&mut self) {
        let machine = Arc::make_mut(&mut self.machine);
        machine.prune_irrelevant();
        machine.nudge(false);
        self.digest = hash(machine);
    }
}

impl Hash for Process {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.digest, &self.calls, &self.watch, &self.hosted).hash(state);
        (self.suspended, self.cut, self.lag, self.paused).hash(state);
    }
}

impl Hash for State {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.nodes, &self.rows, &self.renewed, &self.claims).hash(state);
        (&self.links, &self.strays, &self.delayed_requests, &self.named).hash(state);
        (&self.given_up, &self.intents, &self.budget, self.restarts, self.broken).hash(state);
    }
}

impl PartialEq for State {
    fn eq(&self, other: &Self) -> bool {
        self.fingerprint() == other.fingerprint()
    }
}
