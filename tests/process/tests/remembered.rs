//! Remembered entities on real processes (K31, R14): they start again without a message.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
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

/// Maximum number of live instances of each node; by default as many as there are entities.
fn live_instances() -> u64 {
    std::env::var("LIVE").ok().and_then(|count| count.parse().ok()).unwrap_or_else(entities)
}

/// How often each of these entities was started, read from the store without waking it.
async fn starts(client: &Client, ids: &BTreeSet<String>) -> Result<BTreeMap<String, u64>> {
    let starts_of = |id: String| async move {
        let seen = client.inspect(&Entity::new("misbehaving", id.as_str()), true).await?;
        ensure!(seen.remembered, "{id} keeps its mark");
        let starts = seen.keys.iter().find(|key| key.key == "starts").context("it was started")?;
        let starts = std::str::from_utf8(&starts.value)?.parse()?;
        Ok::<_, anyhow::Error>((id, starts))
    };
    let ids = futures::stream::iter(ids.iter().cloned());
    ids.map(starts_of).buffer_unordered(32).try_collect().await
}

/// The entities that are in memory, with the node of each.
async fn active(client: &Client) -> Result<BTreeMap<String, String>> {
    let mut active = BTreeMap::new();
    let mut cursor = None;
    loop {
        let mut request = ostraca_client::EntitiesRequest { limit: 1_000, ..Default::default() };
        request.cursor = cursor.unwrap_or_default();
        let page = client.entities(request).await?;
        let entities = page.entities.into_iter().filter(|it| it.active == Some(true));
        active.extend(entities.map(|it| (it.id, it.owner)));
        if page.next_cursor.is_empty() {
            return Ok(active);
        }
        cursor = Some(page.next_cursor);
    }
}

/// One of three nodes is killed while nobody sends anything. With fewer slots than entities (`LIVE`), those that get
/// none keep their mark.
async fn after_a_kill() -> Result<String> {
    let roles = ["store,manager,gateway,host", "host,gateway", "host,gateway"];
    let mut options = Options::new("remembered", &roles);
    // Each instance of this guest counts about 1.1 MiB, of which it touches a tenth.
    let live = live_instances();
    let memory = format!("max-live-memory = \"{} MiB\"\n", (live * 2).max(1_024));
    options.settings = format!("[guests]\nmax-live-instances = {live}\n{memory}");
    let mut cluster = Cluster::start(&options).await?;
    cluster.wait_settled().await?;
    let client = cluster.client(0).await?;
    deploy_guest(&client, "misbehaving", "[lifecycle]\nidle-timeout = \"1 h\"\n").await?;
    let count = entities();
    let is_remembered = |number: u64| !number.is_multiple_of(10);
    let mark = |number: u64| {
        let (client, id) = (&client, format!("r{number}"));
        async move {
            let kind = MessageKind::Command;
            let marked = call(client, kind, &id, "remember", json!(is_remembered(number))).await?;
            ensure!(marked == json!(is_remembered(number)), "{id}: {marked}");
            Ok(())
        }
    };
    futures::stream::iter(0..count).map(mark).buffer_unordered(32).try_collect::<()>().await?;
    let remembered: BTreeSet<_> =
        (0..count).filter(|number| is_remembered(*number)).map(|it| format!("r{it}")).collect();
    let before = active(&client).await?;
    let all_fit = live_instances() >= count;
    ensure!(!all_fit || before.len() as u64 == count, "all are in memory at first");
    let starts_before = starts(&client, &remembered).await?;
    let owners = BTreeSet::from_iter(before.values().cloned());
    ensure!(owners.len() == 3, "each node has some: {owners:?}");

    let killed = Instant::now();
    cluster.kill_9(1)?;
    let slots = usize::try_from(live_instances() * 2)?;
    until("remembered entities fill the slots of the other nodes", async || {
        let Ok(active) = active(&client).await else {
            // A shard may have no owner yet.
            return Ok(None);
        };
        let running = active.keys().filter(|id| remembered.contains(*id)).count();
        Ok((running == remembered.len() || active.len() == slots).then_some(()))
    })
    .await?;
    let recovered_in = killed.elapsed();
    let after = active(&client).await?;
    let running = after.keys().filter(|id| remembered.contains(*id)).count();

    // A start for recovery commits once. Only one node was killed, so none of these starts was repeated elsewhere.
    let mut moved = 0;
    for (id, starts) in starts(&client, &remembered).await? {
        let again = starts - starts_before[&id];
        ensure!(again <= 1, "{id} was started {again} times for one kill");
        let elsewhere = after.get(&id).is_some_and(|owner| Some(owner) != before.get(&id));
        ensure!(again == u64::from(elsewhere), "{id}: {again} starts, moved: {elsewhere}");
        moved += again;
    }
    ensure!(moved > 0, "some entities were on the node that was killed");
    // Recovery takes no instance from an entity that a message has activated.
    let mut kept = 0;
    for (id, owner) in before.iter().filter(|(id, _)| !remembered.contains(*id)) {
        match after.get(id) {
            Some(now) => {
                ensure!(now == owner, "{id} is not remembered, but runs on another node");
                kept += 1;
            }
            None => ensure!(!after.values().any(|it| it == owner), "{id} was evicted on {owner}"),
        }
    }
    ensure!(kept > 0, "some entities that are not remembered were on the other nodes");
    client.close().await;
    cluster.stop()?;
    Ok(format!(
        "{recovered_in:?} after the kill, {running} of {} remembered entities run, {moved} of them on another node",
        remembered.len()
    ))
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
