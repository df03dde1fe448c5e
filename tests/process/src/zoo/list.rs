//! The attacks.

use bytes::Bytes;
use serde_json::{Value, json};

use super::attack::{GuestAttack, RESULT};
use super::sink::Sink;

/// Enough repetitions to exceed the time limit of a turn.
const ENDLESS: u64 = 100_000_000;

const ADD: &str = "{\"key\":\"k\",\"by\":1}";

/// All attacks.
#[must_use]
pub fn attacks(sink: &Sink) -> Vec<GuestAttack> {
    // The slowest ones come first.
    let parts = [messages(), activations(), state(), journals(), lives(), channels(), calls(sink)];
    parts.into_iter().flatten().collect()
}

fn one(
    name: &'static str,
    functions: &'static str,
    ends: &'static [&'static str],
    (id, method): (&'static str, &'static str),
    bodies: [Value; 2],
) -> GuestAttack {
    let bodies = bodies.map(|body| Bytes::from(body.to_string()));
    GuestAttack { name, functions, ends, id, method, bodies }
}

/// An attack from the guest's module `attack`.
fn attack(
    name: &'static str,
    functions: &'static str,
    ends: &'static [&'static str],
    id: &'static str,
    body: Value,
) -> GuestAttack {
    one(name, functions, ends, (id, "attack"), [body.clone(), body])
}

fn add() -> Value {
    serde_json::from_str(ADD).unwrap_or_default()
}

fn activations() -> Vec<GuestAttack> {
    vec![
        one(
            "huge error from start",
            "handler.start",
            &["value-too-large", "start-failed", "entity-backing-off"],
            ("huge-start", "add"),
            [add(), add()],
        ),
        one(
            "passivate in start",
            "lifecycle.passivate",
            &[RESULT],
            ("passivate-start", "add"),
            [add(), add()],
        ),
        one(
            "control characters",
            "log.log, log.report-panic",
            &[RESULT, "panicked"],
            ("control", "control"),
            [json!("log"), json!("panic")],
        ),
        attack(
            "floods of log lines",
            "log.log",
            &[RESULT, "turn-time-limit"],
            "log",
            json!({ "log": { "bytes": 4_096, "count": ENDLESS } }),
        ),
        attack(
            "endless reads of the context",
            "context.*, clock.now",
            &["turn-time-limit"],
            "context",
            json!({ "context": { "count": ENDLESS } }),
        ),
        attack(
            "endless reads of secrets and settings",
            "secrets.get, settings.get",
            &["turn-time-limit"],
            "secrets",
            json!({ "variables": { "size": 1, "count": ENDLESS } }),
        ),
        attack(
            "a secret with a huge name",
            "secrets.get",
            &["invalid-host-call", "value-too-large"],
            "huge-secret",
            json!({ "variables": { "size": 4 << 20, "count": 1 } }),
        ),
        attack(
            "endless random numbers",
            "random.*",
            &["turn-time-limit"],
            "random",
            json!({ "random": { "count": ENDLESS } }),
        ),
        attack(
            "storms of passivation",
            "passivation.passivate-after",
            &[RESULT],
            "delay",
            json!({ "passivate-after": { "count": 1_000 } }),
        ),
    ]
}

fn state() -> Vec<GuestAttack> {
    let fill = json!({ "keys": 5_000, "bytes": 1 });
    vec![
        one(
            "fast small keys",
            "state.set",
            &["turn-too-large"],
            ("keys", "fill"),
            [fill.clone(), fill],
        ),
        attack(
            "values at the limit, read again and again",
            "state.set, state.get",
            &["turn-time-limit"],
            "get",
            json!({ "get": { "bytes": 1_000_000, "count": ENDLESS } }),
        ),
        attack(
            "a key set and deleted again and again",
            "state.set, state.delete",
            &["turn-time-limit"],
            "flip",
            json!({ "set-and-delete": { "count": ENDLESS } }),
        ),
        attack(
            "endless listings",
            "state.list",
            &["turn-time-limit"],
            "list",
            json!({ "list": { "keys": 900, "count": ENDLESS } }),
        ),
    ]
}

/// The arguments of `tell`: this many tells to one entity, which all attackers share.
fn tells(method: &str, body: &str, count: u64) -> Value {
    let (of, id) = ("misbehaving", "victim");
    json!({ "of": of, "id": id, "method": method, "body": body, "count": count })
}

/// The arguments of `ask`: this many asks to one entity, which all attackers share.
fn asks(method: &str, body: &str, count: u64) -> Value {
    let mut arguments = tells(method, body, count);
    arguments["ms"] = 0.into();
    arguments
}

/// A string that just fits into an outbox.
fn large() -> String {
    format!("\"{}\"", "x".repeat((1 << 20) - 100))
}

fn messages() -> Vec<GuestAttack> {
    let large = large();
    let full: &[&str] = &[RESULT, "outbox-full", "outbox-too-large", "turn-time-limit"];
    let timers = json!({ "name": "t", "count": 100, "after_ms": 0, "every_ms": 0, "bytes": 200 });
    // A target of its own, so that the other attacks do not wait for it.
    let mut spinning = asks("spin_for_ever", "", 64);
    spinning["id"] = "spinner".into();
    // Chains of asks through the same entities, in opposite orders.
    let crossing = |ids: [&str; 3]| json!({ "ids": ids, "key": "k" });
    vec![
        one(
            "floods of tells",
            "messaging.tell",
            full,
            ("flood", "tell"),
            [tells("add", ADD, 900), tells("add", ADD, 1)],
        ),
        one(
            "tells at the limit",
            "messaging.tell",
            full,
            ("large", "tell"),
            [tells("note", &large, 1), tells("note", &large, 1)],
        ),
        one(
            "tells to oneself",
            "messaging.tell",
            full,
            ("echo", "tell_myself"),
            [json!(100), json!(100)],
        ),
        one(
            "tells that trap",
            "messaging.tell",
            full,
            ("traps", "tell"),
            [tells("trap", "", 100), tells("trap", "", 100)],
        ),
        attack(
            "delayed tells, sent and cancelled",
            "messaging.tell-at, messaging.cancel-tell, messaging.delayed-tells",
            &["turn-time-limit"],
            "delayed",
            json!({ "delayed-tells": { "bytes": 1_000, "count": ENDLESS } }),
        ),
        one(
            "storms of asks",
            "asks.start-ask, asks.wait",
            &[RESULT],
            ("storm", "ask"),
            [asks("add", ADD, 64), asks("add", ADD, 64)],
        ),
        one(
            "asks at the limit",
            "asks.start-ask, asks.wait",
            &[RESULT, "asks-too-large"],
            ("bulky", "ask"),
            [asks("note", &large, 1), asks("note", &large, 1)],
        ),
        one(
            "asks that wait",
            "asks.start-ask, asks.wait",
            &[RESULT, "deadline-exceeded"],
            ("waits", "ask"),
            [spinning.clone(), spinning],
        ),
        one(
            "asks whose answers are awaited in any order",
            "asks.wait-any",
            &[RESULT],
            ("any", "ask_any"),
            [json!({ "ids": vec!["0"; 64] }), json!({ "ids": vec!["0"; 64] })],
        ),
        one(
            "asks that cross",
            "asks.start-ask",
            &[RESULT],
            ("cross", "ask_along"),
            [
                crossing(["cross-1", "cross-2", "cross-3"]),
                crossing(["cross-3", "cross-2", "cross-1"]),
            ],
        ),
        one(
            "timers due at once",
            "timers.set",
            &[RESULT],
            ("timers", "set_timers"),
            [timers.clone(), timers],
        ),
        one(
            "odd names of timers",
            "timers.set",
            &["invalid-host-call"],
            ("odd", "set_odd_timer"),
            [json!(""), json!("a\u{1}")],
        ),
        attack(
            "timers set, cancelled and listed",
            "timers.set, timers.cancel, timers.list",
            &["turn-time-limit"],
            "clock",
            json!({ "timers": { "count": ENDLESS } }),
        ),
    ]
}

fn journals() -> Vec<GuestAttack> {
    let events = |bytes: usize, count: u64| json!({ "bytes": bytes, "count": count });
    vec![
        one(
            "floods of events",
            "journal.append",
            &[RESULT, "journal-too-large"],
            ("events", "append_sized"),
            [events(1, 999), events(1, 999)],
        ),
        one(
            "events at the limit",
            "journal.append",
            &[RESULT, "journal-too-large"],
            ("heavy", "append_sized"),
            [events(4_000_000, 1), events(4_000_000, 1)],
        ),
        attack(
            "a long journal, read again and again",
            "journal.read, journal.get-extent",
            &["turn-time-limit", "journal-too-large"],
            "reads",
            json!({ "read-journal": { "bytes": 1_000, "events": 900, "count": ENDLESS } }),
        ),
        attack(
            "storms of truncations",
            "journal.append, journal.truncate",
            &["turn-too-large", "turn-time-limit"],
            "cuts",
            json!({ "truncate": { "count": ENDLESS } }),
        ),
        attack(
            "snapshots at the limit",
            "journal.save-snapshot, journal.load-snapshot",
            &["turn-too-large", "turn-time-limit"],
            "saves",
            json!({ "snapshot": { "bytes": 1_000_000, "count": ENDLESS } }),
        ),
    ]
}

fn lives() -> Vec<GuestAttack> {
    vec![
        one(
            "deletions",
            "deletion.delete",
            &[RESULT],
            ("gone", "delete"),
            [json!("a"), json!("b")],
        ),
        one(
            "entities that end at once",
            "deletion.expire-at",
            &[RESULT],
            ("ends", "expire_after"),
            [json!(0), json!(1)],
        ),
        attack(
            "storms of deletions",
            "deletion.*",
            &[RESULT],
            "storms",
            json!({ "delete": { "count": 10_000 } }),
        ),
        one(
            "entities to remember",
            "remembering.remember, remembering.forget",
            &[RESULT],
            ("marks", "remember"),
            [json!(true), json!(false)],
        ),
        attack(
            "storms of remembering",
            "remembering.*",
            &[RESULT],
            "flips",
            json!({ "remember": { "count": 10_000 } }),
        ),
    ]
}

fn channels() -> Vec<GuestAttack> {
    let emit = |channels: u64, bytes: usize, count: u64| json!({ "emit": { "channels": channels, "bytes": bytes, "count": count } });
    let odd = |channel: &str| json!({ "emit-on": { "channel": channel, "count": 1 } });
    vec![
        attack("items", "channels.emit", &[RESULT], "items", emit(16, 10, 256)),
        attack("floods of items", "channels.emit", &["turn-too-large"], "rain", emit(1, 1, 10_000)),
        attack("items at the limit", "channels.emit", &[RESULT], "bulk", emit(1, 64 << 10, 60)),
        attack(
            "items beyond the limit",
            "channels.emit",
            &["item-too-large"],
            "block",
            emit(1, (64 << 10) + 1, 1),
        ),
        attack(
            "many channels",
            "channels.emit",
            &["too-many-channels"],
            "names",
            emit(1_000, 1, 1_000),
        ),
        one(
            "odd names of channels",
            "channels.emit",
            &["invalid-host-call"],
            ("strange", "attack"),
            [odd(""), odd("\u{1}subscriptions")],
        ),
        attack(
            "subscriptions, made and ended",
            "subscriptions.*",
            &[RESULT, "outbox-full"],
            "joins",
            json!({ "subscribe": { "id": "victim", "count": 100 } }),
        ),
        attack(
            "floods of subscriptions",
            "subscriptions.*",
            &["turn-too-large"],
            "crowd",
            json!({ "subscribe": { "id": "victim", "count": 1_000 } }),
        ),
        attack(
            "a channel that feeds itself",
            "subscriptions.subscribe, channels.emit",
            &[RESULT, "outbox-full"],
            "loops",
            json!({ "feed-itself": { "fork": false, "times": 50 } }),
        ),
        attack(
            "a channel that doubles what it gets",
            "subscriptions.subscribe, channels.emit",
            &[RESULT, "outbox-full"],
            "forks",
            json!({ "feed-itself": { "fork": true, "times": 20 } }),
        ),
    ]
}

fn calls(sink: &Sink) -> Vec<GuestAttack> {
    let urls = |url: String| json!({ "method": "POST", "urls": vec![url; 16], "bytes": 60_000 });
    let unanswered = urls(format!("http://127.0.0.1:{}/", sink.port));
    let private = urls("http://10.0.0.1/".into());
    vec![
        one(
            "HTTP calls that nobody answers",
            "wasi:http",
            &[RESULT],
            ("web", "call"),
            [unanswered.clone(), unanswered],
        ),
        one(
            "HTTP calls to private addresses",
            "wasi:http",
            &[RESULT],
            ("private", "call"),
            [private.clone(), private],
        ),
    ]
}
