//! How many shards move at the same time, when they are balanced, and what delays only balancing (R12, S13, S15).

use std::sync::atomic::{AtomicBool, Ordering};

use super::cluster::{Cluster, SHARDS};
use crate::assign::{AllocationStrategy, AllocationView, Average, BuiltinStrategy, Move};
use crate::ids::NodeId;
use crate::node::{Action, ControlMessage, Event, Notice};
use crate::pools::Pools;
use crate::rows::{NodeStatus, Roles, Row};

fn counts(cluster: &Cluster) -> Vec<usize> {
    cluster.spread().into_values().collect()
}

fn drain(cluster: &mut Cluster, node: &str) {
    cluster.handle("a", Event::Drain { node: node.into(), draining: true });
}

#[test]
fn r12_a_drain_limits_its_hand_offs_in_flight() {
    let mut cluster = Cluster::new();
    cluster.settings.max_drain_hand_offs = 4;
    cluster.start("a");
    cluster.start("b");
    cluster.run(5_000);
    cluster.node("b").stuck = true;
    drain(&mut cluster, "b");
    cluster.run(3_000);
    assert_eq!(cluster.moving(), 4);
    assert_eq!(cluster.node("b").stops.len(), 4, "despite repeated requests, each stops once");
    cluster.unstick("b");
    cluster.run(3_000);
    assert_eq!(counts(&cluster), [SHARDS as usize]);
}

#[test]
fn k23_balancing_limits_its_hand_offs_in_flight() {
    let mut cluster = Cluster::new();
    cluster.settings.max_rebalance_hand_offs = 2;
    cluster.start("a");
    cluster.run(3_000);
    cluster.node("a").stuck = true;
    cluster.start("b");
    cluster.run(3_000);
    assert_eq!(cluster.moving(), 2);
    cluster.unstick("a");
    cluster.run(5_000);
    assert_eq!(counts(&cluster), [6, 6]);
}

#[test]
fn r12_mixed_versions_and_unreachable_nodes_stop_no_drain() {
    let mut cluster = Cluster::of(&["a", "b"]);
    cluster.start_with("c", Roles::ALL, 2);
    drain(&mut cluster, "b");
    for _ in 0..8 {
        cluster.handle("c", Event::NodeUnreachable { node: "a".into() });
        cluster.run(500);
    }
    let spread = cluster.spread();
    assert_eq!(spread.get("b"), None);
    assert_eq!(spread["c"], 6, "S16.5: drained shards move to the latest version");
}

#[test]
fn s12_an_unreachable_node_that_renews_keeps_its_shards() {
    let mut cluster = Cluster::of(&["a", "b"]);
    let unreachable = |cluster: &mut Cluster| {
        cluster.handle("b", Event::NodeUnreachable { node: "a".into() });
        cluster.handle("a", Event::NodeUnreachable { node: "b".into() });
    };
    unreachable(&mut cluster);
    cluster.start("c");
    for _ in 0..12 {
        unreachable(&mut cluster);
        cluster.run(500);
    }
    let notifies_manager = |(from, to, message): &(NodeId, NodeId, ControlMessage)| {
        (&*from.0, &*to.0) == ("b", "a")
            && matches!(message, ControlMessage::NodeUnreachable { .. })
    };
    assert!(cluster.sent_messages.iter().any(notifies_manager), "the manager is notified");
    assert_eq!(cluster.status("b"), Some(NodeStatus::Live), "S7: a renewed lease remains valid");
    assert_eq!(counts(&cluster), [6, 6], "R12: no balancing in the meantime");
    cluster.run(7_000);
    assert_eq!(counts(&cluster), [4, 4, 4]);
}

/// Balances when allowed.
#[derive(Debug)]
struct Later;

static ALLOWED: AtomicBool = AtomicBool::new(false);

impl AllocationStrategy for Later {
    fn allocate(&self, view: &AllocationView) -> Vec<Move> {
        Average.allocate(view)
    }

    fn rebalance(&self, view: &AllocationView, limit: usize) -> Vec<Move> {
        match ALLOWED.load(Ordering::Relaxed) {
            true => Average.rebalance(view, limit),
            false => Vec::new(),
        }
    }
}

#[test]
fn a1_balancing_runs_at_each_interval_with_the_strategy() {
    let mut cluster = Cluster::new();
    cluster.strategy = || Box::new(Later);
    cluster.start("a");
    cluster.run(1_000);
    cluster.start("b");
    cluster.run(5_000);
    ALLOWED.store(true, Ordering::Relaxed);
    cluster.run(3_000);
    assert_eq!(counts(&cluster), [SHARDS as usize], "the interval has not passed");
    cluster.run(4_000);
    assert_eq!(counts(&cluster), [6, 6]);
}

#[test]
fn s15_8_an_abandoned_hand_off_is_soon_followed_by_another() {
    let mut cluster = Cluster::new();
    cluster.settings.hand_off_timeout = 1_000;
    cluster.start("a");
    cluster.start("b");
    cluster.run(5_000);
    cluster.lose = |message| matches!(message, ControlMessage::HandOff(_));
    cluster.start("c");
    cluster.run(2_000);
    let failed = |notice: &Notice| matches!(notice, Notice::HandOffFailed { .. });
    assert!(cluster.node("a").notices.iter().any(failed));
    assert_eq!(cluster.moving(), 0, "S15.4: a shard that did not stop stays where it is");
    cluster.lose = |_| false;
    cluster.run(4_000);
    assert_eq!(counts(&cluster), [4, 4, 4], "before the interval has passed");
}

#[test]
fn s13_a_host_that_joins_or_leaves_triggers_balancing() {
    let mut cluster = Cluster::new();
    cluster.settings.rebalance_interval = 3_600_000;
    for node in ["a", "b", "c"] {
        cluster.start(node);
        cluster.run(3_000);
    }
    assert_eq!(counts(&cluster), [4, 4, 4]);
    cluster.handle("c", Event::Leave);
    cluster.run(3_000);
    assert_eq!(counts(&cluster), [6, 6]);
}

#[test]
fn k35_a_leave_seen_by_the_watch_before_its_answer_counts() {
    let mut cluster = Cluster::of(&["a"]);
    cluster.start_with("g", Roles { gateway: true, ..Roles::default() }, 1);
    cluster.run(500);
    let now = cluster.now();
    let mut machine = cluster.nodes.remove(&"g".into()).expect("g").machine;
    machine.handle(now, Event::Leave);
    let (mut revision, mut done) = (1_000, Vec::new());
    while let Some(action) = machine.poll() {
        if let Action::WriteRow { request_id: number, key, row, .. } = &action {
            revision += 1;
            let has_left = matches!(row, Row::Node(row) if row.status == NodeStatus::Left);
            machine.handle(
                now,
                match has_left {
                    true => Event::RowObserved {
                        key: key.clone(),
                        value: Some((row.clone(), revision)),
                    },
                    false => Event::RowWritten { request_id: *number, result: Ok(revision) },
                },
            );
        }
        done.push(action);
    }
    assert!(done.contains(&Action::Left) && !done.contains(&Action::Fenced), "{done:?}");
}

#[test]
fn s12_an_unknown_unreachable_node_delays_nothing() {
    let mut cluster = Cluster::of(&["a", "b"]);
    cluster.handle("b", Event::NodeUnreachable { node: "ghost".into() });
    cluster.start("c");
    for _ in 0..12 {
        cluster.handle("b", Event::NodeUnreachable { node: "ghost".into() });
        cluster.run(250);
    }
    assert_eq!(counts(&cluster), [4, 4, 4]);
}

#[test]
fn the_next_shards_are_moved_soon_after_the_last_ones() {
    let mut cluster = Cluster::new();
    cluster.pools = Pools::one(40);
    // It moves three at a time, and none while three are in progress.
    cluster.strategy = || BuiltinStrategy::LeastShard.build();
    cluster.start("a");
    cluster.run(5_000);
    cluster.start("b");
    cluster.run(100);
    assert_eq!(cluster.node("b").owns.len(), 3, "not immediately");
    cluster.run(3_000);
    assert_eq!(cluster.node("b").owns.len(), 15, "faster than three per renewal");
}

#[test]
fn s16_an_upgraded_owner_keeps_its_shards_in_an_upgrade() {
    let mut cluster = Cluster::of(&["a", "b", "c", "d"]);
    let names = ["d", "c", "b", "a"];
    for (number, name) in names.iter().enumerate() {
        // It hands its shards over and stops; the next release starts in its place.
        cluster.handle(name, Event::Leave);
        cluster.run(20_000);
        assert!(cluster.node(name).left);
        let kept: Vec<_> = names[..number]
            .iter()
            .flat_map(|upgraded| cluster.node(upgraded).owns.clone())
            .collect();
        cluster.start_with(name, Roles::ALL, 2);
        cluster.run(30_000);
        if number + 1 < names.len() {
            // While versions differ, nothing leaves an upgraded owner, and nothing goes to another version.
            for (shard, (epoch, owner)) in kept {
                let now = &cluster.nodes[&owner.node].owns.get(&shard);
                assert_eq!(*now, Some(&(epoch, owner.clone())), "after {name}: {shard}");
            }
        }
    }
    let spread = cluster.spread();
    assert!(spread.values().all(|count| *count == 3), "balanced at the end: {spread:?}");
}
