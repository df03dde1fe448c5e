//! Each node keeps a row above all its incarnations.

use super::*;

#[test]
fn k36_a_row_of_a_node_is_never_removed() {
    for status in [NodeStatus::Live, NodeStatus::Left] {
        let world = repaired(&[ContradictionKind::UnreadableNode], |world| {
            world.core(RowKey::Node("n2".into()), Row::Node(node_row(3, 43, status)));
            world.damage(&RowKey::Node("n2".into()));
        });
        let row = world.node("n2");
        // The node n1 has the highest one.
        assert_eq!((row.incarnation.counter, row.status), (5 + LOST_RAISES, NodeStatus::Dead));
    }
    let world = repaired(&[ContradictionKind::MissingNode], |world| {
        world.remove(&RowKey::Node("n1".into()));
    });
    assert_eq!(world.node("n1").incarnation.counter, 5 + LOST_RAISES);
    let world = repaired(&[ContradictionKind::UnreadableNode], |world| {
        world.damage(&RowKey::Node("n9".into()));
    });
    // Nothing names it, but it may run, and would register below its own former counter.
    let row = world.node("n9");
    assert_eq!((row.incarnation.counter, row.status), (5 + LOST_RAISES, NodeStatus::Dead));
}

#[test]
fn k36_a_node_is_raised_above_all_its_incarnations() {
    for (counter, nonce) in [(4, 44), (5, 46)] {
        let world = repaired(&[ContradictionKind::NodeBehind], |world| {
            let row = node_row(counter, nonce, NodeStatus::Live);
            world.core(RowKey::Node("n1".into()), Row::Node(row));
        });
        let row = world.node("n1");
        assert_eq!((row.incarnation.counter, row.status), (5 + LOST_RAISES, NodeStatus::Dead));
    }
    let world = repaired(&[ContradictionKind::CopiedNode], |world| {
        let copy = world.rows["nodes/n1"].value.clone();
        world.put("nodes/n9", copy);
    });
    assert_eq!([world.node("n1").status, world.node("n9").status], [NodeStatus::Dead; 2]);
    let world = repaired(&[ContradictionKind::ImplausibleLease], |world| {
        let row = NodeRow { lease: 1 << 40, ..node_row(9, 49, NodeStatus::Live) };
        world.core(RowKey::Node("n9".into()), Row::Node(row));
    });
    assert_eq!(world.node("n9").status, NodeStatus::Dead);
    repaired(&[ContradictionKind::UnreadableNode], |world| {
        let row = node_row(HIGHEST + 1, 49, NodeStatus::Live);
        world.core(RowKey::Node("n1".into()), Row::Node(row));
    });
}
