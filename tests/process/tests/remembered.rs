//! Remembered entities on real processes (K31, R14): they start again without a message.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Result, ensure};
use futures::stream::{StreamExt, TryStreamExt};
use ostraca_client::{Client, Entity, MessageKind};
use ostraca_process_tests::Cluster;
use ostraca_process_tests::cluster::Options;
use ostraca_process_tests::guest_calls::{call, until};
use ostraca_process_tests::node_dir::deploy_guest;
use serde_json::json;
use tokio::time::Instant;

/// Number of remembered entities. `make soak` takes more.
fn entities() -> u64 {
    std::env::var("REMEMBERED").ok().and_then(|count| count.parse().ok()).unwrap_or(1_000)
}

/// How often an entity was started, read from the store without waking it.
async fn starts(client: &Client, id: &str) -> Result<u64> {
    let seen = client.inspect(&Entity::new("misbehaving", id), true).await?;
    let starts = seen.keys.iter().find(|key| key.key == "starts");
    Ok(starts.map_or(0, |key| std::str::from_utf8(&key.value).unwrap_or("0").parse().unwrap_or(0)))
}

/// The ids of the entities that are in memory.
async fn active(client: &Client) -> Result<BTreeSet<String>> {
    let mut ids = BTreeSet::new();
    let mut cursor = None;
    loop {
        let mut request = ostraca_client::EntitiesRequest { limit: 500, ..Default::default() };
        request.cursor = cursor.unwrap_or_default();
        let page = client.entities(request).await?;
        ids.extend(page.entities.into_iter().filter(|it| it.active == Some(true)).map(|it| it.id));
        if page.next_cursor.is_empty() {
            return Ok(ids);
        }
        cursor = Some(page.next_cursor);
    }
}

async fn after_a_kill() -> Result<String> {
    let roles = ["store,manager,gateway,host", "host,gateway", "host,gateway"];
    let mut cluster = Cluster::start(&Options::new("remembered", &roles)).await?;
    cluster.wait_settled().await?;
    let client = cluster.client(0).await?;
    deploy_guest(&client, "misbehaving", "").await?;
    let count = entities();
    let mark = |number: u64| {
        let (client, id) = (&client, format!("r{number}"));
        async move {
            let kind = MessageKind::Command;
            let marked =
                call(client, kind, &id, "remember", json!(!number.is_multiple_of(10))).await?;
            ensure!(marked == json!(!number.is_multiple_of(10)), "{id}: {marked}");
            Ok(())
        }
    };
    futures::stream::iter(0..count).map(mark).buffer_unordered(32).try_collect::<()>().await?;
    let expected: BTreeSet<_> = (0..count)
        .filter(|number| !number.is_multiple_of(10))
        .map(|number| format!("r{number}"))
        .collect();
    let before = active(&client).await?;
    ensure!(before.is_superset(&expected), "all are in memory at first");
    let killed = Instant::now();
    cluster.kill_9(1)?;
    cluster.kill_9(2)?;
    until("all remembered entities run again", async || {
        let missing = match active(&client).await {
            Ok(active) => expected.difference(&active).count(),
            // A shard may have no owner yet.
            Err(_) => return Ok(None),
        };
        Ok((missing == 0).then_some(()))
    })
    .await?;
    let recovered_in = killed.elapsed();
    let mut again = 0;
    for id in expected.iter().step_by(23) {
        let starts = starts(&client, id).await?;
        ensure!((1..=2).contains(&starts), "{id} was started {starts} times");
        again += starts - 1;
    }
    ensure!(again > 0, "some entities were on a node that was killed");
    let forgotten = active(&client).await?;
    let forgotten: Vec<_> = forgotten.difference(&expected).collect();
    // Those that are not remembered are at most where they were: on the node that survived.
    ensure!(forgotten.len() < (count / 10) as usize, "{} were not remembered", forgotten.len());
    client.close().await;
    cluster.stop()?;
    Ok(format!("{} remembered entities ran again {recovered_in:?} after the kill", expected.len()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k31_remembered_entities_run_again_after_a_kill() {
    println!("{}", after_a_kill().await.expect("they run again"));
}

/// A type whose entities are all remembered, a full restart, and fewer slots than entities.
async fn after_a_restart() -> Result<()> {
    let mut options = Options::new("remembered-restart", &["store,manager,gateway,host"]);
    options.settings = "[guests]\nmax-live-instances = 8\n".into();
    let mut cluster = Cluster::start(&options).await?;
    let client = cluster.client(0).await?;
    let manifest = "[lifecycle]\nremember-entities = true\nidle-timeout = \"200 ms\"\n";
    deploy_guest(&client, "misbehaving", manifest).await?;
    for number in 0..12 {
        let id = format!("r{number}");
        call(&client, MessageKind::Command, &id, "note", json!("x")).await?;
    }
    client.close().await;
    cluster.kill_9(0)?;
    cluster.start_node(0)?;
    let client = cluster.client(0).await?;
    until("as many run as there are slots", async || {
        Ok((active(&client).await?.len() == 8).then_some(()))
    })
    .await?;
    // A message takes a slot from one of them, and is not delayed by those that wait.
    for number in 0..12 {
        let body = json!("notes");
        let id = format!("r{number}");
        call(&client, MessageKind::Query, &id, "read", body).await?;
    }
    // They are not dropped for being idle.
    tokio::time::sleep(Duration::from_secs(1)).await;
    ensure!(active(&client).await?.len() == 8, "the slots are in use");
    let seen = client.inspect(&Entity::new("misbehaving", "r3"), false).await?;
    ensure!(seen.remembered, "it keeps its mark, with or without an instance");
    client.close().await;
    cluster.stop()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k31_recovery_fills_free_slots_and_no_more() {
    after_a_restart().await.expect("after a restart");
}
