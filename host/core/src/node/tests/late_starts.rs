//! A shard whose owner does not serve it in time goes elsewhere (K14).

use super::cluster::{Cluster, SHARDS};
use crate::ids::ShardId;
use crate::node::{Event, Mutation, Notice};

fn moved(cluster: &Cluster) -> usize {
    let notices = cluster.nodes.values().flat_map(|node| &node.notices);
    notices.filter(|it| matches!(it, Notice::ShardStartedLate { .. })).count()
}

/// Two hosts, and a third one whose claims are never granted.
fn with_a_late_host(mutations: Vec<Mutation>) -> Cluster {
    let mut cluster = Cluster::new();
    cluster.settings.mutations = mutations;
    for name in ["a", "b"] {
        cluster.start(name);
    }
    cluster.run(5_000);
    cluster.slow_claims.insert("c".into());
    cluster.start("c");
    cluster.run(3_000);
    cluster
}

fn served(cluster: &Cluster) -> usize {
    cluster.nodes.values().map(|node| node.owns.len()).sum()
}

#[test]
fn k14_a_shard_that_is_not_served_in_time_goes_elsewhere() {
    let mut cluster = with_a_late_host(Vec::new());
    assert_eq!((served(&cluster), moved(&cluster)), (8, 0), "they are being claimed");
    cluster.run(10_000);
    assert_eq!((served(&cluster), moved(&cluster)), (SHARDS as usize, 4));
    // The host gets no others for three times the timeout, although balancing would like that.
    cluster.run(25_000);
    assert_eq!((served(&cluster), moved(&cluster)), (SHARDS as usize, 4));
    // Then it gets one shard, and is late once more.
    let mut fewest = SHARDS as usize;
    while moved(&cluster) == 4 {
        cluster.run(1_000);
        fewest = fewest.min(served(&cluster));
    }
    assert_eq!(fewest, SHARDS as usize - 1);
    cluster.run(1_000);
    assert_eq!((served(&cluster), moved(&cluster)), (SHARDS as usize, 5));
    // Now it waits twice as long. Once it is in time, it gets its share.
    cluster.node("c").claims_slowly = false;
    cluster.run(45_000);
    assert_eq!((cluster.node("c").owns.len(), moved(&cluster)), (0, 5));
    cluster.run(40_000);
    assert_eq!((cluster.node("c").owns.len(), moved(&cluster)), (4, 5));
    assert_eq!(served(&cluster), SHARDS as usize);
}

#[test]
fn k14_a_late_host_keeps_what_it_serves() {
    let mut cluster = Cluster::of(&["a", "b", "c"]);
    let before = cluster.epochs();
    let kept: Vec<_> = cluster.node("c").owns.keys().copied().collect();
    // The shards of the next dead host are claimed too slowly by one of the others.
    cluster.node("c").claims_slowly = true;
    cluster.node("b").dead = true;
    cluster.run(40_000);
    assert_eq!(served(&cluster) - cluster.node("b").owns.len(), SHARDS as usize);
    assert!(kept.iter().all(|shard| cluster.epochs()[shard] == before[shard]));
    assert_eq!(cluster.node("c").owns.len(), kept.len());
}

#[test]
fn k14_a_new_incarnation_of_a_late_host_is_not_late() {
    let mut cluster = with_a_late_host(Vec::new());
    cluster.run(12_000);
    assert_eq!((served(&cluster), moved(&cluster)), (SHARDS as usize, 4));
    cluster.node("c").dead = true;
    cluster.run(6_000);
    cluster.slow_claims.clear();
    cluster.start("c");
    cluster.run(15_000);
    assert_eq!(cluster.node("c").owns.len(), 4);
}

#[test]
fn k14_state_that_is_being_moved_may_take_any_time() {
    let mut cluster = with_a_late_host(Vec::new());
    for name in ["a", "b", "c"] {
        cluster.handle(name, Event::StateMoves(Some((ShardId(1), ShardId(SHARDS)))));
    }
    cluster.run(60_000);
    assert_eq!((served(&cluster), moved(&cluster)), (8, 0));
    // When it has ended, each shard has its usual time.
    for name in ["a", "b", "c"] {
        cluster.handle(name, Event::StateMoves(None));
    }
    cluster.run(8_000);
    assert_eq!(moved(&cluster), 0);
    cluster.run(5_000);
    assert_eq!((served(&cluster), moved(&cluster)), (SHARDS as usize, 4));
}

#[test]
fn k14_a_host_that_does_not_report_is_not_judged() {
    let mut cluster = with_a_late_host(Vec::new());
    let (manager, _) = cluster.manager();
    assert_ne!(manager, "c");
    cluster.cut_from_manager.insert(("c".into(), manager.as_str().into()));
    cluster.run(5_500);
    assert_eq!((served(&cluster), moved(&cluster)), (8, 0), "its last report is 8 s old");
    // Two leases after its last report, it is unresponsive.
    cluster.run(4_000);
    assert_eq!(moved(&cluster), 0);
}

#[test]
fn k14_a_manager_that_slept_gives_every_owner_its_time_again() {
    let mut cluster = with_a_late_host(Vec::new());
    let (manager, _) = cluster.manager();
    cluster.run(6_000);
    // Less than its lease, and more than an observer may sleep.
    cluster.node(&manager).paused = true;
    cluster.run(1_500);
    cluster.node(&manager).paused = false;
    cluster.run(5_000);
    assert_eq!(moved(&cluster), 0);
    cluster.run(6_000);
    assert_eq!((served(&cluster), moved(&cluster)), (SHARDS as usize, 4));
}

#[test]
fn k14_without_the_rule_a_shard_waits_for_its_owner() {
    let mut cluster = with_a_late_host(vec![Mutation::IgnoreLateStarts]);
    cluster.run(60_000);
    assert_eq!(served(&cluster), 8);
}

#[test]
fn k14_a_late_shard_stays_if_no_other_host_can_have_it() {
    let mut cluster = Cluster::new();
    cluster.start_with("m", crate::rows::Roles { host: false, ..crate::rows::Roles::ALL }, 1);
    cluster.slow_claims.insert("a".into());
    cluster.start("a");
    cluster.run(60_000);
    assert_eq!((served(&cluster), moved(&cluster)), (0, 0));
    cluster.grant_claims("a");
    cluster.run(1_000);
    assert_eq!(served(&cluster), SHARDS as usize);
}

#[test]
fn k14_a_slow_store_moves_no_shard_for_ever() {
    // Every claim takes 25 s, wherever it is made: moves do not help, and must end.
    let mut cluster = Cluster::new();
    for name in ["a", "b", "c"] {
        cluster.slow_claims.insert(name.into());
        cluster.start(name);
    }
    for _ in 0..20 {
        cluster.run(25_000);
        for name in ["a", "b", "c"] {
            cluster.grant_claims(name);
            cluster.node(name).claims_slowly = true;
        }
    }
    let before = moved(&cluster);
    assert_eq!(served(&cluster), SHARDS as usize);
    for name in ["a", "b", "c"] {
        cluster.handle(name, Event::Tick);
    }
    cluster.run(100_000);
    assert_eq!((moved(&cluster), served(&cluster)), (before, SHARDS as usize));
}
