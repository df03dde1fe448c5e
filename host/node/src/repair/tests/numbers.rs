//! The hosts of a pool without a manager take their numbers again if the row is damaged, and after a reset.

use super::*;
use crate::repair::reset;

const KEY: &str = "numbers/live";

#[test]
fn k36_a_good_stateless_pool_has_no_contradictions() {
    let mut world = World::new();
    world.add_stateless_pool();
    assert_eq!(world.check().found, []);
    // The host n2 has a number, and restarted or left since.
    for (counter, status) in [(4, NodeStatus::Live), (3, NodeStatus::Left)] {
        let row = node_row(counter, counter + 40, status);
        world.core(RowKey::Node("n2".into()), Row::Node(row));
        assert_eq!(world.check().found, []);
    }
}

#[test]
fn k36_damaged_numbers_are_removed() {
    let expect_removal = |kind, damage: &dyn Fn(&mut World)| {
        let world = repaired(&[kind], |world| {
            world.add_stateless_pool();
            damage(world);
        });
        assert!(!world.rows.contains_key(KEY));
    };
    expect_removal(ContradictionKind::UnreadableRow, &|world| {
        world.damage(&RowKey::Numbers("live".into()));
    });
    let changes: [fn(&mut NumbersRow); 6] = [
        |row| row.holders.swap(0, 1),
        |row| row.holders[1].number = 0,
        |row| row.holders[1].member = row.holders[0].member.clone(),
        |row| row.holders[1].member.node = "n9".into(),
        |row| row.holders[1].member.incarnation.counter = 4,
        |row| row.holders[1].member.incarnation.nonce = 0,
    ];
    for change in changes {
        expect_removal(ContradictionKind::InvalidRow, &|world| world.numbers(change));
    }
}

#[test]
fn k36_numbers_of_a_newer_release_are_refused() {
    let mut world = World::new();
    world.add_stateless_pool();
    // Without a holder, and with the required field 1001.
    world.put(KEY, Bytes::from_static(&[3, 0, 1, 0xe9, 7, 0]));
    let stored = world.rows.into_values().collect();
    let error = Snapshot::new(stored, world.facts).expect_err("refused").to_string();
    assert!(error.contains(KEY) && error.contains("newer release"), "{error}");
}

#[test]
fn k36_a_reset_removes_the_numbers_of_hosts() {
    for is_damaged in [false, true] {
        let mut world = World::new();
        world.add_stateless_pool();
        if is_damaged {
            world.damage(&RowKey::Numbers("live".into()));
        }
        let snapshot = world.snapshot();
        let pools = snapshot.pools.clone().expect("pools");
        let (plan, removed) = reset::plan(&snapshot, &pools).expect("a plan");
        assert_eq!(removed.owned_shards, (SHARDS + STATELESS_SHARDS) as usize);
        world.apply(plan);
        assert!(!world.rows.contains_key(KEY));
        let last = SHARDS + STATELESS_SHARDS;
        let epoch = Epoch(last.into());
        assert_eq!(world.assigned(last), Assignment { epoch, ..Assignment::default() });
        assert_eq!(world.check().found, []);
    }
}
