//! Durable timers on real processes (R14, R25).

use std::time::Duration;

use anyhow::{Result, ensure};
use futures::stream::{StreamExt, TryStreamExt};
use ostraca_client::{Client, MessageKind};
use ostraca_process_tests::Cluster;
use ostraca_process_tests::cluster::Options;
use ostraca_process_tests::guest_calls::{call, until};
use ostraca_process_tests::node_dir::deploy_guest;
use serde_json::json;
use tokio::time::{Instant, sleep};

const ENTITIES: u64 = 1_000;
const TIMERS: u64 = 100;
const LIMITS: &str =
    "[limits]\ntimers = 1000\ntimer-bytes = \"512 KiB\"\ntimer-interval = \"10 ms\"\n";

async fn set(
    client: &Client,
    id: &str,
    name: &str,
    count: u64,
    after_ms: u64,
    every_ms: u64,
) -> Result<()> {
    let body = json!({
        "name": name, "count": count, "after_ms": after_ms, "every_ms": every_ms, "bytes": 20,
    });
    call(client, MessageKind::Command, id, "set_timers", body).await.map(drop)
}

/// Per timer: name, firings, latest lateness in milliseconds, missed intervals.
type Rung = Vec<(String, u64, i64, u64)>;

async fn rung(client: &Client, id: &str) -> Result<Rung> {
    Ok(serde_json::from_value(call(client, MessageKind::Query, id, "rung", json!(null)).await?)?)
}

/// More entities than may have an instance at the same time, so their timers activate most of them; a host is killed
/// midway.
async fn a_hundred_thousand_timers() -> Result<String> {
    let roles = ["store,manager,gateway,host", "host,gateway", "host,gateway"];
    let mut options = Options::new("timers", &roles);
    options.settings = "[guests]\nmax-live-instances = 100\n".into();
    let mut cluster = Cluster::start(&options).await?;
    cluster.wait_settled().await?;
    let client = cluster.client(0).await?;
    deploy_guest(&client, "misbehaving", LIMITS).await?;
    let ids: Vec<String> = (0..ENTITIES).map(|number| format!("t{number}")).collect();
    let began = Instant::now();
    futures::stream::iter(ids.iter().enumerate())
        .map(|(number, id)| set(&client, id, "ring", TIMERS, 5_000 + number as u64 * 15, 0))
        .buffer_unordered(32)
        .try_collect::<()>()
        .await?;
    let set_in = began.elapsed();
    // Wait until about half of the timers have fired.
    sleep(Duration::from_secs(10).saturating_sub(began.elapsed())).await;
    cluster.kill_9(2)?;

    let mut late: Vec<i64> = Vec::new();
    for id in &ids {
        let what = format!("all timers of {id} fire");
        let all = until(&what, async || {
            let rung = rung(&client, id).await?;
            Ok((rung.len() as u64 >= TIMERS).then_some(rung))
        });
        for (name, count, ms, missed) in all.await? {
            ensure!((count, missed) == (1, 0), "{name} of {id} fired {count} times");
            ensure!(ms >= 0, "{name} of {id} fired {} ms early", -ms);
            late.push(ms);
        }
    }
    late.sort_unstable();
    let at = |percent: usize| late[(late.len() - 1) * percent / 100];
    let (p50, p90, p99, max) = (at(50), at(90), at(99), at(100));
    let figures =
        format!("set in {set_in:?}; late by p50 {p50} ms, p90 {p90}, p99 {p99}, max {max}");
    ensure!(late.len() as u64 == ENTITIES * TIMERS, "{} timers", late.len());
    client.close().await;
    cluster.stop()?;
    Ok(figures)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r25_each_of_100000_timers_fires_once_across_a_kill() {
    println!("{}", a_hundred_thousand_timers().await.expect("each fires once"));
}

/// The whole cluster is killed while timers are due.
async fn an_outage() -> Result<()> {
    let roles = ["store,manager,gateway,host", "host,gateway"];
    let mut cluster = Cluster::start(&Options::new("timers-outage", &roles)).await?;
    cluster.wait_settled().await?;
    let client = cluster.client(0).await?;
    deploy_guest(&client, "misbehaving", LIMITS).await?;
    set(&client, "e", "ring/once", 1, 3_000, 0).await?;
    set(&client, "e", "ring/often", 1, 3_000, 500).await?;
    set(&client, "e", "ring/cancelled", 1, 3_000, 0).await?;
    let cancelled =
        call(&client, MessageKind::Command, "e", "cancel_timer", json!("ring/cancelled")).await?;
    assert_eq!(cancelled, true);
    client.close().await;
    for node in 0..2 {
        cluster.kill_9(node)?;
    }
    sleep(Duration::from_secs(6)).await;
    for node in 0..2 {
        cluster.start_node(node)?;
    }
    // Nobody sends a message to the entity before the timers have fired.
    sleep(Duration::from_secs(10)).await;
    let client = cluster.client(0).await?;
    let rung = until("the timers fire", async || {
        let rung = rung(&client, "e").await?;
        Ok((rung.len() >= 2).then_some(rung))
    });
    let rung = rung.await?;
    let [often, once] = [&rung[0], &rung[1]];
    assert_eq!((&*often.0, &*once.0, rung.len()), ("ring/often", "ring/once", 2));
    ensure!(once.1 == 1 && once.2 >= 1_000, "due in the outage: {once:?}");
    ensure!(often.1 >= 2 && often.3 >= 2, "the intervals of the outage fire once: {often:?}");
    client.close().await;
    cluster.stop()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r25_timers_due_in_an_outage_fire_at_recovery() {
    an_outage().await.expect("timers fire at recovery");
}

/// Timers that fail each time are set aside.
async fn a_failing_timer() -> Result<()> {
    let mut options = Options::new("timers-failing", &["store,manager,gateway,host"]);
    options.settings = "[entities]\ntimer-attempts = 3\ntimer-backoff = \"50 ms\"\n".into();
    let cluster = Cluster::start(&options).await?;
    let client = cluster.client(0).await?;
    deploy_guest(&client, "misbehaving", LIMITS).await?;
    for name in ["alarm", "stubborn", "nobody"] {
        set(&client, "e", name, 1, 100, 0).await?;
    }
    set(&client, "e", "ring", 1, 100, 0).await?;
    until("three timers are set aside", async || {
        let all = call(&client, MessageKind::Query, "e", "timers", json!(null)).await?;
        Ok((all == json!([["alarm", 3, true], ["nobody", 3, true], ["stubborn", 3, true]]))
            .then_some(()))
    })
    .await?;
    let read = call(&client, MessageKind::Query, "e", "read", json!("stubborn")).await?;
    assert_eq!(read, json!(null), "a firing that fails has no effect");
    let rung = rung(&client, "e").await?;
    assert_eq!((rung.len(), &*rung[0].0), (1, "ring"), "the other timer does not wait");
    let log = cluster.process(0)?.log();
    for why in ["not today", "the alarm fails", "no method with #[timer]"] {
        let line = log.lines().find(|line| line.contains("failed too often") && line.contains(why));
        ensure!(line.is_some(), "no warning with {why:?}: {log}");
    }
    client.close().await;
    cluster.stop()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r25_a_failing_timer_is_set_aside_with_a_warning() {
    a_failing_timer().await.expect("failing timers are set aside");
}
