//! P12: how long an ask from an entity on one node to an entity on another takes, compared with the same command from a
//! client of the first node.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use ostraca_client::Entity;
use ostraca_process_tests::Cluster;
use ostraca_process_tests::cluster::Options;
use ostraca_process_tests::guest_calls::LIMIT;
use ostraca_process_tests::load::closed_loop;
use ostraca_process_tests::node_dir::deploy_guest;
use serde_json::json;

use crate::tells::owned;
use crate::{Bench, micros, sessions};

/// Number of asking entities, and of entities that they ask.
const ENTITIES: usize = 50;
/// Number of commands per second of a loop's duration.
const RATE: u64 = 100;
const MANIFEST: &str = "[grants]\nask = [\"misbehaving\"]\n";

pub(super) async fn run(bench: &mut Bench) -> Result<()> {
    let roles = ["store,manager,gateway,host", "host,gateway"];
    let options = Options { proxied: false, ..Options::new("bench-asks", &roles) };
    let mut cluster = Cluster::start(&options).await?;
    cluster.wait_settled().await?;
    let client = cluster.client(0).await?;
    deploy_guest(&client, "misbehaving", MANIFEST).await?;
    let askers = owned(&client, &cluster.name(0), "s", ENTITIES).await?;
    let targets = owned(&client, &cluster.name(1), "t", ENTITIES).await?;
    let total = RATE * bench.time.as_secs().max(1);
    let deadline = Instant::now() + LIMIT * 2;
    let sessions = sessions(&client, 1);
    let along = |ids: Vec<String>, asked: Option<Vec<String>>| {
        Arc::new(move |_: usize, n: u64| {
            let at = n as usize % ENTITIES;
            let asked: Vec<_> = asked.iter().map(|asked| asked[at].clone()).collect();
            let body = json!({ "ids": asked, "key": "k" });
            (Entity::new("misbehaving", ids[at].as_str()), body.to_string())
        })
    };
    let mut measured = Vec::new();
    for (what, next) in [
        ("commands to the asked entities", along(targets.clone(), None)),
        ("commands that do not ask", along(askers.clone(), None)),
        ("commands that ask", along(askers, Some(targets))),
    ] {
        // Warm up, so every entity has an instance.
        closed_loop(&sessions, 1, "ask_along", ENTITIES as u64, deadline, next.clone()).await?;
        let result = closed_loop(&sessions, 1, "ask_along", total, deadline, next).await?;
        let p50 = result.percentile(50.0);
        let settings = format!("{what}, one at a time");
        bench.line("P12 p50", (micros(p50), "us"), None, None, &settings);
        measured.push(p50);
    }
    let [command, without, with] = measured[..] else { return Ok(()) };
    let ask: Duration = with.saturating_sub(without);
    let ratio = ask.as_secs_f64() / command.as_secs_f64();
    let settings = "one ask: the difference of the last two; the ratio is to a client's command";
    let aim = Some(1.2 * micros(command));
    bench.line("P12 ask p50", (micros(ask), "us"), aim, Some(ratio), settings);
    client.close().await;
    cluster.stop()
}
