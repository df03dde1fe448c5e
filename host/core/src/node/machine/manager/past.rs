//! What no longer matters, for a model checker: what a machine remembers and will never look at again, and
//! what it could be told and would ignore, now and for ever.
//!
//! Confusing at first: "for ever" rests on what only rises in one process (the revision of each row that it
//! saw, a row's epoch, the terms that it saw and managed in) and on what never comes back (a life, an epoch
//! that was given up). A model may then leave both out, and has one state where it had several.

use super::*;

impl Machine {
    /// Forgets what it will never look at again.
    pub fn forget(&mut self) {
        // Compared with rows only, and the epochs of rows never fall.
        let view = &self.view;
        self.finished.retain(|shard, at| view.shard(*shard).is_none_or(|row| row.epoch <= *at));
        let Some(mut manager) = self.manager.take() else { return };
        manager.stopped.retain(|shard, at| {
            let base = manager.chunks.get(chunk_of(*shard) as usize).and_then(|c| c.base.as_ref());
            base.and_then(|(row, _)| row.shards.get(place_of(*shard)))
                .is_none_or(|row| row.epoch <= *at)
        });
        let reports = std::mem::take(&mut manager.reports);
        self.manager = Some(manager);
        let tells = |(node, report): &(NodeId, Report)| {
            let from = Member { node: node.clone(), incarnation: report.incarnation };
            !self.agrees(&from, report)
        };
        let reports = reports.into_iter().filter(tells).collect();
        if let Some(manager) = &mut self.manager {
            manager.reports = reports;
        }
    }

    /// Whether a report decides nothing here, whatever comes: the rows that it was made from are known, it agrees with
    /// them, and silence counts only about rows that were seen (R11).
    #[must_use]
    pub fn agrees(&self, from: &Member, report: &Report) -> bool {
        report.store_answers
            && report.unrunnable().is_empty()
            && !self.view.mute.contains(from)
            && !self.view.unfit.contains_key(from)
            && (0..chunks(self.identity.shards)).all(|number| {
                let base = self.manager.as_ref().and_then(|m| m.chunks.get(number as usize));
                let base = base.and_then(|chunk| chunk.base.as_ref());
                let Some((row, revision)) = base.or_else(|| self.view.chunks.get(&number)) else {
                    return false;
                };
                let seen = report.seen.iter().find(|(of, _)| *of == number).map(|(_, at)| *at);
                seen.is_none_or(|at| at <= *revision)
                    && row.shards.iter().enumerate().all(|(place, row)| {
                        let shard = shard_at(number, place);
                        let refused = report
                            .refused
                            .iter()
                            .any(|(of, at, _)| *of == shard && *at >= row.epoch);
                        let is_held = |held: &Held| (held.shard, held.epoch) == (shard, row.epoch);
                        let held = report.held.iter().any(is_held);
                        let silent = seen == Some(*revision) && !held;
                        let concerned =
                            row.owner.as_ref() == Some(from) && self.view.over(from) != Some(true);
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
    fn managed(&self, term: u64, shard: ShardId) -> Option<&ShardRow> {
        let manager = self.manager.as_ref().filter(|manager| manager.term == term)?;
        let (row, _) = manager.chunks.get(chunk_of(shard) as usize)?.base.as_ref()?;
        row.shards.get(place_of(shard))
    }

    /// Whether an acknowledgement can no more count in the term that this node manages in: its hand-off needs it no
    /// more, or is over and will not be taken up again, for its epoch ended or its owner did.
    fn has_acked(&self, node: &NodeId, term: u64, shard: ShardId, at: (HandOffId, Epoch)) -> bool {
        let Some(row) = self.managed(term, shard) else { return false };
        let hand_off = self.manager.as_ref().and_then(|manager| manager.handoffs.get(&shard));
        match hand_off {
            _ if row.epoch > at.1 => true,
            Some(hand_off) => (hand_off.id, hand_off.epoch) == at && !hand_off.awaits(node),
            None => row.owner.as_ref().is_none_or(|owner| self.view.over(owner) == Some(true)),
        }
    }

    /// Whether it decides at its next event though nothing else changes: true only for one that manages.
    pub fn nudge(&mut self, on: bool) {
        self.news = on
            && self.watching
            && !self.suspended()
            && self.manager.as_ref().is_some_and(Manager::sealed);
    }

    /// Whether it may still begin or go on with that hand-off, as far as it knows.
    #[must_use]
    pub fn knows_hand_off(&self, id: HandOffId) -> bool {
        let named = |row: &ShardRow| row.moving.as_ref().is_some_and(|moving| moving.id == id);
        let manager = self.manager.as_ref();
        self.view.shards().any(|(_, row)| named(row))
            || manager.is_some_and(|manager| {
                manager.handoffs.values().any(|hand_off| hand_off.id == id)
                    || manager.chunks.iter().any(|chunk| {
                        let rows = chunk.base.iter().flat_map(|(row, _)| &row.shards);
                        rows.chain(chunk.want.values()).any(named) || chunk.writes(named)
                    })
            })
    }

    /// The epoch of a shard as this node sees it.
    #[must_use]
    pub fn epoch_of(&self, shard: ShardId) -> Option<Epoch> {
        Some(self.view.shard(shard)?.epoch)
    }

    /// Whether to be told that would change nothing, now or ever. Of a begin-hand-off: but for its answer, which is an
    /// acknowledgement; of a hand-off: but for [`Talk::ShardStopped`]; of a report: unless another comes before it.
    #[must_use]
    pub fn is_past(&self, from: &Member, talk: &Talk) -> bool {
        match talk {
            Talk::HandOff { .. } | Talk::ShardStopped { .. } if self.off(Mutation::NoMatching) => {
                false
            }
            Talk::Wrote { key, revision, .. } => {
                self.seen_revision(key).is_some_and(|seen| seen >= *revision)
            }
            Talk::BeginHandOff { .. } => true,
            Talk::BeginHandOffAck { term, shard, epoch, id } => {
                self.never_manages_in(*term)
                    || self.has_acked(&from.node, *term, *shard, (*id, *epoch))
            }
            Talk::HandOff { term, shard, epoch, incarnation, .. } => {
                let Some(me) = self.membership.member() else { return false };
                let known = self.view.manager.as_ref().map_or(0, |(row, _)| row.term);
                let above = self.view.shard(*shard).is_some_and(|row| row.epoch > *epoch);
                let finished = self.finished.get(shard).is_some_and(|at| at >= epoch);
                match self.held.get(shard) {
                    _ if me.incarnation != *incarnation || *term < known => true,
                    Some(own) => own.epoch > *epoch,
                    None => finished || above,
                }
            }
            Talk::ShardStopped { term, shard, epoch, .. } => {
                let row = self.managed(*term, *shard);
                self.never_manages_in(*term) || row.is_some_and(|row| row.epoch > *epoch)
            }
            Talk::Report(report) => {
                let none = |manager: &Manager| !manager.reports.contains_key(&from.node);
                self.manager.as_ref().is_none_or(none) && self.agrees(from, report)
            }
            Talk::Rebalance | Talk::Unreachable { .. } => false,
        }
    }
}
