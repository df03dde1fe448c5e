//! Health checks of other nodes' processes (S7, R9).
//!
//! A check may find that a process has ended, which hastens the death of its incarnation. Nothing that it does not find
//! delays one: a lease that lapses counts as before.

use std::collections::BTreeMap;

use super::{Action, Context, Member, NodeId, NodeStatus, ObservedCluster};
use crate::ids::Incarnation;
#[cfg(any(test, feature = "testing"))]
use crate::node::Canonicalizer;

/// What the health checks have found, and when the next ones are due.
#[derive(Clone, Debug, Default, Hash)]
pub(super) struct Processes {
    /// The last incarnation of a node whose process is known to have ended.
    ended: BTreeMap<NodeId, Incarnation>,
    /// When the process of a suspected node may be checked again.
    check_at: BTreeMap<NodeId, u64>,
}

impl Processes {
    pub(super) fn has_ended(&self, node: &NodeId, incarnation: Incarnation) -> bool {
        self.ended.get(node) == Some(&incarnation)
    }

    #[cfg(any(test, feature = "testing"))]
    pub(super) fn canonicalize(&mut self, to: &dyn Canonicalizer) {
        for at in self.check_at.values_mut() {
            *at = to.map_deadline(*at);
        }
    }
}

impl ObservedCluster {
    /// Checks the process of each node whose lease has not changed for half its duration.
    pub(in super::super) fn check_processes(&mut self, context: &mut Context) {
        if context.settings.health_check_interval.is_none() {
            return;
        }
        let now = context.mono();
        let suspects: Vec<_> = self
            .all_live()
            .filter(|(node, row)| self.lease_unchanged_for(node, now, row.lease / 2))
            .map(|(node, _)| node.clone())
            .collect();
        self.processes.check_at.retain(|_, at| *at > now);
        for node in suspects {
            self.check_process(context, &node);
        }
    }

    /// Checks the process of a live node, unless it was checked a moment ago.
    pub(in super::super) fn check_process(&mut self, context: &mut Context, node: &NodeId) {
        let Some(interval) = context.settings.health_check_interval else { return };
        let now = context.mono();
        let is_due = self.processes.check_at.get(node).is_none_or(|at| *at <= now);
        let Some(member) = self.live_member(node).filter(|_| is_due) else { return };
        let has_ended = self.processes.has_ended(node, member.incarnation);
        if *node != context.identity.node && !has_ended {
            self.processes.check_at.insert(node.clone(), now + interval);
            context.push(Action::CheckProcess { member });
        }
    }

    /// A check has found that the process of this incarnation has ended. Returns whether the incarnation counted as
    /// live.
    pub(in super::super) fn on_process_ended(&mut self, member: Member) -> bool {
        let is_news = self.live_member(&member.node).as_ref() == Some(&member);
        if is_news {
            self.processes.ended.insert(member.node, member.incarnation);
        }
        is_news
    }

    /// The incarnation of a node that is live according to its row.
    fn live_member(&self, node: &NodeId) -> Option<Member> {
        let (row, _) = self.node(node)?;
        let is_live = row.status == NodeStatus::Live;
        is_live.then(|| Member { node: node.clone(), incarnation: row.incarnation })
    }
}
