//! The machine itself: what it knows, and how an event reaches the part that it concerns.
//!
//! Confusing at first: `view` is what rows were seen to be; `held` is what this node really has; the
//! manager's `chunks` are the rows that it has sealed. Each part works level-triggered: after every event
//! it looks at what is and does what is missing, so that a lost message or a crash of somebody else needs
//! no repair of its own.

mod canonical;
mod handlers;
mod manager;
mod manager_silence;
mod membership;
mod observed;
mod shards;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::action::{Action, Notice};
use super::control_message::{ControlMessage, HandOff, NodeReport, ReportedShard};
use super::event::{Event, WriteError};
use super::settings::{Mutation, Settings};
use crate::assign::{self, AllocationStrategy, MoveKind};
use crate::codec::FORMAT;
use crate::extensions::Extensions;
use crate::ids::{Epoch, Incarnation, NodeId, ShardId};
use crate::message::Now;
use crate::records::Claim;
use crate::rows::{
    Assignment, AssignmentsRow, HandOffId, HandOffIntent, ManagerRow, Member, NodeRow, NodeStatus,
    Roles, Row, RowKey, chunk_count, chunk_of, index_in_chunk, shard_at,
};
use crate::shard::StopReason;
pub use canonical::Canonicalizer;
use manager::Manager;
use membership::Membership;
use observed::ObservedCluster;
use shards::{HeldShard, Probation};

/// Who the node is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeIdentity {
    /// Its name.
    pub node: NodeId,
    /// What it does.
    pub roles: Roles,
    /// Its program's version ([`NodeRow::version`]).
    pub version: u64,
    /// Where it is reached.
    pub addresses: Vec<String>,
    /// Shards of the pool.
    pub shard_count: u32,
    /// Random: nonces and choices come from it.
    pub seed: u64,
}

/// One node's machine. Deterministic: the same events give the same actions.
#[derive(Clone, Debug)]
pub struct Machine {
    settings: Settings,
    identity: NodeIdentity,
    /// What the driver's wall clock said last: it stands in rows for people, and nothing is decided by it.
    wall: Option<u64>,
    strategy: Arc<dyn AllocationStrategy>,
    view: ObservedCluster,
    /// A watch runs, begun with the last list.
    watching: bool,
    /// A list is asked for and not answered.
    list_pending: bool,
    /// When to ask for the next list, if neither.
    list_at: u64,
    /// When anything was last handled: an observer that slept does not judge (R8).
    last_event_at: Option<u64>,
    membership: Membership,
    /// Another process may be renewing the lease of this node's name: the count that was seen, and when to look again.
    name_conflict: Option<((Incarnation, u64), u64)>,
    /// What this node wants to be: set by [`Event::Leave`] and [`Event::LeaveNow`].
    leave_mode: LeaveMode,
    held_shards: BTreeMap<ShardId, HeldShard>,
    /// Epochs that this life has given up: final (R11).
    released_epochs: BTreeMap<ShardId, Epoch>,
    /// Claims that the store refused, with the epoch that stands there, until the row goes above it.
    refused_claims: BTreeMap<ShardId, (Epoch, Epoch)>,
    /// The revision of each chunk that was acted on.
    applied_chunks: BTreeMap<u32, u64>,
    /// Chunks that are not as they were when they were acted on.
    changed_chunks: BTreeSet<u32>,
    report_at: Option<u64>,
    /// The number of the last report to another node.
    last_report_number: u64,
    /// Deployed types that this node cannot run (R24).
    unrunnable_types: Vec<String>,
    /// Shards of which rows wait for what this node has to tell the manager, each until when.
    awaiting_manager: BTreeMap<ShardId, u64>,
    /// When the `EntityStore` was last known to answer (R9).
    store_last_responded: u64,
    /// Set when this node gives its shards up for want of the store.
    probation: Option<Probation>,
    manager: Option<Manager>,
    /// Something changed that the manager decides from.
    decision_needed: bool,
    /// Since when the leadership is seen vacant.
    leadership_vacant_since: Option<u64>,
    /// When a row that was named and not seen may be asked for again.
    next_missing_row_read: u64,
    /// When a death or a drain whose writing was not answered is written again.
    write_retry_at: u64,
    pending_writes: BTreeMap<u64, WritePurpose>,
    drains: BTreeMap<NodeId, bool>,
    last_request_id: u64,
    random_counter: u64,
    next_wake: Option<u64>,
    actions: VecDeque<Action>,
    /// Chunks and shards looked at, for tests.
    #[cfg(test)]
    pub(super) visits: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum LeaveMode {
    Stay,
    AfterDrain,
    Immediate,
}

/// What a write under way is for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum WritePurpose {
    Register(NodeRow, u64),
    Renew(NodeRow, u64),
    Leave,
    SetManager(ManagerRow),
    Assignments(u32),
    MarkDead(NodeId),
    Drain(NodeId),
}

impl Machine {
    /// A node's machine; it begins by listing the rows.
    #[must_use]
    pub fn new(
        settings: Settings,
        identity: NodeIdentity,
        strategy: Box<dyn AllocationStrategy>,
    ) -> Self {
        Self {
            view: ObservedCluster::new(identity.shard_count),
            settings,
            identity,
            strategy: strategy.into(),
            watching: false,
            list_pending: true,
            wall: None,
            list_at: 0,
            last_event_at: None,
            membership: Membership::Unregistered,
            name_conflict: None,
            leave_mode: LeaveMode::Stay,
            held_shards: BTreeMap::new(),
            released_epochs: BTreeMap::new(),
            refused_claims: BTreeMap::new(),
            applied_chunks: BTreeMap::new(),
            changed_chunks: BTreeSet::new(),
            report_at: None,
            last_report_number: 0,
            unrunnable_types: Vec::new(),
            awaiting_manager: BTreeMap::new(),
            store_last_responded: 0,
            probation: None,
            manager: None,
            decision_needed: false,
            leadership_vacant_since: None,
            next_missing_row_read: 0,
            write_retry_at: 0,
            pending_writes: BTreeMap::new(),
            drains: BTreeMap::new(),
            last_request_id: 0,
            random_counter: 0,
            next_wake: None,
            actions: VecDeque::from([Action::ListRows]),
            #[cfg(test)]
            visits: 0,
        }
    }

    /// Takes an event.
    pub fn handle(&mut self, now: Now, event: Event) {
        self.check_clock_gap(now);
        self.check_lapse(now);
        // A thousand of these come at once, and change nothing that the manager decides from: its next event does.
        let minor = matches!(event, Event::ShardServing { .. } | Event::StoreResponded { .. });
        match event {
            Event::Tick => {}
            Event::RowsListed(rows) => self.on_listed(now, rows),
            Event::RowObserved { key, value } => self.on_row(now, key, value),
            Event::WatchLost => {
                self.watching = false;
                self.list_at = now.mono;
            }
            Event::RowWritten { request_id: number, result } => {
                self.on_written(now, number, result)
            }
            Event::Received { from, message: talk } => self.on_control_message(now, &from, talk),
            Event::ShardServing { shard, epoch } => self.on_serving(now, shard, epoch),
            Event::ShardStopped { shard, epoch } => self.on_held_shard_stopped(now, shard, epoch),
            Event::ShardLost { shard, epoch, current_epoch: standing } => {
                self.on_lost(now, shard, epoch, standing)
            }
            Event::StoreResponded { sent_at: sent } => {
                self.store_last_responded = self.store_last_responded.max(sent)
            }
            Event::ClaimsRead { request_id: number, claims } => self.on_claims(now, number, claims),
            Event::CachedRows(rows) => self.on_cached(rows),
            Event::UnrunnableTypes(mut types) => {
                types.truncate(NodeReport::MAX_UNRUNNABLE_TYPES);
                if self.unrunnable_types != types {
                    self.unrunnable_types = types;
                    self.report_soon(now);
                }
            }
            Event::Drain { node, draining } => {
                self.drains.insert(node, draining);
            }
            Event::LeaseSettingsChanged(agreed) => self.on_lease_settings(now, agreed),
            Event::Rebalance => self.request_rebalance(now),
            Event::NodeUnreachable { node } => {
                self.send_to_manager(now, ControlMessage::NodeUnreachable { node });
            }
            Event::Leave => self.leave_mode = self.leave_mode.max(LeaveMode::AfterDrain),
            Event::LeaveNow => self.leave_mode = LeaveMode::Immediate,
        }
        self.drive(now, minor);
    }

    /// The next thing to do.
    pub fn poll(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// When to send [`Event::Tick`], on the clock of [`Now::mono`].
    #[must_use]
    pub fn next_wake(&self) -> Option<u64> {
        self.next_wake
    }

    /// Whose machine it is.
    #[must_use]
    pub fn node(&self) -> &NodeId {
        &self.identity.node
    }

    /// What the driver's wall clock says, in milliseconds since 1970. Without it rows do not say it.
    pub fn set_unix_ms(&mut self, unix_ms: u64) {
        self.wall = Some(unix_ms);
    }

    /// Its present life in the cluster, if it is registered.
    #[must_use]
    pub fn member(&self) -> Option<Member> {
        self.membership.member().cloned()
    }

    /// The term in which it manages, if it does and has sealed every row.
    #[must_use]
    pub fn managing_term(&self) -> Option<u64> {
        self.manager.as_ref().filter(|manager| manager.sealed()).map(|manager| manager.term)
    }

    /// Whether its lease lapsed, so that its shards wait (R9).
    #[must_use]
    pub fn is_suspended(&self) -> bool {
        self.membership.suspended()
    }

    /// Live hosts that cannot run every deployed type, with those types, as they told this node: known to the manager
    /// only.
    pub fn hosts_with_unrunnable_types(&self) -> impl Iterator<Item = (&NodeId, &[String])> {
        let unfit = self.manager.iter().flat_map(move |_| &self.view.unrunnable_types);
        unfit
            .filter(move |(member, _)| self.view.alive(member))
            .map(|(member, types)| (&member.node, &types[..]))
    }

    /// The rows of nodes, as last seen.
    pub fn nodes(&self) -> impl Iterator<Item = (&NodeId, &NodeRow)> {
        self.view.nodes.iter().map(|(node, (row, _))| (node, row))
    }

    /// The manager's row, as last seen.
    #[must_use]
    pub fn manager_row(&self) -> Option<&ManagerRow> {
        self.view.manager.as_ref().map(|(row, _)| row)
    }

    /// Every chunk of assignments, as last seen, and its revision.
    pub fn assignment_rows(&self) -> impl Iterator<Item = (u32, &AssignmentsRow, u64)> {
        self.view.chunks.iter().map(|(chunk, (row, at))| (*chunk, row, *at))
    }

    /// What it holds: shard, epoch, whether it serves.
    pub fn held_shards(&self) -> impl Iterator<Item = (ShardId, Epoch, bool)> {
        self.held_shards.iter().map(|(shard, own)| (*shard, own.epoch, own.serving))
    }

    /// What a balancing would move now: shard, from, to. For a dry run, on any node.
    #[must_use]
    pub fn preview_rebalance(&self) -> Vec<(ShardId, NodeId, NodeId)> {
        let rows: Vec<_> = self.view.assignments().collect();
        let plan = manager::plan::from_rows(&self.view, &rows, self.identity.seed);
        let steps = self.strategy.rebalance(&plan.view, self.identity.shard_count as usize);
        let (steps, _) =
            assign::filter_valid_moves(&plan.view, steps, MoveKind::Rebalance(usize::MAX));
        steps
            .into_iter()
            .filter_map(|step| {
                let from = rows.get(step.shard.0 as usize - 1)?.1.owner.clone()?.node;
                Some((step.shard, from, plan.members.get(step.to)?.node.clone()))
            })
            .collect()
    }

    /// Everything that may be due.
    fn drive(&mut self, now: Now, minor: bool) {
        if !self.watching && !self.list_pending && now.mono >= self.list_at {
            self.list_pending = true;
            self.actions.push_back(Action::ListRows);
        }
        self.drive_membership(now);
        self.drive_shards(now);
        self.drive_manager_silence(now);
        self.drive_drains(now);
        if !minor {
            self.drive_manager(now);
        }
        self.drive_report(now);
        self.drive_leaving(now);
        let beat = self.settings.tick_interval();
        // What this node told itself while it decided.
        let again = self.decision_needed && !self.is_suspended() && self.managing_term().is_some();
        let beat = if again { 1 } else { beat };
        // One that is due and may not be made is no reason to wake.
        let reports = self.membership.member().is_some() && !self.is_suspended();
        let report = self.report_at.filter(|_| reports).unwrap_or(u64::MAX);
        self.next_wake = (!matches!(self.membership, Membership::Left))
            .then(|| self.membership.due().max(now.mono + 1).min(now.mono + beat).min(report));
    }

    fn write(&mut self, purpose: WritePurpose, key: RowKey, expected: Option<u64>, row: Row) {
        self.last_request_id += 1;
        self.pending_writes.insert(self.last_request_id, purpose);
        self.actions.push_back(Action::WriteRow {
            request_id: self.last_request_id,
            key,
            expected,
            row,
        });
    }

    /// Says something to a node, which may be this one.
    fn send(&mut self, now: Now, to: &NodeId, talk: ControlMessage) {
        match self.membership.member().cloned() {
            Some(me) if me.node == *to => self.on_control_message(now, &me, talk),
            _ => self.actions.push_back(Action::Send { to: to.clone(), message: talk }),
        }
    }

    fn send_to_manager(&mut self, now: Now, talk: ControlMessage) {
        if let Some(holder) = self.view.manager.as_ref().map(|(row, _)| row.holder.node.clone()) {
            self.send(now, &holder, talk);
        }
    }

    fn notify(&mut self, notice: Notice) {
        self.actions.push_back(Action::Notify(notice));
    }

    fn has_mutation(&self, mutation: Mutation) -> bool {
        self.settings.mutations.contains(&mutation)
    }

    /// A number that nobody can guess and that the same seed gives again.
    fn draw(&mut self) -> u64 {
        self.random_counter += 1;
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.identity.seed.to_le_bytes());
        hasher.update(&self.random_counter.to_le_bytes());
        let mut first = [0; 8];
        first.copy_from_slice(&hasher.finalize().as_bytes()[..8]);
        u64::from_le_bytes(first)
    }
}
