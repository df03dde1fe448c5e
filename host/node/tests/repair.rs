//! Damaged rows: after a repair, a cluster works or is refused by name, and no record of an entity has changed (K36).
//!
//! `SEED=7` repeats one damage, and `SEEDS=1000` tries more of them.

mod common;
mod damage;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, Instant};

use common::{COUNTER, counter};
use damage::{Damage, Random, cluster_of};
use futures::executor::block_on;
use ostraca_catalog::placement::{PinEntry, PinsRow, PlacementRow, placement_key};
use ostraca_catalog::rows;
use ostraca_client::{CallOptions, Client, MessageKind, NewPool};
use ostraca_codes::codes;
use ostraca_core::assign::BuiltinStrategy;
use ostraca_core::codec;
use ostraca_core::ids::{Entity, Incarnation, ShardId};
use ostraca_core::pools::{Pool, Pools};
use ostraca_core::records::Claim;
use ostraca_core::rows::{Member, NodeRow, NodeStatus, NumbersRow, Roles, Row, RowKey};
use ostraca_node::config::ClusterSettings;
use ostraca_node::transfer::{Item, StoreContents};
use ostraca_node::{
    Config, InitOptions, InitializedCluster, NodeError, RepairReport, init, repair_rows,
    reset_sharding,
};
use ostraca_store::{ClusterStore, CompareAndSet, StoredRow};
use ostraca_store_sled::{Options, SledCopySource, SledStore};

const GRACE: Duration = Duration::from_secs(20);
const SHARDS: u32 = 100;
/// A pool whose hosts divide its shards among themselves, its shards, and the manifest of a type in it.
const STATELESS: (&str, u32) = ("live", 20);
const GAUGE: &str = "type = \"gauge\"\ncomponent = \"counter.wasm\"\npool = \"live\"\n";
const ENTITIES: u64 = 12;
const SEEDS: u64 = 200;

/// A stopped cluster with state, and rows of earlier times.
struct Stopped {
    dir: tempfile::TempDir,
    cluster: InitializedCluster,
    earlier: Vec<StoredRow>,
}

fn entities() -> impl Iterator<Item = (Entity, u64)> {
    let type_of = |n: u64| if n.is_multiple_of(3) { "gauge" } else { "counter" };
    (0..ENTITIES).map(move |n| (Entity::new(type_of(n), format!("c{n}")), 100 + n))
}

fn pools() -> Pools {
    let mut pools = Pools::one(SHARDS);
    let (name, shards) = STATELESS;
    let strategy = Some(BuiltinStrategy::Stateless);
    let stateless = Pool { strategy, ..Pool::new(name, shards, &pools) };
    pools.add(stateless).expect("a pool");
    pools
}

fn pin(shard: u32) -> PinEntry {
    PinEntry {
        shard: ShardId(shard),
        node: "n1".into(),
        at_ms: 7,
        by: "client/ops".into(),
        extensions: Default::default(),
    }
}

impl Stopped {
    async fn prepare() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let home = dir.path().join("n1");
        let options = InitOptions {
            cluster_name: "test".into(),
            node: "n1".into(),
            listen: "127.0.0.1:0".parse().expect("an address"),
            shards: SHARDS,
            settings: ClusterSettings {
                lease: Duration::from_millis(500),
                lease_margin: Duration::from_millis(100),
                ..ClusterSettings::default()
            },
            postgres: None,
            rows: None,
        };
        let cluster = init(&home, &options).expect("a new node");
        let mut earlier = Vec::new();
        for run in 0..2 {
            let node = common::start(&home).await;
            let client = common::client(&node, &cluster).await;
            if run == 0 {
                let (name, shards) = STATELESS;
                let strategy = BuiltinStrategy::Stateless.name().into();
                let pool = NewPool { name: name.into(), shards, strategy, ..NewPool::default() };
                client.pools(Some(pool)).await.expect("created");
                for manifest in [COUNTER, GAUGE] {
                    client.deploy(manifest, counter(), None).await.expect("deployed");
                }
                for (entity, value) in entities() {
                    let added = client.session().command(&entity, "add", value.to_string()).await;
                    added.expect("added");
                }
            }
            serves_all(&client).await;
            client.close().await;
            node.stop(GRACE).await;
            if run == 0 {
                earlier = with_store(&home, all_rows);
            }
        }
        // Another node that died.
        let died = Incarnation { counter: 3, nonce: 33 };
        let other = NodeRow {
            renewals: 9,
            status: NodeStatus::Dead,
            roles: Roles::default(),
            addresses: vec!["127.0.0.1:1".into()],
            lease: 500,
            ..NodeRow::for_tests(died)
        };
        let value = rows::encode_row(&Row::Node(other)).expect("encoded");
        with_store(&home, |store| {
            put(store, "nodes/n2", Some(value));
            let pins = [3, 70].map(pin).to_vec();
            let pins = PinsRow { pins, extensions: Default::default() };
            put(store, rows::PINS, Some(rows::encode_value(&pins).expect("encoded")));
            let placement = PlacementRow {
                count: 2,
                nodes: vec!["n1".into(), "n2".into()],
                shards: (0..SHARDS).map(|shard| shard % 3).collect(),
                at_ms: 7,
                by: "client/ops".into(),
                extensions: Default::default(),
            };
            let value = rows::encode_value(&placement).expect("encoded");
            put(store, &placement_key("default"), Some(value));
            let mut numbers = NumbersRow::default();
            numbers.add(Member { node: "n2".into(), incarnation: died });
            let key = rows::key_text(&RowKey::Numbers(STATELESS.0.into()));
            put(store, &key, Some(rows::encode_value(&numbers).expect("encoded")));
        });
        Self { dir, cluster, earlier }
    }

    fn home(&self) -> std::path::PathBuf {
        self.dir.path().join("n1")
    }
}

/// Opens the store of a stopped node.
fn with_store<T>(home: &Path, work: impl FnOnce(&SledStore) -> T) -> T {
    let config = common::config(home);
    let store = SledStore::open(&config.store_dir(), &config.store_options()).expect("the store");
    work(&store)
}

fn all_rows(store: &SledStore) -> Vec<StoredRow> {
    block_on(store.list("")).expect("rows").0
}

fn put(store: &SledStore, key: &str, value: Option<bytes::Bytes>) {
    let expected = block_on(store.get(key)).expect("read").map(|row| row.revision);
    if expected.is_none() && value.is_none() {
        return;
    }
    let cas = CompareAndSet { key: key.into(), expected, value };
    block_on(store.compare_and_set(cas)).expect("written");
}

/// All that the store has besides rows: claims, entities and components.
fn state(home: &Path) -> (BTreeSet<Vec<u8>>, BTreeMap<ShardId, Claim>) {
    let config = common::config(home);
    let options = Options { witness: None, ..config.store_options() };
    let mut source = SledCopySource::open(&config.store_dir(), &options).expect("the store");
    let (mut items, mut claims, mut cursor) = (BTreeSet::new(), BTreeMap::new(), None);
    loop {
        let page = block_on(source.page(cursor)).expect("a page");
        for item in page.items {
            let encoded = match item {
                Item::Row { .. } => continue,
                // Its sequence follows the store's, which rows raise.
                Item::Shard { claim, floor, .. } => {
                    claims.insert(claim.shard.shard, claim.clone());
                    codec::encode(&(claim, floor))
                }
                item => codec::encode(&item),
            };
            items.insert(encoded.expect("encoded"));
        }
        cursor = page.next_cursor;
        if cursor.is_none() {
            return (items, claims);
        }
    }
}

async fn serves_all(client: &Client) {
    let options = CallOptions {
        kind: MessageKind::Query,
        timeout: Duration::from_secs(60),
        ..CallOptions::default()
    };
    for (entity, value) in entities() {
        let got = client.session().send(&entity, "get", "", &options).await;
        let got = got.unwrap_or_else(|error| panic!("{entity}: {error:?}"));
        assert_eq!(&got.body[..], value.to_string().as_bytes(), "{entity}");
    }
}

/// Starts the real node, and reads every entity.
async fn starts_and_serves(home: &Path, cluster: &InitializedCluster) {
    let node = common::start(home).await;
    let client = common::client(&node, cluster).await;
    serves_all(&client).await;
    client.close().await;
    node.stop(GRACE).await;
}

/// An operator's drain is a single bit, so damage can set it unseen; `ostraca drain --undo` ends it.
fn undo_drain(home: &Path) {
    with_store(home, |store| {
        for stored in block_on(store.list("nodes/")).expect("rows").0 {
            if let Ok(Some((_, Row::Node(row), _))) = rows::decode_row(&stored)
                && row.draining
            {
                let row = Row::Node(NodeRow { draining: false, ..row });
                put(store, &stored.key, Some(rows::encode_row(&row).expect("encoded")));
            }
        }
    });
}

/// Whether a repair leaves nothing to an operator. Panics unless it says clearly what is left.
fn is_repaired(seed: u64, done: &Result<RepairReport, NodeError>) -> bool {
    match done {
        Ok(report) => {
            for it in &report.remaining {
                assert!(
                    matches!(it.remedy, ostraca_node::Remedy::Manual(_)),
                    "seed {seed}: {it:?}"
                );
            }
            report.remaining.is_empty()
        }
        Err(error) => {
            assert_eq!(error.code(), codes::INVALID_ROW, "seed {seed}: {error}");
            assert!(error.to_string().contains("newer"), "seed {seed}: {error}");
            false
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn k36_no_damage_of_200_loses_entity_state() {
    let stopped = Stopped::prepare().await;
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let (only, count) = (number("SEED"), number("SEEDS").unwrap_or(SEEDS));
    let seeds = only.map_or(0..count, |seed| seed..seed + 1);
    let (mut repaired, mut refused, mut starts, mut harmless) = (0, 0, Duration::ZERO, 0);
    for seed in seeds {
        println!("SEED={seed}");
        let dir = tempfile::tempdir().expect("a directory");
        let home = dir.path().join("n1");
        common::copy_directory(&stopped.home(), &home);
        let damages = with_store(&home, |store| {
            let found = all_rows(store);
            let damages = Damage::some(&mut Random::new(seed), &found, &stopped.earlier);
            for Damage { key, value, .. } in &damages {
                put(store, key, value.clone());
            }
            damages
        });
        let before = state(&home);
        let config = common::config(&home);
        // Without settings, a repair waits for the longest possible lease of a node whose row is damaged, too.
        if damages.len() > 1 && damages.iter().any(|it| it.key == rows::SETTINGS) {
            let checked = repair_rows(&config, false, &|_| {});
            assert!(state(&home) == before, "seed {seed}: a check changed state");
            println!("  {damages:?}\n  {checked:?}");
            refused += 1;
            continue;
        }
        let done = repair_rows(&config, true, &|_| {});
        assert!(state(&home) == before, "seed {seed}: {damages:?} changed state: {done:?}");
        println!("  {damages:?}\n  {done:?}");
        if !is_repaired(seed, &done) {
            refused += 1;
            continue;
        }
        repaired += 1;
        harmless += u64::from(done.is_ok_and(|report| report.found.is_empty()));
        undo_drain(&home);
        let core: Vec<_> = with_store(&home, |store| {
            let decode = |row: &StoredRow| rows::decode_row(row).expect("decodes");
            all_rows(store).iter().filter_map(decode).collect()
        });
        let owned = cluster_of(core, &before.1, pools());
        assert_eq!(owned, Ok(()), "seed {seed}: {damages:?}");
        let began = Instant::now();
        starts_and_serves(&home, &stopped.cluster).await;
        starts += began.elapsed();
    }
    println!("{repaired} repaired ({harmless} had nothing to repair), {refused} refused");
    println!("the starts of real nodes took {starts:?}");
    assert!(only.is_some() || (repaired >= count / 2 && harmless < count / 4 && refused > 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn k36_a_reset_cluster_serves_every_entity() {
    let stopped = Stopped::prepare().await;
    let config = common::config(&stopped.home());
    let before = (state(&stopped.home()), with_store(&stopped.home(), all_rows));
    let shown = reset_sharding(&config, false, &|_| {}).expect("shown");
    assert!(shown.rows > 0);
    let after = (state(&stopped.home()), with_store(&stopped.home(), all_rows));
    assert!(before == after, "nothing was confirmed");
    let done = reset_sharding(&config, true, &|_| {}).expect("reset");
    assert_eq!(done.rows, shown.rows);
    assert!(state(&stopped.home()) == before.0, "no record of an entity changes");
    with_store(&stopped.home(), |store| {
        for stored in all_rows(store) {
            match rows::decode_row(&stored).expect("decodes") {
                Some((_, Row::Node(row), _)) => assert_eq!(row.status, NodeStatus::Left),
                Some((RowKey::Assignments(_), Row::Assignments(row), _)) => {
                    assert!(row.assignments.iter().all(|it| it.owner.is_none()));
                }
                Some((RowKey::Numbers(pool), ..)) => panic!("{pool} keeps its numbers"),
                _ => {}
            }
        }
    });
    assert_eq!(repair_rows(&config, false, &|_| {}).expect("checked").found, []);
    starts_and_serves(&stopped.home(), &stopped.cluster).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn k36_the_store_of_a_running_node_is_refused() {
    let stopped = Stopped::prepare().await;
    let config = common::config(&stopped.home());
    let node = common::start(&stopped.home()).await;
    let refused = |config: &Config| {
        let reset = reset_sharding(config, true, &|_| {}).expect_err("refused");
        [repair_rows(config, false, &|_| {}).expect_err("refused"), reset]
    };
    for error in refused(&config) {
        assert_eq!(error.code(), codes::STORE_IN_USE, "{error}");
    }
    let client = common::client(&node, &stopped.cluster).await;
    serves_all(&client).await;
    client.close().await;
    node.stop(GRACE).await;
}
