//! The manager: its election, the rows that it seals and writes, and its decisions (R10 to R12).
//!
//! It decides only from rows of its own term, writes each decision before it sends it to other nodes, and may crash
//! between any two steps: its successor finds the intent in the row and continues.
//!
//! Each node has a [`Manager`]; a [`Term`] exists only while the node holds the leadership.

mod balance;
pub(super) mod campaign;
mod chunks;
mod closed_pools;
mod decide;
mod drains;
mod escalations;
mod first_allocation;
mod hand_offs;
mod late_starts;
mod loads;
mod owners;
mod placements;
mod plan;
mod relocations;
mod step_down;
mod term;
#[cfg(any(test, feature = "testing"))]
mod testing;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::context::Context;
use super::observed::ObservedCluster;
use super::requests::WritePurpose;
use crate::assign::{self, AllocationStrategy, Move, MoveKind};
use crate::extensions::Extensions;
use crate::ids::{Epoch, NodeId, ShardId};
#[cfg(any(test, feature = "testing"))]
use crate::node::Canonicalizer;
use crate::node::{
    Action, ControlMessage, HandOff, Mutation, NodeReport, Notice, ReportedShard, WriteError,
};
use crate::rows::{
    Assignment, AssignmentsRow, HandOffId, HandOffIntent, ManagerRow, Member, NodeRow, NodeStatus,
    Row, RowKey, chunk_count, chunk_of, index_in_chunk, shard_at,
};
use chunks::ManagedChunk;
use hand_offs::HandOffWorker;
use owners::OwnerIndex;
use placements::Placements;
use term::Term;

#[derive(Clone, Debug)]
pub(super) struct Manager {
    strategy: Arc<dyn AllocationStrategy>,
    /// The state of the current term, while this node is the manager.
    term: Option<Term>,
    /// Whether an input of the decisions has changed.
    decision_needed: bool,
    /// When to repeat the write of a death or of a drain mark that was not answered.
    write_retry_at: u64,
    /// Drains that operators requested on this node, and whether each starts or ends.
    drains: BTreeMap<NodeId, bool>,
    placements: Placements,
    /// Shards whose state is being moved to another database, from the first to the last.
    moving_state: Option<(ShardId, ShardId)>,
}

impl Manager {
    pub(super) fn new(strategy: Box<dyn AllocationStrategy>) -> Self {
        Self {
            strategy: strategy.into(),
            term: None,
            decision_needed: false,
            write_retry_at: 0,
            drains: BTreeMap::new(),
            placements: Placements::default(),
            moving_state: None,
        }
    }

    /// Whether this node holds the leadership, as far as it knows.
    pub(super) fn has_term(&self) -> bool {
        self.term.is_some()
    }

    /// The term, if every row is sealed.
    pub(super) fn sealed_term(&self) -> Option<u64> {
        self.term.as_ref().filter(|term| term.is_sealed()).map(|term| term.number)
    }

    /// Whether the manager will decide at its next event.
    pub(super) fn decision_is_due(&self) -> bool {
        self.decision_needed && self.sealed_term().is_some()
    }

    /// Begins or ends a term according to the manager's row. Returns whether this node holds the leadership.
    pub(super) fn follow_manager_row(
        &mut self,
        context: &mut Context,
        observed: &ObservedCluster,
        me: &Member,
    ) -> bool {
        match (&self.term, observed.manager_row()) {
            (Some(term), Some(row)) if row.term > term.number => {
                self.term = None;
                context.requests.retain_writes(|purpose| {
                    !matches!(purpose, WritePurpose::Assignments(_) | WritePurpose::MarkDead(_))
                });
            }
            (None, Some(row)) if row.holder == *me => {
                let delay = step_down::delay(context, row.consecutive_step_downs());
                let now = context.mono();
                let shards = context.identity.pools.shard_count();
                let mut term = Term::new(row.term, shards, now, now + delay);
                term.set_pools(&context.identity.pools);
                self.term = Some(term);
            }
            _ => {}
        }
        self.has_term()
    }

    /// The incarnation that holds the leadership has ended.
    pub(super) fn end_term(&mut self) {
        self.term = None;
    }

    /// Whether to decide now: something changed, or a deadline may have passed.
    pub(super) fn begin_decision(&mut self, context: &Context) -> bool {
        let Some(term) = &mut self.term else { return false };
        if !term.is_sealed() && !context.has_mutation(Mutation::SkipSeal) {
            return false;
        }
        if !self.decision_needed && context.mono() < term.next_decision_at {
            return false;
        }
        term.next_decision_at = context.mono() + context.settings.tick_interval();
        self.decision_needed = false;
        true
    }

    // Observations.

    pub(super) fn request_decision(&mut self) {
        self.decision_needed = true;
    }

    /// The shards of new pools need rows, and owners.
    pub(super) fn on_pools_added(&mut self, context: &Context) {
        let shards = context.identity.pools.shard_count();
        if let Some(term) = &mut self.term {
            term.chunks.resize_with(chunk_count(shards) as usize, ManagedChunk::default);
            // A row that had only shards without a manager may get others now.
            for chunk in term.chunks.iter_mut().filter(|chunk| chunk.stored.is_none()) {
                chunk.sealed = false;
            }
            term.dirty_chunks.add_all(shards);
            term.set_pools(&context.identity.pools);
            self.decision_needed = true;
        }
    }

    /// Any shard may belong to a node whose incarnation or status has changed.
    pub(super) fn on_ownership_affected(&mut self, context: &Context) {
        if let Some(term) = &mut self.term {
            term.dirty_chunks.add_all(context.identity.pools.shard_count());
        }
    }

    pub(super) fn on_report(
        &mut self,
        context: &Context,
        observed: &mut ObservedCluster,
        from: &Member,
        mut report: NodeReport,
    ) {
        let Some(term) = &mut self.term else { return };
        // The lists are searched by binary search, so they must be sorted. This release sends them sorted.
        report.applied_chunks.sort_unstable();
        report.shards.sort_unstable_by_key(|held| (held.shard, held.epoch));
        report.refused_claims.sort_unstable();
        let number = report.take_number();
        if report.incarnation != from.incarnation || !term.accept_report_number(from, number) {
            return;
        }
        observed.on_host_report(from, report.store_available, report.unrunnable_types());
        let until = context.mono() + context.settings.manager_silence_timeout;
        term.responsive_until.insert(from.node.clone(), until);
        let old = term.reports.get(&from.node);
        if old != Some(&report) {
            term.late_starts.on_report(old, &report);
            self.decision_needed = true;
            term.dirty_chunks.add_changed(old, &report, context.identity.pools.shard_count());
            term.reports.insert(from.node.clone(), report);
        }
    }

    /// A node could not be reached: this is believed for one lease, and only hastens a read of the node's row and a
    /// check of its process (S7, S12, R9).
    pub(super) fn on_unreachable(
        &mut self,
        context: &mut Context,
        observed: &mut ObservedCluster,
        node: NodeId,
    ) {
        // A node whose row shows that it has ended need not delay anything.
        let is_live = observed.all_live().any(|(live, _)| *live == node);
        if let Some(term) = self.term.as_mut().filter(|_| is_live) {
            term.unreachable.insert(node.clone(), context.mono() + context.settings.lease);
            observed.check_process(context, &node);
            context.read(RowKey::Node(node));
        }
    }

    /// The range of shards whose state is being moved to another database (R26).
    pub(super) fn set_moving_state(&mut self, range: Option<(ShardId, ShardId)>) {
        self.moving_state = range;
    }

    /// Requests a rebalance at the next decision. Returns whether this node is the manager.
    pub(super) fn request_rebalance(&mut self, context: &Context) -> bool {
        let Some(term) = &mut self.term else { return false };
        term.next_rebalance_at = context.mono();
        self.decision_needed = true;
        true
    }

    /// The write of a death or of a drain mark may have failed.
    pub(super) fn retry_node_writes_later(&mut self, context: &Context) {
        self.write_retry_at = context.mono() + context.settings.store_retry_interval;
    }

    // Hosts that do not report.

    /// Treats every host as having just reported, every shard as having just been given to its owner, and every outside
    /// program as having just said what it wants.
    pub(super) fn restart_timers(&mut self, context: &Context) {
        self.placements.restart(context);
        let Some(term) = &mut self.term else { return };
        let until = context.mono() + context.settings.manager_silence_timeout;
        for at in term.responsive_until.values_mut() {
            *at = until;
        }
        term.late_starts.restart(context);
    }

    /// A host that has not reported for a long time although it renews its lease gets no shard that others can own:
    /// it could not report that it stopped the shard (S12).
    pub(super) fn update_unresponsive_hosts(
        &mut self,
        context: &Context,
        observed: &mut ObservedCluster,
    ) {
        let until = context.mono() + context.settings.manager_silence_timeout;
        let Some(term) = &mut self.term else { return };
        let silent = observed.all_live().map(|(node, _)| node).filter(|node| {
            // A host whose former incarnation did not report either is unresponsive immediately, until its first
            // report.
            **node != context.identity.node
                && context.mono() >= *term.responsive_until.entry((*node).clone()).or_insert(until)
        });
        let silent = silent.cloned().collect();
        observed.set_unresponsive(silent);
    }
}
