//! Pins, moves on request, weights, and the placement of a pool by an outside program (E9).

use std::collections::BTreeMap;

use super::cluster::{Cluster, SHARDS};
use crate::assign::BuiltinStrategy;
use crate::ids::{NodeId, ShardId};
use crate::node::{Event, Mutation, Notice};
use crate::pools::DEFAULT_POOL;

/// Tells every node the same, as a watch of the row would.
fn tell_all(cluster: &mut Cluster, event: &Event) {
    let names: Vec<_> = cluster.nodes.keys().map(ToString::to_string).collect();
    for name in names {
        cluster.handle(&name, event.clone());
    }
}

fn pin(cluster: &mut Cluster, revision: u64, pins: &[(u32, &str)]) {
    let pins = pins.iter().map(|(shard, node)| (ShardId(*shard), NodeId::from(*node))).collect();
    tell_all(cluster, &Event::PinsChanged { revision, pins });
}

/// A program says where it wants shards, and every node sees it.
fn wish(cluster: &mut Cluster, revision: u64, wishes: &[(u32, &str)]) {
    tell_all(cluster, &placement(revision, false, wishes));
}

/// Every node finds the row of a program when it lists all rows.
fn find(cluster: &mut Cluster, revision: u64, wishes: &[(u32, &str)]) {
    tell_all(cluster, &placement(revision, true, wishes));
}

fn placement(revision: u64, is_listed: bool, wishes: &[(u32, &str)]) -> Event {
    let shards = wishes.iter().map(|(shard, node)| (ShardId(*shard), NodeId::from(*node)));
    let (pool, shards) = (DEFAULT_POOL.into(), shards.collect());
    Event::PlacementChanged { pool, revision, is_listed, shards }
}

fn owner(cluster: &Cluster, shard: u32) -> String {
    let mut nodes = cluster.nodes.iter().filter(|(_, node)| !node.dead);
    let found = nodes.find(|(_, node)| node.owns.contains_key(&ShardId(shard)));
    found.map_or_else(String::new, |(name, _)| name.to_string())
}

fn spread<const N: usize>(of: [(&str, usize); N]) -> BTreeMap<String, usize> {
    of.into_iter().map(|(name, count)| (name.into(), count)).collect()
}

#[test]
fn shards_are_spread_in_proportion_to_the_weights_of_nodes() {
    let mut cluster = Cluster::new();
    cluster.weights.insert("b".into(), 2);
    cluster.start("a");
    cluster.start("b");
    cluster.run(20_000);
    assert_eq!(cluster.spread(), spread([("a", 4), ("b", 8)]));
    cluster.weights.insert("c".into(), 3);
    cluster.start("c");
    cluster.run(30_000);
    assert_eq!(cluster.spread(), spread([("a", 2), ("b", 4), ("c", 6)]));
}

#[test]
fn a_pinned_shard_moves_to_its_node_and_stays() {
    let mut cluster = Cluster::of(&["a", "b", "c"]);
    let all: Vec<_> = (1..=6).map(|shard| (shard, "c")).collect();
    pin(&mut cluster, 1, &all);
    cluster.run(20_000);
    assert!((1..=6).all(|shard| owner(&cluster, shard) == "c"));
    // The others are spread around it.
    assert_eq!(cluster.spread(), spread([("a", 3), ("b", 3), ("c", 6)]));
    let before = cluster.epochs();
    cluster.handle("a", Event::Rebalance);
    cluster.run(30_000);
    assert_eq!(cluster.epochs(), before, "nothing moves any more");
    // Unpinned, they are balanced like any other.
    pin(&mut cluster, 2, &[]);
    cluster.run(20_000);
    assert_eq!(cluster.spread(), spread([("a", 4), ("b", 4), ("c", 4)]));
}

#[test]
fn a_pinned_shard_is_served_elsewhere_while_its_node_is_gone() {
    let mut cluster = Cluster::of(&["a", "b", "c"]);
    pin(&mut cluster, 1, &[(1, "c"), (2, "c"), (3, "nobody")]);
    cluster.run(20_000);
    cluster.node("c").dead = true;
    cluster.run(10_000);
    assert_eq!(cluster.spread(), spread([("a", 6), ("b", 6)]));
    cluster.start("c");
    cluster.run(30_000);
    assert_eq!([1, 2].map(|shard| owner(&cluster, shard)), ["c", "c"]);
    cluster.handle("a", Event::Drain { node: "c".into(), draining: true });
    cluster.run(20_000);
    assert_eq!(cluster.spread(), spread([("a", 6), ("b", 6)]));
}

#[test]
fn a_new_manager_keeps_pinned_shards_in_place() {
    let mut cluster = Cluster::of(&["a", "b", "c"]);
    pin(&mut cluster, 1, &[(1, "c"), (2, "c"), (3, "c"), (4, "c"), (5, "c"), (6, "c")]);
    cluster.run(20_000);
    let (manager, _) = cluster.manager();
    cluster.node(&manager).dead = true;
    cluster.run(30_000);
    let of_pins: Vec<_> = (1..=6).map(|shard| owner(&cluster, shard)).collect();
    let expected = if manager == "c" { "" } else { "c" };
    assert!(manager == "c" || of_pins.iter().all(|it| it == expected), "{of_pins:?}");
    assert_ne!(cluster.manager().0, manager);
}

#[test]
fn an_older_row_of_pins_changes_nothing() {
    let mut cluster = Cluster::of(&["a", "b"]);
    pin(&mut cluster, 5, &[(1, "a")]);
    pin(&mut cluster, 4, &[(1, "b")]);
    pin(&mut cluster, 5, &[(1, "b")]);
    cluster.run(20_000);
    assert_eq!(owner(&cluster, 1), "a");
}

#[test]
fn without_the_rule_strategies_move_pinned_shards() {
    let mut cluster = Cluster::new();
    cluster.settings.mutations.push(Mutation::IgnorePins);
    cluster.start("a");
    cluster.start("b");
    let all: Vec<_> = (1..=SHARDS).map(|shard| (shard, "a")).collect();
    pin(&mut cluster, 1, &all);
    cluster.run(20_000);
    assert_eq!(cluster.spread(), spread([("a", 6), ("b", 6)]));
}

#[test]
fn an_operator_moves_a_shard_through_any_node() {
    let mut cluster = Cluster::of(&["a", "b", "c"]);
    for (through, to) in [("a", "b"), ("b", "c"), ("c", "a")] {
        cluster.handle(through, Event::MoveShard { shard: ShardId(5), to: to.into() });
        cluster.run(2_000);
        assert_eq!(owner(&cluster, 5), to, "through {through}");
    }
}

#[test]
fn a_shard_is_not_moved_to_a_node_that_cannot_have_it() {
    let mut cluster = Cluster::of(&["a", "b"]);
    cluster.handle("a", Event::Drain { node: "b".into(), draining: true });
    cluster.run(10_000);
    let before = cluster.epochs();
    for to in ["b", "a", "nobody"] {
        cluster.handle("a", Event::MoveShard { shard: ShardId(3), to: to.into() });
    }
    cluster.handle("a", Event::MoveShard { shard: ShardId(99), to: "a".into() });
    cluster.handle("a", Event::MoveShard { shard: ShardId(4), to: "b".into() });
    cluster.run(70_000);
    assert_eq!(cluster.epochs(), before);
    assert_eq!(cluster.moving(), 0);
    // A request is forgotten after a while: only balancing moves shards when that becomes possible.
    let all: Vec<_> = (1..=SHARDS).map(|shard| (shard, "a")).collect();
    pin(&mut cluster, 1, &all);
    cluster.handle("a", Event::Drain { node: "b".into(), draining: false });
    cluster.run(20_000);
    assert_eq!(cluster.epochs(), before);
}

fn external() -> Cluster {
    let mut cluster = Cluster::new();
    cluster.strategy = || BuiltinStrategy::External.build();
    for name in ["a", "b", "c"] {
        cluster.start(name);
        cluster.run(200);
    }
    cluster.run(10_000);
    cluster
}

fn timed_out(cluster: &Cluster) -> usize {
    let notices = cluster.nodes.values().flat_map(|node| &node.notices);
    notices.filter(|it| matches!(it, Notice::PlacementTimedOut { .. })).count()
}

#[test]
fn e9_shards_follow_an_outside_program() {
    let mut cluster = external();
    assert_eq!(cluster.spread(), spread([("a", 4), ("b", 4), ("c", 4)]), "it has said nothing");
    let all: Vec<_> =
        (1..=SHARDS).map(|shard| (shard, if shard < 10 { "b" } else { "c" })).collect();
    wish(&mut cluster, 1, &all);
    cluster.run(10_000);
    assert_eq!(cluster.spread(), spread([("b", 9), ("c", 3)]));
    wish(&mut cluster, 2, &[(1, "a")]);
    cluster.run(10_000);
    assert_eq!(cluster.spread(), spread([("a", 1), ("b", 8), ("c", 3)]), "the others stay");
}

#[test]
fn e9_a_program_that_falls_silent_is_replaced_by_average() {
    let mut cluster = external();
    let all: Vec<_> = (1..=SHARDS).map(|shard| (shard, "b")).collect();
    // What it says again counts anew.
    for revision in 1..4 {
        wish(&mut cluster, revision, &all);
        cluster.run(50_000);
    }
    assert_eq!((cluster.spread(), timed_out(&cluster)), (spread([("b", 12)]), 0));
    cluster.run(30_000);
    assert_eq!(cluster.spread(), spread([("a", 4), ("b", 4), ("c", 4)]));
    assert_eq!(timed_out(&cluster), 1, "reported once, by the manager");
    wish(&mut cluster, 4, &all);
    cluster.run(20_000);
    assert_eq!(cluster.spread(), spread([("b", 12)]));
}

#[test]
fn e9_without_the_rule_old_wishes_count_for_ever() {
    let mut cluster = Cluster::new();
    cluster.settings.mutations.push(Mutation::TrustOldPlacements);
    cluster.strategy = || BuiltinStrategy::External.build();
    cluster.start("a");
    cluster.start("b");
    let all: Vec<_> = (1..=SHARDS).map(|shard| (shard, "b")).collect();
    wish(&mut cluster, 1, &all);
    cluster.run(200_000);
    assert_eq!(cluster.spread(), spread([("b", 12)]));
}

#[test]
fn e9_wishes_count_only_for_pools_with_that_strategy() {
    let mut cluster = Cluster::of(&["a", "b"]);
    let all: Vec<_> = (1..=SHARDS).map(|shard| (shard, "b")).collect();
    wish(&mut cluster, 1, &all);
    cluster.run(20_000);
    assert_eq!(cluster.spread(), spread([("a", 6), ("b", 6)]));
}

#[test]
fn e9_wishes_of_unknown_age_move_nothing_until_said_again() {
    let mut cluster = Cluster::of(&["a", "b", "c"]);
    let before = cluster.epochs();
    // All nodes start again with another strategy, and find a row that a program wrote some time ago.
    cluster.strategy = || BuiltinStrategy::External.build();
    for name in ["a", "b", "c"] {
        cluster.node(name).dead = true;
    }
    cluster.run(4_000);
    for name in ["a", "b", "c"] {
        cluster.start(name);
    }
    let all: Vec<_> = (1..=SHARDS).map(|shard| (shard, "b")).collect();
    find(&mut cluster, 7, &all);
    cluster.run(40_000);
    assert!(cluster.spread().len() > 1, "{:?}", cluster.spread());
    assert_eq!(timed_out(&cluster), 0);
    assert!(cluster.epochs().iter().all(|(shard, epoch)| *epoch > before[shard]));
    // The program lives.
    wish(&mut cluster, 8, &all);
    cluster.run(10_000);
    assert_eq!(cluster.spread(), spread([("b", 12)]));
}

#[test]
fn e9_a_change_found_after_a_lost_watch_counts_at_once() {
    let mut cluster = external();
    wish(&mut cluster, 1, &[(1, "a")]);
    cluster.run(10_000);
    let all: Vec<_> = (1..=SHARDS).map(|shard| (shard, "b")).collect();
    find(&mut cluster, 2, &all);
    cluster.run(10_000);
    assert_eq!(cluster.spread(), spread([("b", 12)]));
}

#[test]
fn requested_moves_of_one_row_are_all_made_within_the_limit() {
    let mut cluster = Cluster::of(&["a", "b"]);
    cluster.settings.max_rebalance_hand_offs = 2;
    let all = cluster.node("a").owns.keys().copied().collect::<Vec<_>>();
    for shard in &all {
        cluster.handle("b", Event::MoveShard { shard: *shard, to: "b".into() });
    }
    let moved = |cluster: &Cluster| {
        let nodes = &cluster.nodes[&NodeId::from("b")].owns;
        all.iter().filter(|shard| nodes.contains_key(shard)).count()
    };
    // Balancing takes some back later.
    for _ in 0..40 {
        if moved(&cluster) == all.len() {
            return;
        }
        cluster.run(50);
    }
    panic!("{} of {}", moved(&cluster), all.len());
}
