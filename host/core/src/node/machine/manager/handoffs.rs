//! Hand-offs: one worker a shard, from the written intent to the new owner's row (A6 to A10, S15, R11, R12).

use super::*;

/// One hand-off.
#[derive(Clone, Debug, Hash)]
pub(super) struct HandOff {
    pub(super) id: HandOffId,
    pub(super) from: Member,
    pub(super) epoch: Epoch,
    pub(super) to: Option<NodeId>,
    pub(super) why: Why,
    phase: Phase,
    give_up_at: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Why {
    Drain,
    Balance,
}

#[derive(Clone, Debug, Hash)]
enum Phase {
    /// The row is to say so first (S15).
    Intent,
    /// All nodes were told to hold messages; these have not said yet that they do (A7 to A9).
    Begin { until: u64, waiting: BTreeSet<NodeId> },
    /// The owner was told to stop; it is told again then.
    Stopping { again: u64 },
    /// It did not stop in time: the intent is taken out of the row (A10).
    GivingUp,
}

impl HandOff {
    pub(super) fn make_relative(&mut self, to: &dyn Relative) {
        self.give_up_at = to.due(self.give_up_at);
        match &mut self.phase {
            Phase::Begin { until: at, .. } | Phase::Stopping { again: at } => *at = to.due(*at),
            Phase::Intent | Phase::GivingUp => {}
        }
    }

    /// Whether a node's acknowledgement may still count.
    pub(super) fn awaits(&self, node: &NodeId) -> bool {
        match &self.phase {
            Phase::Intent => true,
            Phase::Begin { waiting, .. } => waiting.contains(node),
            Phase::Stopping { .. } | Phase::GivingUp => false,
        }
    }
}

impl Manager {
    fn end_hand_off(&mut self, shard: ShardId) {
        self.handoffs.remove(&shard);
        self.undecided.add_of(shard);
    }
}

impl Machine {
    /// Begins a hand-off: writes its intent.
    pub(super) fn begin_hand_off(
        &mut self,
        now: Now,
        shard: ShardId,
        row: &ShardRow,
        to: Option<NodeId>,
        why: Why,
    ) {
        let Some(from) = row.owner.clone() else { return };
        let timeout = self.settings.handoff_timeout;
        let Some(manager) = &mut self.manager else { return };
        manager.begun += 1;
        let id = HandOffId { term: manager.term, number: manager.begun };
        let moving = Some(Moving { id, to: to.clone() });
        manager.want(shard, ShardRow { moving, ..row.clone() });
        let hand_off = HandOff {
            id,
            from,
            epoch: row.epoch,
            to,
            why,
            phase: Phase::Intent,
            give_up_at: now.mono + timeout,
        };
        let (term, epoch, incarnation) = (id.term, row.epoch, hand_off.from.incarnation);
        manager.handoffs.insert(shard, hand_off);
        if self.off(Mutation::NotAhead) {
            let live: Vec<_> = self.view.all_live().map(|(node, _)| node.clone()).collect();
            let talk = Talk::BeginHandOff { term, shard, epoch, incarnation, id, revision: 0 };
            for to in live {
                self.say(now, &to, talk.clone());
            }
        }
    }

    /// Finds a hand-off that another manager began: it goes on from its first step, each being safe twice.
    pub(super) fn adopt_hand_off(&mut self, now: Now, shard: ShardId, row: &ShardRow) {
        let (Some(from), Some(moving)) = (row.owner.clone(), row.moving.clone()) else { return };
        let give_up_at = now.mono + self.settings.handoff_timeout;
        let Some(manager) = &mut self.manager else { return };
        let hand_off = HandOff {
            id: moving.id,
            from,
            epoch: row.epoch,
            to: moving.to,
            why: Why::Balance,
            phase: Phase::Intent,
            give_up_at,
        };
        manager.handoffs.insert(shard, hand_off);
    }

    /// Takes each hand-off as far as it goes now.
    pub(super) fn drive_hand_offs(&mut self, now: Now) {
        let shards: Vec<_> = match &self.manager {
            Some(manager) => manager.handoffs.keys().copied().collect(),
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
        let veto = self.off(Mutation::AcksVeto);
        let settings = &self.settings;
        let Some(manager) = &mut self.manager else { return };
        let Some((row, revision)) = manager.settled(shard) else { return };
        let (row, revision) = (row.clone(), revision);
        let Some(hand_off) = manager.handoffs.get_mut(&shard) else { return };
        let over = row.epoch != hand_off.epoch
            || row.owner.as_ref() != Some(&hand_off.from)
            || self.view.over(&hand_off.from) == Some(true);
        let written = row.moving.as_ref().is_some_and(|moving| moving.id == hand_off.id);
        let (term, epoch, id) = (manager.term, hand_off.epoch, hand_off.id);
        let incarnation = hand_off.from.incarnation;
        let owner = hand_off.from.node.clone();
        let mut say = Vec::new();
        match &mut hand_off.phase {
            _ if over => {
                manager.end_hand_off(shard);
            }
            Phase::GivingUp if !written => {
                manager.end_hand_off(shard);
                manager.balance_at = now.mono + settings.rebalance_retry;
            }
            Phase::GivingUp => manager.want(shard, ShardRow { moving: None, ..row }),
            _ if now.mono >= hand_off.give_up_at => hand_off.phase = Phase::GivingUp,
            Phase::Intent if written => {
                let until = now.mono + settings.ack_wait;
                hand_off.phase = Phase::Begin { until, waiting: live.clone() };
                for to in live.iter().cloned() {
                    let talk = Talk::BeginHandOff { term, shard, epoch, incarnation, id, revision };
                    say.push((to, talk));
                }
            }
            // Another row was found than the one that was to be changed.
            Phase::Intent => {
                manager.end_hand_off(shard);
            }
            Phase::Begin { until, waiting } => {
                waiting.retain(|node| live.contains(node));
                // R12: an acknowledgement saves a bounce, and is no veto.
                if waiting.is_empty() || (now.mono >= *until && !veto) {
                    hand_off.phase = Phase::Stopping { again: now.mono + settings.say_again };
                    say.push((owner, Talk::HandOff { term, shard, epoch, incarnation, id }));
                }
            }
            Phase::Stopping { again } if now.mono >= *again => {
                *again = now.mono + settings.say_again;
                say.push((owner, Talk::HandOff { term, shard, epoch, incarnation, id }));
            }
            Phase::Stopping { .. } => {}
        }
        for (to, talk) in say {
            self.say(now, &to, talk);
        }
        if self.off(Mutation::DontAwaitStop)
            && let Some(manager) = &mut self.manager
            && matches!(
                manager.handoffs.get(&shard).map(|hand_off| &hand_off.phase),
                Some(Phase::Stopping { .. })
            )
        {
            manager.stopped.insert(shard, epoch);
            manager.undecided.add_of(shard);
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
            && let Some(hand_off) = manager.handoffs.get_mut(&shard)
            && (hand_off.id, hand_off.epoch) == (id, epoch)
            && let Phase::Begin { waiting, .. } = &mut hand_off.phase
        {
            waiting.remove(from);
            self.news |= waiting.is_empty();
        }
    }

    pub(in super::super) fn on_shard_stopped(
        &mut self,
        term: u64,
        shard: ShardId,
        epoch: Epoch,
        incarnation: Incarnation,
        id: HandOffId,
    ) {
        let any = self.off(Mutation::NoMatching);
        let Some(manager) = &mut self.manager else { return };
        let Some(hand_off) = manager.handoffs.get(&shard) else { return };
        let matches = term == manager.term
            && (hand_off.id, hand_off.epoch) == (id, epoch)
            && hand_off.from.incarnation == incarnation;
        if matches || any {
            manager.stopped.insert(shard, hand_off.epoch);
            manager.undecided.add_of(shard);
            self.news = true;
        }
    }
}
