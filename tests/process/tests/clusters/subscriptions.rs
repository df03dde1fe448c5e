//! Entities that subscribe to another entity's channel, on real processes (R27).

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::stream::{StreamExt, TryStreamExt};
use ostraca_client::{CallOptions, Client, Entity, MessageKind, decode_export, encode_export};
use ostraca_process_tests::Cluster;
use ostraca_process_tests::cluster::Options;
use ostraca_process_tests::guest_calls::{call, until};
use ostraca_process_tests::node_dir::deploy_guest;
use serde_json::json;
use tokio::time::sleep;

const GRANT: &str = "[grants]\ntell = [\"misbehaving\"]\n";
/// Number of subscribers, which fill three pages, and of items.
const SUBSCRIBERS: u64 = 150;
const ITEMS: u64 = 30;

async fn emit(client: &Client, text: &str) -> Result<()> {
    let body = json!({ "on": ["news"], "text": text });
    call(client, MessageKind::Command, "room", "emit_text", body).await.map(drop)
}

/// What each subscriber has got.
async fn notes(client: &Client) -> Result<Vec<Vec<String>>> {
    futures::stream::iter(0..SUBSCRIBERS)
        .map(|number| async move {
            let id = format!("r{number}");
            let notes = call(client, MessageKind::Query, &id, "notes", json!(null)).await?;
            anyhow::Ok(serde_json::from_value(notes)?)
        })
        .buffered(16)
        .try_collect()
        .await
}

async fn across_a_kill() -> Result<()> {
    let roles = ["store,manager,gateway", "host,gateway", "host,gateway"];
    let mut cluster = Cluster::start(&Options::new("subscriptions", &roles)).await?;
    cluster.wait_settled().await?;
    let client = cluster.client(0).await?;
    deploy_guest(&client, "misbehaving", GRANT).await?;
    futures::stream::iter(0..SUBSCRIBERS)
        .map(|number| {
            let body = json!({ "id": "room", "channel": "news", "method": "note" });
            let (client, id) = (&client, format!("r{number}"));
            async move { call(client, MessageKind::Command, &id, "follow", body).await.map(drop) }
        })
        .buffer_unordered(16)
        .try_collect::<()>()
        .await?;
    // A subscription takes effect some time after the turn that made it.
    until("every subscription is made", async || {
        emit(&client, "first").await?;
        sleep(Duration::from_millis(300)).await;
        Ok(notes(&client).await?.iter().all(|notes| !notes.is_empty()).then_some(()))
    })
    .await?;
    let emitting = async {
        for number in 0..ITEMS {
            emit(&client, &number.to_string()).await?;
        }
        anyhow::Ok(())
    };
    let breaking = async {
        sleep(Duration::from_millis(200)).await;
        let owner = client.inspect(&Entity::new("misbehaving", "room"), false).await?.owner;
        let owner = cluster.place(&owner).context("an owner")?;
        cluster.kill_9(owner)?;
        sleep(Duration::from_secs(1)).await;
        cluster.start_node(owner)
    };
    let (emitted, broken) = tokio::join!(emitting, breaking);
    emitted?;
    broken?;
    let expected: Vec<String> = (0..ITEMS).map(|number| number.to_string()).collect();
    until("every item arrives", async || {
        let mut all = true;
        for (number, notes) in notes(&client).await?.into_iter().enumerate() {
            let items: Vec<String> = notes.into_iter().filter(|note| note != "first").collect();
            ensure!(expected.starts_with(&items), "r{number} got {items:?}");
            all &= items.len() == expected.len();
        }
        Ok(all.then_some(()))
    })
    .await?;
    survives_export(&client).await?;
    client.close().await;
    cluster.stop()
}

/// Replaces the publisher with its export: its subscribers get what it emits from then on.
async fn survives_export(client: &Client) -> Result<()> {
    let room = Entity::new("misbehaving", "room");
    let shown = client.inspect(&room, false).await?;
    let of_channels = shown.channel_subscriptions.iter().map(|it| (&*it.channel, it.count));
    ensure!(of_channels.eq([("news", SUBSCRIBERS)]), "{:?}", shown.channel_subscriptions);
    ensure!(shown.subscription_count == SUBSCRIBERS && shown.subscriptions.len() == 50);
    let export = client.export(&room).await?;
    let export = decode_export(&encode_export(&export)).map_err(anyhow::Error::msg)?;
    ensure!((export.format, export.subscriptions.len() as u64) == (2, SUBSCRIBERS));
    let (session, options) = (client.session(), CallOptions::default());
    session.delete_entity(&room, &options).await?;
    emit(client, "unseen").await?;
    session.delete_entity(&room, &options).await?;
    session.import_entity(&room, export, &options).await?;
    emit(client, "last").await?;
    until("the last item arrives", async || {
        let all = notes(client).await?;
        ensure!(all.iter().flatten().all(|note| note != "unseen"), "it had no subscribers");
        Ok(all.iter().all(|notes| notes.iter().any(|note| note == "last")).then_some(()))
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r27_items_reach_each_subscriber_once_across_a_kill() {
    across_a_kill().await.expect("across a kill");
}
