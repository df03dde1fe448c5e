//! Secrets and settings: what a guest may read, and that a turn never sees two values of one.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::sync::{Arc, Mutex};

use common::{command, failed, host, misbehaving, ok, prepare, query, started};
use ostraca_wasm::{
    AskAnswer, AskReply, AskSink, FailureKind, GuestAsk, InstanceLimits, TurnRecords,
    TypeVariables, VariablesRegistry,
};

fn limits() -> InstanceLimits {
    InstanceLimits {
        secrets: vec!["api-key".into(), "unset".into(), "sealed".into()],
        settings: vec!["greeting".into()],
        ask: vec!["misbehaving".into()],
        ..InstanceLimits::default()
    }
}

/// The type of the tests' entities.
fn entity_type() -> Arc<str> {
    common::identity("e").entity_type
}

fn set(registry: &VariablesRegistry, greeting: &str) {
    let secrets = [
        ("api-key".to_owned(), Ok("hidden".to_owned().into())),
        ("sealed".to_owned(), Err("no key".to_owned())),
        ("other".to_owned(), Ok("not granted".to_owned().into())),
    ];
    let settings = [("greeting".to_owned(), greeting.to_owned())];
    let (secrets, settings) = (secrets.into(), settings.into());
    let variables = TypeVariables { secrets, settings, unreadable: None };
    registry.set(&entity_type(), variables);
}

#[tokio::test]
async fn a_guest_reads_only_what_its_manifest_grants() {
    let host = host();
    set(host.variables(), "hello");
    let program = prepare(&host, misbehaving(), limits());
    let read = async |method: &'static str, names: &str| {
        let mut instance = started(&program, "e").await;
        instance.message(query(), method, names.to_owned().into()).await
    };
    assert_eq!(ok(&read("secrets", "[\"api-key\",\"unset\"]").await), "[6,null]");
    assert_eq!(ok(&read("settings", "[\"greeting\"]").await), "[\"hello\"]");
    // A setting is no secret, and the other way round.
    for (method, name, code) in [
        ("secrets", "other", "secret-not-granted"),
        ("secrets", "greeting", "secret-not-granted"),
        ("settings", "api-key", "setting-not-granted"),
        ("settings", "other", "setting-not-granted"),
    ] {
        let turn = read(method, &format!("[\"{name}\"]")).await;
        assert_eq!(failed(&turn).code, *code, "{method} {name}");
        assert!(failed(&turn).message.contains(name), "{}", failed(&turn).message);
    }
}

#[tokio::test]
async fn a_secret_that_cannot_be_opened_is_the_hosts_fault() {
    let host = host();
    set(host.variables(), "hello");
    let program = prepare(&host, misbehaving(), limits());
    let mut instance = started(&program, "e").await;
    let turn = instance.message(query(), "secrets", "[\"sealed\"]".into()).await;
    let failure = failed(&turn);
    assert_eq!((failure.code.as_str(), failure.kind), ("variable-unavailable", FailureKind::Host));
    assert!(failure.message.contains("no key"), "{}", failure.message);
    // What cannot be read does not look as if it were not set.
    let unreadable = Some("damaged".to_owned());
    host.variables().set(&entity_type(), TypeVariables { unreadable, ..TypeVariables::default() });
    for (method, name) in [("secrets", "unset"), ("settings", "greeting")] {
        let mut instance = started(&program, "e").await;
        let turn = instance.message(query(), method, format!("[{name:?}]").into()).await;
        assert_eq!(failed(&turn).code, *"variable-unavailable", "{method}");
    }
}

/// Changes the setting before it answers.
#[derive(Debug)]
struct Changing(Mutex<VariablesRegistry>);

impl AskSink for Changing {
    fn ask(&self, _: u32, _: GuestAsk, reply: AskReply) {
        set(&self.0.lock().unwrap(), "changed");
        reply.answer(AskAnswer::Unknown { message: "nobody".into() });
    }
}

#[tokio::test]
async fn a_turn_reads_one_value_and_the_next_turn_the_new_one() {
    let host = host();
    set(host.variables(), "hello");
    let program = prepare(&host, misbehaving(), limits());
    let mut instance = started(&program, "e").await;
    let sink = Arc::new(Changing(Mutex::new(host.variables().clone())));
    let mut message = command();
    let records = TurnRecords { asks: Some(sink), ..TurnRecords::default() };
    message.records = Some(Box::new(records));
    let body = "{\"name\":\"greeting\",\"id\":\"x\"}";
    let turn = instance.message(message, "setting_around_ask", body.into()).await;
    assert_eq!(ok(&turn), "[\"hello\",\"hello\"]");
    let turn = instance.message(query(), "settings", "[\"greeting\"]".into()).await;
    assert_eq!(ok(&turn), "[\"changed\"]");
}
