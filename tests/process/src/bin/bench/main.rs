//! `make bench`: measures what `docs/performance.md` lists, on real nodes and on the bare parts: P1 to P5 on one node,
//! P6 to P9 (module `cluster`) on three nodes, tells (P11), asks (P12), timers (P13), channels (P14), PostgreSQL (P16),
//! HTTP (P17), guests in other languages (P18), rows in etcd (ETCD), and the core alone (module `hot_paths`). A line with a target says whether it is
//! met.
//!
//! The node is `ostraca run` in a separate process with default settings, the entity is examples/counter as
//! shipped, and every command is sent over QUIC and is durable before its reply. Rates on a shared machine vary:
//! compare the ratios to the bare parts of the same run, and the processor time per turn.
//!
//! `ONLY=P1,P2` measures only those, `ONLY=CORE` only the core. `SECONDS=n` (default 8) is the duration of each
//! loop, `SESSIONS=n` (default 16) the number of sessions that share the 64 commands in flight, `ENTITIES=n`
//! (default 50,000) the number of inactive entities for P5, and `SETTLE=n` (default 60) the seconds between an
//! attack and the measurement of memory. `PG_SETTINGS` are lines for the settings of PostgreSQL in P16; `NODES` and
//! `STORES` are described in the module `on_etcd`.
#![allow(clippy::print_stdout, reason = "it prints a table")]

mod asks;
mod baseline;
mod cluster;
mod fan_out;
mod hostile_guests;
mod hot_paths;
mod http;
mod languages;
mod memory;
mod on_etcd;
mod on_postgres;
mod tells;
mod timers;

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use ostraca_client::{Client, Entity, Session};
use ostraca_process_tests::load::{LoadResult, Next, closed_loop, open_loop};
use ostraca_process_tests::node_dir::deploy_example;
use ostraca_process_tests::preload::Allocations;
use ostraca_process_tests::{NodeDir, NodeProcess, artifacts};
use serde::Serialize;

use self::baseline::{Baseline, Used};

const ENTITIES: u64 = 1_000;
/// Commands in flight, over all sessions.
const IN_FLIGHT: usize = 64;
/// Number of sessions that share these commands; the environment variable `SESSIONS` overrides it.
const SESSIONS: usize = 16;
/// P1's target, as a fraction of the combined parts' rate.
const JOINED_SHARE: f64 = 0.85;
/// Entities without an instance, each called once.
const SLEEPING: u64 = 20_000;
const TOUCHED_A_SECOND: u32 = 1_000;

#[tokio::main]
async fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let done = match (arguments.next().as_deref(), arguments.next()) {
        (Some(part), Some(dir)) => match baseline::served(part, Path::new(&dir)).await {
            Some(done) => done,
            None => run().await,
        },
        _ => run().await,
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("bench: failed: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// One line of the table.
#[derive(Debug, Serialize)]
struct Line {
    id: String,
    value: f64,
    unit: &'static str,
    /// The target, in the same unit.
    limit: Option<f64>,
    /// Whether the target is met; `None` without a target.
    met: Option<bool>,
    /// The ratio to the bare parts of the same run; `None` if there is nothing comparable.
    ratio: Option<f64>,
    settings: String,
}

struct Bench {
    only: Option<Vec<String>>,
    time: Duration,
    sessions: usize,
    lines: Vec<Line>,
}

impl Bench {
    fn wants(&self, id: &str) -> bool {
        self.only.as_ref().is_none_or(|only| only.iter().any(|one| one == id))
    }

    fn line(
        &mut self,
        id: &str,
        (value, unit): (f64, &'static str),
        limit: Option<f64>,
        ratio: Option<f64>,
        settings: &str,
    ) {
        // A higher rate is better; less time or memory is better.
        let met = limit.map(|limit| if unit == "/s" { value >= limit } else { value <= limit });
        let settings = settings.into();
        let line = Line { id: id.into(), value, unit, limit, met, ratio, settings };
        let number = |number: Option<f64>| number.map_or("-".into(), |n| format!("{n:.2}"));
        println!(
            "{:<26}{:>12.1} {:<8}{:>12}{:>6}{:>9}  {}",
            line.id,
            line.value,
            line.unit,
            number(line.limit),
            met.map_or("-", |met| if met { "yes" } else { "NO" }),
            number(line.ratio),
            line.settings
        );
        self.lines.push(line);
    }
}

async fn run() -> Result<()> {
    let only = std::env::var("ONLY").ok().filter(|only| !only.is_empty());
    let only = only.map(|only| only.split(',').map(|id| id.trim().to_uppercase()).collect());
    let number = |name| std::env::var(name).ok().and_then(|n| n.parse::<usize>().ok());
    let time = Duration::from_secs(number("SECONDS").unwrap_or(8) as u64);
    let spread = number("SESSIONS").unwrap_or(SESSIONS).clamp(1, IN_FLIGHT);
    let mut bench = Bench { only, time, sessions: spread, lines: Vec::new() };
    println!(
        "{:<26}{:>12} {:<8}{:>12}{:>6}{:>9}  settings",
        "what", "value", "unit", "target", "met", "ratio"
    );
    if bench.wants("CORE") {
        hot_paths::run(&mut bench)?;
    }
    if bench.only.as_ref().is_none_or(|only| only.iter().any(|id| id != "CORE")) {
        nodes(&mut bench).await?;
    }
    let dir = artifacts::profile_dir()?;
    let file = dir.parent().unwrap_or(&dir).join("bench");
    std::fs::create_dir_all(&file)?;
    let file = file.join("results.json");
    std::fs::write(&file, serde_json::to_string_pretty(&bench.lines)?)?;
    println!("bench: written to {}", file.display());
    Ok(())
}

/// Measures everything that needs nodes, and the bare parts.
async fn nodes(bench: &mut Bench) -> Result<()> {
    println!("bench: building the guests (half a minute the first time)");
    artifacts::module("counter")?;
    let home = NodeDir::init("bench")?;
    let bare = baseline::measure(bench, &home).await?;
    if ["P1", "P2", "P3", "P4"].iter().any(|id| bench.wants(id)) {
        single(bench, &home, &bare).await?;
    }
    if bench.wants("P1") {
        allocations(bench).await?;
    }
    if bench.wants("P5") {
        memory::run(bench).await?;
    }
    if bench.wants("P11") {
        tells::run(bench).await?;
    }
    if bench.wants("P12") {
        asks::run(bench).await?;
    }
    if bench.wants("P13") {
        timers::run(bench).await?;
    }
    if bench.wants("P14") {
        fan_out::run(bench).await?;
    }
    if bench.wants("P16") {
        on_postgres::run(bench).await?;
    }
    if bench.wants("P17") {
        http::run(bench).await?;
    }
    if bench.wants("P18") {
        languages::run(bench).await?;
    }
    if bench.wants("ETCD") {
        on_etcd::run(bench).await?;
    }
    cluster::run(bench).await?;
    // This takes ten minutes, so it runs only if `ONLY` names it.
    if bench.only.is_some() && bench.wants("ZOO") {
        hostile_guests::run(bench).await?;
    }
    Ok(())
}

/// P1 to P4.
async fn single(bench: &mut Bench, home: &NodeDir, bare: &Baseline) -> Result<()> {
    let spread = bench.sessions;
    let mut node = NodeProcess::start(home)?;
    let client = Client::connect(home.profile(node.address)?).await?;
    deploy_example(&client, "counter").await?;

    if bench.wants("P1") {
        // The usual case: each client has its own entities. Then the worst case: every entity has a lane for every
        // session.
        for (id, shared) in [("P1", false), ("P1 shared", true)] {
            let targets = if shared { "sending to all" } else { "each sending to its own" };
            let settings =
                format!("{ENTITIES} entities, {IN_FLIGHT} in flight, {spread} sessions {targets}");
            let next =
                if shared { named("shared", ENTITIES) } else { own("own", ENTITIES, spread) };
            let result = busy(bench, id, &node, &client, IN_FLIGHT, next, &settings).await?;
            let aim = (!shared).then_some(JOINED_SHARE * bare.joined);
            let ratio = Some(result.rate() / bare.joined);
            bench.line(&format!("{id} rate"), (result.rate(), "/s"), aim, ratio, &settings);
            waits(bench, id, &result, &settings);
        }
    }
    if bench.wants("P2") {
        let settings = "1 entity, 1 in flight";
        let result = busy(bench, "P2", &node, &client, 1, named("one", 1), settings).await?;
        let parts = micros(bare.round_trip + bare.sync);
        let p50 = micros(result.percentile(50.0));
        bench.line("P2 p50", (p50, "us"), Some(2.0 * parts), Some(p50 / parts), settings);
        bench.line("P2 p99", (micros(result.percentile(99.0)), "us"), None, None, settings);
    }
    if bench.wants("P3") {
        let settings = format!("1 entity, {IN_FLIGHT} in flight, {spread} sessions");
        let next = named("hot", 1);
        let result = busy(bench, "P3", &node, &client, IN_FLIGHT, next, &settings).await?;
        let ratio = Some(result.rate() / bare.joined_hot);
        bench.line("P3 rate", (result.rate(), "/s"), Some(35_000.0), ratio, &settings);
        waits(bench, "P3", &result, &settings);
    }
    if bench.wants("P4") {
        let deadline = Instant::now() + Duration::from_secs(600);
        let next = named("cold", SLEEPING);
        closed_loop(
            &sessions(&client, spread),
            IN_FLIGHT / spread,
            "add",
            SLEEPING,
            deadline,
            next,
        )
        .await?;
        node = asleep(home, node)?;
        let settings =
            format!("{SLEEPING} inactive entities, each called once, {IN_FLIGHT} in flight");
        let before = Used::by(node.pid())?;
        let senders = sessions(&client, spread);
        // The client lost its connection when the node restarted: wait until it is connected again.
        senders[0].query(&Entity::new("counter", "warm"), "get", "").await?;
        let each = IN_FLIGHT / spread;
        let result =
            closed_loop(&senders, each, "add", SLEEPING, deadline, named("cold", SLEEPING)).await?;
        bench.line("P4 rate", (result.rate(), "/s"), Some(8_000.0), None, &settings);
        waits(bench, "P4", &result, &settings);
        Used::by(node.pid())?.since(&before, bench, "P4", &result, &settings);
        node = asleep(home, node)?;
        let senders = sessions(&client, spread);
        senders[0].query(&Entity::new("counter", "warm"), "get", "").await?;
        let settings = format!("{SLEEPING} entities asleep, {TOUCHED_A_SECOND} a second");
        let total = SLEEPING / 2;
        let result =
            open_loop(&senders, TOUCHED_A_SECOND, "add", total, named("cold", SLEEPING)).await?;
        bench.line(
            "P4 p50 at 1,000/s",
            (micros(result.percentile(50.0)), "us"),
            None,
            None,
            &settings,
        );
        let p99 = micros(result.percentile(99.0));
        bench.line("P4 p99 at 1,000/s", (p99, "us"), Some(2_000.0), None, &settings);
    }
    let resident = node.resident_kib()? as f64 / 1_024.0;
    bench.line("node resident", (resident, "MiB"), None, None, "at the end");
    client.close().await;
    node.stop()?;
    Ok(())
}

/// Runs commands in a closed loop, after a short loop that activates the entities.
async fn busy(
    bench: &mut Bench,
    id: &str,
    node: &NodeProcess,
    client: &Client,
    in_flight: usize,
    next: Arc<Next>,
    settings: &str,
) -> Result<LoadResult> {
    let sessions = sessions(client, bench.sessions.min(in_flight));
    let each = in_flight / sessions.len();
    let warm = Instant::now() + Duration::from_secs(2);
    closed_loop(&sessions, each, "add", u64::MAX, warm, Arc::clone(&next)).await?;
    let before = Used::by(node.pid())?;
    let until = Instant::now() + bench.time;
    let result = closed_loop(&sessions, each, "add", u64::MAX, until, next).await?;
    Used::by(node.pid())?.since(&before, bench, id, &result, settings);
    Ok(result)
}

/// Counts the allocator calls of P1's turns, in a separate run because counting slows the node down.
async fn allocations(bench: &mut Bench) -> Result<()> {
    let home = NodeDir::init("bench-allocations")?;
    let counts = tempfile::tempdir_in(artifacts::scratch("allocations")?)?;
    let counts = Allocations::new(counts.path())?;
    let node = NodeProcess::start_as(&home, |command| counts.on(command))?;
    let client = Client::connect(home.profile(node.address)?).await?;
    deploy_example(&client, "counter").await?;
    let (spread, next) = (bench.sessions, own("own", ENTITIES, bench.sessions));
    let sessions = sessions(&client, spread);
    let each = IN_FLIGHT / spread;
    let warm = Instant::now() + Duration::from_secs(2);
    closed_loop(&sessions, each, "add", u64::MAX, warm, Arc::clone(&next)).await?;
    let before = counts.count()?;
    let until = Instant::now() + bench.time / 2;
    let result = closed_loop(&sessions, each, "add", u64::MAX, until, next).await?;
    let each = counts.count()?.saturating_sub(before) as f64 / result.done.max(1) as f64;
    let settings = "as P1, counted in a separate run";
    bench.line("P1 allocations per turn", (each, ""), None, None, settings);
    client.close().await;
    node.stop()?;
    Ok(())
}

fn waits(bench: &mut Bench, id: &str, result: &LoadResult, settings: &str) {
    for percent in [50.0, 99.0] {
        let wait = micros(result.percentile(percent));
        bench.line(&format!("{id} p{percent:.0}"), (wait, "us"), None, None, settings);
    }
}

/// Restarts the node, so that no entity has an instance.
fn asleep(home: &NodeDir, node: NodeProcess) -> Result<NodeProcess> {
    node.stop()?;
    NodeProcess::start(home)
}

fn sessions(client: &Client, count: usize) -> Vec<Session> {
    (0..count.max(1)).map(|_| client.session()).collect()
}

/// Adds one to each of these entities, round-robin.
fn named(name: &'static str, among: u64) -> Arc<Next> {
    Arc::new(move |_, n| (Entity::new("counter", format!("{name}-{}", n % among)), "1".into()))
}

/// Adds one to each of these entities, round-robin; each session has its own entities.
fn own(name: &'static str, among: u64, sessions: usize) -> Arc<Next> {
    let part = among.div_ceil(sessions as u64);
    Arc::new(move |place, n| {
        (Entity::new("counter", format!("{name}-{place}-{}", n % part)), "1".into())
    })
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}
