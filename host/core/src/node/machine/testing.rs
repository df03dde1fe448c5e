//! Support for a model checker: a machine's state can be hashed and shifted in time, and what is irrelevant can be
//! dropped.
//!
//! A model has finitely many states only if an idle cluster looks the same after each renewal of its leases. Times,
//! revisions and numbers of renewals rise forever, but the machine only compares them. So a model may shift all times
//! back as time passes, and renumber revisions in their order.
//!
//! Confusing at first: a message or a report is "irrelevant" if handling it is, and stays, a no-op. That relies on
//! values that only rise in one process (the revision of each row that it saw, a row's epoch, the terms that it saw
//! and managed in) and on values that never return (an incarnation, a released epoch). A model may then drop the
//! message, and has one state instead of several.

use std::hash::{Hash, Hasher};

use super::Machine;
use crate::ids::{Epoch, NodeId, ShardId};
use crate::node::{ControlMessage, HandOff, Mutation, NodeReport};
use crate::rows::{AssignmentsRow, HandOffId, Member, Row, RowKey, ShardLease, shard_at};

/// Normalizes those numbers of a machine of which only the order or the distance matters.
pub trait Canonicalizer {
    /// Maps a time when something happened, on the node's clock: how long ago that was may matter.
    fn map_time(&self, at: u64) -> u64;
    /// Maps a time when something is due: how long it has been due does not matter.
    fn map_deadline(&self, at: u64) -> u64;
    /// Whether this time is later than anything that is checked: such a deadline is equivalent to none.
    fn never(&self, _: u64) -> bool {
        false
    }
    /// Maps a revision of a row.
    fn map_revision(&self, key: &RowKey, at: u64) -> u64;
    /// Maps a number of renewals of a node's lease.
    fn map_renewals(&self, node: &NodeId, count: u64) -> u64;
    /// Maps a number of renewals of a shard's lease.
    fn map_shard_renewals(&self, _: ShardId, count: u64) -> u64 {
        count
    }

    /// Normalizes a row with this trait's other methods.
    fn canonicalize_row(&self, key: &RowKey, row: &mut Row) {
        match (key, row) {
            (RowKey::Node(node), Row::Node(row)) => {
                row.renewals = self.map_renewals(node, row.renewals);
            }
            (RowKey::Assignments(chunk), Row::Assignments(row)) => {
                self.canonicalize_leases(*chunk, row);
            }
            _ => {}
        }
    }

    /// Normalizes the leases of shards in the row of a chunk.
    fn canonicalize_leases(&self, chunk: u32, row: &mut AssignmentsRow) {
        for (place, row) in row.assignments.iter_mut().enumerate() {
            if let Some(lease) = row.lease() {
                let renewals = self.map_shard_renewals(shard_at(chunk, place), lease.renewals);
                // It replaces one that had space.
                let _ = row.set_lease(Some(ShardLease { renewals, ..lease }));
            }
        }
    }

    /// Normalizes a message between nodes.
    fn canonicalize_message(&self, message: &mut ControlMessage) {
        match message {
            ControlMessage::RowUpdate { key, row, revision } => {
                self.canonicalize_row(key, row);
                *revision = self.map_revision(key, *revision);
            }
            ControlMessage::BeginHandOff { hand_off, revision } => {
                *revision = self.map_revision(&RowKey::for_shard(hand_off.shard), *revision);
            }
            ControlMessage::Report(report) => {
                for (chunk, at) in &mut report.applied_chunks {
                    *at = self.map_revision(&RowKey::Assignments(*chunk), *at);
                }
            }
            _ => {}
        }
    }
}

impl Machine {
    /// Replaces every time, revision and number of renewals.
    pub fn canonicalize(&mut self, to: &dyn Canonicalizer) {
        let me = &self.context.identity.node;
        self.last_event_at = self.last_event_at.map(|at| to.map_time(at));
        let reads_claims = self.membership.reads_claims();
        self.context.requests.canonicalize(me, to, reads_claims);
        self.membership.canonicalize(me, to);
        self.holdings.canonicalize(to);
        self.observed.canonicalize(to);
        self.manager.canonicalize(to);
        self.keep_alives.canonicalize(to);
        self.arbiter.canonicalize(to);
        self.stateless.canonicalize(to);
    }

    /// The revision of a row as this node last saw it.
    #[must_use]
    pub fn known_revision(&self, key: &RowKey) -> Option<u64> {
        match key {
            RowKey::Node(node) => self.observed.node(node).map(|(_, at)| *at),
            RowKey::Manager => self.observed.manager().map(|(_, at)| *at),
            RowKey::Assignments(chunk) => self.observed.chunk(*chunk).map(|(_, at)| *at),
            RowKey::Arbiter => self.arbiter.known_revision(),
            RowKey::Numbers(pool) => self.stateless.numbers_of(pool).map(|(_, at)| *at),
        }
    }

    /// The epoch of a shard as this node sees it.
    #[must_use]
    pub fn known_epoch(&self, shard: ShardId) -> Option<Epoch> {
        Some(self.observed.assignment(shard)?.epoch)
    }

    /// Sets whether the machine decides at its next event even if nothing else changes. Only a manager ever does.
    pub fn nudge(&mut self, on: bool) {
        let may_decide = self.observed.is_watching() && !self.membership.is_suspended();
        self.manager.nudge(on && may_decide);
    }

    /// Forgets what the machine will never use again.
    pub fn prune_irrelevant(&mut self) {
        self.holdings.prune_irrelevant(&self.observed);
        self.manager.prune_irrelevant(&self.observed, self.context.identity.pools.shard_count());
    }

    /// Whether a report can never affect a decision here.
    #[must_use]
    pub fn is_report_irrelevant(&self, from: &Member, report: &NodeReport) -> bool {
        let shards = self.context.identity.pools.shard_count();
        self.manager.is_report_irrelevant(&self.observed, shards, from, report)
    }

    /// Whether this node may still start or continue that hand-off, as far as it knows.
    #[must_use]
    pub fn may_continue_hand_off(&self, id: HandOffId) -> bool {
        let mut rows = self.observed.assignments();
        rows.any(|(_, row)| row.hand_off.as_ref().is_some_and(|intent| intent.id == id))
            || self.manager.may_continue_hand_off(id)
    }

    /// Whether this node will never decide anything in that term as the manager.
    fn never_manages_in(&self, term: u64) -> bool {
        match self.manager.term_number() {
            Some(current) => current > term,
            None => {
                !self.context.identity.roles.manager
                    || self.observed.manager_row().is_some_and(|row| {
                        row.term > term
                            || (row.term == term && row.holder.node != self.context.identity.node)
                    })
            }
        }
    }

    /// Whether handling this message is, and stays, a no-op, apart from these answers: the acknowledgement of a
    /// begin-hand-off, and [`ControlMessage::ShardStopped`] for a hand-off. A report may still matter if another
    /// one arrives before it.
    #[must_use]
    pub fn is_irrelevant(&self, from: &Member, message: &ControlMessage) -> bool {
        match message {
            ControlMessage::HandOff(_) | ControlMessage::ShardStopped(_)
                if self.context.has_mutation(Mutation::SkipHandOffMatching) =>
            {
                false
            }
            ControlMessage::RowUpdate { key, revision, .. } => {
                self.known_revision(key).is_some_and(|seen| seen >= *revision)
            }
            ControlMessage::BeginHandOff { .. } => true,
            ControlMessage::BeginHandOffAck { term, shard, epoch, id } => {
                let hand_off = (*id, *epoch);
                self.never_manages_in(*term)
                    || self.manager.is_ack_irrelevant(
                        &self.observed,
                        &from.node,
                        *term,
                        *shard,
                        hand_off,
                    )
            }
            ControlMessage::HandOff(hand_off) => {
                let HandOff { term, incarnation, .. } = hand_off;
                let Some(me) = self.membership.member() else { return false };
                me.incarnation != *incarnation
                    || *term < self.observed.manager_term()
                    || self.holdings.is_hand_off_irrelevant(&self.observed, hand_off)
            }
            ControlMessage::ShardStopped(HandOff { term, shard, epoch, .. }) => {
                let row = self.manager.managed(*term, *shard);
                self.never_manages_in(*term) || row.is_some_and(|row| row.epoch > *epoch)
            }
            ControlMessage::Report(report) => {
                !self.manager.has_report_of(&from.node) && self.is_report_irrelevant(from, report)
            }
            ControlMessage::Rebalance
            | ControlMessage::NodeUnreachable { .. }
            | ControlMessage::Loads(_)
            | ControlMessage::MoveShard { .. }
            | ControlMessage::KeepAlive { .. }
            | ControlMessage::KeepAliveAck { .. }
            | ControlMessage::ArbiterFlag { .. } => false,
        }
    }
}

/// Includes everything that determines the machine's next actions, except its settings, its identity, and actions that
/// were not polled.
impl Hash for Machine {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.observed, &self.membership, &self.holdings, &self.manager).hash(state);
        (&self.stateless, &self.context.requests, self.last_event_at).hash(state);
        (&self.keep_alives, &self.arbiter).hash(state);
    }
}
