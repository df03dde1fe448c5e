//! Tests what callers and entities can rely on, through the dispatch that a component uses.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use ostraca_sdk::serde_json::{Value, json};
use ostraca_sdk::testing::{self, MessageError, call, call_raw};
use ostraca_sdk::{Error, StartReason, StopReason, context, entity, lifecycle, state};
use serde::{Deserialize, Serialize};

#[derive(Default, Serialize, Deserialize)]
struct Box_ {
    items: BTreeMap<String, u32>,
    starts: Vec<String>,
}

#[derive(Serialize, Deserialize)]
struct Item {
    name: String,
    count: u32,
}

type Answer<T> = Result<T, Error>;

#[entity]
impl Box_ {
    #[start]
    fn start(&mut self, reason: StartReason) {
        self.starts.push(format!("{reason:?}"));
    }

    #[stop]
    fn stop(&mut self, reason: StopReason) {
        self.starts.push(format!("{reason:?}"));
    }

    /// Adds items.
    ///
    /// A second line, which is not part of the summary.
    #[message]
    fn put(&mut self, name: String, count: u32, note: Option<Vec<String>>) -> u32 {
        let _ = note;
        *self.items.entry(name).and_modify(|have| *have += count).or_insert(count)
    }

    #[message]
    fn put_item(&mut self, item: Item) -> u32 {
        self.put(item.name, item.count, None)
    }

    #[message]
    fn spoil(&mut self) -> Answer<()> {
        self.items.clear();
        state::set("other", &1);
        Err(Error::new("spoiled", "as asked"))
    }

    #[message]
    fn panic(&mut self) {
        self.items.clear();
        state::set("other", &1);
        panic!("as asked");
    }

    #[message]
    fn all(&self) -> &BTreeMap<String, u32> {
        &self.items
    }

    #[message]
    fn starts(&self) -> Vec<String> {
        self.starts.clone()
    }

    #[message]
    fn write_in_query(&self) {
        state::set("other", &1);
    }

    #[message]
    fn sleep(&mut self) {
        lifecycle::passivate();
    }

    #[message]
    fn who(&self) -> (String, Option<String>) {
        (context::identity().id, context::current_message().map(|message| message.principal))
    }

    #[message]
    fn depth(&self, of: Value) -> usize {
        let mut depth = 0;
        let mut value = &of;
        while let Some(inner) = value.get(0) {
            (depth, value) = (depth + 1, inner);
        }
        depth
    }

    #[allow(dead_code, reason = "a function that is no message of the entity")]
    fn helper() {}
}

fn refused(outcome: Result<Value, MessageError>) -> String {
    match outcome {
        Err(MessageError::InvalidArguments(why)) => why,
        other => panic!("expected invalid arguments, got {other:?}"),
    }
}

#[test]
fn arguments_are_named_and_a_single_one_may_be_bare() {
    assert_eq!(call::<Box_>("put", json!({"name": "a", "count": 1})), Ok(json!(1)));
    assert_eq!(call::<Box_>("put", json!({"count": 1, "note": ["x"], "name": "a"})), Ok(json!(2)));
    let item = json!({"name": "a", "count": 3});
    assert_eq!(call::<Box_>("put_item", &item), Ok(json!(5)));
    assert_eq!(call::<Box_>("put_item", json!({ "item": item })), Ok(json!(8)));
    for body in ["", "null", " {} ", "{}"] {
        assert_eq!(call_raw::<Box_>("all", body.as_bytes()), Ok(br#"{"a":8}"#.to_vec()), "{body}");
    }
}

#[test]
fn arguments_nested_too_deeply_are_refused() {
    let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    let call = |method: &str, body: String| call_raw::<Box_>(method, body.as_bytes());
    let refused = |method: &str, body: String| match call(method, body) {
        Err(MessageError::InvalidArguments(why)) => why,
        other => panic!("expected invalid arguments, got {other:?}"),
    };
    assert_eq!(call("depth", nested(100)), Ok(b"99".to_vec()));
    let deep = nested(1_000_000);
    for body in [deep.clone(), "[".repeat(1_000_000), format!("{{\"of\":{deep}}}")] {
        assert_eq!(
            refused("depth", body),
            "depth(of: Value): argument `of`: recursion limit exceeded"
        );
    }
    // Where a nested value is not allowed, it is not even read.
    let why = refused("put", format!("{{\"name\":\"a\",\"count\":{deep}}}"));
    assert!(why.ends_with("argument `count`: invalid type: sequence, expected u32"), "{why}");
    let why = refused("all", deep);
    assert!(why.starts_with("all(): takes no arguments"), "{why}");
}

#[test]
fn arguments_that_do_not_fit_are_refused_by_name() {
    let shown = "put(name: String, count: u32, note: Option<Vec<String>>): ";
    for (body, why) in [
        (json!({"name": "a"}), "missing argument `count`"),
        (
            json!({"name": "a", "count": -1}),
            "argument `count`: invalid value: integer `-1`, expected u32",
        ),
        (json!({"name": "a", "count": 1, "cuont": 1}), "unknown argument `cuont`"),
        (
            json!([1]),
            "expected a JSON object with these names: invalid type: sequence, expected a JSON object at line 1 column 0",
        ),
        (
            json!(null),
            "expected a JSON object with these names: invalid type: null, expected a JSON object at line 1 column 4",
        ),
    ] {
        assert_eq!(refused(call::<Box_>("put", body)), format!("{shown}{why}"));
    }
    let double = call_raw::<Box_>("put", br#"{"name":"a","count":1,"count":2}"#);
    assert_eq!(
        double,
        Err(MessageError::InvalidArguments(format!("{shown}duplicate argument `count`")))
    );
    for body in [&b"{"[..], b"{}x", b"\xff", b"{\"name\":}", b"[", &[b'['; 100_000]] {
        assert!(matches!(call_raw::<Box_>("put", body), Err(MessageError::InvalidArguments(_))));
        assert!(matches!(
            call_raw::<Box_>("put_item", body),
            Err(MessageError::InvalidArguments(_))
        ));
        assert!(matches!(call_raw::<Box_>("all", body), Err(MessageError::InvalidArguments(_))));
    }
    assert!(
        refused(call::<Box_>("put_item", json!({"item": {}, "itm": 1})))
            .ends_with("unknown argument `itm`")
    );
    assert!(
        refused(call_raw::<Box_>("put_item", b"").map(|_| json!(0)))
            .ends_with("missing argument `item`")
    );
    assert_eq!(call::<Box_>("putt", ()), Err(MessageError::UnknownMethod));
}

#[test]
fn an_application_error_changes_neither_struct_nor_store() {
    call::<Box_>("put_item", json!({"name": "a", "count": 3})).unwrap();
    let before = state::list_raw("", 10, None);
    let refused = call::<Box_>("spoil", ());
    assert_eq!(
        refused,
        Err(MessageError::Application {
            code: "spoiled".to_owned(),
            message: "as asked".to_owned()
        })
    );
    assert_eq!(call::<Box_>("all", ()), Ok(json!({"a": 3})));
    assert_eq!(state::list_raw("", 10, None), before);
}

#[test]
fn a_panic_drops_the_instance_and_keeps_the_stored_state() {
    call::<Box_>("put_item", json!({"name": "a", "count": 3})).unwrap();
    assert!(catch_unwind(AssertUnwindSafe(|| call::<Box_>("panic", ()))).is_err());
    assert!(!testing::has_live_instance::<Box_>());
    assert_eq!(call::<Box_>("all", ()), Ok(json!({"a": 3})));
    assert_eq!(state::get_raw("other"), None);
}

#[test]
fn a_query_that_writes_panics() {
    let panic = catch_unwind(AssertUnwindSafe(|| call::<Box_>("write_in_query", ()))).unwrap_err();
    assert!(panic.downcast_ref::<String>().unwrap().starts_with("write-in-query"));
    assert_eq!(state::get_raw("other"), None);
}

#[test]
fn hooks_run_once_per_instance_and_their_changes_are_kept() {
    assert_eq!(call::<Box_>("starts", ()), Ok(json!(["FirstMessage"])));
    call::<Box_>("sleep", ()).unwrap();
    assert!(!testing::has_live_instance::<Box_>());
    assert_eq!(call::<Box_>("starts", ()), Ok(json!(["FirstMessage", "Passivated", "Message"])));
    testing::crash_instance::<Box_>();
    let starts = call::<Box_>("starts", ()).unwrap();
    assert_eq!(starts.as_array().unwrap().len(), 4);
}

#[test]
fn undecodable_state_panics_with_advice_and_is_kept() {
    state::set_raw("state", br#"{"items":[]}"#);
    let panic = catch_unwind(AssertUnwindSafe(|| call::<Box_>("all", ()))).unwrap_err();
    let text = panic.downcast_ref::<String>().unwrap();
    assert!(text.starts_with("state-does-not-decode") && text.contains("serde(default)"), "{text}");
    assert_eq!(state::get_raw("state").unwrap(), br#"{"items":[]}"#);
}

#[test]
fn the_store_is_written_only_when_the_struct_changed() {
    call::<Box_>("put_item", json!({"name": "a", "count": 1})).unwrap();
    state::set_raw("state", b"a mark that a write would replace");
    call::<Box_>("put_item", json!({"name": "a", "count": 0})).unwrap();
    assert_eq!(state::get_raw("state").unwrap(), b"a mark that a write would replace");
}

#[test]
fn the_context_names_entity_and_sender() {
    testing::set_identity("box", "b-7");
    testing::set_principal("alice");
    assert_eq!(call::<Box_>("who", ()), Ok(json!(["b-7", "alice"])));
    assert_eq!(context::current_message(), None);
}

#[test]
fn a_listing_fetches_page_after_page() {
    for number in 0..250 {
        state::set(&format!("n/{number:03}"), &number);
    }
    state::set("o", &0);
    let all: Vec<i32> = state::list("n/").map(|(_, number): (String, i32)| number).collect();
    assert_eq!(all, (0..250).collect::<Vec<_>>());
    let rest: Vec<(String, i32)> = state::list_after("n/", Some("n/247".to_owned())).collect();
    assert_eq!(rest.len(), 2);
}

#[derive(ostraca_sdk::ApplicationError)]
enum Refused {
    TooHeavy {
        by: u32,
    },
    #[code("gone-away")]
    Gone(()),
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Refused::TooHeavy { by } => write!(f, "too heavy by {by}"),
            Refused::Gone(()) => f.write_str("gone"),
        }
    }
}

#[test]
fn a_derived_error_has_the_code_and_text_of_its_variant() {
    let through = || -> Result<(), Error> { Err(Refused::TooHeavy { by: 3 })? };
    assert_eq!(through(), Err(Error::new("too-heavy", "too heavy by 3")));
    assert_eq!(Error::from(Refused::Gone(())), Error::new("gone-away", "gone"));
}
