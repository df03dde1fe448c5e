//! Assignments are rebuilt above their claims, and none is invented.

use ostraca_catalog::pool::PoolsRow;

use super::*;

#[test]
fn k36_lost_assignments_are_rebuilt_above_their_claims() {
    for (kind, damage) in [
        (ContradictionKind::UnreadableAssignments, World::damage as fn(&mut World, &RowKey)),
        (ContradictionKind::MissingAssignments, World::remove),
    ] {
        let world = repaired(&[kind], |world| damage(world, &RowKey::Assignments(1)));
        for shard in 65..=SHARDS {
            let found = world.assigned(shard);
            assert_eq!(found.epoch, Epoch(u64::from(shard) + LOST_RAISES));
            assert_eq!((found.owner, found.hand_off), (None, None));
        }
        assert_eq!(world.assigned(64), assignment(ShardId(64)), "the other row is unchanged");
    }
    let world = repaired(&[ContradictionKind::ShortAssignments], |world| {
        world.chunk(1, |row| row.assignments.truncate(30));
    });
    assert_eq!(world.assigned(94), assignment(ShardId(94)));
    assert_eq!(world.assigned(95).epoch, Epoch(95 + LOST_RAISES));
    repaired(&[ContradictionKind::UnreadableAssignments], |world| {
        world.chunk(1, |row| row.term = HIGHEST + 1);
    });
}

#[test]
fn k36_assignments_beyond_the_pools_are_removed() {
    let world = repaired(&[ContradictionKind::LongAssignments], |world| {
        world.chunk(1, |row| row.assignments.resize(40, Assignment::default()));
    });
    let Row::Assignments(row) = world.core_row(&RowKey::Assignments(1)) else { panic!("a chunk") };
    assert_eq!(row.assignments.len(), 36);
    let world = repaired(&[ContradictionKind::SurplusAssignments], |world| {
        world.damage(&RowKey::Assignments(2));
    });
    assert!(!world.rows.contains_key("shards/default/00002"));
}

#[test]
fn k36_shards_of_a_lost_pool_are_left_alone() {
    let mut world = World::new();
    world.set(&rows::binding_key("order"), &binding("orders"));
    world.chunk(1, |row| row.assignments.resize(40, Assignment::default()));
    let findings = world.check();
    let expected = [ContradictionKind::LongAssignments, ContradictionKind::UnknownPool];
    assert_eq!(kinds(&findings), expected);
    assert!(findings.changes.is_empty(), "{:?}", findings.changes);
    // A binding that does not say which pool it is of.
    world.put(&rows::binding_key("order"), Bytes::from_static(&[3, 255]));
    assert!(world.check().changes.is_empty());
    world.rows.remove(&rows::binding_key("order"));
    assert_eq!(world.check().changes.len(), 1);
}

#[test]
fn pools_that_no_row_describes_keep_their_assignments() {
    let mut world = World::new();
    world.rows.remove(&rows::pool_key());
    world.damage(&RowKey::Assignments(1));
    let findings = world.check();
    assert!(kinds(&findings).contains(&ContradictionKind::MissingRow));
    assert!(findings.changes.is_empty(), "{:?}", findings.changes);
    let mut world = World::new();
    world.set(POOLS, &PoolsRow { pools: Vec::new(), extensions: Extensions::default() });
    assert_eq!(world.check().found, []);
}

#[test]
fn k36_an_epoch_is_never_below_that_of_a_claim() {
    let world = repaired(&[ContradictionKind::EpochBehind], |world| {
        world.chunk(1, |row| row.assignments[0].epoch = Epoch(64));
    });
    assert_eq!(world.assigned(65).epoch, Epoch(65 + LOST_RAISES));
    assert_eq!(world.assigned(65).owner, None);
    let world = repaired(&[ContradictionKind::OwnerDiffers], |world| {
        world.chunk(1, |row| row.assignments[0].owner = Some(member("n2", 3)));
    });
    assert_eq!((world.assigned(65).epoch, world.assigned(65).owner), (Epoch(65), None));
    let world = repaired(&[ContradictionKind::ImplausibleEpoch], |world| {
        world.chunk(1, |row| row.assignments[0].epoch = Epoch(HIGHEST + 1));
    });
    assert_eq!(world.assigned(65).epoch, Epoch(65 + LOST_RAISES));
}

#[test]
fn k36_hand_offs_that_nobody_began_are_removed() {
    let world = repaired(&[ContradictionKind::HandOffWithoutOwner], |world| {
        world.chunk(0, |row| {
            row.assignments[0].owner = None;
            row.assignments[0].hand_off = intent(4);
        });
    });
    assert_eq!(world.assigned(1).hand_off, None);
    let kinds = [ContradictionKind::TermAhead, ContradictionKind::HandOffOfLaterTerm];
    let world = repaired(&kinds, |world| {
        world.chunk(0, |row| row.assignments[0].hand_off = intent(5));
    });
    assert_eq!(world.assigned(1).hand_off, None);
    assert_eq!(world.assigned(1).owner, Some(member("n1", 5)));
    let mut good = World::new();
    good.chunk(0, |row| row.assignments[0].hand_off = intent(4));
    assert_eq!(good.check().found, [], "a hand-off in progress");
}
