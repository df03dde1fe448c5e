use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use ostraca_core::ids::{ClusterId, ShardId};
use ostraca_core::pools::{Pool, Pools};
use ostraca_store::MemoryStore;

use super::*;
use crate::types::TypeUnavailable;

const LONG: Duration = Duration::from_secs(60);

/// The smallest valid component, which is not an entity.
const EMPTY: &[u8] = b"\0asm\x0d\0\x01\0";

struct Bench {
    types: TypeRegistry,
    loader: Loader,
    store: Arc<MemoryStore>,
    notified: Arc<AtomicU64>,
    pools: KnownPools,
}

fn bench(hosting: bool) -> Bench {
    let (types, notified) = (TypeRegistry::default(), Arc::new(AtomicU64::new(0)));
    let store = Arc::new(MemoryStore::new(1, ClusterId(1), "test"));
    let settings = ostraca_wasm::RuntimeSettings {
        allocator: ostraca_wasm::Allocator::OnDemand,
        ..ostraca_wasm::RuntimeSettings::default()
    };
    let wasm = hosting.then(|| ostraca_wasm::WasmRuntime::new(&settings).expect("a runtime"));
    let notify = {
        let notified = notified.clone();
        Box::new(move |entry: &Arc<DeployedType>| notified.store(entry.revision, Ordering::SeqCst))
    };
    let (runtime, budget) = (Handle::current(), BUDGET);
    let mut pools = Pools::one(8);
    let elsewhere = Pool { role: Some("other".into()), ..Pool::new("elsewhere", 8, &pools) };
    pools.add(elsewhere).expect("a pool");
    let pools = KnownPools::new(pools);
    let parts = LoaderDeps {
        types: types.clone(),
        entity_store: store.clone(),
        wasm,
        pools: pools.clone(),
        hosts_pool: Box::new(|pool| pool.role.is_none()),
        notify_workers: notify,
        runtime,
        budget,
    };
    Bench { types, loader: Loader::new(parts), store, notified, pools }
}

fn row(at: u64, name: &str, revision: u64, component: [u8; 32]) -> StoredRow {
    row_of_pool(at, name, revision, component, "default")
}

fn row_of_pool(at: u64, name: &str, revision: u64, component: [u8; 32], pool: &str) -> StoredRow {
    let deployed = TypeRow {
        revision,
        manifest: format!("type = \"{name}\"\ncomponent = \"a.wasm\"\npool = \"{pool}\"\n"),
        component_digest: component,
        component_size: 1,
        methods: vec![rows::MethodEntry {
            name: "get".into(),
            query: true,
            extensions: Default::default(),
        }],
        extensions: Default::default(),
    };
    let value = rows::encode_value(&deployed).expect("encodes");
    StoredRow { key: rows::type_key(name), revision: at, value }
}

#[tokio::test]
async fn a_node_without_entities_knows_types_from_their_rows() {
    let Bench { types, loader, notified, .. } = bench(false);
    loader.on_rows_listed(vec![row(5, "counter", 1, [0; 32]), row(6, "account", 1, [0; 32])], 6);
    assert_eq!(types.wait_for_revision("counter", 1, LONG).await, Ok(()));
    assert_eq!(types.wait_for_revision("account", 1, LONG).await, Ok(()));
    let entry = types.get("counter").expect("known");
    assert!(entry.methods_by_name().contains_key("get") && !entry.is_runnable());
    assert_eq!(
        notified.load(Ordering::SeqCst),
        0,
        "workers are notified only of types that can run"
    );

    loader.on_row_changed(row(9, "counter", 3, [0; 32]));
    assert_eq!(types.wait_for_revision("counter", 3, LONG).await, Ok(()));
    loader.on_row_changed(row(8, "counter", 2, [0; 32]));
    loader.on_row_deleted(&rows::type_key("counter"), 8);
    assert!(types.wait_until_loaded(LONG).await);
    assert_eq!(types.get("counter").map(|entry| entry.revision), Some(3), "a late row is older");

    loader.on_rows_listed(vec![row(9, "counter", 3, [0; 32])], 10);
    assert!(types.get("account").is_none() && types.get("counter").is_some());
    loader.on_row_deleted(&rows::type_key("counter"), 11);
    assert!(types.get("counter").is_none());
    loader.on_row_changed(row(12, "counter", 1, [0; 32]));
    assert_eq!(types.wait_for_revision("counter", 1, LONG).await, Ok(()), "it was deployed again");
}

#[tokio::test]
async fn k39_types_of_pools_that_others_host_are_not_compiled() {
    let Bench { types, loader, store, .. } = bench(true);
    let digest = store.put_blob(Bytes::from_static(EMPTY)).await.expect("put");
    loader.on_row_changed(row_of_pool(1, "elsewhere", 1, digest, "elsewhere"));
    assert_eq!(types.wait_for_revision("elsewhere", 1, LONG).await, Ok(()));
    let entry = types.get("elsewhere").expect("known");
    assert!(!entry.is_runnable() && types.broken().is_empty());
    assert_eq!(entry.first_shard, ShardId(9), "a rollout counts the pool's shards");
    // The same component cannot run in a pool of this node.
    loader.on_row_changed(row(2, "here", 1, digest));
    assert!(types.wait_until_loaded(LONG).await);
    assert_eq!(types.broken().len(), 1);
}

#[tokio::test]
async fn k39_a_host_loads_a_type_only_once_it_knows_its_pool() {
    let Bench { types, loader, store, pools, .. } = bench(true);
    let digest = store.put_blob(Bytes::from_static(EMPTY)).await.expect("put");
    loader.on_row_changed(row_of_pool(1, "early", 1, digest, "later"));
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(types.get("early").is_none(), "it would be known as a type of other nodes for good");
    let mut all = (*pools.get()).clone();
    all.add(Pool::new("later", 8, &all)).expect("a pool");
    assert!(pools.learn(&all));
    assert!(types.wait_until_loaded(LONG).await);
    assert_eq!(types.broken().len(), 1, "this node compiles it");
}

/// The pool `elsewhere` is copied to a new one, which this node hosts.
fn copied(pools: &KnownPools) -> Pools {
    let mut all = (*pools.get()).clone();
    all.add(Pool::new("later", 8, &all)).expect("a pool");
    all.set_copied("elsewhere", "later", true).expect("two pools");
    all
}

#[tokio::test]
async fn m1_the_types_of_a_copied_pool_are_loaded_again() {
    let Bench { types, loader, store, pools, .. } = bench(true);
    let digest = store.put_blob(Bytes::from_static(EMPTY)).await.expect("put");
    loader.on_row_changed(row_of_pool(1, "moving", 1, digest, "elsewhere"));
    assert_eq!(types.wait_for_revision("moving", 1, LONG).await, Ok(()));
    assert!(pools.learn(&copied(&pools)));
    loader.on_pools_changed();
    assert!(types.wait_until_loaded(LONG).await);
    assert_eq!(types.broken().len(), 1, "this node compiles it now");

    let Bench { types, loader, pools, .. } = bench(false);
    let entry = |name: &str| types.get(name).expect("known").first_shard;
    loader.on_row_changed(row_of_pool(1, "moving", 1, [0; 32], "elsewhere"));
    loader.on_row_changed(row(2, "staying", 1, [0; 32]));
    assert!(types.wait_until_loaded(LONG).await);
    assert_eq!((entry("moving"), entry("staying")), (ShardId(9), ShardId(1)));
    assert!(pools.learn(&copied(&pools)));
    loader.on_pools_changed();
    assert!(types.wait_until_loaded(LONG).await);
    assert_eq!((entry("moving"), entry("staying")), (ShardId(17), ShardId(1)));
}

#[tokio::test]
async fn m1_a_type_deployed_here_is_loaded_again_after_a_copy() {
    // The row arrives before the deployment is published here, or after it.
    for row_is_first in [true, false] {
        let Bench { types, loader, pools, .. } = bench(false);
        let stored = row_of_pool(4, "moving", 1, [0; 32], "elsewhere");
        let (deployed, manifest) = parse(&stored).expect("a row");
        if row_is_first {
            loader.on_row_changed(stored.clone());
            assert!(types.wait_until_loaded(LONG).await);
        }
        loader.on_deployed(4, to_deployed_type(&deployed, manifest, None));
        let first_shard = || types.get("moving").expect("known").first_shard;
        assert_eq!(first_shard(), ShardId(9));
        assert!(pools.learn(&copied(&pools)));
        loader.on_pools_changed();
        if !row_is_first {
            loader.on_row_changed(stored);
        }
        assert!(types.wait_until_loaded(LONG).await);
        assert_eq!(first_shard(), ShardId(17), "{row_is_first}");
    }
}

#[tokio::test]
async fn invalid_type_rows_and_components_are_shown_as_broken() {
    let Bench { types, loader, store, .. } = bench(true);
    let digest = store.put_blob(Bytes::from_static(EMPTY)).await.expect("put");
    loader.on_row_changed(row(1, "hollow", 1, digest));
    let garbage = Bytes::from_static(&[2, 255]);
    loader.on_row_changed(StoredRow {
        key: rows::type_key("garbage"),
        revision: 2,
        value: garbage,
    });
    let stranger = StoredRow { key: rows::type_key("stranger"), ..row(3, "hollow", 1, digest) };
    loader.on_row_changed(stranger);
    loader.on_row_changed(StoredRow {
        key: "types/Elsewhere/x".into(),
        ..row(4, "hollow", 1, digest)
    });
    assert!(types.wait_until_loaded(LONG).await);
    let broken: Vec<_> = types.broken().into_iter().map(|(name, _)| name).collect();
    assert_eq!(broken, ["garbage".into(), "hollow".into(), Arc::<str>::from("stranger")]);
    let found = types.get_runnable("hollow").err();
    assert!(matches!(found, Some(TypeUnavailable::Broken(_))), "{found:?}");
}

#[tokio::test]
async fn a_component_missing_from_the_store_is_requested_again() {
    let Bench { types, loader, store, .. } = bench(true);
    let elsewhere = MemoryStore::new(2, ClusterId(1), "test");
    let digest = elsewhere.put_blob(Bytes::from_static(EMPTY)).await.expect("put");
    loader.on_row_changed(row(1, "hollow", 1, digest));
    let found = types.get_runnable("hollow").err();
    assert_eq!(found, Some(TypeUnavailable::Loading));
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert_eq!(
        types.get_runnable("hollow").err(),
        Some(TypeUnavailable::Loading),
        "it is being retried"
    );
    store.put_blob(Bytes::from_static(EMPTY)).await.expect("put");
    assert!(types.wait_until_loaded(LONG).await);
    assert_eq!(types.broken().len(), 1, "it was fetched, but is not an entity");
}

#[tokio::test]
async fn a_cached_type_is_overruled_by_any_row_from_the_store() {
    let Bench { types, loader, .. } = bench(false);
    loader.on_row_changed(row(7, "counter", 5, [0; 32]));
    assert_eq!(types.wait_for_revision("counter", 5, LONG).await, Ok(()));
    loader.load_cached(&[row(0, "counter", 4, [0; 32]), row(0, "account", 2, [0; 32])]);
    assert_eq!(types.get("counter").map(|entry| entry.revision), Some(5));
    assert_eq!(types.get("account").map(|entry| entry.revision), Some(2));
    loader.on_row_changed(row(3, "account", 1, [0; 32]));
    assert!(types.wait_until_loaded(LONG).await);
    assert_eq!(types.get("account").map(|entry| entry.revision), Some(1));
}
