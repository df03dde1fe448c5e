//! What no longer matters, for a model checker: what a machine remembers and will never look at again, and
//! what it could be told and would ignore, now and for ever.
//!
//! Confusing at first: "for ever" rests on what only rises in one process (the revision of each row that it
//! saw, a row's epoch, the terms that it saw and managed in) and on what never comes back (a life, an epoch
//! that was given up). A model may then leave both out, and has one state where it had several.

use super::*;

impl Machine {
    /// Forgets what it will never look at again.
    pub fn prune_irrelevant(&mut self) {
        // Compared with rows only, and the epochs of rows never fall.
        let view = &self.view;
        self.released_epochs
            .retain(|shard, at| view.assignment(*shard).is_none_or(|row| row.epoch <= *at));
        let Some(mut manager) = self.manager.take() else { return };
        manager.stopped_epochs.retain(|shard, at| {
            let base =
                manager.chunks.get(chunk_of(*shard) as usize).and_then(|c| c.stored.as_ref());
            base.and_then(|(row, _)| row.assignments.get(index_in_chunk(*shard)))
                .is_none_or(|row| row.epoch <= *at)
        });
        let reports = std::mem::take(&mut manager.reports);
        self.manager = Some(manager);
        let tells = |(node, report): &(NodeId, NodeReport)| {
            let from = Member { node: node.clone(), incarnation: report.incarnation };
            !self.is_report_irrelevant(&from, report)
        };
        let reports = reports.into_iter().filter(tells).collect();
        if let Some(manager) = &mut self.manager {
            manager.reports = reports;
        }
    }

    /// Whether a report decides nothing here, whatever comes: the rows that it was made from are known, it agrees with
    /// them, and silence counts only about rows that were seen (R11).
    #[must_use]
    pub fn is_report_irrelevant(&self, from: &Member, report: &NodeReport) -> bool {
        report.store_available
            && report.unrunnable_types().is_empty()
            && !self.view.without_store.contains(from)
            && !self.view.unrunnable_types.contains_key(from)
            && (0..chunk_count(self.identity.shard_count)).all(|number| {
                let base = self.manager.as_ref().and_then(|m| m.chunks.get(number as usize));
                let base = base.and_then(|chunk| chunk.stored.as_ref());
                let Some((row, revision)) = base.or_else(|| self.view.chunks.get(&number)) else {
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
                            && self.view.has_ended(from) != Some(true);
                        !(refused || silent && concerned)
                    })
            })
    }

    /// Whether this node will never decide anything in that term as the manager.
    fn never_manages_in(&self, term: u64) -> bool {
        let known = self.view.manager.as_ref().map(|(row, _)| row);
        match &self.manager {
            Some(manager) => manager.term > term,
            None => {
                !self.identity.roles.manager
                    || known.is_some_and(|row| {
                        row.term > term
                            || (row.term == term && row.holder.node != self.identity.node)
                    })
            }
        }
    }

    /// A shard's row as this node manages it in that term.
    fn managed(&self, term: u64, shard: ShardId) -> Option<&Assignment> {
        let manager = self.manager.as_ref().filter(|manager| manager.term == term)?;
        let (row, _) = manager.chunks.get(chunk_of(shard) as usize)?.stored.as_ref()?;
        row.assignments.get(index_in_chunk(shard))
    }

    /// Whether an acknowledgement can no more count in the term that this node manages in: its hand-off needs it no
    /// more, or is over and will not be taken up again, for its epoch ended or its owner did.
    fn is_ack_irrelevant(
        &self,
        node: &NodeId,
        term: u64,
        shard: ShardId,
        at: (HandOffId, Epoch),
    ) -> bool {
        let Some(row) = self.managed(term, shard) else { return false };
        let hand_off = self.manager.as_ref().and_then(|manager| manager.hand_offs.get(&shard));
        match hand_off {
            _ if row.epoch > at.1 => true,
            Some(hand_off) => (hand_off.id, hand_off.epoch) == at && !hand_off.awaits(node),
            None => row.owner.as_ref().is_none_or(|owner| self.view.has_ended(owner) == Some(true)),
        }
    }

    /// Whether it decides at its next event though nothing else changes: true only for one that manages.
    pub fn nudge(&mut self, on: bool) {
        self.decision_needed = on
            && self.watching
            && !self.is_suspended()
            && self.manager.as_ref().is_some_and(Manager::sealed);
    }

    /// Whether it may still begin or go on with that hand-off, as far as it knows.
    #[must_use]
    pub fn may_continue_hand_off(&self, id: HandOffId) -> bool {
        let named = |row: &Assignment| row.hand_off.as_ref().is_some_and(|moving| moving.id == id);
        let manager = self.manager.as_ref();
        self.view.assignments().any(|(_, row)| named(row))
            || manager.is_some_and(|manager| {
                manager.hand_offs.values().any(|hand_off| hand_off.id == id)
                    || manager.chunks.iter().any(|chunk| {
                        let rows = chunk.stored.iter().flat_map(|(row, _)| &row.assignments);
                        rows.chain(chunk.pending.values()).any(named) || chunk.writes(named)
                    })
            })
    }

    /// The epoch of a shard as this node sees it.
    #[must_use]
    pub fn known_epoch(&self, shard: ShardId) -> Option<Epoch> {
        Some(self.view.assignment(shard)?.epoch)
    }

    /// Whether to be told that would change nothing, now or ever. Of a begin-hand-off: but for its answer, which is an
    /// acknowledgement; of a hand-off: but for [`ControlMessage::ShardStopped`]; of a report: unless another comes before it.
    #[must_use]
    pub fn is_irrelevant(&self, from: &Member, talk: &ControlMessage) -> bool {
        match talk {
            ControlMessage::HandOff(_) | ControlMessage::ShardStopped(_)
                if self.has_mutation(Mutation::SkipHandOffMatching) =>
            {
                false
            }
            ControlMessage::RowUpdate { key, revision, .. } => {
                self.known_revision(key).is_some_and(|seen| seen >= *revision)
            }
            ControlMessage::BeginHandOff { .. } => true,
            ControlMessage::BeginHandOffAck { term, shard, epoch, id } => {
                self.never_manages_in(*term)
                    || self.is_ack_irrelevant(&from.node, *term, *shard, (*id, *epoch))
            }
            ControlMessage::HandOff(HandOff { term, shard, epoch, incarnation, .. }) => {
                let Some(me) = self.membership.member() else { return false };
                let known = self.view.manager.as_ref().map_or(0, |(row, _)| row.term);
                let above = self.view.assignment(*shard).is_some_and(|row| row.epoch > *epoch);
                let finished = self.released_epochs.get(shard).is_some_and(|at| at >= epoch);
                match self.held_shards.get(shard) {
                    _ if me.incarnation != *incarnation || *term < known => true,
                    Some(own) => own.epoch > *epoch,
                    None => finished || above,
                }
            }
            ControlMessage::ShardStopped(HandOff { term, shard, epoch, .. }) => {
                let row = self.managed(*term, *shard);
                self.never_manages_in(*term) || row.is_some_and(|row| row.epoch > *epoch)
            }
            ControlMessage::Report(report) => {
                let none = |manager: &Manager| !manager.reports.contains_key(&from.node);
                self.manager.as_ref().is_none_or(none) && self.is_report_irrelevant(from, report)
            }
            ControlMessage::Rebalance | ControlMessage::NodeUnreachable { .. } => false,
        }
    }
}
