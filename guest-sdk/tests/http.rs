//! HTTP calls in plain unit tests.

#![allow(clippy::unwrap_used, reason = "tests")]

use ostraca_sdk::http::{self, HttpError, Request, Response};
use ostraca_sdk::raw::MessageError;
use ostraca_sdk::serde_json::json;
use ostraca_sdk::{entity, testing};
use serde::{Deserialize, Serialize};

#[derive(Default, Serialize, Deserialize)]
struct Order {
    payments: Vec<String>,
}

#[entity]
impl Order {
    /// Charges the customer.
    #[message]
    fn pay(&mut self, cents: u64) -> Result<Vec<String>, HttpError> {
        self.payments.push("begun".into());
        let request = Request::post("https://pay.example.com/charges").header("X-Kind", "order");
        let response = request.json(&json!({ "cents": cents })).send()?;
        self.payments = vec![response.json()?];
        Ok(self.payments.clone())
    }

    /// The statuses and one header of two concurrent calls.
    #[message]
    fn both(&mut self, urls: Vec<String>) -> Result<Vec<(u16, Option<String>)>, HttpError> {
        let started: Result<Vec<_>, _> =
            urls.into_iter().map(|url| Request::get(url).start()).collect();
        let shown = |response: Response| {
            (response.status(), response.header("Content-Type").map(str::to_owned))
        };
        started?.into_iter().map(|call| call.wait().map(shown)).collect()
    }

    /// Calls in a query.
    #[message]
    fn peek(&self) -> Result<String, HttpError> {
        Ok(http::get("https://pay.example.com/")?.text())
    }

    /// Sets the header that belongs to the host.
    #[message]
    fn forge(&mut self) -> Result<(), HttpError> {
        let request = Request::get("https://pay.example.com/");
        request.header("Idempotency-Key", "mine").send().map(|_| ())
    }
}

fn refused(result: Result<ostraca_sdk::serde_json::Value, MessageError>) -> (String, String) {
    match result.unwrap_err() {
        MessageError::Application { code, message } => (code.to_string(), message),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_test_answers_calls_and_sees_them() {
    testing::answer_http(|request| match request.url() {
        "https://pay.example.com/charges" => Ok(Response::with_json(201, "p1")),
        _ => Ok(Response::new(404, "nothing")),
    });
    assert_eq!(testing::call::<Order>("pay", 300).unwrap(), json!(["p1"]));
    let [request] = &testing::take_http_requests()[..] else { panic!("one request") };
    assert_eq!((request.method(), request.header_value("x-kind")), ("POST", Some("order")));
    assert_eq!(request.header_value("content-type"), Some("application/json"));
    assert_eq!(request.body_bytes(), br#"{"cents":300}"#);
    let urls = json!(["https://pay.example.com/charges", "https://a.example.com"]);
    let both = testing::call::<Order>("both", json!({ "urls": urls })).unwrap();
    assert_eq!(both, json!([[201, "application/json"], [404, null]]));
    assert_eq!(testing::take_http_requests().len(), 2);
}

#[test]
fn each_failed_call_has_a_code_of_its_own() {
    let (code, message) = ("connection-refused".to_owned(), "nobody".to_owned());
    let not_sent = HttpError::NotSent { code, message };
    let (code, message) = ("HTTP-response-timeout".to_owned(), "too late".to_owned());
    let unknown = HttpError::Unknown { code, message };
    for (error, code, text) in [
        (not_sent, "http-not-sent", "nobody (connection-refused)"),
        (unknown, "http-unknown", "too late (HTTP-response-timeout)"),
    ] {
        testing::answer_http(move |_| Err(error.clone()));
        assert_eq!(refused(testing::call::<Order>("pay", 1)), (code.into(), text.into()));
    }
    testing::answer_http(|_| Ok(Response::new(200, "no JSON")));
    let (code, text) = refused(testing::call::<Order>("pay", 1));
    assert_eq!(code, "http-invalid-body");
    assert!(text.starts_with("the response is not what was expected: "), "{text}");
    assert_eq!(testing::take_http_requests().len(), 3, "the calls of failed turns remain");
}

#[test]
fn the_idempotency_key_belongs_to_the_host() {
    testing::answer_http(|_| Ok(Response::new(200, "")));
    let (code, text) = refused(testing::call::<Order>("forge", ()));
    assert_eq!(code, "http-not-sent");
    assert!(text.ends_with("(invalid-request)"), "{text}");
    assert!(testing::take_http_requests().is_empty());
}

#[test]
#[should_panic(expected = "http-in-query")]
fn a_query_makes_no_calls() {
    testing::answer_http(|_| Ok(Response::new(200, "")));
    let _ = testing::call::<Order>("peek", ());
}

#[test]
#[should_panic(expected = "see testing::answer_http")]
fn a_call_that_nothing_answers_panics() {
    let _ = testing::call::<Order>("pay", 1);
}
