//! Hand-offs that the manager starts: drains, and moves that balance the hosts (R12, S13, K35).

use super::hand_offs::HandOffReason;
use super::{
    Action, AllocationStrategy, Arc, BTreeMap, BTreeSet, Context, Manager, Move, MoveKind,
    Mutation, NodeId, Notice, ObservedCluster, ShardId, Term, assign, plan,
};
use crate::assign::BuiltinStrategy;
use crate::pools::Pool;
use crate::rows::Member;
#[cfg(debug_assertions)]
use crate::rows::SHARDS_PER_CHUNK;

/// Maximum number of moves of a pool that a preview shows: it is computed on the thread that renews the lease.
const MAX_PREVIEW: usize = 4_096;

/// Moves that balance the hosts of a pool.
#[derive(Debug, Default)]
struct Proposal {
    moves: Vec<Move>,
    /// The invalid moves that the strategy proposed, by the reason.
    invalid: BTreeMap<assign::InvalidMove, usize>,
    /// Whether the strategy panicked.
    panicked: bool,
}

/// What a strategy answers, which an application may have supplied; `None` if it panics. The manager goes on (A3).
fn answer_of(ask: impl FnOnce() -> Vec<Move>) -> Option<Vec<Move>> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(ask)).ok()
}

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
        let rows: BTreeMap<_, _> = observed.assignments().collect();
        let mut all = Vec::new();
        for pool in context.identity.pools.iter().filter(|pool| !pool.is_stateless()) {
            let plan = plan::from_rows(
                &self.inputs(context, observed, pool, context.identity.seed),
                &rows,
            );
            let proposal = self.proposed_moves(context, &plan, MAX_PREVIEW);
            all.extend(proposal.moves.into_iter().filter_map(|step| {
                let from = rows.get(&step.shard)?.owner.clone()?.node;
                Some((step.shard, from, plan.members.get(step.to)?.node.clone()))
            }));
        }
        all
    }

    /// The strategy of a pool.
    fn strategy(&self, context: &Context, pool: &Pool) -> Arc<dyn AllocationStrategy> {
        match pool.strategy {
            Some(named) => named.build_with(&context.settings.strategies).into(),
            None => Arc::clone(&self.strategy),
        }
    }

    fn is_external(&self, context: &Context, pool: &Pool) -> bool {
        self.strategy(context, pool).name() == BuiltinStrategy::External.name()
    }

    fn inputs<'a>(
        &'a self,
        context: &'a Context,
        observed: &'a ObservedCluster,
        pool: &'a Pool,
        seed: u64,
    ) -> plan::PlanInputs<'a> {
        let (loads, late) = self.term.as_ref().map(|term| (&term.loads, &term.late_starts)).unzip();
        let placements = &self.placements;
        plan::PlanInputs { context, observed, pool, placements, loads, late, seed }
    }

    /// The moves that balance the hosts of a plan's pool, with the shards' numbers in the cluster: pinned shards first,
    /// then what the strategy proposes. Hosts that were late get no shards (K14).
    fn proposed_moves(
        &self,
        context: &Context,
        plan: &plan::AllocationPlan,
        room: usize,
    ) -> Proposal {
        if plan.view.hosts.is_empty() {
            return Proposal::default();
        }
        // A host that was late gets one shard on trial, or none.
        let late = self.term.as_ref().map(|term| term.late_starts.hosts()).unwrap_or_default();
        let mut tried = BTreeSet::new();
        let mut may_get = |to: usize| {
            let is_late = plan.members.get(to).is_some_and(|member| late.contains(member));
            !is_late || (!plan.view.hosts[to].paused && tried.insert(to))
        };
        let owner = |shard: ShardId| {
            let place = plan.view.shards.get(plan.pool.to_local(shard).0 as usize - 1)?;
            place.owner.filter(|_| !place.hand_off_in_progress)
        };
        let misplaced = plan.pins.iter().filter(|(shard, to)| {
            owner(**shard).is_some_and(|owner| owner != **to) && may_get(**to)
        });
        let pinned = misplaced.map(|(shard, to)| Move { shard: *shard, to: *to });
        let mut moves: Vec<_> = pinned.take(room).collect();
        let room = room - moves.len();
        if self.placements.holds(&plan.pool) && self.is_external(context, &plan.pool) {
            return Proposal { moves, ..Proposal::default() };
        }
        // Moves to late hosts are not made: others must not wait for them.
        let most = if late.is_empty() { room } else { plan.view.shards.len() };
        let strategy = self.strategy(context, &plan.pool);
        let proposed = answer_of(|| strategy.rebalance(&plan.view, most));
        let panicked = proposed.is_none();
        let (valid, invalid) = assign::filter_valid_moves(
            &plan.view,
            proposed.unwrap_or_default(),
            MoveKind::Rebalance(most),
        );
        let valid = valid.into_iter().filter(|step| may_get(step.to)).take(room);
        moves.extend(valid.map(|step| Move { shard: plan.pool.to_global(step.shard), ..step }));
        Proposal { moves, invalid, panicked }
    }

    /// The host for each of a plan's shards without an owner: the one to which it is pinned, or else the one that the
    /// strategy chooses. If the strategy panics, the default one chooses. A host that was late is replaced by the one with
    /// the fewest shards that was not (K14).
    pub(super) fn allocate(
        &mut self,
        context: &mut Context,
        plan: &plan::AllocationPlan,
    ) -> BTreeMap<ShardId, usize> {
        if plan.view.hosts.is_empty() {
            return BTreeMap::new();
        }
        let strategy = self.strategy(context, &plan.pool);
        let moves = answer_of(|| strategy.allocate(&plan.view)).unwrap_or_else(|| {
            self.report_panic(context, strategy.name());
            BuiltinStrategy::Average.build_with(&context.settings.strategies).allocate(&plan.view)
        });
        let (moves, invalid) = assign::filter_valid_moves(&plan.view, moves, MoveKind::Allocate);
        self.report_invalid_moves(context, plan, invalid);
        let moves = moves.into_iter().map(|step| (plan.pool.to_global(step.shard), step.to));
        let mut chosen: BTreeMap<_, _> = moves.chain(plan.pins.clone()).collect();
        let term = self.term.as_ref();
        let late = term.map_or_else(BTreeSet::new, |term| term.late_starts.hosts());
        if !late.is_empty() {
            plan.avoid(&late, &mut chosen);
        }
        chosen
    }

    /// Reports once per term that a strategy has panicked.
    fn report_panic(&mut self, context: &mut Context, strategy: &str) {
        if let Some(term) = &mut self.term
            && term.notified_panics.insert(strategy.to_owned())
        {
            let strategy = strategy.to_owned();
            context.push(Action::Notify(Notice::StrategyPanicked { strategy }));
        }
    }

    /// Reports each kind of invalid move once per term.
    fn report_invalid_moves(
        &mut self,
        context: &mut Context,
        plan: &plan::AllocationPlan,
        invalid: BTreeMap<assign::InvalidMove, usize>,
    ) {
        let strategy = self.strategy(context, &plan.pool);
        let Some(term) = &mut self.term else { return };
        for (reason, moves) in invalid {
            if term.notified_rejected_moves.insert(reason) {
                let strategy = strategy.name().to_owned();
                let notice = Notice::MovesRejected { strategy, moves, reason };
                context.push(Action::Notify(notice));
            }
        }
    }

    /// A plan of a pool in which these shards have no owner; other shards that are being handed off count toward their
    /// target.
    pub(super) fn plan(
        &mut self,
        context: &Context,
        observed: &ObservedCluster,
        pool: &Pool,
        without: &[ShardId],
        seed: u64,
    ) -> Option<plan::AllocationPlan> {
        let shards = context.identity.pools.shard_count();
        let term = self.term.as_mut()?;
        let hosts = plan::hosts(observed);
        let owners = term.owner_index.refresh(&hosts, &term.chunks, shards);
        #[cfg(debug_assertions)]
        if owners.len() <= 16 * SHARDS_PER_CHUNK as usize {
            let mut fresh = super::OwnerIndex::default();
            let fresh = fresh.refresh(&hosts, &term.chunks, shards);
            assert_eq!(owners, fresh, "a chunk changed without an update of the plan");
        }
        let owners = owners.get(pool.first.0 as usize - 1..pool.last().0 as usize)?;
        let moving = term.hand_offs.range(pool.first..=pool.last());
        let moving = moving.map(|(shard, it)| (*shard, it.target.as_ref()));
        let (placements, loads) = (&self.placements, Some(&term.loads));
        let late = Some(&term.late_starts);
        let inputs = plan::PlanInputs { context, observed, pool, placements, loads, late, seed };
        Some(plan::of(&inputs, &hosts, owners, moving, without))
    }

    /// Hands off the shards of draining nodes, a limited number of them concurrently (R12, K35).
    pub(in super::super) fn drain(&mut self, context: &mut Context, observed: &ObservedCluster) {
        for pool in context.identity.pools.clone().iter() {
            self.drain_pool(context, observed, pool);
        }
    }

    fn drain_pool(&mut self, context: &mut Context, observed: &ObservedCluster, pool: &Pool) {
        let Some(term) = &self.term else { return };
        let in_progress = term.count(HandOffReason::Drain);
        let room = context.settings.max_drain_hand_offs.saturating_sub(in_progress);
        let draining = hosts_to_evacuate(context, observed, pool);
        if room == 0 || draining.is_empty() {
            return;
        }
        let leaving: Vec<_> = term
            .stable_assignments()
            .filter(|(shard, row, _)| {
                row.owner.as_ref().is_some_and(|owner| draining.contains(&owner.node))
                    && row.hand_off.is_none()
                    && pool.contains(*shard)
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
        let Some(plan) = self.plan(context, observed, pool, &without, seed) else { return };
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
        let hosts = observed.all_eligible_hosts(&context.identity.pools);
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
        let mut left = room;
        for pool in context.identity.pools.clone().iter() {
            left -= self.rebalance_pool(context, observed, pool, left);
        }
        let Some(term) = self.term.as_mut().filter(|_| left == room) else { return };
        term.next_rebalance_at = now
            + match term.hand_offs.is_empty() {
                true => context.settings.rebalance_interval,
                false => context.settings.renew_interval / 4,
            };
    }

    /// Starts at most `room` moves that balance the hosts of a pool. Returns how many.
    fn rebalance_pool(
        &mut self,
        context: &mut Context,
        observed: &ObservedCluster,
        pool: &Pool,
        room: usize,
    ) -> usize {
        if room == 0 || pool.is_stateless() {
            return 0;
        }
        let seed = context.draw();
        let Some(plan) = self.plan(context, observed, pool, &[], seed) else { return 0 };
        let Proposal { moves, invalid, panicked } = self.proposed_moves(context, &plan, room);
        if panicked {
            self.report_panic(context, self.strategy(context, pool).name());
        }
        self.report_invalid_moves(context, &plan, invalid);
        let count = moves.len();
        for step in moves {
            let (Some(member), Some(term)) = (plan.members.get(step.to), &mut self.term) else {
                continue;
            };
            let stable = term.stable_assignment(step.shard);
            let Some(row) = stable.map(|(row, _)| row.clone()) else { continue };
            term.late_starts.on_move(member, step.shard);
            let target = member.node.clone();
            let reason = HandOffReason::Rebalance;
            self.begin_hand_off(context, observed, step.shard, &row, target, reason);
        }
        count
    }
}

/// Hosts whose shards of a pool must move elsewhere: they are draining, or cannot run a deployed type that another host
/// of the pool can (R24).
fn hosts_to_evacuate(
    context: &Context,
    observed: &ObservedCluster,
    pool: &Pool,
) -> BTreeSet<NodeId> {
    let draining = observed.all_live().filter(|(_, row)| row.is_draining_or_leaving());
    let mut nodes: BTreeSet<_> = draining.map(|(node, _)| node.clone()).collect();
    let mut unable = observed.unrunnable_types().map(|(member, _)| member).peekable();
    if unable.peek().is_some() && !context.has_mutation(Mutation::IgnoreUnrunnableTypes) {
        let able: BTreeSet<_> = observed.eligible_hosts(pool).map(|(member, _)| member).collect();
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
