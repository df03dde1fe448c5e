//! Drains and rebalances, with progress reports.

use std::time::Duration;

use ostraca_codes::codes;
use ostraca_control as control;
use ostraca_control::view::ClusterView;
use ostraca_core::ids::NodeId;
use ostraca_core::node::{Event, Notice};
use ostraca_core::pools::{Pool, Pools};
use ostraca_core::rows::NodeStatus;
use ostraca_wire::outcome::permanent_problem as problem;
use ostraca_wire::proto::{
    DrainProgress, NodeIssue, Problem, RebalancePlan, RebalanceProgress, ShardMove,
};
use ostraca_wire::server::{AdminOutput, AdminUpdate, update_channel};
use tokio::sync::oneshot;

use super::{AdminService, unknown_node};

/// Interval between progress checks.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);
/// How long a rebalance may show no moves before it counts as finished.
const QUIET_PERIOD: Duration = Duration::from_secs(2);

impl AdminService {
    pub(super) fn drain(&self, node: &str, undo: bool) -> Result<AdminOutput, Problem> {
        let view = self.current_view();
        let name = NodeId::from(node);
        let Some(row) = view.nodes.get(&name) else {
            return Err(unknown_node(&view, node));
        };
        if row.status != NodeStatus::Live {
            let text = format!("node `{node}` is not live: it owns no shards");
            return Err(problem(
                codes::NODE_NOT_LIVE,
                text,
                "`ostraca nodes` shows the status of nodes",
            ));
        }
        if !undo && let Some(pool) = self.pool_without_other_host(&view, &name) {
            let (role, of) = (pool.host_role(), of_pool(&self.gateway.pools.get(), &pool));
            let text = format!("no other node can take the shards{of} of `{node}`");
            let help = format!("start another node with the role `{role}`, or undo another drain");
            return Err(problem(codes::NO_OTHER_HOST, text, &help));
        }
        self.send_event(Event::Drain { node: name.clone(), draining: !undo });
        let (updates, answer) = update_channel();
        let mut views = self.view.clone();
        let total = count(&view, &name).0;
        tokio::spawn(async move {
            let mut ticks = tokio::time::interval(PROGRESS_INTERVAL);
            loop {
                ticks.tick().await;
                let view = views.borrow_and_update().clone();
                let (remaining, in_flight) = count(&view, &name);
                let live = view.nodes.get(&name).filter(|row| row.status == NodeStatus::Live);
                let marked = live.is_some_and(|row| row.draining != undo);
                let done = live.is_none() || (marked && (undo || remaining == 0));
                let node = name.to_string();
                let progress = DrainProgress { node, total, remaining, in_flight, done };
                if updates.send(Ok(AdminUpdate::Drain(progress))).await.is_err() || done {
                    return;
                }
            }
        });
        Ok(answer)
    }

    /// A pool of which this node may own shards, and no other node may.
    fn pool_without_other_host(&self, view: &ClusterView, node: &NodeId) -> Option<Pool> {
        let own = view.nodes.get(node)?;
        let has_other = |pool: &Pool| {
            view.nodes.iter().any(|(other, row)| other != node && row.may_get_shards(pool))
        };
        let pools = self.gateway.pools.get();
        pools.iter().find(|pool| own.hosts(pool) && !has_other(pool)).cloned()
    }

    /// What a rebalance would do now, as the manager says: no other node knows the loads of shards and which hosts were
    /// late. If the manager does not respond, the answer is what this node would do.
    pub(super) async fn plan(&self) -> Result<RebalancePlan, Problem> {
        let manager = self.current_view().manager.as_ref().map(|row| row.holder.clone());
        if let Some(manager) = manager.filter(|_| !self.is_manager()) {
            match self.gateway.rebalance_plan(&manager).await {
                Ok(plan) => return Ok(plan),
                Err(NodeIssue { node, reason }) => {
                    tracing::info!(node, reason, "the manager does not show its plan");
                }
            }
        }
        self.own_plan().await
    }

    /// The plan for another node: `None` if this one is not the manager.
    pub async fn plan_as_manager(&self) -> Option<RebalancePlan> {
        match self.is_manager() {
            true => self.own_plan().await.ok(),
            false => None,
        }
    }

    /// What this node would do as the manager.
    async fn own_plan(&self) -> Result<RebalancePlan, Problem> {
        let (answer, received) = oneshot::channel();
        // If the control thread has ended, the sender is dropped, which the caller notices.
        let _ = self.control.send(control::Input::Plan(answer));
        let plan = received.await.map_err(|_| ostraca_wire::outcome::node_starting())?;
        let moves = plan.into_iter().map(|(shard, from, to)| ShardMove {
            shard: shard.0,
            from: from.to_string(),
            to: to.to_string(),
        });
        let moves: Vec<_> = moves.collect();
        let blocked_reason = blocked_reason(&self.current_view(), &self.gateway.pools.get());
        Ok(RebalancePlan { moves, blocked_reason })
    }

    pub(super) async fn rebalance(&self) -> Result<AdminOutput, Problem> {
        let (updates, answer) = update_channel();
        let (views, events) = (self.view.clone(), self.events.clone());
        let mut last = *events.watch().borrow();
        self.send_event(Event::Rebalance);
        // This request is queued behind the command on the control thread, so the plan reflects the moves that the
        // command has already started.
        let nothing_to_move = self.own_plan().await?.moves.is_empty() && self.is_manager();
        tokio::spawn(async move {
            let mut ticks = tokio::time::interval(PROGRESS_INTERVAL);
            let mut progress = RebalanceProgress::default();
            let mut last_activity = tokio::time::Instant::now();
            let mut reported = None;
            loop {
                ticks.tick().await;
                for event in events.after(last, usize::MAX) {
                    last = event.sequence;
                    match event.notice {
                        Notice::HandOffStarted { .. } => progress.planned += 1,
                        Notice::HandOffFailed { .. } => progress.failed += 1,
                        _ => {}
                    }
                }
                let moving = |view: &ClusterView| {
                    view.shards.iter().filter(|row| row.hand_off.is_some()).count()
                };
                progress.in_flight = u32::try_from(moving(&views.borrow())).unwrap_or(u32::MAX);
                progress.moved = progress
                    .planned
                    .saturating_sub(progress.failed)
                    .saturating_sub(progress.in_flight);
                if progress.in_flight > 0 {
                    last_activity = tokio::time::Instant::now();
                }
                let has_begun = progress.planned > 0 || progress.in_flight > 0;
                progress.done =
                    last_activity.elapsed() >= QUIET_PERIOD || (nothing_to_move && !has_begun);
                // Only changes are sent.
                if reported != Some(progress)
                    && updates.send(Ok(AdminUpdate::Rebalance(progress))).await.is_err()
                {
                    return;
                }
                if progress.done {
                    return;
                }
                reported = Some(progress);
            }
        });
        Ok(answer)
    }

    /// Whether this node is the manager, so that its preview is the plan that will be carried out.
    pub(super) fn is_manager(&self) -> bool {
        self.current_view()
            .manager
            .as_ref()
            .is_some_and(|row| *row.holder.node.0 == *self.status.node)
    }
}

/// Which pools are not balanced because their hosts run different versions (S16.2); empty if there are none.
fn blocked_reason(view: &ClusterView, pools: &Pools) -> String {
    let is_mixed = |pool: &&Pool| {
        let hosts = view.nodes.values().filter(|row| row.may_get_shards(pool));
        let mut versions = hosts.map(|row| row.version);
        let first = versions.next();
        versions.any(|version| Some(version) != first)
    };
    let mixed: Vec<_> = pools.iter().filter(|pool| !pool.is_stateless()).filter(is_mixed).collect();
    let of = match &mixed[..] {
        [] => return String::new(),
        [pool] => of_pool(pools, pool),
        several => {
            let names: Vec<_> = several.iter().map(|pool| format!("`{}`", pool.name)).collect();
            format!(" in the pools {}", names.join(", "))
        }
    };
    format!("hosts{of} run different versions: no rebalancing until they run the same one")
}

/// What names a pool, if there are several.
pub(super) fn of_pool(pools: &Pools, pool: &Pool) -> String {
    match pools.iter().count() {
        1 => String::new(),
        _ => format!(" in the pool `{}`", pool.name),
    }
}

/// Number of shards that a node owns, and how many of those are in a hand-off.
fn count(view: &ClusterView, node: &NodeId) -> (u32, u32) {
    let (mut owned, mut in_flight) = (0, 0);
    for row in view.shards.iter() {
        if row.owner.as_ref().is_some_and(|owner| owner.node == *node && view.alive(owner)) {
            owned += 1;
            in_flight += u32::from(row.hand_off.is_some());
        }
    }
    (owned, in_flight)
}

#[cfg(test)]
mod tests {
    use ostraca_core::ids::Incarnation;
    use ostraca_core::rows::{NodeRow, Roles};

    use super::*;

    fn pool(name: &str, before: &Pools) -> Pool {
        Pool { role: Some(name.into()), ..Pool::new(name, 4, before) }
    }

    /// A node with this version: a host, a host of a pool with a role, or a gateway.
    fn node(role: &str, version: u32) -> NodeRow {
        let row = NodeRow::for_tests(Incarnation { counter: 1, nonce: 1 });
        let roles = Roles { host: role == "host", ..Roles::ALL };
        let row = NodeRow { version: version.into(), roles, ..row };
        match role {
            "host" | "gateway" => row,
            role => row.with_pool_roles(&[role.into()]).expect("it fits"),
        }
    }

    fn reason(pools: &Pools, rows: &[NodeRow]) -> String {
        let nodes = (1..).zip(rows).map(|(at, row)| {
            let name = format!("n{at}");
            (NodeId::from(name.as_str()), row.clone())
        });
        let view = ClusterView { nodes: nodes.collect(), ..ClusterView::default() };
        blocked_reason(&view, pools)
    }

    #[test]
    fn s16_2_only_hosts_with_different_versions_block_balancing() {
        let one = Pools::one(4);
        let (old, new) = (node("host", 1), node("host", 2));
        assert_eq!(reason(&one, &[new.clone(), new.clone(), node("gateway", 1)]), "");
        let mixed = "hosts run different versions: no rebalancing until they run the same one";
        assert_eq!(reason(&one, &[old.clone(), new.clone()]), mixed);
        let drained = NodeRow { draining: true, ..old.clone() };
        let dead = NodeRow { status: NodeStatus::Dead, ..old.clone() };
        assert_eq!(reason(&one, &[drained, dead, new.clone()]), "");

        let mut pools = one;
        for name in ["a", "b"] {
            pools.add(pool(name, &pools)).expect("a pool");
        }
        let nodes = [new.clone(), node("a", 1), node("a", 2), node("b", 1)];
        let of = reason(&pools, &nodes);
        assert!(of.starts_with("hosts in the pool `a` run different versions"), "{of}");
        let of = reason(&pools, &[nodes.as_slice(), &[old]].concat());
        assert!(of.starts_with("hosts in the pools `default`, `a` run"), "{of}");
    }
}
