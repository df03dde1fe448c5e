//! P6 to P9: the cost of moving shards, of a lost node, and of another node's entities.
//!
//! Three nodes on one machine, without proxies, with default settings. A pause is the longest latency of an
//! entity's commands while its shard moves, with one command to each entity always in flight.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use ostraca_client::{Client, Entity};
use ostraca_core::hash::shard_of;
use ostraca_process_tests::attack::{ids_of, probes};
use ostraca_process_tests::cluster::{ALL, NO_STORE, Options};
use ostraca_process_tests::load::closed_loop;
use ostraca_process_tests::node_dir::deploy_example;
use ostraca_process_tests::probe_load::{ProbeLoad, spread};
use ostraca_process_tests::{Cluster, artifacts};
use serde_json::Value;

use crate::{Bench, IN_FLIGHT, sessions};

/// Number of hand-offs that are measured.
const HAND_OFFS: usize = 20;
/// Number of kills that are measured.
const KILLS: usize = 5;
/// Replies that left a node before it died arrive within this time.
const ARRIVAL: Duration = Duration::from_millis(50);

pub(crate) async fn run(bench: &mut Bench) -> Result<()> {
    if bench.wants("P6") {
        for (entities, aim) in [(100, 20.0), (1_000, 100.0)] {
            hand_offs(bench, entities, aim).await?;
        }
        drain(bench).await?;
    }
    if bench.wants("P7") {
        fail_over(bench).await?;
    }
    if bench.wants("P8") {
        across(bench).await?;
    }
    if bench.wants("P9") {
        planning(bench)?;
    }
    Ok(())
}

async fn start(roles: [&str; 3], shards: u32) -> Result<(Cluster, Vec<Client>)> {
    let options = Options { shards, proxied: false, ..Options::new("bench", &roles) };
    let mut cluster = Cluster::start(&options).await?;
    cluster.wait_settled().await?;
    let mut clients = Vec::new();
    for node in 0..cluster.len() {
        clients.push(cluster.client(node).await?);
    }
    deploy_example(&clients[0], "counter").await?;
    Ok((cluster, clients))
}

/// One shard moves back and forth between two hosts; the clients are connected to a third node.
async fn hand_offs(bench: &mut Bench, entities: usize, aim: f64) -> Result<()> {
    let hosts = "manager,host,gateway";
    let (mut cluster, clients) = start(["store,manager,gateway", hosts, hosts], 1).await?;
    let ids: Vec<_> = ids_of(1, 1, "moved").take(entities).collect();
    let mut pulse = ProbeLoad::start(&[&clients[0]], &ids);
    warm(&pulse, entities).await?;
    let mut pauses = Vec::new();
    for _ in 0..HAND_OFFS {
        let view = cluster.wait_settled().await?;
        let owner = view.owner(1).context("no owner")?.to_owned();
        let from = Instant::now();
        drained(&clients[0], &owner).await?;
        cluster.wait("another owns the shard", |view| view.owner(1) != Some(&owner)).await?;
        cluster.wait_settled().await?;
        warm(&pulse, entities).await?;
        pauses.extend(pulse.longest(from, Instant::now()).into_iter().flatten());
        let mut undone = clients[0].drain(&owner, true).await?;
        while undone.next().await?.is_some_and(|progress| !progress.done) {}
    }
    let done = pulse.end().await?;
    none_lost(&clients[0], &ids, done).await?;
    let what = format!("P6 pause, {entities} live");
    let settings = format!(
        "{HAND_OFFS} hand-offs of one shard, {entities} live entities, a command in flight to each, {done} answered, none lost"
    );
    lines(bench, &what, pauses, Some(aim), &settings);
    end(cluster, clients).await
}

/// Waits until every entity has answered again.
async fn warm(pulse: &ProbeLoad, entities: usize) -> Result<()> {
    let (from, until) = (Instant::now(), Instant::now() + Duration::from_secs(60));
    while pulse.answered_since(from) < entities {
        ensure!(Instant::now() < until, "not every entity answers");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

async fn drained(client: &Client, node: &str) -> Result<u32> {
    let mut updates = client.drain(node, false).await?;
    loop {
        let progress = updates.next().await?.context("the drain did not complete")?;
        if progress.done {
            return Ok(progress.total);
        }
    }
}

async fn none_lost(client: &Client, ids: &[String], done: u64) -> Result<()> {
    let (session, mut sum) = (client.session(), 0);
    for part in ids.chunks(200) {
        let calls: Vec<_> = part
            .iter()
            .map(|id| session.query(&Entity::new("counter", &**id), "get", ""))
            .collect();
        for answer in calls {
            sum += serde_json::from_slice::<u64>(&answer.await?.body)?;
        }
    }
    ensure!(sum == done, "{done} commands were answered, but the counters hold {sum}");
    Ok(())
}

/// A node with 300 shards is drained.
async fn drain(bench: &mut Bench) -> Result<()> {
    let shards = 900;
    let (mut cluster, clients) = start([ALL, NO_STORE, NO_STORE], shards).await?;
    let ids = probes(shards);
    let mut pulse = ProbeLoad::start(&[&clients[0], &clients[1]], &ids);
    warm(&pulse, ids.len()).await?;
    let view = cluster.wait_settled().await?;
    let owned: Vec<bool> = (1..=shards).map(|shard| view.owner(shard) == Some("n3")).collect();
    let from = Instant::now();
    let total = drained(&clients[0], "n3").await?;
    let took = from.elapsed();
    warm(&pulse, ids.len()).await?;
    let longest = pulse.longest(from, Instant::now()).into_iter().zip(owned);
    let pauses = longest.filter_map(|(pause, moved)| pause.filter(|_| moved)).collect();
    let done = pulse.end().await?;
    none_lost(&clients[0], &ids, done).await?;
    let settings = format!(
        "{total} shards drained with a live entity in each, {done} commands answered, none lost"
    );
    bench.line("P6 drain", (took.as_secs_f64() * 1e3, "ms"), Some(1_000.0), None, &settings);
    lines(bench, "P6 drain, pause", pauses, None, &settings);
    end(cluster, clients).await
}

/// A host is killed; its entities are activated elsewhere.
async fn fail_over(bench: &mut Bench) -> Result<()> {
    let shards = 300;
    let (mut cluster, clients) = start([ALL, NO_STORE, NO_STORE], shards).await?;
    let ids = probes(shards);
    let mut pulse = ProbeLoad::start(&[&clients[0], &clients[1]], &ids);
    let mut firsts = Vec::new();
    for _ in 0..KILLS {
        let view = cluster.wait("the shards are balanced", |view| view.balanced()).await?;
        cluster.wait_settled().await?;
        warm(&pulse, ids.len()).await?;
        let owned = |id: &String| view.owner(shard_of(id, shards).0) == Some("n3");
        let at = Instant::now();
        cluster.kill_9(2)?;
        tokio::time::sleep(ARRIVAL).await;
        warm(&pulse, ids.len()).await?;
        let first = pulse.first_after(at + ARRIVAL);
        let moved = ids.iter().zip(first).filter(|(id, _)| owned(id));
        firsts.extend(moved.filter_map(|(_, first)| first.map(|first| first + ARRIVAL)));
        cluster.start_node(2)?;
    }
    let done = pulse.end().await?;
    none_lost(&clients[0], &ids, done).await?;
    let settings = format!(
        "{KILLS} kill -9 of a host, from the kill to the first reply of each of its entities, clients at the other nodes"
    );
    lines(bench, "P7 fail-over", firsts, Some(5_000.0), &settings);
    end(cluster, clients).await
}

/// Commands to the same entities, through the gateway of their own node and through that of another. Neither node has
/// the store.
async fn across(bench: &mut Bench) -> Result<()> {
    let (mut cluster, clients) =
        start(["store,manager,gateway", "host,gateway", "host,gateway"], 64).await?;
    let view = cluster.wait_settled().await?;
    let owned = (1..=64).filter(|shard| view.owner(*shard) == Some("n2"));
    let ids: Vec<String> = owned.flat_map(|shard| ids_of(shard, 64, "p8").take(16)).collect();
    ensure!(!ids.is_empty(), "n2 owns no shard");
    let entities = ids.len();
    let next = std::sync::Arc::new(move |_: usize, n: u64| {
        (Entity::new("counter", ids[n as usize % entities].clone()), "1".to_owned())
    });
    let mut rates = [0.0; 2];
    // Measured alternately, twice each, after a short run that activates the entities, so that other load on the
    // machine affects both.
    for (part, time) in
        [(0.0, Duration::from_secs(2)), (0.5, bench.time / 2), (0.5, bench.time / 2)]
    {
        for (rate, client) in rates.iter_mut().zip(&clients[1..]) {
            let sessions = sessions(client, bench.sessions);
            let (each, until) = (IN_FLIGHT / sessions.len(), Instant::now() + time);
            let found = closed_loop(&sessions, each, "add", u64::MAX, until, next.clone()).await?;
            *rate += part * found.rate();
        }
    }
    let settings = format!(
        "{entities} entities of one node, {IN_FLIGHT} in flight, {} sessions",
        bench.sessions
    );
    bench.line("P8 rate, own node", (rates[0], "/s"), None, None, &settings);
    let ratio = rates[1] / rates[0];
    bench.line(
        "P8 rate, other node",
        (rates[1], "/s"),
        Some(rates[0] * 0.85),
        Some(ratio),
        &settings,
    );
    end(cluster, clients).await
}

/// The core's own measurement of planning.
fn planning(bench: &mut Bench) -> Result<()> {
    let output = artifacts::output(&artifacts::example("ostraca-core", "planning")?, &[])?;
    let line = output.lines().find(|line| line.starts_with('{')).context("no line of JSON")?;
    let found: Value = serde_json::from_str(line)?;
    let found = &found["P9"];
    let settings =
        format!("{} shards, {} nodes, {} times", found["shards"], found["nodes"], found["rounds"]);
    for (what, key) in [("all placed", "place_ms"), ("one node joins", "join_ms")] {
        for part in ["p50", "p99", "max"] {
            let value = found[key][part].as_f64().context("no number")?;
            bench.line(&format!("P9 {what}, {part}"), (value, "ms"), Some(50.0), None, &settings);
        }
    }
    let moves = found["join_moves"].as_f64().context("no number")?;
    bench.line(
        "P9 moves at a join",
        (moves, "moves"),
        found["join_moves_bound"].as_f64(),
        None,
        &settings,
    );
    Ok(())
}

/// Prints p50, p99 and maximum; the target applies to the p99.
fn lines(bench: &mut Bench, what: &str, times: Vec<Duration>, aim: Option<f64>, settings: &str) {
    let settings = format!("{settings}; {} samples", times.len());
    let values = spread(times);
    for (part, value) in ["p50", "p99", "max"].into_iter().zip(values) {
        let aim = aim.filter(|_| part == "p99");
        let value = value.as_secs_f64() * 1e3;
        bench.line(&format!("{what}, {part}"), (value, "ms"), aim, None, &settings);
    }
}

async fn end(cluster: Cluster, clients: Vec<Client>) -> Result<()> {
    for client in clients {
        client.close().await;
    }
    cluster.stop()
}
