//! Tells: what a guest may send (R19, R25).

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{ask, failed, host, misbehaving, prepare, send, started};
use ostraca_wasm::{InstanceLimits, TimerChange, TurnResult};

/// The time of the turns, in milliseconds.
const NOW: u64 = 1_700_000_000_000;

fn limits() -> InstanceLimits {
    InstanceLimits {
        tell: vec!["counter".into()],
        outbox: 3,
        outbox_bytes: 1_000,
        ..Default::default()
    }
}

#[tokio::test]
async fn each_limit_on_tells_has_its_own_code() {
    let program = prepare(&host(), misbehaving(), limits());
    let (long_id, long_method) = ("i".repeat(513), "m".repeat(129));
    for (of, id, method, bytes, count, expected) in [
        ("counter", "a", "add", 1, 3, Ok(3)),
        ("counter", "a", "add", 1, 4, Err("outbox-full")),
        ("counter", "a", "add", 997, 1, Ok(1)),
        ("counter", "a", "add", 998, 1, Err("outbox-too-large")),
        ("counter", "a", "add", 499, 2, Err("outbox-too-large")),
        ("counter", "a", "add", 900_000, 1, Err("outbox-too-large")),
        ("other", "a", "add", 1, 1, Err("tell-not-granted")),
        ("counter", "", "add", 1, 1, Err("invalid-host-call")),
        ("counter", &long_id, "add", 1, 1, Err("invalid-host-call")),
        ("counter", "a", "", 1, 1, Err("invalid-host-call")),
        ("counter", "a", "a\u{7}b", 1, 1, Err("invalid-host-call")),
        ("counter", "a", &long_method, 1, 1, Err("invalid-host-call")),
    ] {
        let body = serde_json::json!({
            "of": of, "id": id, "method": method, "body": "x".repeat(bytes), "count": count,
        });
        let turn = send(&mut started(&program, "e").await, "tell", &body.to_string()).await;
        let outcome = match turn.result {
            TurnResult::Ok(_) => Ok(turn.tells.len()),
            _ => Err(failed(&turn).code.as_str()),
        };
        assert_eq!(outcome, expected, "{count} of {bytes} bytes to {of}/{id}: {method}");
    }
}

#[tokio::test]
async fn r27_a_subscription_is_a_tell_with_a_method_of_its_own() {
    let limits = InstanceLimits { tell: vec!["misbehaving".into()], ..limits() };
    let program = prepare(&host(), misbehaving(), limits);
    let follow = |channel: &str, method: &str| {
        serde_json::json!({ "id": "room", "channel": channel, "method": method }).to_string()
    };
    let turn = send(&mut started(&program, "e").await, "follow", &follow("news", "m")).await;
    let tell = &turn.tells[0];
    assert_eq!((&*tell.entity_type, &*tell.id), ("misbehaving", "room"));
    assert_eq!((&*tell.method, &tell.body[..]), ("\u{1}subscribe", &b"news\nm"[..]));
    let ends = serde_json::json!({ "id": "room", "channel": "news" }).to_string();
    let turn = send(&mut started(&program, "e").await, "unfollow", &ends).await;
    let tell = &turn.tells[0];
    assert_eq!((&*tell.method, &tell.body[..]), ("\u{1}unsubscribe", &b"news\n"[..]));
    let long = "m".repeat(129);
    for (channel, method) in [("", "m"), ("news", ""), ("a\nb", "m"), (&long, "m"), ("c", &long)] {
        let turn =
            send(&mut started(&program, "e").await, "follow", &follow(channel, method)).await;
        assert_eq!(failed(&turn).code, "invalid-host-call", "{channel:?} {method:?}");
    }
    let none = prepare(&host(), misbehaving(), InstanceLimits::default());
    let turn = send(&mut started(&none, "e").await, "follow", &follow("news", "m")).await;
    assert_eq!(failed(&turn).code, "tell-not-granted");
}

#[tokio::test]
async fn a_query_and_a_refused_turn_send_nothing() {
    let limits = InstanceLimits { tell: vec!["misbehaving".into()], ..limits() };
    let program = prepare(&host(), misbehaving(), limits);
    let turn = ask(&mut started(&program, "e").await, "sly_tell", "").await;
    assert_eq!(failed(&turn).code, "write-in-query");
    let turn = send(&mut started(&program, "e").await, "tell_and_refuse", "\"x\"").await;
    assert!(matches!(turn.result, TurnResult::Application { .. }), "{turn:?}");
    assert!(turn.tells.is_empty());
}

#[tokio::test]
async fn a_delayed_tell_counts_towards_timer_limits() {
    let limits = InstanceLimits {
        tell: vec!["misbehaving".into()],
        timers: 2,
        timer_bytes: 1_000,
        ..limits()
    };
    let program = prepare(&host(), misbehaving(), limits);
    let mut instance = started(&program, "e").await;
    let mut later = async |name: &str, text: &str| {
        let body = serde_json::json!({ "name": name, "id": "b", "text": text, "ms": 500 });
        let turn = send(&mut instance, "tell_later", &body.to_string()).await;
        match turn.result {
            TurnResult::Ok(_) => Ok((turn.timers, turn.tells.len())),
            _ => Err(failed(&turn).code.as_str()),
        }
    };
    let (changes, tells) = later("n", "hello").await.unwrap();
    let [TimerChange::SetTell { name, due, tell }] = &changes[..] else { panic!("{changes:?}") };
    assert_eq!((&**name, *due, tells), ("n", NOW + 500, 0));
    assert_eq!((&*tell.entity_type, &*tell.id, &*tell.method), ("misbehaving", "b", "note"));
    assert_eq!((&tell.body[..], &*tell.content_type), (&b"\"hello\""[..], "application/json"));
    assert_eq!(later("n", &"x".repeat(1_000)).await, Err("timers-too-large"));
    let mut instance = started(&program, "e").await;
    for (name, expected) in [("", "invalid-host-call"), ("a\u{1}b", "invalid-host-call")] {
        let body = serde_json::json!({ "name": name, "id": "b", "text": "x", "ms": 1 });
        let turn = send(&mut instance, "tell_later", &body.to_string()).await;
        assert_eq!(failed(&turn).code, expected);
        instance = started(&program, "e").await;
    }
    let turn = send(&mut instance, "cancel_tell", "\"n\"").await;
    assert_eq!(turn.result, TurnResult::Ok("false".into()), "the test passes it no timers");
}
