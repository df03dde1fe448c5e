//! ETCD: the rows of 1,000 simulated nodes and 4,096 shards in one etcd cluster of three members.
//!
//! The nodes' leases are renewed as often as real nodes renew them, by compare-and-set, through some stores, each with
//! the renewals of many nodes. Each store watches all rows, as a real node does: so the number of watch events is that
//! of the writes times that of the stores. Beside them a manager assigns all shards, and moves some each second.
//!
//! `NODES=n` (default 1,000) is the number of nodes, `STORES=n` (default 20) that of the stores, and `RENEWAL=n` (default
//! 750) after how many milliseconds each lease is renewed: a quarter of the lease.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use bytes::Bytes;
use futures::future::{join_all, try_join_all};
use hdrhistogram::Histogram;
use ostraca_core::ids::ClusterId;
use ostraca_core::rows::SHARDS_PER_CHUNK;
use ostraca_process_tests::{rounds, usage};
use ostraca_store::{ClusterStore, CompareAndSet, RowEvent};
use ostraca_store_etcd::{EtcdStore, Options};
use ostraca_test_servers::etcd::Cluster;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

use crate::Bench;

const SHARDS: u32 = 4_096;
/// How often a node renews its lease by default, in milliseconds.
const RENEWAL: u64 = 750;
/// The answer must come within this many renewal intervals: 80 % of the lease.
const LATE: f64 = 3.2;
/// Bytes of a node's row, and of the row of 64 shards.
const NODE_BYTES: usize = 64;
const SHARD_BYTES: usize = 64 * 16;
/// Rows of shards that the manager changes each second.
const MOVES: usize = 4;

fn number(name: &str, default: u64) -> u64 {
    rounds::number(name).unwrap_or(default).max(1)
}

struct Figures {
    waits: Histogram<u64>,
    late: u64,
}

pub(super) async fn run(bench: &mut Bench) -> Result<()> {
    let (nodes, stores) = (number("NODES", 1_000) as usize, number("STORES", 20) as usize);
    let renewal = Duration::from_millis(number("RENEWAL", RENEWAL));
    let etcd = Cluster::start(3);
    let options = Options::new(etcd.endpoints());
    let first = EtcdStore::create(options.clone(), ClusterId(7), "bench").await?;
    let settings = format!(
        "{nodes} nodes through {stores} stores, each renewing every {renewal:?}, {SHARDS} shards, 3 members"
    );

    let rows: Vec<String> = (0..SHARDS.div_ceil(SHARDS_PER_CHUNK))
        .map(|row| format!("shards/default/{row:05}"))
        .collect();
    let began = Instant::now();
    let created = join_all(rows.iter().map(|key| write(&first, key, None, SHARD_BYTES))).await;
    ensure!(created.iter().all(Result::is_ok), "a row of shards was not written");
    let assigned = began.elapsed().as_secs_f64() * 1e3;
    bench.line("ETCD assign all shards", (assigned, "ms"), None, None, &settings);

    let mut opened = vec![Arc::new(first)];
    for _ in 1..stores {
        opened.push(Arc::new(EtcdStore::open(options.clone()).await?));
    }
    let events = Arc::new(AtomicU64::new(0));
    let mut watches = JoinSet::new();
    for store in &opened {
        watches.spawn(count_events(store.clone(), events.clone()));
    }
    let before = (processors(&etcd)?, usage::processor_time(std::process::id())?);
    let (began, seen) = (Instant::now(), events.load(Ordering::Relaxed));
    let until = began + bench.time;
    let renewing =
        (0..nodes).map(|node| renew(opened[node % stores].clone(), node, renewal, until));
    let renewing: Vec<_> = renewing.map(tokio::spawn).collect();
    let moving = tokio::spawn(move_shards(opened[0].clone(), rows, until));
    let (mut waits, mut late) = (Histogram::<u64>::new(3)?, 0);
    for figures in try_join_all(renewing).await? {
        let figures = figures?;
        waits.add(figures.waits)?;
        late += figures.late;
    }
    let moved = moving.await??;
    let seconds = began.elapsed().as_secs_f64();
    let writes = waits.len() + moved;
    bench.line("ETCD writes", (writes as f64 / seconds, "/s"), None, None, &settings);
    let seen = events.load(Ordering::Relaxed) - seen;
    bench.line("ETCD watch events", (seen as f64 / seconds, "/s"), None, None, &settings);
    for percent in [50.0, 99.0] {
        let wait = waits.value_at_percentile(percent) as f64;
        bench.line(&format!("ETCD renewal p{percent:.0}"), (wait, "us"), None, None, &settings);
    }
    bench.line("ETCD late renewals", (late as f64, ""), Some(0.0), None, &settings);
    let own = usage::processor_time(std::process::id())?.saturating_sub(before.1);
    let theirs = processors(&etcd)?.saturating_sub(before.0);
    for (id, used) in [("ETCD members' CPU", theirs), ("ETCD stores' CPU", own)] {
        bench.line(id, (used.as_secs_f64() / seconds * 100.0, "%"), None, None, &settings);
    }
    watches.shutdown().await;
    Ok(())
}

/// The processor time of all members.
fn processors(etcd: &Cluster) -> Result<Duration> {
    let mut sum = Duration::ZERO;
    for process in etcd.processes() {
        sum += usage::processor_time(process)?;
    }
    Ok(sum)
}

async fn write(store: &EtcdStore, key: &str, expected: Option<u64>, bytes: usize) -> Result<u64> {
    let value = Some(Bytes::from(vec![b'x'; bytes]));
    let cas = CompareAndSet { key: key.into(), expected, value };
    Ok(store.compare_and_set(cas).await?)
}

async fn count_events(store: Arc<EtcdStore>, events: Arc<AtomicU64>) {
    loop {
        let Ok((_, revision)) = store.list("").await else { continue };
        let mut watch = store.watch("", revision);
        while !matches!(watch.next().await, RowEvent::ResyncRequired) {
            events.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Renews a node's lease.
async fn renew(
    store: Arc<EtcdStore>,
    node: usize,
    renewal: Duration,
    until: Instant,
) -> Result<Figures> {
    let (key, mut revision) = (format!("nodes/n{node}"), None);
    let mut figures = Figures { waits: Histogram::new(3)?, late: 0 };
    tokio::time::sleep(renewal * u32::try_from(node % 100)? / 100).await;
    let mut ticks = interval(renewal);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    loop {
        ticks.tick().await;
        if Instant::now() >= until {
            return Ok(figures);
        }
        let sent = Instant::now();
        revision = Some(write(&store, &key, revision, NODE_BYTES).await?);
        figures.late += u64::from(sent.elapsed() > renewal.mul_f64(LATE));
        figures.waits.record(u64::try_from(sent.elapsed().as_micros())?)?;
    }
}

/// Changes some rows of shards each second, and returns how many.
async fn move_shards(store: Arc<EtcdStore>, rows: Vec<String>, until: Instant) -> Result<u64> {
    let mut ticks = interval(Duration::from_secs(1));
    let mut moved = 0;
    for chunk in rows.chunks(MOVES).cycle() {
        ticks.tick().await;
        if Instant::now() >= until {
            break;
        }
        for key in chunk {
            let found = store.get(key).await?.map(|row| row.revision);
            write(&store, key, found, SHARD_BYTES).await?;
            moved += 1;
        }
    }
    Ok(moved)
}
