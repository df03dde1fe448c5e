//! The manager: who becomes it, the rows that it seals and writes, and what it decides (R10 to R12).
//!
//! It decides only from rows that bear its own term, writes each decision before it tells anybody, and may
//! crash between any two steps: whoever follows finds the intent in the row and goes on.

mod chunks;
mod decide;
mod hand_offs;
mod owners;
pub(super) mod plan;
mod pruning;
mod step_down;

use std::hash::{Hash, Hasher};

use super::*;
use crate::assign::InvalidMove;
use chunks::ManagedChunk;
use hand_offs::HandOffWorker;
use owners::OwnerIndex;

/// The work of one term.
#[derive(Clone, Debug, Hash)]
pub(super) struct Manager {
    pub(super) term: u64,
    /// Until when it manages though it has heard no other host in this term.
    step_down_at: u64,
    chunks: Vec<ManagedChunk>,
    owner_index: OwnerIndex,
    /// What [`Machine::assign_unowned_shards`] has not looked at since it changed.
    pub(super) dirty_chunks: DirtyChunks,
    hand_offs: BTreeMap<ShardId, HandOffWorker>,
    /// Hand-offs begun in this term.
    hand_offs_started: u64,
    /// Owners that said "stopped", for this epoch.
    stopped_epochs: BTreeMap<ShardId, Epoch>,
    /// The last report of each node.
    pub(super) reports: BTreeMap<NodeId, NodeReport>,
    /// The highest report number received from each node, and the incarnation that sent it.
    last_report_numbers: BTreeMap<NodeId, (Incarnation, u64)>,
    /// Until when each node that was seen counts as heard: from its last report, or from when it was first seen.
    responsive_until: BTreeMap<NodeId, u64>,
    /// When to balance next.
    pub(super) next_rebalance_at: u64,
    /// When to decide again though nothing is known to have changed: deadlines pass.
    next_decision_at: u64,
    /// Hosts at the last decision: a change balances at once (S13).
    last_eligible_hosts: BTreeSet<Member>,
    /// Nodes that others could not reach, and until when that is believed (S12).
    unreachable: BTreeMap<NodeId, u64>,
    /// What the strategy proposed wrongly, and that was noted.
    notified_rejected_moves: BTreeSet<InvalidMove>,
}

/// Chunks in which a shard may need an owner, or somebody who sees to its hand-off. Whatever that depends on adds them:
/// their rows and writes, the lives of nodes, reports, "stopped", hand-offs that end. A decision looks at no others,
/// as there may be a thousand of them, and a decision after each row that is written.
#[derive(Clone, Debug, Default)]
pub(super) struct DirtyChunks(BTreeSet<u32>);

impl DirtyChunks {
    fn add(&mut self, chunk: u32) {
        self.0.insert(chunk);
    }

    fn add_of(&mut self, shard: ShardId) {
        self.0.insert(chunk_of(shard));
    }

    pub(super) fn add_all(&mut self, shards: u32) {
        self.0 = (0..chunk_count(shards)).collect();
    }

    /// Adds those of which two reports of one node do not tell the same. Without a former one anything may be news.
    fn add_changed(&mut self, old: Option<&NodeReport>, new: &NodeReport, shards: u32) {
        let Some(old) = old.filter(|old| old.incarnation == new.incarnation) else {
            return self.add_all(shards);
        };
        for (one, other) in [(old, new), (new, old)] {
            let seen = one
                .applied_chunks
                .iter()
                .filter(|seen| other.applied_chunks.binary_search(seen).is_err());
            self.0.extend(seen.map(|(chunk, _)| *chunk));
            let key = |held: &ReportedShard| (held.shard, held.epoch);
            let held = one
                .shards
                .iter()
                .filter(|held| other.shards.binary_search_by_key(&key(held), key).is_err());
            self.0.extend(held.map(|held| chunk_of(held.shard)));
            let refused = one
                .refused_claims
                .iter()
                .filter(|refused| other.refused_claims.binary_search(refused).is_err());
            self.0.extend(refused.map(|(shard, ..)| chunk_of(*shard)));
        }
    }
}

/// It says what to look at, not what is: a look too many changes nothing.
impl Hash for DirtyChunks {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

impl Manager {
    fn new(term: u64, shards: u32, now: u64, stays_until: u64) -> Self {
        let mut undecided = DirtyChunks::default();
        undecided.add_all(shards);
        Self {
            term,
            step_down_at: stays_until,
            dirty_chunks: undecided,
            chunks: (0..chunk_count(shards)).map(|_| ManagedChunk::default()).collect(),
            owner_index: OwnerIndex::default(),
            hand_offs: BTreeMap::new(),
            hand_offs_started: 0,
            stopped_epochs: BTreeMap::new(),
            reports: BTreeMap::new(),
            last_report_numbers: BTreeMap::new(),
            responsive_until: BTreeMap::new(),
            next_rebalance_at: now,
            next_decision_at: 0,
            last_eligible_hosts: BTreeSet::new(),
            unreachable: BTreeMap::new(),
            notified_rejected_moves: BTreeSet::new(),
        }
    }

    pub(super) fn canonicalize(&mut self, to: &dyn Canonicalizer) {
        self.next_rebalance_at = to.map_deadline(self.next_rebalance_at);
        self.next_decision_at = to.map_deadline(self.next_decision_at);
        let never = to.never(self.step_down_at);
        self.step_down_at = if never { u64::MAX } else { to.map_deadline(self.step_down_at) };
        self.responsive_until.retain(|_, until| !to.never(*until));
        for until in self.unreachable.values_mut().chain(self.responsive_until.values_mut()) {
            *until = to.map_deadline(*until);
        }
        for hand_off in self.hand_offs.values_mut() {
            hand_off.canonicalize(to);
        }
        for (number, chunk) in self.chunks.iter_mut().enumerate() {
            chunk.read_at = chunk.read_at.map(|at| to.map_deadline(at));
            if let Some((_, at)) = &mut chunk.stored {
                *at = to.map_revision(&RowKey::Assignments(number as u32), *at);
            }
        }
        for report in self.reports.values_mut() {
            for (chunk, at) in &mut report.applied_chunks {
                *at = to.map_revision(&RowKey::Assignments(*chunk), *at);
            }
        }
    }

    /// Notes a report's number. A report that was overtaken by a later one of its node tells what is no longer so: that
    /// the `EntityStore` answers a host which has given its shards up since, for one (R9).
    fn accept_report_number(&mut self, from: &Member, number: Option<u64>) -> bool {
        let Some(number) = number else { return true };
        let newest = (from.incarnation, number);
        let last = self.last_report_numbers.entry(from.node.clone()).or_insert(newest);
        let overtaken = match last.0 == from.incarnation {
            true => number < last.1,
            false => from.incarnation.counter < last.0.counter,
        };
        if !overtaken {
            *last = newest;
        }
        !overtaken
    }

    pub(super) fn sealed(&self) -> bool {
        self.chunks.iter().all(|chunk| chunk.sealed)
    }
}

impl Machine {
    pub(super) fn drive_manager(&mut self, now: Now) {
        let Some(me) = self.member() else { return };
        if self.is_suspended() || !self.identity.roles.manager || !self.watching {
            return;
        }
        match (&self.manager, &self.view.manager) {
            (Some(manager), Some((row, _))) if row.term > manager.term => {
                self.manager = None;
                self.pending_writes.retain(|_, p| {
                    !matches!(p, WritePurpose::Assignments(_) | WritePurpose::MarkDead(_))
                });
            }
            (None, Some((row, _))) if row.holder == me => {
                let stays = now.mono + self.step_down_delay(row.consecutive_step_downs());
                let manager = Manager::new(row.term, self.identity.shard_count, now.mono, stays);
                self.manager = Some(manager);
            }
            _ => {}
        }
        if self.manager.is_none() {
            self.view.unresponsive.clear();
            self.decision_needed = false;
            return self.campaign(now, &me);
        }
        self.pump_chunks(now);
        let no_seal = self.has_mutation(Mutation::SkipSeal);
        let Some(manager) = self.manager.as_mut().filter(|it| it.sealed() || no_seal) else {
            return;
        };
        if self.decision_needed || now.mono >= manager.next_decision_at {
            manager.next_decision_at = now.mono + self.settings.tick_interval();
            self.decision_needed = false;
            self.decide(now);
            self.pump_chunks(now);
        }
    }

    /// Stands for the leadership once its holder's life is over, candidates in order of age (K21).
    fn campaign(&mut self, now: Now, me: &Member) {
        if self.leave_mode != LeaveMode::Stay
            || self
                .pending_writes
                .values()
                .any(|purpose| matches!(purpose, WritePurpose::SetManager(_)))
        {
            return;
        }
        let holder = self.view.manager.as_ref().map(|(row, _)| row.holder.clone());
        let margin = self.settings.lease_margin;
        let over = match holder.as_ref().map(|holder| (holder, self.view.has_ended(holder))) {
            None => true,
            Some((holder, Some(over))) => over || self.view.lapsed(&holder.node, now.mono, margin),
            Some((holder, None)) => {
                // Nobody is dead for want of news: its row may be on its way.
                let node = holder.node.clone();
                self.read_missing_rows(now, [node]);
                false
            }
        };
        if !over {
            self.leadership_vacant_since = None;
            return;
        }
        let since = *self.leadership_vacant_since.get_or_insert(now.mono);
        let mut candidates: Vec<_> = self
            .view
            .all_live()
            .filter(|(node, row)| {
                row.roles.manager && holder.as_ref().is_none_or(|holder| holder.node != **node)
            })
            .map(|(node, row)| (row.registered_at, node.clone()))
            .collect();
        candidates.sort();
        let rank =
            candidates.iter().position(|(_, node)| *node == me.node).unwrap_or(candidates.len());
        if now.mono < since + rank as u64 * self.settings.campaign_stagger {
            return;
        }
        let term = self.view.manager.as_ref().map_or(0, |(row, _)| row.term) + 1;
        let row = ManagerRow { term, holder: me.clone(), extensions: Extensions::default() };
        self.write_manager_row(row, 0);
    }

    /// Writes who manages from now on. Whatever other releases noted on the row stays.
    fn write_manager_row(&mut self, row: ManagerRow, silent_terms: u32) {
        let seen = self.view.manager.as_ref();
        let expected = seen.map(|(_, revision)| *revision);
        let extensions = seen.map(|(row, _)| row.extensions.clone()).unwrap_or_default();
        let row = ManagerRow { extensions, ..row }.with_consecutive_step_downs(silent_terms);
        self.write(
            WritePurpose::SetManager(row.clone()),
            RowKey::Manager,
            expected,
            Row::Manager(row),
        );
    }

    pub(super) fn on_manager_row_written(
        &mut self,
        now: Now,
        row: ManagerRow,
        result: Result<u64, WriteError>,
    ) {
        match result {
            Ok(revision) => {
                let row = Row::Manager(row);
                self.learn(now, RowKey::Manager, row.clone(), revision);
                self.broadcast_row(RowKey::Manager, &row, revision);
            }
            Err(WriteError::Conflict(Some((row, revision)))) => {
                self.learn(now, RowKey::Manager, row, revision);
            }
            Err(WriteError::Conflict(None)) => {}
            Err(WriteError::Unknown) => {
                self.leadership_vacant_since = Some(now.mono + self.settings.store_retry_interval);
                self.actions.push_back(Action::ReadRow(RowKey::Manager));
            }
        }
    }

    /// Tells every live node a row that was written (S4): the watch would, later.
    pub(super) fn broadcast_row(&mut self, key: RowKey, row: &Row, revision: u64) {
        let others: Vec<_> = self
            .view
            .all_live()
            .map(|(node, _)| node.clone())
            .filter(|node| *node != self.identity.node)
            .collect();
        for to in others {
            let talk = ControlMessage::RowUpdate { key: key.clone(), row: row.clone(), revision };
            self.actions.push_back(Action::Send { to, message: talk });
        }
    }

    pub(super) fn on_report(&mut self, now: Now, from: &Member, mut report: NodeReport) {
        // They are searched, and come in this order from any node of this program.
        report.applied_chunks.sort_unstable();
        report.shards.sort_unstable_by_key(|held| (held.shard, held.epoch));
        report.refused_claims.sort_unstable();
        let heard = now.mono + self.settings.manager_silence_timeout;
        let number = report.take_number();
        if let Some(manager) = &mut self.manager
            && report.incarnation == from.incarnation
            && manager.accept_report_number(from, number)
        {
            match report.store_available {
                true => self.view.without_store.remove(from),
                false => self.view.without_store.insert(from.clone()),
            };
            let unrunnable = report.unrunnable_types();
            match unrunnable.is_empty() {
                true => self.view.unrunnable_types.remove(from),
                false => self.view.unrunnable_types.insert(from.clone(), unrunnable),
            };
            manager.responsive_until.insert(from.node.clone(), heard);
            let old = manager.reports.get(&from.node);
            if old != Some(&report) {
                self.decision_needed = true;
                manager.dirty_chunks.add_changed(old, &report, self.identity.shard_count);
                manager.reports.insert(from.node.clone(), report);
            }
        }
    }

    /// Counts every node as just heard.
    pub(super) fn restart_host_silence_timers(&mut self, now: Now) {
        let until = now.mono + self.settings.manager_silence_timeout;
        for at in self.manager.iter_mut().flat_map(|manager| manager.responsive_until.values_mut())
        {
            *at = until;
        }
    }

    /// Who has not been heard for long, though it renews its lease, is given nothing that others can have: it could not
    /// say that it stopped (S12).
    fn update_unresponsive_hosts(&mut self, now: Now) {
        let until = now.mono + self.settings.manager_silence_timeout;
        let me = &self.identity.node;
        let Some(manager) = &mut self.manager else { return };
        let silent = self.view.all_live().map(|(node, _)| node).filter(|node| {
            // One that was not heard in its former life either is silent at once, until its first report.
            *node != me
                && now.mono >= *manager.responsive_until.entry((*node).clone()).or_insert(until)
        });
        self.view.unresponsive = silent.cloned().collect();
    }

    /// Believed for one lease, and hastens nothing but a look at the row (S7, S12, R9).
    pub(super) fn on_unreachable(&mut self, now: Now, node: NodeId) {
        let until = now.mono + self.settings.lease;
        // A node that nobody counts on any more holds nothing up.
        let live = self.view.all_live().any(|(of, _)| *of == node);
        if let Some(manager) = self.manager.as_mut().filter(|_| live) {
            manager.unreachable.insert(node.clone(), until);
            self.actions.push_back(Action::ReadRow(RowKey::Node(node)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn incarnation(counter: u64) -> Incarnation {
        Incarnation { counter, nonce: counter }
    }

    #[test]
    fn a_report_counts_unless_a_later_one_has_arrived() {
        let mut manager = Manager::new(1, 4, 0, 0);
        let mut newest = |counter, number| {
            manager.accept_report_number(
                &Member { node: "b".into(), incarnation: incarnation(counter) },
                number,
            )
        };
        assert!(newest(2, Some(5)), "the first");
        assert!(newest(2, Some(5)), "a copy of it");
        assert!(newest(2, Some(7)));
        assert!(!newest(2, Some(6)), "overtaken");
        assert!(!newest(1, Some(9)), "of a former incarnation");
        assert!(newest(3, Some(1)), "a new incarnation starts its own count");
        assert!(newest(1, None), "of a release that does not number them");
        let other = Incarnation { nonce: 99, ..incarnation(3) };
        let other = Member { node: "b".into(), incarnation: other };
        assert!(
            manager.accept_report_number(&other, Some(1)),
            "two processes may take one counter"
        );
    }

    #[test]
    fn chunks_that_differ_between_two_reports_become_dirty() {
        let shard = |chunk| shard_at(chunk, 3);
        let held = |chunk, epoch| ReportedShard {
            shard: shard(chunk),
            epoch: Epoch(epoch),
            serving: true,
        };
        let old = NodeReport {
            incarnation: incarnation(1),
            applied_chunks: vec![(0, 1), (1, 1), (2, 1)],
            shards: vec![held(0, 1), held(3, 1)],
            refused_claims: vec![(shard(0), Epoch(1), Epoch(1))],
            ..NodeReport::default()
        };
        let changed = |old: Option<&NodeReport>, new: &NodeReport| {
            let mut undecided = DirtyChunks::default();
            undecided.add_changed(old, new, 10 * crate::rows::SHARDS_PER_CHUNK);
            undecided.0.into_iter().collect::<Vec<_>>()
        };
        let all: Vec<_> = (0..10).collect();
        assert_eq!(changed(Some(&old), &old), []);
        let new = NodeReport {
            applied_chunks: vec![(0, 1), (1, 2), (2, 1)],
            shards: vec![held(0, 1), held(3, 2)],
            refused_claims: vec![(shard(0), Epoch(1), Epoch(1)), (shard(5), Epoch(1), Epoch(2))],
            ..old.clone()
        };
        assert_eq!(changed(Some(&old), &new), [1, 3, 5]);
        assert_eq!(changed(Some(&new), &old), [1, 3, 5], "what is missing counts too");
        assert_eq!(changed(None, &new), all);
        assert_eq!(
            changed(Some(&old), &NodeReport { incarnation: incarnation(2), ..old.clone() }),
            all
        );
    }
}
