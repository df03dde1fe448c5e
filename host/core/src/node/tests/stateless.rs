//! Pools without a manager: numbers, ranges, and a lease for each shard (E3, E5 to E8).

use std::collections::BTreeMap;

use super::cluster::{Cluster, SHARDS};
use crate::assign::{BuiltinStrategy, contiguous_range};
use crate::ids::{Epoch, NodeId, ShardId};
use crate::node::{Event, Mutation, Notice};
use crate::pools::{Pool, Pools};
use crate::rows::{NodeStatus, Roles, Row, RowKey};

const POOL: &str = "free";
/// In two rows, the first of which it shares with the pool `default`.
const FREE: u32 = 70;

/// The default pool, which has a manager, and one that has none.
fn pools() -> Pools {
    let mut pools = Pools::one(SHARDS);
    let mut free = Pool::new(POOL, FREE, &pools);
    free.strategy = Some(BuiltinStrategy::Stateless);
    pools.add(free).expect("a pool");
    pools
}

fn empty() -> Cluster {
    let mut cluster = Cluster::new();
    cluster.pools = pools();
    cluster
}

fn of(nodes: &[&str]) -> Cluster {
    let mut cluster = empty();
    for node in nodes {
        cluster.start(node);
    }
    cluster.run(20_000);
    cluster
}

/// Nodes none of which can be the manager.
fn leaderless(nodes: &[&str]) -> Cluster {
    let mut cluster = empty();
    for node in nodes {
        start_leaderless(&mut cluster, node);
    }
    cluster.run(5_000);
    cluster
}

fn start_leaderless(cluster: &mut Cluster, node: &str) {
    cluster.start_with(node, Roles { manager: false, ..Roles::ALL }, 1);
}

/// The shards of the pool that each live node owns, from 0 on.
fn owned(cluster: &Cluster) -> BTreeMap<String, Vec<u32>> {
    let live = cluster.nodes.iter().filter(|(_, node)| !node.dead && !node.left);
    live.map(|(name, node)| {
        let shards = node.owns.keys().filter(|shard| shard.0 > SHARDS);
        (name.to_string(), shards.map(|shard| shard.0 - SHARDS - 1).collect())
    })
    .collect()
}

/// The ranges of these nodes, in the order of their numbers.
fn ranges(nodes: &[&str]) -> BTreeMap<String, Vec<u32>> {
    let range = |place| contiguous_range(place, nodes.len(), FREE).collect();
    nodes.iter().enumerate().map(|(at, node)| ((*node).to_owned(), range(at))).collect()
}

fn numbers(cluster: &Cluster) -> Vec<(u32, String)> {
    let Some((Row::Numbers(row), _)) = cluster.rows.get(&RowKey::Numbers(POOL.into())) else {
        return Vec::new();
    };
    let of = row.holders.iter().map(|it| (it.number, it.member.node.to_string()));
    of.collect()
}

fn numbered(of: &[(u32, &str)]) -> Vec<(u32, String)> {
    of.iter().map(|(number, node)| (*number, (*node).to_owned())).collect()
}

#[test]
fn e5_hosts_take_numbers_and_compute_their_ranges() {
    let mut cluster = of(&["b", "a", "c"]);
    let taken = numbers(&cluster);
    assert_eq!(taken.iter().map(|(number, _)| *number).collect::<Vec<_>>(), [0, 1, 2]);
    let order: Vec<_> = taken.iter().map(|(_, node)| node.as_str()).collect();
    assert_eq!(owned(&cluster), ranges(&order));
    let counts: Vec<_> = cluster.nodes.values().map(|node| node.owns.len()).collect();
    assert_eq!(counts.iter().sum::<usize>(), (SHARDS + FREE) as usize);
    // The manager decides about its own shards only, although they share a row.
    for node in cluster.nodes.values() {
        assert_eq!(node.owns.keys().filter(|shard| shard.0 <= SHARDS).count(), 4);
    }
    // A row that was written but whose writer did not know that it is alone in it stays the same.
    let before = cluster.epochs();
    cluster.run(30_000);
    assert_eq!(cluster.epochs(), before, "nothing moves without a reason");
}

#[test]
fn e5_a_hole_is_filled_and_keeps_the_order() {
    let mut cluster = leaderless(&["a", "b", "c"]);
    assert_eq!(numbers(&cluster), numbered(&[(0, "a"), (1, "b"), (2, "c")]));
    cluster.handle("b", Event::Leave);
    cluster.run(5_000);
    assert!(cluster.node("b").left);
    assert_eq!(numbers(&cluster), numbered(&[(0, "a"), (2, "c")]), "a hole");
    assert_eq!(owned(&cluster), ranges(&["a", "c"]));
    start_leaderless(&mut cluster, "d");
    cluster.run(5_000);
    assert_eq!(numbers(&cluster), numbered(&[(0, "a"), (1, "d"), (2, "c")]));
    assert_eq!(owned(&cluster), ranges(&["a", "d", "c"]));
}

#[test]
fn e6_a_pool_is_served_and_fails_over_without_a_manager() {
    let mut cluster = leaderless(&["a", "b", "c"]);
    assert_eq!(owned(&cluster), ranges(&["a", "b", "c"]));
    assert!(!cluster.rows.contains_key(&RowKey::Manager));
    let before = cluster.epochs();
    cluster.node("a").dead = true;
    cluster.run(3_000);
    assert_eq!(owned(&cluster), ranges(&["a", "b", "c"]).into_iter().skip(1).collect());
    cluster.run(3_000);
    assert_eq!(numbers(&cluster), numbered(&[(1, "b"), (2, "c")]));
    assert_eq!(owned(&cluster), ranges(&["b", "c"]));
    assert_eq!(cluster.status("a"), Some(NodeStatus::Live), "nobody marked it dead");
    for (shard, epoch) in cluster.epochs() {
        assert!(epoch >= before.get(&shard).copied().unwrap_or_default(), "{shard}");
    }
    // Every gateway has the route of every shard.
    for name in ["b", "c"] {
        let epochs = cluster.epochs();
        let routes = &cluster.node(name).routes;
        let of_pool = (SHARDS + 1..=SHARDS + FREE).map(ShardId);
        assert!(of_pool.into_iter().all(|shard| routes[&shard] == epochs[&shard]));
    }
}

#[test]
fn e8_a_shard_is_taken_only_after_its_lease_has_lapsed() {
    let mut cluster = leaderless(&["a", "b"]);
    let shard = ShardId(SHARDS + 1);
    let epoch = cluster.epochs()[&shard];
    assert!(cluster.node("a").owns.contains_key(&shard));
    let at = cluster.now;
    cluster.node("a").paused = true;
    while cluster.epochs()[&shard] == epoch {
        cluster.run(10);
        assert!(cluster.now < at + 6_000, "it is taken in the end");
    }
    let relied_until = cluster.node("a").shard_leases[&shard];
    assert!(relied_until > at);
    assert!(cluster.now > relied_until + cluster.settings.lease_margin / 2);
    assert_eq!(cluster.epochs()[&shard], Epoch(epoch.0 + 1));
    // The former owner wakes up, and finds out from the row.
    cluster.node("a").paused = false;
    cluster.handle("a", Event::WatchLost);
    cluster.run(10_000);
    assert_eq!(owned(&cluster), ranges(&["a", "b"]));
}

#[test]
fn e8_without_the_rule_a_shard_is_taken_while_its_lease_lasts() {
    let mut cluster = leaderless(&["a", "b"]);
    cluster.settings.mutations = vec![Mutation::TakeUnlapsedShardLease];
    let shard = ShardId(SHARDS + 1);
    cluster.node("a").paused = true;
    cluster.node("b").dead = true;
    start_leaderless(&mut cluster, "c");
    cluster.run(1_000);
    // It has number 2, and so the last third.
    let taken = cluster.node("c").owns.keys().next().copied().expect("a shard");
    assert!(taken > shard);
    let relied_until = cluster.node("b").shard_leases[&taken];
    assert!(cluster.now < relied_until, "its owner still relied on it");
}

#[test]
fn e8_an_owner_that_cannot_renew_stops_relying_on_its_leases() {
    let mut cluster = leaderless(&["a", "b"]);
    cluster.settings.mutations = vec![Mutation::NeverRenewShardLeases];
    start_leaderless(&mut cluster, "c");
    cluster.run(8_000);
    // Its shards are taken over and over: each time after they lapsed.
    let shards: Vec<_> = cluster.node("c").shard_leases.values().copied().collect();
    assert!(!shards.is_empty());
    let epochs = cluster.epochs();
    assert!(epochs.values().all(|epoch| epoch.0 < 8), "{epochs:?}");
}

#[test]
fn e7_a_shard_stops_before_it_is_released_and_taken() {
    let mut cluster = leaderless(&["a"]);
    assert_eq!(owned(&cluster), ranges(&["a"]));
    cluster.node("a").stuck = true;
    let before = cluster.epochs();
    start_leaderless(&mut cluster, "b");
    cluster.run(10_000);
    assert_eq!(numbers(&cluster), numbered(&[(0, "a"), (1, "b")]));
    assert_eq!(cluster.epochs(), before, "they have not stopped, and their leases are renewed");
    assert_eq!(cluster.node("a").stops.len(), FREE as usize / 2);
    cluster.unstick("a");
    cluster.run(1_000);
    assert_eq!(owned(&cluster), ranges(&["a", "b"]));
    let moved =
        cluster.epochs().into_iter().filter(|(shard, epoch)| before.get(shard) != Some(epoch));
    assert_eq!(moved.count(), FREE as usize / 2);
}

#[test]
fn e5_a_draining_host_gives_its_number_back_if_others_remain() {
    let mut cluster = leaderless(&["a", "b"]);
    cluster.handle("a", Event::Drain { node: "b".into(), draining: true });
    cluster.run(3_000);
    assert_eq!(numbers(&cluster), numbered(&[(0, "a")]));
    assert_eq!(owned(&cluster)["b"], []);
    cluster.handle("a", Event::Drain { node: "a".into(), draining: true });
    cluster.run(3_000);
    assert_eq!(owned(&cluster).values().flatten().count(), FREE as usize);
    assert_eq!(numbers(&cluster).len(), 2, "nobody else could have them");
    cluster.handle("a", Event::Drain { node: "b".into(), draining: false });
    cluster.run(3_000);
    assert_eq!(numbers(&cluster), numbered(&[(1, "b")]), "the draining one gives way");
    assert_eq!(owned(&cluster)["b"].len(), FREE as usize);
}

/// Nobody marks the other host dead, since there is no manager.
#[test]
fn e5_a_draining_host_serves_while_the_others_are_gone() {
    let mut cluster = leaderless(&["a", "b"]);
    cluster.handle("b", Event::Drain { node: "a".into(), draining: true });
    cluster.run(3_000);
    assert_eq!(owned(&cluster)["a"], []);
    cluster.node("b").dead = true;
    cluster.run(6_000);
    assert_eq!(cluster.status("b"), Some(NodeStatus::Live));
    assert_eq!(numbers(&cluster).len(), 1);
    assert_eq!(owned(&cluster)["a"].len(), FREE as usize);
}

/// Each host would leave the pool to the other one during its probation.
#[test]
fn r9_a_stateless_pool_outlives_an_outage_of_the_store() {
    let mut cluster = leaderless(&["a", "b"]);
    let (lease, before) = (cluster.settings.lease, cluster.epochs());
    for _ in 0..lease * 4 / 100 {
        cluster.now += 100;
        for node in ["a", "b"] {
            cluster.handle(node, Event::Tick);
        }
    }
    assert!(owned(&cluster).values().all(Vec::is_empty), "R9");
    cluster.run(1_000);
    assert_eq!(owned(&cluster).values().flatten().count(), FREE as usize);
    let raised = cluster.epochs().into_iter().map(|(shard, at)| at.0 - before[&shard].0).max();
    assert!(raised <= Some(2), "{raised:?}: hosts without a store take no shards");
    cluster.run(lease * 8);
    let shares: Vec<_> = owned(&cluster).values().map(Vec::len).collect();
    assert_eq!(shares, [35, 35], "after the probation");
}

#[test]
fn e8_a_lost_answer_costs_only_time() {
    let mut cluster = leaderless(&["a", "b"]);
    cluster.node("b").unanswered = true;
    cluster.run(2_000);
    cluster.node("a").dead = true;
    cluster.run(8_000);
    assert_eq!(owned(&cluster)["b"].len(), FREE as usize, "the rows show what was written");
    let until = |cluster: &mut Cluster| cluster.node("b").shard_leases.values().copied().min();
    assert!(until(&mut cluster) < Some(cluster.now), "but no answer, no lease");
    cluster.node("b").unanswered = false;
    cluster.run(2_000);
    assert!(until(&mut cluster) > Some(cluster.now));
}

#[test]
fn e8_one_write_renews_all_leases_of_a_row() {
    let mut cluster = leaderless(&["a", "b"]);
    cluster.wrote.clear();
    cluster.run(7_500);
    let renewals = |chunk| {
        let key = RowKey::Assignments(chunk);
        cluster.wrote.iter().filter(|(_, written)| *written == key).count()
    };
    // Ten intervals: the first row has shards of both, the second those of one.
    assert!((16..=20).contains(&renewals(0)), "{}", renewals(0));
    assert!((8..=10).contains(&renewals(1)), "{}", renewals(1));
}

#[test]
fn k27_a_stateless_pool_waits_for_enough_hosts() {
    let mut cluster = empty();
    cluster.settings.min_hosts = 2;
    start_leaderless(&mut cluster, "a");
    cluster.run(5_000);
    assert_eq!(owned(&cluster)["a"], []);
    start_leaderless(&mut cluster, "b");
    cluster.run(2_000);
    assert_eq!(owned(&cluster), ranges(&["a", "b"]));
    cluster.handle("b", Event::LeaveNow);
    cluster.run(5_000);
    assert_eq!(owned(&cluster)["a"].len(), FREE as usize, "they had owners before");
}

#[test]
fn k27_hosts_of_other_pools_count_for_a_stateless_one() {
    let waits = |notice: &Notice| matches!(notice, Notice::AllocationWaits { pool, hosts: 2, min: 3 } if pool == POOL);
    let mut cluster = Cluster::new();
    let mut free = Pool::new(POOL, FREE, &cluster.pools);
    free.strategy = Some(BuiltinStrategy::Stateless);
    free.role = Some("free".into());
    cluster.pools.add(free).expect("a pool");
    cluster.settings.min_hosts = 3;
    for node in ["a", "b"] {
        cluster.pool_roles.insert(node.into(), vec!["free".into()]);
        start_leaderless(&mut cluster, node);
    }
    cluster.run(5_000);
    assert!(owned(&cluster).values().all(Vec::is_empty));
    let notices = cluster.nodes.values().flat_map(|node| &node.notices);
    assert_eq!(notices.filter(|notice| waits(notice)).count(), 1, "one host says it once");
    start_leaderless(&mut cluster, "c");
    cluster.run(2_000);
    let owned: Vec<_> = owned(&cluster).into_values().map(|shards| shards.len()).collect();
    assert_eq!(owned, [35, 35, 0], "two hosts divide the pool among them");
}

#[test]
fn moves_by_hand_and_pins_do_not_touch_a_stateless_pool() {
    let mut cluster = of(&["a", "b"]);
    let before = cluster.epochs();
    let shard = ShardId(SHARDS + 1);
    let pins = BTreeMap::from([(shard, NodeId::from("b"))]);
    cluster.handle("a", Event::PinsChanged { revision: 1, pins });
    cluster.handle("a", Event::MoveShard { shard, to: "b".into() });
    cluster.handle("a", Event::Rebalance);
    cluster.run(20_000);
    assert_eq!(cluster.epochs(), before);
    let moved = |notice: &Notice| matches!(notice, Notice::HandOffStarted { shard, .. } if shard.0 > SHARDS);
    assert!(!cluster.nodes.values().flat_map(|node| &node.notices).any(moved));
}

#[test]
fn r10_the_manager_decides_in_a_row_that_others_renew() {
    let mut cluster = of(&["a", "b"]);
    let before = cluster.epochs();
    // Its first write must not conflict with renewals since its last one.
    let shard = ShardId(1);
    let owner = cluster.nodes.iter().find(|(_, node)| node.owns.contains_key(&shard));
    let owner = owner.map(|(name, _)| name.to_string()).expect("an owner");
    let to = NodeId::from(if owner == "a" { "b" } else { "a" });
    cluster.handle(&owner, Event::MoveShard { shard, to: to.clone() });
    cluster.run(30);
    assert!(cluster.epochs()[&shard] > before[&shard]);
    assert!(cluster.nodes[&to].owns.contains_key(&shard));
}

#[test]
fn m1_a_pool_behind_a_stateless_one_gets_owners() {
    let mut cluster = of(&["a", "b"]);
    // Its shards begin in a row that had only shards of the pool without a manager.
    let mut pools = pools();
    pools.add(Pool::new("plain", 10, &pools)).expect("a pool");
    for node in ["a", "b"] {
        cluster.handle(node, Event::PoolsChanged(pools.clone()));
    }
    let before = cluster.epochs();
    cluster.run(5_000);
    let owned = cluster.nodes.values().map(|node| node.owns.len()).collect::<Vec<_>>();
    assert_eq!(owned, [46, 46], "12, 70 and 10 shards");
    let after = cluster.epochs();
    assert!(before.iter().all(|(shard, epoch)| after[shard] == *epoch), "others stay");
}
