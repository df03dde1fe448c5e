//! What the kit promises, with the components of the examples and of the tests' own guest.

use std::path::{Path, PathBuf};
use std::time::Duration;

use ostraca_testkit::{CallError, HttpReply, Kit};
use serde_json::{Value, json};

const DAY: Duration = Duration::from_secs(86_400);
const SHOP: &str = "https://shop.example.com";

fn package(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

fn chat() -> Kit {
    let mut kit = Kit::new();
    kit.deploy(package("examples/chat")).expect("a component");
    kit.command("chat/lobby", "join", json!("alice")).expect("joins");
    kit
}

fn post(kit: &mut Kit, text: &str) -> Result<Value, CallError> {
    kit.command("chat/lobby", "post", json!({ "name": "alice", "text": text }))
}

/// A cart with two items from a shop, whose answers to orders come from the function.
fn cart(mut order: impl FnMut() -> HttpReply + Send + 'static) -> Kit {
    let mut kit = Kit::new();
    kit.deploy(package("examples/cart")).expect("a component");
    kit.answer_http(move |call| match call.method.as_str() {
        "GET" => HttpReply::Json(200, json!({ "cents": 350 })),
        _ => order(),
    });
    kit.command("cart/c1", "open", json!(SHOP)).expect("opens");
    kit.command("cart/c1", "add", json!({ "item": "tea", "quantity": 2 })).expect("adds");
    kit.take_http_calls();
    kit
}

fn misbehaving(grants: &str) -> Kit {
    let mut kit = Kit::new();
    let manifest =
        format!("type = \"misbehaving\"\ncomponent = \"misbehaving.wasm\"\n[grants]\n{grants}\n");
    kit.deploy_with(package("tests/guests/misbehaving"), &manifest).expect("a component");
    kit
}

#[test]
fn secrets_and_settings_count_from_the_next_turn_on() {
    let mut kit = misbehaving("secrets = [\"api-key\"]\nsettings = [\"greeting\"]");
    let read = |kit: &mut Kit, method: &str, name: &str| {
        kit.query(&format!("misbehaving/{name}"), method, json!([name]))
    };
    assert_eq!(read(&mut kit, "secrets", "api-key"), Ok(json!([null])));
    kit.set_secret("misbehaving", "api-key", "hidden");
    kit.set_setting("misbehaving", "greeting", "hello");
    assert_eq!(read(&mut kit, "secrets", "api-key"), Ok(json!([6])));
    assert_eq!(read(&mut kit, "settings", "greeting"), Ok(json!(["hello"])));
    let refused = read(&mut kit, "secrets", "other").expect_err("not granted");
    assert_eq!(refused.code(), "secret-not-granted");
}

#[test]
fn the_state_outlives_a_crash_and_a_hand_off() {
    let mut kit = chat();
    assert!(kit.has_instance("chat/lobby"));
    kit.command("chat/lobby", "leave", json!("alice")).expect("leaves");
    kit.crash("chat/lobby");
    assert!(!kit.has_instance("chat/lobby"), "nobody is there: the room is not remembered");
    kit.command("chat/lobby", "join", json!("bob")).expect("joins");
    kit.hand_off("chat/lobby");
    assert!(kit.has_instance("chat/lobby"), "a remembered room is started without a message");
    let members = kit.query("chat/lobby", "members", json!(null));
    assert_eq!(members, Ok(json!(["bob"])));
    let stored = kit.stored("chat/lobby");
    assert!(stored.remembered && stored.version >= 3);
    assert_eq!(stored.value("state")["members"], json!(["bob"]));
}

#[test]
fn a_timer_fires_once_at_its_time_whoever_owns_it() {
    let mut kit = chat();
    kit.command("chat/lobby", "here", json!({ "name": "alice", "seconds": 10 })).expect("is here");
    let due = kit.now() + Duration::from_secs(10);
    assert_eq!(kit.stored("chat/lobby").timers[0].due, due);
    kit.advance(Duration::from_millis(9_999));
    kit.hand_off("chat/lobby");
    kit.crash("chat/lobby");
    assert_eq!(kit.items("chat/lobby", "presence").len(), 1);
    kit.advance(Duration::from_millis(1));
    kit.hand_off("chat/lobby");
    kit.advance(DAY);
    let presence = kit.items("chat/lobby", "presence");
    assert_eq!(presence[1..], [json!({ "name": "alice", "change": "timed-out" })]);
    assert_eq!(kit.stored("chat/lobby").timers, []);
}

#[test]
fn a_turn_whose_commit_is_lost_runs_again_once() {
    let mut kit = cart(|| HttpReply::Json(201, json!({ "order": "o1" })));
    kit.lose_next_commit("cart/c1");
    let total = kit.command("cart/c1", "add", json!({ "item": "tea", "quantity": 1 }));
    assert_eq!(total, Ok(json!(1_050)));
    let prices = kit.take_http_calls();
    assert_eq!(prices.len(), 2, "the turn ran twice: {prices:?}");
    assert_eq!(prices[0].key, prices[1].key);
    assert_eq!(kit.stored("cart/c1").events.len(), 3);
    let mut kit = chat();
    kit.lose_next_commit("chat/lobby");
    assert_eq!(post(&mut kit, "hello"), Ok(json!(1)));
    assert_eq!(post(&mut kit, "again"), Ok(json!(2)));
    assert_eq!(kit.items("chat/lobby", "messages").len(), 2);
}

#[test]
fn a_turn_that_traps_has_no_effect() {
    let mut kit = chat();
    kit.trap_next_turn("chat/lobby");
    let refused = post(&mut kit, "hello").expect_err("it traps");
    assert!(matches!(&refused, CallError::NotRun { .. }), "{refused}");
    assert_eq!(refused.code(), "trap");
    assert_eq!(kit.items("chat/lobby", "messages"), Vec::<Value>::new());
    assert_eq!(post(&mut kit, "again"), Ok(json!(1)));
}

#[test]
fn tells_reach_deployed_types_and_the_test() {
    let mut kit = misbehaving("tell = [\"misbehaving\", \"mail\"]");
    let tells = json!({ "ids": ["b", "b"], "key": "n" });
    kit.lose_next_commit("misbehaving/b");
    kit.command("misbehaving/a", "tell_add", tells).expect("sends");
    kit.advance(Duration::from_secs(60));
    assert_eq!(kit.stored("misbehaving/b").value("n"), 2, "each tell runs once");
    let seen: Vec<_> = kit.take_tells().into_iter().map(|it| (it.from, it.to, it.method)).collect();
    let tell = ("misbehaving/a".into(), "misbehaving/b".into(), "add".into());
    assert_eq!(seen, [tell.clone(), tell]);
    assert_eq!(kit.stored("misbehaving/a").dead_letters, []);

    kit.answer("mail", |_| Err(("no-such-box".into(), "unknown".into())));
    let mail = json!({ "of": "mail", "id": "m", "method": "send", "body": "{}", "count": 1 });
    kit.command("misbehaving/a", "tell", mail).expect("sends");
    let dead = kit.stored("misbehaving/a").dead_letters;
    assert!(
        matches!(&dead[..], [(method, why)] if method == "send" && why.contains("no-such-box"))
    );
}

#[test]
fn asks_reach_deployed_types_and_the_test() {
    let mut kit = misbehaving("ask = [\"misbehaving\", \"stock\"]");
    kit.answer("stock", |ask| match &*ask.method {
        "count" => Ok(json!(7)),
        _ => Err(("unknown".into(), "no such method".into())),
    });
    let ask = |of: &str, method: &str, body: &str| json!({ "of": of, "id": "b", "method": method, "body": body, "count": 1, "ms": 0 });
    let answered = kit.command("misbehaving/a", "ask", ask("stock", "count", "null"));
    assert!(answered.clone().expect("an answer").to_string().contains('7'), "{answered:?}");
    let refused = kit.command("misbehaving/a", "ask", ask("stock", "other", "null"));
    assert!(refused.clone().expect("an answer").to_string().contains("unknown"), "{refused:?}");
    let add = ask("misbehaving", "add", r#"{"key":"n","by":1}"#);
    kit.command("misbehaving/a", "ask", add).expect("an answer");
    assert_eq!(kit.stored("misbehaving/b").value("n"), 1);
    let methods: Vec<_> = kit.take_asks().into_iter().map(|ask| ask.method).collect();
    assert_eq!(methods, ["count", "other", "add"]);
}

#[test]
fn grants_of_the_manifest_hold() {
    let mut kit = misbehaving("tell = [\"mail\"]");
    let tells = json!({ "ids": ["b"], "key": "n" });
    let refused = kit.command("misbehaving/a", "tell_add", tells).expect_err("not granted");
    assert_eq!(refused.code(), "tell-not-granted");
    let mut kit = cart(|| HttpReply::Refused);
    kit.set_principal("robot/1");
    let refused = kit.query("cart/c1", "contents", json!(null)).expect_err("no access");
    assert_eq!(refused.code(), "access-denied");
}

#[test]
fn a_failed_firing_repeats_its_idempotency_key() {
    let mut replies = vec![
        HttpReply::Json(201, json!({ "order": "o1" })),
        HttpReply::Json(503, json!(null)),
        HttpReply::Lost,
        HttpReply::Refused,
    ];
    let mut kit = cart(move || replies.pop().expect("four orders"));
    kit.command("cart/c1", "checkout", json!(null)).expect("orders");
    kit.advance(Duration::from_secs(60));
    let calls = kit.take_http_calls();
    assert_eq!(calls.len(), 4, "{calls:?}");
    assert_eq!(calls[0].url, "https://shop.example.com:443/orders");
    assert!(calls.iter().all(|call| !call.key.is_empty() && call.key == calls[0].key), "{calls:?}");
    let contents = kit.query("cart/c1", "contents", json!(null)).expect("a cart");
    assert_eq!(contents["status"], json!({ "ordered": { "order": "o1" } }));
}

#[test]
fn an_entity_expires_at_its_time_and_not_before() {
    let mut kit = cart(|| HttpReply::Refused);
    assert!(kit.stored("cart/c1").expires_at.is_some_and(|at| at > kit.now() + 13 * DAY));
    kit.advance(13 * DAY);
    let events = kit.stored("cart/c1").events;
    assert_eq!(events[0], json!({ "Opened": { "shop": SHOP } }));
    // Up to a sixteenth of the time to live late.
    kit.advance(2 * DAY);
    assert_eq!(kit.stored("cart/c1").events, Vec::<Value>::new());
}

#[test]
fn idle_instances_are_dropped_and_messages_start_new_ones() {
    let mut kit = cart(|| HttpReply::Refused);
    kit.hand_off("cart/c1");
    assert!(!kit.has_instance("cart/c1"), "an instance does not move");
    kit.query("cart/c1", "contents", json!(null)).expect("a cart");
    kit.advance(Duration::from_secs(60));
    assert!(kit.has_instance("cart/c1"));
    kit.advance(Duration::from_secs(120));
    assert!(!kit.has_instance("cart/c1"));
    let total = kit.command("cart/c1", "add", json!({ "item": "tea", "quantity": 1 }));
    assert_eq!(total, Ok(json!(1_050)));
}

#[test]
fn s10_a_guest_is_told_that_it_stops_and_why() {
    let mut kit = misbehaving("");
    let add = |kit: &mut Kit| {
        kit.command("misbehaving/a", "add", json!({ "key": "k", "by": 1 })).expect("added");
    };
    let stopped = |kit: &Kit| {
        let stored = kit.stored("misbehaving/a");
        (stored.value("stops"), stored.value("stop-reason"))
    };
    add(&mut kit);
    kit.hand_off("misbehaving/a");
    assert_eq!(stopped(&kit), (json!(1), json!("HandedOff")));
    add(&mut kit);
    kit.advance(Duration::from_secs(125));
    assert_eq!(stopped(&kit), (json!(2), json!("Idle")));
}

#[test]
fn k30_each_type_has_an_idle_time_of_its_own() {
    let mut kit = Kit::new();
    for (name, idle) in [("short", "5 s"), ("long", "1 h")] {
        let manifest = format!(
            "type = \"{name}\"\ncomponent = \"misbehaving.wasm\"\n[lifecycle]\nidle-timeout = \"{idle}\"\n"
        );
        kit.deploy_with(package("tests/guests/misbehaving"), &manifest).expect("a component");
        let added = kit.command(&format!("{name}/a"), "add", json!({ "key": "k", "by": 1 }));
        added.expect("added");
    }
    kit.advance(Duration::from_secs(4));
    assert!(kit.has_instance("short/a") && kit.has_instance("long/a"));
    kit.advance(Duration::from_secs(3));
    assert!(!kit.has_instance("short/a") && kit.has_instance("long/a"));
}

#[test]
fn what_is_refused_says_why() {
    let mut kit = Kit::new();
    let unknown = kit.query("nothing/x", "get", json!(null)).expect_err("no such type");
    assert_eq!(unknown.code(), "unknown-type");
    let wrong = kit.deploy_component("type = \"x\"\ncomponent = \"x.wasm\"\n", b"no component");
    assert!(wrong.expect_err("no component").to_string().contains("refused"));
    let manifest = kit.deploy_component("type = 1", b"");
    assert!(manifest.expect_err("no manifest").to_string().contains("manifest"));
    assert!(kit.deploy(package("no/such/package")).is_err());
}

#[test]
fn what_becomes_due_happens_at_its_own_time() {
    let mut kit = misbehaving("");
    for (name, after) in [("ring/a", 10_000), ("ring/b", 3_600_000)] {
        let timer =
            json!({ "name": name, "count": 1, "after_ms": after, "every_ms": 0, "bytes": 0 });
        kit.command("misbehaving/a", "set_timers", timer).expect("sets it");
    }
    let again =
        json!({ "name": "ring/c", "count": 1, "after_ms": 0, "every_ms": 60_000, "bytes": 0 });
    kit.command("misbehaving/a", "set_timers", again).expect("sets it");
    kit.advance(Duration::from_secs(86_399));
    let stored = kit.stored("misbehaving/a");
    // How often it fired, how late in milliseconds, and how many firings were missed.
    assert_eq!(stored.value("rung/ring/a"), json!([1, 0, 0]));
    assert_eq!(stored.value("rung/ring/b"), json!([1, 0, 0]));
    assert_eq!(stored.value("rung/ring/c"), json!([24 * 60, 0, 0]));
}
