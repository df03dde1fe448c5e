//! A manager that receives no report from another host hands the leadership to the next candidate, which those
//! hosts may be able to reach (decision 0051).
//!
//! Meanwhile it continues to assign shards from rows, but cannot hand them off. If no host reaches any candidate, the
//! leadership rotates: each successive manager without a report waits twice as long as the one before, so that rows are
//! resealed less and less often, and nodes have time to act on rows alone (decision 0020).

use super::campaign::write_manager_row;
use super::{
    Context, Extensions, Manager, ManagerRow, Member, Mutation, NodeId, NodeRow, Notice,
    ObservedCluster,
};

/// Maximum number of times that the delay doubles.
const DOUBLINGS: u32 = 6;

/// How long a manager keeps the leadership without a report from another host, after this number of consecutive
/// managers stepped down.
pub(super) fn delay(context: &Context, step_downs: u32) -> u64 {
    context.settings.manager_silence_timeout << step_downs.min(DOUBLINGS)
}

impl Manager {
    /// Writes the next candidate as the holder once no other host has reported for too long.
    pub(in super::super) fn step_down(
        &mut self,
        context: &mut Context,
        observed: &ObservedCluster,
        me: &Member,
    ) {
        let (Some(term), Some(row)) = (&self.term, observed.manager_row()) else { return };
        let hosts = observed.all_live().filter(|(node, row)| row.is_host() && **node != me.node);
        let (mut has_hosts, mut any_reported) = (false, false);
        for (host, _) in hosts {
            if !observed.is_unresponsive(host) {
                return;
            }
            has_hosts = true;
            any_reported |= term.reports.contains_key(host);
        }
        if !has_hosts
            || (!any_reported && context.mono() < term.step_down_at)
            || context.requests.writes_manager_row()
            || context.has_mutation(Mutation::NeverStepDown)
        {
            return;
        }
        let step_downs =
            if any_reported { 1 } else { row.consecutive_step_downs().saturating_add(1) };
        let Some(holder) = successor(context, observed, me) else { return };
        let to = holder.node.clone();
        let row = ManagerRow { term: term.number + 1, holder, extensions: Extensions::default() };
        write_manager_row(context, observed, row, step_downs);
        context.notify(Notice::ManagerSteppedDown { to });
    }
}

/// The candidate after this node in order of age, wrapping around, so that each candidate gets its turn.
fn successor(context: &Context, observed: &ObservedCluster, me: &Member) -> Option<Member> {
    let (own, _) = observed.node(&me.node)?;
    let age = |node: &NodeId, row: &NodeRow| (row.registered_at, node.clone());
    let own_age = age(&me.node, own);
    let candidates = observed.all_live().filter(|(node, row)| {
        **node != me.node
            && row.roles.manager
            && !row.is_draining_or_leaving()
            && !observed.lease_unchanged_for(node, context.mono(), row.lease)
    });
    let next = candidates.min_by_key(|(node, row)| {
        let age = age(node, row);
        (age < own_age, age)
    });
    next.map(|(node, row)| Member { node: node.clone(), incarnation: row.incarnation })
}
