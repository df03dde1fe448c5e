//! Nodes report the loads of their shards, and the strategy `load` spreads them (A4).

use std::collections::BTreeMap;

use super::cluster::{Cluster, SHARDS};
use crate::assign::BuiltinStrategy;
use crate::ids::ShardId;
use crate::node::Event;

/// Each shard's load, from 1 on.
const LOADS: [u32; SHARDS as usize] = [500, 400, 300, 20, 20, 20, 20, 20, 20, 20, 20, 20];

/// Runs for a while, during which each node reports the loads of the shards that it has had for at least ten seconds.
fn run_and_report(
    cluster: &mut Cluster,
    since: &mut BTreeMap<ShardId, (String, u64)>,
    millis: u64,
) {
    let end = cluster.now + millis;
    while cluster.now < end {
        cluster.run(1_000);
        let mut reports = Vec::new();
        for (name, node) in &cluster.nodes {
            let mut loads = Vec::new();
            for shard in node.owns.keys() {
                let of = since.entry(*shard).or_insert((name.to_string(), cluster.now));
                if of.0 != name.to_string() {
                    *of = (name.to_string(), cluster.now);
                }
                if cluster.now >= of.1 + 10_000 {
                    loads.push((*shard, LOADS[shard.0 as usize - 1]));
                }
            }
            reports.push((name.to_string(), loads));
        }
        for (name, loads) in reports {
            cluster.handle(&name, Event::LoadsMeasured(loads));
        }
    }
}

fn load(cluster: &Cluster, name: &str) -> u32 {
    let owns = &cluster.nodes[&crate::ids::NodeId::from(name)].owns;
    owns.keys().map(|shard| LOADS[shard.0 as usize - 1]).sum()
}

#[test]
fn a4_shards_are_spread_by_the_loads_that_nodes_report() {
    let mut cluster = Cluster::new();
    cluster.strategy = || BuiltinStrategy::Load.build();
    let mut since = BTreeMap::new();
    for name in ["a", "b", "c"] {
        cluster.start(name);
    }
    run_and_report(&mut cluster, &mut since, 120_000);
    let loads = ["a", "b", "c"].map(|name| load(&cluster, name));
    assert!(loads.iter().all(|load| (360..=560).contains(load)), "{loads:?}");
    let before = cluster.epochs();
    run_and_report(&mut cluster, &mut since, 300_000);
    assert_eq!(cluster.epochs(), before, "it has come to rest");
}

#[test]
fn a4_a_moved_shard_keeps_its_load_until_it_is_measured_again() {
    let mut cluster = Cluster::new();
    cluster.strategy = || BuiltinStrategy::Load.build();
    let mut since = BTreeMap::new();
    cluster.start("a");
    run_and_report(&mut cluster, &mut since, 30_000);
    cluster.start("b");
    // All moves are decided from what the first owner measured: none is undone when the second one has measured too.
    run_and_report(&mut cluster, &mut since, 9_000);
    let before = cluster.epochs();
    let loads = ["a", "b"].map(|name| load(&cluster, name));
    assert!(loads.iter().all(|load| (550..=830).contains(load)), "{loads:?}");
    run_and_report(&mut cluster, &mut since, 120_000);
    assert_eq!(cluster.epochs(), before);
}

#[test]
fn a4_the_loads_of_other_nodes_shards_are_ignored() {
    let mut cluster = Cluster::new();
    cluster.strategy = || BuiltinStrategy::Load.build();
    for name in ["a", "b"] {
        cluster.start(name);
    }
    cluster.run(20_000);
    let before = cluster.epochs();
    let owned: Vec<_> = cluster.node("a").owns.keys().map(|shard| (*shard, 900)).collect();
    cluster.handle("b", Event::LoadsMeasured(owned));
    cluster.handle("b", Event::LoadsMeasured(vec![(ShardId(9_999), 5), (ShardId(0), 5)]));
    cluster.run(20_000);
    assert_eq!(cluster.epochs(), before);
}

#[test]
fn a4_a_new_manager_moves_nothing_before_all_hosts_report() {
    let mut cluster = Cluster::new();
    cluster.strategy = || BuiltinStrategy::Load.build();
    let mut since = BTreeMap::new();
    for name in ["a", "b", "c"] {
        cluster.start(name);
    }
    run_and_report(&mut cluster, &mut since, 120_000);
    // The manager is paused for longer than its lease: its shards go elsewhere, and another node manages.
    let (manager, _) = cluster.manager();
    cluster.node(&manager).paused = true;
    cluster.run(9_000);
    assert_ne!(cluster.manager().0, manager);
    let before = cluster.epochs();
    cluster.run(60_000);
    assert_eq!(cluster.epochs(), before, "loads are not known, so nothing is balanced");
}
