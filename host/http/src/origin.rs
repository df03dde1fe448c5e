//! Requests of web pages: which origins may send them, and read the answers (CORS).
//!
//! A page of another site cannot read answers unless CORS permits it, but a browser sends some of its requests all the
//! same. So a request of an origin that is neither the gateway's own nor in the policy is refused before it can have an
//! effect.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::header::{
    ACCESS_CONTROL_REQUEST_METHOD, AUTHORIZATION, CONTENT_TYPE, HOST, ORIGIN, RETRY_AFTER,
};
use http::uri::Authority;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri};
use ostraca_codes::codes;
use ostraca_wire::server::Service;
use tower_http::cors::{AllowOrigin, CorsLayer};

use crate::app::App;
use crate::calls::{IDEMPOTENCY_KEY, KIND, TIMEOUT, TRACEPARENT, TRACESTATE};
use crate::channels::LAST_EVENT_ID;
use crate::problem::{ERROR_CODE, MESSAGE_ID, OUTCOME, Problem, VERSION, wrong_method};

/// How long browsers may remember what a page may send.
const REMEMBERED: Duration = Duration::from_secs(600);
/// Says whether a page of another site sends a request.
pub(crate) const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Lets pages of the policy's origins read answers.
pub(crate) fn cors<S: Service>(app: &Arc<App<S>>) -> CorsLayer {
    let app = Arc::clone(app);
    let admitted = AllowOrigin::predicate(move |origin, _| {
        let service = app.server.service();
        origin.to_str().is_ok_and(|origin| service.admits_origin(origin).unwrap_or(false))
    });
    CorsLayer::new()
        .allow_origin(admitted)
        .allow_methods([Method::GET, Method::POST])
        .allow_headers([
            AUTHORIZATION,
            CONTENT_TYPE,
            IDEMPOTENCY_KEY,
            KIND,
            TIMEOUT,
            LAST_EVENT_ID,
            TRACEPARENT,
            TRACESTATE,
        ])
        .expose_headers([OUTCOME, VERSION, ERROR_CODE, MESSAGE_ID, RETRY_AFTER])
        .max_age(REMEMBERED)
}

/// Refuses the requests of other pages.
pub(crate) async fn check_origin<S: Service>(
    State(app): State<Arc<App<S>>>,
    request: Request,
    next: Next,
) -> Response {
    let is_preflight = request.headers().contains_key(ACCESS_CONTROL_REQUEST_METHOD);
    match check(&app, request.uri(), request.headers()) {
        // Only a preflight is answered for its handler.
        Ok(()) if request.method() == Method::OPTIONS && !is_preflight => {
            wrong_method("GET, POST", "OPTIONS is for the preflights of web pages".into())
        }
        Ok(()) => next.run(request).await,
        Err(refused) => refused.into_response(),
    }
}

fn check<S: Service>(app: &App<S>, uri: &Uri, headers: &HeaderMap) -> Result<(), Problem> {
    let mut origins = headers.get_all(ORIGIN).iter();
    let origin = match (origins.next(), origins.next()) {
        (Some(origin), None) => origin.to_str().unwrap_or_default(),
        (Some(_), Some(_)) => "",
        // For some requests, browsers say only that another site's page sends them.
        (None, _) => match headers.get(FETCH_SITE).map(HeaderValue::as_bytes) {
            None | Some(b"same-origin" | b"none") => return Ok(()),
            Some(_) => "null",
        },
    };
    let service = app.server.service();
    if is_own(origin, uri, headers) || service.admits_origin(origin).map_err(Problem::of)? {
        return Ok(());
    }
    let text = format!("web pages of {origin:?} may not send requests to this gateway");
    Err(Problem::refused(StatusCode::FORBIDDEN, codes::WRONG_ORIGIN, text)
        .help("name the origin in `web-origins` of the policy (`ostraca policy set`)"))
}

/// Whether the request's origin is the host that it is addressed to; `None` if it names none.
pub(crate) fn own_origin(uri: &Uri, headers: &HeaderMap) -> Option<bool> {
    let mut origins = headers.get_all(ORIGIN).iter();
    let origin = origins.next()?;
    let is_only = origins.next().is_none();
    Some(is_only && origin.to_str().is_ok_and(|origin| is_own(origin, uri, headers)))
}

/// Whether an origin is the host that the request is addressed to.
fn is_own(origin: &str, uri: &Uri, headers: &HeaderMap) -> bool {
    let text = |value: &HeaderValue| value.to_str().ok().map(str::to_owned);
    let host = match uri.authority() {
        Some(authority) => Some(authority.as_str().to_owned()),
        None => headers.get(HOST).and_then(text),
    };
    let authority = origin.split_once("://").and_then(|(_, rest)| rest.parse::<Authority>().ok());
    authority.is_some_and(|authority| {
        host.and_then(|host| host.parse::<Authority>().ok()) == Some(authority)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_page_of_the_gateway_itself_is_its_own() {
        let mut headers = HeaderMap::new();
        headers.insert(HOST, HeaderValue::from_static("localhost:7480"));
        let own = |origin| is_own(origin, &Uri::from_static("/v1"), &headers);
        for origin in ["http://localhost:7480", "https://localhost:7480", "http://LOCALHOST:7480"] {
            assert!(own(origin), "{origin}");
        }
        for origin in ["http://localhost", "http://localhost:7481", "null", "", "localhost:7480"] {
            assert!(!own(origin), "{origin}");
        }
        let http2 = Uri::from_static("https://api.example.com/v1");
        assert!(is_own("https://api.example.com", &http2, &HeaderMap::new()));
        assert!(!is_own("https://www.example.com", &http2, &HeaderMap::new()));
    }
}
