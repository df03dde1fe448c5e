//! Hand-offs: one worker a shard, from the written intent to the new owner's row (A6 to A10, S15, R11, R12).

use super::*;

/// The state of one hand-off.
#[derive(Clone, Debug, Hash)]
pub(super) struct HandOffWorker {
    pub(super) id: HandOffId,
    pub(super) owner: Member,
    pub(super) epoch: Epoch,
    pub(super) target: Option<NodeId>,
    pub(super) reason: HandOffReason,
    phase: HandOffPhase,
    abandon_at: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum HandOffReason {
    Drain,
    Rebalance,
}

#[derive(Clone, Debug, Hash)]
enum HandOffPhase {
    /// The row is to say so first (S15).
    WritingIntent,
    /// All nodes were told to hold messages; these have not said yet that they do (A7 to A9).
    AwaitingAcks { deadline: u64, missing: BTreeSet<NodeId> },
    /// The owner was told to stop; it is told again then.
    Stopping { resend_at: u64 },
    /// It did not stop in time: the intent is taken out of the row (A10).
    Abandoning,
}

impl HandOffWorker {
    pub(super) fn canonicalize(&mut self, to: &dyn Canonicalizer) {
        self.abandon_at = to.map_deadline(self.abandon_at);
        match &mut self.phase {
            HandOffPhase::AwaitingAcks { deadline: at, .. }
            | HandOffPhase::Stopping { resend_at: at } => *at = to.map_deadline(*at),
            HandOffPhase::WritingIntent | HandOffPhase::Abandoning => {}
        }
    }

    /// What messages about it name.
    fn named(&self, term: u64, shard: ShardId) -> HandOff {
        let incarnation = self.owner.incarnation;
        HandOff { term, shard, epoch: self.epoch, incarnation, id: self.id }
    }

    /// Whether a node's acknowledgement may still count.
    pub(super) fn awaits(&self, node: &NodeId) -> bool {
        match &self.phase {
            HandOffPhase::WritingIntent => true,
            HandOffPhase::AwaitingAcks { missing: waiting, .. } => waiting.contains(node),
            HandOffPhase::Stopping { .. } | HandOffPhase::Abandoning => false,
        }
    }
}

impl Manager {
    fn end_hand_off(&mut self, shard: ShardId) {
        self.hand_offs.remove(&shard);
        self.dirty_chunks.add_of(shard);
    }
}

impl Machine {
    /// Begins a hand-off: writes its intent.
    pub(super) fn begin_hand_off(
        &mut self,
        now: Now,
        shard: ShardId,
        row: &Assignment,
        to: Option<NodeId>,
        why: HandOffReason,
    ) {
        let Some(from) = row.owner.clone() else { return };
        let timeout = self.settings.hand_off_timeout;
        let Some(manager) = &mut self.manager else { return };
        manager.hand_offs_started += 1;
        let id = HandOffId { term: manager.term, number: manager.hand_offs_started };
        let moving = Some(HandOffIntent { id, target: to.clone() });
        manager.set_assignment(shard, Assignment { hand_off: moving, ..row.clone() });
        let hand_off = HandOffWorker {
            id,
            owner: from,
            epoch: row.epoch,
            target: to,
            reason: why,
            phase: HandOffPhase::WritingIntent,
            abandon_at: now.mono + timeout,
        };
        let named = hand_off.named(id.term, shard);
        manager.hand_offs.insert(shard, hand_off);
        if self.has_mutation(Mutation::SkipWriteAhead) {
            let live: Vec<_> = self.view.all_live().map(|(node, _)| node.clone()).collect();
            let talk = ControlMessage::BeginHandOff { hand_off: named, revision: 0 };
            for to in live {
                self.send(now, &to, talk.clone());
            }
        }
    }

    /// Finds a hand-off that another manager began: it goes on from its first step, each being safe twice.
    pub(super) fn take_over_hand_off(&mut self, now: Now, shard: ShardId, row: &Assignment) {
        let (Some(from), Some(moving)) = (row.owner.clone(), row.hand_off.clone()) else { return };
        let give_up_at = now.mono + self.settings.hand_off_timeout;
        let Some(manager) = &mut self.manager else { return };
        let hand_off = HandOffWorker {
            id: moving.id,
            owner: from,
            epoch: row.epoch,
            target: moving.target,
            reason: HandOffReason::Rebalance,
            phase: HandOffPhase::WritingIntent,
            abandon_at: give_up_at,
        };
        manager.hand_offs.insert(shard, hand_off);
    }

    /// Takes each hand-off as far as it goes now.
    pub(super) fn drive_hand_offs(&mut self, now: Now) {
        let shards: Vec<_> = match &self.manager {
            Some(manager) => manager.hand_offs.keys().copied().collect(),
            None => return,
        };
        if shards.is_empty() {
            return;
        }
        let live: BTreeSet<_> = self.view.all_live().map(|(node, _)| node.clone()).collect();
        for shard in shards {
            self.drive_hand_off(now, &live, shard);
        }
    }

    fn drive_hand_off(&mut self, now: Now, live: &BTreeSet<NodeId>, shard: ShardId) {
        let veto = self.has_mutation(Mutation::RequireAllAcks);
        let settings = &self.settings;
        let Some(manager) = &mut self.manager else { return };
        let Some((row, revision)) = manager.stable_assignment(shard) else { return };
        let (row, revision) = (row.clone(), revision);
        let Some(hand_off) = manager.hand_offs.get_mut(&shard) else { return };
        let over = row.epoch != hand_off.epoch
            || row.owner.as_ref() != Some(&hand_off.owner)
            || self.view.has_ended(&hand_off.owner) == Some(true);
        let written = row.hand_off.as_ref().is_some_and(|moving| moving.id == hand_off.id);
        let epoch = hand_off.epoch;
        let named = hand_off.named(manager.term, shard);
        let owner = hand_off.owner.node.clone();
        let mut say = Vec::new();
        match &mut hand_off.phase {
            _ if over => {
                manager.end_hand_off(shard);
            }
            HandOffPhase::Abandoning if !written => {
                manager.end_hand_off(shard);
                manager.next_rebalance_at = now.mono + settings.rebalance_retry_interval;
            }
            HandOffPhase::Abandoning => {
                manager.set_assignment(shard, Assignment { hand_off: None, ..row })
            }
            _ if now.mono >= hand_off.abandon_at => hand_off.phase = HandOffPhase::Abandoning,
            HandOffPhase::WritingIntent if written => {
                let until = now.mono + settings.ack_timeout;
                hand_off.phase =
                    HandOffPhase::AwaitingAcks { deadline: until, missing: live.clone() };
                for to in live.iter().cloned() {
                    let talk = ControlMessage::BeginHandOff { hand_off: named, revision };
                    say.push((to, talk));
                }
            }
            // Another row was found than the one that was to be changed.
            HandOffPhase::WritingIntent => {
                manager.end_hand_off(shard);
            }
            HandOffPhase::AwaitingAcks { deadline: until, missing: waiting } => {
                waiting.retain(|node| live.contains(node));
                // R12: an acknowledgement saves a bounce, and is no veto.
                if waiting.is_empty() || (now.mono >= *until && !veto) {
                    hand_off.phase = HandOffPhase::Stopping {
                        resend_at: now.mono + settings.stop_resend_interval,
                    };
                    say.push((owner, ControlMessage::HandOff(named)));
                }
            }
            HandOffPhase::Stopping { resend_at: again } if now.mono >= *again => {
                *again = now.mono + settings.stop_resend_interval;
                say.push((owner, ControlMessage::HandOff(named)));
            }
            HandOffPhase::Stopping { .. } => {}
        }
        for (to, talk) in say {
            self.send(now, &to, talk);
        }
        if self.has_mutation(Mutation::AssignBeforeStopped)
            && let Some(manager) = &mut self.manager
            && matches!(
                manager.hand_offs.get(&shard).map(|hand_off| &hand_off.phase),
                Some(HandOffPhase::Stopping { .. })
            )
        {
            manager.stopped_epochs.insert(shard, epoch);
            manager.dirty_chunks.add_of(shard);
        }
    }

    pub(in super::super) fn on_ack(
        &mut self,
        from: &NodeId,
        term: u64,
        shard: ShardId,
        epoch: Epoch,
        id: HandOffId,
    ) {
        let Some(manager) = &mut self.manager else { return };
        if term == manager.term
            && let Some(hand_off) = manager.hand_offs.get_mut(&shard)
            && (hand_off.id, hand_off.epoch) == (id, epoch)
            && let HandOffPhase::AwaitingAcks { missing: waiting, .. } = &mut hand_off.phase
        {
            waiting.remove(from);
            self.decision_needed |= waiting.is_empty();
        }
    }

    pub(in super::super) fn on_shard_stopped(&mut self, stopped: HandOff) {
        let shard = stopped.shard;
        let any = self.has_mutation(Mutation::SkipHandOffMatching);
        let Some(manager) = &mut self.manager else { return };
        let Some(hand_off) = manager.hand_offs.get(&shard) else { return };
        if hand_off.named(manager.term, shard) == stopped || any {
            manager.stopped_epochs.insert(shard, hand_off.epoch);
            manager.dirty_chunks.add_of(shard);
            self.decision_needed = true;
        }
    }
}
