//! P14: one emit to 1,000 subscribers, compared with 1,000 commands that deliver the same item.
//!
//! First, clients of another node subscribe. Each emit is timed from the moment its command is sent until the last
//! subscriber has its items. Then entities subscribe (R27): each item reaches each of them as a durable command.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use futures::future::try_join_all;
use futures::stream::{StreamExt, TryStreamExt};
use ostraca_client::{ChannelEvent, Client, Entity, MessageKind, SubscribeFrom, Subscription};
use ostraca_process_tests::Cluster;
use ostraca_process_tests::cluster::Options;
use ostraca_process_tests::guest_calls::{LIMIT, call, until};
use ostraca_process_tests::load::closed_loop;
use ostraca_process_tests::node_dir::deploy_guest;
use serde_json::json;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use crate::tells::owned;
use crate::{Bench, IN_FLIGHT, sessions};

const SUBSCRIBERS: usize = 1_000;
/// Number of the subscribers' connections: a node accepts 100 streams on each.
const CONNECTIONS: usize = 12;
/// Size of an item in bytes.
const ITEM: usize = 100;
/// Number of emits per second of a loop's duration, one after the other, if each emits one item.
const RATE: u64 = 25;
/// Number of items in a turn that emits many.
const BURST: u64 = 100;
/// Number of items per second of a loop's duration that subscribed entities get.
const DURABLE_RATE: u64 = 3;
/// The target: items delivered per second.
const AIM: f64 = 100_000.0;
const MANIFEST: &str = "[grants]\ntell = [\"misbehaving\"]\n[limits]\noutbox = 5000\n";

pub(super) async fn run(bench: &mut Bench) -> Result<()> {
    let roles = ["store,manager,gateway,host", "host,gateway"];
    let options = Options { proxied: false, ..Options::new("bench-fan-out", &roles) };
    let mut cluster = Cluster::start(&options).await?;
    cluster.wait_settled().await?;
    let client = cluster.client(0).await?;
    deploy_guest(&client, "misbehaving", MANIFEST).await?;
    let room = owned(&client, &cluster.name(0), "room", 1).await?.remove(0);
    let targets = owned(&client, &cluster.name(0), "t", SUBSCRIBERS).await?;
    let others = try_join_all((0..CONNECTIONS).map(|_| cluster.client(1))).await?;

    let by_commands = commands(bench, &others[0], targets).await?;
    to_clients(bench, &client, &others, &room, by_commands).await?;
    to_entities(bench, &client, &room, by_commands).await?;
    for client in others {
        client.close().await;
    }
    client.close().await;
    cluster.stop()
}

/// The same work, done by a client of the other node. Returns the rate.
async fn commands(bench: &mut Bench, client: &Client, targets: Vec<String>) -> Result<f64> {
    let deadline = Instant::now() + LIMIT * 2;
    let sessions = sessions(client, bench.sessions);
    let each = IN_FLIGHT / sessions.len();
    let body = json!("x".repeat(ITEM)).to_string();
    let next = Arc::new(move |_: usize, n: u64| {
        (Entity::new("misbehaving", targets[n as usize % SUBSCRIBERS].as_str()), body.clone())
    });
    // Warm up, so every entity has an instance.
    let total = SUBSCRIBERS as u64;
    closed_loop(&sessions, each, "receive", total, deadline, next.clone()).await?;
    let total = total * bench.time.as_secs().max(1);
    let rate = closed_loop(&sessions, each, "receive", total, deadline, next).await?.rate();
    let settings =
        format!("{SUBSCRIBERS} entities of another node, {ITEM} bytes, {IN_FLIGHT} in flight");
    bench.line("P14 commands", (rate, "/s"), None, None, &settings);
    Ok(rate)
}

/// The items that all subscribers together have received.
#[derive(Default)]
struct Received {
    items: AtomicU64,
    goal: AtomicU64,
    reached: Notify,
}

impl Received {
    /// Waits until all items up to the goal have been received.
    async fn wait(&self, followers: &mut JoinSet<Result<()>>) -> Result<()> {
        let goal = self.goal.load(Ordering::SeqCst);
        while self.items.load(Ordering::SeqCst) < goal {
            tokio::select! {
                () = self.reached.notified() => {}
                ended = followers.join_next() => ended.context("no subscriber")???,
                () = tokio::time::sleep(LIMIT) => bail!("not every subscriber has every item"),
            }
        }
        Ok(())
    }

    /// Follows a channel, and fails unless each item comes once and in order.
    async fn follow(self: Arc<Self>, mut subscription: Subscription) -> Result<()> {
        for number in 0_u64.. {
            match subscription.next().await? {
                ChannelEvent::Item(item) => {
                    let text: String = serde_json::from_slice(&item.data)?;
                    let got: u64 = text.trim_end_matches('x').parse()?;
                    ensure!(got == number, "item {got} instead of {number}");
                }
                ChannelEvent::Lost(lost) => bail!("lost {lost:?}"),
            }
            let items = self.items.fetch_add(1, Ordering::SeqCst) + 1;
            if items == self.goal.load(Ordering::SeqCst) {
                self.reached.notify_one();
            }
        }
        Ok(())
    }
}

/// The text of an item: its number, padded.
fn text(number: u64) -> String {
    format!("{number:x<ITEM$}")
}

async fn to_clients(
    bench: &mut Bench,
    client: &Client,
    others: &[Client],
    room: &str,
    by_commands: f64,
) -> Result<()> {
    let entity = Entity::new("misbehaving", room);
    let subscribe = |number| {
        let other: &Client = &others[number % CONNECTIONS];
        other.subscribe(&entity, "news", SubscribeFrom::Now)
    };
    let mut subscriptions: Vec<_> = (0..SUBSCRIBERS).map(subscribe).collect();
    try_join_all(subscriptions.iter_mut().map(Subscription::established)).await?;
    let received = Arc::new(Received::default());
    let mut followers = JoinSet::new();
    for subscription in subscriptions {
        followers.spawn(received.clone().follow(subscription));
    }
    let session = client.session();
    let mut emitted = 0;
    let mut emit = async |count: u64| -> Result<Duration> {
        let texts: Vec<_> = (emitted..emitted + count).map(text).collect();
        emitted += count;
        received.goal.fetch_add(count * SUBSCRIBERS as u64, Ordering::SeqCst);
        let began = Instant::now();
        let body = json!({ "on": "news", "texts": texts }).to_string();
        session.command(&entity, "emit_texts", body).await?;
        received.wait(&mut followers).await?;
        Ok(began.elapsed())
    };
    for (what, count, rounds) in [("one item", 1, RATE), ("items", BURST, RATE.div_ceil(BURST))] {
        // One emit that is not timed, so that the subscribers' feeds are running.
        emit(1).await?;
        let mut waits = Vec::new();
        for _ in 0..rounds * bench.time.as_secs().max(1) {
            waits.push(emit(count).await?);
        }
        let total = waits.len() as u64 * count * SUBSCRIBERS as u64;
        let rate = total as f64 / waits.iter().sum::<Duration>().as_secs_f64();
        let settings = format!(
            "{count} items of {ITEM} bytes per turn, {SUBSCRIBERS} subscribers on {CONNECTIONS} connections to another node, one turn after the other; the ratio is to commands"
        );
        let (id, ratio) = (format!("P14 {what}, fan-out"), Some(rate / by_commands));
        bench.line(&id, (rate, "/s"), Some(AIM), ratio, &settings);
        waits.sort_unstable();
        for percent in [50, 99] {
            let wait = waits[(waits.len() - 1) * percent / 100].as_secs_f64() * 1e3;
            let id = format!("P14 {what}, p{percent}");
            bench.line(&id, (wait, "ms"), None, None, "from the command to the last subscriber");
        }
    }
    followers.shutdown().await;
    Ok(())
}

async fn to_entities(
    bench: &mut Bench,
    client: &Client,
    room: &str,
    by_commands: f64,
) -> Result<()> {
    let room = format!("{room}-topic");
    let ids: Vec<_> = (0..SUBSCRIBERS).map(|number| format!("f{number}")).collect();
    futures::stream::iter(&ids)
        .map(|id| {
            let body = json!({ "id": room, "channel": "news", "method": "receive" });
            async move { call(client, MessageKind::Command, id, "follow", body).await.map(drop) }
        })
        .buffer_unordered(IN_FLIGHT)
        .try_collect::<()>()
        .await?;
    let emit = async |number: u64| {
        let body = json!({ "on": "news", "texts": [text(number)] });
        call(client, MessageKind::Command, &room, "emit_texts", body).await.map(drop)
    };
    // One entity after the other: polling all of them would be a load in itself.
    let all_have = async |count: u64| {
        for id in &ids {
            until("every item arrives", async || {
                let got = call(client, MessageKind::Query, id, "read", json!("received")).await?;
                let got = got.as_str().map_or(Ok(0), str::parse::<u64>)?;
                Ok((got >= count).then_some(()))
            })
            .await?;
        }
        anyhow::Ok(())
    };
    // A subscription takes effect some time after the turn that made it.
    let entity = Entity::new("misbehaving", room.as_str());
    until("every subscription is made", async || {
        let shown = client.inspect(&entity, false).await?;
        let made: u64 = shown.subscription_count;
        Ok((made == SUBSCRIBERS as u64).then_some(()))
    })
    .await?;
    emit(0).await?;
    all_have(1).await?;
    let items = DURABLE_RATE * bench.time.as_secs().max(1);
    let began = Instant::now();
    for number in 1..=items {
        emit(number).await?;
    }
    all_have(items + 1).await?;
    let rate = (items * SUBSCRIBERS as u64) as f64 / began.elapsed().as_secs_f64();
    let settings = format!(
        "{items} items of {ITEM} bytes to {SUBSCRIBERS} entities of both nodes; the ratio is to commands"
    );
    bench.line("P14 durable fan-out", (rate, "/s"), None, Some(rate / by_commands), &settings);
    Ok(())
}
