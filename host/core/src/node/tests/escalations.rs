//! Shards that move because a failure of one of their entities is escalated (K33).

use super::cluster::Cluster;
use crate::ids::{Epoch, ShardId};
use crate::node::{Event, Mutation, Notice};
use crate::rows::{Roles, Row};

const SHARD: ShardId = ShardId(1);

/// The node and the epoch that a shard's row names.
fn owner(cluster: &Cluster, shard: ShardId) -> (String, Epoch) {
    let rows = cluster.rows.values().filter_map(|(row, _)| match row {
        Row::Assignments(row) => Some(row),
        _ => None,
    });
    let row = rows.flat_map(|row| &row.assignments).nth(shard.0 as usize - 1).expect("a row");
    (row.owner.as_ref().expect("an owner").node.to_string(), row.epoch)
}

/// Lets the shard's owner escalate, and returns the owner afterwards.
fn escalate(cluster: &mut Cluster, shard: ShardId) -> String {
    let (node, epoch) = owner(cluster, shard);
    cluster.handle(&node, Event::ShardEscalated { shard, epoch });
    cluster.run(4_000);
    owner(cluster, shard).0
}

/// Where escalated shards moved, as the managers noted it, and the limit if they stayed because of it.
fn noted(cluster: &Cluster) -> Vec<(Option<String>, Option<usize>)> {
    let notices = cluster.nodes.values().flat_map(|node| &node.notices);
    let of = |notice: &Notice| match notice {
        Notice::ShardEscalated { target, limit, .. } => {
            Some((target.as_ref().map(ToString::to_string), *limit))
        }
        _ => None,
    };
    notices.filter_map(of).collect()
}

#[test]
fn k33_an_escalated_shard_moves_to_the_emptiest_other_host() {
    let mut cluster = Cluster::of(&["a", "b", "c"]);
    cluster.run(5_000);
    let (before, epoch) = owner(&cluster, SHARD);
    let others = cluster.epochs();
    let after = escalate(&mut cluster, SHARD);
    assert_ne!(after, before);
    assert_eq!(noted(&cluster), [(Some(after.clone()), None)]);
    // A late copy of the report says nothing about the new owner.
    cluster.handle(&before, Event::ShardEscalated { shard: SHARD, epoch });
    cluster.run(15_000);
    assert_eq!(noted(&cluster).len(), 1);
    let moved = cluster.epochs().iter().filter(|(shard, at)| others[shard] != **at).count();
    assert!(moved <= 2, "balancing moves at most one shard back, not {moved}");
}

#[test]
fn k33_an_escalated_shard_moves_a_limited_number_of_times() {
    for (mutations, moves) in [(vec![], 3), (vec![Mutation::UnboundedEscalations], 6)] {
        let mut cluster = Cluster::of(&["a", "b", "c"]);
        cluster.settings.mutations = mutations;
        for name in ["a", "b", "c"] {
            cluster.start(name);
        }
        cluster.run(10_000);
        for _ in 0..6 {
            escalate(&mut cluster, SHARD);
        }
        let noted = noted(&cluster);
        assert_eq!(noted.iter().filter(|(target, _)| target.is_some()).count(), moves);
        assert!(noted.iter().skip(moves).all(|it| *it == (None, Some(3))), "{noted:?}");
    }
    // After the period it moves again.
    let mut cluster = Cluster::of(&["a", "b"]);
    cluster.run(5_000);
    for _ in 0..4 {
        escalate(&mut cluster, SHARD);
    }
    let before = owner(&cluster, SHARD).0;
    assert_eq!(escalate(&mut cluster, SHARD), before, "the epoch has been considered");
    cluster.run(600_000);
    assert_eq!(escalate(&mut cluster, ShardId(2)).len(), 1);
    assert_eq!(noted(&cluster).iter().filter(|(target, _)| target.is_some()).count(), 4);
}

#[test]
fn k33_a_shard_without_another_host_stays() {
    let mut cluster = Cluster::of(&["a"]);
    cluster.run(5_000);
    let before = owner(&cluster, SHARD);
    escalate(&mut cluster, SHARD);
    assert_eq!((owner(&cluster, SHARD), noted(&cluster)), (before, vec![(None, None)]));
}

#[test]
fn k33_escalations_reach_the_next_manager() {
    let mut cluster = Cluster::of(&["a", "b", "c"]);
    cluster.run(5_000);
    let (manager, _) = cluster.manager();
    let owners = (1..=12).map(|number| (ShardId(number), owner(&cluster, ShardId(number))));
    let (shard, (before, epoch)) =
        owners.clone().find(|(_, (node, _))| *node != manager).expect("another host's shard");
    cluster.node(&manager).paused = true;
    cluster.handle(&before, Event::ShardEscalated { shard, epoch });
    cluster.run(15_000);
    assert_ne!(owner(&cluster, shard).0, before);
}

#[test]
fn s16_an_escalated_shard_goes_to_the_latest_release() {
    let mut cluster = Cluster::new();
    for (node, version) in [("b", 2), ("c", 2), ("a", 1)] {
        cluster.start_with(node, Roles::ALL, version);
        cluster.run(10_000);
    }
    assert!(!cluster.spread().contains_key("a"), "it runs the older release");
    let (before, _) = owner(&cluster, SHARD);
    assert_eq!(escalate(&mut cluster, SHARD), if before == "b" { "c" } else { "b" });
}
