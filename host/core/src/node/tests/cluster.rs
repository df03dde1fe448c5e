//! Machines that share a store of rows, in virtual time. Shards serve and stop as soon as requested.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::assign::{AllocationStrategy, BuiltinStrategy};
use crate::ids::{Epoch, NodeId, ShardId};
use crate::message::Now;
use crate::node::{
    Action, ControlMessage, Event, Machine, Mutation, NodeIdentity, Notice, Settings, WriteError,
};
use crate::pools::Pools;
use crate::records::Claim;
use crate::rows::{HandOffId, Member, NodeStatus, Roles, Row, RowKey};

pub(super) const SHARDS: u32 = 12;
/// More events than any step of a test causes at one moment.
const MOST_EVENTS: u32 = 100_000;

/// One process.
pub(super) struct Node {
    pub(super) machine: Machine,
    /// Gets neither ticks nor messages.
    pub(super) paused: bool,
    pub(super) dead: bool,
    /// Its store calls are not executed: they fail or get no answer.
    pub(super) cut: bool,
    /// Its writes are executed, but the answers are lost.
    pub(super) unanswered: bool,
    /// Its shards take a long time to stop; `stops` lists the pending stops.
    pub(super) stuck: bool,
    pub(super) stops: Vec<(ShardId, Epoch)>,
    /// Its claims take a long time; `claims` lists the pending claims.
    pub(super) claims_slowly: bool,
    pub(super) claims: Vec<(ShardId, Epoch, Member)>,
    pub(super) suspended: bool,
    pub(super) left: bool,
    pub(super) lost: bool,
    pub(super) owns: BTreeMap<ShardId, (Epoch, Member)>,
    pub(super) held_back: Vec<ShardId>,
    /// Until when each shard may rely on a lease of its own.
    pub(super) shard_leases: BTreeMap<ShardId, u64>,
    pub(super) routes: BTreeMap<ShardId, Epoch>,
    pub(super) notices: Vec<Notice>,
}

pub(super) struct Cluster {
    pub(super) now: u64,
    pub(super) nodes: BTreeMap<NodeId, Node>,
    pub(super) rows: BTreeMap<RowKey, (Row, u64)>,
    pub(super) claims: BTreeMap<ShardId, (Epoch, Member)>,
    pub(super) revision: u64,
    /// All messages sent, for tests to inspect; `lose` selects the messages to drop.
    pub(super) sent_messages: Vec<(NodeId, NodeId, ControlMessage)>,
    pub(super) lose: fn(&ControlMessage) -> bool,
    /// Messages of a hand-off that were sent before any row contained its intent.
    pub(super) unannounced: Vec<ControlMessage>,
    /// Rows that were written, with their writers.
    pub(super) wrote: Vec<(NodeId, RowKey)>,
    /// Nodes without a watch: they learn rows from messages only.
    pub(super) unwatched: BTreeSet<NodeId>,
    /// Links on which messages are lost: sender and receiver.
    pub(super) cut_from_manager: BTreeSet<(NodeId, NodeId)>,
    /// Which processes were checked, and by whom; `finds_ended` lets a check find that a dead one has ended.
    pub(super) checks: Vec<(NodeId, Member)>,
    pub(super) finds_ended: bool,
    pub(super) settings: Settings,
    pub(super) pools: Pools,
    /// The roles beyond its usual ones that a node of this name has when it starts.
    pub(super) pool_roles: BTreeMap<String, Vec<String>>,
    /// The weights of nodes that have an unusual one when they start.
    pub(super) weights: BTreeMap<String, u32>,
    /// Nodes whose claims take a long time from their start.
    pub(super) slow_claims: BTreeSet<String>,
    pub(super) strategy: fn() -> Box<dyn AllocationStrategy>,
    inbox: VecDeque<(NodeId, Event)>,
}

impl Cluster {
    pub(super) fn new() -> Self {
        Self {
            now: 1_000,
            nodes: BTreeMap::new(),
            rows: BTreeMap::new(),
            claims: BTreeMap::new(),
            revision: 0,
            sent_messages: Vec::new(),
            lose: |_| false,
            unannounced: Vec::new(),
            wrote: Vec::new(),
            unwatched: BTreeSet::new(),
            cut_from_manager: BTreeSet::new(),
            checks: Vec::new(),
            finds_ended: false,
            settings: Settings::default(),
            pools: Pools::one(SHARDS),
            pool_roles: BTreeMap::new(),
            weights: BTreeMap::new(),
            slow_claims: BTreeSet::new(),
            strategy: || BuiltinStrategy::Average.build(),
            inbox: VecDeque::new(),
        }
    }

    pub(super) fn of(nodes: &[&str]) -> Self {
        let mut cluster = Self::new();
        for node in nodes {
            cluster.start(node);
            cluster.run(200);
        }
        cluster.run(5_000);
        cluster
    }

    pub(super) fn mutated(nodes: &[&str], mutation: Mutation) -> Self {
        let mut cluster = Self::new();
        cluster.settings.mutations.push(mutation);
        for node in nodes {
            cluster.start(node);
            cluster.run(200);
        }
        cluster.run(5_000);
        cluster
    }

    pub(super) fn start(&mut self, name: &str) {
        self.start_with(name, Roles::ALL, 1);
    }

    pub(super) fn start_with(&mut self, name: &str, roles: Roles, version: u64) {
        let node = NodeId::from(name);
        let identity = NodeIdentity {
            node: node.clone(),
            roles,
            version,
            addresses: vec![format!("{name}:1")],
            pool_roles: self.pool_roles.get(name).cloned().unwrap_or_default(),
            weight: self.weights.get(name).copied().unwrap_or(1),
            pools: self.pools.clone(),
            seed: self.now + name.len() as u64 + u64::from(name.as_bytes()[0]),
        };
        let machine = Machine::new(self.settings.clone(), identity, (self.strategy)());
        let process = Node {
            machine,
            paused: false,
            dead: false,
            cut: false,
            unanswered: false,
            stuck: false,
            stops: Vec::new(),
            claims_slowly: self.slow_claims.contains(name),
            claims: Vec::new(),
            suspended: false,
            left: false,
            lost: false,
            owns: BTreeMap::new(),
            held_back: Vec::new(),
            shard_leases: BTreeMap::new(),
            routes: BTreeMap::new(),
            notices: Vec::new(),
        };
        self.nodes.insert(node.clone(), process);
        self.carry_out(&node);
        self.settle();
    }

    pub(super) fn node(&mut self, name: &str) -> &mut Node {
        self.nodes.get_mut(&NodeId::from(name)).expect("a node of the test")
    }

    pub(super) fn now(&self) -> Now {
        Now { mono: self.now, cluster_time: self.now, utc: 0 }
    }

    pub(super) fn handle(&mut self, name: &str, event: Event) {
        self.inbox.push_back((name.into(), event));
        self.settle();
    }

    /// Advances the time.
    pub(super) fn run(&mut self, millis: u64) {
        let end = self.now + millis;
        while self.now < end {
            self.now += 10;
            for name in self.nodes.keys().cloned().collect::<Vec<_>>() {
                let node = &self.nodes[&name];
                if node.machine.next_wake().is_some_and(|wake| wake <= self.now) {
                    self.inbox.push_back((name.clone(), Event::Tick));
                }
                if !node.cut {
                    self.inbox.push_back((name, Event::StoreResponded { sent_at: self.now }));
                }
            }
            self.settle();
        }
    }

    /// Completes the delayed stops.
    pub(super) fn unstick(&mut self, name: &str) {
        let node = self.node(name);
        node.stuck = false;
        for (shard, epoch) in std::mem::take(&mut node.stops) {
            self.node(name).owns.remove(&shard);
            self.handle(name, Event::ShardStopped { shard, epoch });
        }
    }

    /// Grants the delayed claims.
    pub(super) fn grant_claims(&mut self, name: &str) {
        let node = self.node(name);
        node.claims_slowly = false;
        let held: BTreeSet<_> =
            node.machine.held_shards().map(|(shard, at, _)| (shard, at)).collect();
        let mut claims = std::mem::take(&mut node.claims);
        // Others were handed off before their claims were granted.
        claims.retain(|(shard, epoch, _)| held.contains(&(*shard, *epoch)));
        for (shard, epoch, member) in claims {
            self.claims.insert(shard, (epoch, member.clone()));
            self.node(name).owns.insert(shard, (epoch, member));
            self.handle(name, Event::ShardServing { shard, epoch });
        }
    }

    /// Disconnects a node from the store until its lease has just lapsed.
    pub(super) fn lapse(&mut self, name: &str) {
        self.node(name).cut = true;
        while !self.node(name).suspended {
            self.run(10);
        }
    }

    fn settle(&mut self) {
        let mut handled = 0;
        while let Some((name, event)) = self.inbox.pop_front() {
            handled += 1;
            assert!(handled < MOST_EVENTS, "the machines never settle; now {name} gets {event:?}");
            let now = self.now();
            let Some(node) = self.nodes.get_mut(&name) else { continue };
            if node.paused || node.dead {
                continue;
            }
            node.machine.handle(now, event);
            let wake = node.machine.next_wake();
            assert!(wake.is_none_or(|wake| wake > now.mono), "{name} would busy-loop: {wake:?}");
            self.carry_out(&name);
        }
    }

    fn carry_out(&mut self, name: &NodeId) {
        while let Some(action) = self.nodes.get_mut(name).and_then(|node| node.machine.poll()) {
            if let Some(event) = self.apply_action(name, action) {
                self.inbox.push_back((name.clone(), event));
            }
        }
    }

    fn apply_action(&mut self, name: &NodeId, action: Action) -> Option<Event> {
        let member = self.nodes[name].machine.member();
        let node = self.nodes.get_mut(name)?;
        match action {
            Action::ListRows if node.cut => Some(Event::RowsListed(None)),
            Action::ListRows => {
                let rows = self.rows.iter().map(|(key, (row, at))| (key.clone(), row.clone(), *at));
                Some(Event::RowsListed(Some(rows.collect())))
            }
            Action::ReadRow(_) if node.cut => None,
            Action::ReadRow(key) => {
                let value = self.rows.get(&key).cloned();
                Some(Event::RowObserved { key, value })
            }
            Action::WriteRow { request_id: number, .. } if node.cut => {
                Some(Event::RowWritten { request_id: number, result: Err(WriteError::Unknown) })
            }
            Action::WriteRow { request_id: number, key, expected, row } => {
                let standing = self.rows.get(&key).cloned();
                if standing.as_ref().map(|(_, at)| *at) != expected {
                    let result = Err(WriteError::Conflict(standing));
                    return Some(Event::RowWritten { request_id: number, result });
                }
                let unanswered = node.unanswered;
                self.revision += 1;
                self.rows.insert(key.clone(), (row.clone(), self.revision));
                self.wrote.push((name.clone(), key.clone()));
                for (other, node) in &self.nodes {
                    if !node.cut && !self.unwatched.contains(other) {
                        let value = Some((row.clone(), self.revision));
                        self.inbox.push_back((
                            other.clone(),
                            Event::RowObserved { key: key.clone(), value },
                        ));
                    }
                }
                let result = if unanswered { Err(WriteError::Unknown) } else { Ok(self.revision) };
                Some(Event::RowWritten { request_id: number, result })
            }
            Action::Send { to, message } => {
                self.sent_messages.push((name.clone(), to.clone(), message.clone()));
                if let ControlMessage::BeginHandOff { hand_off, .. }
                | ControlMessage::HandOff(hand_off) = &message
                    && !self.intents().contains(&hand_off.id)
                {
                    self.unannounced.push(message.clone());
                }
                if !(self.lose)(&message)
                    && !self.cut_from_manager.contains(&(name.clone(), to.clone()))
                    && let Some(from) = member
                {
                    self.inbox.push_back((to, Event::Received { from, message }));
                }
                None
            }
            Action::Suspend => {
                node.suspended = true;
                None
            }
            Action::Resume => {
                node.suspended = false;
                None
            }
            Action::ReadClaims { request_id: number, shards } => {
                let claims = shards.iter().map(|shard| self.claim(*shard)).collect();
                Some(Event::ClaimsRead { request_id: number, claims: Some(claims) })
            }
            Action::ShardLeaseRenewed { shard, sent_at, lease, .. } => {
                node.shard_leases.insert(shard, sent_at + lease);
                None
            }
            Action::StartShard { shard, epoch, member } if node.claims_slowly => {
                node.claims.push((shard, epoch, member));
                None
            }
            Action::StartShard { shard, epoch, member } => {
                let standing = self.claims.get(&shard);
                if let Some((standing, _)) = standing.filter(|(standing, _)| *standing >= epoch) {
                    let standing = Some(*standing);
                    return Some(Event::ShardLost { shard, epoch, current_epoch: standing });
                }
                self.claims.insert(shard, (epoch, member.clone()));
                node.owns.insert(shard, (epoch, member));
                Some(Event::ShardServing { shard, epoch })
            }
            Action::StopShard { shard, epoch, .. } if node.stuck => {
                node.stops.push((shard, epoch));
                None
            }
            Action::StopShard { shard, epoch, .. } => {
                node.owns.remove(&shard);
                Some(Event::ShardStopped { shard, epoch })
            }
            Action::DropShard { shard, .. } => {
                node.owns.remove(&shard);
                None
            }
            Action::BufferShard { shard, .. } => {
                node.held_back.push(shard);
                None
            }
            Action::CheckProcess { member } => {
                let ended = self.finds_ended && self.nodes[&member.node].dead;
                self.checks.push((name.clone(), member.clone()));
                ended.then_some(Event::ProcessEnded { member })
            }
            Action::Notify(notice) => {
                node.notices.push(notice);
                None
            }
            Action::ArbitrationLost { .. } => {
                node.lost = true;
                None
            }
            Action::Left => {
                node.left = true;
                None
            }
            Action::UpdateRoute { shard, epoch, .. } => {
                node.routes.insert(shard, epoch);
                None
            }
            Action::Registered(_)
            | Action::LeaseRenewed { .. }
            | Action::UpdatePeer { .. }
            | Action::Fenced => None,
        }
    }

    /// The hand-offs whose intents are in rows.
    pub(super) fn intents(&self) -> BTreeSet<HandOffId> {
        let rows = self.rows.values().filter_map(|(row, _)| match row {
            Row::Assignments(row) => {
                Some(row.assignments.iter().filter_map(|shard| shard.hand_off.as_ref()))
            }
            _ => None,
        });
        rows.flatten().map(|moving| moving.id).collect()
    }

    fn claim(&self, shard: ShardId) -> Option<Claim> {
        let (epoch, member) = self.claims.get(&shard)?;
        Some(Claim {
            cluster: crate::ids::ClusterId(1),
            shard: crate::ids::ShardPath { namespace: "d".into(), pool: "d".into(), shard },
            epoch: *epoch,
            owner: member.clone(),
            number: 1,
            extensions: Default::default(),
        })
    }

    /// How many shards each node owns according to the rows; checks that it serves them.
    pub(super) fn spread(&self) -> BTreeMap<String, usize> {
        let mut spread = BTreeMap::new();
        for (key, (row, _)) in &self.rows {
            let (RowKey::Assignments(chunk), Row::Assignments(row)) = (key, row) else { continue };
            for (place, row) in row.assignments.iter().enumerate() {
                let owner = row.owner.clone().expect("an owner");
                let shard = crate::rows::shard_at(*chunk, place);
                let node = &self.nodes[&owner.node];
                assert_eq!(node.owns.get(&shard), Some(&(row.epoch, owner.clone())), "{shard}");
                assert_eq!(row.hand_off, None, "{shard}");
                *spread.entry(owner.node.to_string()).or_insert(0) += 1;
            }
        }
        spread
    }

    pub(super) fn epochs(&self) -> BTreeMap<ShardId, Epoch> {
        let mut epochs = BTreeMap::new();
        for (key, (row, _)) in &self.rows {
            let (RowKey::Assignments(chunk), Row::Assignments(row)) = (key, row) else { continue };
            for (place, row) in row.assignments.iter().enumerate() {
                epochs.insert(crate::rows::shard_at(*chunk, place), row.epoch);
            }
        }
        epochs
    }

    /// The number of shards whose hand-off is written in their rows.
    pub(super) fn moving(&self) -> usize {
        self.rows
            .values()
            .filter_map(|(row, _)| match row {
                Row::Assignments(row) => {
                    Some(row.assignments.iter().filter(|s| s.hand_off.is_some()).count())
                }
                _ => None,
            })
            .sum()
    }

    pub(super) fn status(&self, name: &str) -> Option<NodeStatus> {
        match &self.rows.get(&RowKey::Node(name.into()))?.0 {
            Row::Node(row) => Some(row.status),
            _ => None,
        }
    }

    pub(super) fn incarnation(&self, name: &str) -> u64 {
        match &self.rows[&RowKey::Node(name.into())].0 {
            Row::Node(row) => row.incarnation.counter,
            _ => unreachable!("a node's row"),
        }
    }

    pub(super) fn manager(&self) -> (String, u64) {
        match &self.rows[&RowKey::Manager].0 {
            Row::Manager(row) => (row.holder.node.to_string(), row.term),
            _ => unreachable!("the manager's row"),
        }
    }
}
