//! A pool as a strategy sees it.

use super::late_starts::LateStarts;
use super::loads::Loads;
use super::owners::by_member;
use super::placements::Placements;
use super::{
    Assignment, BTreeMap, BTreeSet, Context, Member, NodeId, ObservedCluster, ShardId, assign,
};
use crate::pools::Pool;

/// A strategy's view of a pool, and the incarnations behind its hosts. The view numbers the pool's shards from 1 on.
pub(super) struct AllocationPlan {
    pub(super) pool: Pool,
    pub(super) members: Vec<Member>,
    pub(super) view: assign::AllocationView,
    /// Where each pinned shard must be, if that host is in the view. Shards have their numbers in the cluster.
    pub(super) pins: BTreeMap<ShardId, usize>,
}

impl AllocationPlan {
    pub(super) fn index(&self, node: &NodeId) -> Option<usize> {
        self.members.iter().position(|member| member.node == *node)
    }

    /// Gives shards that would go to one of these hosts to others that may be given shards, each to the one with the fewest
    /// in relation to its weight then, if there are others.
    pub(super) fn avoid(&self, hosts: &BTreeSet<Member>, moves: &mut BTreeMap<ShardId, usize>) {
        let mut counts = vec![0_u64; self.members.len()];
        let owners = self.view.shards.iter().filter_map(|place| place.owner);
        for host in owners.chain(moves.values().copied()) {
            counts[host] += 1;
        }
        let is_avoided = |host: usize| hosts.contains(&self.members[host]);
        let others: Vec<_> = self.view.latest().filter(|host| !is_avoided(*host)).collect();
        for to in moves.values_mut().filter(|to| is_avoided(**to)) {
            let other =
                others.iter().min_by_key(|host| self.view.ratio(**host, counts[**host] + 1));
            let Some(other) = other else { return };
            counts[*other] += 1;
            *to = *other;
        }
    }

    fn placement_mut(&mut self, shard: ShardId) -> Option<&mut assign::ShardPlacement> {
        let local = self.pool.contains(shard).then(|| self.pool.to_local(shard))?;
        self.view.shards.get_mut((local.0 as usize).checked_sub(1)?)
    }
}

/// Where a pool's shards are, and what else the manager knows about them.
pub(super) struct PlanInputs<'a> {
    pub(super) context: &'a Context,
    pub(super) observed: &'a ObservedCluster,
    pub(super) pool: &'a Pool,
    pub(super) placements: &'a Placements,
    /// The loads of shards, if this node is the manager.
    pub(super) loads: Option<&'a Loads>,
    /// The hosts that were late, if this node is the manager.
    pub(super) late: Option<&'a LateStarts>,
    pub(super) seed: u64,
}

/// The live hosts of any pool.
pub(super) fn hosts(observed: &ObservedCluster) -> Vec<Member> {
    let hosts = observed.all_live().filter(|(_, row)| row.is_host());
    hosts.map(|(node, row)| Member { node: node.clone(), incarnation: row.incarnation }).collect()
}

/// The plan of a pool for rows as a node sees them.
pub(super) fn from_rows(
    inputs: &PlanInputs<'_>,
    rows: &BTreeMap<ShardId, &Assignment>,
) -> AllocationPlan {
    let PlanInputs { observed, pool, .. } = *inputs;
    let hosts = hosts(observed);
    let indices = by_member(&hosts);
    let rows = || rows.range(pool.first..=pool.last());
    let mut owners = vec![None; pool.shards as usize];
    for (shard, row) in rows() {
        let owner = row.owner.as_ref().and_then(|owner| indices.get(owner)).copied();
        if let Some(place) = owners.get_mut((shard.0 - pool.first.0) as usize) {
            *place = owner;
        }
    }
    let moving =
        rows().filter_map(|(shard, row)| Some((*shard, row.hand_off.as_ref()?.target.as_ref())));
    of(inputs, &hosts, &owners, moving, &[])
}

/// Creates the plan of a pool from each of its shards' owner, as an index into the live hosts. A shard that is being
/// handed off counts toward its target; the shards in `without` have no owner.
pub(super) fn of<'a>(
    inputs: &PlanInputs<'_>,
    hosts: &[Member],
    owners: &[Option<usize>],
    moving: impl IntoIterator<Item = (ShardId, Option<&'a NodeId>)>,
    without: &[ShardId],
) -> AllocationPlan {
    let PlanInputs { context, observed, pool, placements, loads, late, seed } = *inputs;
    let mut eligible: Vec<_> = observed.eligible_hosts(pool).collect();
    // From the oldest on: among hosts that are equally full, it gives first (S16.3).
    eligible.sort_by(|(a, a_row), (b, b_row)| {
        (a_row.registered_at, &a.node).cmp(&(b_row.registered_at, &b.node))
    });
    let (members, view_hosts): (Vec<_>, _) = eligible
        .into_iter()
        .map(|(member, row)| {
            let node = member.node.clone();
            let host = assign::Host {
                weight: row.weight(),
                paused: late.is_some_and(|late| late.is_paused(&member, context.mono())),
                ..assign::Host::new(node, row.version)
            };
            (member, host)
        })
        .unzip();
    let by_member = by_member(&members);
    let in_plan: Vec<_> = hosts.iter().map(|host| by_member.get(host).copied()).collect();
    let by_node: BTreeMap<_, _> =
        members.iter().enumerate().map(|(at, member)| (member.node.clone(), at)).collect();
    let numbers = (pool.first.0..).map(ShardId);
    let shards = owners.iter().zip(numbers).map(|(owner, shard)| assign::ShardPlacement {
        owner: owner.and_then(|owner| in_plan.get(owner).copied().flatten()),
        load: loads.map_or(0, |loads| loads.of(shard)),
        ..assign::ShardPlacement::default()
    });
    let measured =
        loads.is_some_and(|loads| members.iter().all(|member| loads.has_report_of(member)));
    let shards = shards.collect();
    let view = assign::AllocationView { hosts: view_hosts, shards, seed, measured };
    let mut plan = AllocationPlan { pool: pool.clone(), members, view, pins: BTreeMap::new() };
    for (shard, to) in moving {
        if let Some(place) = plan.placement_mut(shard) {
            let to = to.and_then(|to| by_node.get(to)).copied();
            place.owner = to.or(place.owner);
            place.hand_off_in_progress = true;
        }
    }
    for shard in without {
        if let Some(place) = plan.placement_mut(*shard) {
            place.owner = None;
            place.hand_off_in_progress = false;
        }
    }
    for (shard, node) in placements.pins_of(context, pool) {
        if let (Some(at), Some(place)) = (by_node.get(node), plan.placement_mut(shard)) {
            place.pinned = true;
            plan.pins.insert(shard, *at);
        }
    }
    for (shard, node) in placements.wishes_of(pool) {
        let wanted = by_node.get(node).copied();
        if let Some(place) = plan.placement_mut(shard) {
            place.wanted = wanted;
        }
    }
    plan
}
