//! Log-ins of the console: a cookie that holds the token.
//!
//! No script can read the cookie, and a browser sends it only to this host and only for pages of the same site. Another
//! port of the machine is the same site too, so the cookie counts only in requests of the gateway's own pages; a request
//! that may change something must name its origin. No node keeps anything about log-ins: every node of the cluster
//! accepts the cookie, until the token expires or is revoked.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::header::{AUTHORIZATION, CACHE_CONTROL, COOKIE, SET_COOKIE};
use http::{HeaderMap, HeaderValue, Method, StatusCode, Uri};
use http_body_util::{BodyExt, Limited};
use ostraca_codes::codes;
use ostraca_wire::server::Service;
use serde::Deserialize;
use tokio::time::timeout;

use crate::app::App;
use crate::auth::MAX_TOKEN;
use crate::origin::{FETCH_SITE, own_origin};
use crate::problem::Problem;

/// Maximum size of a cookie with its name: browsers ignore larger ones.
const COOKIE_BYTES: usize = 4_096;

/// The name of the cookie. Browsers keep cookies of all ports of a host together, so each cluster has one of its own.
pub(crate) fn cookie_name(cluster: &str) -> String {
    // The prefix binds it to this host and to secure connections.
    format!("__Host-ostraca-{}", cluster.get(..8).unwrap_or(cluster))
}

/// Lets the cookie stand for the token that it holds.
pub(crate) async fn admit_cookie<S: Service>(
    State(app): State<Arc<App<S>>>,
    mut request: Request,
    next: Next,
) -> Response {
    if request.headers().contains_key(AUTHORIZATION) {
        return next.run(request).await;
    }
    let Some(token) = token_in(request.headers(), &app.cookie) else {
        return next.run(request).await;
    };
    if !is_from_own_page(request.method(), request.uri(), request.headers()) {
        let text = "the console's log-in is only for its own pages";
        let refused = Problem::refused(StatusCode::FORBIDDEN, codes::WRONG_ORIGIN, text);
        return refused.help("send a token in `authorization`").into_response();
    }
    if let Ok(mut value) = HeaderValue::from_str(&format!("Bearer {token}")) {
        value.set_sensitive(true);
        request.headers_mut().insert(AUTHORIZATION, value);
    }
    next.run(request).await
}

/// The token in the cookie.
fn token_in<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let texts = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
    let pairs = texts.flat_map(|text| text.split(';'));
    let mut values = pairs.filter_map(|pair| pair.trim().split_once('='));
    values.find_map(|(known, value)| (known == name && !value.is_empty()).then_some(value))
}

/// Whether a request was sent by a page of the gateway itself.
fn is_from_own_page(method: &Method, uri: &Uri, headers: &HeaderMap) -> bool {
    let site = headers.get(FETCH_SITE).map(HeaderValue::as_bytes);
    let reads = matches!(*method, Method::GET | Method::HEAD);
    // `none`: somebody typed the address.
    let by_site = match site {
        None | Some(b"same-origin") => true,
        Some(b"none") => reads,
        Some(_) => false,
    };
    by_site && own_origin(uri, headers).unwrap_or(reads)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
enum LoginRequest {
    /// A token.
    Token(String),
    /// The secret of a link.
    Link(String),
}

/// `POST /console/login`: sets the cookie.
pub(crate) async fn log_in<S: Service>(
    State(app): State<Arc<App<S>>>,
    request: Request,
) -> Result<Response, Problem> {
    require_own_origin(&request)?;
    let body = Limited::new(request.into_body(), 2 * MAX_TOKEN).collect();
    let invalid = |text: String| {
        Problem::refused(StatusCode::BAD_REQUEST, codes::NOT_JSON, text)
            .help("send `{\"token\": TOKEN}`")
    };
    let body = timeout(app.settings.body_timeout, body)
        .await
        .map_err(|_| invalid("the body did not arrive".into()))?
        .map_err(|error| invalid(format!("the body cannot be received: {error}")))?;
    let token = match serde_json::from_slice(&body.to_bytes()) {
        Ok(LoginRequest::Token(token)) => token.trim().to_owned(),
        Ok(LoginRequest::Link(code)) => app.links.take(&code).ok_or_else(|| {
            let text = "the link was used before, or is too old";
            Problem::refused(StatusCode::UNAUTHORIZED, codes::UNAUTHENTICATED, text)
                .help("enter a token instead")
        })?,
        Err(error) => return Err(invalid(format!("the body is no log-in: {error}"))),
    };
    let mut headers = HeaderMap::new();
    let value = HeaderValue::from_str(&format!("Bearer {token}"));
    headers.insert(AUTHORIZATION, value.map_err(|_| invalid("the token is not text".into()))?);
    let holder = app.auth.holder(&headers)?;
    let seconds = holder.remaining().as_secs();
    let cookie = cookie(&app.cookie, &token, seconds);
    if cookie.len() > COOKIE_BYTES || token.contains([';', ',', '"', '\\']) {
        let text = format!("the token is too long for a cookie of {COOKIE_BYTES} bytes");
        return Err(Problem::refused(StatusCode::BAD_REQUEST, codes::INVALID_TOKEN, text)
            .help("get a token with fewer claims, or use `ostraca token issue`"));
    }
    let value = HeaderValue::from_str(&cookie).map_err(|error| invalid(error.to_string()))?;
    tracing::info!(principal = %holder.principal, "logged in to the console");
    Ok(with_cookie(value))
}

/// `POST /console/logout`: removes the cookie.
pub(crate) async fn log_out<S: Service>(
    State(app): State<Arc<App<S>>>,
    request: Request,
) -> Result<Response, Problem> {
    require_own_origin(&request)?;
    let value = HeaderValue::from_str(&cookie(&app.cookie, "", 0));
    let failed = |_| {
        let (status, code) = (StatusCode::INTERNAL_SERVER_ERROR, codes::INVALID_HEADER);
        Problem::refused(status, code, "the cookie cannot be written")
    };
    Ok(with_cookie(value.map_err(failed)?))
}

fn with_cookie(value: HeaderValue) -> Response {
    let fields = [(SET_COOKIE, value), (CACHE_CONTROL, HeaderValue::from_static("no-store"))];
    (StatusCode::NO_CONTENT, fields).into_response()
}

fn cookie(name: &str, token: &str, seconds: u64) -> String {
    format!("{name}={token}; Path=/; Secure; HttpOnly; SameSite=Strict; Max-Age={seconds}")
}

/// A page of another site must not be able to log its visitor in or out.
fn require_own_origin(request: &Request) -> Result<(), Problem> {
    match is_from_own_page(request.method(), request.uri(), request.headers()) {
        true => Ok(()),
        false => {
            let text = "only the console's own page may log in and out";
            Err(Problem::refused(StatusCode::FORBIDDEN, codes::WRONG_ORIGIN, text))
        }
    }
}

#[cfg(test)]
mod tests {
    use http::header::HOST;

    use super::*;

    fn headers(fields: &[(&str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(HOST, HeaderValue::from_static("localhost:7480"));
        for (name, value) in fields {
            let name: http::HeaderName = name.parse().expect("a name");
            headers.append(name, value.parse().expect("a value"));
        }
        headers
    }

    #[test]
    fn the_cookie_counts_only_for_the_gateways_pages() {
        let own = ("origin", "http://localhost:7480");
        let neighbour = ("origin", "http://localhost:3000");
        let site = |value| ("sec-fetch-site", value);
        for (method, fields, allowed) in [
            (Method::POST, &[own][..], true),
            (Method::POST, &[own, site("same-origin")], true),
            (Method::POST, &[], false),
            (Method::POST, &[site("same-origin")], false),
            (Method::POST, &[neighbour], false),
            (Method::POST, &[own, site("same-site")], false),
            (Method::POST, &[own, own], false),
            (Method::GET, &[], true),
            (Method::GET, &[site("same-origin")], true),
            (Method::GET, &[site("none")], true),
            (Method::GET, &[site("same-site")], false),
            (Method::GET, &[site("cross-site")], false),
            (Method::GET, &[neighbour], false),
            (Method::POST, &[own, site("none")], false),
        ] {
            let headers = headers(fields);
            let found = is_from_own_page(&method, &Uri::from_static("/v1"), &headers);
            assert_eq!(found, allowed, "{method} {fields:?}");
        }
    }

    #[test]
    fn the_token_is_found_among_other_cookies() {
        let name = cookie_name("0123456789abcdef");
        assert_eq!(name, "__Host-ostraca-01234567");
        let headers = headers(&[
            ("cookie", "a=b; __Host-ostraca-012345678=no"),
            ("cookie", "c; __Host-ostraca-01234567=to=ken"),
        ]);
        assert_eq!(token_in(&headers, &name), Some("to=ken"));
        assert_eq!(token_in(&headers, "__Host-ostraca-99999999"), None);
    }
}
