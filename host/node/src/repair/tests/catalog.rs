//! What can be derived is written anew, and all else of the catalog is only reported.

use std::time::Duration;

use ostraca_catalog::placement::{PinEntry, PinsRow, PlacementRow, placement_key};
use ostraca_core::ids::Entity;

use super::*;

#[test]
fn k36_what_can_be_derived_is_written_anew() {
    for value in [None, Some(Bytes::from_static(b"\x03\xff"))] {
        let world = repaired(&[ContradictionKind::MissingBinding], |world| {
            let key = rows::binding_key("counter");
            world.rows.remove(&key);
            value.into_iter().for_each(|value| world.put(&key, value));
        });
        let row: BindingRow =
            rows::decode(&world.rows[&rows::binding_key("counter")]).expect("a binding");
        assert_eq!(row, binding("default"));
    }
    let world = repaired(&[ContradictionKind::OtherStateStore], |world| {
        let ranges = vec![StoreRange { first_shard: 0, store_id: 78 }];
        world.set(&rows::stores_key(), &StoresRow { ranges, extensions: Extensions::default() });
    });
    let row: StoresRow = rows::decode(&world.rows[&rows::stores_key()]).expect("a row");
    assert_eq!(row.ranges[0].store_id, STORE);
    for key in [rows::stores_key(), rows::certificate_key("n1")] {
        repaired(&[ContradictionKind::UnreadableRow], |world| {
            world.put(&key, Bytes::from_static(&[3, 255]));
        });
    }
}

#[test]
fn k36_damaged_pins_and_placements_are_removed() {
    let pin = |shard: u32| PinEntry {
        shard: ShardId(shard),
        node: "n2".into(),
        at_ms: 7,
        by: "client/ops".into(),
        extensions: Extensions::default(),
    };
    let pins = |shards: &[u32]| PinsRow {
        pins: shards.iter().map(|shard| pin(*shard)).collect(),
        extensions: Extensions::default(),
    };
    let placement = |shards: &[u32]| PlacementRow {
        nodes: vec!["n1".into(), "n2".into()],
        shards: shards.to_vec(),
        ..PlacementRow::default()
    };
    let key = placement_key("default");
    let mut good = World::new();
    good.set(PINS, &pins(&[1, 2, 9]));
    good.set(&key, &placement(&[0, 1, 2]));
    assert_eq!(good.check().found, []);
    for key in [PINS, &key] {
        let world = repaired(&[ContradictionKind::UnreadableRow], |world| {
            world.put(key, Bytes::from_static(&[3, 255]));
        });
        assert!(!world.rows.contains_key(key));
    }
    for shards in [[2, 1], [2, 2]] {
        let world = repaired(&[ContradictionKind::InvalidRow], |world| {
            world.set(PINS, &pins(&shards));
        });
        assert!(!world.rows.contains_key(PINS));
    }
    let world = repaired(&[ContradictionKind::InvalidRow], |world| {
        world.set(&key, &placement(&[1, 3]));
    });
    assert!(!world.rows.contains_key(&key));
    // Without a pin, and with the required field 1001.
    let mut newer = World::new();
    newer.put(PINS, Bytes::from_static(&[3, 0, 1, 0xe9, 7, 0]));
    let error = check(&newer.snapshot()).expect_err("refused").to_string();
    assert!(error.contains("pins") && error.contains("newer release"), "{error}");
}

#[test]
fn k36_what_exists_nowhere_else_is_only_reported() {
    for key in ["cluster", SETTINGS, rows::TIME] {
        reported(ContradictionKind::MissingRow, |world| drop(world.rows.remove(key)));
    }
    for key in [SETTINGS, rows::TIME, rows::POLICY, rows::SECRET, POOLS] {
        reported(ContradictionKind::UnreadableRow, |world| {
            world.put(key, Bytes::from_static(&[3, 255]));
        });
    }
    reported(ContradictionKind::InvalidRow, |world| {
        let settings = ClusterSettings { lease: Duration::from_millis(1), ..Default::default() };
        world.set(SETTINGS, &SettingsRow::new(&settings, 1, None));
    });
    reported(ContradictionKind::BindingDiffers, |world| {
        let row = BindingRow { shard_key: ShardKeyRule::Until("/".into()), ..binding("default") };
        world.set(&rows::binding_key("counter"), &row);
    });
    reported(ContradictionKind::MissingComponent, |world| {
        world.facts.without_component.insert("counter".into());
    });
    reported(ContradictionKind::MissingType, |world| {
        world.facts.entities.push((ShardId(1), Entity::new("order", "7")));
    });
    reported(ContradictionKind::MisplacedEntity, |world| {
        let pools = Pools::one(SHARDS);
        let right = pools.get("default").expect("a pool").shard_of("alice");
        let wrong = ShardId(right.0 % SHARDS + 1);
        world.facts.entities.push((right, Entity::new("counter", "alice")));
        world.facts.entities.push((wrong, Entity::new("counter", "alice")));
    });
    reported(ContradictionKind::UnknownShard, |world| {
        world.facts.unknown_shards.push(ShardId(SHARDS + 1));
    });
    reported(ContradictionKind::InvalidRow, |world| {
        let mut row: TypeRow =
            rows::decode(&world.rows[&rows::type_key("counter")]).expect("a type");
        row.manifest = row.manifest.replace("counter\"\n", "order\"\n");
        world.set(&rows::type_key("counter"), &row);
    });
}

#[test]
fn k36_an_unfinished_copy_of_a_pool_is_to_be_repeated() {
    use ostraca_catalog::pool::{PoolFill, rows_of};
    use ostraca_core::pools::Pool;
    use ostraca_store::pool_copy::PoolCopyStage;

    let copying = |world: &mut World, stage| {
        let mut pools = Pools::one(SHARDS);
        pools.add(Pool::new("wide", 5, &pools)).expect("a pool");
        let mut row = rows_of(&pools).1;
        let fill = PoolFill { from: "default".into(), attempt: 5, runner: 0, stage };
        row.pools[0].set_fill(&fill).expect("it fits");
        world.set(POOLS, &row);
        // It is in both pools, as before the old one's state is removed.
        let entity = || Entity::new("counter", "alice");
        let in_both = pools.iter().map(|pool| pool.shard_of("alice"));
        world.facts.entities.extend(in_both.map(|shard| (shard, entity())));
    };
    for stage in [PoolCopyStage::Copying { shards: 1 }, PoolCopyStage::Finishing] {
        let mut world = World::new();
        copying(&mut world, stage);
        let found = world.check().found;
        let unfinished: Vec<_> =
            found.iter().filter(|it| it.kind == ContradictionKind::UnfinishedCopy).collect();
        assert_eq!(unfinished.len(), 1, "{found:#?}");
        assert!(unfinished[0].remedy.text().contains("`ostraca pool copy`"), "{unfinished:?}");
        assert!(found.iter().all(|it| it.kind != ContradictionKind::MisplacedEntity), "{found:#?}");
    }
    let mut world = World::new();
    copying(&mut world, PoolCopyStage::Done);
    let found = world.check().found;
    let is_of_copy = |kind| {
        matches!(kind, ContradictionKind::UnfinishedCopy | ContradictionKind::MisplacedEntity)
    };
    assert!(!found.iter().any(|it| is_of_copy(it.kind)), "{found:#?}");
}
