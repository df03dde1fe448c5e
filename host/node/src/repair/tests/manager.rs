//! The term is above all others, and its holder has ended.

use super::*;

#[test]
fn k36_the_term_rises_above_all_others() {
    let world = repaired(&[ContradictionKind::UnreadableManager], |world| {
        world.damage(&RowKey::Manager);
    });
    assert_eq!(world.term(), 4 + LOST_RAISES);
    let world = repaired(&[ContradictionKind::MissingManager], |world| {
        world.remove(&RowKey::Manager);
    });
    assert_eq!(world.term(), 4 + LOST_RAISES);
    for damage in
        [(|world: &mut World| world.manager(3, member("n1", 5))) as fn(&mut World), |world| {
            world.chunk(1, |row| row.term = 5)
        }]
    {
        let world = repaired(&[ContradictionKind::TermAhead], damage);
        assert!(world.term() > 5, "{}", world.term());
    }
    repaired(&[ContradictionKind::UnreadableManager], |world| {
        world.manager(HIGHEST + 1, member("n1", 5));
    });
}

#[test]
fn k36_a_lost_leadership_has_a_holder_that_has_ended() {
    for keep_nodes in [true, false] {
        let mut world = World::new();
        world.remove(&RowKey::Manager);
        for chunk in [0, 1] {
            world.chunk(chunk, |row| row.assignments.iter_mut().for_each(|it| it.owner = None));
        }
        if !keep_nodes {
            world.remove(&RowKey::Node("n1".into()));
            world.remove(&RowKey::Node("n2".into()));
        }
        let findings = world.check();
        world.apply(findings);
        assert_eq!(world.check().found, []);
        let Row::Manager(row) = world.core_row(&RowKey::Manager) else { panic!("a manager") };
        let (holder, node) = (row.holder.incarnation, world.node(&row.holder.node.0));
        let has_ended = match node.incarnation == holder {
            true => node.status != NodeStatus::Live,
            false => node.incarnation.counter > holder.counter,
        };
        assert!(has_ended, "{row:?} {node:?}");
    }
}
