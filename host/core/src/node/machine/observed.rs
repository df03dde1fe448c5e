//! The rows as last observed, the state of the list and the watch, when each lease was last seen to change, and whether
//! the leadership is vacant.
//!
//! Confusing at first: some of this state does not come from rows. What hosts report to this node while it is the
//! manager (no store, types that they cannot run), and which of them do not report, determines who gets shards, so it
//! is kept alongside the rows of the hosts.

mod learn;
mod processes;
mod routes;

use std::collections::{BTreeMap, BTreeSet};

use self::processes::Processes;
use super::context::Context;
use crate::ids::{Epoch, NodeId, ShardId};
#[cfg(any(test, feature = "testing"))]
use crate::node::Canonicalizer;
use crate::node::{Action, ControlMessage, HandOff, Notice};
use crate::pools::{Pool, Pools};
use crate::rows::{
    Assignment, AssignmentsRow, ManagerRow, Member, NodeRow, NodeStatus, Row, RowKey, chunk_of,
    index_in_chunk, shard_at,
};

#[derive(Clone, Debug, Hash)]
pub(super) struct ObservedCluster {
    nodes: BTreeMap<NodeId, (NodeRow, u64)>,
    manager: Option<(ManagerRow, u64)>,
    chunks: BTreeMap<u32, (AssignmentsRow, u64)>,
    /// Whether a watch, started with the last list, is running.
    watching: bool,
    /// Whether a list was requested and has not been answered.
    list_pending: bool,
    /// When to request the next list, if no watch is running and no list is pending.
    list_at: u64,
    /// When a missing row that other rows name may be read again.
    next_missing_row_read: u64,
    /// When each node's lease was last seen to change, on this node's clock (R8).
    lease_changed_at: BTreeMap<NodeId, u64>,
    processes: Processes,
    /// When the leadership was first seen to be vacant.
    leadership_vacant_since: Option<u64>,
    /// Incarnations whose last report says that their `EntityStore` does not respond: reported to the manager only
    /// (R9).
    without_store: BTreeSet<Member>,
    /// Incarnations whose last report names deployed types that they cannot run: reported to the manager only (R24).
    unrunnable_types: BTreeMap<Member, Vec<String>>,
    /// Nodes that have not reported to the manager for a long time: known only to the manager (S12).
    unresponsive: BTreeSet<NodeId>,
    /// The last published route of each shard: epoch, live owner, whether a hand-off is in progress.
    routes: Vec<(Epoch, Option<Member>, bool)>,
}

impl ObservedCluster {
    /// Nothing has been observed yet; the caller requests the first list.
    pub(super) fn new(shard_count: u32) -> Self {
        Self {
            nodes: BTreeMap::new(),
            manager: None,
            chunks: BTreeMap::new(),
            watching: false,
            list_pending: true,
            list_at: 0,
            next_missing_row_read: 0,
            lease_changed_at: BTreeMap::new(),
            processes: Processes::default(),
            leadership_vacant_since: None,
            without_store: BTreeSet::new(),
            unrunnable_types: BTreeMap::new(),
            unresponsive: BTreeSet::new(),
            routes: vec![(Epoch(0), None, false); shard_count as usize],
        }
    }

    // The list and the watch.

    /// Whether changes of rows are being watched.
    pub(super) fn is_watching(&self) -> bool {
        self.watching
    }

    /// Schedules a new list of the rows, no earlier than `at`.
    pub(super) fn relist_at(&mut self, at: u64) {
        self.watching = false;
        self.list_at = at;
    }

    pub(super) fn drive_list(&mut self, context: &mut Context) {
        if !self.watching && !self.list_pending && context.mono() >= self.list_at {
            self.list_pending = true;
            context.push(Action::ListRows);
        }
    }

    pub(super) fn on_list_failed(&mut self, context: &Context) {
        self.list_pending = false;
        self.list_at = context.mono() + context.settings.store_retry_interval;
    }

    pub(super) fn on_watch_began(&mut self) {
        self.list_pending = false;
        self.watching = true;
    }

    /// Reads the rows of nodes that other rows name and that have not been seen yet.
    pub(super) fn read_missing_rows(
        &mut self,
        context: &mut Context,
        nodes: impl IntoIterator<Item = NodeId>,
    ) {
        if context.mono() < self.next_missing_row_read {
            return;
        }
        for node in nodes {
            self.next_missing_row_read = context.mono() + context.settings.store_retry_interval;
            context.read(RowKey::Node(node));
        }
    }

    // Rows.

    /// A node's row and its revision.
    pub(super) fn node(&self, node: &NodeId) -> Option<&(NodeRow, u64)> {
        self.nodes.get(node)
    }

    pub(super) fn nodes(&self) -> impl Iterator<Item = (&NodeId, &NodeRow)> {
        self.nodes.iter().map(|(node, (row, _))| (node, row))
    }

    /// The manager's row and its revision.
    pub(super) fn manager(&self) -> Option<&(ManagerRow, u64)> {
        self.manager.as_ref()
    }

    pub(super) fn manager_row(&self) -> Option<&ManagerRow> {
        self.manager.as_ref().map(|(row, _)| row)
    }

    /// The term of the manager's row; 0 if there is none.
    pub(super) fn manager_term(&self) -> u64 {
        self.manager_row().map_or(0, |row| row.term)
    }

    /// A chunk of assignments and its revision.
    pub(super) fn chunk(&self, chunk: u32) -> Option<&(AssignmentsRow, u64)> {
        self.chunks.get(&chunk)
    }

    pub(super) fn chunks(&self) -> impl Iterator<Item = (u32, &AssignmentsRow, u64)> {
        self.chunks.iter().map(|(chunk, (row, at))| (*chunk, row, *at))
    }

    /// Every shard's row, in order.
    pub(super) fn assignments(&self) -> impl Iterator<Item = (ShardId, &Assignment)> {
        self.chunks.iter().flat_map(|(chunk, (row, _))| {
            row.assignments.iter().enumerate().map(|(place, row)| (shard_at(*chunk, place), row))
        })
    }

    pub(super) fn assignment(&self, shard: ShardId) -> Option<&Assignment> {
        self.chunks.get(&chunk_of(shard))?.0.assignments.get(index_in_chunk(shard))
    }

    // Leases.

    /// Treats every lease as just renewed.
    pub(super) fn restart_lease_timers(&mut self, now: u64) {
        for at in self.lease_changed_at.values_mut() {
            *at = now;
        }
    }

    /// Whether this incarnation may still own shards, according to its row.
    pub(super) fn alive(&self, member: &Member) -> bool {
        self.nodes.get(&member.node).is_some_and(|(row, _)| {
            row.incarnation == member.incarnation && row.status == NodeStatus::Live
        })
    }

    /// Whether this incarnation has ended; `None` if its row has not been seen yet, or only that of an earlier one.
    pub(super) fn has_ended(&self, member: &Member) -> Option<bool> {
        let (row, _) = self.nodes.get(&member.node)?;
        if row.incarnation == member.incarnation {
            return Some(row.status != NodeStatus::Live);
        }
        (row.incarnation.counter > member.incarnation.counter).then_some(true)
    }

    /// Whether a node's lease has not been seen to change for `span` (R8).
    pub(super) fn lease_unchanged_for(&self, node: &NodeId, now: u64, span: u64) -> bool {
        self.lease_changed_at.get(node).is_some_and(|at| now.saturating_sub(*at) >= span)
    }

    /// Whether a node's lease has not been seen to change for the duration in its own row plus `margin` (R8), or the
    /// node's process is known to have ended (R9).
    pub(super) fn lapsed(&self, node: &NodeId, now: u64, margin: u64) -> bool {
        self.nodes.get(node).is_some_and(|(row, _)| {
            self.processes.has_ended(node, row.incarnation)
                || self.lease_unchanged_for(node, now, row.lease.saturating_add(margin))
        })
    }

    /// Whether a node's lease was seen to change within half its duration.
    pub(super) fn is_renewing(&self, node: &NodeId, now: u64) -> bool {
        self.nodes
            .get(node)
            .is_some_and(|(row, _)| !self.lease_unchanged_for(node, now, row.lease / 2))
    }

    /// Every node that is live according to its row.
    pub(super) fn all_live(&self) -> impl Iterator<Item = (&NodeId, &NodeRow)> {
        self.nodes().filter(|(_, row)| row.status == NodeStatus::Live)
    }

    /// The number of live hosts of some kind that are not about to leave, including those that cannot serve now.
    pub(super) fn count_hosts_that_stay(&self, is_host: impl Fn(&NodeRow) -> bool) -> usize {
        self.all_live().filter(|(_, row)| !row.is_draining_or_leaving() && is_host(row)).count()
    }

    /// Live hosts of a pool that may get its shards. As long as others remain, this excludes hosts whose `EntityStore`
    /// does not respond to them (R9), that do not report, or that cannot run every deployed type (R24).
    pub(super) fn eligible_hosts(&self, pool: &Pool) -> impl Iterator<Item = (Member, &NodeRow)> {
        let all = || {
            self.all_live().filter(|(_, row)| row.may_get_shards(pool)).map(|(node, row)| {
                (Member { node: node.clone(), incarnation: row.incarnation }, row)
            })
        };
        let cannot_serve = |member: &Member| {
            self.without_store.contains(member) || self.unresponsive.contains(&member.node)
        };
        let none_can_serve = all().all(|(member, _)| cannot_serve(&member));
        let able = move || all().filter(move |(member, _)| none_can_serve || !cannot_serve(member));
        // Of the hosts that can serve, prefer those that run all types; a host that runs some is better than no host.
        let none_runs_all = able().all(|(member, _)| self.unrunnable_types.contains_key(&member));
        able()
            .filter(move |(member, _)| none_runs_all || !self.unrunnable_types.contains_key(member))
    }

    /// Those of [`Self::eligible_hosts`] that run the latest release among them (S16.5).
    pub(super) fn newest_hosts(&self, pool: &Pool) -> impl Iterator<Item = (Member, &NodeRow)> {
        let latest = self.eligible_hosts(pool).map(|(_, row)| row.version).max();
        self.eligible_hosts(pool).filter(move |(_, row)| Some(row.version) == latest)
    }

    /// The hosts that may get shards of any of these pools.
    pub(super) fn all_eligible_hosts(&self, pools: &Pools) -> BTreeSet<Member> {
        pools.iter().flat_map(|pool| self.eligible_hosts(pool)).map(|(member, _)| member).collect()
    }

    // The leadership.

    /// Returns the time since which the leadership has been vacant. If it was not vacant, it counts as vacant from
    /// now on.
    pub(super) fn leadership_vacant_since(&mut self, now: u64) -> u64 {
        *self.leadership_vacant_since.get_or_insert(now)
    }

    pub(super) fn leadership_is_held(&mut self) {
        self.leadership_vacant_since = None;
    }

    /// Counts the leadership as vacant from that time on.
    pub(super) fn restart_vacancy_at(&mut self, at: u64) {
        self.leadership_vacant_since = Some(at);
    }

    // What hosts report to the manager.

    pub(super) fn on_host_report(
        &mut self,
        from: &Member,
        store_available: bool,
        unrunnable_types: Vec<String>,
    ) {
        match store_available {
            true => self.without_store.remove(from),
            false => self.without_store.insert(from.clone()),
        };
        match unrunnable_types.is_empty() {
            true => self.unrunnable_types.remove(from),
            false => self.unrunnable_types.insert(from.clone(), unrunnable_types),
        };
    }

    /// Incarnations that cannot run every deployed type, with those types.
    pub(super) fn unrunnable_types(&self) -> impl Iterator<Item = (&Member, &[String])> {
        self.unrunnable_types.iter().map(|(member, types)| (member, &types[..]))
    }

    pub(super) fn set_unresponsive(&mut self, nodes: BTreeSet<NodeId>) {
        self.unresponsive = nodes;
    }

    pub(super) fn is_unresponsive(&self, node: &NodeId) -> bool {
        self.unresponsive.contains(node)
    }

    /// Sends a written row to every other live node (S4): the watch would deliver it later.
    pub(super) fn broadcast_row(
        &self,
        context: &mut Context,
        key: &RowKey,
        row: &Row,
        revision: u64,
    ) {
        for (to, _) in self.all_live() {
            if *to == context.identity.node {
                continue;
            }
            let (key, row) = (key.clone(), row.clone());
            let message = ControlMessage::RowUpdate { key, row, revision };
            context.push(Action::Send { to: to.clone(), message });
        }
    }
}

#[cfg(any(test, feature = "testing"))]
impl ObservedCluster {
    pub(super) fn canonicalize(&mut self, to: &dyn Canonicalizer) {
        self.list_at = to.map_deadline(self.list_at);
        self.next_missing_row_read = to.map_deadline(self.next_missing_row_read);
        self.leadership_vacant_since = self.leadership_vacant_since.map(|at| to.map_time(at));
        for (node, (row, at)) in &mut self.nodes {
            row.renewals = to.map_renewals(node, row.renewals);
            *at = to.map_revision(&RowKey::Node(node.clone()), *at);
        }
        if let Some((_, at)) = &mut self.manager {
            *at = to.map_revision(&RowKey::Manager, *at);
        }
        for (chunk, (row, at)) in &mut self.chunks {
            to.canonicalize_leases(*chunk, row);
            *at = to.map_revision(&RowKey::Assignments(*chunk), *at);
        }
        self.processes.canonicalize(to);
        let nodes = &self.nodes;
        for (node, at) in &mut self.lease_changed_at {
            // The age of an ended incarnation's lease is never used.
            let live = nodes.get(node).is_some_and(|(row, _)| row.status == NodeStatus::Live);
            *at = if live { to.map_time(*at) } else { 0 };
        }
    }

    /// Whether the last report of this incarnation said that its store responds and that it can run all types.
    pub(super) fn last_report_was_good(&self, member: &Member) -> bool {
        !self.without_store.contains(member) && !self.unrunnable_types.contains_key(member)
    }
}
