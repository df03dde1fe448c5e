//! P18: one guest in Rust, TypeScript and Python: its size, how long it takes to deploy, to start an instance and to run a
//! turn, and the memory that an instance uses.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use ostraca_client::{Client, Entity};
use ostraca_process_tests::languages::{Guest, guests};
use ostraca_process_tests::load::{Next, closed_loop};
use ostraca_process_tests::{NodeDir, NodeProcess};

use crate::baseline::Used;
use crate::{Bench, IN_FLIGHT, micros, sessions};

/// Entities whose instances are started one after the other, and stay.
const STARTED: u64 = 100;
/// How long the instances may take to start.
const LONGEST: Duration = Duration::from_secs(600);

/// Measures each language on a node of its own.
pub(crate) async fn run(bench: &mut Bench) -> Result<()> {
    for guest in tokio::task::spawn_blocking(guests).await?? {
        let home = NodeDir::init("bench-languages")?;
        let node = NodeProcess::start(&home)?;
        let client = Client::connect(home.profile(node.address)?).await?;
        measure(bench, &node, &client, &guest).await?;
        client.close().await;
        node.stop()?;
    }
    Ok(())
}

async fn measure(
    bench: &mut Bench,
    node: &NodeProcess,
    client: &Client,
    guest: &Guest,
) -> Result<()> {
    let id = format!("P18 {}", guest.language);
    let kib = guest.first.len() as f64 / 1_024.0;
    bench.line(&format!("{id} size"), (kib, "KiB"), None, None, "the component");
    let began = Instant::now();
    client.deploy(&guest.manifest(), guest.first.clone(), None).await?;
    let took = began.elapsed().as_secs_f64();
    bench.line(&format!("{id} deployment"), (took, "s"), None, None, "with its compilation");

    let one = sessions(client, 1);
    let next = |name: &'static str, among: u64| -> Arc<Next> {
        let entity_type = format!("behaving-{}", guest.language);
        Arc::new(move |_, n| {
            (Entity::new(entity_type.as_str(), format!("{name}-{}", n % among)), "1".into())
        })
    };
    closed_loop(&one, 1, "add", 1, Instant::now() + LONGEST, next("first", 1)).await?;
    let before = node.resident_kib()?;
    let until = Instant::now() + LONGEST;
    let started = closed_loop(&one, 1, "add", STARTED, until, next("started", STARTED)).await?;
    let each = node.resident_kib()?.saturating_sub(before) as f64 / STARTED as f64;
    let settings = format!("{STARTED} entities without an instance, one after the other");
    for percent in [50.0, 99.0] {
        let wait = micros(started.percentile(percent));
        bench.line(&format!("{id} cold p{percent:.0}"), (wait, "us"), None, None, &settings);
    }
    let settings = format!("resident, each of {STARTED} instances after its first turn");
    bench.line(&format!("{id} an instance"), (each, "KiB"), None, None, &settings);

    let until = Instant::now() + bench.time;
    let warm = closed_loop(&one, 1, "add", u64::MAX, until, next("started", 1)).await?;
    let settings = "1 entity with an instance, 1 in flight";
    bench.line(
        &format!("{id} warm p50"),
        (micros(warm.percentile(50.0)), "us"),
        None,
        None,
        settings,
    );
    let settings = format!("{STARTED} entities, {IN_FLIGHT} in flight");
    let all = sessions(client, bench.sessions);
    let before = Used::by(node.pid())?;
    let until = Instant::now() + bench.time;
    let each = IN_FLIGHT / all.len();
    let result = closed_loop(&all, each, "add", u64::MAX, until, next("started", STARTED)).await?;
    bench.line(&format!("{id} rate"), (result.rate(), "/s"), None, None, &settings);
    Used::by(node.pid())?.since(&before, bench, &id, &result, &settings);
    Ok(())
}
