//! Access to the manager's state for a model checker.

use super::{
    Assignment, Canonicalizer, Epoch, HandOffId, Manager, Member, NodeId, NodeReport,
    ObservedCluster, ReportedShard, RowKey, ShardId, Term, chunk_count, chunk_of, index_in_chunk,
    shard_at,
};

impl Term {
    fn canonicalize(&mut self, to: &dyn Canonicalizer) {
        self.next_rebalance_at = to.map_deadline(self.next_rebalance_at);
        self.next_decision_at = to.map_deadline(self.next_decision_at);
        let never = to.never(self.step_down_at);
        self.step_down_at = if never { u64::MAX } else { to.map_deadline(self.step_down_at) };
        self.responsive_until.retain(|_, until| !to.never(*until));
        for until in self.unreachable.values_mut().chain(self.responsive_until.values_mut()) {
            *until = to.map_deadline(*until);
        }
        self.escalations.canonicalize(to);
        self.relocations.canonicalize(to);
        self.late_starts.canonicalize(to);
        for worker in self.hand_offs.values_mut() {
            worker.canonicalize(to);
        }
        for (number, chunk) in (0..).zip(&mut self.chunks) {
            chunk.read_at = chunk.read_at.map(|at| to.map_deadline(at));
            if let Some((_, at)) = &mut chunk.stored {
                *at = to.map_revision(&RowKey::Assignments(number), *at);
            }
        }
        for report in self.reports.values_mut() {
            for (chunk, at) in &mut report.applied_chunks {
                *at = to.map_revision(&RowKey::Assignments(*chunk), *at);
            }
        }
    }

    /// A shard's row as it was last written or found.
    fn stored_assignment(&self, shard: ShardId) -> Option<&Assignment> {
        let (row, _) = self.chunks.get(chunk_of(shard) as usize)?.stored.as_ref()?;
        row.assignments.get(index_in_chunk(shard))
    }

    fn has_intent(&self, id: HandOffId) -> bool {
        let is_it = |row: &Assignment| row.hand_off.as_ref().is_some_and(|intent| intent.id == id);
        self.hand_offs.values().any(|worker| worker.id == id)
            || self.chunks.iter().any(|chunk| {
                let rows = chunk.stored.iter().flat_map(|(row, _)| &row.assignments);
                rows.chain(chunk.pending.values()).any(is_it) || chunk.writes(is_it)
            })
    }
}

impl Manager {
    pub(in super::super) fn canonicalize(&mut self, to: &dyn Canonicalizer) {
        self.write_retry_at = to.map_deadline(self.write_retry_at);
        if let Some(term) = &mut self.term {
            term.canonicalize(to);
        }
    }

    /// Sets whether the manager decides at its next event even if nothing else changes.
    pub(in super::super) fn nudge(&mut self, on: bool) {
        self.decision_needed = on && self.sealed_term().is_some();
    }

    /// Forgets reports that decide nothing, and the recorded stops of epochs that have ended.
    pub(in super::super) fn prune_irrelevant(
        &mut self,
        observed: &ObservedCluster,
        shard_count: u32,
    ) {
        let Some(mut term) = self.term.take() else { return };
        let stopped = std::mem::take(&mut term.stopped_epochs);
        let may_count = |(shard, at): &(ShardId, Epoch)| {
            term.stored_assignment(*shard).is_none_or(|row| row.epoch <= *at)
        };
        let stopped = stopped.into_iter().filter(may_count).collect();
        term.stopped_epochs = stopped;
        let reports = std::mem::take(&mut term.reports);
        self.term = Some(term);
        let decides = |(node, report): &(NodeId, NodeReport)| {
            let from = Member { node: node.clone(), incarnation: report.incarnation };
            !self.is_report_irrelevant(observed, shard_count, &from, report)
        };
        let reports = reports.into_iter().filter(decides).collect();
        if let Some(term) = &mut self.term {
            term.reports = reports;
        }
    }

    /// Whether a report can never affect a decision here: the rows that it is based on are known, and it agrees with
    /// them. A shard that is missing from the report counts only if the sender had seen its row (R11).
    pub(in super::super) fn is_report_irrelevant(
        &self,
        observed: &ObservedCluster,
        shard_count: u32,
        from: &Member,
        report: &NodeReport,
    ) -> bool {
        report.store_available
            && report.unrunnable_types().is_empty()
            && report.escalated().is_empty()
            && report.misplaced().is_empty()
            && observed.last_report_was_good(from)
            && (0..chunk_count(shard_count)).all(|number| {
                let chunk = self.term.as_ref().and_then(|it| it.chunks.get(number as usize));
                let stored = chunk.and_then(|chunk| chunk.stored.as_ref());
                let Some((row, revision)) = stored.or_else(|| observed.chunk(number)) else {
                    return false;
                };
                let seen =
                    report.applied_chunks.iter().find(|(of, _)| *of == number).map(|(_, at)| *at);
                seen.is_none_or(|at| at <= *revision)
                    && row.assignments.iter().enumerate().all(|(place, row)| {
                        let shard = shard_at(number, place);
                        let refused = report
                            .refused_claims
                            .iter()
                            .any(|(of, at, _)| *of == shard && *at >= row.epoch);
                        let is_held =
                            |held: &ReportedShard| (held.shard, held.epoch) == (shard, row.epoch);
                        let held = report.shards.iter().any(is_held);
                        let silent = seen == Some(*revision) && !held;
                        let concerned = row.owner.as_ref() == Some(from)
                            && observed.has_ended(from) != Some(true);
                        !(refused || silent && concerned)
                    })
            })
    }

    /// Whether the manager has a report from a node.
    pub(in super::super) fn has_report_of(&self, node: &NodeId) -> bool {
        self.term.as_ref().is_some_and(|term| term.reports.contains_key(node))
    }

    /// The number of the term that this node is in.
    pub(in super::super) fn term_number(&self) -> Option<u64> {
        self.term.as_ref().map(|term| term.number)
    }

    /// A shard's row as this node manages it in that term.
    pub(in super::super) fn managed(&self, term: u64, shard: ShardId) -> Option<&Assignment> {
        self.term.as_ref().filter(|it| it.number == term)?.stored_assignment(shard)
    }

    /// Whether an acknowledgement can no longer count in this node's term: its hand-off no longer needs it, or has
    /// ended and will not be taken over again, because its epoch or its owner has ended.
    pub(in super::super) fn is_ack_irrelevant(
        &self,
        observed: &ObservedCluster,
        node: &NodeId,
        term: u64,
        shard: ShardId,
        hand_off: (HandOffId, Epoch),
    ) -> bool {
        let Some(row) = self.managed(term, shard) else { return false };
        let worker = self.term.as_ref().and_then(|term| term.hand_offs.get(&shard));
        match worker {
            _ if row.epoch > hand_off.1 => true,
            Some(worker) => (worker.id, worker.epoch) == hand_off && !worker.awaits(node),
            None => row.owner.as_ref().is_none_or(|owner| observed.has_ended(owner) == Some(true)),
        }
    }

    /// Whether the manager may still begin or continue that hand-off, as far as its own rows show.
    pub(in super::super) fn may_continue_hand_off(&self, id: HandOffId) -> bool {
        self.term.as_ref().is_some_and(|term| term.has_intent(id))
    }
}

/// Excludes the strategy, which has no state.
impl std::hash::Hash for Manager {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        (&self.term, self.decision_needed, self.write_retry_at, &self.drains).hash(state);
    }
}
