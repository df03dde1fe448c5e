//! Hand-offs that the manager starts: drains, and moves that balance the hosts (R12, S13, K35).

use super::hand_offs::HandOffReason;
use super::{
    Action, BTreeMap, BTreeSet, Context, Manager, Move, MoveKind, Mutation, NodeId, Notice,
    ObservedCluster, ShardId, Term, assign, plan,
};
use crate::rows::Member;
#[cfg(debug_assertions)]
use crate::rows::SHARDS_PER_CHUNK;

impl Term {
    pub(super) fn count(&self, reason: HandOffReason) -> usize {
        self.hand_offs.values().filter(|worker| worker.reason == reason).count()
    }
}

impl Manager {
    /// The moves that a rebalance would make now: shard, from, to.
    pub(in super::super) fn preview_rebalance(
        &self,
        context: &Context,
        observed: &ObservedCluster,
    ) -> Vec<(ShardId, NodeId, NodeId)> {
        let rows: Vec<_> = observed.assignments().collect();
        let plan = plan::from_rows(observed, &rows, context.identity.seed);
        let moves = self.strategy.rebalance(&plan.view, context.identity.shard_count as usize);
        let (moves, _) =
            assign::filter_valid_moves(&plan.view, moves, MoveKind::Rebalance(usize::MAX));
        moves
            .into_iter()
            .filter_map(|step| {
                let from = rows.get(step.shard.0 as usize - 1)?.1.owner.clone()?.node;
                Some((step.shard, from, plan.members.get(step.to)?.node.clone()))
            })
            .collect()
    }

    /// The host that the strategy chooses for each of a plan's shards without an owner.
    pub(super) fn allocate(
        &mut self,
        context: &mut Context,
        plan: &plan::AllocationPlan,
    ) -> BTreeMap<ShardId, usize> {
        let moves = self.strategy.allocate(&plan.view);
        let moves = self.validate_moves(context, plan, moves, MoveKind::Allocate);
        moves.into_iter().map(|step| (step.shard, step.to)).collect()
    }

    /// Returns the strategy's valid moves. Each kind of invalid move is reported once per term.
    fn validate_moves(
        &mut self,
        context: &mut Context,
        plan: &plan::AllocationPlan,
        proposed: Vec<Move>,
        kind: MoveKind,
    ) -> Vec<Move> {
        let (valid, invalid) = assign::filter_valid_moves(&plan.view, proposed, kind);
        let Some(term) = &mut self.term else { return valid };
        for (reason, moves) in invalid {
            if term.notified_rejected_moves.insert(reason) {
                let strategy = self.strategy.name().to_owned();
                let notice = Notice::MovesRejected { strategy, moves, reason };
                context.push(Action::Notify(notice));
            }
        }
        valid
    }

    /// A plan in which these shards have no owner; other shards that are being handed off count toward their target.
    pub(super) fn plan(
        &mut self,
        context: &Context,
        observed: &ObservedCluster,
        without: &[ShardId],
        seed: u64,
    ) -> Option<plan::AllocationPlan> {
        let shards = context.identity.shard_count;
        let term = self.term.as_mut()?;
        let members = plan::members(observed);
        let owners = term.owner_index.refresh(&members, &term.chunks, shards);
        #[cfg(debug_assertions)]
        if owners.len() <= 16 * SHARDS_PER_CHUNK as usize {
            let mut fresh = super::OwnerIndex::default();
            let fresh = fresh.refresh(&members, &term.chunks, shards);
            assert_eq!(owners, fresh, "a chunk changed without an update of the plan");
        }
        let moving = term.hand_offs.iter().map(|(shard, it)| (*shard, it.target.as_ref()));
        Some(plan::of(observed, &members, owners, moving, without, seed))
    }

    /// Hands off the shards of draining nodes, a limited number of them concurrently (R12, K35).
    pub(in super::super) fn drain(&mut self, context: &mut Context, observed: &ObservedCluster) {
        let Some(term) = &self.term else { return };
        let in_progress = term.count(HandOffReason::Drain);
        let room = context.settings.max_drain_hand_offs.saturating_sub(in_progress);
        let draining = hosts_to_evacuate(context, observed);
        if room == 0 || draining.is_empty() {
            return;
        }
        let leaving: Vec<_> = term
            .stable_assignments()
            .filter(|(shard, row, _)| {
                row.owner.as_ref().is_some_and(|owner| draining.contains(&owner.node))
                    && row.hand_off.is_none()
                    && !term.hand_offs.contains_key(shard)
            })
            .take(room)
            .map(|(shard, row, _)| (shard, row.clone()))
            .collect();
        if leaving.is_empty() {
            return;
        }
        let seed = context.draw();
        let without: Vec<_> = leaving.iter().map(|(shard, _)| *shard).collect();
        let Some(plan) = self.plan(context, observed, &without, seed) else { return };
        let moves = self.allocate(context, &plan);
        for (shard, row) in leaving {
            // The shard remains where it is if no host can take it.
            let Some(target) = moves.get(&shard).and_then(|to| plan.members.get(*to)) else {
                continue;
            };
            let (target, reason) = (target.node.clone(), HandOffReason::Drain);
            self.begin_hand_off(context, observed, shard, &row, target, reason);
        }
    }

    /// Balances the hosts when hosts have joined or left, on request, and at each interval (S13). Does nothing while a
    /// node cannot be reached or no host reports. While versions are mixed, the strategy returns no moves (R12, S16.2).
    pub(in super::super) fn rebalance(
        &mut self,
        context: &mut Context,
        observed: &ObservedCluster,
    ) {
        let now = context.mono();
        let lease = context.settings.lease;
        let hosts: BTreeSet<_> = observed.eligible_hosts().map(|(member, _)| member).collect();
        let is_disturbed =
            observed.all_live().any(|(node, _)| observed.lease_unchanged_for(node, now, lease))
                || hosts.iter().all(|member| observed.is_unresponsive(&member.node));
        let Some(term) = &mut self.term else { return };
        if term.last_eligible_hosts != hosts {
            term.last_eligible_hosts = hosts;
            term.next_rebalance_at = now;
        }
        term.unreachable.retain(|_, until| *until > now);
        if now < term.next_rebalance_at {
            return;
        }
        if is_disturbed || !term.unreachable.is_empty() {
            term.next_rebalance_at = now + context.settings.rebalance_retry_interval;
            return;
        }
        let in_progress = term.count(HandOffReason::Rebalance);
        let room = context.settings.max_rebalance_hand_offs.saturating_sub(in_progress);
        let unsettled = term.chunks.iter().any(|chunk| chunk.busy() || !chunk.pending.is_empty());
        if room == 0 || unsettled {
            return;
        }
        let seed = context.draw();
        let Some(plan) = self.plan(context, observed, &[], seed) else { return };
        let moves = self.strategy.rebalance(&plan.view, room);
        let moves = self.validate_moves(context, &plan, moves, MoveKind::Rebalance(room));
        if moves.is_empty() {
            let Some(term) = &mut self.term else { return };
            term.next_rebalance_at = now
                + match term.hand_offs.is_empty() {
                    true => context.settings.rebalance_interval,
                    false => context.settings.renew_interval / 4,
                };
            return;
        }
        for step in moves {
            let Some(target) = plan.members.get(step.to).map(|member| member.node.clone()) else {
                continue;
            };
            let stable = self.term.as_ref().and_then(|term| term.stable_assignment(step.shard));
            let Some(row) = stable.map(|(row, _)| row.clone()) else { continue };
            let reason = HandOffReason::Rebalance;
            self.begin_hand_off(context, observed, step.shard, &row, target, reason);
        }
    }
}

/// Hosts whose shards must move elsewhere: they are draining, or cannot run a deployed type that another host can
/// (R24).
fn hosts_to_evacuate(context: &Context, observed: &ObservedCluster) -> BTreeSet<NodeId> {
    let draining = observed.all_live().filter(|(_, row)| row.is_draining_or_leaving());
    let mut nodes: BTreeSet<_> = draining.map(|(node, _)| node.clone()).collect();
    let mut unable = observed.unrunnable_types().map(|(member, _)| member).peekable();
    if unable.peek().is_some() && !context.has_mutation(Mutation::IgnoreUnrunnableTypes) {
        let able: BTreeSet<_> = observed.eligible_hosts().map(|(member, _)| member).collect();
        // The types that an ended incarnation could not run say nothing about the node's current incarnation.
        let is_present = |member: &Member| {
            let mut live = observed.all_live();
            live.any(|(node, row)| *node == member.node && row.incarnation == member.incarnation)
        };
        let unable = unable.filter(|it| is_present(it) && !able.contains(it));
        nodes.extend(unable.map(|member| member.node.clone()));
    }
    nodes
}
