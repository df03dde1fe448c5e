//! Runs blocking work outside the runtime's worker threads.

use crate::error::NodeError;

/// Runs blocking work on one of tokio's blocking threads.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, NodeError> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|error| NodeError::UnexpectedExit(format!("a thread of the node: {error}")))
}
