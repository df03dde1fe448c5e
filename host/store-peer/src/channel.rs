//! A link as this crate sees it. [`wire`](crate::wire) implements it over QUIC; tests use an implementation that breaks
//! on demand.

use bytes::Bytes;
use futures::future::BoxFuture;

/// Why a call ended without a response.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChannelError {
    /// The peer has not received the call and never will.
    #[error("{0}")]
    NotSent(String),
    /// The peer may have received the call.
    #[error("{0}")]
    Disconnected(String),
    /// The peer did not respond within the call timeout. The link is still up.
    #[error("{0}")]
    TimedOut(String),
    /// The call was executed, but its response is too large.
    #[error("{0}")]
    ResponseTooLarge(String),
}

/// A link. Once broken, it remains broken.
pub trait Channel: Send + Sync + 'static {
    /// Sends a call. When this returns, the call is queued behind earlier ones; the future only waits for the response,
    /// and works with any executor.
    fn call(&self, body: Bytes) -> BoxFuture<'static, Result<Bytes, ChannelError>>;

    /// The highest protocol version that both sides support.
    fn version(&self) -> u32 {
        u32::from(crate::protocol::VERSION)
    }

    /// Maximum size of a call in bytes.
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
