//! Learns a newly observed row, and finds what changed.

use super::{
    Action, AssignmentsRow, Context, ManagerRow, Member, NodeId, NodeRow, NodeStatus, Notice,
    ObservedCluster, shard_at,
};
use crate::node::Mutation;

/// What a newer row of a node means for the parts that decide from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct NodeChange {
    /// Whether the incarnation or its status has changed: any shard may belong to it.
    pub(in super::super) affects_ownership: bool,
    /// Whether more than the number of renewals has changed.
    pub(in super::super) affects_decisions: bool,
    /// Whether routes to the node may have changed.
    pub(in super::super) affects_routes: bool,
}

impl ObservedCluster {
    /// Learns a node's row; `None` if it is not newer than the known one.
    pub(in super::super) fn learn_node(
        &mut self,
        context: &mut Context,
        node: NodeId,
        row: NodeRow,
        revision: u64,
    ) -> Option<NodeChange> {
        let old = self.nodes.get(&node);
        if old.is_some_and(|(_, at)| !is_newer(context, revision, *at)) {
            return None;
        }
        let old = old.map(|(row, _)| row.clone());
        let same = |old: &NodeRow| old.incarnation == row.incarnation;
        if old.as_ref().is_none_or(|old| !same(old) || old.renewals != row.renewals) {
            self.lease_changed_at.insert(node.clone(), context.mono());
        }
        let member = Member { node: node.clone(), incarnation: row.incarnation };
        let alive = row.status == NodeStatus::Live;
        let was_alive = old.as_ref().is_some_and(|old| same(old) && old.status == NodeStatus::Live);
        if let Some(old) = old.as_ref().filter(|old| !same(old) && old.status == NodeStatus::Live) {
            let former = Member { node: node.clone(), incarnation: old.incarnation };
            context.push(Action::UpdatePeer {
                member: former,
                alive: false,
                addresses: old.addresses.clone(),
            });
        }
        if alive != was_alive {
            let left_gracefully = row.status == NodeStatus::Left;
            context.notify(if alive {
                Notice::NodeJoined(member.clone())
            } else {
                Notice::NodeGone { member: member.clone(), left_gracefully }
            });
        }
        let drains = row.is_draining_or_leaving();
        let drained = old.as_ref().is_some_and(NodeRow::is_draining_or_leaving);
        // A drain mark that existed before the node joined is announced again: it survives restarts.
        if alive && (drains != drained || (drains && !was_alive)) {
            context.notify(Notice::DrainChanged(member.clone(), drains));
        }
        if old.as_ref().is_none_or(|old| alive != was_alive || old.addresses != row.addresses) {
            let addresses = row.addresses.clone();
            context.push(Action::UpdatePeer { member, alive, addresses });
        }
        let only_renewed =
            |old: &NodeRow| NodeRow { renewals: old.renewals, ..row.clone() } == *old;
        let change = NodeChange {
            affects_ownership: !old
                .as_ref()
                .is_some_and(|old| same(old) && old.status == row.status),
            affects_decisions: !old.as_ref().is_some_and(only_renewed),
            affects_routes: alive != was_alive || old.as_ref().is_some_and(|old| !same(old)),
        };
        self.nodes.insert(node, (row, revision));
        Some(change)
    }

    /// Learns the manager's row, and returns whether it begins a new term; `None` if it is not newer than the known
    /// one.
    pub(in super::super) fn learn_manager(
        &mut self,
        context: &mut Context,
        row: ManagerRow,
        revision: u64,
    ) -> Option<bool> {
        let known = self.manager.as_ref();
        if known.is_some_and(|(_, at)| !is_newer(context, revision, *at)) {
            return None;
        }
        let is_new_term = known.is_none_or(|(old, _)| old.term != row.term);
        if is_new_term {
            let (holder, term) = (row.holder.clone(), row.term);
            context.notify(Notice::ManagerChanged { holder, term });
        }
        self.manager = Some((row, revision));
        self.leadership_is_held();
        Some(is_new_term)
    }

    /// Learns a chunk of assignments, and returns whether it is newer than the known one.
    pub(in super::super) fn learn_chunk(
        &mut self,
        context: &mut Context,
        chunk: u32,
        row: AssignmentsRow,
        revision: u64,
    ) -> bool {
        if self.chunks.get(&chunk).is_some_and(|(_, at)| !is_newer(context, revision, *at)) {
            return false;
        }
        let old = self.chunks.get(&chunk).map(|(old, _)| old);
        notify_assignment_changes(context, chunk, old, &row);
        self.chunks.insert(chunk, (row, revision));
        self.publish_routes(context, chunk);
        true
    }
}

/// Whether a row of this revision is newer than the known one. A read, a message and the watch each deliver rows at
/// their own pace, and a watch may repeat values: an older row may arrive after a newer one.
fn is_newer(context: &Context, revision: u64, known: u64) -> bool {
    revision > known || revision < known && context.has_mutation(Mutation::AcceptOlderRows)
}

fn notify_assignment_changes(
    context: &mut Context,
    chunk: u32,
    old: Option<&AssignmentsRow>,
    new: &AssignmentsRow,
) {
    for (place, row) in new.assignments.iter().enumerate() {
        let before = old.and_then(|old| old.assignments.get(place));
        let shard = shard_at(chunk, place);
        let Some(owner) = row.owner.clone() else { continue };
        if before.is_none_or(|before| before.epoch != row.epoch) {
            context.notify(Notice::ShardAssigned { shard, epoch: row.epoch, owner });
        } else if row.hand_off.is_some() && before.is_none_or(|before| before.hand_off.is_none()) {
            context.notify(Notice::HandOffStarted { shard, from: owner });
        } else if row.hand_off.is_none() && before.is_some_and(|before| before.hand_off.is_some()) {
            context.notify(Notice::HandOffFailed { shard, owner });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Incarnation;
    use crate::node::machine::NodeIdentity;
    use crate::node::{Action, Settings};
    use crate::rows::Roles;

    fn row(renewals: u64, status: NodeStatus) -> NodeRow {
        let row = NodeRow::for_tests(Incarnation { counter: 1, nonce: 1 });
        NodeRow { renewals, status, ..row }
    }

    #[test]
    fn only_more_than_a_renewal_affects_decisions() {
        let identity = NodeIdentity {
            node: "me".into(),
            roles: Roles::ALL,
            version: 1,
            addresses: Vec::new(),
            pool_roles: Vec::new(),
            weight: 1,
            pools: crate::pools::Pools::one(4),
            seed: 1,
        };
        let mut context = Context::new(Settings::default(), identity);
        let mut observed = ObservedCluster::new(4);
        let mut learn = |renewals, status, revision| {
            let row = row(renewals, status);
            let change = observed.learn_node(&mut context, "a".into(), row, revision);
            let notices = std::iter::from_fn(|| context.poll())
                .filter(|action| matches!(action, Action::Notify(_)))
                .count();
            change.map(|change| {
                (change.affects_ownership, change.affects_decisions, change.affects_routes, notices)
            })
        };
        assert_eq!(learn(0, NodeStatus::Live, 5), Some((true, true, true, 1)), "it joins");
        assert_eq!(learn(1, NodeStatus::Live, 6), Some((false, false, false, 0)), "it renews");
        assert_eq!(learn(2, NodeStatus::Live, 6), None, "not a newer revision");
        assert_eq!(learn(1, NodeStatus::Dead, 7), Some((true, true, true, 1)), "it is dead");
    }
}
