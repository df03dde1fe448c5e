//! P13: timers set and fired.
//!
//! Entities set as many timers as fire at the target's rate for the duration of a loop, evenly spread over it. The
//! lateness is what the entities see: the time of the firing's turn minus the time at which the timer was due.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use futures::stream::{StreamExt, TryStreamExt};
use ostraca_client::{Client, MessageKind};
use ostraca_process_tests::guest_calls::call;
use ostraca_process_tests::node_dir::deploy_guest;
use ostraca_process_tests::{NodeDir, NodeProcess};
use serde_json::{Value, json};

use super::Bench;

/// The target: firings per second.
const RATE: u64 = 10_000;
const ENTITIES: u64 = 1_000;
/// Time between the first call that sets timers and the first firing.
const AHEAD_MS: u64 = 5_000;
const LIMITS: &str = "[limits]\ntimers = 1000\ntimer-bytes = \"512 KiB\"\n";

pub(super) async fn run(bench: &mut Bench) -> Result<()> {
    let home = NodeDir::init("bench-timers")?;
    let node = NodeProcess::start(&home)?;
    let client = Client::connect(home.profile(node.address)?).await?;
    deploy_guest(&client, "misbehaving", LIMITS).await?;
    let seconds = bench.time.as_secs().max(1);
    let each = (RATE * seconds / ENTITIES).clamp(1, 1_000);
    let total = each * ENTITIES;

    let began = Instant::now();
    futures::stream::iter(0..ENTITIES)
        .map(|id| {
            // Each entity's timers are due together, one entity after the other.
            let passed = u64::try_from(began.elapsed().as_millis()).unwrap_or(0);
            let after = (AHEAD_MS + id * seconds * 1_000 / ENTITIES).saturating_sub(passed);
            let arguments = json!({
                "name": "ring", "count": each, "after_ms": after, "every_ms": 0, "bytes": 20,
            });
            let (client, id) = (&client, id.to_string());
            async move { call(client, MessageKind::Command, &id, "set_timers", arguments).await }
        })
        .buffer_unordered(64)
        .try_collect::<Vec<_>>()
        .await?;
    let set = began.elapsed();
    let rate = total as f64 / set.as_secs_f64();
    let settings = format!("{total} timers of {ENTITIES} entities, {each} per turn");
    bench.line("P13 timers set", (rate, "/s"), None, None, &settings);

    let mut late: Vec<i64> = Vec::new();
    let end = began + Duration::from_millis(AHEAD_MS) + bench.time + Duration::from_secs(60);
    tokio::time::sleep(Duration::from_millis(AHEAD_MS) + bench.time).await;
    for id in 0..ENTITIES {
        let rung = loop {
            let rung =
                call(&client, MessageKind::Query, &id.to_string(), "rung", Value::Null).await?;
            if rung.as_array().is_some_and(|all| all.len() as u64 >= each) {
                break rung;
            }
            ensure!(Instant::now() < end, "not all timers fired");
            tokio::time::sleep(Duration::from_millis(50)).await;
        };
        let rung: Vec<(String, u64, i64, u64)> = serde_json::from_value(rung)?;
        ensure!(rung.iter().all(|(_, count, ..)| *count == 1), "a timer fired twice");
        late.extend(rung.iter().map(|(_, _, late, _)| late));
    }
    late.sort_unstable();
    ensure!(late.first().is_some_and(|first| *first >= 0), "a timer fired early");
    let settings = format!("{RATE} due each second, for {seconds} s");
    for percent in [50, 99] {
        let value = late[(late.len() - 1) * percent / 100] as f64;
        let limit = (percent == 99).then_some(1_000.0);
        bench.line(&format!("P13 late, p{percent}"), (value, "ms"), limit, None, &settings);
    }
    client.close().await;
    node.stop()?;
    Ok(())
}
