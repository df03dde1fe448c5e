//! Time and random numbers belong to the message: a turn that runs again elsewhere reads the same values (R20).

use std::time::Duration;

use anyhow::{Context, Result};
use ostraca_client::{CallOptions, Entity, MessageKind};
use ostraca_core::hash::shard_of;
use ostraca_process_tests::Cluster;
use ostraca_process_tests::cluster::Options;
use ostraca_process_tests::node_dir::deploy_guest;
use ostraca_process_tests::proxy::{Endpoint, Rule};
use tokio::time::{Instant, sleep};

const STORE: Endpoint = Endpoint::Node(0);
const LIMIT: Duration = Duration::from_secs(60);

/// The stamps that guests on this node have logged, in order.
fn stamps(cluster: &Cluster, node: usize) -> Result<Vec<(u64, u64)>> {
    let log = cluster.process(node)?.log();
    let stamps = log.split("stamp=").skip(1).map(|rest| {
        let text = rest.split(';').next().context("an end")?;
        let (time, number) = text.split_once(',').context("two numbers")?;
        Ok((time.parse()?, number.parse()?))
    });
    stamps.collect()
}

/// The turn runs on a host that is cut off from the store, so it never commits; then that host is killed.
async fn an_abandoned_turn_runs_again() -> Result<()> {
    let roles = ["store,manager,gateway", "host,gateway", "host,gateway"];
    let mut cluster = Cluster::start(&Options::new("turn-values", &roles)).await?;
    cluster.wait_settled().await?;
    deploy_guest(&cluster.client(0).await?, "misbehaving", "").await?;
    let entity = Entity::new("misbehaving", "e");
    let owner = cluster.owner_of(shard_of("e", cluster.shards).0).await?;
    let other = 3 - owner;
    let client = cluster.client(other).await?;
    let session = client.session();
    let options = CallOptions { kind: MessageKind::Command, timeout: LIMIT, ..Default::default() };

    let first = session.send(&entity, "stamp", "", &options).await?;
    let first: (u64, u64) = serde_json::from_slice(&first.body)?;
    assert_eq!(stamps(&cluster, owner)?, [first]);

    for (from, to) in [(STORE, Endpoint::Node(owner)), (Endpoint::Node(owner), STORE)] {
        cluster.network().set(from, to, Rule::CUT);
    }
    let call = session.send(&entity, "stamp", "", &options);
    let until = Instant::now() + LIMIT;
    let abandoned = loop {
        if let [_, abandoned] = stamps(&cluster, owner)?[..] {
            break abandoned;
        }
        anyhow::ensure!(Instant::now() < until, "the owner did not run the turn");
        sleep(Duration::from_millis(20)).await;
    };
    cluster.kill_9(owner)?;
    cluster.network().heal();

    let reply = call.await?;
    let reply: (u64, u64) = serde_json::from_slice(&reply.body)?;
    assert_eq!(reply, abandoned, "the turn read other values when it ran again");
    assert_eq!(stamps(&cluster, other)?, [abandoned], "it ran once on the other host");
    assert!(reply.0 >= first.0 && reply.1 != first.1, "{first:?} {reply:?}");
    assert!(is_recent(reply.0)?, "{reply:?}");
    client.close().await;
    cluster.stop()
}

/// Whether this time is within the last two minutes.
fn is_recent(unix_ms: u64) -> Result<bool> {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?.as_millis();
    let now = u64::try_from(now)?;
    // The store's node read the same machine's clock.
    Ok(unix_ms <= now + 1_000 && unix_ms + 120_000 > now)
}

/// The gateway starts while it is cut off from the store, so neither it nor its client knows the time.
async fn a_message_without_a_time() -> Result<()> {
    let roles = ["store,manager,gateway", "host,gateway", "gateway"];
    let mut cluster = Cluster::start(&Options::new("turn-values-gateway", &roles)).await?;
    cluster.wait_settled().await?;
    deploy_guest(&cluster.client(0).await?, "misbehaving", "").await?;
    let entity = Entity::new("misbehaving", "e");
    let options = CallOptions { kind: MessageKind::Command, timeout: LIMIT, ..Default::default() };
    // The gateway's cache contains the type once the gateway has forwarded a message.
    let client = cluster.client(2).await?;
    client.session().send(&entity, "stamp", "", &options).await?;
    client.close().await;
    cluster.term(2)?;
    for (from, to) in [(STORE, Endpoint::Node(2)), (Endpoint::Node(2), STORE)] {
        cluster.network().set(from, to, Rule::CUT);
    }
    cluster.start_node(2)?;
    let client = cluster.client(2).await?;
    let call = client.session().send(&entity, "stamp", "", &options);
    assert_eq!(call.id().utc_ms, 0, "the gateway already knew the time");
    let reply = call.await?;
    let reply: (u64, u64) = serde_json::from_slice(&reply.body)?;
    assert!(is_recent(reply.0)?, "{reply:?}");
    client.close().await;
    cluster.network().heal();
    cluster.stop()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_gives_a_message_without_a_time_its_own() {
    a_message_without_a_time().await.expect("the owner's time");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_abandoned_turn_reads_the_same_values_again() {
    an_abandoned_turn_runs_again().await.expect("the same values");
}
