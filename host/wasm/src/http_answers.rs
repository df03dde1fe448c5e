//! Answers to guests' HTTP calls that come from this program instead of the network, for the test kit.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response};
use wasmtime_wasi_http::Error as CallError;

/// How a call that was answered here has ended.
#[derive(Debug)]
pub enum HttpAnswer {
    /// With this response.
    Response(Response<Bytes>),
    /// It was not sent (`connection-refused`).
    Refused,
    /// It was sent, and no response came (`HTTP-response-timeout`).
    Lost,
}

/// Answers all calls of a node: nothing is sent. Called on any thread.
#[derive(Clone)]
pub struct HttpAnswers(Arc<dyn Fn(Request<Bytes>) -> HttpAnswer + Send + Sync>);

impl HttpAnswers {
    /// Lets this function answer the calls.
    pub fn new(answer: impl Fn(Request<Bytes>) -> HttpAnswer + Send + Sync + 'static) -> Self {
        Self(Arc::new(answer))
    }

    pub(crate) fn call(&self, request: Request<Bytes>) -> Result<Response<Bytes>, CallError> {
        match (self.0)(request) {
            HttpAnswer::Response(response) => Ok(response),
            HttpAnswer::Refused => Err(CallError::ConnectionRefused),
            HttpAnswer::Lost => Err(CallError::HttpResponseTimeout),
        }
    }
}

impl fmt::Debug for HttpAnswers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HttpAnswers")
    }
}

impl PartialEq for HttpAnswers {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for HttpAnswers {}
