//! Typed references: `Stock::at("tea").take(3)`.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::time::Duration;

use ostraca_sdk::asks::{self, AskError};
use ostraca_sdk::call::TypedCall as _;
use ostraca_sdk::serde_json::json;
use ostraca_sdk::testing::{self, call};
use ostraca_sdk::{Error, entity};
use serde::{Deserialize, Serialize};

#[derive(Default, Serialize, Deserialize)]
struct Stock {
    count: u64,
}

#[entity(type = "warehouse-stock", schemas = false)]
impl Stock {
    /// Takes some.
    #[message]
    fn take(&mut self, count: u64, r#for: Option<String>) -> Result<u64, Error> {
        drop(r#for);
        self.count -= count;
        Ok(self.count)
    }

    #[message]
    fn count(&self) -> u64 {
        self.count
    }

    #[message]
    fn clear(&mut self) {
        self.count = 0;
    }
}

#[derive(Default, Serialize, Deserialize)]
struct Cart {}

#[entity]
impl Cart {
    #[message]
    fn order(&mut self) {
        Stock::at("tea").take(3, Some("bob".to_owned())).tell();
        Stock::at("tea").clear().tell();
        Stock::at("cups").take(1, None).tell_after("later", Duration::from_secs(60));
    }

    #[message]
    fn ask(&mut self) -> Result<u64, AskError> {
        let slow = Stock::at("tea").count().start_ask();
        let quick = Stock::at("cups").count().start_ask_within(Duration::from_secs(1));
        asks::wait_any([slow.as_ref(), quick.as_ref()]);
        let left = Stock::at("tea").take(1, None).ask()?;
        Stock::at("tea").clear().ask()?;
        Ok(left + slow.wait()? + quick.wait()?)
    }
}

#[test]
fn a_typed_tell_names_type_method_and_arguments() {
    call::<Cart>("order", ()).unwrap();
    let sent = testing::take_tells();
    let shown: Vec<_> = sent
        .iter()
        .map(|it| (it.to.entity_type(), it.to.id(), it.method.as_str(), it.arguments()))
        .collect();
    assert_eq!(
        shown,
        [
            ("warehouse-stock", "tea", "take", json!({ "count": 3, "for": "bob" })),
            ("warehouse-stock", "tea", "clear", json!({})),
        ]
    );
    assert!(sent.iter().all(|it| it.content_type == "application/json"));
    testing::advance_time(Duration::from_secs(60));
    let later = testing::take_tells();
    assert_eq!(later[0].arguments(), json!({ "count": 1, "for": null }));
}

#[test]
fn a_typed_ask_decodes_the_methods_result() {
    testing::answer_asks(|ask| match (ask.to.id(), ask.method.as_str()) {
        ("tea", "count") => Ok(testing::json_answer(20)),
        ("cups", "count") => Ok(testing::json_answer(5)),
        (_, "take") => Ok(testing::json_answer(100)),
        _ => Ok(Vec::new()),
    });
    assert_eq!(call::<Cart>("ask", ()), Ok(json!(125)));
    testing::answer_asks(|_| Ok(testing::json_answer("text")));
    let refused = call::<Cart>("ask", ()).unwrap_err();
    assert!(format!("{refused:?}").contains("ask-invalid-answer"), "{refused:?}");
}

#[test]
fn the_arguments_of_a_call_are_what_its_method_reads() {
    call::<Stock>("clear", ()).unwrap();
    let take = Stock::at("tea").take(0, Some("\"quoted\"".to_owned()));
    let message = take.message();
    assert_eq!((message.entity().id(), message.method()), ("tea", "take"));
    let reply = testing::call_raw::<Stock>(message.method(), message.body()).unwrap();
    assert_eq!(reply, b"0");
    assert_eq!(take.decode(&reply), Ok(0));
    assert!(take.decode(b"\"x\"").is_err());
    assert_eq!(Stock::at("tea").clear().decode(b""), Ok(()));
}
