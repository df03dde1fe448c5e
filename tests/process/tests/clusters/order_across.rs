//! One session's messages to one entity run in the order sent, through two gateways and five hand-offs of
//! the entity's shard (promise 5).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::stream::{FuturesOrdered, StreamExt};
use ostraca_client::{Client, Entity};
use ostraca_core::hash::shard_of;
use ostraca_process_tests::cluster::Options;
use ostraca_process_tests::node_dir::deploy_example;
use ostraca_process_tests::proxy::{Endpoint, Rule};
use ostraca_process_tests::{Cluster, HistoryRecorder};
use serde_json::json;
use tokio::task::JoinSet;

const MESSAGES: u64 = 10_000;
const IN_FLIGHT: usize = 256;
const HAND_OFFS: u64 = 5;
/// A hand-off begins after each batch of this many messages; the sender is never more than two hand-offs ahead.
const PART: u64 = MESSAGES / (HAND_OFFS + 2);

/// Moves the shard to another node, by draining its owner.
async fn hand_off(cluster: &mut Cluster, operator: &Client, shard: u32) -> Result<u64> {
    let owner = cluster.owner_of(shard).await?;
    let name = cluster.name(owner);
    let mut drain = operator.drain(&name, false).await?;
    while !drain.next().await?.context("the drain ended early")?.done {}
    let view =
        cluster.wait("another node owns it", |view| view.owner(shard) != Some(&name)).await?;
    let mut undone = operator.drain(&name, true).await?;
    while undone.next().await?.is_some_and(|progress| !progress.done) {}
    let it = view.shards.iter().find(|it| it.shard == shard).context("no such shard")?;
    Ok(it.epoch)
}

/// Cuts the client off from its gateway until it has switched to the other one.
async fn other_gateway(cluster: &Cluster, client: &Client) -> Result<String> {
    let (before, _) = client.connected_to().context("not connected")?;
    let gateway = cluster.place(&before).context("an unknown gateway")?;
    cluster.network().both(Endpoint::Clients, Endpoint::Node(gateway), Rule::CUT);
    let mut now = before.clone();
    for _ in 0..6_000 {
        tokio::time::sleep(Duration::from_millis(10)).await;
        if let Some((name, _)) = client.connected_to().filter(|(name, _)| *name != before) {
            now = name;
            break;
        }
    }
    cluster.network().heal();
    ensure!(now != before, "the client is still connected to {before}");
    Ok(now)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn messages_run_in_order_across_gateways_and_hand_offs() {
    let roles = ["store,manager,gateway", "host,gateway", "host,gateway"];
    let options = Options { shards: 8, ..Options::new("order-across", &roles) };
    let mut cluster = Cluster::start(&options).await.expect("cluster");
    cluster.wait_settled().await.expect("settled");
    let client = Arc::new(cluster.client(1).await.expect("client"));
    deploy_example(&client, "counter").await.expect("deploy");
    let entity = Entity::new("counter", "one");
    let shard = shard_of(&entity.id, 8).0;

    let (done, moved) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (seen, moves, moving) = (Arc::clone(&done), Arc::clone(&moved), Arc::clone(&client));
    let mover = tokio::spawn(async move {
        let operator = cluster.client(0).await?;
        let (mut epochs, mut gateways) = (Vec::new(), Vec::new());
        for moved in 1..=HAND_OFFS {
            while seen.load(Ordering::SeqCst) < moved * PART {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            epochs.push(hand_off(&mut cluster, &operator, shard).await?);
            gateways.push(other_gateway(&cluster, &moving).await?);
            moves.store(moved, Ordering::SeqCst);
        }
        operator.close().await;
        anyhow::Ok((cluster, epochs, gateways, seen.load(Ordering::SeqCst)))
    });

    let recorder = HistoryRecorder::new();
    let session = client.session();
    let (reader, mut reads) = (client.session(), JoinSet::new());
    let mut calls = FuturesOrdered::new();
    let mut sent = 0;
    let allowed = || match mover.is_finished() {
        true => MESSAGES,
        false => MESSAGES.min((moved.load(Ordering::SeqCst) + 2) * PART),
    };
    for expected in 1..=MESSAGES {
        // Every message sent so far has been answered, and a move is in progress.
        while calls.is_empty() && sent >= allowed() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        while calls.len() < IN_FLIGHT && sent < allowed() {
            calls.push_back(recorder.command(&session, &entity, "add", json!({"by": 1})));
            sent += 1;
            // Half as many queries, in this session and in another one.
            if sent % 2 == 0 {
                let session = if sent % 4 == 0 { &session } else { &reader };
                reads.spawn(recorder.query(session, &entity, "get", json!({})));
            }
        }
        let answer = calls.next().await.expect("a call").expect("an answer");
        // The value and the version show when a command ran: after all messages sent before it, and before all others.
        assert_eq!(
            (answer.body.as_ref(), answer.version),
            (expected.to_string().as_bytes(), expected)
        );
        done.store(expected, Ordering::SeqCst);
    }
    let (cluster, epochs, gateways, at) = mover.await.expect("mover").expect("hand-offs");
    println!("epochs {epochs:?}, gateways {gateways:?}, the last change at message {at}");
    assert!(at < MESSAGES, "the last hand-off was not under load");
    assert!(epochs.is_sorted_by(|one, next| one < next), "{epochs:?}");
    assert!(gateways.windows(2).all(|two| two[0] != two[1]), "{gateways:?}");
    let answered = reads.join_all().await.into_iter().filter(Result::is_ok).count() as u64;
    // A lost reply may no longer be available when the query is repeated, because a command has run since.
    assert!(answered >= MESSAGES / 4, "only {answered} queries were answered");
    assert_eq!(recorder.breaches(), Vec::<String>::new());
    drop((session, reader));
    if let Ok(client) = Arc::try_unwrap(client).map_err(|_| ()) {
        client.close().await;
    }
    cluster.stop().expect("stop");
}
