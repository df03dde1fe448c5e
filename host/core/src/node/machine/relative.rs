//! A machine's state as a model checker needs it: hashed, and moved in time.
//!
//! A model's states are finitely many only if a cluster at rest looks the same after each beat of its
//! leases. Times, revisions and counts of renewals rise for ever, but the machine only compares them. So a
//! model may move all times back as time passes, and number revisions anew in their order.

use std::hash::{Hash, Hasher};

use super::*;

/// What becomes of the numbers in a machine that only their order or distance gives a meaning.
pub trait Relative {
    /// When something happened, on the node's clock: how long ago may matter.
    fn time(&self, at: u64) -> u64;
    /// When something is due: how long it has been due does not matter.
    fn due(&self, at: u64) -> u64;
    /// Whether that is later than anything that is looked at: what is due then is as if it were not noted.
    fn never(&self, _: u64) -> bool {
        false
    }
    /// A revision of a row.
    fn revision(&self, key: &Key, at: u64) -> u64;
    /// A count of renewals of a node's lease.
    fn renewals(&self, node: &NodeId, count: u64) -> u64;

    /// A row: what it is under this trait's other methods.
    fn row(&self, key: &Key, row: &mut Row) {
        if let (Key::Node(node), Row::Node(row)) = (key, row) {
            row.renewals = self.renewals(node, row.renewals);
        }
    }

    /// What was said between nodes.
    fn talk(&self, talk: &mut Talk) {
        match talk {
            Talk::Wrote { key, row, revision } => {
                self.row(key, row);
                *revision = self.revision(key, *revision);
            }
            Talk::BeginHandOff { shard, revision, .. } => {
                *revision = self.revision(&Key::of_shard(*shard), *revision);
            }
            Talk::Report(report) => {
                for (chunk, at) in &mut report.seen {
                    *at = self.revision(&Key::Shards(*chunk), *at);
                }
            }
            _ => {}
        }
    }
}

impl Machine {
    /// Replaces every time, revision and count of renewals.
    pub fn make_relative(&mut self, to: &dyn Relative) {
        let me = self.identity.node.clone();
        self.list_at = to.due(self.list_at);
        self.handled = self.handled.map(|at| to.time(at));
        self.store_answered = to.time(self.store_answered);
        self.report_at = self.report_at.map(|at| to.due(at));
        self.waiting.retain(|_, until| !to.never(*until));
        for until in self.waiting.values_mut() {
            *until = to.due(*until);
        }
        if let Some(probation) = &mut self.probation {
            probation.since = to.time(probation.since);
            probation.back = probation.back.map(|at| to.time(at));
        }
        self.vacant = self.vacant.map(|at| to.time(at));
        self.look_at = to.due(self.look_at);
        self.again_at = to.due(self.again_at);
        for (chunk, at) in &mut self.seen {
            *at = to.revision(&Key::Shards(*chunk), *at);
        }
        for purpose in self.writes.values_mut() {
            if let Purpose::Register(row, sent) | Purpose::Renew(row, sent) = purpose {
                row.renewals = to.renewals(&me, row.renewals);
                *sent = to.time(*sent);
            }
        }
        if self.writes.is_empty() && !self.membership.reads_claims() {
            self.numbers = 0;
        }
        // Nonces tell lives apart that took the same counter; none of one node do.
        self.drawn = 0;
        // A model takes the numbers out of what is said: its reports count as they come.
        self.reported = 0;
        self.membership.make_relative(&me, to);
        self.view.make_relative(to);
        if let Some(manager) = &mut self.manager {
            manager.make_relative(to);
        }
    }

    /// The revision of a row as this node last saw it.
    #[must_use]
    pub fn seen_revision(&self, key: &Key) -> Option<u64> {
        match key {
            Key::Node(node) => self.view.nodes.get(node).map(|(_, at)| *at),
            Key::Manager => self.view.manager.as_ref().map(|(_, at)| *at),
            Key::Shards(chunk) => self.view.chunks.get(chunk).map(|(_, at)| *at),
        }
    }
}

/// Everything that decides what it does next, but for what it was told once, what it draws by chance, and
/// actions that were not polled. `rival` decides notices only.
impl Hash for Machine {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.view.hash(state);
        (self.watching, self.listing, self.list_at, self.handled).hash(state);
        (&self.membership, self.leaving, &self.held, &self.finished).hash(state);
        (&self.refused, &self.seen, self.report_at, self.store_answered).hash(state);
        self.unrunnable.hash(state);
        (self.probation, &self.waiting).hash(state);
        (&self.manager, self.news, self.vacant, self.look_at, self.again_at, &self.writes)
            .hash(state);
        (&self.drains, self.numbers).hash(state);
    }
}
