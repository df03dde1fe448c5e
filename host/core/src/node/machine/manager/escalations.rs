//! Shards that leave their owner because the failure of one of their entities is escalated (K33).
//!
//! The owner reports the escalation of a shard with its epoch, again and again while it holds the shard. The manager
//! considers each epoch once: it moves the shard to another host, or leaves it where it is. A shard moves only a few
//! times within a period, so an entity that fails everywhere does not send its shard around for ever. The manager
//! counts in memory: its successor starts again.

use std::collections::VecDeque;

use super::hand_offs::HandOffReason;
use super::{
    Action, BTreeMap, Context, Epoch, Manager, Member, Mutation, NodeId, Notice, ObservedCluster,
    ShardId,
};
#[cfg(any(test, feature = "testing"))]
use crate::node::Canonicalizer;
use crate::pools::Pool;

/// What the manager remembers about the escalations of shards.
#[derive(Clone, Debug, Default)]
#[cfg_attr(any(test, feature = "testing"), derive(Hash))]
pub(super) struct Escalations(BTreeMap<ShardId, Escalated>);

#[derive(Clone, Debug, Default)]
#[cfg_attr(any(test, feature = "testing"), derive(Hash))]
struct Escalated {
    /// The last epoch that was considered.
    epoch: Epoch,
    /// When the shard was moved within the last period.
    moves: VecDeque<u64>,
}

impl Escalations {
    /// Whether this epoch's escalation has been considered.
    fn is_known(&self, shard: ShardId, epoch: Epoch) -> bool {
        self.0.get(&shard).is_some_and(|it| it.epoch >= epoch)
    }

    /// Whether the shard may move now.
    fn may_move(&mut self, context: &Context, shard: ShardId) -> bool {
        let settings = &context.settings;
        let Some(it) = self.0.get_mut(&shard) else { return settings.max_escalations > 0 };
        while it.moves.front().is_some_and(|at| at + settings.escalation_period <= context.mono()) {
            it.moves.pop_front();
        }
        it.moves.len() < settings.max_escalations
            || context.has_mutation(Mutation::UnboundedEscalations)
    }

    fn consider(&mut self, shard: ShardId, epoch: Epoch, moved_at: Option<u64>) {
        let it = self.0.entry(shard).or_default();
        it.epoch = epoch;
        it.moves.extend(moved_at);
    }

    #[cfg(any(test, feature = "testing"))]
    pub(super) fn canonicalize(&mut self, to: &dyn Canonicalizer) {
        for at in self.0.values_mut().flat_map(|it| &mut it.moves) {
            *at = to.map_deadline(*at);
        }
    }
}

impl Manager {
    /// Moves shards whose owners report an escalation.
    pub(in super::super) fn escalate(&mut self, context: &mut Context, observed: &ObservedCluster) {
        let Some(term) = &mut self.term else { return };
        let mut reported = Vec::new();
        for (node, report) in &term.reports {
            let from = Member { node: node.clone(), incarnation: report.incarnation };
            let escalated = report.escalated().into_iter();
            let new = escalated.filter(|(shard, epoch)| !term.escalations.is_known(*shard, *epoch));
            reported.extend(new.map(|(shard, epoch)| (from.clone(), shard, epoch)));
        }
        for (from, shard, epoch) in reported {
            self.escalate_shard(context, observed, &from, shard, epoch);
        }
    }

    fn escalate_shard(
        &mut self,
        context: &mut Context,
        observed: &ObservedCluster,
        from: &Member,
        shard: ShardId,
        epoch: Epoch,
    ) {
        let Some(term) = &mut self.term else { return };
        let row = match term.stable_assignment(shard) {
            Some((row, _)) if row.owner.as_ref() == Some(from) && row.epoch == epoch => row.clone(),
            // The row is being written, or the report is older than the row or newer.
            _ => return,
        };
        let in_progress = term.count(HandOffReason::Escalation);
        if in_progress >= context.settings.max_rebalance_hand_offs {
            return;
        }
        if row.hand_off.is_some() || term.hand_offs.contains_key(&shard) {
            // It leaves anyway.
            return term.escalations.consider(shard, epoch, None);
        }
        let may_move = term.escalations.may_move(context, shard);
        let pool = context.identity.pools.of(shard).filter(|_| may_move);
        let target = pool.and_then(|pool| self.least_loaded_other_host(observed, pool, from));
        let Some(term) = &mut self.term else { return };
        term.escalations.consider(shard, epoch, target.is_some().then(|| context.mono()));
        let notice = Notice::ShardEscalated {
            shard,
            owner: from.clone(),
            target: target.clone(),
            limit: (!may_move).then_some(context.settings.max_escalations),
        };
        context.push(Action::Notify(notice));
        if let Some(target) = target {
            let reason = HandOffReason::Escalation;
            self.begin_hand_off(context, observed, shard, &row, target, reason);
        }
    }

    /// The host of a pool with the fewest shards other than their owner, of those that run the latest release (S16.5).
    pub(super) fn least_loaded_other_host(
        &self,
        observed: &ObservedCluster,
        pool: &Pool,
        owner: &Member,
    ) -> Option<NodeId> {
        let term = self.term.as_ref()?;
        let mut counts: BTreeMap<Member, usize> =
            observed.newest_hosts(pool).map(|(member, _)| (member, 0)).collect();
        counts.remove(owner);
        for (_, row, _) in term.stable_assignments() {
            if let Some(count) = row.owner.as_ref().and_then(|owner| counts.get_mut(owner)) {
                *count += 1;
            }
        }
        counts.into_iter().min_by_key(|(_, count)| *count).map(|(member, _)| member.node)
    }
}
