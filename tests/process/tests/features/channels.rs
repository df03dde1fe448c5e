//! Channels on real processes (R3): subscribers across hand-offs and kills.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use futures::future::try_join_all;
use ostraca_client::{ChannelEvent, Client, Entity, MessageKind, SubscribeFrom, Subscription};
use ostraca_process_tests::Cluster;
use ostraca_process_tests::cluster::Options;
use ostraca_process_tests::guest_calls::{LIMIT, call, until};
use ostraca_process_tests::node_dir::deploy_guest;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};

/// A node accepts 100 streams on one connection.
const CLIENTS: usize = 12;
const SUBSCRIBERS: usize = 1_000;
const ITEMS: usize = 300;

fn room() -> Entity {
    Entity::new("misbehaving", "room")
}

async fn emit(client: &Client, id: &str, on: &[&str], text: &str) -> Result<()> {
    let body = json!({ "on": on, "text": text });
    call(client, MessageKind::Command, id, "emit_text", body).await.map(drop)
}

/// The next item's text.
async fn next(subscription: &mut Subscription) -> Result<String> {
    match timeout(LIMIT, subscription.next()).await.context("no item")?? {
        ChannelEvent::Item(item) => Ok(serde_json::from_slice(&item.data)?),
        ChannelEvent::Lost(lost) => bail!("lost {lost:?}"),
    }
}

/// Follows the channel to the last item. Fails unless each item comes once, in order.
async fn follow(mut subscription: Subscription) -> Result<()> {
    for number in 0..ITEMS {
        let text = next(&mut subscription).await?;
        ensure!(text == number.to_string(), "{text} instead of {number}");
    }
    Ok(())
}

async fn across_faults() -> Result<String> {
    let roles = ["store,manager,gateway", "host,gateway", "host,gateway"];
    let mut cluster = Cluster::start(&Options::new("channels", &roles)).await?;
    cluster.wait_settled().await?;
    let mut clients = Vec::new();
    for number in 0..CLIENTS {
        clients.push(cluster.client(number % 3).await?);
    }
    let keep = "[channels]\nkeep-items = 10000\n";
    deploy_guest(&clients[0], "misbehaving", keep).await?;
    let mut subscriptions = Vec::new();
    for number in 0..SUBSCRIBERS {
        let client = &clients[number % CLIENTS];
        subscriptions.push(client.subscribe(&room(), "news", SubscribeFrom::Now));
    }
    // A subscription from now on misses nothing once it is established.
    let began = Instant::now();
    try_join_all(subscriptions.iter_mut().map(Subscription::established)).await?;
    let established = began.elapsed();
    let emitting = async {
        for number in 0..ITEMS {
            sleep(Duration::from_millis(15)).await;
            emit(&clients[0], "room", &["news"], &number.to_string()).await?;
        }
        anyhow::Ok(Instant::now())
    };
    let breaking = async {
        sleep(Duration::from_millis(800)).await;
        let owner = clients[0].inspect(&room(), false).await?.owner;
        let mut updates = clients[0].drain(&owner, false).await?;
        while updates.next().await?.is_some() {}
        let heir = clients[0].inspect(&room(), false).await?.owner;
        ensure!(heir != owner, "the shard was handed off");
        let mut undone = clients[0].drain(&owner, true).await?;
        while undone.next().await?.is_some() {}
        sleep(Duration::from_millis(500)).await;
        let place = cluster.place(&heir).context("a node of the cluster")?;
        cluster.kill_9(place)?;
        sleep(Duration::from_millis(1_500)).await;
        cluster.start_node(place)?;
        anyhow::Ok(())
    };
    let following = try_join_all(subscriptions.into_iter().map(follow));
    let (emitted, broken, followed) = tokio::join!(emitting, breaking, following);
    let emitted = emitted?;
    broken?;
    followed?;
    let after = emitted.elapsed();
    // Who comes late gets everything that is kept.
    let late = clients[1].subscribe(&room(), "news", SubscribeFrom::Oldest);
    follow(late).await?;
    for client in clients {
        client.close().await;
    }
    cluster.stop()?;
    Ok(format!(
        "{SUBSCRIBERS} subscribers (established in {established:?}) got {ITEMS} items each, in order, across a hand-off and a kill, the last {after:?} after the last command"
    ))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_of_1000_subscribers_gets_each_item_once() {
    println!("{}", across_faults().await.expect("each item once"));
}

/// Runs `ostraca watch` to its end.
fn watch(cluster: &Cluster, arguments: &[&str]) -> Result<(Option<i32>, String)> {
    let output = cluster.home(0).command(&[&["watch"], arguments].concat())?;
    let text = [output.stdout, output.stderr].concat();
    Ok((output.status.code(), String::from_utf8_lossy(&text).into_owned()))
}

/// A channel that keeps nothing, and what subscribers and the command line are told.
async fn on_one_node() -> Result<()> {
    let options = Options::new("channels-one", &["store,manager,gateway,host"]);
    let mut cluster = Cluster::start(&options).await?;
    let client = cluster.client(0).await?;
    deploy_guest(&client, "misbehaving", "[access]\nsend = [\"client/*\"]\n").await?;
    let (code, text) = watch(&cluster, &["misbehaving/room"])?;
    ensure!(code == Some(2) && text.contains("has not emitted on any channel yet"), "{text}");
    let mut news = client.subscribe(&room(), "news", SubscribeFrom::Now);
    news.established().await?;
    for text in ["a", "b"] {
        emit(&client, "room", &["news", "other"], text).await?;
    }
    ensure!((next(&mut news).await?, next(&mut news).await?) == ("a".into(), "b".into()));
    let (code, text) = watch(&cluster, &["misbehaving/room"])?;
    ensure!(code == Some(2) && text.contains("name one of them: news, other"), "{text}");
    let shown = client.inspect(&room(), false).await?;
    let channels = shown.channels.iter().map(|it| (&*it.name, it.next_number, it.first_number));
    ensure!(channels.eq([("news", 3, 3), ("other", 3, 3)]), "{:?}", shown.channels);

    // What was emitted while the subscriber's node was down is lost, and counted.
    let cursor = news.cursor().expect("a position").to_owned();
    drop(news);
    emit(&client, "room", &["news"], "c").await?;
    client.close().await;
    cluster.kill_9(0)?;
    cluster.start_node(0)?;
    let client = cluster.client(0).await?;
    let mut again = client.subscribe(&room(), "news", SubscribeFrom::After(cursor));
    ensure!(again.next().await? == ChannelEvent::Lost(Some(1)));
    let mut since = client.subscribe(&room(), "news", SubscribeFrom::AfterVersion(1));
    ensure!(since.next().await? == ChannelEvent::Lost(None), "nothing of version 2 is kept");
    emit(&client, "room", &["news"], "d").await?;
    ensure!(next(&mut again).await? == "d");

    // A later deployment keeps items.
    deploy_guest(&client, "misbehaving", "[channels]\nkeep-items = 2\n").await?;
    for text in ["e", "f", "g"] {
        emit(&client, "room", &["news"], text).await?;
    }
    // What the node still had in memory is gone after a restart.
    client.close().await;
    cluster.kill_9(0)?;
    cluster.start_node(0)?;
    let client = cluster.client(0).await?;
    let (code, text) = watch(&cluster, &["misbehaving/room", "news", "--oldest", "--count", "2"])?;
    ensure!((code, &*text) == (Some(0), "\"f\"\n\"g\"\n"), "{text}");
    let json = ["misbehaving/room", "news", "--oldest", "--count", "1", "--output", "json"];
    let (_, text) = watch(&cluster, &json)?;
    let item: Value = serde_json::from_str(&text)?;
    ensure!(item["item"] == "f" && item["version"].is_u64(), "{text}");
    let cursor = item["cursor"].as_str().context("a cursor")?;
    let (_, text) =
        watch(&cluster, &["misbehaving/room", "news", "--after", cursor, "--count", "1"])?;
    ensure!(text == "\"g\"\n", "{text}");

    let refused = async |entity: Entity, channel: &str, from: SubscribeFrom| {
        let mut subscription = client.subscribe(&entity, channel, from);
        let error = subscription.next().await.expect_err("a refusal");
        error.code().to_owned()
    };
    let long = "x".repeat(129);
    let now = || SubscribeFrom::Now;
    ensure!(refused(Entity::new("none", "x"), "news", now()).await == "unknown-type");
    ensure!(refused(room(), &long, now()).await == "invalid-request");
    let odd = SubscribeFrom::After("odd".into());
    ensure!(refused(room(), "news", odd).await == "invalid-cursor");
    deploy_guest(&client, "misbehaving", "[access]\nsend = [\"entity/*\"]\n").await?;
    let denied = until("access is denied", async || {
        let mut subscription = client.subscribe(&room(), "news", SubscribeFrom::Now);
        Ok(subscription.established().await.err().map(|error| error.code().to_owned()))
    });
    ensure!(denied.await? == "access-denied");
    client.close().await;
    cluster.stop()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn subscribers_learn_what_they_missed_and_why_not() {
    on_one_node().await.expect("a channel on one node");
}
