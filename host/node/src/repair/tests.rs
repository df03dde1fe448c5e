//! Each contradiction is found by its name and fixed, and a second check finds nothing.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use ostraca_catalog::bootstrap;
use ostraca_catalog::placement::{PinEntry, PinsRow, PlacementRow, placement_key};
use ostraca_catalog::pool::PoolsRow;
use ostraca_catalog::rows::{
    BindingRow, ClusterRow, PINS, POOLS, PoolRow, RowValue, SETTINGS, SettingsRow, StoreRange,
    StoresRow, TimeRow,
};
use ostraca_codes::codes;
use ostraca_config::config::ClusterSettings;
use ostraca_core::extensions::Extensions;
use ostraca_core::hash::ShardKeyRule;
use ostraca_core::ids::{ClusterId, Entity, Epoch, Incarnation};
use ostraca_core::records::Claim;
use ostraca_core::rows::{
    Assignment, AssignmentsRow, HandOffId, HandOffIntent, ManagerRow, Member, NodeRow, NodeStatus,
    Roles, Row, RowKey,
};
use ostraca_store::{ClusterStore, CompareAndSet, MemoryStore};

use super::snapshot::{HIGHEST, LOST_RAISES};
use super::*;

const STORE: u128 = 77;
const SHARDS: u32 = 100;

/// The rows of a cluster that nothing is wrong with, after a `kill -9` of all its nodes.
struct World {
    rows: BTreeMap<String, StoredRow>,
    facts: StateFacts,
    revision: u64,
}

fn member(node: &str, counter: u64) -> Member {
    Member { node: node.into(), incarnation: Incarnation { counter, nonce: counter + 40 } }
}

fn node_row(counter: u64, nonce: u64, status: NodeStatus) -> NodeRow {
    NodeRow {
        incarnation: Incarnation { counter, nonce },
        status,
        roles: Roles::ALL,
        lease: 3_000,
        ..nodes::ended_row(counter, status)
    }
}

fn claim(shard: ShardId, epoch: u64, owner: Member) -> Claim {
    let path = ShardPath { namespace: "default".into(), pool: "default".into(), shard };
    let (epoch, extensions) = (Epoch(epoch), Extensions::default());
    Claim { cluster: ClusterId(1), shard: path, epoch, owner, number: 1, extensions }
}

impl World {
    fn new() -> Self {
        let mut world = Self { rows: BTreeMap::new(), facts: StateFacts::default(), revision: 0 };
        world.facts.node = "n1".into();
        world.facts.embedded = Some(STORE);
        world.facts.state_stores.insert(STORE);
        world.set("cluster", &ClusterRow::new(3));
        let pool = PoolRow {
            hash: "murmur3_x86_32".into(),
            shards: SHARDS,
            extensions: Extensions::default(),
        };
        world.set(&rows::pool_key(), &pool);
        world.set(SETTINGS, &SettingsRow::new(&ClusterSettings::default(), 1, None));
        world.set(rows::TIME, &TimeRow::default());
        let ranges = vec![StoreRange { first_shard: 0, store_id: STORE }];
        world.set(&rows::stores_key(), &StoresRow { ranges, extensions: Extensions::default() });
        let manifest = "type = \"counter\"\ncomponent = \"counter.wasm\"\n";
        let counter = TypeRow {
            revision: 1,
            manifest: manifest.into(),
            component_digest: [1; 32],
            component_size: 9,
            methods: Vec::new(),
            extensions: Extensions::default(),
        };
        world.set(&rows::type_key("counter"), &counter);
        world.set(&rows::binding_key("counter"), &binding("default"));
        world.core(RowKey::Node("n1".into()), Row::Node(node_row(5, 45, NodeStatus::Live)));
        world.core(RowKey::Node("n2".into()), Row::Node(node_row(3, 43, NodeStatus::Dead)));
        world.manager(4, member("n1", 5));
        for chunk in [0, 1] {
            world.chunk(chunk, |_| {});
        }
        for shard in (1..=SHARDS).map(ShardId) {
            let owner = assignment(shard).owner.expect("an owner");
            let claimed = claim(shard, u64::from(shard.0), owner);
            world.facts.claims.insert(shard, claimed);
        }
        world
    }

    fn put(&mut self, key: &str, value: Bytes) {
        self.revision += 1;
        let row = StoredRow { key: key.into(), revision: self.revision, value };
        self.rows.insert(key.into(), row);
    }

    fn set<T: RowValue>(&mut self, key: &str, row: &T) {
        self.put(key, rows::encode_value(row).expect("encoded"));
    }

    fn core(&mut self, key: RowKey, row: Row) {
        self.put(&rows::key_text(&key), rows::encode_row(&row).expect("encoded"));
    }

    fn manager(&mut self, term: u64, holder: Member) {
        let row = ManagerRow { term, holder, extensions: Extensions::default() };
        self.core(RowKey::Manager, Row::Manager(row));
    }

    /// Writes a chunk as it should be, with a change.
    fn chunk(&mut self, chunk: u32, change: impl FnOnce(&mut AssignmentsRow)) {
        let shards = (chunk * 64 + 1..=(chunk * 64 + 64).min(SHARDS)).map(ShardId);
        let assignments = shards.map(assignment).collect();
        let mut row = AssignmentsRow { term: 4, assignments, extensions: Extensions::default() };
        change(&mut row);
        self.core(RowKey::Assignments(chunk), Row::Assignments(row));
    }

    fn check(&self) -> Findings {
        check(&self.snapshot()).expect("rows of this release")
    }

    fn snapshot(&self) -> Snapshot {
        let stored = self.rows.values().cloned().collect();
        Snapshot::new(stored, self.facts.clone()).expect("rows of this release")
    }

    fn apply(&mut self, findings: Findings) {
        for CompareAndSet { key, expected, value } in findings.changes.into_values() {
            assert_eq!(self.rows.get(&key).map(|row| row.revision), expected, "{key}");
            match value {
                Some(value) => self.put(&key, value),
                None => drop(self.rows.remove(&key)),
            }
        }
    }

    fn core_row(&self, key: &RowKey) -> Row {
        let stored = &self.rows[&rows::key_text(key)];
        rows::decode_row(stored).expect("decodes").expect("a row of the core").1
    }

    fn assigned(&self, shard: u32) -> Assignment {
        let shard = ShardId(shard);
        let Row::Assignments(row) = self.core_row(&RowKey::for_shard(shard)) else {
            panic!("assignments")
        };
        row.assignments[ostraca_core::rows::index_in_chunk(shard)].clone()
    }

    fn node(&self, name: &str) -> NodeRow {
        let Row::Node(row) = self.core_row(&RowKey::Node(name.into())) else { panic!("a node") };
        row
    }

    fn term(&self) -> u64 {
        let Row::Manager(row) = self.core_row(&RowKey::Manager) else { panic!("a manager") };
        row.term
    }

    fn remove(&mut self, key: &RowKey) {
        self.rows.remove(&rows::key_text(key)).expect("a row");
    }

    fn damage(&mut self, key: &RowKey) {
        self.put(&rows::key_text(key), Bytes::from_static(&[3, 255]));
    }
}

fn binding(pool: &str) -> BindingRow {
    BindingRow {
        pool: pool.into(),
        shard_key: ShardKeyRule::Id,
        hash: "murmur3_x86_32".into(),
        extensions: Extensions::default(),
    }
}

/// Shards of a healthy cluster have their own number as epoch; the node n2 had some before it died.
fn assignment(shard: ShardId) -> Assignment {
    let owner = if shard.0.is_multiple_of(4) { member("n2", 3) } else { member("n1", 5) };
    Assignment {
        epoch: Epoch(shard.0.into()),
        owner: Some(owner),
        hand_off: None,
        extensions: Extensions::default(),
    }
}

fn intent(term: u64) -> Option<HandOffIntent> {
    Some(HandOffIntent { id: HandOffId { term, number: 1 }, target: Some("n2".into()) })
}

fn kinds(findings: &Findings) -> Vec<ContradictionKind> {
    let mut kinds: Vec<_> = findings.found.iter().map(|it| it.kind).collect();
    kinds.sort();
    kinds.dedup();
    kinds
}

/// Damages a good cluster, expects these kinds, fixes them, and expects none.
fn repaired(expected: &[ContradictionKind], damage: impl FnOnce(&mut World)) -> World {
    let mut world = World::new();
    damage(&mut world);
    let findings = world.check();
    assert_eq!(kinds(&findings), expected, "{:#?}", findings.found);
    for it in &findings.found {
        assert!(matches!(it.remedy, Remedy::Fix(_)), "{it:?}");
        assert!(findings.changes.contains_key(&it.key), "{it:?}");
    }
    world.apply(findings);
    let left = world.check();
    assert!(left.found.is_empty() && left.changes.is_empty(), "{left:#?}");
    world
}

/// Damages a good cluster, and expects this kind for an operator to fix.
fn reported(expected: ContradictionKind, damage: impl FnOnce(&mut World)) {
    let mut world = World::new();
    damage(&mut world);
    let findings = world.check();
    assert_eq!(kinds(&findings), [expected], "{:#?}", findings.found);
    assert!(findings.found.iter().all(|it| matches!(it.remedy, Remedy::Manual(_))));
    assert!(findings.changes.is_empty(), "{:?}", findings.changes);
}

#[test]
fn k36_a_good_cluster_has_no_contradictions() {
    let findings = World::new().check();
    assert!(findings.found.is_empty() && findings.changes.is_empty(), "{findings:#?}");
    let mut new = World::new();
    new.facts.claims.clear();
    for key in [RowKey::Assignments(0), RowKey::Assignments(1), RowKey::Manager] {
        new.remove(&key);
    }
    assert_eq!(new.check().found, [], "a cluster that never ran");
}

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
fn k36_an_unknown_key_is_left_alone() {
    let mut world = World::new();
    for key in ["from-a-later-release", "shards/default/7", "nodes/a/b"] {
        world.put(key, Bytes::from_static(b"any"));
    }
    let findings = world.check();
    assert_eq!(kinds(&findings), [ContradictionKind::UnknownKey]);
    assert!(findings.changes.is_empty());
    assert!(findings.found.iter().all(|it| matches!(it.remedy, Remedy::Ignore(_))));
}

#[test]
fn k36_rows_of_a_newer_release_are_refused() {
    let refused = |edit: fn(&mut World)| {
        let mut world = World::new();
        edit(&mut world);
        let stored = world.rows.into_values().collect();
        Snapshot::new(stored, world.facts).expect_err("refused").to_string()
    };
    // The required field 1001 of a manager's row.
    let required = refused(|world| {
        world.put("manager", Bytes::from_static(&[3, 4, 2, b'n', b'1', 5, 45, 1, 0xe9, 7, 0]));
    });
    assert!(required.contains("manager") && required.contains("newer release"), "{required}");
    let format = refused(|world| world.set("cluster", &ClusterRow::new(200)));
    assert!(format.contains("newer"), "{format}");
    // Without the row of the cluster, any format may be a newer one.
    let unknown = refused(|world| {
        world.rows.remove("cluster");
        world.put("manager", Bytes::from_static(&[200, 4]));
    });
    assert!(unknown.contains("newer release"), "{unknown}");
    // No node of this cluster writes it.
    repaired(&[ContradictionKind::UnreadableManager], |world| {
        world.put("manager", Bytes::from_static(&[200, 4]));
    });
}

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

/// Both stores in one, which is not in a node.
async fn outside(lease: Duration) -> (MemoryStore, impl Fn() -> StoppedStores) {
    let store = MemoryStore::new(STORE, ClusterId(1), "test");
    let margin = Duration::from_millis(10);
    let settings = ClusterSettings { lease, lease_margin: margin, ..Default::default() };
    bootstrap::initialize_cluster(&store, STORE, SHARDS, &settings).await.expect("a cluster");
    let of = store.clone();
    let stores = move || StoppedStores {
        rows: Arc::new(of.clone()),
        state: Arc::new(of.clone()),
        identity: ClusterStore::identity(&of),
        state_stores: [STORE].into(),
        is_embedded: false,
        place: "memory".into(),
    };
    (store, stores)
}

async fn put(store: &MemoryStore, key: &str, value: Bytes) {
    let expected = store.get(key).await.expect("read").map(|row| row.revision);
    let cas = CompareAndSet { key: key.into(), expected, value: Some(value) };
    store.compare_and_set(cas).await.expect("written");
}

fn live(renewals: u64) -> Bytes {
    let row = NodeRow { renewals, lease: 100, ..node_row(5, 45, NodeStatus::Live) };
    rows::encode_row(&Row::Node(row)).expect("encoded")
}

#[test]
fn k36_without_settings_the_longest_leases_are_awaited() {
    let time = |world: &World, stopped: &str| {
        watch::time_to_watch(&world.snapshot(), Some(&stopped.into())).map(|time| time.as_secs())
    };
    let hour = 3_600;
    let mut world = World::new();
    assert_eq!((time(&world, "n1"), time(&world, "n2")), (None, Some(3)));
    for damage in
        [(|world: &mut World| drop(world.rows.remove(SETTINGS))) as fn(&mut World), |world| {
            world.put(SETTINGS, Bytes::from_static(&[3, 255]))
        }]
    {
        damage(&mut world);
        assert_eq!((time(&world, "n1"), time(&world, "n2")), (None, Some(3 + hour)));
    }
    let row = NodeRow { lease: 90_000, ..node_row(3, 43, NodeStatus::Dead) };
    world.core(RowKey::Node("n2".into()), Row::Node(row));
    assert_eq!(time(&world, "n9"), Some(90 + hour), "the setting may have changed");
    world.damage(&RowKey::Node("n2".into()));
    assert_eq!(time(&world, "n1"), Some(hour + hour), "its lease is lost");
    world.remove(&RowKey::Node("n2".into()));
    assert_eq!(time(&world, "n1"), Some(hour + hour), "its lease is lost");
}

#[tokio::test]
async fn k36_a_repair_waits_for_leases_and_refuses_live_nodes() {
    let lease = Duration::from_millis(600);
    let (store, stores) = outside(lease).await;
    put(&store, "nodes/n1", live(0)).await;
    put(&store, "manager", Bytes::from_static(&[3, 255])).await;
    put(&store, "shards/default/00000", Bytes::from_static(&[3, 255])).await;
    let before = store.list("").await.expect("rows").0;
    let found =
        repair("n1", stores(), false, Instant::now(), &|_| panic!("a check waits for nobody"))
            .await
            .expect("checked");
    assert_eq!((found.remaining.len(), found.changed_rows), (2, 0));
    assert_eq!(store.list("").await.expect("rows").0, before, "a check writes nothing");
    let renewing = async {
        for renewals in 1..4 {
            tokio::time::sleep(Duration::from_millis(100)).await;
            put(&store, "nodes/n1", live(renewals)).await;
        }
    };
    let began = Instant::now();
    let (refused, ()) = tokio::join!(repair("n1", stores(), true, began, &|_| {}), renewing);
    let refused = refused.expect_err("the node lives");
    assert_eq!(refused.code(), codes::STORE_IN_USE);
    assert!(refused.to_string().contains("n1"), "{refused}");
    let began = Instant::now();
    let waits = Mutex::new(Vec::new());
    let on_wait = |wait| waits.lock().expect("no panic").push(wait);
    let done = repair("n1", stores(), true, began, &on_wait).await.expect("repaired");
    let waits = waits.into_inner().expect("no panic");
    assert!(waits.len() == 1 && waits[0] > lease / 2, "{waits:?}");
    assert_eq!((done.remaining.len(), done.changed_rows), (0, 2));
    assert!(began.elapsed() >= lease, "{:?}", began.elapsed());
}

#[tokio::test]
async fn k36_a_repair_that_nodes_interrupt_says_how_far_it_came() {
    let (store, stores) = outside(Duration::from_millis(100)).await;
    for key in ["manager", "shards/default/00000"] {
        put(&store, key, Bytes::from_static(&[3, 255])).await;
    }
    let findings = check(&read("n1", &stores()).await.expect("rows")).expect("checked");
    let planned = findings.changes.len();
    put(&store, "shards/default/00000", Bytes::from_static(&[3, 254])).await;
    let error = write(&stores(), &findings).await.expect_err("another node wrote it");
    assert_eq!(error.code(), codes::ROW_CONFLICT);
    let expected = format!("{} of {planned} rows were written", planned - 1);
    assert!(error.to_string().contains(&expected), "{error}");
    let help = error.help_text().expect("help");
    assert!(help.contains("a node is running: stop all nodes"), "{help}");
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
