//! A link from this crate's point of view. [`wire`](crate::wire) implements it over QUIC; tests have one that
//! breaks on demand.

use bytes::Bytes;
use futures::future::BoxFuture;

/// How a call ended without a response.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChannelError {
    /// The peer never receives it.
    #[error("{0}")]
    NotSent(String),
    /// The peer may have received it.
    #[error("{0}")]
    Disconnected(String),
    /// The peer did not respond within the call timeout. The link is still up.
    #[error("{0}")]
    TimedOut(String),
    /// It was executed, but its response is too large.
    #[error("{0}")]
    ResponseTooLarge(String),
}

/// One link. Once broken, it stays broken.
pub trait Channel: Send + Sync + 'static {
    /// Sends a call. When this returns, the call is queued behind earlier ones; the future only waits, and works
    /// with any executor.
    fn call(&self, body: Bytes) -> BoxFuture<'static, Result<Bytes, ChannelError>>;

    /// The highest protocol version that both sides support.
    fn version(&self) -> u32 {
        u32::from(crate::protocol::VERSION)
    }

    /// Size of the largest call in bytes.
    fn max_call(&self) -> usize;

    /// Waits until the link is broken or closed and all its calls have ended.
    fn closed(&self) -> BoxFuture<'static, ()>;

    /// Breaks the link: unanswered calls end, and nothing more is sent.
    fn close(&self);
}

/// Creates links to one store.
pub trait Connect: Send + Sync + 'static {
    /// Creates a link. The future runs in the driver's runtime, and is dropped if it takes too long.
    fn connect(&self) -> BoxFuture<'static, Result<Box<dyn Channel>, String>>;
}

impl<F> Connect for F
where
    F: Fn() -> BoxFuture<'static, Result<Box<dyn Channel>, String>> + Send + Sync + 'static,
{
    fn connect(&self) -> BoxFuture<'static, Result<Box<dyn Channel>, String>> {
        self()
    }
}
