use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use ostraca_core::ids::ClusterId;
use ostraca_store::MemoryStore;

use super::*;
use crate::types::Absent;

const LONG: Duration = Duration::from_secs(60);

/// A component of the smallest kind that is one, and is no entity.
const EMPTY: &[u8] = b"\0asm\x0d\0\x01\0";

struct Bench {
    types: Types,
    loader: Loader,
    store: Arc<MemoryStore>,
    told: Arc<AtomicU64>,
}

fn bench(hosting: bool) -> Bench {
    let (types, told) = (Types::default(), Arc::new(AtomicU64::new(0)));
    let store = Arc::new(MemoryStore::new(1, ClusterId(1), "test"));
    let settings = ostraca_wasm::RuntimeSettings {
        allocator: ostraca_wasm::Allocator::OnDemand,
        ..ostraca_wasm::RuntimeSettings::default()
    };
    let wasm = hosting.then(|| ostraca_wasm::WasmRuntime::new(&settings).expect("a host"));
    let tell = {
        let told = told.clone();
        Box::new(move |entry: &Arc<Type>| told.store(entry.revision, Ordering::SeqCst))
    };
    let (runtime, budget) = (Handle::current(), BUDGET);
    let parts = Parts { types: types.clone(), store: store.clone(), wasm, tell, runtime, budget };
    Bench { types, loader: Loader::new(parts), store, told }
}

fn row(at: u64, name: &str, revision: u64, component: [u8; 32]) -> StoredRow {
    let standing = TypeRow {
        revision,
        manifest: format!("type = \"{name}\"\ncomponent = \"a.wasm\"\n"),
        component,
        component_size: 1,
        methods: vec![rows::MethodRow {
            name: "get".into(),
            query: true,
            extensions: Default::default(),
        }],
        extensions: Default::default(),
    };
    let value = rows::encode_value(&standing).expect("encodes");
    StoredRow { key: rows::type_key(name), revision: at, value }
}

#[tokio::test]
async fn a_node_without_entities_knows_types_from_their_rows() {
    let Bench { types, loader, told, .. } = bench(false);
    loader.listed(vec![row(5, "counter", 1, [0; 32]), row(6, "account", 1, [0; 32])], 6);
    assert_eq!(types.reached("counter", 1, LONG).await, Ok(()));
    assert_eq!(types.reached("account", 1, LONG).await, Ok(()));
    let entry = types.get("counter").expect("known");
    assert!(entry.methods_by_name().contains_key("get") && !entry.runs_here());
    assert_eq!(told.load(Ordering::SeqCst), 0, "workers are told of what can be run");

    loader.row(row(9, "counter", 3, [0; 32]));
    assert_eq!(types.reached("counter", 3, LONG).await, Ok(()));
    loader.row(row(8, "counter", 2, [0; 32]));
    loader.gone(&rows::type_key("counter"), 8);
    assert!(types.settled(LONG).await);
    assert_eq!(types.get("counter").map(|entry| entry.revision), Some(3), "what is late is old");

    loader.listed(vec![row(9, "counter", 3, [0; 32])], 10);
    assert!(types.get("account").is_none() && types.get("counter").is_some());
    loader.gone(&rows::type_key("counter"), 11);
    assert!(types.get("counter").is_none());
    loader.row(row(12, "counter", 1, [0; 32]));
    assert_eq!(types.reached("counter", 1, LONG).await, Ok(()), "and deployed again");
}

#[tokio::test]
async fn invalid_type_rows_and_components_are_shown_as_broken() {
    let Bench { types, loader, store, .. } = bench(true);
    let digest = store.put_blob(Bytes::from_static(EMPTY)).await.expect("put");
    loader.row(row(1, "hollow", 1, digest));
    let garbage = Bytes::from_static(&[2, 255]);
    loader.row(StoredRow { key: rows::type_key("garbage"), revision: 2, value: garbage });
    let stranger = StoredRow { key: rows::type_key("stranger"), ..row(3, "hollow", 1, digest) };
    loader.row(stranger);
    loader.row(StoredRow { key: "types/elsewhere/x".into(), ..row(4, "hollow", 1, digest) });
    assert!(types.settled(LONG).await);
    let broken: Vec<_> = types.broken().into_iter().map(|(name, _)| name).collect();
    assert_eq!(broken, ["garbage".into(), "hollow".into(), Arc::<str>::from("stranger")]);
    let found = types.runnable("hollow").err();
    assert!(matches!(found, Some(Absent::Broken(_))), "{found:?}");
}

#[tokio::test]
async fn a_component_missing_from_the_store_is_requested_again() {
    let Bench { types, loader, store, .. } = bench(true);
    let elsewhere = MemoryStore::new(2, ClusterId(1), "test");
    let digest = elsewhere.put_blob(Bytes::from_static(EMPTY)).await.expect("put");
    loader.row(row(1, "hollow", 1, digest));
    let found = types.runnable("hollow").err();
    assert_eq!(found, Some(Absent::Loading));
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert_eq!(types.runnable("hollow").err(), Some(Absent::Loading), "still tried");
    store.put_blob(Bytes::from_static(EMPTY)).await.expect("put");
    assert!(types.settled(LONG).await);
    assert_eq!(types.broken().len(), 1, "it was fetched, and found to be no entity");
}

#[tokio::test]
async fn a_cached_type_is_overruled_by_any_row_from_the_store() {
    let Bench { types, loader, .. } = bench(false);
    loader.row(row(7, "counter", 5, [0; 32]));
    assert_eq!(types.reached("counter", 5, LONG).await, Ok(()));
    loader.remembered(&[row(0, "counter", 4, [0; 32]), row(0, "account", 2, [0; 32])]);
    assert_eq!(types.get("counter").map(|entry| entry.revision), Some(5));
    assert_eq!(types.get("account").map(|entry| entry.revision), Some(2));
    loader.row(row(3, "account", 1, [0; 32]));
    assert!(types.settled(LONG).await);
    assert_eq!(types.get("account").map(|entry| entry.revision), Some(1));
}
