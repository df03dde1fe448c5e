//! A cluster's problems as one node sees them, each with its location and the command to run.

use std::sync::Arc;

use ostraca_codes::{Code, codes};
use ostraca_core::ids::{NodeId, ShardId};
use ostraca_core::pools::{Pool, PoolUse, Pools};
use ostraca_core::rows::{NodeRow, NodeStatus};
use ostraca_wire::proto::{ClusterStatus, StatusProblem};

use ostraca_control::view::ClusterView;
use ostraca_stats::FailingType;

use crate::rebalance::of_pool;

/// The state to diagnose.
pub(super) struct Diagnosis<'a> {
    pub(super) view: &'a ClusterView,
    pub(super) cluster: &'a ClusterStatus,
    /// The node that makes the diagnosis.
    pub(super) local_node: &'a str,
    /// Milliseconds since that node's lease was last renewed, or since the node started if it never was.
    pub(super) since_renewal_ms: u64,
    /// Whether that node ever had a lease.
    pub(super) registered: bool,
    /// The duration of that node's lease in milliseconds.
    pub(super) lease_ms: u64,
    /// How many hosts the first allocation waits for (`rebalance.min-hosts`).
    pub(super) min_hosts: usize,
}

impl Diagnosis<'_> {
    /// Problems with this node's own lease.
    pub(super) fn lease(&self) -> Option<StatusProblem> {
        if !self.registered && self.since_renewal_ms >= self.lease_ms {
            let text = format!(
                "{} has not been able to register since it started {} s ago: it owns no shards",
                self.local_node,
                self.since_renewal_ms / 1_000
            );
            return Some(status_problem(codes::LEASE_LAPSED, text, &self.see_to_store()));
        }
        if self.since_renewal_ms >= self.lease_ms {
            let text = format!(
                "the lease of {} was last renewed {} s ago: its shards are suspended until the lease is renewed",
                self.local_node,
                self.since_renewal_ms / 1_000
            );
            return Some(status_problem(codes::LEASE_LAPSED, text, &self.see_to_store()));
        }
        let text = "the node's lease had lapsed: its shards are suspended until their claims have been read back";
        let help = format!("wait a few seconds; if this persists: {}", self.see_to_store());
        self.view.suspended.then(|| status_problem(codes::SUSPENDED, text.into(), &help))
    }

    /// Problems with the assignment of shards.
    pub(super) fn shards(&self, here: u64, serving: u64) -> Vec<StatusProblem> {
        let mut problems = Vec::new();
        if serving < here {
            problems.push(status_problem(
                codes::SHARDS_NOT_SERVING,
                format!("{} of {here} shards on this node are not serving yet", here - serving),
                &format!("wait a few seconds; if this persists: {}", self.see_to_store()),
            ));
        }
        if self.cluster.manager.is_empty() {
            problems.push(status_problem(
                codes::NO_MANAGER,
                "no live node is the manager: messages flow, but no shard gets a new owner".into(),
                "a dead manager is replaced within seconds; if not, start a node with the role `manager`",
            ));
        }
        let one = Arc::new(Pools::one(self.cluster.shards));
        let pools = self.view.pools.as_ref().unwrap_or(&one);
        for pool in pools.iter() {
            let shards = (pool.first.0..=pool.last().0).map(ShardId);
            let without = shards.filter(|shard| self.view.owner(*shard).is_none()).count();
            if let PoolUse::Leaving(to) = &pool.usage {
                problems.push(status_problem(
                    codes::POOL_CLOSED,
                    format!(
                        "the copy of the pool `{}` to `{to}` is unfinished: messages to its entities are buffered",
                        pool.name
                    ),
                    "wait until it is done; if it was interrupted, repeat `ostraca pool copy`",
                ));
            }
            if without == 0 || self.view.shards.is_empty() || pool.is_closed() {
                continue;
            }
            let help = unassigned_help(self.view, pools, pool, self.min_hosts);
            let text = format!(
                "{without} of {} shards{} have no live owner: messages to them are buffered",
                pool.shards,
                of_pool(pools, pool),
            );
            problems.push(status_problem(codes::SHARDS_UNASSIGNED, text, &help));
        }
        problems
    }

    /// Hosts that cannot run every type.
    pub(super) fn unrunnable_type_problems(&self) -> impl Iterator<Item = StatusProblem> {
        self.view.hosts_with_unrunnable_types.iter().map(|(node, types)| {
            let types = types.join("`, `");
            status_problem(
                codes::UNRUNNABLE_TYPE,
                format!("node {node} cannot run `{types}`: its shards go to hosts that can"),
                &format!(
                    "`ostraca status` on {node} shows why; deploy a component that it can run"
                ),
            )
        })
    }

    /// Problems with other nodes.
    pub(super) fn nodes(&self, out_of_reach: &[NodeId]) -> Vec<StatusProblem> {
        let mut problems = Vec::new();
        for (node, row) in &self.view.nodes {
            let at = row.addresses.join(", ");
            match row.status {
                NodeStatus::Dead => problems.push(status_problem(
                    codes::NODE_DEAD,
                    format!("node {node} ({at}) is dead: it did not renew its lease"),
                    &format!("start it again; if it is gone for good: `ostraca forget {node}`"),
                )),
                NodeStatus::Live if out_of_reach.contains(node) => problems.push(status_problem(
                    codes::NODE_UNREACHABLE,
                    format!(
                        "{} has no connection to node {node} ({at}), which is live or died moments ago: messages from here to its shards are buffered",
                        self.local_node
                    ),
                    &format!("if this persists: check the network between {} and {node}", self.local_node),
                )),
                NodeStatus::Live if !row.store_available => problems.push(status_problem(
                    codes::STORE_UNRESPONSIVE,
                    format!("node {node} gets no response from the store and is releasing its shards"),
                    &format!("check the network between {node} and {}", self.store()),
                )),
                _ => {}
            }
        }
        problems
    }

    fn store(&self) -> &str {
        match self.cluster.store_node.as_str() {
            "" => "the node with the role `store`",
            node => node,
        }
    }

    /// Help text for when the store does not respond to this node.
    fn see_to_store(&self) -> String {
        let node = self.cluster.store_node.as_str();
        if node == self.local_node {
            return "check the disk of this node, which runs the store; see its log".into();
        }
        let row = self.view.nodes.get(&NodeId::from(node));
        match row.map(|row| row.addresses.join(", ")) {
            Some(at) => format!(
                "check node {node} ({at}), which runs the store: start it if it is down, otherwise check the network"
            ),
            None => "start the node with the role `store`".into(),
        }
    }
}

pub(super) fn store_stopped(why: &str) -> StatusProblem {
    status_problem(
        codes::STORE_STOPPED,
        format!("a write to the store failed, so the store has stopped: {why}"),
        "fix the disk, then restart the node: nothing acknowledged is lost",
    )
}

pub(super) fn store_low(why: &str) -> StatusProblem {
    status_problem(
        codes::STORE_DISK_LOW,
        format!("writes are refused: low disk space ({why})"),
        "free disk space, or lower `store.low-water-bytes`; writes resume automatically",
    )
}

/// The store on another node is not the one that this node used before.
pub(super) fn store_refused(why: &str) -> StatusProblem {
    let (what, help) = why.split_once("; ").unwrap_or((why, ""));
    let text = format!("{what}: this node does not use the store, and its shards do not respond");
    status_problem(codes::STORE_REFUSED, text, help)
}

/// What to do about shards of a pool that have no owner.
fn unassigned_help(view: &ClusterView, pools: &Pools, pool: &Pool, min_hosts: usize) -> String {
    let role = pool.host_role();
    if let Some(AwaitedHosts { live, needed, setting }) =
        AwaitedHosts::of(view, pools, pool, min_hosts)
    {
        let more = needed - live;
        return format!(
            "start {more} more with the role `{role}`: the first assignment needs {needed} live hosts ({setting}), {live} so far"
        );
    }
    match hosts(view, |row| row.hosts(pool)) {
        0 => format!("start a node with the role `{role}`: no live node may own them"),
        _ => "wait a few seconds: they are being assigned to live nodes".into(),
    }
}

/// The number of live nodes that stay, and that are hosts of this kind.
fn hosts(view: &ClusterView, is_host: impl Fn(&NodeRow) -> bool) -> usize {
    let stays = |row: &&NodeRow| row.status == NodeStatus::Live && !row.is_draining_or_leaving();
    view.nodes.values().filter(stays).filter(|row| is_host(row)).count()
}

/// The hosts that the first allocation of a pool's shards waits for (K27).
struct AwaitedHosts {
    live: usize,
    needed: usize,
    /// What says how many are needed.
    setting: &'static str,
}

impl AwaitedHosts {
    /// `None` if nothing waits. The first shards of the cluster wait for `min_hosts`, and those of a pool for its own
    /// number. Hosts of a pool without a manager see every shard, and a manager only those that it assigns.
    fn of(view: &ClusterView, pools: &Pools, pool: &Pool, min_hosts: usize) -> Option<Self> {
        let had_owner = |shard: u32| view.had_owner(ShardId(shard));
        let is_new = |pool: &Pool| !(pool.first.0..=pool.last().0).any(had_owner);
        let of_cluster = Self {
            live: hosts(view, NodeRow::is_host),
            needed: min_hosts,
            setting: "`rebalance.min-hosts`",
        };
        let of_pool = Self {
            live: hosts(view, |row| row.hosts(pool)),
            needed: pool.min_hosts as usize,
            setting: "`min-hosts` of the pool",
        };
        // Without any host, the advice is the same as after the first assignment.
        let waits = |it: &Self| it.needed > 1 && it.live < it.needed;
        let mut counted = pools.iter().filter(|it| pool.is_stateless() || !it.is_stateless());
        match waits(&of_cluster) && counted.all(is_new) {
            true => Some(of_cluster),
            false => Some(of_pool).filter(|it| waits(it) && is_new(pool)),
        }
    }
}

/// A type's failing entities on a node, in one line.
pub(super) fn failing_type(it: &FailingType) -> String {
    let codes: Vec<_> = it.codes.iter().map(|(code, count)| format!("{code} {count}")).collect();
    format!("{} {} ({})", it.entity_type, it.entities, codes.join(", "))
}

/// Entities that are not expected to recover on their own.
pub(super) fn failing(node: &str, it: &FailingType) -> Option<StatusProblem> {
    if it.stuck == 0 {
        return None;
    }
    let of = if it.stuck == 1 { "1 entity" } else { &format!("{} entities", it.stuck) };
    let text = format!(
        "{of} of `{}` on node {node} keep failing, for example {}: {}",
        it.entity_type,
        it.example,
        failing_type(it)
    );
    let help = format!(
        "`ostraca inspect {}` shows the error; if it came with a new component, deploy the previous one again: no stored state was changed",
        it.example
    );
    Some(status_problem(codes::ENTITIES_FAILING, text, &help))
}

pub(super) fn status_problem(code: Code, text: String, help: &str) -> StatusProblem {
    StatusProblem { code: code.into(), message: text, help: help.into() }
}

#[cfg(test)]
mod tests {
    use ostraca_core::assign::BuiltinStrategy;
    use ostraca_core::ids::Incarnation;

    use super::*;

    /// The advice for two pools, of which the second one has hosts of its own. Each node has the role `host`, or that
    /// of this pool's hosts.
    fn help(nodes: &[&str], second: Pool, min_hosts: usize) -> [String; 2] {
        let row = |role: &&str| {
            let mut row = NodeRow::for_tests(Incarnation { counter: 1, nonce: 1 });
            row.roles.host = *role == "host";
            match *role {
                "host" => row,
                role => row.with_pool_roles(&[role.into()]).expect("it fits"),
            }
        };
        let named = (1..).zip(nodes).map(|(at, role)| {
            let name = format!("n{at}");
            (NodeId::from(name.as_str()), row(role))
        });
        let view = ClusterView { nodes: named.collect(), ..ClusterView::default() };
        let mut pools = Pools::one(4);
        pools.add(second).expect("a pool");
        let help = |name| {
            let pool = pools.get(name).expect("a pool");
            unassigned_help(&view, &pools, pool, min_hosts)
        };
        [help("default"), help("second")]
    }

    fn second(min_hosts: u32) -> Pool {
        Pool { role: Some("b".into()), min_hosts, ..Pool::new("second", 4, &Pools::one(4)) }
    }

    #[test]
    fn k27_the_advice_is_to_start_the_hosts_that_are_missing() {
        let waits = "wait a few seconds: they are being assigned to live nodes";
        assert_eq!(help(&["host", "b"], second(1), 1), [waits; 2]);
        let [first, _] = help(&["host"], second(1), 3);
        let expected = "start 2 more with the role `host`: the first assignment needs 3 live hosts (`rebalance.min-hosts`), 1 so far";
        assert_eq!(first, expected);
        // All hosts count for the cluster, and only its own for a pool.
        assert_eq!(help(&["host", "b", "b"], second(2), 3), [waits; 2]);
        let [first, other] = help(&["host", "host", "b"], second(2), 3);
        assert_eq!(first, waits);
        assert!(other.starts_with("start 1 more with the role `host.b`"), "{other}");
        assert!(other.contains("2 live hosts (`min-hosts` of the pool), 1 so far"), "{other}");
        let [_, other] = help(&["host"], second(1), 1);
        assert!(other.starts_with("start a node with the role `host.b`"), "{other}");
    }

    #[test]
    fn k27_the_advice_for_a_stateless_pool_names_both_numbers() {
        let stateless = |min| Pool { strategy: Some(BuiltinStrategy::Stateless), ..second(min) };
        for (nodes, min, expected) in [
            (&["host", "b"][..], 1, "3 live hosts (`rebalance.min-hosts`), 2 so far"),
            (&["host", "host", "b"], 2, "2 live hosts (`min-hosts` of the pool), 1 so far"),
        ] {
            let [_, other] = help(nodes, stateless(min), 3);
            assert!(other.contains(expected), "{other}");
        }
    }
}
