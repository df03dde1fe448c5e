//! `/v1/{namespace}/{type}/{id}/call/{method}`: a call of an entity.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri};
use http_body::Body as _;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use ostraca_client::{CallError, Entity, Reply};
use ostraca_codes::codes;
use ostraca_wire::proto::MessageKind;
use ostraca_wire::server::Service;
use serde::Deserialize;
use serde::de::IgnoredAny;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::app::App;
use crate::auth::Holder;
use crate::path::decoded;
use crate::problem::{MESSAGE_ID, OUTCOME, Problem, VERSION};
use crate::sent::SentBytes;
use crate::session::{Held, NewCall, Outcome};
use crate::sessions::Place;

pub(crate) const JSON: &str = "application/json";
/// How long a caller waits for the outcome, in milliseconds.
pub(crate) const TIMEOUT: HeaderName = HeaderName::from_static("ostraca-timeout");
pub(crate) const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
pub(crate) const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");
/// The kind that the caller takes the method for.
pub(crate) const KIND: HeaderName = HeaderName::from_static("ostraca-kind");
/// Names the request, so that it can be sent again.
pub(crate) const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// Maximum length of such a name, in bytes.
const MAX_KEY: usize = 255;
/// How much of a body that is too large is still received, in multiples of the limit, and for how long.
const DISCARDED: u64 = 16;
const DISCARD_TIME: Duration = Duration::from_secs(2);
/// Maximum length of a trace header that is passed on, in bytes.
const TRACE: usize = 512;

#[derive(Deserialize)]
pub(crate) struct CallPath {
    namespace: String,
    entity_type: String,
    id: String,
    method: String,
}

pub(crate) async fn call_entity<S: Service>(
    State(app): State<Arc<App<S>>>,
    path: Result<Path<CallPath>, PathRejection>,
    request: Request,
) -> Result<Response, Problem> {
    let holder = app.auth.holder(request.headers())?;
    let (path, entity_type) = decoded(path, |path| (&path.namespace, &path.entity_type))?;
    let entity = Entity::new(entity_type, path.id);
    let call = app.admit(holder, entity, request.headers())?;
    let (kind, body) = match *request.method() {
        Method::POST => (kind(request.headers())?, app.body(request, call.bodies()).await?),
        // Whatever else is routed here, such as HEAD, must not change anything.
        _ => (MessageKind::Query, arguments(request.uri())?),
    };
    check_json(&body)?;
    let (reply, held) = app.send(call, path.method, kind, body).await?;
    Ok(answer(reply, held))
}

/// A request that sends a message to an entity, before its body has been received.
pub(crate) struct AdmittedCall<S: Service> {
    entity: Entity,
    holder: Holder,
    headers: HeaderMap,
    key: Option<String>,
    place: Place<S>,
    timeout: Duration,
}

impl<S: Service> AdmittedCall<S> {
    /// The bytes of bodies that the principal may have received at once.
    pub(crate) fn bodies(&self) -> &Semaphore {
        &self.place.bodies
    }
}

impl<S: Service> App<S> {
    /// Takes a place for a message to an entity, before the body is received.
    pub(crate) fn admit(
        &self,
        holder: Holder,
        entity: Entity,
        headers: &HeaderMap,
    ) -> Result<AdmittedCall<S>, Problem> {
        let key = idempotency_key(headers)?;
        let place = self.sessions.enter(&holder.principal, key.as_deref())?;
        let timeout = self.timeout(headers)?;
        Ok(AdmittedCall { entity, holder, headers: headers.clone(), key, place, timeout })
    }

    /// Sends the message, and waits for its outcome.
    pub(crate) async fn send(
        &self,
        call: AdmittedCall<S>,
        method: String,
        kind: MessageKind,
        body: Bytes,
    ) -> Result<(Reply, Held), Problem> {
        let AdmittedCall { entity, holder, headers, key, place, timeout } = call;
        let entity_type = entity.entity_type.to_string();
        let service = self.server.service();
        service
            .check_namespace(&holder.principal, &holder.subjects, &entity_type)
            .map_err(Problem::of)?;
        (self.type_wait)(entity_type).await;
        // The body may have taken a while, and the token may have been revoked.
        self.auth.holder(&headers)?;
        let [traceparent, tracestate] =
            [&TRACEPARENT, &TRACESTATE].map(|name| passed_on(&headers, name));
        let call = NewCall {
            entity,
            method,
            kind,
            body,
            content_type: JSON.into(),
            traceparent,
            tracestate,
            timeout,
            is_keyed: key.is_some(),
            permit: place.permit,
        };
        let outcome = place.session.call(call).map_err(|refused| Problem::of(*refused))?;
        let Outcome { result, held } = outcome.await;
        let reply = result.map_err(|error| match (&error, &key) {
            (CallError::Unknown { .. }, Some(_)) => {
                Problem::from(error).help("send the request again with the same `idempotency-key`")
            }
            _ => Problem::from(error),
        })?;
        Ok((reply, held))
    }

    fn timeout(&self, headers: &HeaderMap) -> Result<Duration, Problem> {
        let Some(value) = headers.get(TIMEOUT) else { return Ok(self.settings.default_timeout) };
        let most = self.settings.max_timeout;
        let asked = value.to_str().ok().and_then(|text| text.parse::<u64>().ok());
        match asked.map(Duration::from_millis) {
            Some(asked) if !asked.is_zero() && asked <= most => Ok(asked),
            _ => {
                let text = format!(
                    "`ostraca-timeout` must be 1 to {} milliseconds (`http.max-timeout`)",
                    most.as_millis()
                );
                Err(Problem::refused(StatusCode::BAD_REQUEST, codes::INVALID_HEADER, text))
            }
        }
    }

    /// Receives the body of a request.
    pub(crate) async fn body(&self, request: Request, own: &Semaphore) -> Result<Bytes, Problem> {
        if request.body().is_end_stream() {
            return Ok(Bytes::new());
        }
        let headers = request.headers();
        let length = content_length(headers)?;
        let is_json = headers.get(CONTENT_TYPE).map(is_json);
        let most = self.max_message;
        // A body of unknown length may have any size.
        let bytes = match length {
            Some(length) if length > u64::from(most) => {
                discard(request.into_body(), most).await;
                return Err(too_large(most));
            }
            Some(length) => u32::try_from(length).unwrap_or(most),
            None => most,
        };
        if length.is_some_and(|length| length > 0) && is_json != Some(true) {
            return Err(not_json("the content type must be application/json".into()));
        }
        let timed_out = |_| {
            let text = format!(
                "the body did not arrive within {:?} (`http.body-timeout`)",
                self.settings.body_timeout
            );
            Problem::refused(StatusCode::REQUEST_TIMEOUT, codes::BODY_TIMEOUT, text)
        };
        let share = bytes.min(self.settings.max_body_bytes);
        // The semaphores are never closed.
        let shares =
            async { (own.acquire_many(share).await, self.bodies.acquire_many(share).await) };
        let _shares = timeout(self.settings.body_timeout, shares).await.map_err(|_| {
            let text = "too many bodies are being received (`http.max-body-bytes`)";
            Problem::refused(StatusCode::SERVICE_UNAVAILABLE, codes::OVERLOADED, text)
        })?;
        let mut body = request.into_body();
        // HTTP/3 and WebTransport leave it to their users to compare a body with its declared length.
        let receive = Limited::new(&mut body, bytes as usize).collect();
        let received = timeout(self.settings.body_timeout, receive).await.map_err(timed_out)?;
        let body = match received {
            Ok(received) => received.to_bytes(),
            Err(error) if error.is::<LengthLimitError>() => {
                discard(body, most).await;
                return Err(match length {
                    Some(length) => {
                        malformed(format!("the body is longer than its content-length, {length}"))
                    }
                    None => too_large(most),
                });
            }
            Err(error) => return Err(malformed(format!("the body cannot be received: {error}"))),
        };
        if let Some(length) = length.filter(|length| *length != body.len() as u64) {
            let received = body.len();
            return Err(malformed(format!(
                "the body ended after {received} bytes; its content-length is {length}"
            )));
        }
        if !body.is_empty() && is_json != Some(true) {
            return Err(not_json("the content type must be application/json".into()));
        }
        Ok(body)
    }
}

/// Receives what is left of a body that is refused, up to some size and for a moment: many callers read no answer before
/// they have sent everything, and would only see that the connection is closed.
async fn discard(mut body: Body, most: u32) {
    let mut left = u64::from(most) * DISCARDED;
    let receive = async {
        while let Some(Ok(frame)) = body.frame().await {
            let size = frame.data_ref().map_or(0, |data| data.len() as u64);
            if size > left {
                return;
            }
            left -= size;
        }
    };
    // Whoever sends for longer sees a closed connection.
    let _ = timeout(DISCARD_TIME, receive).await;
}

fn too_large(most: u32) -> Problem {
    let text = format!("the body exceeds the limit of {most} bytes (`network.max-message`)");
    Problem::refused(StatusCode::PAYLOAD_TOO_LARGE, codes::MESSAGE_TOO_LARGE, text)
}

fn malformed(text: String) -> Problem {
    Problem::refused(StatusCode::BAD_REQUEST, codes::TRUNCATED_BODY, text)
}

/// The length that a request declares for its body, if it does.
fn content_length(headers: &HeaderMap) -> Result<Option<u64>, Problem> {
    let mut values = headers.get_all(CONTENT_LENGTH).iter();
    let Some(value) = values.next() else { return Ok(None) };
    let digits = value.to_str().ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    match digits.and_then(|digits| digits.parse().ok()) {
        Some(length) if values.all(|other| other == value) => Ok(Some(length)),
        _ => {
            let text = "`content-length` must be one number of bytes".to_owned();
            Err(Problem::refused(StatusCode::BAD_REQUEST, codes::INVALID_HEADER, text))
        }
    }
}

fn not_json(text: String) -> Problem {
    Problem::refused(StatusCode::UNSUPPORTED_MEDIA_TYPE, codes::NOT_JSON, text)
        .help("send the body as JSON, or none if the method has no arguments")
}

fn is_json(content_type: &HeaderValue) -> bool {
    let media_type = content_type.to_str().unwrap_or_default();
    media_type.split(';').next().is_some_and(|it| it.trim().eq_ignore_ascii_case(JSON))
}

/// Refuses a body that is not JSON. An empty one stands for a method without arguments.
fn check_json(body: &Bytes) -> Result<(), Problem> {
    if body.is_empty() {
        return Ok(());
    }
    serde_json::from_slice::<IgnoredAny>(body).map(drop).map_err(|error| {
        let text = format!("the arguments are not JSON: {error}");
        Problem::refused(StatusCode::BAD_REQUEST, codes::NOT_JSON, text)
            .help("send the method's arguments as JSON, or no body if it has none")
    })
}

/// The arguments of a query: the parameter `args`, in JSON.
fn arguments(uri: &Uri) -> Result<Bytes, Problem> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Parameters {
        #[serde(default)]
        args: String,
    }
    let parsed = axum::extract::Query::<Parameters>::try_from_uri(uri);
    let axum::extract::Query(Parameters { args }) = parsed.map_err(|error| {
        Problem::refused(StatusCode::BAD_REQUEST, codes::INVALID_QUERY_STRING, error.body_text())
            .help("the only parameter is `args`, with the arguments as JSON")
    })?;
    Ok(args.into())
}

/// The kind that the method must have; any, if the request does not say.
fn kind(headers: &HeaderMap) -> Result<MessageKind, Problem> {
    match headers.get(KIND).map(HeaderValue::as_bytes) {
        None => Ok(MessageKind::Unspecified),
        Some(b"command") => Ok(MessageKind::Command),
        Some(b"query") => Ok(MessageKind::Query),
        Some(_) => {
            let text = "`ostraca-kind` must be `command` or `query`";
            Err(Problem::refused(StatusCode::BAD_REQUEST, codes::INVALID_HEADER, text))
        }
    }
}

/// The request's idempotency key, with or without the quotes of a structured header (RFC 8941).
fn idempotency_key(headers: &HeaderMap) -> Result<Option<String>, Problem> {
    let mut values = headers.get_all(IDEMPOTENCY_KEY).iter();
    let Some(value) = values.next() else { return Ok(None) };
    let text = value.to_str().unwrap_or_default();
    let key = text.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or(text);
    let is_visible = key.bytes().all(|byte| byte.is_ascii_graphic());
    if values.next().is_some() || key.is_empty() || key.len() > MAX_KEY || !is_visible {
        let text = format!(
            "`idempotency-key` must be given once, as 1 to {MAX_KEY} visible ASCII characters"
        );
        let refused = Problem::refused(StatusCode::BAD_REQUEST, codes::INVALID_HEADER, text);
        return Err(refused.help("use a random UUID"));
    }
    Ok(Some(key.to_owned()))
}

/// A header that is passed on as it is; empty if it is missing or has no valid form.
fn passed_on(headers: &HeaderMap, name: &HeaderName) -> String {
    let value = headers.get(name).and_then(|value| value.to_str().ok());
    value.filter(|value| value.len() <= TRACE).unwrap_or_default().to_owned()
}

/// The response to a call that has a result.
pub(crate) fn answer(reply: Reply, held: Held) -> Response {
    let is_empty = reply.body.is_empty();
    let content_type = shown_type(&reply.content_type, &reply.body);
    let mut response = match is_empty {
        true => StatusCode::NO_CONTENT.into_response(),
        false => Response::new(Body::new(SentBytes::new(reply.body, held))),
    };
    let headers = response.headers_mut();
    if !is_empty {
        headers.insert(CONTENT_TYPE, content_type);
        headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    }
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(OUTCOME, HeaderValue::from_static("result"));
    headers.insert(VERSION, HeaderValue::from(reply.version));
    if let Ok(id) = HeaderValue::from_str(&reply.id.to_string()) {
        headers.insert(MESSAGE_ID, id);
    }
    response
}

/// The content type of a result: JSON if it is that, or else bytes that no browser shows. The entity may be hostile.
fn shown_type(content_type: &str, body: &[u8]) -> HeaderValue {
    let named = HeaderValue::from_str(content_type).is_ok_and(|it| it.is_empty() || is_json(&it));
    let is_json = named && serde_json::from_slice::<IgnoredAny>(body).is_ok();
    HeaderValue::from_static(if is_json { JSON } else { "application/octet-stream" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_is_json_or_nothing_that_a_browser_shows() {
        for (content_type, body, shown) in [
            ("", "{\"a\":1}", JSON),
            ("application/json", "1", JSON),
            ("Application/JSON; charset=utf-8", "null", JSON),
            ("application/json", "<p>", "application/octet-stream"),
            ("text/html", "1", "application/octet-stream"),
            ("application/json+html", "1", "application/octet-stream"),
            ("a\nb", "1", "application/octet-stream"),
            ("", "<p>", "application/octet-stream"),
        ] {
            assert_eq!(shown_type(content_type, body.as_bytes()), shown, "{content_type:?} {body}");
        }
    }
}
