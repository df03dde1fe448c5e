//! Each contradiction is found by its name and fixed, and a second check finds nothing.

use std::collections::BTreeMap;

use bytes::Bytes;
use ostraca_catalog::rows::{
    BindingRow, ClusterRow, PINS, POOLS, PoolRow, RowValue, SETTINGS, SettingsRow, StoreRange,
    StoresRow, TimeRow,
};
use ostraca_config::config::ClusterSettings;
use ostraca_core::assign::BuiltinStrategy;
use ostraca_core::extensions::Extensions;
use ostraca_core::hash::ShardKeyRule;
use ostraca_core::ids::{ClusterId, Epoch, Incarnation};
use ostraca_core::pools::Pool;
use ostraca_core::records::Claim;
use ostraca_core::rows::{
    Assignment, AssignmentsRow, HandOffId, HandOffIntent, ManagerRow, Member, NodeRow, NodeStatus,
    NumbersRow, Roles, Row, RowKey, ShardLease,
};
use ostraca_store::CompareAndSet;

use super::snapshot::{HIGHEST, LOST_RAISES};
use super::*;

mod catalog;
mod chunks;
mod manager;
mod nodes;
mod numbers;
mod reset;
mod snapshot;
mod watch;

const STORE: u128 = 77;
const SHARDS: u32 = 100;
/// Those of the pool `live`, if it is added.
const STATELESS_SHARDS: u32 = 20;

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
        ..super::nodes::ended_row(counter, status)
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

    /// Adds a pool whose hosts divide its shards among themselves.
    fn add_stateless_pool(&mut self) {
        let mut pools = Pools::one(SHARDS);
        let strategy = Some(BuiltinStrategy::Stateless);
        let live = Pool { strategy, ..Pool::new("live", STATELESS_SHARDS, &pools) };
        pools.add(live).expect("a pool");
        self.set(POOLS, &ostraca_catalog::pool::rows_of(&pools).1);
        let shards = (SHARDS + 1..=SHARDS + STATELESS_SHARDS).map(ShardId);
        let leased = |shard| {
            let mut leased = assignment(shard);
            let lease = ShardLease { renewals: 9, lease: 3_000 };
            leased.set_lease(Some(lease)).expect("it fits");
            leased
        };
        self.chunk(1, |row| row.assignments.extend(shards.clone().map(leased)));
        for shard in shards {
            let owner = assignment(shard).owner.expect("an owner");
            self.facts.claims.insert(shard, claim(shard, u64::from(shard.0), owner));
        }
        self.numbers(|_| {});
    }

    /// Writes the numbers of the hosts as they should be, with a change.
    fn numbers(&mut self, change: impl FnOnce(&mut NumbersRow)) {
        let mut row = NumbersRow::default();
        row.add(member("n1", 5));
        row.add(member("n2", 3));
        change(&mut row);
        self.core(RowKey::Numbers("live".into()), Row::Numbers(row));
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
