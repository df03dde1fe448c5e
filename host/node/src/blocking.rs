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

/// Runs a future on a thread with a runtime of its own, since the caller may be on a thread of one. Blocks.
pub(crate) fn block_on_own_thread<T: Send>(
    future: impl Future<Output = Result<T, NodeError>> + Send,
) -> Result<T, NodeError> {
    let run = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| NodeError::UnexpectedExit(error.to_string()))?;
        runtime.block_on(future)
    };
    let ended = std::thread::scope(|scope| scope.spawn(run).join());
    ended.unwrap_or_else(|_| Err(NodeError::UnexpectedExit("a thread panicked".into())))
}
