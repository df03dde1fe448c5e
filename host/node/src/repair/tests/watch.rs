//! A repair waits until no node can still run.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use ostraca_catalog::bootstrap;
use ostraca_codes::codes;
use ostraca_store::{ClusterStore, MemoryStore};

use super::*;
use crate::repair::watch;

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
