//! Hosts that cannot run a deployed type (R24).

use super::cluster::Cluster;
use crate::node::{Event, Mutation};

fn unrunnable(cluster: &mut Cluster, node: &str, types: &[&str]) {
    let types = types.iter().map(|name| (*name).to_owned()).collect();
    cluster.handle(node, Event::UnrunnableTypes(types));
}

fn spread(cluster: &Cluster) -> Vec<(String, usize)> {
    cluster.spread().into_iter().collect()
}

#[test]
fn r24_a_host_that_cannot_run_a_type_has_no_shards() {
    let mut cluster = Cluster::of(&["a", "b", "c"]);
    unrunnable(&mut cluster, "c", &["counter"]);
    cluster.run(5_000);
    assert_eq!(spread(&cluster), [("a".into(), 6), ("b".into(), 6)]);
    let (manager, _) = cluster.manager();
    let found = cluster.node(&manager).machine.hosts_with_unrunnable_types();
    let found: Vec<_> = found.map(|(node, types)| (node.to_string(), types.to_vec())).collect();
    assert_eq!(found, [("c".into(), vec!["counter".into()])]);

    // The next manager knows it too, and shards that fail over move elsewhere.
    cluster.node("a").paused = true;
    cluster.run(10_000);
    assert_eq!(spread(&cluster), [("b".into(), 12)]);

    // The host can run the type now: balancing gives it its share.
    unrunnable(&mut cluster, "c", &[]);
    cluster.run(12_000);
    assert_eq!(spread(&cluster), [("b".into(), 6), ("c".into(), 6)]);
}

#[test]
fn r24_a_type_that_no_host_can_run_moves_no_shards() {
    let mut cluster = Cluster::of(&["a", "b"]);
    let before = cluster.epochs();
    // The hosts detect it at nearly the same time.
    unrunnable(&mut cluster, "a", &["counter"]);
    unrunnable(&mut cluster, "b", &["counter"]);
    cluster.run(15_000);
    assert_eq!(spread(&cluster), [("a".into(), 6), ("b".into(), 6)]);
    let moved = cluster.epochs().iter().filter(|(shard, at)| before[shard] != **at).count();
    assert_eq!(moved, 0);
}

#[test]
fn r24_ignoring_unrunnable_types_leaves_the_shards_in_place() {
    let mut cluster = Cluster::mutated(&["a", "b"], Mutation::IgnoreUnrunnableTypes);
    unrunnable(&mut cluster, "b", &["counter"]);
    cluster.run(5_000);
    assert_eq!(spread(&cluster), [("a".into(), 6), ("b".into(), 6)]);
}

#[test]
fn r24_a_restarted_host_that_can_run_all_types_keeps_shards() {
    let mut cluster = Cluster::of(&["a", "b", "c"]);
    unrunnable(&mut cluster, "c", &["counter"]);
    cluster.run(5_000);
    cluster.start("c");
    cluster.run(25_000);
    assert_eq!(spread(&cluster), [("a".into(), 4), ("b".into(), 4), ("c".into(), 4)]);
    let before = cluster.epochs();
    cluster.run(20_000);
    let moved = cluster.epochs().iter().filter(|(shard, at)| before[shard] != **at).count();
    assert_eq!(moved, 0, "what its ended incarnation could not run does not count");
}
