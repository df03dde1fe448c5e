//! Instances that end when their guest asks for it, and shards that move when a guest fails (E15, K33), on real
//! processes.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use ostraca_client::{Client, Entity, MessageKind};
use ostraca_core::hash::shard_of;
use ostraca_process_tests::Cluster;
use ostraca_process_tests::cluster::Options;
use ostraca_process_tests::guest_calls::{call, until};
use ostraca_process_tests::node_dir::deploy_guest;
use serde_json::json;
use tokio::time::{Instant, sleep};

/// Whether an event of this kind names the shard.
pub(super) async fn has_event(client: &Client, kind: &str, shard: u32) -> Result<bool> {
    let mut events = client.events(false, 0).await?;
    while let Some(page) = events.next().await? {
        if page.events.iter().any(|it| it.kind == kind && it.shard == shard) {
            return Ok(true);
        }
    }
    Ok(false)
}

async fn escalated() -> Result<()> {
    let mut options = Options::three("lifecycle-escalate");
    options.settings = "[hand-off]\nmax-escalations = 1\n".into();
    let mut cluster = Cluster::start(&options).await?;
    cluster.wait_settled().await?;
    let client = cluster.client(0).await?;
    deploy_guest(&client, "misbehaving", "[lifecycle]\non-failure = \"escalate\"\n").await?;
    let id = cluster.ids_owned_by(1, "e", 1).await?.remove(0);
    let shard = shard_of(&id, cluster.shards).0;
    let add = async || {
        let body = json!({ "key": "k", "by": 1 });
        call(&client, MessageKind::Command, &id, "add", body).await
    };
    ensure!(add().await? == json!(1));
    let trapped = call(&client, MessageKind::Command, &id, "trap", json!(null)).await;
    ensure!(trapped.is_err(), "{trapped:?}");
    until("the shard has another owner", async || {
        Ok((cluster.owner_of(shard).await? != 1).then_some(()))
    })
    .await?;
    ensure!(add().await? == json!(2), "the state has moved too");
    let manager = cluster.manager().await?;
    let watcher = cluster.client(manager).await?;
    until("there is an event", async || {
        Ok(has_event(&watcher, "shard-escalated", shard).await?.then_some(()))
    })
    .await?;
    // The limit is reached: the shard stays, and the entity is served.
    let owner = cluster.owner_of(shard).await?;
    let trapped = call(&client, MessageKind::Command, &id, "trap", json!(null)).await;
    ensure!(trapped.is_err(), "{trapped:?}");
    sleep(Duration::from_secs(2)).await;
    ensure!(cluster.owner_of(shard).await? == owner, "moved more often than allowed");
    ensure!(add().await? == json!(3));
    watcher.close().await;
    client.close().await;
    cluster.stop()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k33_an_escalated_failure_moves_the_shard_once() {
    escalated().await.expect("escalated");
}

async fn passivated() -> Result<()> {
    let options = Options::new("lifecycle-passivate", &["store,manager,gateway,host"]);
    let cluster = Cluster::start(&options).await?;
    let client = cluster.client(0).await?;
    deploy_guest(&client, "misbehaving", "[lifecycle]\nidle-timeout = \"1 h\"\n").await?;
    let awake = async |id: &str| {
        let seen = client.inspect(&Entity::new("misbehaving", id), false).await?;
        let reasons = seen.activity.map(|it| it.awake).unwrap_or_default();
        anyhow::Ok(reasons.into_iter().map(|why| why.reason).collect::<Vec<_>>())
    };
    for (id, delay) in [("soon", json!(300)), ("never", json!(null))] {
        let body = json!({ "key": "k", "by": 1 });
        call(&client, MessageKind::Command, id, "add", body).await?;
        call(&client, MessageKind::Query, id, "passivate_after", delay).await?;
    }
    let since = Instant::now();
    until("the instance ends", async || Ok(awake("soon").await?.is_empty().then_some(()))).await?;
    ensure!(since.elapsed() >= Duration::from_millis(250), "after {:?}", since.elapsed());
    ensure!(!awake("never").await?.is_empty(), "the other one asked for no delay");
    let starts = call(&client, MessageKind::Query, "soon", "read", json!("starts")).await?;
    ensure!(starts.as_str().context("a count")? == "2", "{starts}");
    client.close().await;
    cluster.stop()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e15_an_instance_ends_after_the_delay_it_asked_for() {
    passivated().await.expect("passivated");
}
