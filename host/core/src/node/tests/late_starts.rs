//! A shard whose owner does not serve it in time goes elsewhere (K14).

use super::cluster::{Cluster, SHARDS};
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
    // Then it gets its share once more, and is late once more, for a longer time.
    cluster.run(40_000);
    assert_eq!((served(&cluster), moved(&cluster)), (SHARDS as usize, 8));
    // Once it is in time, it keeps them.
    cluster.node("c").claims_slowly = false;
    cluster.run(80_000);
    assert_eq!(cluster.node("c").owns.len(), 4);
    assert_eq!((served(&cluster), moved(&cluster)), (SHARDS as usize, 8));
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
