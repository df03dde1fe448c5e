//! HTTP calls of the kit's entities, which the test answers.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use http::{Request, Response};
use ostraca_wasm::{HttpAnswer, HttpAnswers};
use serde_json::Value;

/// A call that an entity made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpCall {
    /// The method, such as `POST`.
    pub method: String,
    /// The whole URL, with the port.
    pub url: String,
    /// The value of its `Idempotency-Key` header.
    pub key: String,
    /// The body.
    pub body: Bytes,
}

impl HttpCall {
    /// The body as JSON; `null` if it is not JSON.
    #[must_use]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }
}

/// How a call ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HttpReply {
    /// With this status and JSON.
    Json(u16, Value),
    /// It was not sent.
    Refused,
    /// It was sent, and no response came.
    Lost,
}

type Answer = Box<dyn FnMut(&HttpCall) -> HttpReply + Send>;

/// The calls so far, and the test's answers to further ones.
#[derive(Default)]
pub(crate) struct Http {
    calls: Vec<HttpCall>,
    answer: Option<Answer>,
}

impl Http {
    /// The settings of a sandbox whose calls this value answers.
    pub(crate) fn answers(shared: &Arc<Mutex<Self>>) -> HttpAnswers {
        let shared = shared.clone();
        HttpAnswers::new(move |request| {
            shared.lock().unwrap_or_else(PoisonError::into_inner).answer(request)
        })
    }

    pub(crate) fn set_answer(&mut self, answer: Answer) {
        self.answer = Some(answer);
    }

    pub(crate) fn take_calls(&mut self) -> Vec<HttpCall> {
        std::mem::take(&mut self.calls)
    }

    fn answer(&mut self, request: Request<Bytes>) -> HttpAnswer {
        let key = request.headers().get("idempotency-key");
        let key = key.and_then(|key| key.to_str().ok()).unwrap_or_default().to_owned();
        let call = HttpCall {
            method: request.method().to_string(),
            url: request.uri().to_string(),
            key,
            body: request.into_body(),
        };
        // Without an answer there is no server.
        let reply = self.answer.as_mut().map_or(HttpReply::Refused, |answer| answer(&call));
        self.calls.push(call);
        match reply {
            HttpReply::Json(status, body) => {
                let response = Response::builder()
                    .status(status)
                    .header("content-type", "application/json")
                    .body(Bytes::from(body.to_string()));
                response.map_or(HttpAnswer::Refused, HttpAnswer::Response)
            }
            HttpReply::Refused => HttpAnswer::Refused,
            HttpReply::Lost => HttpAnswer::Lost,
        }
    }
}
