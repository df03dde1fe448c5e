//! The client against a node with a real network side: order, ids, outcomes, retries (R16, R17).

mod common;

use std::collections::{HashMap, HashSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use common::{Node, Running, authority, client, in_time, result};
use ostraca_client::{CallError, CallOptions, Entity, MessageKind};
use ostraca_codes::codes;
use ostraca_wire::problem;
use ostraca_wire::proto::{Outcome, Problem, Reply};

fn options(deadline: Duration) -> CallOptions {
    CallOptions { timeout: deadline, ..CallOptions::default() }
}

#[tokio::test]
async fn a_reply_carries_body_version_and_id() {
    in_time(async {
        let ca = authority();
        let node = Node::new(|_, request| {
            let body = request.envelope.body.clone();
            request.ticket.reply(result(5, body));
        });
        let running = Running::start(&ca, &node, "127.0.0.1:0");
        let client = client(&ca, &running.address).await;
        let session = client.session();
        let call = session.command(&Entity::new("counter", "alice"), "add", "[1]");
        let id = call.id();
        let answer = call.await.expect("reply");
        assert_eq!((answer.body.as_ref(), answer.version, answer.id), (&b"[1]"[..], 5, id));
        let seen = node.seen.lock().expect("seen")[0].clone();
        assert_eq!((seen.sequence, seen.after, seen.settled), (1, 0, 1));
        assert_eq!(seen.kind(), MessageKind::Command);
        assert_eq!((seen.r#type.as_str(), seen.id.as_str()), ("counter", "alice"));
        assert!(seen.remaining_ms > 5_000 && seen.remaining_ms <= 10_000);
        assert_eq!(client.connected_to().expect("connected").0, "one");
        client.close().await;
        running.stop().await;
    })
    .await;
}

#[tokio::test]
async fn a_session_sends_in_call_order_and_matches_replies() {
    in_time(async {
        let ca = authority();
        // Answers messages in pairs, the later one first.
        let held = Mutex::new(None);
        let node = Node::new(move |_, request| {
            let mut held = held.lock().expect("held");
            match held.take() {
                None => *held = Some(request),
                Some(first) => {
                    for request in [request, first] {
                        let body = request.envelope.body.clone();
                        request.ticket.reply(result(1, body));
                    }
                }
            }
        });
        let running = Running::start(&ca, &node, "127.0.0.1:0");
        let client = client(&ca, &running.address).await;
        let session = client.session();
        let entity = Entity::new("counter", "alice");
        let calls: Vec<_> =
            (0..2_000).map(|n| session.call(&entity, "add", format!("{n}"))).collect();
        for (n, call) in calls.into_iter().enumerate() {
            assert_eq!(call.await.expect("reply").body, Bytes::from(format!("{n}")));
        }
        let seen = node.seen.lock().expect("seen").clone();
        assert!(seen.windows(2).all(|pair| pair[0].sequence + 1 == pair[1].sequence));
        assert!(seen.iter().all(|envelope| envelope.after < envelope.sequence));
        client.close().await;
        running.stop().await;
    })
    .await;
}

#[tokio::test]
async fn an_application_error_is_final_and_not_sent_again() {
    in_time(async {
        let ca = authority();
        let node = Node::new(|_, request| {
            request.ticket.reply(Reply {
                outcome: Outcome::ApplicationError.into(),
                problem: Some(Problem {
                    code: "insufficient-funds".into(),
                    message: "only 3 left".into(),
                    ..Problem::default()
                }),
                entity_version: 9,
                ..Reply::default()
            });
        });
        let running = Running::start(&ca, &node, "127.0.0.1:0");
        let client = client(&ca, &running.address).await;
        let error = client
            .session()
            .command(&Entity::new("account", "a"), "withdraw", "[4]")
            .await
            .expect_err("refused");
        assert!(matches!(&error, CallError::Application { version: 9, .. }), "{error:?}");
        assert_eq!(error.code(), "insufficient-funds");
        assert_eq!(node.seen.lock().expect("seen").len(), 1);
        client.close().await;
        running.stop().await;
    })
    .await;
}

#[tokio::test]
async fn only_a_retryable_refusal_is_resent_under_the_same_id() {
    in_time(async {
        let ca = authority();
        let tries = AtomicU64::new(0);
        let node = Node::new(move |_, request| {
            if request.envelope.method == "bad" {
                request.ticket.not_run(problem(codes::UNKNOWN_METHOD, "no such method"));
            } else if tries.fetch_add(1, Ordering::Relaxed) < 3 {
                let mut full = problem(codes::MAILBOX_FULL, "full");
                full.retryable = true;
                request.ticket.not_run(full);
            } else {
                request.ticket.reply(result(1, ""));
            }
        });
        let running = Running::start(&ca, &node, "127.0.0.1:0");
        let client = client(&ca, &running.address).await;
        let session = client.session();
        let entity = Entity::new("counter", "alice");
        session.call(&entity, "good", "").await.expect("a reply in the end");
        let sequences: HashSet<u64> =
            node.seen.lock().expect("seen").iter().map(|e| e.sequence).collect();
        assert_eq!(sequences, HashSet::from([1]));
        assert_eq!(node.seen.lock().expect("seen").len(), 4);
        let error = session.call(&entity, "bad", "").await.expect_err("refused");
        assert!(matches!(error, CallError::NotRun { retry_after: None, .. }), "{error:?}");
        assert_eq!(node.seen.lock().expect("seen").len(), 5);
        client.close().await;
        running.stop().await;
    })
    .await;
}

#[tokio::test]
async fn a_deadline_is_unknown_and_a_resend_gets_the_record() {
    in_time(async {
        let ca = authority();
        let silent = Mutex::new(Vec::new());
        let node = Node::new(move |_, request| {
            let mut silent = silent.lock().expect("silent");
            if silent.is_empty() {
                silent.push(request.ticket);
            } else {
                request.ticket.reply(result(1, "recorded"));
            }
        });
        let running = Running::start(&ca, &node, "127.0.0.1:0");
        let client = client(&ca, &running.address).await;
        let session = client.session();
        let entity = Entity::new("counter", "alice");
        let began = Instant::now();
        let short = options(Duration::from_millis(100));
        let error = session.send(&entity, "add", "[1]", &short).await.expect_err("no reply");
        assert!(began.elapsed() >= Duration::from_millis(100));
        let CallError::Unknown { id, .. } = error else { panic!("{error:?}") };
        let again = CallOptions { resend: Some(id), ..CallOptions::default() };
        let answer = session.send(&entity, "add", "[1]", &again).await.expect("reply");
        assert_eq!((answer.id, answer.body.as_ref()), (id, &b"recorded"[..]));
        assert_eq!(session.next_sequence(), 2);
        // The given-up message holds `settled` down, and delays nothing else.
        let seen = node.seen.lock().expect("seen").clone();
        assert_eq!((seen[1].sequence, seen[1].settled, seen[1].after), (1, 1, 0));
        client.close().await;
        running.stop().await;
    })
    .await;
}

/// What a node keeps in order to act as an entity would: to run each id once, in order, and to record the outcome.
#[derive(Default)]
struct Records {
    done: HashMap<(Bytes, u64), u64>,
    order: HashMap<String, Vec<u64>>,
}

#[tokio::test]
async fn broken_connections_lose_repeat_and_reorder_nothing() {
    const MESSAGES: u64 = 10_000;
    in_time(async {
        let ca = authority();
        let records = std::sync::Arc::new(Mutex::new(Records::default()));
        let kept = std::sync::Arc::clone(&records);
        let node = Node::new(move |_, request| {
            let mut records = kept.lock().expect("records");
            let envelope = &request.envelope;
            let key = (envelope.session.clone(), envelope.sequence);
            let version = match records.done.get(&key) {
                Some(version) => *version,
                None => {
                    let lane = records.order.entry(envelope.id.clone()).or_default();
                    if envelope.after > lane.last().copied().unwrap_or(0) {
                        let mut early = problem(codes::OUT_OF_ORDER, "another one comes first");
                        early.retryable = true;
                        return request.ticket.not_run(early);
                    }
                    lane.push(envelope.sequence);
                    let version = lane.len() as u64;
                    records.done.insert(key, version);
                    version
                }
            };
            drop(records);
            request.ticket.reply(result(version, ""));
        });
        let mut running = Running::start(&ca, &node, "127.0.0.1:0");
        let address = running.address.clone();
        let client = client(&ca, &address).await;
        let session = client.session();
        let entities = [Entity::new("counter", "a"), Entity::new("counter", "b")];
        let mut calls = Vec::new();
        for round in 0..10 {
            for n in 0..MESSAGES / 10 {
                let entity = &entities[(n % 2) as usize];
                calls.push(session.command(entity, "add", "[1]"));
            }
            tokio::time::sleep(Duration::from_millis(5 + round)).await;
            // Messages in flight when the node stops may or may not have run, and are not answered.
            running.stop().await;
            running = Running::restart(&ca, &node, &address).await;
        }
        for (n, call) in calls.into_iter().enumerate() {
            let answer = call.await.expect("reply");
            assert_eq!(answer.version, n as u64 / 2 + 1);
        }
        let order = records.lock().expect("records").order.clone();
        for lane in order.values() {
            assert_eq!(lane.len() as u64, MESSAGES / 2);
            assert!(lane.windows(2).all(|pair| pair[0] < pair[1]));
        }
        client.close().await;
        running.stop().await;
    })
    .await;
}

#[tokio::test]
async fn a_dropped_call_is_still_sent_and_closing_ends_the_rest() {
    in_time(async {
        let ca = authority();
        let tickets = Mutex::new(Vec::new());
        let node = Node::new(move |_, request| match request.envelope.method.as_str() {
            "hold" => tickets.lock().expect("tickets").push(request.ticket),
            _ => request.ticket.reply(result(1, "")),
        });
        let running = Running::start(&ca, &node, "127.0.0.1:0");
        let client = client(&ca, &running.address).await;
        let session = client.session();
        let entity = Entity::new("counter", "alice");
        drop(session.call(&entity, "add", "1"));
        let held = session.call(&entity, "hold", "2");
        session.call(&entity, "add", "3").await.expect("reply");
        assert_eq!(node.seen.lock().expect("seen").len(), 3);
        client.close().await;
        let error = held.await.expect_err("closed");
        assert!(matches!(error, CallError::Unknown { .. }), "{error:?}");
        let error = session.call(&entity, "add", "4").await.expect_err("closed");
        assert!(matches!(&error, CallError::NotRun { .. }), "{error:?}");
        assert_eq!(error.code(), "client-closed");
        running.stop().await;
    })
    .await;
}

#[tokio::test]
async fn an_oversized_message_is_refused_alone() {
    in_time(async {
        let ca = authority();
        let node = Node::new(|_, request| request.ticket.reply(result(1, "")));
        let running = Running::start(&ca, &node, "127.0.0.1:0");
        let client = client(&ca, &running.address).await;
        let session = client.session();
        let entity = Entity::new("counter", "alice");
        let large = session.call(&entity, "add", vec![0; (1 << 20) + 1]);
        let fits = session.call(&entity, "add", vec![0; 1 << 20]);
        let error = large.await.expect_err("too large");
        assert!(matches!(&error, CallError::NotRun { .. }), "{error:?}");
        assert_eq!(error.code(), "message-too-large");
        fits.await.expect("reply");
        let no_id = session.call(&Entity::new("counter", ""), "add", "").await;
        assert_eq!(no_id.expect_err("refused").code(), "invalid-entity-id");
        let long = session.call(&Entity::new("counter", "x".repeat(513)), "add", "").await;
        assert_eq!(long.expect_err("refused").code(), "invalid-entity-id");
        session.call(&entity, "add", "").await.expect("reply");
        client.close().await;
        running.stop().await;
    })
    .await;
}

#[tokio::test]
async fn without_a_node_new_calls_fail_and_sent_ones_are_unknown() {
    in_time(async {
        let ca = authority();
        let tickets = Mutex::new(Vec::new());
        let node = Node::new(move |_, request| {
            tickets.lock().expect("tickets").push(request.ticket);
        });
        let running = Running::start(&ca, &node, "127.0.0.1:0");
        let client = client(&ca, &running.address).await;
        let session = client.session();
        let entity = Entity::new("counter", "alice");
        let flown = session.send(&entity, "add", "1", &options(Duration::from_secs(2)));
        while node.seen.lock().expect("seen").is_empty() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        running.stop().await;
        while client.connected_to().is_some() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        let late = session.send(&entity, "add", "2", &options(Duration::from_millis(200)));
        let error = late.await.expect_err("no node");
        assert!(matches!(&error, CallError::NotRun { .. }), "{error:?}");
        assert_eq!(error.code(), "not-connected");
        let error = flown.await.expect_err("no node");
        assert!(matches!(&error, CallError::Unknown { .. }), "{error:?}");
        client.close().await;
    })
    .await;
}
