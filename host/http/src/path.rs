//! The path of a request, percent-decoded.

use axum::extract::Path;
use axum::extract::rejection::PathRejection;
use http::StatusCode;
use ostraca_codes::codes;
use ostraca_core::names;

use crate::problem::Problem;

/// The parts of a path, if they can be decoded, and the type's name in the cluster.
///
/// # Errors
/// `unknown-path` or `unknown-namespace`.
pub(crate) fn decoded<P>(
    path: Result<Path<P>, PathRejection>,
    entity_type: impl Fn(&P) -> (&str, &str),
) -> Result<(P, String), Problem> {
    let Path(path) = path.map_err(|error| {
        Problem::refused(StatusCode::BAD_REQUEST, codes::UNKNOWN_PATH, error.body_text())
            .help("percent-encode the id as UTF-8")
    })?;
    let (namespace, local) = entity_type(&path);
    if let Err(why) = names::check_namespace(namespace) {
        let text = format!("unknown namespace: {why}");
        return Err(Problem::refused(StatusCode::NOT_FOUND, codes::UNKNOWN_NAMESPACE, text));
    }
    if local.contains(names::SEPARATOR) {
        let text = format!("unknown type {local:?}: the namespace is the part before it");
        return Err(Problem::refused(StatusCode::NOT_FOUND, codes::UNKNOWN_TYPE, text));
    }
    let name = names::qualified(namespace, local).into_owned();
    Ok((path, name))
}
