//! The path of a request, percent-decoded.

use axum::extract::Path;
use axum::extract::rejection::PathRejection;
use http::StatusCode;
use ostraca_codes::codes;
use ostraca_wire::envelope::NAMESPACE;

use crate::problem::Problem;

/// The parts of a path, if they can be decoded and the namespace exists.
///
/// # Errors
/// `unknown-path` or `unknown-namespace`.
pub(crate) fn decoded<P>(
    path: Result<Path<P>, PathRejection>,
    namespace: impl Fn(&P) -> &str,
) -> Result<P, Problem> {
    let Path(path) = path.map_err(|error| {
        Problem::refused(StatusCode::BAD_REQUEST, codes::UNKNOWN_PATH, error.body_text())
            .help("percent-encode the id as UTF-8")
    })?;
    let namespace = namespace(&path);
    if namespace != NAMESPACE {
        let text = format!("unknown namespace {namespace:?}");
        return Err(Problem::refused(StatusCode::NOT_FOUND, codes::UNKNOWN_NAMESPACE, text)
            .help("use the namespace `default`"));
    }
    Ok(path)
}
