use ostraca_catalog::DeployedType;
use ostraca_catalog::clock::wall_millis;
use ostraca_catalog::rows::{self, MethodEntry};
use ostraca_config::Manifest;
use ostraca_core::ids::{Epoch, Incarnation};
use ostraca_core::pools::Pool;
use ostraca_core::rows::{Assignment, Member, NodeRow};
use ostraca_wire::clock::BootInstant;

use super::*;

const ONE: ClusterId = ClusterId(1);

fn node(addresses: &str) -> NodeRow {
    NodeRow {
        renewals: 9,
        addresses: vec![addresses.into()],
        ..NodeRow::for_tests(Incarnation { counter: 1, nonce: 2 })
    }
}

/// Two pools that have so many shards together.
fn pools(shards: u32) -> Pools {
    let mut pools = Pools::one(shards - 1);
    let second = Pool { role: Some("orders".into()), ..Pool::new("orders", 1, &pools) };
    pools.add(second).expect("a pool");
    pools
}

fn view(shards: u32, nodes: &[&str]) -> Arc<ClusterView> {
    let owner = Member { node: "n1".into(), incarnation: node("").incarnation };
    let shard = Assignment {
        epoch: Epoch(3),
        owner: Some(owner),
        hand_off: None,
        extensions: Default::default(),
    };
    let nodes = nodes.iter().map(|name| ((*name).into(), node(name))).collect();
    let all = shards;
    let shards = vec![shard; shards as usize].into();
    let pools = Some(Arc::new(pools(all)));
    Arc::new(ClusterView { shards, nodes, pools, ..ClusterView::default() })
}

/// A type as a node without the role `host` knows it.
fn known(name: &str, revision: u64) -> DeployedType {
    let text = format!("type = \"{name}\"\ncomponent = \"a.wasm\"\n");
    let manifest = Manifest::parse(&text, "entity.toml").expect("a manifest");
    let methods = [MethodEntry { name: "get".into(), query: true, extensions: Default::default() }];
    DeployedType::new(revision, manifest, &methods, None, [0; 32], 1)
}

fn keys(cached: &CachedCluster) -> Vec<String> {
    cached.rows.iter().map(|(key, ..)| rows::key_text(key)).collect()
}

#[test]
fn a_restarted_node_knows_routes_and_types_from_its_cache() {
    let dir = tempfile::tempdir().expect("a directory");
    let place = RouteCache::dir(dir.path());
    let types = TypeRegistry::default();
    types.put(Arc::new(known("counter", 4)));
    let access = AccessRegistry::default();
    let row = rows::PolicyRow { revision: 7, text: "".into(), extensions: Default::default() };
    let policy = StoredRow {
        key: rows::POLICY.into(),
        revision: 9,
        value: rows::encode_value(&row).expect("encodes"),
    };
    access.on_rows_read(std::slice::from_ref(&policy), BootInstant::now());
    let cache = RouteCache::open(&place, ONE, types.clone(), access.clone()).expect("opened");
    assert!(cache.load().pools.is_none());
    cache.store(&view(65, &["n1", "n2"]));
    drop(cache);

    let cache = RouteCache::open(&place, ONE, types.clone(), access.clone()).expect("opened again");
    let cached = cache.load();
    assert_eq!(cached.pools, Some(pools(65)));
    let all = ["nodes/n1", "nodes/n2", "shards/default/00000", "shards/default/00001"];
    assert_eq!(keys(&cached), all);
    let chunk = cached.rows.iter().find(|(key, ..)| *key == RowKey::Assignments(1));
    let Some((_, Row::Assignments(row), 0)) = chunk else { panic!("{chunk:?}") };
    assert_eq!((row.assignments.len(), row.assignments[0].epoch), (1, Epoch(3)));
    let (deployed, manifest) = ostraca_catalog::loader::parse(&cached.types[0]).expect("a type");
    assert_eq!((deployed.revision, &*manifest.entity_type), (4, "counter"));
    assert_eq!(
        deployed.methods,
        [MethodEntry { name: "get".into(), query: true, extensions: Default::default() }]
    );

    assert_eq!(cached.access, [StoredRow { revision: 0, ..policy }]);
    let age = wall_millis() - cached.access_read_ms;
    assert!(age < 180_000, "{age}");

    // A view that is still empty removes nothing; a node that has been removed is dropped from the cache.
    cache.store(&Arc::new(ClusterView::default()));
    drop(cache);
    let cache = RouteCache::open(&place, ONE, types.clone(), access.clone()).expect("opened again");
    assert_eq!(keys(&cache.load()), all);
    cache.store(&view(65, &["n1"]));
    drop(cache);
    let cache = RouteCache::open(&place, ONE, types, access).expect("opened again");
    assert_eq!(keys(&cache.load()).len(), 3);
}

#[test]
fn a_foreign_or_corrupt_cache_is_removed_and_recreated() {
    let dir = tempfile::tempdir().expect("a directory");
    let place = RouteCache::dir(dir.path());
    let open = |cluster| {
        RouteCache::open(&place, cluster, TypeRegistry::default(), AccessRegistry::default())
            .expect("opened")
    };
    let cache = open(ONE);
    cache.store(&view(3, &["n1"]));
    drop(cache);
    assert!(open(ClusterId(2)).load().pools.is_none(), "it belongs to another cluster");

    let cache = open(ONE);
    cache.store(&view(3, &["n1"]));
    drop(cache);
    for file in ["conf", "db"] {
        std::fs::write(place.join(file), b"rubbish").expect("written");
    }
    let cache = open(ONE);
    assert!(cache.load().pools.is_none(), "it is corrupt");
    cache.store(&view(3, &["n1"]));
    drop(cache);
    assert_eq!(open(ONE).load().pools.map(|pools| pools.shard_count()), Some(3));

    let nowhere = dir.path().join("file");
    std::fs::write(&nowhere, b"").expect("written");
    assert!(
        RouteCache::open(
            &nowhere.join("x"),
            ONE,
            TypeRegistry::default(),
            AccessRegistry::default()
        )
        .is_none()
    );
}

#[test]
fn a_cache_in_use_by_another_process_is_left_alone() {
    let dir = tempfile::tempdir().expect("a directory");
    let place = RouteCache::dir(dir.path());
    let open = || RouteCache::open(&place, ONE, TypeRegistry::default(), AccessRegistry::default());
    let cache = open().expect("opened");
    cache.store(&view(3, &["n1"]));
    assert!(open().is_none(), "it is in use");
    drop(cache);
    let again = open().expect("opened once it is free");
    assert_eq!(again.load().pools.map(|pools| pools.shard_count()), Some(3));
}
