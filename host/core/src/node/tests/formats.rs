//! Fields that a later release adds to rows survive this release's writes (`docs/formats.md`).

use super::cluster::Cluster;
use crate::codec;
use crate::extensions::{Extensible, Extensions};
use crate::node::Event;
use crate::rows::{NodeRow, NodeStatus, Row, RowKey};

/// An optional field of a later release, with number 100.
fn noted<T: Extensible>() -> Extensions<T> {
    codec::decode(&[1, 100, 3, b'n', b'e', b'w']).expect("an unknown field that may be ignored")
}

/// Writes the later release's fields into every row, as its node would.
fn note(cluster: &mut Cluster) {
    for key in cluster.rows.keys().cloned().collect::<Vec<_>>() {
        cluster.revision += 1;
        let (mut row, revision) = (cluster.rows[&key].0.clone(), cluster.revision);
        match &mut row {
            Row::Node(row) => row.extensions = noted(),
            Row::Manager(row) => row.extensions = noted(),
            Row::Arbiter(row) => row.extensions = noted(),
            Row::Assignments(row) => {
                row.extensions = noted();
                row.assignments.iter_mut().for_each(|shard| shard.extensions = noted());
            }
            Row::Numbers(row) => row.extensions = noted(),
        }
        cluster.rows.insert(key.clone(), (row.clone(), revision));
        for node in cluster.nodes.keys().cloned().collect::<Vec<_>>() {
            let value = Some((row.clone(), revision));
            cluster.handle(&node.0, Event::RowObserved { key: key.clone(), value });
        }
    }
}

fn keeps_all(cluster: &Cluster, but: &str) {
    for (key, (row, _)) in &cluster.rows {
        match row {
            Row::Node(_) if *key == RowKey::Node(but.into()) => {}
            Row::Node(row) => {
                let mut expected = NodeRow { extensions: noted(), ..row.clone() };
                if row.is_leaving() {
                    expected.set_leaving().expect("it fits");
                }
                assert_eq!(*row, expected, "{key:?}");
            }
            Row::Manager(row) => assert_eq!(row.extensions, noted()),
            Row::Arbiter(row) => assert_eq!(row.extensions, noted()),
            Row::Numbers(row) => assert_eq!(row.extensions, noted()),
            Row::Assignments(row) => {
                assert_eq!(row.extensions, noted());
                assert!(row.assignments.iter().all(|shard| shard.extensions == noted()), "{row:?}");
            }
        }
    }
}

fn renewals(cluster: &Cluster, node: &str) -> u64 {
    match &cluster.rows[&RowKey::Node(node.into())].0 {
        Row::Node(row) => row.renewals,
        _ => unreachable!("a node's row"),
    }
}

#[test]
fn renewals_and_a_drain_keep_unknown_row_fields() {
    let mut cluster = Cluster::of(&["a", "b"]);
    note(&mut cluster);
    let before = renewals(&cluster, "b");
    cluster.run(3_000);
    assert!(renewals(&cluster, "b") > before);
    cluster.handle("b", Event::Drain { node: "b".into(), draining: true });
    cluster.run(5_000);
    assert_eq!(cluster.spread().get("b"), None, "its shards were handed off");
    cluster.handle("b", Event::Leave);
    cluster.run(5_000);
    assert_eq!(cluster.status("b"), Some(NodeStatus::Left));
    keeps_all(&cluster, "");
}

#[test]
fn mark_dead_seal_and_assignment_keep_unknown_row_fields() {
    let mut cluster = Cluster::of(&["a", "b", "c"]);
    note(&mut cluster);
    let (manager, term) = cluster.manager();
    cluster.node(&manager).dead = true;
    cluster.run(15_000);
    assert_eq!(cluster.status(&manager), Some(NodeStatus::Dead));
    assert!(cluster.manager().1 > term, "the rows were sealed again");
    assert_eq!(cluster.spread().get(&manager), None, "its shards have new owners");
    keeps_all(&cluster, "");
}

#[test]
fn a_new_incarnation_drops_the_unknown_fields_of_the_last() {
    let mut cluster = Cluster::of(&["a", "b"]);
    note(&mut cluster);
    cluster.node("b").dead = true;
    cluster.start("b");
    cluster.run(10_000);
    assert_eq!(cluster.incarnation("b"), 2);
    match &cluster.rows[&RowKey::Node("b".into())].0 {
        Row::Node(row) => {
            let without = NodeRow { extensions: Extensions::default(), ..row.clone() };
            let own = without.with_pool_roles(&[]).expect("fits");
            assert_eq!((row, row.format), (&own, 3), "only what this release knows");
        }
        _ => unreachable!("a node's row"),
    }
    keeps_all(&cluster, "b");
}
