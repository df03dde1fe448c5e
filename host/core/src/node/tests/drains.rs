//! An operator's drain mark survives the node's incarnations; leaving concerns one incarnation.

use super::cluster::{Cluster, SHARDS};
use crate::node::{Event, Notice};

fn drain(cluster: &mut Cluster, node: &str, draining: bool) {
    cluster.handle("a", Event::Drain { node: node.into(), draining });
}

fn spread(cluster: &Cluster) -> Vec<(String, usize)> {
    cluster.spread().into_iter().collect()
}

#[test]
fn r12_a_drain_mark_outlives_a_crash_until_it_is_undone() {
    let mut cluster = Cluster::of(&["a", "b"]);
    drain(&mut cluster, "b", true);
    cluster.run(3_000);
    assert_eq!(spread(&cluster), [("a".into(), SHARDS as usize)]);
    cluster.node("b").dead = true;
    cluster.run(8_000);
    cluster.start("b");
    cluster.run(8_000);
    assert_eq!(cluster.incarnation("b"), 2);
    assert_eq!(spread(&cluster), [("a".into(), SHARDS as usize)]);
    let drains = |notice: &Notice| matches!(notice, Notice::DrainChanged(member, true) if member.incarnation.counter == 2);
    assert!(cluster.node("b").notices.iter().any(drains), "a notice is emitted");
    drain(&mut cluster, "b", false);
    cluster.run(8_000);
    assert_eq!(spread(&cluster), [("a".into(), 6), ("b".into(), 6)]);
}

#[test]
fn r12_a_drain_mark_survives_a_stop_but_leaving_does_not() {
    for drained in [true, false] {
        let mut cluster = Cluster::of(&["a", "b"]);
        drain(&mut cluster, "b", drained);
        cluster.run(3_000);
        cluster.handle("b", Event::Leave);
        cluster.run(5_000);
        assert!(cluster.node("b").left);
        cluster.start("b");
        cluster.run(8_000);
        let given = spread(&cluster).iter().any(|(node, _)| node == "b");
        assert_eq!(given, !drained);
    }
}

#[test]
fn r12_a_node_killed_while_leaving_does_not_stay_draining() {
    let mut cluster = Cluster::of(&["a", "b"]);
    cluster.node("b").stuck = true;
    cluster.handle("b", Event::Leave);
    cluster.run(1_000);
    assert!(cluster.moving() > 0, "its shards are moving");
    cluster.node("b").dead = true;
    cluster.run(8_000);
    cluster.start("b");
    cluster.run(8_000);
    assert_eq!(spread(&cluster), [("a".into(), 6), ("b".into(), 6)]);
}
