//! Turns of well-behaved guests.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use bytes::Bytes;
use common::{
    ADD, account, ask, counter, failed, host, identity, misbehaving, ok, prepare, refused, send,
    started, started_with,
};
use futures::future::BoxFuture;
use ostraca_wasm::{
    GuestTurnOutput, InstanceLimits, InstanceSpec, MessageKind, StartReason, StateError,
    StateSource, StopReason, TurnRecords,
};

/// A source that returns state as a store would, and counts loads. Loading fails if the state is `None`.
struct Stored(Option<Vec<(&'static str, &'static str)>>, Arc<AtomicU32>);

impl StateSource for Stored {
    fn load(&mut self) -> BoxFuture<'static, Result<Vec<(Bytes, Bytes)>, StateError>> {
        self.1.fetch_add(1, Ordering::Relaxed);
        let entries = self.0.clone();
        Box::pin(async move {
            // As if the result came from another thread: the first poll is always pending.
            tokio::task::yield_now().await;
            let entries = entries.ok_or_else(|| StateError("the store is away".into()))?;
            Ok(entries
                .into_iter()
                .map(|(key, value)| (Bytes::from(key), Bytes::from(value)))
                .collect())
        })
    }
}

fn writes(turn: &GuestTurnOutput) -> Vec<(String, Option<String>)> {
    let text = |bytes: &Bytes| String::from_utf8(bytes.to_vec()).unwrap();
    turn.writes.iter().map(|(key, value)| (text(key), value.as_ref().map(text))).collect()
}

#[tokio::test]
async fn each_turn_of_a_counter_reports_its_writes() {
    let host = host();
    let program = prepare(&host, counter(), InstanceLimits::default());
    let methods: Vec<_> =
        program.methods().iter().map(|method| (method.name.as_str(), method.kind)).collect();
    assert!(
        methods.contains(&("add", MessageKind::Command))
            && methods.contains(&("get", MessageKind::Query)),
        "{methods:?}"
    );
    let mut alice = started(&program, "alice").await;
    let turn = send(&mut alice, "add", "2").await;
    assert_eq!(ok(&turn), "2");
    assert_eq!(turn.writes.len(), 1);
    assert_eq!(ok(&send(&mut alice, "add", "{\"by\":3}").await), "5");
    let turn = ask(&mut alice, "get", "").await;
    assert_eq!(ok(&turn), "5");
    assert!(turn.writes.is_empty());
}

#[tokio::test]
async fn two_instances_of_one_program_share_nothing() {
    let host = host();
    let program = prepare(&host, counter(), InstanceLimits::default());
    let (mut alice, mut bob) = (started(&program, "alice").await, started(&program, "bob").await);
    send(&mut alice, "add", "2").await;
    assert_eq!(ok(&send(&mut bob, "add", "40").await), "40");
    assert_eq!(ok(&ask(&mut alice, "get", "").await), "2");
}

#[tokio::test]
async fn state_is_loaded_once_and_only_when_it_is_touched() {
    let host = host();
    let program = prepare(&host, common::rubbish(), InstanceLimits::default());
    let asked = Arc::new(AtomicU32::new(0));
    let mut entity =
        started_with(&program, "e", Box::new(Stored(Some(vec![("k", "v")]), asked.clone()))).await;
    let turn = ask(&mut entity, "echo", "hello").await;
    assert_eq!((ok(&turn), turn.state_bytes), ("hello", None));
    assert_eq!(asked.load(Ordering::Relaxed), 0);
    for _ in 0..2 {
        let turn = send(&mut entity, "write-unlisted", "").await;
        assert!(turn.state_bytes.is_some());
    }
    assert_eq!(asked.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn a_state_that_cannot_be_loaded_fails_the_turn_retryably() {
    let host = host();
    let program = prepare(&host, common::rubbish(), InstanceLimits::default());
    let mut entity = started_with(&program, "e", Box::new(Stored(None, Arc::default()))).await;
    let turn = send(&mut entity, "write-unlisted", "").await;
    let failure = failed(&turn);
    assert_eq!(failure.code, "state-unavailable");
    assert!(failure.is_retryable() && failure.message.contains("the store is away"), "{failure}");
}

#[tokio::test]
async fn a_refusal_keeps_the_state_from_before_the_turn() {
    let host = host();
    let program = prepare(&host, account(), InstanceLimits::default());
    let mut entity = started(&program, "alice").await;
    let bytes = send(&mut entity, "deposit", "500").await.state_bytes;
    let turn = send(&mut entity, "withdraw", "900").await;
    assert_eq!(refused(&turn).0, "insufficient-funds");
    assert!(turn.writes.is_empty());
    assert_eq!(turn.state_bytes, bytes);
    assert_eq!(ok(&ask(&mut entity, "balance", "").await), "500");
    assert_eq!(ok(&send(&mut entity, "withdraw", "100").await), "400");
    assert!(ok(&ask(&mut entity, "history", "{\"limit\":10}").await).contains("\"by\":\"alice\""));
}

#[tokio::test]
async fn the_sdks_refusals_have_the_reserved_codes() {
    let host = host();
    let program = prepare(&host, counter(), InstanceLimits::default());
    let mut entity = started(&program, "alice").await;
    assert_eq!(refused(&send(&mut entity, "nope", "").await).0, "unknown-method");
    assert_eq!(refused(&send(&mut entity, "add", "\"two\"").await).0, "invalid-arguments");
    assert_eq!(ok(&send(&mut entity, "add", "1").await), "1");
}

#[tokio::test]
async fn start_and_stop_are_turns_with_writes_of_their_own() {
    let host = host();
    let program = prepare(&host, misbehaving(), InstanceLimits::default());
    assert!(program.has_stop_hook());
    let mut entity = started(&program, "e").await;
    let turn = entity.stop(StopReason::HandedOff, common::values(2), TurnRecords::default()).await;
    let expected = vec![
        ("stop-reason".into(), Some("\"HandedOff\"".into())),
        ("stops".into(), Some("1".into())),
    ];
    assert_eq!(writes(&turn), expected);
}

#[tokio::test]
async fn r20_the_start_of_a_second_instance_changes_nothing() {
    let host = host();
    let program = prepare(&host, misbehaving(), InstanceLimits::default());
    for (id, code) in [("e", Some("write-in-query")), ("no-state", None)] {
        let spec = InstanceSpec {
            identity: identity(id),
            state: Box::new(Stored(Some(vec![("k", "41")]), Arc::default())),
            values: common::values(1),
            records: TurnRecords::default(),
        };
        let mut entity = program.instantiate(spec).await.unwrap();
        let turn = entity.start_for_queries(StartReason::Message).await;
        match code {
            Some(code) => assert_eq!(failed(&turn).code, code),
            None => {
                assert_eq!(ok(&turn), "");
                assert_eq!(ok(&ask(&mut entity, "read", "\"k\"").await), "\"41\"");
            }
        }
    }
}

#[tokio::test]
async fn a_guest_knows_its_identity_and_may_ask_to_be_dropped() {
    let host = host();
    let program = prepare(&host, misbehaving(), InstanceLimits::default());
    let mut entity = started(&program, "e").await;
    let turn = ask(&mut entity, "who", "").await;
    assert_eq!(ok(&turn), "[\"guest\",\"e\",\"alice\",3,11]");
    assert!(!turn.passivate);
    assert!(send(&mut entity, "passivate", "").await.passivate);
    assert!(!send(&mut entity, "add", ADD).await.passivate);
}

#[tokio::test]
async fn e15_a_guest_sets_the_delay_of_its_passivation() {
    let host = host();
    let program = prepare(&host, misbehaving(), InstanceLimits::default());
    let mut entity = started(&program, "e").await;
    assert_eq!(
        ask(&mut entity, "passivate_after", "1500").await.passivate_after,
        Some(Some(1_500))
    );
    assert_eq!(send(&mut entity, "add", ADD).await.passivate_after, None, "it stays as it is");
    assert_eq!(send(&mut entity, "passivate_after", "null").await.passivate_after, Some(None));
}

#[tokio::test]
async fn values_outlive_an_instance_through_its_writes() {
    let host = host();
    let program = prepare(&host, misbehaving(), InstanceLimits::default());
    let state = vec![("k", "41"), ("starts", "6")];
    let mut entity =
        started_with(&program, "e", Box::new(Stored(Some(state), Arc::default()))).await;
    assert_eq!(ok(&send(&mut entity, "add", ADD).await), "42");
    assert_eq!(ok(&send(&mut entity, "passivate", "").await), "7");
}
