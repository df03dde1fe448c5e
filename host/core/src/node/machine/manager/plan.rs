//! The cluster as a strategy sees it.

use super::owners::by_member;
use super::{Assignment, BTreeMap, Member, NodeId, ObservedCluster, ShardId, assign};

/// A strategy's view, and the incarnations behind its hosts.
pub(super) struct AllocationPlan {
    pub(super) members: Vec<Member>,
    pub(super) view: assign::AllocationView,
}

impl AllocationPlan {
    pub(super) fn index(&self, node: &NodeId) -> Option<usize> {
        self.members.iter().position(|member| member.node == *node)
    }
}

/// Hosts that may get shards, in the view's order.
pub(super) fn members(observed: &ObservedCluster) -> Vec<Member> {
    observed.eligible_hosts().map(|(member, _)| member).collect()
}

/// The plan for rows as a node sees them, ordered by shard.
pub(super) fn from_rows(
    observed: &ObservedCluster,
    rows: &[(ShardId, &Assignment)],
    seed: u64,
) -> AllocationPlan {
    let members = members(observed);
    let indices = by_member(&members);
    let owner = |row: &Assignment| row.owner.as_ref().and_then(|owner| indices.get(owner)).copied();
    let owners: Vec<_> = rows.iter().map(|(_, row)| owner(row)).collect();
    let moving = rows
        .iter()
        .filter_map(|(shard, row)| Some((*shard, row.hand_off.as_ref()?.target.as_ref())))
        .collect::<Vec<_>>();
    of(observed, &members, &owners, moving, &[], seed)
}

/// Creates a plan from each shard's owner, as an index into the members. A shard that is being handed off counts toward
/// its target; the shards in `without` have no owner.
pub(super) fn of<'a>(
    observed: &ObservedCluster,
    members: &[Member],
    owners: &[Option<usize>],
    moving: impl IntoIterator<Item = (ShardId, Option<&'a NodeId>)>,
    without: &[ShardId],
    seed: u64,
) -> AllocationPlan {
    let mut shards: Vec<_> = owners
        .iter()
        .map(|owner| assign::ShardPlacement { owner: *owner, hand_off_in_progress: false })
        .collect();
    let by_node: BTreeMap<_, _> =
        members.iter().enumerate().map(|(at, member)| (&member.node, at)).collect();
    for (shard, to) in moving {
        if let Some(place) = placement_mut(&mut shards, shard) {
            let to = to.and_then(|to| by_node.get(to)).copied();
            *place =
                assign::ShardPlacement { owner: to.or(place.owner), hand_off_in_progress: true };
        }
    }
    for shard in without {
        if let Some(place) = placement_mut(&mut shards, *shard) {
            *place = assign::ShardPlacement::default();
        }
    }
    let hosts = observed
        .eligible_hosts()
        .map(|(member, row)| assign::Host { node: member.node, version: row.version })
        .collect();
    AllocationPlan {
        members: members.to_vec(),
        view: assign::AllocationView { hosts, shards, seed },
    }
}

fn placement_mut(
    shards: &mut [assign::ShardPlacement],
    shard: ShardId,
) -> Option<&mut assign::ShardPlacement> {
    shards.get_mut((shard.0 as usize).checked_sub(1)?)
}
