//! Tests of what a plan consists of: the desired row of every shard. A plan keeps each owner's index among the hosts
//! until the row changes. Debug builds compare this with a plan computed from scratch, for up to 16 chunks.

use super::cluster::Cluster;
use crate::ids::Epoch;
use crate::node::Event;
use crate::pools::Pools;
use crate::rows::{Assignment, Row, RowKey, SHARDS_PER_CHUNK};

const SHARDS: u32 = 4 * SHARDS_PER_CHUNK;

fn four_hosts() -> Cluster {
    let mut cluster = Cluster::new();
    cluster.pools = Pools::one(SHARDS);
    for node in ["a", "b", "c", "d"] {
        cluster.start(node);
        cluster.run(200);
    }
    cluster.run(15_000);
    assert!(cluster.nodes.values().all(|node| node.owns.len() == SHARDS_PER_CHUNK as usize));
    cluster
}

fn owned(cluster: &mut Cluster, nodes: &[&str]) -> usize {
    nodes.iter().map(|node| cluster.node(node).owns.len()).sum()
}

fn drain(cluster: &mut Cluster, node: &str) {
    cluster.handle("a", Event::Drain { node: node.into(), draining: true });
}

#[test]
fn a_plan_sees_assignments_of_the_same_decision() {
    // The drain is planned in the decision that reassigns a dead host's shards, for some of these delays.
    for before in (0..200).step_by(20) {
        let mut cluster = four_hosts();
        cluster.node("d").dead = true;
        cluster.run(3_500 + before);
        drain(&mut cluster, "c");
        cluster.run(10_000);
        assert_eq!(owned(&mut cluster, &["a", "b"]), SHARDS as usize, "{before}");
    }
}

#[test]
fn a_plan_sees_rows_that_another_node_wrote() {
    let mut cluster = four_hosts();
    // The watch has not delivered the row, so the manager's next write conflicts with a row in which it owns a
    // shard.
    let member = cluster.node("a").machine.member();
    for chunk in 0..SHARDS / SHARDS_PER_CHUNK {
        let (row, _) = cluster.rows[&RowKey::Assignments(chunk)].clone();
        let Row::Assignments(mut row) = row else { panic!("{row:?}") };
        let of_others = |shard: &&mut Assignment| shard.owner != member;
        let shard = row.assignments.iter_mut().find(of_others).expect("a shard of another node");
        *shard =
            Assignment { epoch: Epoch(shard.epoch.0 + 1), owner: member.clone(), ..shard.clone() };
        cluster.revision += 1;
        cluster.rows.insert(RowKey::Assignments(chunk), (Row::Assignments(row), cluster.revision));
    }
    drain(&mut cluster, "d");
    cluster.run(20_000);
    assert_eq!(cluster.node("d").machine.held_shards().count(), 0);
}
