//! Errors as problem documents (RFC 9457), and which status each has.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::response::{IntoResponse, Response};
use http::header::{ALLOW, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderName, HeaderValue, StatusCode};
use ostraca_client::CallError;
use ostraca_codes::{Class, Code, codes};
use serde::Serialize;

/// What is known about the message of a call, as in the problem document.
pub(crate) const OUTCOME: HeaderName = HeaderName::from_static("ostraca-outcome");
/// The entity's version after the turn, or the one that a query read.
pub(crate) const VERSION: HeaderName = HeaderName::from_static("ostraca-entity-version");
/// The code of an error, as in `docs/errors.md`; an application's own code for its refusals.
pub(crate) const ERROR_CODE: HeaderName = HeaderName::from_static("ostraca-error-code");
/// The message's id, for logs and support.
pub(crate) const MESSAGE_ID: HeaderName = HeaderName::from_static("ostraca-message-id");

/// What a problem document says about a message that did not run.
const NOT_RUN: &str = "not-run";

/// An error, as a caller sees it.
#[derive(Debug)]
pub(crate) struct Problem(Box<Document>);

#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
struct Document {
    /// `urn:ostraca:error:` and the code.
    r#type: String,
    title: &'static str,
    status: u16,
    detail: String,
    code: String,
    /// `not-run`, `unknown`, `unanswered` (a query), `application-error` or `reply-dropped`.
    outcome: &'static str,
    #[serde(skip_serializing_if = "String::is_empty")]
    help: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    message_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    entity_version: Option<u64>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    details: BTreeMap<String, String>,
}

impl Problem {
    /// A request that was refused before it became a message.
    pub(crate) fn refused(status: StatusCode, code: Code, detail: impl Into<String>) -> Self {
        Self::new(status, code.as_str(), detail.into(), NOT_RUN)
    }

    /// The document, in one line.
    pub(crate) fn json(&self) -> String {
        // Plain values are always encodable.
        serde_json::to_string(&self.0).unwrap_or_default()
    }

    pub(crate) fn help(mut self, help: &str) -> Self {
        self.0.help = help.into();
        self
    }

    /// The same, and it may pass after this time.
    pub(crate) fn retry_after(mut self, wait: Duration) -> Self {
        self.0.retry_after_ms = Some(u64::try_from(wait.as_millis()).unwrap_or(u64::MAX));
        self
    }

    /// The refusal that a part of the node gave.
    pub(crate) fn of(problem: ostraca_wire::proto::Problem) -> Self {
        let retry = (problem.retryable || problem.retry_after_ms > 0)
            .then_some(u64::from(problem.retry_after_ms));
        let status = refusal_status(&problem.code, retry.is_some());
        let mut refused = Self::new(status, &problem.code, problem.message, NOT_RUN);
        (refused.0.help, refused.0.details) = (problem.help, problem.details);
        refused.0.retry_after_ms = retry;
        refused
    }

    /// The same for a response that has frames of the protocol.
    pub(crate) fn to_wire(&self) -> ostraca_wire::proto::Problem {
        let Document { code, detail, help, .. } = &*self.0;
        let (code, message, help) = (code.clone(), detail.clone(), help.clone());
        ostraca_wire::proto::Problem { code, message, help, ..Default::default() }
    }

    fn new(status: StatusCode, code: &str, detail: String, outcome: &'static str) -> Self {
        Self(Box::new(Document {
            r#type: format!("urn:ostraca:error:{code}"),
            title: status.canonical_reason().unwrap_or("error"),
            status: status.as_u16(),
            detail,
            code: code.into(),
            outcome,
            help: String::new(),
            retry_after_ms: None,
            message_id: None,
            entity_version: None,
            details: BTreeMap::new(),
        }))
    }
}

impl From<CallError> for Problem {
    fn from(error: CallError) -> Self {
        let id = error.id().to_string();
        let mut problem = match error {
            CallError::Application { code, message, version, .. } => {
                let status = application_status(&code);
                let mut refused =
                    Self::new(status, &code, message.into(), "application-error");
                refused.0.entity_version = Some(version);
                refused
            }
            CallError::ReplyDropped { code, message, version, .. } => {
                let mut dropped =
                    Self::new(StatusCode::GONE, &code, message.into(), "reply-dropped");
                dropped.0.entity_version = Some(version);
                dropped
            }
            CallError::NotRun { code, message, help, details, retry_after, .. } => {
                let status = refusal_status(&code, retry_after.is_some());
                let mut refused = Self::new(status, &code, message.into(), NOT_RUN);
                (refused.0.help, refused.0.details) = (help.into(), *details);
                refused.0.retry_after_ms = retry_after
                    .map(|after| u64::try_from(after.as_millis()).unwrap_or(u64::MAX));
                refused
            }
            CallError::Unanswered { cause, message, .. } => {
                Self::new(StatusCode::GATEWAY_TIMEOUT, &cause, message.into(), "unanswered")
                    .help("a query has no effect: send it again")
            }
            CallError::Unknown { code, message, .. } => {
                Self::new(StatusCode::GATEWAY_TIMEOUT, &code, message.into(), "unknown")
                    .help("the command may have run, or may still run: read the entity before you send it again")
            }
        };
        problem.0.message_id = Some(id);
        problem
    }
}

/// The status of a refusal of the entity itself.
fn application_status(code: &str) -> StatusCode {
    match code {
        "invalid-arguments" => StatusCode::BAD_REQUEST,
        "unknown-method" => StatusCode::NOT_FOUND,
        _ => StatusCode::UNPROCESSABLE_ENTITY,
    }
}

/// The status of a message that did not run.
fn refusal_status(code: &str, retry: bool) -> StatusCode {
    let fixed = [
        (codes::UNAUTHENTICATED, StatusCode::UNAUTHORIZED),
        (codes::INVALID_TOKEN, StatusCode::UNAUTHORIZED),
        (codes::TOKEN_EXPIRED, StatusCode::UNAUTHORIZED),
        (codes::REVOKED, StatusCode::UNAUTHORIZED),
        (codes::ACCESS_DENIED, StatusCode::FORBIDDEN),
        (codes::UNKNOWN_NAMESPACE, StatusCode::NOT_FOUND),
        (codes::UNKNOWN_TYPE, StatusCode::NOT_FOUND),
        (codes::UNKNOWN_METHOD, StatusCode::NOT_FOUND),
        (codes::UNKNOWN_ENTITY, StatusCode::NOT_FOUND),
        (codes::UNKNOWN_DEAD_LETTER, StatusCode::NOT_FOUND),
        (codes::WRONG_KIND, StatusCode::METHOD_NOT_ALLOWED),
        (codes::MESSAGE_TOO_LARGE, StatusCode::PAYLOAD_TOO_LARGE),
        (codes::INVALID_MESSAGE, StatusCode::BAD_REQUEST),
        (codes::INVALID_ENTITY_ID, StatusCode::BAD_REQUEST),
        (codes::INVALID_REQUEST, StatusCode::BAD_REQUEST),
        (codes::INVALID_CURSOR, StatusCode::BAD_REQUEST),
        (codes::UNKNOWN_NODE, StatusCode::NOT_FOUND),
        (codes::UNKNOWN_SHARD, StatusCode::NOT_FOUND),
        (codes::UNKNOWN_REVISION, StatusCode::NOT_FOUND),
        (codes::NODE_LIVE, StatusCode::CONFLICT),
        (codes::NODE_NOT_LIVE, StatusCode::CONFLICT),
        (codes::NO_OTHER_HOST, StatusCode::CONFLICT),
        (codes::ROLLOUT_COMPLETE, StatusCode::CONFLICT),
        (codes::SESSION_FULL, StatusCode::TOO_MANY_REQUESTS),
        (codes::TOO_MANY_IDEMPOTENCY_KEYS, StatusCode::TOO_MANY_REQUESTS),
        (codes::QUOTA_TURNS, StatusCode::TOO_MANY_REQUESTS),
        (codes::QUOTA_ENTITIES, StatusCode::INSUFFICIENT_STORAGE),
        (codes::QUOTA_STATE, StatusCode::INSUFFICIENT_STORAGE),
        (codes::IDEMPOTENCY_KEY_REUSED, StatusCode::UNPROCESSABLE_ENTITY),
        (codes::DEADLINE_EXCEEDED, StatusCode::GATEWAY_TIMEOUT),
    ];
    if let Some((_, status)) = fixed.iter().find(|(known, _)| known == code) {
        return *status;
    }
    if retry {
        return StatusCode::SERVICE_UNAVAILABLE;
    }
    match Code::named(code).map(|known| known.row().class) {
        Some(Class::Guest) => StatusCode::INTERNAL_SERVER_ERROR,
        Some(Class::Gateway) => StatusCode::BAD_REQUEST,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let problem = self.0;
        let status =
            StatusCode::from_u16(problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        // Plain values are always encodable.
        let body = serde_json::to_vec(&problem).unwrap_or_default();
        let mut response = (status, body).into_response();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        headers.insert(OUTCOME, HeaderValue::from_static(problem.outcome));
        let text = |text: &str| HeaderValue::from_str(text).ok();
        if let Some(code) = text(&problem.code) {
            headers.insert(ERROR_CODE, code);
        }
        if let Some(id) = problem.message_id.as_deref().and_then(text) {
            headers.insert(MESSAGE_ID, id);
        }
        if let Some(version) = problem.entity_version {
            headers.insert(VERSION, HeaderValue::from(version));
        }
        if let Some(after) = problem.retry_after_ms {
            headers.insert(RETRY_AFTER, HeaderValue::from(after.div_ceil(1_000)));
        }
        if problem.code == codes::WRONG_KIND {
            // A command.
            headers.insert(ALLOW, HeaderValue::from_static("POST"));
        }
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

/// Refuses a request whose method is none of `allow`.
pub(crate) fn wrong_method(allow: &'static str, text: String) -> Response {
    let refused = Problem::refused(StatusCode::METHOD_NOT_ALLOWED, codes::WRONG_METHOD, text);
    let mut response = refused.into_response();
    response.headers_mut().insert(ALLOW, HeaderValue::from_static(allow));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_that_may_pass_is_never_the_callers_fault() {
        for section in ostraca_codes::SECTIONS {
            for code in section.codes.iter().filter(|code| code.refuses(true)) {
                let status = refusal_status(code, true);
                let expected = [
                    StatusCode::SERVICE_UNAVAILABLE,
                    StatusCode::GATEWAY_TIMEOUT,
                    StatusCode::TOO_MANY_REQUESTS,
                    StatusCode::INSUFFICIENT_STORAGE,
                ];
                assert!(expected.contains(&status), "{code}: {status}");
            }
        }
    }
}
