//! The rooms of `examples/chat` on three nodes: messages, presence and a remembered room across a kill of its node.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use ostraca_client::{ChannelEvent, Client, Entity, SubscribeFrom, Subscription};
use ostraca_process_tests::Cluster;
use ostraca_process_tests::cluster::Options;
use ostraca_process_tests::guest_calls::{LIMIT, until};
use ostraca_process_tests::node_dir::deploy_example;
use serde_json::{Value, json};
use tokio::time::timeout;

/// Number of posts before and after the kill.
const PART: u64 = 20;

async fn send(client: &Client, room: &Entity, method: &str, body: Value) -> Result<Value> {
    let reply = client.session().command(room, method, body.to_string()).await;
    serde_json::from_slice(&reply.with_context(|| method.to_owned())?.body).context("a JSON reply")
}

async fn post(client: &Client, room: &Entity, name: &str, text: u64) -> Result<()> {
    let number =
        send(client, room, "post", json!({ "name": name, "text": text.to_string() })).await?;
    ensure!(number == text, "post {text} has the number {number}");
    Ok(())
}

async fn next(subscription: &mut Subscription) -> Result<Value> {
    match timeout(LIMIT, subscription.next()).await.context("no item")?? {
        ChannelEvent::Item(item) => Ok(serde_json::from_slice(&item.data)?),
        ChannelEvent::Lost(lost) => bail!("lost {lost:?}"),
    }
}

async fn chat() -> Result<()> {
    let mut cluster = Cluster::start(&Options::three("chat")).await?;
    cluster.wait_settled().await?;
    let (client, other) = (cluster.client(0).await?, cluster.client(1).await?);
    deploy_example(&client, "chat").await?;
    let owner = 1;
    let id = cluster.ids_owned_by(owner, "room", 1).await?.remove(0);
    let room = Entity::new("chat", id);
    let mut messages = client.subscribe(&room, "messages", SubscribeFrom::Oldest);
    let mut presence = other.subscribe(&room, "presence", SubscribeFrom::Oldest);
    for name in ["alice", "bob", "carol"] {
        send(&client, &room, "join", json!({ "name": name })).await?;
        let item = next(&mut presence).await?;
        ensure!(item == json!({ "name": name, "change": "joined" }), "{item}");
    }
    for text in 1..=PART {
        post(&other, &room, "alice", text).await?;
    }
    send(&client, &room, "here", json!({ "name": "carol", "seconds": 2 })).await?;
    cluster.kill_9(owner)?;
    // The room is remembered: its next owner starts it without a message. Carol is silent, so its timer fires there.
    let active = until("the room has an instance", async || {
        let seen = client.inspect(&room, false).await;
        Ok(seen.ok().filter(|seen| seen.owner != cluster.name(owner) && seen.active == Some(true)))
    });
    active.await?;
    let item = next(&mut presence).await?;
    ensure!(item == json!({ "name": "carol", "change": "timed-out" }), "{item}");
    for text in PART + 1..=2 * PART {
        post(&client, &room, "bob", text).await?;
    }
    for number in 1..=2 * PART {
        let name = if number <= PART { "alice" } else { "bob" };
        let item = next(&mut messages).await?;
        let expected = json!({ "number": number, "name": name, "text": number.to_string() });
        ensure!(item == expected, "{item} instead of {expected}");
    }
    let members = client.session().query(&room, "members", "").await?.body;
    ensure!(members == r#"["alice","bob"]"#, "{members:?}");
    for name in ["alice", "bob"] {
        send(&client, &room, "leave", json!(name)).await?;
    }
    ensure!(
        !client.inspect(&room, false).await?.remembered,
        "nobody is here, but it is remembered"
    );
    drop((messages, presence));
    client.close().await;
    other.close().await;
    cluster.stop()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_room_outlives_its_node() {
    timeout(Duration::from_secs(300), chat()).await.expect("in time").expect("a room");
}
