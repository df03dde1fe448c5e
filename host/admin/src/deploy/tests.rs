//! Deploys with the memory store. Tests that need a runnable component use whole nodes, in
//! `host/node/tests/three_nodes.rs`.

use bytes::Bytes;
use ostraca_core::ids::ClusterId;
use ostraca_core::pools::Pools;
use ostraca_store::MemoryStore;
use ostraca_wire::server::UploadPermit;
use tokio::runtime::Handle;

use super::*;

/// The smallest valid component, which is not an entity.
const EMPTY: &[u8] = b"\0asm\x0d\0\x01\0";
const MANIFEST: &str = "type = \"hollow\"\ncomponent = \"a.wasm\"\n";

/// The deployer of a node in a cluster with this store.
fn deployer(store: &Arc<MemoryStore>) -> Deployer {
    let settings = ostraca_wasm::RuntimeSettings {
        allocator: ostraca_wasm::Allocator::OnDemand,
        ..ostraca_wasm::RuntimeSettings::default()
    };
    let wasm = ostraca_wasm::WasmRuntime::new(&settings).expect("a runtime");
    let types = TypeRegistry::default();
    let pools = KnownPools::new(Pools::one(8));
    let loader = Loader::new(loader::LoaderDeps {
        types: types.clone(),
        entity_store: store.clone(),
        wasm: Some(wasm.clone()),
        pools: pools.clone(),
        hosts_pool: Box::new(|_| true),
        notify_workers: Box::new(|_| {}),
        runtime: Handle::current(),
        budget: loader::BUDGET,
    });
    let (cluster, store) = (store.clone(), store.clone());
    Deployer::new(cluster, store, wasm, types, pools, loader, Ceilings::default())
}

async fn upload(component: &'static [u8]) -> Upload {
    let component = Bytes::from_static(component);
    let elsewhere = MemoryStore::new(2, ClusterId(1), "test");
    let digest = elsewhere.put_blob(component.clone()).await.expect("put");
    let (manifest, place) = (MANIFEST.into(), UploadPermit::unmetered());
    Upload {
        manifest,
        digest,
        component,
        expected_revision: None,
        inactive: false,
        dry_run: None,
        permit: place,
    }
}

#[tokio::test]
async fn an_invalid_component_is_refused_and_nothing_is_written() {
    let store = Arc::new(MemoryStore::new(1, ClusterId(1), "test"));
    let deployer = deployer(&store);
    for (component, code) in [(EMPTY, "missing-export"), (&b"hello"[..], "not-wasm")] {
        let refused = deployer.deploy("client/me", upload(component).await).await;
        let refused = refused.expect_err("refused");
        assert_eq!((refused.code.as_str(), refused.retryable), (code, false), "{refused:?}");
    }
    let row = store.get(&rows::type_key("hollow")).await.expect("read");
    assert!(row.is_none() && deployer.types.broken().is_empty());
}

#[tokio::test]
async fn redeploying_a_type_that_cannot_run_here_fails_at_once() {
    let store = Arc::new(MemoryStore::new(1, ClusterId(1), "test"));
    let deployer = deployer(&store);
    let component = store.put_blob(Bytes::from_static(EMPTY)).await.expect("put");
    let row = TypeRow {
        revision: 3,
        manifest: MANIFEST.into(),
        component_digest: component,
        component_size: EMPTY.len() as u64,
        methods: Vec::new(),
        extensions: Default::default(),
    };
    let key = rows::type_key("hollow");
    rows::write(&*store, &key, None, &row).await.expect("written");
    let refused = deployer.deploy("client/me", upload(EMPTY).await).await;
    let refused = refused.expect_err("it cannot run");
    assert_eq!(refused.code, "missing-export", "{refused:?}");
    assert_eq!(deployer.types.broken().len(), 1);
    let (stored, _) = rows::read::<TypeRow>(&*store, &key).await.expect("read").expect("the row");
    assert_eq!(stored, row);
}

#[tokio::test]
async fn limits_beyond_the_nodes_ceilings_are_refused() {
    let store = Arc::new(MemoryStore::new(1, ClusterId(1), "test"));
    let deployer = deployer(&store);
    for (limit, code) in [
        ("memory = \"1025 MiB\"", "memory-ceiling"),
        ("turn-time = \"30001 ms\"", "turn-time-ceiling"),
    ] {
        let manifest = format!("{MANIFEST}[limits]\n{limit}\n");
        let request = Upload { manifest, ..upload(EMPTY).await };
        let refused = deployer.deploy("client/me", request).await.expect_err("above a ceiling");
        assert_eq!((refused.code.as_str(), refused.retryable), (code, false), "{refused:?}");
        assert!(refused.message.contains(code), "{refused:?}");
    }
    let manifest = format!("{MANIFEST}[limits]\nmemory = \"1 GiB\"\nturn-time = \"30 s\"\n");
    let request = Upload { manifest, ..upload(EMPTY).await };
    let refused = deployer.deploy("client/me", request).await.expect_err("not an entity");
    assert_eq!(refused.code, "missing-export", "limits at the ceilings are accepted");
}

#[tokio::test]
async fn a_deploy_that_compiles_does_not_block_others() {
    let store = Arc::new(MemoryStore::new(1, ClusterId(1), "test"));
    let deployer = deployer(&store);
    // Simulates another deploy whose row is being written: an early refusal does not wait for that.
    let _writing = deployer.write_lock.lock().await;
    let refused = tokio::time::timeout(
        Duration::from_secs(60),
        deployer.deploy("client/me", upload(EMPTY).await),
    );
    let refused = refused.await.expect("does not wait for the lock").expect_err("not an entity");
    assert_eq!(refused.code, "missing-export");
}

#[test]
fn a_deploy_keeps_unknown_fields_of_the_type() {
    // An optional extension field with number 100.
    let noted: ostraca_core::extensions::Extensions<TypeRow> =
        ostraca_core::codec::decode(&[1, 100, 3, b'n', b'e', b'w']).expect("an optional field");
    let first = next_row(0, None, MANIFEST.into(), [1; 32], 8, Vec::new());
    assert_eq!((first.revision, &first.extensions), (1, &Default::default()));
    let found = StoredRow { key: rows::type_key("hollow"), value: Bytes::new(), revision: 9 };
    let row = TypeRow { revision: 3, extensions: noted.clone(), ..first };
    let next = next_row(
        3,
        Some(&CurrentDeployment { stored: found, row }),
        "other".into(),
        [2; 32],
        9,
        Vec::new(),
    );
    assert_eq!((next.revision, next.extensions), (4, noted));
    assert_eq!(
        (&*next.manifest, next.component_digest, next.component_size),
        ("other", [2; 32], 9)
    );
}

#[tokio::test]
async fn r24_numbers_of_inactive_revisions_stay_taken() {
    let store = Arc::new(MemoryStore::new(1, ClusterId(1), "test"));
    let deployer = deployer(&store);
    let digest = store.put_blob(Bytes::from_static(EMPTY)).await.expect("put");
    let manifest = Manifest::parse(MANIFEST, "entity.toml").expect("a manifest");
    deployer.bind(&manifest).await.expect("bound");
    let mut row = TypeRow { revision: 3, ..next_row(2, None, MANIFEST.into(), digest, 8, vec![]) };
    let entry = |revision| EarlierEntry {
        revision,
        component_digest: digest,
        component_size: 8,
        manifest_digest: [1; 32],
        schema: SchemaSupport::default(),
    };
    row.set_inactive(&[entry(4), entry(5)]).expect("fits");
    rows::write(&*store, &rows::type_key("hollow"), None, &row).await.expect("written");
    assert_eq!(deployer.undeploy("client/me", "hollow").await, Ok(3), "the last active one");
    assert_eq!(deployer.last_revision("hollow").await, Ok(5), "the next deployment gets 6");
}

#[tokio::test]
async fn r23_an_undeployed_type_keeps_its_binding_and_revision() {
    let store = Arc::new(MemoryStore::new(1, ClusterId(1), "test"));
    let deployer = deployer(&store);
    let component = store.put_blob(Bytes::from_static(EMPTY)).await.expect("put");
    let row = TypeRow {
        revision: 3,
        manifest: MANIFEST.into(),
        component_digest: component,
        component_size: EMPTY.len() as u64,
        methods: Vec::new(),
        extensions: Default::default(),
    };
    let manifest = Manifest::parse(MANIFEST, "entity.toml").expect("a manifest");
    deployer.bind(&manifest).await.expect("bound");
    let key = rows::type_key("hollow");
    rows::write(&*store, &key, None, &row).await.expect("written");
    assert!(deployer.is_deployed("hollow").await.expect("read"));
    assert_eq!(deployer.undeploy("client/me", "hollow").await, Ok(3));
    assert!(!deployer.is_deployed("hollow").await.expect("read"));
    assert_eq!(deployer.last_revision("hollow").await, Ok(3));
    assert_eq!(deployer.undeploy("client/me", "hollow").await, Ok(0), "it is gone already");
    // The next deployment of the type continues from here, under the same binding.
    deployer.check_binding(&manifest).await.expect("the same binding");
    let other = MANIFEST.replace("component", "shard-key = \"until:/\"\ncomponent");
    let other = Manifest::parse(&other, "entity.toml").expect("a manifest");
    let refused = deployer.check_binding(&other).await.expect_err("another binding");
    assert_eq!(refused.code, "binding-immutable");
}
