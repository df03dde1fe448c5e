//! `make bench`: the aims of `docs/performance.md`, measured on real nodes, beside bare parts: P1 to P5 on one
//! node, P6 to P9 (module `cluster`) on three, and the core alone (module `hot_paths`). A line that has an aim says whether
//! it is met.
//!
//! The node is `ostraca run` in a process of its own with its default settings, the entity is
//! examples/counter as shipped, and every command goes over QUIC and is durable before its reply.
//! Rates of a shared machine vary: compare the ratios to the bare parts of the same run, and the
//! processor time a turn.
//!
//! `ONLY=P1,P2` measures these, `ONLY=CORE` the core; `SECONDS=n` (default 8) is how long each loop lasts, `SESSIONS=n`
//! (default 16) over how many sessions the 64 commands in flight are spread; `ENTITIES=n` (default 50,000) is how
//! many entities sleep for P5; `SETTLE=n` (default 60) how many seconds after an attack of the zoo memory is looked at.
#![allow(clippy::print_stdout, reason = "it prints a table")]

mod baseline;
mod cluster;
mod hostile_guests;
mod hot_paths;
mod memory;

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
/// Commands under way in all.
const IN_FLIGHT: usize = 64;
/// Sessions that they are spread over, unless `SESSIONS` says otherwise.
const SESSIONS: usize = 16;
/// What share of the joined parts' rate P1 is to reach.
const JOINED_SHARE: f64 = 0.85;
/// Sleeping entities, of which each is touched once.
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
    /// What is aimed at, in the same unit.
    limit: Option<f64>,
    /// Whether it is reached, where there is one.
    met: Option<bool>,
    /// To the bare parts measured in the same run, where there is something to compare with.
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
        // More is better of rates, less of times and memory.
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
        "what", "value", "unit", "aim", "met", "ratio"
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

/// What needs nodes, and the bare parts beside them.
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
    cluster::run(bench).await?;
    // It takes ten minutes: only where it is named.
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
        // As clients mostly are: each has entities of its own. Then the worst case, in which every entity
        // has a lane for every session.
        for (id, shared) in [("P1", false), ("P1 shared", true)] {
            let whose = if shared { "to all of them" } else { "each to its own" };
            let settings =
                format!("{ENTITIES} entities, {IN_FLIGHT} in flight, {spread} sessions {whose}");
            let next =
                if shared { named("shared", ENTITIES) } else { own("own", ENTITIES, spread) };
            let found = busy(bench, id, &node, &client, IN_FLIGHT, next, &settings).await?;
            let aim = (!shared).then_some(JOINED_SHARE * bare.joined);
            let ratio = Some(found.rate() / bare.joined);
            bench.line(&format!("{id} rate"), (found.rate(), "/s"), aim, ratio, &settings);
            waits(bench, id, &found, &settings);
        }
    }
    if bench.wants("P2") {
        let settings = "1 entity, 1 in flight";
        let found = busy(bench, "P2", &node, &client, 1, named("one", 1), settings).await?;
        let parts = micros(bare.round_trip + bare.sync);
        let p50 = micros(found.percentile(50.0));
        bench.line("P2 p50", (p50, "us"), Some(2.0 * parts), Some(p50 / parts), settings);
        bench.line("P2 p99", (micros(found.percentile(99.0)), "us"), None, None, settings);
    }
    if bench.wants("P3") {
        let settings = format!("1 entity, {IN_FLIGHT} in flight, {spread} sessions");
        let next = named("hot", 1);
        let found = busy(bench, "P3", &node, &client, IN_FLIGHT, next, &settings).await?;
        let ratio = Some(found.rate() / bare.joined_hot);
        bench.line("P3 rate", (found.rate(), "/s"), Some(35_000.0), ratio, &settings);
        waits(bench, "P3", &found, &settings);
    }
    if bench.wants("P4") {
        let made = Instant::now() + Duration::from_secs(600);
        let next = named("cold", SLEEPING);
        closed_loop(&sessions(&client, spread), IN_FLIGHT / spread, "add", SLEEPING, made, next)
            .await?;
        node = asleep(home, node)?;
        let settings =
            format!("{SLEEPING} entities asleep, each touched once, {IN_FLIGHT} in flight");
        let before = Used::by(node.pid())?;
        let sessions_ = sessions(&client, spread);
        // A client that has just lost its node needs a moment.
        sessions_[0].query(&Entity::new("counter", "warm"), "get", "").await?;
        let each = IN_FLIGHT / spread;
        let found =
            closed_loop(&sessions_, each, "add", SLEEPING, made, named("cold", SLEEPING)).await?;
        bench.line("P4 rate", (found.rate(), "/s"), Some(8_000.0), None, &settings);
        waits(bench, "P4", &found, &settings);
        Used::by(node.pid())?.since(&before, bench, "P4", &found, &settings);
        node = asleep(home, node)?;
        let sessions_ = sessions(&client, spread);
        sessions_[0].query(&Entity::new("counter", "warm"), "get", "").await?;
        let settings = format!("{SLEEPING} entities asleep, {TOUCHED_A_SECOND} a second");
        let total = SLEEPING / 2;
        let found =
            open_loop(&sessions_, TOUCHED_A_SECOND, "add", total, named("cold", SLEEPING)).await?;
        bench.line(
            "P4 p50 at 1,000/s",
            (micros(found.percentile(50.0)), "us"),
            None,
            None,
            &settings,
        );
        let p99 = micros(found.percentile(99.0));
        bench.line("P4 p99 at 1,000/s", (p99, "us"), Some(2_000.0), None, &settings);
    }
    let resident = node.resident_kib()? as f64 / 1_024.0;
    bench.line("node resident", (resident, "MiB"), None, None, "at the end");
    client.close().await;
    node.stop()?;
    Ok(())
}

/// Commands in a closed loop, after a short one that wakes the entities.
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
    let found = closed_loop(&sessions, each, "add", u64::MAX, until, next).await?;
    Used::by(node.pid())?.since(&before, bench, id, &found, settings);
    Ok(found)
}

/// What P1's turns ask of the allocator: in a run of its own, which counting makes slower.
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
    let found = closed_loop(&sessions, each, "add", u64::MAX, until, next).await?;
    let each = counts.count()?.saturating_sub(before) as f64 / found.done.max(1) as f64;
    let settings = "as P1, counted in a run of its own";
    bench.line("P1 allocations a turn", (each, ""), None, None, settings);
    client.close().await;
    node.stop()?;
    Ok(())
}

fn waits(bench: &mut Bench, id: &str, found: &LoadResult, settings: &str) {
    for percent in [50.0, 99.0] {
        let wait = micros(found.percentile(percent));
        bench.line(&format!("{id} p{percent:.0}"), (wait, "us"), None, None, settings);
    }
}

/// Starts the node anew: every entity sleeps, its state on disk.
fn asleep(home: &NodeDir, node: NodeProcess) -> Result<NodeProcess> {
    node.stop()?;
    NodeProcess::start(home)
}

fn sessions(client: &Client, count: usize) -> Vec<Session> {
    (0..count.max(1)).map(|_| client.session()).collect()
}

/// Adds one to entities of this name, in turn.
fn named(name: &'static str, among: u64) -> Arc<Next> {
    Arc::new(move |_, n| (Entity::new("counter", format!("{name}-{}", n % among)), "1".into()))
}

/// The same, each session to a part of them.
fn own(name: &'static str, among: u64, sessions: usize) -> Arc<Next> {
    let part = among.div_ceil(sessions as u64);
    Arc::new(move |place, n| {
        (Entity::new("counter", format!("{name}-{place}-{}", n % part)), "1".into())
    })
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}
