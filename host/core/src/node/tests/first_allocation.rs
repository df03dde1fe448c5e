//! The first allocation waits for enough hosts (K27).

use super::cluster::Cluster;
use crate::node::{Mutation, Notice};
use crate::rows::Roles;

/// The numbers of hosts with which an allocation waited.
fn waited(cluster: &Cluster) -> Vec<usize> {
    let notices = cluster.nodes.values().flat_map(|node| &node.notices);
    let of = |notice: &Notice| match notice {
        Notice::AllocationWaits { hosts, min: 3, .. } => Some(*hosts),
        _ => None,
    };
    notices.filter_map(of).collect()
}

fn owned(cluster: &Cluster) -> Vec<usize> {
    cluster.nodes.values().map(|node| node.owns.len()).collect()
}

fn wants_three(mutations: Vec<Mutation>) -> Cluster {
    let mut cluster = Cluster::new();
    cluster.settings.min_hosts = 3;
    cluster.settings.mutations = mutations;
    cluster
}

#[test]
fn k27_the_first_allocation_waits_for_enough_hosts() {
    let mut cluster = wants_three(Vec::new());
    cluster.start("a");
    // A node that is no host does not count.
    cluster.start_with("b", Roles { host: false, ..Roles::ALL }, 1);
    cluster.run(10_000);
    cluster.start("c");
    cluster.run(10_000);
    assert_eq!(owned(&cluster), [0, 0, 0]);
    cluster.start("d");
    cluster.run(1_000);
    assert_eq!(owned(&cluster), [4, 0, 4, 4], "each shard went to its place at once");
    assert!(cluster.epochs().values().all(|epoch| epoch.0 == 1), "{:?}", cluster.epochs());
    let waited = waited(&cluster);
    assert_eq!((waited.first(), waited.last()), (Some(&1), Some(&2)), "{waited:?}");
}

#[test]
fn k27_shards_move_to_the_last_host_once_allocated() {
    let mut cluster = wants_three(Vec::new());
    for name in ["a", "b", "c"] {
        cluster.start(name);
    }
    cluster.run(5_000);
    for name in ["a", "b"] {
        cluster.node(name).dead = true;
        cluster.run(20_000);
    }
    assert_eq!(cluster.node("c").owns.len(), 12, "later, no number of hosts is required");
    // Nor does a new manager of an allocated cluster wait.
    cluster.start("a");
    cluster.run(20_000);
    assert_eq!(waited(&cluster), []);
}

#[test]
fn k27_without_the_rule_the_first_host_gets_every_shard() {
    let mut cluster = wants_three(vec![Mutation::AllocateEarly]);
    cluster.start("a");
    cluster.run(5_000);
    assert_eq!(owned(&cluster), [12]);
}
