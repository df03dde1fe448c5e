//! Repeated kill -9 under load: nothing acknowledged is lost, nothing runs twice (promises 2 to 5).
//!
//! `SEED=n` replays the moments of the kills, and `ROUNDS=n` sets their number.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::stream::{FuturesUnordered, StreamExt};
use ostraca_client::{Client, Entity, MessageKind, Session};
use ostraca_oracle::Outcome;
use ostraca_process_tests::history::{is_superseded, until_answered};
use ostraca_process_tests::load::InFlightCounter;
use ostraca_process_tests::node_dir::deploy_example;
use ostraca_process_tests::rounds::number;
use ostraca_process_tests::{HistoryRecorder, NodeDir, NodeProcess};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::json;

const ROUNDS: u64 = 20;
const SESSIONS: u64 = 8;
const READERS: u64 = 4;
const IN_FLIGHT: usize = 12;
const ENTITIES: u64 = 40;
/// Minimum number of commands in doubt at each kill.
const DOUBTFUL: u64 = 32;

/// Keeps messages in flight until it is stopped, to entities that all sessions share.
async fn sender(
    seed: u64,
    session: Session,
    kind: MessageKind,
    recorder: Arc<HistoryRecorder>,
    under_way: Arc<InFlightCounter>,
    end: Arc<AtomicBool>,
) {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut calls = FuturesUnordered::new();
    loop {
        while calls.len() < IN_FLIGHT && !end.load(Ordering::SeqCst) {
            let entity = Entity::new("counter", format!("{}", rng.random_range(0..ENTITIES)));
            // Queries are sent in each session, and also in separate sessions.
            let reads = kind == MessageKind::Query || rng.random_ratio(3, 10);
            let (kind, method, arguments) = if reads {
                (MessageKind::Query, "get", json!({}))
            } else {
                under_way.sent();
                (MessageKind::Command, "add", json!({"by": rng.random_range(1..10)}))
            };
            let options = until_answered(kind);
            let call = recorder.send(&session, &entity, method, arguments, &options);
            calls.push(async move { (reads, call.await) });
        }
        match calls.next().await {
            None => return,
            Some((false, answer)) => {
                answer.expect("every command is eventually answered");
                under_way.ended();
            }
            Some((true, Ok(_))) => {}
            Some((true, Err(error))) if is_superseded(&error) => {}
            Some((true, Err(error))) => panic!("a query was not answered: {error}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kills_at_random_moments_lose_and_repeat_nothing() {
    let seed = number("SEED").unwrap_or_else(rand::random);
    let rounds = number("ROUNDS").unwrap_or(ROUNDS);
    println!("SEED={seed}, {rounds} rounds");
    let mut rng = StdRng::seed_from_u64(seed);
    let home = NodeDir::init("kill").expect("init");
    let mut node = NodeProcess::start(&home).expect("start");
    let client =
        Client::connect(home.profile(node.address).expect("profile")).await.expect("connect");
    deploy_example(&client, "counter").await.expect("deploy");

    let recorder = HistoryRecorder::new();
    let (under_way, end) = (Arc::new(InFlightCounter::default()), Arc::new(AtomicBool::new(false)));
    let mut senders = tokio::task::JoinSet::new();
    for place in 0..SESSIONS + READERS {
        let kind = if place < SESSIONS { MessageKind::Command } else { MessageKind::Query };
        let (recorder, under_way) = (Arc::clone(&recorder), Arc::clone(&under_way));
        let session = client.session();
        senders.spawn(sender(rng.random(), session, kind, recorder, under_way, end.clone()));
    }
    let mut doubts = Vec::new();
    for round in 0..rounds {
        // The load resumes before the next kill, so that each round hits a working node.
        let seen = under_way.done();
        for _ in 0..6_000 {
            if under_way.done() > seen + 200 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert!(under_way.done() > seen + 200, "round {round}: no messages are answered");
        tokio::time::sleep(Duration::from_millis(rng.random_range(0..300))).await;
        node.kill_9().expect("kill");
        // Commands whose replies had left the node are no longer in doubt.
        tokio::time::sleep(Duration::from_millis(50)).await;
        let doubtful = under_way.now();
        assert!(doubtful >= DOUBTFUL, "round {round}: only {doubtful} in doubt");
        doubts.push(doubtful);
        node = NodeProcess::start(&home).expect("start again");
    }
    end.store(true, Ordering::SeqCst);
    while let Some(sender) = senders.join_next().await {
        sender.expect("sender");
    }

    // A new session reads the final values.
    let session = client.session();
    let mut acknowledged: BTreeMap<String, u64> = BTreeMap::new();
    let operations = recorder.operations();
    for operation in operations.iter().filter(|operation| operation.command) {
        assert!(matches!(operation.outcome, Outcome::Final { .. }), "{operation:?}");
        *acknowledged.entry(operation.entity.clone()).or_default() +=
            operation.arguments["by"].as_u64().expect("number");
    }
    for (name, expected) in &acknowledged {
        let id = name.strip_prefix("counter/").expect("a counter");
        let entity = Entity::new("counter", id);
        let held = recorder.query(&session, &entity, "get", json!({})).await.expect("query");
        assert_eq!(held.body, expected.to_string(), "{name} holds exactly what was acknowledged");
    }
    let breaches = recorder.breaches();
    let queries = operations.iter().filter(|operation| !operation.command).count();
    let commands = operations.len() - queries;
    println!("{commands} commands, {queries} queries, in doubt at each kill: {doubts:?}");
    assert!(queries * 10 >= operations.len() * 3, "only {queries} queries");
    assert!(breaches.is_empty(), "SEED={seed}: {breaches:#?}");
    client.close().await;
    assert!(node.stop().expect("stop").success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_graceful_stop_and_restart_lose_and_repeat_no_message() {
    let home = NodeDir::init("stop").expect("init");
    let mut node = NodeProcess::start(&home).expect("start");
    let client =
        Client::connect(home.profile(node.address).expect("profile")).await.expect("connect");
    deploy_example(&client, "counter").await.expect("deploy");
    let recorder = HistoryRecorder::new();
    let (session, entity) = (client.session(), Entity::new("counter", "a"));
    for _ in 0..3 {
        let calls: Vec<_> = (0..200)
            .map(|_| recorder.command(&session, &entity, "add", json!({"by": 1})))
            .collect();
        assert!(node.stop().expect("stop").success());
        node = NodeProcess::start(&home).expect("start again");
        for call in calls {
            call.await.expect("answered by this incarnation or the next");
        }
    }
    let held = recorder.query(&session, &entity, "get", json!({})).await.expect("query");
    assert_eq!(held.body, "600");
    assert_eq!(recorder.breaches(), Vec::<String>::new());
    client.close().await;
}
