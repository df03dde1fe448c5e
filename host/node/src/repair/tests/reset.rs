//! A reset keeps the numbers, and nothing else of the sharding.

use super::*;
use crate::repair::reset;

#[test]
fn k36_a_reset_keeps_only_the_numbers() {
    let mut world = World::new();
    world.chunk(1, |row| {
        row.assignments[0].hand_off = intent(4);
        row.assignments[1].epoch = Epoch(60);
        row.assignments[2].epoch = Epoch(200);
    });
    world.damage(&RowKey::Node("n9".into()));
    let before = world.rows.clone();
    let snapshot = world.snapshot();
    let pools = snapshot.pools.clone().expect("pools");
    let (plan, removed) = reset::plan(&snapshot, &pools).expect("a plan");
    assert_eq!(
        (removed.nodes, removed.owned_shards, removed.hand_offs),
        (vec!["n1".into()], 100, 1)
    );
    world.apply(plan);
    assert_eq!(world.check().found, []);
    for (name, counter) in [("n1", 6), ("n2", 4)] {
        let row = world.node(name);
        assert_eq!((row.incarnation.counter, row.status), (counter, NodeStatus::Left));
    }
    let lost = world.node("n9");
    assert_eq!((lost.incarnation.counter, lost.status), (5 + LOST_RAISES, NodeStatus::Left));
    assert!(world.term() > 4);
    for shard in 1..=SHARDS {
        let found = world.assigned(shard);
        let epoch = match shard {
            // It was behind its claim.
            66 => 66 + LOST_RAISES,
            67 => 200,
            _ => shard.into(),
        };
        assert_eq!(found, Assignment { epoch: Epoch(epoch), ..Assignment::default() });
    }
    let is_sharding = |key: &str| rows::parse_key(key).is_some();
    for (key, row) in before.iter().filter(|(key, _)| !is_sharding(key)) {
        assert_eq!(world.rows.get(key), Some(row));
    }
    let again = reset::plan(&world.snapshot(), &pools).expect("a plan").1;
    assert_eq!((again.nodes.len(), again.owned_shards, again.hand_offs), (0, 0, 0));
}

#[test]
fn k36_a_reset_replaces_lost_epochs_as_a_repair_does() {
    let reset = |damage: fn(&mut World)| {
        let mut world = World::new();
        damage(&mut world);
        let snapshot = world.snapshot();
        let pools = snapshot.pools.clone().expect("pools");
        let (plan, _) = reset::plan(&snapshot, &pools).expect("a plan");
        world.apply(plan);
        assert_eq!(world.check().found, []);
        [65, 94, 95, 100].map(|shard| world.assigned(shard).epoch.0)
    };
    let raised = |epoch: u64| epoch + LOST_RAISES;
    let lost = [65, 94, 95, 100].map(raised);
    assert_eq!(reset(|_| {}), [65, 94, 95, 100]);
    assert_eq!(
        reset(|world| world.chunk(1, |row| row.assignments[0].epoch = Epoch(HIGHEST + 1))),
        [raised(65), 94, 95, 100]
    );
    assert_eq!(
        reset(|world| world.chunk(1, |row| row.assignments.truncate(30))),
        [65, 94, raised(95), raised(100)]
    );
    assert_eq!(
        reset(|world| world.chunk(1, |row| row.assignments.resize(40, Assignment::default()))),
        [65, 94, 95, 100]
    );
    assert_eq!(reset(|world| world.damage(&RowKey::Assignments(1))), lost);
    assert_eq!(reset(|world| world.remove(&RowKey::Assignments(1))), lost);
}

#[test]
fn k36_a_reset_without_all_pools_is_refused() {
    let mut world = World::new();
    world.set(&rows::binding_key("order"), &binding("orders"));
    // The assignments of the lost pool's shards.
    world.core(
        RowKey::Assignments(2),
        Row::Assignments(AssignmentsRow {
            term: 4,
            assignments: vec![Assignment::default(); 64],
            extensions: Extensions::default(),
        }),
    );
    let snapshot = world.snapshot();
    let pools = snapshot.pools.clone().expect("pools");
    let error = reset::plan(&snapshot, &pools).expect_err("refused").to_string();
    assert!(error.contains("`pools`") && error.contains("repair"), "{error}");
}
