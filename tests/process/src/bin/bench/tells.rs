//! P11: tells from entities of one node to entities of another, compared with the same work done by a client with
//! commands.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use ostraca_client::{Client, Entity, MessageKind};
use ostraca_process_tests::Cluster;
use ostraca_process_tests::cluster::Options;
use ostraca_process_tests::guest_calls::{LIMIT, call, until};
use ostraca_process_tests::load::closed_loop;
use ostraca_process_tests::node_dir::deploy_guest;
use serde_json::json;

use crate::{Bench, IN_FLIGHT, sessions};

/// Number of entities that send tells, and number of entities that receive them.
const SENDERS: usize = 100;
const TARGETS: usize = 200;
/// Number of tells per turn, each to a different target.
const EACH: u64 = 10;
/// Number of tells for each second of a loop.
const RATE: u64 = 2_500;
const MANIFEST: &str = "[grants]\ntell = [\"misbehaving\"]\n[limits]\noutbox = 5000\n";

pub(super) async fn run(bench: &mut Bench) -> Result<()> {
    let roles = ["store,manager,gateway,host", "host,gateway"];
    let options = Options { proxied: false, ..Options::new("bench-tells", &roles) };
    let mut cluster = Cluster::start(&options).await?;
    cluster.wait_settled().await?;
    let client = cluster.client(0).await?;
    deploy_guest(&client, "misbehaving", MANIFEST).await?;
    let senders = owned(&client, &cluster.name(0), "s", SENDERS).await?;
    let targets = owned(&client, &cluster.name(1), "t", TARGETS).await?;
    let total = RATE * bench.time.as_secs().max(1);
    // Each target runs as many.
    let total = total - total % TARGETS as u64;
    let deadline = Instant::now() + LIMIT * 2;
    let sessions = sessions(&client, bench.sessions);
    let each = IN_FLIGHT / sessions.len();

    let ids = targets.clone();
    let add = Arc::new(move |_: usize, n: u64| {
        let id = &ids[n as usize % TARGETS];
        (Entity::new("misbehaving", id.as_str()), json!({ "key": "sent", "by": 1 }).to_string())
    });
    let result = closed_loop(&sessions, each, "add", total, deadline, add).await?;
    let settings = format!("{TARGETS} entities of another node, {IN_FLIGHT} in flight");
    let by_client = result.rate();
    bench.line("P11 commands", (by_client, "/s"), None, None, &settings);

    let ids = targets.clone();
    let tell = Arc::new(move |_: usize, n: u64| {
        let to = |at: u64| ids[((n * EACH + at) as usize) % TARGETS].clone();
        let body = json!({ "ids": (0..EACH).map(to).collect::<Vec<_>>(), "key": "told" });
        let sender = &senders[n as usize % SENDERS];
        (Entity::new("misbehaving", sender.as_str()), body.to_string())
    });
    let began = Instant::now();
    closed_loop(&sessions, each, "tell_add", total / EACH, deadline, tell).await?;
    // One target after the other: polling all of them would be a load in itself.
    let expected = total / TARGETS as u64;
    for id in &targets {
        until("all tells run", async || {
            let told = call(&client, MessageKind::Query, id, "read", json!("told")).await?;
            let told = told.as_str().map_or(Ok(0), str::parse::<u64>)?;
            ensure!(told <= expected, "{id} ran {told} tells of {expected}");
            Ok((told == expected).then_some(()))
        })
        .await?;
    }
    let rate = total as f64 / began.elapsed().as_secs_f64();
    let settings = format!("{SENDERS} entities tell {TARGETS} of another node, {EACH} per turn");
    bench.line("P11 tells", (rate, "/s"), Some(1.5 * by_client), Some(rate / by_client), &settings);
    client.close().await;
    cluster.stop()
}

/// Names of entities that this node owns.
pub(super) async fn owned(
    client: &Client,
    node: &str,
    prefix: &str,
    count: usize,
) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for number in 0..count * 10 {
        let id = format!("{prefix}{number}");
        if client.inspect(&Entity::new("misbehaving", id.as_str()), false).await?.owner == node {
            found.push(id);
        }
        if found.len() == count {
            return Ok(found);
        }
    }
    None.with_context(|| format!("{node} owns too few entities"))
}
