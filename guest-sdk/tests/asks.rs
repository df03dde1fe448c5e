//! Asks in plain unit tests.

#![allow(clippy::unwrap_used, reason = "tests")]

use ostraca_sdk::asks::{self, AskError};
use ostraca_sdk::messaging::Entity;
use ostraca_sdk::raw::MessageError;
use ostraca_sdk::serde_json::json;
use ostraca_sdk::{entity, testing};
use serde::{Deserialize, Serialize};

#[derive(Default, Serialize, Deserialize)]
struct Cart {
    items: Vec<String>,
    cents: u64,
}

#[entity]
impl Cart {
    /// Adds an item at its price.
    #[message]
    fn add(&mut self, item: String) -> Result<u64, AskError> {
        self.items.push(item.clone());
        let price: u64 = Entity::new("stock", item).ask("price", &json!({ "for": "cart" }))?;
        self.cents += price;
        Ok(self.cents)
    }

    /// The lowest of several prices.
    #[message]
    fn cheapest(&self, items: Vec<String>) -> Option<u64> {
        let started: Vec<_> =
            items.iter().map(|item| Entity::new("stock", item).start_ask("price", &())).collect();
        let first = asks::wait_any(&started);
        assert_eq!(started[first].wait::<u64>(), started[first].wait::<u64>(), "waiting again");
        started.iter().filter_map(|ask| ask.wait().ok()).min()
    }

    /// Asks another entity to forget the cart.
    #[message]
    fn forget(&mut self) -> Result<(), AskError> {
        Entity::new("index", "all").ask("forget", &())
    }

    /// Asks an entity with an empty id.
    #[message]
    fn nobody(&mut self) {
        Entity::new("stock", "").start_ask("price", &());
    }
}

fn refused(result: Result<ostraca_sdk::serde_json::Value, MessageError>) -> (String, String) {
    match result.unwrap_err() {
        MessageError::Application { code, message } => (code.to_string(), message),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_test_answers_asks_and_sees_them() {
    testing::answer_asks(|ask| match ask.to.id() {
        "tea" => Ok(testing::json_answer(300)),
        "cup" => Ok(testing::json_answer(900)),
        id => Err(AskError::Refused { code: "gone".into(), message: format!("no {id}") }),
    });
    assert_eq!(testing::call::<Cart>("add", "tea").unwrap(), 300);
    assert_eq!(testing::call::<Cart>("add", "cup").unwrap(), 1_200);
    let asked = testing::take_asks();
    assert_eq!((asked.len(), asked[0].to.entity_type(), asked[0].to.id()), (2, "stock", "tea"));
    assert_eq!((&*asked[0].method, asked[0].arguments()), ("price", json!({ "for": "cart" })));
    let refusal = refused(testing::call::<Cart>("add", "hat"));
    assert_eq!(refusal, ("gone".into(), "no hat".into()));
    assert_eq!(testing::call::<Cart>("add", "tea").unwrap(), 1_500, "the refusal changed nothing");
    let cheapest = testing::call::<Cart>("cheapest", json!(["cup", "hat", "tea"])).unwrap();
    assert_eq!(cheapest, 300);
}

#[test]
fn each_failed_ask_has_a_code_of_its_own() {
    let not_run = AskError::NotRun { code: "ask-cycle".into(), message: "a → a".into() };
    let unknown = AskError::Unknown { message: "no answer".into() };
    for (error, code, text) in
        [(not_run, "ask-not-run", "a → a (ask-cycle)"), (unknown, "ask-unknown", "no answer")]
    {
        testing::answer_asks(move |_| Err(error.clone()));
        let refusal = refused(testing::call::<Cart>("add", "tea"));
        assert_eq!(refusal, (code.to_owned(), text.to_owned()));
    }
    testing::answer_asks(|_| Ok(testing::json_answer("many")));
    let (code, text) = refused(testing::call::<Cart>("add", "tea"));
    assert_eq!(code, "ask-invalid-answer");
    assert!(text.starts_with("the answer is not what was expected: invalid type"), "{text}");
}

#[test]
fn a_method_without_a_result_answers_with_nothing() {
    testing::answer_asks(|_| Ok(Vec::new()));
    assert_eq!(testing::call::<Cart>("forget", ()).unwrap(), json!(null));
}

#[test]
#[should_panic(expected = "see testing::answer_asks")]
fn an_ask_that_nothing_answers_panics() {
    let _ = testing::call::<Cart>("forget", ());
}

#[test]
#[should_panic(expected = "an ask's id must be 1 to 512 bytes long, not 0")]
fn an_ask_needs_an_id() {
    let _ = testing::call::<Cart>("nobody", ());
}
