//! P5: the memory that an entity uses on a node, with and without an instance.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use ostraca_client::Client;
use ostraca_process_tests::load::closed_loop;
use ostraca_process_tests::node_dir::deploy_example;
use ostraca_process_tests::{NodeDir, NodeProcess};

use super::{Bench, IN_FLIGHT, named, sessions};

/// Entities that are live at the same time: fewer than `max-live-instances`, so that none is passivated.
const LIVE: u64 = 5_000;
/// Entities with state and without an instance; `ENTITIES=1000000` measures the target itself, in a few minutes.
const ASLEEP: u64 = 50_000;

/// Measures on a separate node.
pub(crate) async fn run(bench: &mut Bench) -> Result<()> {
    let asleep = std::env::var("ENTITIES").ok().and_then(|text| text.parse().ok());
    let asleep: u64 = asleep.unwrap_or(ASLEEP);
    let home = NodeDir::init("bench-memory")?;
    let mut node = NodeProcess::start(&home)?;
    let client = Client::connect(home.profile(node.address)?).await?;
    deploy_example(&client, "counter").await?;

    let before = node.resident_kib()?;
    touch(bench, &client, LIVE).await?;
    let each = node.resident_kib()?.saturating_sub(before) as f64 / LIVE as f64;
    let settings = format!("{LIVE} live counters, state and instance");
    bench.line("P5 a live entity", (each, "KiB"), Some(64.0), None, &settings);

    touch(bench, &client, asleep).await?;
    client.close().await;
    node.stop()?;
    node = NodeProcess::start(&home)?;
    let client = Client::connect(home.profile(node.address)?).await?;
    let resident = node.resident_kib()? as f64 / 1_024.0;
    let settings = format!("{asleep} counters asleep, their state on disk");
    let aim = (asleep >= 1_000_000).then_some(1_024.0);
    bench.line("P5 asleep, resident", (resident, "MiB"), aim, None, &settings);
    client.close().await;
    node.stop()?;
    Ok(())
}

/// Adds one to each of this many counters.
async fn touch(bench: &Bench, client: &Client, entities: u64) -> Result<()> {
    let spread = bench.sessions;
    let until = Instant::now() + Duration::from_secs(3_600);
    let next = Arc::clone(&named("memory", entities));
    closed_loop(&sessions(client, spread), IN_FLIGHT / spread, "add", entities, until, next)
        .await?;
    Ok(())
}
