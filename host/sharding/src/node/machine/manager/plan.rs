//! The cluster as a strategy sees it.

use super::*;
use crate::assign;

/// A strategy's view, and the lives behind its hosts.
pub(in super::super) struct Plan {
    pub(in super::super) members: Vec<Member>,
    pub(in super::super) view: assign::View,
}

impl Plan {
    pub(super) fn index(&self, node: &NodeId) -> Option<usize> {
        self.members.iter().position(|member| member.node == *node)
    }
}

/// Makes the view: hosts are those that may get shards; a shard that is under way counts where it goes; those of
/// `without`, in order, have no owner.
pub(in super::super) fn of(
    view: &View,
    rows: &[(ShardId, &ShardRow)],
    targets: &BTreeMap<ShardId, Option<&NodeId>>,
    without: &[ShardId],
    seed: u64,
) -> Plan {
    let hosts: Vec<_> = view.hosts().collect();
    let members: Vec<_> = hosts.iter().map(|(member, _)| member.clone()).collect();
    let by_member: BTreeMap<_, _> =
        members.iter().enumerate().map(|(at, member)| (member, at)).collect();
    let by_node: BTreeMap<_, _> =
        members.iter().enumerate().map(|(at, member)| (&member.node, at)).collect();
    let places = rows.iter().map(|(shard, row)| {
        let owner = row.owner.as_ref().and_then(|owner| by_member.get(owner)).copied();
        if without.binary_search(shard).is_ok() {
            return assign::Place::default();
        }
        match targets.get(shard) {
            Some(to) => {
                let to = to.and_then(|to| by_node.get(to)).copied();
                assign::Place { owner: to.or(owner), busy: true }
            }
            None => assign::Place { owner, busy: false },
        }
    });
    let shards = places.collect();
    let hosts = hosts
        .iter()
        .map(|(member, row)| assign::Host { node: member.node.clone(), version: row.version })
        .collect();
    Plan { members, view: assign::View { hosts, shards, seed } }
}
