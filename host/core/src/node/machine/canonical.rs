//! A machine's state as a model checker needs it: hashed, and moved in time.
//!
//! A model's states are finitely many only if a cluster at rest looks the same after each beat of its
//! leases. Times, revisions and counts of renewals rise for ever, but the machine only compares them. So a
//! model may move all times back as time passes, and number revisions anew in their order.

use std::hash::{Hash, Hasher};

use super::*;

/// What becomes of the numbers in a machine that only their order or distance gives a meaning.
pub trait Canonicalizer {
    /// When something happened, on the node's clock: how long ago may matter.
    fn map_time(&self, at: u64) -> u64;
    /// When something is due: how long it has been due does not matter.
    fn map_deadline(&self, at: u64) -> u64;
    /// Whether that is later than anything that is looked at: what is due then is as if it were not noted.
    fn never(&self, _: u64) -> bool {
        false
    }
    /// A revision of a row.
    fn map_revision(&self, key: &RowKey, at: u64) -> u64;
    /// A count of renewals of a node's lease.
    fn map_renewals(&self, node: &NodeId, count: u64) -> u64;

    /// A row: what it is under this trait's other methods.
    fn canonicalize_row(&self, key: &RowKey, row: &mut Row) {
        if let (RowKey::Node(node), Row::Node(row)) = (key, row) {
            row.renewals = self.map_renewals(node, row.renewals);
        }
    }

    /// What was said between nodes.
    fn canonicalize_message(&self, talk: &mut ControlMessage) {
        match talk {
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
    /// Replaces every time, revision and count of renewals.
    pub fn canonicalize(&mut self, to: &dyn Canonicalizer) {
        let me = self.identity.node.clone();
        self.list_at = to.map_deadline(self.list_at);
        self.last_event_at = self.last_event_at.map(|at| to.map_time(at));
        self.store_last_responded = to.map_time(self.store_last_responded);
        self.report_at = self.report_at.map(|at| to.map_deadline(at));
        self.awaiting_manager.retain(|_, until| !to.never(*until));
        for until in self.awaiting_manager.values_mut() {
            *until = to.map_deadline(*until);
        }
        if let Some(probation) = &mut self.probation {
            probation.started_at = to.map_time(probation.started_at);
            probation.first_held_again_at = probation.first_held_again_at.map(|at| to.map_time(at));
        }
        self.leadership_vacant_since = self.leadership_vacant_since.map(|at| to.map_time(at));
        self.next_missing_row_read = to.map_deadline(self.next_missing_row_read);
        self.write_retry_at = to.map_deadline(self.write_retry_at);
        for (chunk, at) in &mut self.applied_chunks {
            *at = to.map_revision(&RowKey::Assignments(*chunk), *at);
        }
        for purpose in self.pending_writes.values_mut() {
            if let WritePurpose::Register(row, sent) | WritePurpose::Renew(row, sent) = purpose {
                row.renewals = to.map_renewals(&me, row.renewals);
                *sent = to.map_time(*sent);
            }
        }
        if self.pending_writes.is_empty() && !self.membership.reads_claims() {
            self.last_request_id = 0;
        }
        // Nonces tell lives apart that took the same counter; none of one node do.
        self.random_counter = 0;
        // A model takes the numbers out of what is said: its reports count as they come.
        self.last_report_number = 0;
        self.membership.canonicalize(&me, to);
        self.view.canonicalize(to);
        if let Some(manager) = &mut self.manager {
            manager.canonicalize(to);
        }
    }

    /// The revision of a row as this node last saw it.
    #[must_use]
    pub fn known_revision(&self, key: &RowKey) -> Option<u64> {
        match key {
            RowKey::Node(node) => self.view.nodes.get(node).map(|(_, at)| *at),
            RowKey::Manager => self.view.manager.as_ref().map(|(_, at)| *at),
            RowKey::Assignments(chunk) => self.view.chunks.get(chunk).map(|(_, at)| *at),
        }
    }
}

/// Everything that decides what it does next, but for what it was told once, what it draws by chance, and
/// actions that were not polled. `rival` decides notices only.
impl Hash for Machine {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.view.hash(state);
        (self.watching, self.list_pending, self.list_at, self.last_event_at).hash(state);
        (&self.membership, self.leave_mode, &self.held_shards, &self.released_epochs).hash(state);
        (&self.refused_claims, &self.applied_chunks, self.report_at, self.store_last_responded)
            .hash(state);
        self.unrunnable_types.hash(state);
        (self.probation, &self.awaiting_manager).hash(state);
        (
            &self.manager,
            self.decision_needed,
            self.leadership_vacant_since,
            self.next_missing_row_read,
            self.write_retry_at,
            &self.pending_writes,
        )
            .hash(state);
        (&self.drains, self.last_request_id).hash(state);
    }
}
