//! Measures how fast the sled store commits and loads, including syncs:
//! `cargo run --release --example throughput -- [DIR]`.
//!
//! Commits: 16 callers with 64 turns per call, first with heads only, then with one small state value per turn.
//! Loads: 64 callers with one entity per call, after reopening the store. The measurement covers only this process:
//! no network, no guests.
#![allow(clippy::print_stdout, clippy::expect_used, reason = "a measurement on a terminal")]

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures::executor::block_on;
use ostraca_core::ids::{
    ClusterId, Entity, Epoch, Incarnation, NodeId, ShardId, ShardPath, TurnId,
};
use ostraca_core::records::{Claim, Commit, CommitOutcome, Head, RecordKey, RecordWrite};
use ostraca_core::rows::Member;
use ostraca_store::EntityStore;
use ostraca_store_sled::{Options, SledStore};

const SHARDS: u32 = 16;
const ENTITIES: u64 = 2_000;
const CALL: u64 = 64;
const FOR: Duration = Duration::from_secs(4);

fn shard(number: u32) -> ShardPath {
    ShardPath { namespace: "default".into(), pool: "default".into(), shard: ShardId(number) }
}

fn entity(number: u64) -> Entity {
    Entity::new("counter", format!("entity-{number:08}"))
}

fn turn(claim: &Arc<Claim>, number: u64, from: u64, state: bool) -> Commit {
    let turn = TurnId { nonce: 1, shard: claim.shard.shard.0, epoch: claim.epoch, number: from };
    let head = Head { version: from + 1, turn, ..Head::default() };
    let key = RecordKey::State("value".into());
    let mut writes = vec![RecordWrite { key, value: Some(from.to_be_bytes().to_vec().into()) }];
    writes.truncate(usize::from(state));
    Commit {
        claim: claim.clone(),
        entity: entity(number),
        expected_version: from,
        head,
        writes,
        extensions: Default::default(),
    }
}

fn main() {
    let dir = std::env::args_os().nth(1).map_or_else(std::env::temp_dir, PathBuf::from);
    let dir = dir.join(format!("ostraca-throughput-{}", std::process::id()));
    let options = Options::default();
    let store = SledStore::create(&dir, &options, ClusterId(1), "bench").expect("a new store");
    for (what, base) in [("heads alone", 0), ("head and state", SHARDS)] {
        let cpu = cpu_time();
        let (count, time) = measure(u64::from(SHARDS), |caller, ended| {
            commits(&store, base + caller as u32, base > 0, ended)
        });
        let cores = (cpu_time() - cpu).as_secs_f64() / time.as_secs_f64();
        println!("commits, {what}: {:.0}/s, {cores:.2} cores", per_second(count, time));
    }
    drop(store);

    let store = SledStore::open(&dir, &options).expect("the reopened store");
    let cpu = cpu_time();
    let (count, time) = measure(64, |caller, ended| {
        let mut count = 0;
        while !ended() {
            let number = caller.wrapping_mul(7919).wrapping_add(count * 31) % ENTITIES;
            let which = (shard((caller % u64::from(SHARDS)) as u32), entity(number));
            let loaded = block_on(store.load(vec![which])).remove(0).expect("a load");
            assert!(loaded.head.is_some());
            count += 1;
        }
        count
    });
    let cpu = cpu_time() - cpu;
    println!(
        "loads: {:.0}/s, {:.2} cores",
        per_second(count, time),
        cpu.as_secs_f64() / time.as_secs_f64()
    );
    drop(store);
    std::fs::remove_dir_all(&dir).expect("a removable directory");
}

/// One caller: commits to the entities of its shard in rotation, call after call.
fn commits(store: &SledStore, number: u32, state: bool, ended: &dyn Fn() -> bool) -> u64 {
    let claim = Arc::new(Claim {
        cluster: ClusterId(1),
        shard: shard(number),
        epoch: Epoch(1),
        owner: Member { node: NodeId::from("bench"), incarnation: Incarnation::default() },
        number: 1,
        extensions: Default::default(),
    });
    block_on(store.claim(vec![(*claim).clone()]));
    let mut count = 0;
    // Commits to every entity at least once, so that loads find all of them.
    while !ended() || count < ENTITIES {
        let turns = (count..count + CALL)
            .map(|n| turn(&claim, n % ENTITIES, n / ENTITIES, state))
            .collect();
        for outcome in block_on(store.commit(turns)) {
            assert_eq!(outcome, CommitOutcome::Committed);
        }
        count += CALL;
    }
    count
}

fn measure(callers: u64, call: impl Fn(u64, &dyn Fn() -> bool) -> u64 + Sync) -> (u64, Duration) {
    let total = AtomicU64::new(0);
    let start = Instant::now();
    std::thread::scope(|scope| {
        for caller in 0..callers {
            let (total, call) = (&total, &call);
            scope.spawn(move || {
                total.fetch_add(call(caller, &|| start.elapsed() >= FOR), Ordering::Relaxed)
            });
        }
    });
    (total.into_inner(), start.elapsed())
}

fn per_second(count: u64, time: Duration) -> f64 {
    count as f64 / time.as_secs_f64()
}

fn cpu_time() -> Duration {
    let clock = nix::time::ClockId::CLOCK_PROCESS_CPUTIME_ID;
    clock.now().map(Duration::from).unwrap_or_default()
}
