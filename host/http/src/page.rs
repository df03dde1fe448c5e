//! `/console/`: the files of the console. They are the same for everybody, and show nothing by themselves.

use axum::extract::Path;
use axum::extract::rejection::PathRejection;
use axum::response::{IntoResponse, Redirect, Response};
use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, IF_NONE_MATCH, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderMap, HeaderName, StatusCode};
use ostraca_codes::codes;

use crate::problem::Problem;

/// No inline code or styles, nothing from elsewhere, no frames, and no text that becomes markup.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";

pub(crate) async fn root() -> Redirect {
    Redirect::to("/console/")
}

pub(crate) async fn index(headers: HeaderMap) -> Result<Response, Problem> {
    file(Ok(Path("index.html".into())), headers).await
}

pub(crate) async fn file(
    path: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let name = path.map(|Path(name)| name).unwrap_or_default();
    let Some(file) = ostraca_console::file(&name) else {
        let text = format!("the console has no file {name:?}");
        return Err(Problem::refused(StatusCode::NOT_FOUND, codes::UNKNOWN_PATH, text)
            .help("the console is at /console/"));
    };
    let tag = format!("\"{}\"", &blake3::hash(file.bytes).to_hex()[..32]);
    let fields = [
        (CONTENT_TYPE, file.content_type),
        (ETAG, &tag),
        // Asked for again after an upgrade of the node.
        (CACHE_CONTROL, "no-cache"),
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "no-referrer"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ];
    let known = headers.get_all(IF_NONE_MATCH).iter().any(|it| it.as_bytes() == tag.as_bytes());
    if known {
        return Ok((StatusCode::NOT_MODIFIED, fields).into_response());
    }
    Ok((fields, file.bytes).into_response())
}
