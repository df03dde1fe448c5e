//! The shards that this node holds: exactly those that rows give to this life of it (R11, R13).

use super::*;

/// For how many leases a node is on probation after it gave its shards up for want of the store.
const PROBATION: u64 = 4;
/// The longest probation, in leases: it doubles each time that the node gives its shards up again soon after one.
const LONGEST_PROBATION: u64 = 64;

/// A node that gave its shards up for want of the store gets none for a while where others can have them.
///
/// A store that answers an idle node in time may be too slow for one that has shards, so that each time it gets some
/// it gives them up again. Doubling bounds how often that moves shards.
#[derive(Clone, Copy, Debug, Hash)]
pub(super) struct Probation {
    /// When the shards were given up.
    pub(super) since: u64,
    /// Milliseconds.
    span: u64,
    /// When the node first held a shard again.
    pub(super) back: Option<u64>,
}

impl Probation {
    /// The probation of a node that gives its shards up now. It is longer than the last one if the node held shards
    /// for a shorter time than that one took.
    fn after(last: Option<Self>, now: u64, lease: u64) -> Self {
        // What it waited for shards after that one does not count: the manager may have given it none for long.
        let soon = |last: &Self| last.back.is_none_or(|back| now.saturating_sub(back) < last.span);
        let span = match last.filter(soon) {
            Some(last) => (last.span * 2).min(lease * LONGEST_PROBATION),
            None => lease * PROBATION,
        };
        Self { since: now, span, back: None }
    }

    fn is_over(self, now: u64) -> bool {
        now.saturating_sub(self.since) >= self.span
    }
}

/// A shard that this node holds.
#[derive(Clone, Debug, Hash)]
pub(super) struct Own {
    pub(super) epoch: Epoch,
    pub(super) serving: bool,
    /// It was told to stop: final for this epoch.
    pub(super) stopping: bool,
    /// Who is to hear of it: the manager's node, its term, the hand-off.
    told: Option<(NodeId, u64, HandOffId)>,
}

impl Machine {
    /// Acts on chunks that changed since it last did. Not while suspended: what is missing is no loss then.
    pub(super) fn drive_shards(&mut self, now: Now) {
        self.give_up_without_store(now);
        if self.suspended() || !self.identity.roles.host || !self.watching {
            return;
        }
        let Some(me) = self.member() else { return };
        for chunk in std::mem::take(&mut self.unseen) {
            let Some((row, revision)) = self.view.chunks.get(&chunk).cloned() else { continue };
            #[cfg(test)]
            {
                self.looks += 1;
            }
            for (place, row) in row.shards.iter().enumerate() {
                self.reconcile(now, &me, shard_at(chunk, place), row);
            }
            self.seen.insert(chunk, revision);
            self.report_soon(now);
        }
    }

    /// Everything is acted on again.
    pub(super) fn forget_seen(&mut self) {
        self.seen.clear();
        self.unseen = self.view.chunks.keys().copied().collect();
    }

    fn reconcile(&mut self, now: Now, me: &Member, shard: ShardId, row: &ShardRow) {
        let epoch = row.epoch;
        if let Some(own) = self.held.get(&shard)
            && own.epoch < epoch
        {
            self.actions.push_back(Action::Forget { shard, epoch: own.epoch });
            let old = own.epoch;
            self.held.remove(&shard);
            self.finish(now, shard, old);
        }
        if self.refused.get(&shard).is_some_and(|(refused, _)| *refused < epoch) {
            self.refused.remove(&shard);
        }
        let done = self.finished.get(&shard).is_some_and(|done| *done >= epoch);
        if row.owner.as_ref() == Some(me)
            && !done
            && !self.held.contains_key(&shard)
            && !self.parting()
        {
            let own = Own { epoch, serving: false, stopping: false, told: None };
            self.held.insert(shard, own);
            if let Some(probation) = &mut self.probation {
                probation.back.get_or_insert(now.mono);
            }
            self.actions.push_back(Action::Adopt { shard, epoch, member: me.clone() });
        }
        self.note_waiting(now, me, shard, row);
    }

    /// Whether this node leaves, and its row says so, or its life ends: what it is still given goes to others, for its
    /// silence.
    fn parting(&self) -> bool {
        let drains = matches!(&self.membership, Membership::In(life) if life.row.is_emptied());
        self.membership.ending()
            || self.leaving == Leaving::Now
            || (self.leaving == Leaving::Drained && drains)
    }

    pub(super) fn finish(&mut self, now: Now, shard: ShardId, epoch: Epoch) {
        let done = self.finished.entry(shard).or_default();
        *done = (*done).max(epoch);
        if let (Some(me), Some(row)) = (self.member(), self.view.shard(shard).cloned()) {
            self.note_waiting(now, &me, shard, &row);
        }
    }

    /// A node that could commit nothing for one lease gives its shards up (R9).
    fn give_up_without_store(&mut self, now: Now) {
        if self.held.is_empty() || !self.without_store(now) || self.off(Mutation::KeepWithoutStore)
        {
            return;
        }
        let last = self.probation.filter(|_| !self.off(Mutation::ForgetProbation));
        let probation = Probation::after(last, now.mono, self.settings.lease);
        self.probation = Some(probation);
        self.note(Notice::GaveUp { shards: self.held.len(), probation: probation.span });
        for (shard, own) in std::mem::take(&mut self.held) {
            self.actions.push_back(Action::Forget { shard, epoch: own.epoch });
            self.finish(now, shard, own.epoch);
        }
        self.renew_soon(now);
        self.report_soon(now);
    }

    fn on_probation(&self, now: Now) -> bool {
        self.probation.is_some_and(|probation| !probation.is_over(now.mono))
    }

    pub(super) fn on_serving(&mut self, now: Now, shard: ShardId, epoch: Epoch) {
        if let Some(own) = self.held.get_mut(&shard)
            && own.epoch == epoch
        {
            own.serving = true;
            self.report_soon(now);
        }
    }

    pub(super) fn on_stopped(&mut self, now: Now, shard: ShardId, epoch: Epoch) {
        if self.held.get(&shard).is_none_or(|own| own.epoch != epoch) {
            return;
        }
        let told = self.held.remove(&shard).and_then(|own| own.told);
        self.finish(now, shard, epoch);
        if let Some((manager, term, id)) = told {
            self.say_stopped(now, &manager, term, shard, epoch, id);
        }
        self.report_soon(now);
    }

    pub(super) fn on_lost(
        &mut self,
        now: Now,
        shard: ShardId,
        epoch: Epoch,
        standing: Option<Epoch>,
    ) {
        if self.held.get(&shard).is_none_or(|own| own.epoch != epoch) {
            return;
        }
        self.held.remove(&shard);
        self.finish(now, shard, epoch);
        self.refused.insert(shard, (epoch, standing.unwrap_or(epoch)));
        self.report_soon(now);
    }

    /// Begin-hand-off: hold messages back, and say so, whether or not the shard was known (A8).
    #[allow(clippy::too_many_arguments)] // The parts of one message.
    pub(super) fn on_begin(
        &mut self,
        now: Now,
        from: &Member,
        term: u64,
        shard: ShardId,
        epoch: Epoch,
        id: HandOffId,
        revision: u64,
    ) {
        let known = self.view.chunks.get(&chunk_of(shard)).map_or(0, |(_, at)| *at);
        let moving = self.view.shard(shard).is_some_and(|row| {
            row.epoch == epoch && row.moving.as_ref().is_some_and(|moving| moving.id == id)
        });
        // One that is late, after the row that ended it, holds nothing.
        if revision > known || moving {
            self.actions.push_back(Action::Hold { shard, epoch });
        }
        self.say(now, &from.node.clone(), Talk::BeginHandOffAck { term, shard, epoch, id });
    }

    /// Hand-off: stop the shard; where there is nothing to stop, there never will be under this epoch (A11).
    #[allow(clippy::too_many_arguments)] // The parts of one message.
    pub(super) fn on_hand_off(
        &mut self,
        now: Now,
        from: &Member,
        term: u64,
        shard: ShardId,
        epoch: Epoch,
        incarnation: Incarnation,
        id: HandOffId,
    ) {
        let Some(me) = self.member() else { return };
        let known = self.view.manager.as_ref().map_or(0, |(row, _)| row.term);
        let matches = me.incarnation == incarnation && term >= known;
        if !matches && !self.off(Mutation::NoMatching) {
            return;
        }
        match self.held.get_mut(&shard) {
            Some(own) if own.epoch == epoch => {
                own.told = Some((from.node.clone(), term, id));
                if !own.stopping {
                    own.stopping = true;
                    self.waiting.remove(&shard);
                    let reason = StopReason::HandedOff;
                    self.actions.push_back(Action::Stop { shard, epoch, reason });
                }
            }
            // Late, for an epoch that is over.
            Some(own) if own.epoch > epoch => {}
            held => {
                if let Some(own) = held {
                    let old = own.epoch;
                    self.actions.push_back(Action::Forget { shard, epoch: old });
                    self.held.remove(&shard);
                }
                self.finish(now, shard, epoch);
                self.say_stopped(now, &from.node.clone(), term, shard, epoch, id);
            }
        }
    }

    fn say_stopped(
        &mut self,
        now: Now,
        manager: &NodeId,
        term: u64,
        shard: ShardId,
        epoch: Epoch,
        id: HandOffId,
    ) {
        let Some(me) = self.member() else { return };
        let incarnation = me.incarnation;
        self.say(now, manager, Talk::ShardStopped { term, shard, epoch, incarnation, id });
    }

    pub(super) fn report_soon(&mut self, now: Now) {
        let at = now.mono + self.settings.report_delay;
        self.report_at = Some(self.report_at.map_or(at, |before| before.min(at)));
    }

    /// Reports the whole of what it holds, so that a lost report repairs itself at the next one (R11).
    pub(super) fn drive_report(&mut self, now: Now) {
        if self.report_at.is_none_or(|at| at > now.mono) || self.suspended() {
            return;
        }
        let Some(me) = self.member() else { return };
        self.report_at = None;
        let mut report = Report {
            incarnation: me.incarnation,
            store_answers: !self.without_store(now) && !self.on_probation(now),
            seen: self.seen.iter().map(|(chunk, at)| (*chunk, *at)).collect(),
            held: self
                .held
                .iter()
                .map(|(shard, own)| Held {
                    shard: *shard,
                    epoch: own.epoch,
                    serving: own.serving && !own.stopping,
                })
                .collect(),
            refused: self
                .refused
                .iter()
                .map(|(shard, (at, above))| (*shard, *at, *above))
                .collect(),
            extensions: Extensions::default(),
        };
        // Names too long to be said: the host keeps its shards, as before it knew.
        let _ = report.set_unrunnable(&self.unrunnable);
        if self.view.manager.as_ref().is_some_and(|(row, _)| row.holder.node != me.node) {
            // What a node tells itself comes at once.
            self.reported += 1;
            let _ = report.set_number(self.reported);
        }
        self.say_manager(now, Talk::Report(Box::new(report)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r9_a_probation_doubles_only_soon_after_the_last() {
        let last = |back| Some(Probation { since: 0, span: 400, back });
        let span = |last, now| Probation::after(last, now, 100).span;
        assert_eq!(span(None, 1_000), 4 * 100);
        assert_eq!(span(last(None), 1_000), 800, "it held no shard since");
        assert_eq!(span(last(Some(1_000)), 1_399), 800);
        assert_eq!(span(last(Some(1_000)), 1_400), 400, "it held them for as long as that took");
        let longest = Some(Probation { since: 0, span: 6_000, back: None });
        assert_eq!(span(longest, 1), 64 * 100);
    }
}
