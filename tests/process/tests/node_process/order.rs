//! One session's messages to one entity run in the order sent, whatever the network does (promise 5).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::stream::{FuturesOrdered, StreamExt};
use ostraca_client::{Client, ConnectOptions, Entity};
use ostraca_process_tests::node_dir::deploy_example;
use ostraca_process_tests::proxy::{Network, Rule};
use ostraca_process_tests::{HistoryRecorder, NodeDir, NodeProcess};
use ostraca_wire::Limits;
use serde_json::json;
use tokio::task::JoinSet;

const MESSAGES: u64 = 10_000;
const IN_FLIGHT: usize = 256;
const BREAKS: u64 = 10;

/// A client that detects a dead connection quickly.
fn impatient() -> ConnectOptions {
    let (idle_timeout, keep_alive) = (Duration::from_millis(800), Duration::from_millis(200));
    let limits = Limits {
        idle_timeout,
        keep_alive_interval: keep_alive,
        ..ConnectOptions::default().limits
    };
    ConnectOptions { limits, ..ConnectOptions::default() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_run_in_order_across_ten_broken_connections() {
    let home = NodeDir::init("order").expect("init");
    let node = NodeProcess::start(&home).expect("start");
    let network = Network::before(node.address).expect("network");
    let profile = home.profile(network.front(0)).expect("profile");
    let client = Client::connect_with(profile, impatient()).await.expect("connect");
    deploy_example(&client, "counter").await.expect("deploy");

    let done = Arc::new(AtomicU64::new(0));
    let seen = Arc::clone(&done);
    let breaker = tokio::spawn(async move {
        for broken in 1..=BREAKS {
            while seen.load(Ordering::SeqCst) < broken * MESSAGES / (BREAKS + 1) {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            network.around(0, Rule::CUT);
            tokio::time::sleep(Duration::from_millis(1_000)).await;
            // With new ports, the old connection is dead, but neither side knows that.
            network.forget(0);
            network.heal();
        }
        network
    });

    let recorder = HistoryRecorder::new();
    let (session, entity) = (client.session(), Entity::new("counter", "one"));
    let (reader, mut reads) = (client.session(), JoinSet::new());
    let mut calls = FuturesOrdered::new();
    let mut sent = 0;
    for expected in 1..=MESSAGES {
        while calls.len() < IN_FLIGHT && sent < MESSAGES {
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
    let network = breaker.await.expect("breaker");
    assert!(network.total().cut >= BREAKS, "every cut dropped packets");
    let answered = reads.join_all().await.into_iter().filter(Result::is_ok).count() as u64;
    // A lost reply may no longer be available when the query is repeated, because a command has run since.
    assert!(answered >= MESSAGES / 4, "only {answered} queries were answered");
    assert_eq!(recorder.breaches(), Vec::<String>::new());
    client.close().await;
}
