//! Calls to HTTP servers outside of the cluster.
//!
//! The turn waits for the response. Meanwhile, the node runs other entities, but this one handles no other message
//! until the turn ends.
//!
//! ```
//! use ostraca_sdk::http::{self, HttpError};
//! use ostraca_sdk::entity;
//! use ostraca_sdk::serde_json::json;
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Default, Serialize, Deserialize)]
//! pub struct Order {
//!     payment: Option<String>,
//! }
//!
//! #[entity]
//! impl Order {
//!     /// Charges the customer. Returns the payment's id.
//!     #[message]
//!     pub fn pay(&mut self, cents: u64) -> Result<Option<String>, HttpError> {
//!         let request = http::Request::post("https://pay.example.com/charges");
//!         let response = request.json(&json!({ "cents": cents })).send()?;
//!         if response.is_success() {
//!             self.payment = Some(response.json()?);
//!         }
//!         Ok(self.payment.clone())
//!     }
//! }
//! # fn main() {
//! # use ostraca_sdk::testing;
//! # testing::answer_http(|_| Ok(http::Response::with_json(200, &"p1")));
//! # assert_eq!(testing::call::<Order>("pay", 100).unwrap(), json!("p1"));
//! # }
//! ```
//!
//! The manifest must grant the host: `[grants] http = ["pay.example.com"]`. A port other than the scheme's default is
//! part of the grant: `"pay.example.com:8443"`. The limits are `limits.http-calls`, `limits.http-bytes` and
//! `limits.http-timeout`.
//!
//! # Calls are made at least once
//!
//! A call is not part of the turn. If the turn fails afterwards, the effects of the call remain. If a turn is
//! interrupted, it runs again, perhaps on another node, and calls again. So that a server can recognise such a copy,
//! each call carries an `Idempotency-Key` header. It is derived from the message, the call's place in the turn, and the
//! request's method and URL, so a turn that runs again sends the same keys, and no two calls share one. The guest
//! cannot set this header. A server that ignores it may handle a request more than once.
//!
//! This works only if the turn makes the same calls again, so what a turn calls should depend only on its state, its
//! message, and the turn's [clock](crate::clock) and [random numbers](crate::random). In a firing, the clock differs
//! between attempts: use the time at which the timer was due.
//!
//! Nothing is retried within a turn: the turn gets the error, and decides. A second call in the same turn has another
//! key. A method that fails because a server is down can set a timer and try again later.
//!
//! Queries and the `start` and `stop` hooks cannot call. Redirects are not followed: a redirect is a response like any
//! other, and following it is a new call.

use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::host;
pub use crate::http_error::HttpError;
use crate::state::from_json;
use crate::types::{HttpRequest, HttpResponse};

/// Sends a `GET` request, and waits for the response.
///
/// # Errors
/// [`HttpError`] if there is no response.
pub fn get(url: impl Into<String>) -> Result<Response, HttpError> {
    Request::get(url).send()
}

/// A request.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "a request does nothing until it is sent"]
pub struct Request(pub(crate) HttpRequest);

impl Request {
    /// A request with this method, without headers and body. The URL's scheme must be `https` or `http`.
    pub fn new(method: impl Into<String>, url: impl Into<String>) -> Self {
        Self(HttpRequest {
            method: method.into(),
            url: url.into(),
            headers: Vec::new(),
            body: Vec::new(),
            timeout: None,
        })
    }

    /// A `GET` request.
    pub fn get(url: impl Into<String>) -> Self {
        Self::new("GET", url)
    }

    /// A `POST` request.
    pub fn post(url: impl Into<String>) -> Self {
        Self::new("POST", url)
    }

    /// A `PUT` request.
    pub fn put(url: impl Into<String>) -> Self {
        Self::new("PUT", url)
    }

    /// A `DELETE` request.
    pub fn delete(url: impl Into<String>) -> Self {
        Self::new("DELETE", url)
    }

    /// Adds a header. The host sets `host`, `content-length` and `idempotency-key`.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<Vec<u8>>) -> Self {
        self.0.headers.push((name.into(), value.into()));
        self
    }

    /// Sets the body.
    pub fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.0.body = body.into();
        self
    }

    /// Sets the body to JSON, and adds its content type.
    ///
    /// # Panics
    /// If JSON cannot express the body.
    pub fn json(self, body: &(impl Serialize + ?Sized)) -> Self {
        match serde_json::to_vec(body) {
            Ok(body) => self.body(body).header("content-type", "application/json"),
            Err(error) => panic!("JSON cannot express the request's body: {error}"),
        }
    }

    /// Limits the time until the connection is established, and until the response begins. `limits.http-timeout`
    /// bounds the whole call in any case.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.0.timeout = Some(timeout);
        self
    }

    /// The method.
    #[must_use]
    pub fn method(&self) -> &str {
        &self.0.method
    }

    /// The URL.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.0.url
    }

    /// The first value of a header, if it is text.
    #[must_use]
    pub fn header_value(&self, name: &str) -> Option<&str> {
        find(&self.0.headers, name)
    }

    /// The body.
    #[must_use]
    pub fn body_bytes(&self) -> &[u8] {
        &self.0.body
    }

    /// Sends the request, and waits for the response. Traps if the host is not granted, in queries and hooks, and
    /// beyond the limits on calls.
    ///
    /// # Errors
    /// [`HttpError`] if there is no response.
    pub fn send(self) -> Result<Response, HttpError> {
        self.start()?.wait()
    }

    /// Like [`Request::send`], but returns without waiting, so a turn can make several calls concurrently.
    ///
    /// # Errors
    /// [`HttpError::NotSent`] if the request is malformed.
    pub fn start(self) -> Result<PendingResponse, HttpError> {
        host::start_call(&self.0).map(PendingResponse)
    }
}

/// A call that was started. Dropping it ends the call, whether or not the server has received the request.
#[derive(Debug)]
#[must_use = "dropping it ends the call"]
pub struct PendingResponse(host::CallHandle);

impl PendingResponse {
    /// Waits for the response.
    ///
    /// # Errors
    /// [`HttpError`] if there is no response.
    pub fn wait(self) -> Result<Response, HttpError> {
        host::wait_call(self.0).map(Response)
    }
}

/// A response, with any status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Response(pub(crate) HttpResponse);

impl Response {
    /// A response for tests.
    #[must_use]
    pub fn new(status: u16, body: impl Into<Vec<u8>>) -> Self {
        Self(HttpResponse { status, headers: Vec::new(), body: body.into() })
    }

    /// A response for tests, with a JSON body.
    ///
    /// # Panics
    /// If JSON cannot express the body.
    #[must_use]
    pub fn with_json(status: u16, body: &(impl Serialize + ?Sized)) -> Self {
        match serde_json::to_vec(body) {
            Ok(body) => Self::new(status, body).with_header("content-type", "application/json"),
            Err(error) => panic!("JSON cannot express the response's body: {error}"),
        }
    }

    /// Adds a header to a response for tests.
    #[must_use]
    pub fn with_header(mut self, name: impl Into<String>, value: impl Into<Vec<u8>>) -> Self {
        self.0.headers.push((name.into(), value.into()));
        self
    }

    /// The status, such as 200.
    #[must_use]
    pub fn status(&self) -> u16 {
        self.0.status
    }

    /// Whether the status is 200 to 299.
    #[must_use]
    pub fn is_success(&self) -> bool {
        (200..300).contains(&self.0.status)
    }

    /// The first value of a header, if it is text.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        find(&self.0.headers, name)
    }

    /// All headers, in lower case.
    #[must_use]
    pub fn headers(&self) -> &[(String, Vec<u8>)] {
        &self.0.headers
    }

    /// The body.
    #[must_use]
    pub fn body(&self) -> &[u8] {
        &self.0.body
    }

    /// The body as text; bytes that are not UTF-8 are replaced.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.body).into_owned()
    }

    /// The body decoded from JSON.
    ///
    /// # Errors
    /// [`HttpError::InvalidBody`] if it does not decode as a `T`.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, HttpError> {
        from_json(&self.0.body).map_err(|error| HttpError::InvalidBody {
            message: format!("the response is not what was expected: {error}"),
        })
    }
}

fn find<'a>(headers: &'a [(String, Vec<u8>)], name: &str) -> Option<&'a str> {
    let (_, value) = headers.iter().find(|(other, _)| other.eq_ignore_ascii_case(name))?;
    std::str::from_utf8(value).ok()
}
