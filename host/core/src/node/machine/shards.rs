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
    pub(super) started_at: u64,
    /// Milliseconds.
    duration: u64,
    /// When the node first held a shard again.
    pub(super) first_held_again_at: Option<u64>,
}

impl Probation {
    /// The probation of a node that gives its shards up now. It is longer than the last one if the node held shards
    /// for a shorter time than that one took.
    fn after(last: Option<Self>, now: u64, lease: u64) -> Self {
        // What it waited for shards after that one does not count: the manager may have given it none for long.
        let soon = |last: &Self| {
            last.first_held_again_at.is_none_or(|back| now.saturating_sub(back) < last.duration)
        };
        let span = match last.filter(soon) {
            Some(last) => (last.duration * 2).min(lease * LONGEST_PROBATION),
            None => lease * PROBATION,
        };
        Self { started_at: now, duration: span, first_held_again_at: None }
    }

    fn has_ended(self, now: u64) -> bool {
        now.saturating_sub(self.started_at) >= self.duration
    }
}

/// A shard that this node holds.
#[derive(Clone, Debug, Hash)]
pub(super) struct HeldShard {
    pub(super) epoch: Epoch,
    pub(super) serving: bool,
    /// It was told to stop: final for this epoch.
    pub(super) stopping: bool,
    /// The manager's node that waits for it, and the hand-off.
    stop_requested_by: Option<(NodeId, HandOff)>,
}

impl Machine {
    /// Acts on chunks that changed since it last did. Not while suspended: what is missing is no loss then.
    pub(super) fn drive_shards(&mut self, now: Now) {
        self.release_shards_without_store(now);
        if self.is_suspended() || !self.identity.roles.host || !self.watching {
            return;
        }
        let Some(me) = self.member() else { return };
        for chunk in std::mem::take(&mut self.changed_chunks) {
            let Some((row, revision)) = self.view.chunks.get(&chunk).cloned() else { continue };
            #[cfg(test)]
            {
                self.visits += 1;
            }
            for (place, row) in row.assignments.iter().enumerate() {
                self.reconcile(now, &me, shard_at(chunk, place), row);
            }
            self.applied_chunks.insert(chunk, revision);
            self.report_soon(now);
        }
    }

    /// Everything is acted on again.
    pub(super) fn reapply_all_chunks(&mut self) {
        self.applied_chunks.clear();
        self.changed_chunks = self.view.chunks.keys().copied().collect();
    }

    fn reconcile(&mut self, now: Now, me: &Member, shard: ShardId, row: &Assignment) {
        let epoch = row.epoch;
        if let Some(own) = self.held_shards.get(&shard)
            && own.epoch < epoch
        {
            self.actions.push_back(Action::DropShard { shard, epoch: own.epoch });
            let old = own.epoch;
            self.held_shards.remove(&shard);
            self.mark_released(now, shard, old);
        }
        if self.refused_claims.get(&shard).is_some_and(|(refused, _)| *refused < epoch) {
            self.refused_claims.remove(&shard);
        }
        let done = self.released_epochs.get(&shard).is_some_and(|done| *done >= epoch);
        if row.owner.as_ref() == Some(me)
            && !done
            && !self.held_shards.contains_key(&shard)
            && !self.is_departing()
        {
            let own = HeldShard { epoch, serving: false, stopping: false, stop_requested_by: None };
            self.held_shards.insert(shard, own);
            if let Some(probation) = &mut self.probation {
                probation.first_held_again_at.get_or_insert(now.mono);
            }
            self.actions.push_back(Action::StartShard { shard, epoch, member: me.clone() });
        }
        self.track_awaiting_manager(now, me, shard, row);
    }

    /// Whether this node leaves, and its row says so, or its life ends: what it is still given goes to others, for its
    /// silence.
    fn is_departing(&self) -> bool {
        let drains = matches!(&self.membership, Membership::Registered(life) if life.row.is_draining_or_leaving());
        self.membership.is_retiring()
            || self.leave_mode == LeaveMode::Immediate
            || (self.leave_mode == LeaveMode::AfterDrain && drains)
    }

    pub(super) fn mark_released(&mut self, now: Now, shard: ShardId, epoch: Epoch) {
        let done = self.released_epochs.entry(shard).or_default();
        *done = (*done).max(epoch);
        if let (Some(me), Some(row)) = (self.member(), self.view.assignment(shard).cloned()) {
            self.track_awaiting_manager(now, &me, shard, &row);
        }
    }

    /// A node that could commit nothing for one lease gives its shards up (R9).
    fn release_shards_without_store(&mut self, now: Now) {
        if self.held_shards.is_empty()
            || !self.has_lost_store(now)
            || self.has_mutation(Mutation::KeepShardsWithoutStore)
        {
            return;
        }
        let last = self.probation.filter(|_| !self.has_mutation(Mutation::ConstantProbation));
        let probation = Probation::after(last, now.mono, self.settings.lease);
        self.probation = Some(probation);
        self.notify(Notice::ShardsReleased {
            shards: self.held_shards.len(),
            probation: probation.duration,
        });
        for (shard, own) in std::mem::take(&mut self.held_shards) {
            self.actions.push_back(Action::DropShard { shard, epoch: own.epoch });
            self.mark_released(now, shard, own.epoch);
        }
        self.renew_now(now);
        self.report_soon(now);
    }

    fn on_probation(&self, now: Now) -> bool {
        self.probation.is_some_and(|probation| !probation.has_ended(now.mono))
    }

    pub(super) fn on_serving(&mut self, now: Now, shard: ShardId, epoch: Epoch) {
        if let Some(own) = self.held_shards.get_mut(&shard)
            && own.epoch == epoch
        {
            own.serving = true;
            self.report_soon(now);
        }
    }

    pub(super) fn on_held_shard_stopped(&mut self, now: Now, shard: ShardId, epoch: Epoch) {
        if self.held_shards.get(&shard).is_none_or(|own| own.epoch != epoch) {
            return;
        }
        let told = self.held_shards.remove(&shard).and_then(|own| own.stop_requested_by);
        self.mark_released(now, shard, epoch);
        if let Some((manager, hand_off)) = told {
            self.send_shard_stopped(now, &manager, hand_off);
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
        if self.held_shards.get(&shard).is_none_or(|own| own.epoch != epoch) {
            return;
        }
        self.held_shards.remove(&shard);
        self.mark_released(now, shard, epoch);
        self.refused_claims.insert(shard, (epoch, standing.unwrap_or(epoch)));
        self.report_soon(now);
    }

    /// Begin-hand-off: hold messages back, and say so, whether or not the shard was known (A8).
    pub(super) fn on_begin(&mut self, now: Now, from: &Member, hand_off: HandOff, revision: u64) {
        let HandOff { term, shard, epoch, id, .. } = hand_off;
        let known = self.view.chunks.get(&chunk_of(shard)).map_or(0, |(_, at)| *at);
        let moving = self.view.assignment(shard).is_some_and(|row| {
            row.epoch == epoch && row.hand_off.as_ref().is_some_and(|moving| moving.id == id)
        });
        // One that is late, after the row that ended it, holds nothing.
        if revision > known || moving {
            self.actions.push_back(Action::BufferShard { shard, epoch });
        }
        self.send(
            now,
            &from.node.clone(),
            ControlMessage::BeginHandOffAck { term, shard, epoch, id },
        );
    }

    /// Hand-off: stop the shard; where there is nothing to stop, there never will be under this epoch (A11).
    pub(super) fn on_hand_off(&mut self, now: Now, from: &Member, hand_off: HandOff) {
        let HandOff { term, shard, epoch, incarnation, .. } = hand_off;
        let Some(me) = self.member() else { return };
        let known = self.view.manager.as_ref().map_or(0, |(row, _)| row.term);
        let matches = me.incarnation == incarnation && term >= known;
        if !matches && !self.has_mutation(Mutation::SkipHandOffMatching) {
            return;
        }
        match self.held_shards.get_mut(&shard) {
            Some(own) if own.epoch == epoch => {
                own.stop_requested_by = Some((from.node.clone(), hand_off));
                if !own.stopping {
                    own.stopping = true;
                    self.awaiting_manager.remove(&shard);
                    let reason = StopReason::HandedOff;
                    self.actions.push_back(Action::StopShard { shard, epoch, reason });
                }
            }
            // Late, for an epoch that is over.
            Some(own) if own.epoch > epoch => {}
            held => {
                if let Some(own) = held {
                    let old = own.epoch;
                    self.actions.push_back(Action::DropShard { shard, epoch: old });
                    self.held_shards.remove(&shard);
                }
                self.mark_released(now, shard, epoch);
                self.send_shard_stopped(now, &from.node.clone(), hand_off);
            }
        }
    }

    fn send_shard_stopped(&mut self, now: Now, manager: &NodeId, hand_off: HandOff) {
        let Some(me) = self.member() else { return };
        let stopped = HandOff { incarnation: me.incarnation, ..hand_off };
        self.send(now, manager, ControlMessage::ShardStopped(stopped));
    }

    pub(super) fn report_soon(&mut self, now: Now) {
        let at = now.mono + self.settings.report_delay;
        self.report_at = Some(self.report_at.map_or(at, |before| before.min(at)));
    }

    /// Reports the whole of what it holds, so that a lost report repairs itself at the next one (R11).
    pub(super) fn drive_report(&mut self, now: Now) {
        if self.report_at.is_none_or(|at| at > now.mono) || self.is_suspended() {
            return;
        }
        let Some(me) = self.member() else { return };
        self.report_at = None;
        let mut report = NodeReport {
            incarnation: me.incarnation,
            store_available: !self.has_lost_store(now) && !self.on_probation(now),
            applied_chunks: self.applied_chunks.iter().map(|(chunk, at)| (*chunk, *at)).collect(),
            shards: self
                .held_shards
                .iter()
                .map(|(shard, own)| ReportedShard {
                    shard: *shard,
                    epoch: own.epoch,
                    serving: own.serving && !own.stopping,
                })
                .collect(),
            refused_claims: self
                .refused_claims
                .iter()
                .map(|(shard, (at, above))| (*shard, *at, *above))
                .collect(),
            extensions: Extensions::default(),
        };
        // Names too long to be said: the host keeps its shards, as before it knew.
        let _ = report.set_unrunnable_types(&self.unrunnable_types);
        if self.view.manager.as_ref().is_some_and(|(row, _)| row.holder.node != me.node) {
            // What a node tells itself comes at once.
            self.last_report_number += 1;
            let _ = report.set_number(self.last_report_number);
        }
        self.send_to_manager(now, ControlMessage::Report(Box::new(report)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r9_a_probation_doubles_only_soon_after_the_last() {
        let last =
            |back| Some(Probation { started_at: 0, duration: 400, first_held_again_at: back });
        let span = |last, now| Probation::after(last, now, 100).duration;
        assert_eq!(span(None, 1_000), 4 * 100);
        assert_eq!(span(last(None), 1_000), 800, "it held no shard since");
        assert_eq!(span(last(Some(1_000)), 1_399), 800);
        assert_eq!(span(last(Some(1_000)), 1_400), 400, "it held them for as long as that took");
        let longest = Some(Probation { started_at: 0, duration: 6_000, first_held_again_at: None });
        assert_eq!(span(longest, 1), 64 * 100);
    }
}
