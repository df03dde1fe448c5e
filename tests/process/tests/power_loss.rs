//! Power loss: no matter which unsynced writes the disk kept, the store opens and holds everything acknowledged.
//!
//! The recorder keeps every write and sync of a working node; the test cuts that history at 200 points and rebuilds
//! the directory as a disk might hold it at that moment. `SEED=n` replays the cuts.

use std::collections::BTreeMap;
use std::time::Instant;

use futures::FutureExt;
use futures::stream::{FuturesUnordered, StreamExt};
use ostraca_client::{Client, Entity};
use ostraca_core::hash::shard_of;
use ostraca_core::ids::ShardPath;
use ostraca_oracle::{Operation, Outcome};
use ostraca_process_tests::image::{Fate, SimulatedDisk};
use ostraca_process_tests::io_recorder::{Call, IoRecorder, Record, place};
use ostraca_process_tests::node_dir::deploy_example;
use ostraca_process_tests::{HistoryRecorder, NodeDir, NodeProcess, artifacts};
use ostraca_store::{EntityStore, Scan, ScanKind, ScannedRecord};
use ostraca_store_sled::{Options, SledStore};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::json;

const CUTS: usize = 200;
const COMMANDS: u64 = 12_000;
const ENTITIES: u64 = 50;
const IN_FLIGHT: usize = 32;
/// Few shards, so that a store is small and 200 copies are written quickly.
const SHARDS: u32 = 16;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_disk_image_opens_with_every_acknowledged_turn() {
    let seed = std::env::var("SEED").ok().and_then(|s| s.parse().ok()).unwrap_or_else(rand::random);
    println!("SEED={seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    let home = NodeDir::init_as("power", &["--shards", &SHARDS.to_string()], |_| {}).expect("init");
    let place = place().expect("place");
    let preload = IoRecorder::new(home.dir(), place.path(), true).expect("recorder");
    let disk = SimulatedDisk::of(home.dir()).expect("the disk before");
    let node = NodeProcess::start_as(&home, |command| preload.on(command)).expect("start");
    let recorder = work(&home, &node).await;
    node.kill_9().expect("kill");

    let records = preload.records().expect("records");
    let operations = recorder.operations();
    let (first, last) = (
        operations.iter().map(|o| o.received).min().expect("answers"),
        operations.iter().map(|o| o.received).max().expect("answers"),
    );
    let within: Vec<_> =
        records.iter().filter(|record| (first..=last).contains(&record.end)).collect();
    let bytes: usize = records.iter().map(|record| record.data.len()).sum();
    println!("{} records of {bytes} bytes, {} of them under load", records.len(), within.len());
    let began = Instant::now();
    forgetful_disks_are_caught(&home, &disk, &records, &operations).await;
    let (mut closed, mut lost) = (Vec::new(), Vec::new());
    for cut_number in 0..CUTS {
        let record = within[rng.random_range(0..within.len())];
        // Before, within or just after a call.
        let cut = [record.start, record.start.midpoint(record.end), record.end][cut_number % 3];
        let fate = Fate::ALL[cut_number % 4];
        let image =
            tempfile::tempdir_in(artifacts::scratch("images").expect("scratch")).expect("dir");
        let mut disk = disk.clone();
        for record in &records {
            disk.happens(record, cut);
        }
        disk.fails(fate, &mut rng, home.dir(), image.path()).expect("image");
        let options = Options { witness: Some(image.path().join("witness")), ..Options::default() };
        let store = match SledStore::open(&image.path().join("store"), &options) {
            Ok(store) => store,
            Err(error) => {
                closed.push(format!("cut {cut_number} {fate:?}: {error}"));
                continue;
            }
        };
        for (name, version) in acknowledged(&operations, cut) {
            if let Err(why) = holds(&store, name, version).await {
                lost.push(format!("cut {cut_number} {fate:?}: {name}: {why}"));
            }
        }
    }
    println!("{CUTS} images in {:?}", began.elapsed());
    assert!(closed.is_empty(), "{} of {CUTS} images did not open: {closed:#?}", closed.len());
    assert!(lost.is_empty(), "{} acknowledged turns were lost: {lost:#?}", lost.len());
}

/// The highest version of each entity that was acknowledged before `cut`.
fn acknowledged(operations: &[Operation], cut: u64) -> BTreeMap<&str, u64> {
    let mut acknowledged = BTreeMap::new();
    for operation in operations.iter().filter(|operation| operation.received < cut) {
        // A query that ran before all commands read an entity that is not stored.
        if let Outcome::Final { version: version @ 1.., .. } = operation.outcome {
            let highest: &mut u64 = acknowledged.entry(operation.entity.as_str()).or_default();
            *highest = version.max(*highest);
        }
    }
    acknowledged
}

/// Tests the check itself: on a disk that ignores syncs under load, turns are missing.
async fn forgetful_disks_are_caught(
    home: &NodeDir,
    disk: &SimulatedDisk<'_>,
    records: &[Record],
    operations: &[Operation],
) {
    let cut = operations.iter().map(|operation| operation.received).max().expect("answers") + 1;
    let first = operations.iter().map(|operation| operation.received).min().expect("answers");
    let mut disk = disk.clone();
    for record in records {
        if record.start < first || !matches!(record.call, Call::Sync | Call::DataSync) {
            disk.happens(record, cut);
        }
    }
    let image = tempfile::tempdir_in(artifacts::scratch("images").expect("scratch")).expect("dir");
    let mut rng = StdRng::seed_from_u64(0);
    disk.fails(Fate::Dropped, &mut rng, home.dir(), image.path()).expect("image");
    let Ok(store) = SledStore::open(&image.path().join("store"), &Options::default()) else {
        return;
    };
    for (name, version) in acknowledged(operations, cut) {
        if holds(&store, name, version).await.is_err() {
            return;
        }
    }
    panic!("the check found no loss on a disk that ignored every sync under load");
}

async fn work(home: &NodeDir, node: &NodeProcess) -> std::sync::Arc<HistoryRecorder> {
    let profile = home.profile(node.address).expect("profile");
    let client = Client::connect(profile).await.expect("connect");
    deploy_example(&client, "counter").await.expect("deploy");
    let recorder = HistoryRecorder::new();
    let (session, reader) = (client.session(), client.session());
    let mut calls = FuturesUnordered::new();
    for n in 0..COMMANDS {
        let entity = Entity::new("counter", format!("{}", n % ENTITIES));
        calls.push(recorder.command(&session, &entity, "add", json!({"by": 1})).left_future());
        // The state that a query has read is durable too (R2).
        if n % 2 == 0 {
            calls.push(recorder.query(&reader, &entity, "get", json!({})).right_future());
        }
        if calls.len() >= IN_FLIGHT {
            calls.next().await.expect("a call").expect("an answer");
        }
    }
    while let Some(call) = calls.next().await {
        call.expect("an answer");
    }
    client.close().await;
    recorder
}

/// Checks that an entity has at least the acknowledged version, and the state that belongs to its stored version.
async fn holds(store: &SledStore, name: &str, version: u64) -> Result<(), String> {
    let id = name.strip_prefix("counter/").ok_or("not a counter")?;
    let entity = Entity::new("counter", id);
    let shard = ShardPath {
        namespace: "default".into(),
        pool: "default".into(),
        shard: shard_of(id, SHARDS),
    };
    let loaded = store.load(vec![(shard.clone(), entity.clone())]).await.pop();
    let head = loaded.ok_or("no answer")?.map_err(|e| e.to_string())?.head.ok_or("no head")?;
    if head.version < version {
        return Err(format!("version {} where {version} was acknowledged", head.version));
    }
    let kind = ScanKind::State(entity);
    let scan = Scan { shard, kind, after: None, max_records: 10, max_bytes: 10_000 };
    let page = store.scan(scan).await.map_err(|e| e.to_string())?;
    let state = page.records.iter().find_map(|record| match record {
        ScannedRecord::State(_, value) => serde_json::from_slice::<serde_json::Value>(value).ok(),
        _ => None,
    });
    // Each command adds one, so the value equals the version.
    match state.as_ref().and_then(|state| state["value"].as_u64()) {
        Some(value) if value == head.version => Ok(()),
        _ => Err(format!("version {} with the state {state:?}", head.version)),
    }
}
