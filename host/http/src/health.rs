//! `/livez` and `/readyz`, for whoever restarts processes and balances load.

use std::sync::Arc;

use futures::future::BoxFuture;

use axum::response::{IntoResponse, Response};
use http::StatusCode;

/// Says why the node is not ready to serve; `Ok` if it is. Called for each request: must not block.
pub type Readiness = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;

/// Waits, for a moment, until a type that was just deployed elsewhere is known here. Returns at once for others.
pub type TypeWait = Arc<dyn Fn(String) -> BoxFuture<'static, ()> + Send + Sync>;

/// The process answers.
pub(crate) async fn livez() -> &'static str {
    "ok\n"
}

pub(crate) fn readyz(readiness: &Readiness) -> Response {
    match readiness() {
        Ok(()) => "ok\n".into_response(),
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")).into_response(),
    }
}
