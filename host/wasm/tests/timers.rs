//! Timers: what a guest may set, and how a firing runs (R25).

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::sync::Arc;

use common::{ask, failed, host, identity, misbehaving, ok, prepare, send, started, values};
use ostraca_wasm::{
    GuestTimer, Instance, InstanceLimits, InstanceSpec, NoState, StartReason, TimerChange,
    TimerFiring, TimerSource, TurnRecords, TurnResult,
};

#[derive(Debug, Clone)]
struct Timers(Vec<GuestTimer>);

impl TimerSource for Timers {
    fn timers(&self) -> Vec<GuestTimer> {
        self.0.clone()
    }
}

fn timer(name: &str) -> GuestTimer {
    GuestTimer {
        name: name.into(),
        due: 5,
        interval: 0,
        payload: "\"x\"".into(),
        attempts: 2,
        failure: "why".into(),
        set_aside: true,
        tell: None,
    }
}

fn limits() -> InstanceLimits {
    InstanceLimits { timers: 3, timer_bytes: 1_000, timer_interval: 500, ..Default::default() }
}

fn firing(name: &str) -> TimerFiring {
    TimerFiring { name: name.into(), due: 1_000, missed: 2, attempt: 1, payload: "\"x\"".into() }
}

async fn set(
    instance: &mut Instance,
    count: u64,
    every: u64,
    bytes: usize,
) -> Result<usize, String> {
    let body = format!(
        r#"{{"name":"ring","count":{count},"after_ms":70,"every_ms":{every},"bytes":{bytes}}}"#
    );
    let turn = send(instance, "set_timers", &body).await;
    match &turn.result {
        TurnResult::Ok(_) => Ok(turn.timers.len()),
        _ => Err(format!("{}: {}", failed(&turn).code, failed(&turn).message)),
    }
}

#[tokio::test]
async fn a_turn_returns_its_changes_of_timers() {
    let program = prepare(&host(), misbehaving(), limits());
    assert!(program.has_timer_handler());
    let mut entity = started(&program, "e").await;
    let body = r#"{"name":"ring","count":1,"after_ms":70,"every_ms":500,"bytes":1}"#;
    let turn = send(&mut entity, "set_timers", body).await;
    let due = values(7).utc_ms + 70;
    let (name, payload): (Arc<str>, _) = ("ring".into(), "\"x\"".into());
    assert_eq!(turn.timers, [TimerChange::Set { name, due, interval: 500, payload }]);
    // The entity's timers are those that the host passes with each turn.
    assert_eq!(ok(&ask(&mut entity, "timers", "").await), "[]");
    let turn = send(&mut entity, "cancel_timer", "\"ring\"").await;
    assert_eq!((ok(&turn), turn.timers.len()), ("false", 0));
}

#[tokio::test]
async fn a_guest_reads_the_timers_that_its_entity_has() {
    let program = prepare(&host(), misbehaving(), limits());
    let source = Arc::new(Timers(vec![timer("a"), timer("b")]));
    let records = || TurnRecords { timers: Some(source.clone()), ..TurnRecords::default() };
    let mut instance = program
        .instantiate(InstanceSpec {
            identity: identity("e"),
            state: Box::new(NoState),
            values: values(1),
            records: records(),
        })
        .await
        .unwrap();
    instance.start(StartReason::Message).await;
    let context =
        || ostraca_wasm::MessageContext { records: Some(Box::new(records())), ..common::command() };
    let turn = instance.message(context(), "timers", "".into()).await;
    assert_eq!(ok(&turn), r#"[["a",2,true],["b",2,true]]"#);
    let turn = instance.message(context(), "cancel_timer", "\"b\"".into()).await;
    assert_eq!(turn.timers, [TimerChange::Cancel { name: "b".into() }]);
    let body = r#"{"name":"ring","count":2,"after_ms":70,"every_ms":0,"bytes":1}"#;
    let turn = instance.message(context(), "set_timers", body.into()).await;
    assert_eq!(failed(&turn).code, "too-many-timers", "existing timers count");
    assert!(turn.timers.is_empty(), "a failed turn changes no timer");
}

#[tokio::test]
async fn each_limit_on_timers_has_its_own_code() {
    let program = prepare(&host(), misbehaving(), limits());
    for (count, every, bytes, expected) in [
        (3, 0, 1, Ok(3)),
        (4, 0, 1, Err("too-many-timers: ")),
        (1, 499, 1, Err("timer-interval-too-short: ")),
        (1, 500, 1, Ok(1)),
        (1, 0, 894, Ok(1)),
        (1, 0, 895, Err("timers-too-large: ")),
        (1, 0, 900_000, Err("timers-too-large: ")),
    ] {
        let mut entity = started(&program, "e").await;
        let outcome = set(&mut entity, count, every, bytes).await;
        match expected {
            Ok(changes) => assert_eq!(outcome, Ok(changes)),
            Err(code) => assert!(outcome.clone().unwrap_err().starts_with(code), "{outcome:?}"),
        }
    }
    for name in ["", "a\u{7}b", &"n".repeat(129)] {
        let mut entity = started(&program, "e").await;
        let body = format!("{{\"name\":{name:?}}}").replace("\\u{7}", "\\u0007");
        let turn = send(&mut entity, "cancel_timer", &body).await;
        assert_eq!(failed(&turn).code, "invalid-host-call", "{body}");
    }
}

#[tokio::test]
async fn a_query_sets_no_timer() {
    let program = prepare(&host(), misbehaving(), limits());
    let turn = ask(&mut started(&program, "e").await, "query_that_sets_a_timer", "").await;
    assert_eq!(failed(&turn).code, "write-in-query");
}

#[tokio::test]
async fn a_firing_is_a_turn_with_effects() {
    let program = prepare(&host(), misbehaving(), limits());
    let mut entity = started(&program, "e").await;
    let turn = entity.timer(&firing("ring/7"), values(9), TurnRecords::default()).await;
    assert!(matches!(turn.result, TurnResult::Ok(_)), "{turn:?}");
    assert_eq!(turn.writes.len(), 1);
    let late = values(9).utc_ms - 1_000;
    assert_eq!(ok(&ask(&mut entity, "rung", "").await), format!(r#"[["ring/7",1,{late},2]]"#));
}

#[tokio::test]
async fn a_firing_that_fails_has_no_effect() {
    let program = prepare(&host(), misbehaving(), limits());
    let mut entity = started(&program, "e").await;
    for (name, code) in [("stubborn", "stubborn"), ("nobody", "unknown-timer")] {
        let turn = entity.timer(&firing(name), values(9), TurnRecords::default()).await;
        let refused =
            matches!(&turn.result, TurnResult::Application { code: it, .. } if it == code);
        assert!(refused && turn.writes.is_empty() && turn.timers.is_empty(), "{turn:?}");
    }
    let turn = entity.timer(&firing("alarm"), values(9), TurnRecords::default()).await;
    assert_eq!(failed(&turn).code, "panicked");
    assert!(failed(&turn).message.starts_with("timer panicked at "), "{turn:?}");
}

#[tokio::test]
async fn a_component_without_a_handler_has_no_timers() {
    let program = prepare(&host(), common::counter(), limits());
    assert!(!program.has_timer_handler());
    let turn = started(&program, "e")
        .await
        .timer(&firing("ring"), values(9), TurnRecords::default())
        .await;
    assert_eq!(failed(&turn).code, "no-timer-handler");
}
