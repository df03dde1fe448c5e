//! Hand-offs: one worker per shard, from the written intent to the new owner's row (A6 to A10, S15, R11, R12).

use super::{
    Assignment, BTreeSet, Context, ControlMessage, Epoch, HandOff, HandOffId, HandOffIntent,
    Manager, Member, Mutation, NodeId, ObservedCluster, ShardId, Term,
};
#[cfg(any(test, feature = "testing"))]
use crate::node::Canonicalizer;

/// The state of one hand-off.
#[derive(Clone, Debug)]
#[cfg_attr(any(test, feature = "testing"), derive(Hash))]
pub(super) struct HandOffWorker {
    pub(super) id: HandOffId,
    owner: Member,
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
    Escalation,
    Relocation,
    LateStart,
    Operator,
    /// Its pool is closed: nobody gets it.
    PoolClosed,
}

#[derive(Clone, Debug, Hash)]
enum HandOffPhase {
    /// The row must contain the intent first (S15).
    WritingIntent,
    /// All nodes were asked to buffer messages; those in `missing` have not acknowledged this yet (A7 to A9).
    AwaitingAcks { deadline: u64, missing: BTreeSet<NodeId> },
    /// The owner was asked to stop; the request is repeated at `resend_at`.
    Stopping { resend_at: u64 },
    /// The owner did not stop in time: the intent is removed from the row (A10).
    Abandoning,
}

impl HandOffWorker {
    /// Restarts a hand-off that another manager began, from its first step: each step is idempotent.
    pub(super) fn taken_over(context: &Context, row: &Assignment) -> Option<Self> {
        let intent = row.hand_off.clone()?;
        Some(Self {
            id: intent.id,
            owner: row.owner.clone()?,
            epoch: row.epoch,
            target: intent.target,
            reason: HandOffReason::Rebalance,
            phase: HandOffPhase::WritingIntent,
            abandon_at: context.mono() + context.settings.hand_off_timeout,
        })
    }

    /// The hand-off as named in messages.
    fn named(&self, term: u64, shard: ShardId) -> HandOff {
        let incarnation = self.owner.incarnation;
        HandOff { term, shard, epoch: self.epoch, incarnation, id: self.id }
    }

    #[cfg(any(test, feature = "testing"))]
    pub(super) fn canonicalize(&mut self, to: &dyn Canonicalizer) {
        self.abandon_at = to.map_deadline(self.abandon_at);
        match &mut self.phase {
            HandOffPhase::AwaitingAcks { deadline: at, .. }
            | HandOffPhase::Stopping { resend_at: at } => *at = to.map_deadline(*at),
            HandOffPhase::WritingIntent | HandOffPhase::Abandoning => {}
        }
    }

    /// Whether a node's acknowledgement may still count.
    #[cfg(any(test, feature = "testing"))]
    pub(super) fn awaits(&self, node: &NodeId) -> bool {
        match &self.phase {
            HandOffPhase::WritingIntent => true,
            HandOffPhase::AwaitingAcks { missing, .. } => missing.contains(node),
            HandOffPhase::Stopping { .. } | HandOffPhase::Abandoning => false,
        }
    }
}

impl Term {
    fn end_hand_off(&mut self, shard: ShardId) {
        self.hand_offs.remove(&shard);
        self.dirty_chunks.add_chunk_of(shard);
    }

    fn on_stopped(&mut self, shard: ShardId, epoch: Epoch) {
        self.stopped_epochs.insert(shard, epoch);
        self.dirty_chunks.add_chunk_of(shard);
    }
}

impl Manager {
    /// Starts a hand-off: writes its intent. Without a target, the shard gets whichever owner is chosen once it has
    /// stopped, or none if its pool is closed.
    pub(super) fn begin_hand_off(
        &mut self,
        context: &mut Context,
        observed: &ObservedCluster,
        shard: ShardId,
        row: &Assignment,
        target: impl Into<Option<NodeId>>,
        reason: HandOffReason,
    ) {
        let Some(owner) = row.owner.clone() else { return };
        let Some(term) = &mut self.term else { return };
        term.hand_offs_started += 1;
        let id = HandOffId { term: term.number, number: term.hand_offs_started };
        let target = target.into();
        let intent = Some(HandOffIntent { id, target: target.clone() });
        term.set_assignment(shard, Assignment { hand_off: intent, ..row.clone() });
        let worker = HandOffWorker {
            id,
            owner,
            epoch: row.epoch,
            target,
            reason,
            phase: HandOffPhase::WritingIntent,
            abandon_at: context.mono() + context.settings.hand_off_timeout,
        };
        let hand_off = worker.named(term.number, shard);
        term.hand_offs.insert(shard, worker);
        if context.has_mutation(Mutation::SkipWriteAhead) {
            for (to, _) in observed.all_live() {
                context.send(to, ControlMessage::BeginHandOff { hand_off, revision: 0 });
            }
        }
    }

    /// Shards whose hand-off is in progress.
    pub(in super::super) fn hand_offs(&self) -> Vec<ShardId> {
        self.term.iter().flat_map(|term| term.hand_offs.keys().copied()).collect()
    }

    /// Advances a hand-off as far as possible.
    pub(in super::super) fn drive_hand_off(
        &mut self,
        context: &mut Context,
        observed: &ObservedCluster,
        live: &BTreeSet<NodeId>,
        shard: ShardId,
    ) {
        let now = context.mono();
        let Some(term) = &mut self.term else { return };
        let Some((row, revision)) = term.stable_assignment(shard) else { return };
        let (row, revision) = (row.clone(), revision);
        let Some(worker) = term.hand_offs.get_mut(&shard) else { return };
        let has_ended = row.epoch != worker.epoch
            || row.owner.as_ref() != Some(&worker.owner)
            || observed.has_ended(&worker.owner) == Some(true);
        let is_written = row.hand_off.as_ref().is_some_and(|intent| intent.id == worker.id);
        let hand_off = worker.named(term.number, shard);
        let owner = worker.owner.node.clone();
        let resend_at = now + context.settings.stop_resend_interval;
        match &mut worker.phase {
            _ if has_ended => term.end_hand_off(shard),
            HandOffPhase::Abandoning if !is_written => {
                term.end_hand_off(shard);
                term.next_rebalance_at = now + context.settings.rebalance_retry_interval;
            }
            HandOffPhase::Abandoning => {
                term.set_assignment(shard, Assignment { hand_off: None, ..row });
            }
            _ if now >= worker.abandon_at => worker.phase = HandOffPhase::Abandoning,
            HandOffPhase::WritingIntent if is_written => {
                let deadline = now + context.settings.ack_timeout;
                worker.phase = HandOffPhase::AwaitingAcks { deadline, missing: live.clone() };
                for to in live {
                    context.send(to, ControlMessage::BeginHandOff { hand_off, revision });
                }
            }
            // The row differs from the one on which the change was based.
            HandOffPhase::WritingIntent => term.end_hand_off(shard),
            HandOffPhase::AwaitingAcks { deadline, missing } => {
                missing.retain(|node| live.contains(node));
                // R12: an acknowledgement saves a bounce; a missing one is not a veto.
                let is_due = now >= *deadline && !context.has_mutation(Mutation::RequireAllAcks);
                if missing.is_empty() || is_due {
                    worker.phase = HandOffPhase::Stopping { resend_at };
                    context.send(&owner, ControlMessage::HandOff(hand_off));
                }
            }
            HandOffPhase::Stopping { resend_at: at } if now >= *at => {
                *at = resend_at;
                context.send(&owner, ControlMessage::HandOff(hand_off));
            }
            HandOffPhase::Stopping { .. } => {}
        }
        if context.has_mutation(Mutation::AssignBeforeStopped)
            && let Some(worker) = term.hand_offs.get(&shard)
            && matches!(worker.phase, HandOffPhase::Stopping { .. })
        {
            term.on_stopped(shard, hand_off.epoch);
        }
    }

    /// A node has acknowledged that it buffers messages for a shard.
    pub(in super::super) fn on_ack(
        &mut self,
        from: &NodeId,
        term_number: u64,
        shard: ShardId,
        epoch: Epoch,
        id: HandOffId,
    ) {
        let Some(term) = &mut self.term else { return };
        if term_number == term.number
            && let Some(worker) = term.hand_offs.get_mut(&shard)
            && (worker.id, worker.epoch) == (id, epoch)
            && let HandOffPhase::AwaitingAcks { missing, .. } = &mut worker.phase
        {
            missing.remove(from);
            self.decision_needed |= missing.is_empty();
        }
    }

    /// The owner has stopped a shard.
    pub(in super::super) fn on_shard_stopped(&mut self, context: &Context, stopped: HandOff) {
        let shard = stopped.shard;
        let Some(term) = &mut self.term else { return };
        let Some(worker) = term.hand_offs.get(&shard) else { return };
        if worker.named(term.number, shard) == stopped
            || context.has_mutation(Mutation::SkipHandOffMatching)
        {
            let epoch = worker.epoch;
            term.on_stopped(shard, epoch);
            self.decision_needed = true;
        }
    }
}
