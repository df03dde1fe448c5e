//! Several pools in one cluster, each with its own hosts (K4, K39).

use std::collections::BTreeMap;

use super::cluster::{Cluster, SHARDS};
use crate::assign::BuiltinStrategy;
use crate::ids::{NodeId, ShardId};
use crate::node::{Event, Mutation, Notice};
use crate::pools::{Pool, Pools};
use crate::rows::{Roles, Row};

const ORDERS: u32 = 6;

/// The default pool, and one that is hosted by nodes with the role `host.orders`.
fn two_pools(edit: impl FnOnce(&mut Pool)) -> Pools {
    let mut pools = Pools::one(SHARDS);
    let mut orders = Pool::new("orders", ORDERS, &pools);
    orders.role = Some("orders".into());
    edit(&mut orders);
    pools.add(orders).expect("a pool");
    pools
}

fn of(pools: Pools) -> Cluster {
    let mut cluster = Cluster::new();
    cluster.pools = pools;
    cluster
}

/// Starts a node that also has the role `host.orders`, and perhaps not the role `host`.
fn start_for_orders(cluster: &mut Cluster, name: &str, host: bool) {
    cluster.pool_roles.insert(name.into(), vec!["orders".into()]);
    cluster.start_with(name, Roles { host, ..Roles::ALL }, 1);
}

/// How many shards of each pool a live node owns: of the default one, and of `orders`.
fn owned(cluster: &Cluster) -> BTreeMap<String, (usize, usize)> {
    let live = cluster.nodes.iter().filter(|(_, node)| !node.dead && !node.left);
    live.map(|(name, node)| {
        let default = node.owns.keys().filter(|shard| shard.0 <= SHARDS).count();
        (name.to_string(), (default, node.owns.len() - default))
    })
    .collect()
}

fn spread<const N: usize>(of: [(&str, usize, usize); N]) -> BTreeMap<String, (usize, usize)> {
    of.into_iter().map(|(name, default, orders)| (name.into(), (default, orders))).collect()
}

#[test]
fn k39_shards_go_only_to_nodes_with_their_pools_role() {
    let mut cluster = of(two_pools(|_| {}));
    cluster.start("a");
    start_for_orders(&mut cluster, "b", true);
    start_for_orders(&mut cluster, "c", false);
    cluster.run(20_000);
    assert_eq!(owned(&cluster), spread([("a", 6, 0), ("b", 6, 3), ("c", 0, 3)]));
    // A fail-over, a drain and balancing keep to the roles too.
    cluster.node("c").dead = true;
    cluster.run(20_000);
    assert_eq!(owned(&cluster), spread([("a", 6, 0), ("b", 6, 6)]));
    cluster.start("d");
    start_for_orders(&mut cluster, "e", false);
    cluster.run(40_000);
    assert_eq!(owned(&cluster), spread([("a", 4, 0), ("b", 4, 3), ("d", 4, 0), ("e", 0, 3)]));
    cluster.handle("a", Event::Drain { node: "b".into(), draining: true });
    cluster.run(20_000);
    assert_eq!(owned(&cluster), spread([("a", 6, 0), ("b", 0, 0), ("d", 6, 0), ("e", 0, 6)]));
}

#[test]
fn k39_without_the_rule_shards_go_to_any_host() {
    let mut cluster = of(two_pools(|_| {}));
    cluster.settings.mutations = vec![Mutation::IgnorePoolRoles];
    cluster.start("a");
    cluster.run(20_000);
    assert_eq!(owned(&cluster), spread([("a", 12, 6)]));
}

#[test]
fn k39_a_pool_without_hosts_waits_for_one() {
    let mut cluster = of(two_pools(|_| {}));
    cluster.start("a");
    start_for_orders(&mut cluster, "b", false);
    cluster.run(10_000);
    assert_eq!(owned(&cluster), spread([("a", 12, 0), ("b", 0, 6)]));
    let before = cluster.epochs();
    cluster.node("b").dead = true;
    cluster.run(20_000);
    assert_eq!(owned(&cluster), spread([("a", 12, 0)]));
    start_for_orders(&mut cluster, "c", false);
    cluster.run(5_000);
    assert_eq!(owned(&cluster), spread([("a", 12, 0), ("c", 0, 6)]));
    for (shard, epoch) in cluster.epochs() {
        assert_eq!(epoch > before[&shard], shard.0 > SHARDS, "{shard:?}");
    }
}

#[test]
fn k39_a_drain_waits_only_for_the_pool_without_other_hosts() {
    let mut cluster = of(two_pools(|_| {}));
    cluster.settings.max_drain_hand_offs = 2;
    cluster.start("a");
    start_for_orders(&mut cluster, "b", true);
    cluster.run(20_000);
    assert_eq!(owned(&cluster), spread([("a", 6, 0), ("b", 6, 6)]));
    cluster.handle("a", Event::Drain { node: "b".into(), draining: true });
    cluster.run(20_000);
    assert_eq!(owned(&cluster), spread([("a", 12, 0), ("b", 0, 6)]), "nobody else can have them");
    start_for_orders(&mut cluster, "c", false);
    cluster.run(20_000);
    assert_eq!(owned(&cluster), spread([("a", 12, 0), ("b", 0, 0), ("c", 0, 6)]));
}

#[test]
fn k39_the_last_host_of_a_pool_can_leave() {
    let mut cluster = of(two_pools(|_| {}));
    cluster.start("a");
    start_for_orders(&mut cluster, "b", true);
    cluster.run(20_000);
    let before = cluster.epochs();
    cluster.handle("b", Event::Leave);
    cluster.run(20_000);
    assert!(cluster.node("b").left);
    assert_eq!(owned(&cluster), spread([("a", 12, 0)]));
    // What others could host was handed off to them first.
    let raised = cluster.epochs().iter().filter(|(shard, at)| before[shard] < **at).count();
    assert_eq!(raised, 6);
}

#[test]
fn k39_an_escalated_shard_stays_among_the_hosts_of_its_pool() {
    let mut cluster = of(two_pools(|_| {}));
    cluster.start("a");
    start_for_orders(&mut cluster, "b", true);
    start_for_orders(&mut cluster, "c", true);
    cluster.run(30_000);
    let shard = ShardId(SHARDS + 1);
    let owner = cluster.nodes.iter().find(|(_, node)| node.owns.contains_key(&shard));
    let (name, node) = owner.expect("an owner");
    let (name, epoch) = (name.to_string(), node.owns[&shard].0);
    cluster.handle(&name, Event::ShardEscalated { shard, epoch });
    cluster.run(4_000);
    let notices = cluster.nodes.values().flat_map(|node| &node.notices);
    let target = notices.filter_map(|notice| match notice {
        Notice::ShardEscalated { target, .. } => target.as_ref(),
        _ => None,
    });
    let other = if name == "b" { "c" } else { "b" };
    // `a` has the fewest shards.
    assert_eq!(target.collect::<Vec<_>>(), [&NodeId::from(other)]);
}

#[test]
fn k4_a_pool_has_a_strategy_of_its_own() {
    let mut cluster = of(two_pools(|orders| orders.strategy = Some(BuiltinStrategy::Ranges)));
    for name in ["a", "b"] {
        start_for_orders(&mut cluster, name, true);
    }
    cluster.run(30_000);
    for (name, node) in &cluster.nodes {
        let shards: Vec<_> =
            node.owns.keys().map(|shard| shard.0).filter(|shard| *shard > SHARDS).collect();
        assert_eq!(shards.len(), 3);
        assert_eq!(shards[2] - shards[0], 2, "{name} has a range: {shards:?}");
    }
}

#[test]
fn k27_a_pool_waits_for_hosts_of_its_own() {
    let mut cluster = of(two_pools(|orders| orders.min_hosts = 2));
    cluster.start("a");
    start_for_orders(&mut cluster, "b", true);
    cluster.run(20_000);
    assert_eq!(owned(&cluster), spread([("a", 6, 0), ("b", 6, 0)]));
    let waits = |notice: &Notice| matches!(notice, Notice::AllocationWaits { pool, hosts: 1, min: 2 } if pool == "orders");
    assert!(cluster.nodes.values().flat_map(|node| &node.notices).any(waits));
    start_for_orders(&mut cluster, "c", false);
    cluster.run(1_000);
    assert_eq!(owned(&cluster)["b"].1 + owned(&cluster)["c"].1, 6);
    assert!(cluster.epochs().iter().all(|(shard, at)| shard.0 <= SHARDS || at.0 == 1));
}

#[test]
fn m1_a_pool_added_at_run_time_gets_rows_and_owners() {
    let mut cluster = of(Pools::one(SHARDS));
    for name in ["a", "b", "c"] {
        start_for_orders(&mut cluster, name, true);
    }
    cluster.run(20_000);
    let before = cluster.epochs();
    // Its shards begin in the row of the last pool's shards, and need more rows.
    let mut pools = two_pools(|_| {});
    pools.add(Pool::new("large", 200, &pools)).expect("a pool");
    // The manager, `a`, learns of it first, then stops before the others know.
    cluster.handle("a", Event::PoolsChanged(pools.clone()));
    cluster.run(1_000);
    assert_eq!(owned(&cluster)["a"], (4, 2 + 67));
    cluster.run(5_000);
    let epochs = cluster.epochs();
    assert!(epochs.iter().all(|(shard, at)| shard.0 <= SHARDS || at.0 == 1), "nobody is to blame");
    cluster.node("a").dead = true;
    cluster.run(10_000);
    assert_eq!(cluster.manager().0, "b", "a manager that knows one pool");
    let written = |cluster: &Cluster| -> usize {
        let rows = cluster.rows.values().map(|(row, _)| match row {
            Row::Assignments(row) => row.assignments.len(),
            _ => 0,
        });
        rows.sum()
    };
    assert_eq!(written(&cluster), 218, "rows keep the shards that their writer does not know");
    for name in ["b", "c"] {
        cluster.handle(name, Event::PoolsChanged(pools.clone()));
    }
    cluster.run(20_000);
    let after = cluster.epochs();
    assert_eq!((after.len(), written(&cluster)), (218, 218));
    for name in ["b", "c"] {
        assert_eq!(cluster.node(name).owns.len(), 109, "{name}");
        let routes = &cluster.node(name).routes;
        assert!(after.iter().all(|(shard, epoch)| routes.get(shard) == Some(epoch)), "{name}");
    }
    assert!(before.iter().all(|(shard, epoch)| after[shard] >= *epoch));
    // Fewer or other pools than are known change nothing.
    for other in [Pools::one(SHARDS), Pools::one(400)] {
        cluster.handle("b", Event::PoolsChanged(other));
    }
    cluster.run(10_000);
    assert_eq!(cluster.epochs(), after);
}

#[test]
fn m1_nobody_owns_the_shards_of_a_pool_that_is_copied() {
    let mut pools = two_pools(|_| {});
    pools.add(Pool::new("third", 4, &pools)).expect("a pool");
    pools.set_copied("orders", "third", false).expect("two pools");
    let mut cluster = of(pools.clone());
    for name in ["a", "b"] {
        start_for_orders(&mut cluster, name, true);
    }
    cluster.run(30_000);
    assert_eq!(owned(&cluster), spread([("a", 6, 0), ("b", 6, 0)]));
    pools.set_copied("orders", "third", true).expect("two pools");
    for name in ["a", "b"] {
        cluster.handle(name, Event::PoolsChanged(pools.clone()));
    }
    cluster.run(30_000);
    assert_eq!(owned(&cluster), spread([("a", 6, 2), ("b", 6, 2)]));
    let third = pools.get("third").expect("a pool");
    let owned = cluster.nodes.values().flat_map(|node| node.owns.keys());
    assert!(owned.filter(|shard| shard.0 > SHARDS).all(|shard| third.contains(*shard)));
}

/// Two hosts of both pools; a copy of the default pool to `orders` begins once each has its shards.
fn closed_while_it_runs(strategy: Option<BuiltinStrategy>) -> (Cluster, Pools) {
    let mut pools = two_pools(|pool| pool.strategy = strategy);
    let mut cluster = of(pools.clone());
    for name in ["a", "b"] {
        start_for_orders(&mut cluster, name, true);
    }
    cluster.run(20_000);
    assert_eq!(owned(&cluster), spread([("a", 6, 3), ("b", 6, 3)]));
    pools.set_copied("default", "orders", false).expect("two pools");
    (cluster, pools)
}

fn learn(cluster: &mut Cluster, names: &[&str], pools: &Pools) {
    for name in names {
        cluster.handle(name, Event::PoolsChanged(pools.clone()));
    }
}

fn has_owners(cluster: &Cluster) -> bool {
    let mut rows = cluster.rows.values().filter_map(|(row, _)| match row {
        Row::Assignments(row) => Some(&row.assignments),
        _ => None,
    });
    rows.any(|rows| rows.iter().any(|row| row.owner.is_some() || row.hand_off.is_some()))
}

#[test]
fn r23_owners_give_up_the_shards_of_a_pool_that_closes() {
    for strategy in [None, Some(BuiltinStrategy::Stateless)] {
        let (mut cluster, mut pools) = closed_while_it_runs(strategy);
        let before = cluster.epochs();
        learn(&mut cluster, &["a", "b"], &pools);
        cluster.run(20_000);
        assert_eq!(owned(&cluster), spread([("a", 0, 0), ("b", 0, 0)]));
        assert!(!has_owners(&cluster), "{strategy:?}: the rows say so too");
        // Without a manager, a host that learns of it last may get shards in between.
        let same = strategy.is_some() || cluster.epochs() == before;
        assert!(same, "an epoch is for an owner");
        let before = cluster.epochs();
        // A manager that starts now, and hosts that join, change nothing.
        cluster.node("a").dead = true;
        start_for_orders(&mut cluster, "c", true);
        learn(&mut cluster, &["c"], &pools);
        cluster.run(20_000);
        assert_eq!(owned(&cluster), spread([("b", 0, 0), ("c", 0, 0)]));
        // The copy is given up.
        pools = two_pools(|pool| (pool.strategy, pool.given_up) = (strategy, 1));
        learn(&mut cluster, &["b", "c"], &pools);
        cluster.run(20_000);
        assert_eq!(owned(&cluster), spread([("b", 6, 3), ("c", 6, 3)]));
        assert!(cluster.epochs().iter().all(|(shard, epoch)| *epoch > before[shard]));
    }
}

#[test]
fn r23_closed_shards_are_given_up_a_few_at_a_time() {
    let mut pools = two_pools(|_| {});
    let mut cluster = of(pools.clone());
    cluster.settings.max_drain_hand_offs = 2;
    start_for_orders(&mut cluster, "a", true);
    cluster.run(20_000);
    pools.set_copied("default", "orders", false).expect("two pools");
    cluster.node("a").stuck = true;
    learn(&mut cluster, &["a"], &pools);
    cluster.run(1_000);
    assert_eq!(cluster.intents().len(), 2);
    cluster.unstick("a");
    cluster.run(5_000);
    assert!(!has_owners(&cluster));
}

#[test]
fn r23_the_owner_of_a_closing_shard_may_have_ended() {
    for strategy in [None, Some(BuiltinStrategy::Stateless)] {
        let (mut cluster, pools) = closed_while_it_runs(strategy);
        cluster.node("b").dead = true;
        learn(&mut cluster, &["a"], &pools);
        cluster.run(20_000);
        assert_eq!(owned(&cluster), spread([("a", 0, 0)]));
        let named = cluster.rows.values().filter_map(|(row, _)| match row {
            Row::Assignments(row) => Some(&row.assignments),
            _ => None,
        });
        let owner = |name: &str| NodeId::from(name);
        let named: Vec<_> = named.flatten().filter_map(|row| row.owner.as_ref()).collect();
        assert!(named.iter().all(|it| it.node == owner("b") && strategy.is_some()), "{named:?}");
    }
}

#[test]
fn r23_a_host_stops_closed_shards_before_its_number_is_free() {
    let (mut cluster, pools) = closed_while_it_runs(Some(BuiltinStrategy::Stateless));
    cluster.node("a").cut = true;
    learn(&mut cluster, &["a"], &pools);
    let of_orders = cluster.node("a").owns.keys().filter(|shard| shard.0 > SHARDS).count();
    assert_eq!(of_orders, 0, "it does not wait for the store");
}
