//! A pool as a strategy sees it.

use super::owners::by_member;
use super::{Assignment, BTreeMap, Member, NodeId, ObservedCluster, ShardId, assign};
use crate::pools::Pool;

/// A strategy's view of a pool, and the incarnations behind its hosts. The view numbers the pool's shards from 1 on.
pub(super) struct AllocationPlan {
    pub(super) pool: Pool,
    pub(super) members: Vec<Member>,
    pub(super) view: assign::AllocationView,
}

impl AllocationPlan {
    pub(super) fn index(&self, node: &NodeId) -> Option<usize> {
        self.members.iter().position(|member| member.node == *node)
    }

    fn placement_mut(&mut self, shard: ShardId) -> Option<&mut assign::ShardPlacement> {
        let local = self.pool.contains(shard).then(|| self.pool.to_local(shard))?;
        self.view.shards.get_mut((local.0 as usize).checked_sub(1)?)
    }
}

/// The live hosts of any pool.
pub(super) fn hosts(observed: &ObservedCluster) -> Vec<Member> {
    let hosts = observed.all_live().filter(|(_, row)| row.is_host());
    hosts.map(|(node, row)| Member { node: node.clone(), incarnation: row.incarnation }).collect()
}

/// The plan of a pool for rows as a node sees them.
pub(super) fn from_rows(
    observed: &ObservedCluster,
    pool: &Pool,
    rows: &BTreeMap<ShardId, &Assignment>,
    seed: u64,
) -> AllocationPlan {
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
    of(observed, pool, &hosts, &owners, moving, &[], seed)
}

/// Creates the plan of a pool from each of its shards' owner, as an index into the live hosts. A shard that is being
/// handed off counts toward its target; the shards in `without` have no owner.
pub(super) fn of<'a>(
    observed: &ObservedCluster,
    pool: &Pool,
    hosts: &[Member],
    owners: &[Option<usize>],
    moving: impl IntoIterator<Item = (ShardId, Option<&'a NodeId>)>,
    without: &[ShardId],
    seed: u64,
) -> AllocationPlan {
    let (members, view_hosts): (Vec<_>, _) = observed
        .eligible_hosts(pool)
        .map(|(member, row)| {
            let host = assign::Host { node: member.node.clone(), version: row.version };
            (member, host)
        })
        .unzip();
    let by_member = by_member(&members);
    let in_plan: Vec<_> = hosts.iter().map(|host| by_member.get(host).copied()).collect();
    let by_node: BTreeMap<_, _> =
        members.iter().enumerate().map(|(at, member)| (member.node.clone(), at)).collect();
    let shards = owners
        .iter()
        .map(|owner| assign::ShardPlacement {
            owner: owner.and_then(|owner| in_plan.get(owner).copied().flatten()),
            hand_off_in_progress: false,
        })
        .collect();
    let view = assign::AllocationView { hosts: view_hosts, shards, seed };
    let mut plan = AllocationPlan { pool: pool.clone(), members, view };
    for (shard, to) in moving {
        if let Some(place) = plan.placement_mut(shard) {
            let to = to.and_then(|to| by_node.get(to)).copied();
            *place =
                assign::ShardPlacement { owner: to.or(place.owner), hand_off_in_progress: true };
        }
    }
    for shard in without {
        if let Some(place) = plan.placement_mut(*shard) {
            *place = assign::ShardPlacement::default();
        }
    }
    plan
}
