//! A link as this crate needs it. [`wire`](crate::wire) has the one over QUIC; tests have one that breaks
//! when they say so.

use bytes::Bytes;
use futures::future::BoxFuture;

/// How a call ended without an answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChannelError {
    /// The other side never hears of it.
    #[error("{0}")]
    NotSent(String),
    /// The other side may have heard of it.
    #[error("{0}")]
    Disconnected(String),
    /// The other side has not answered for as long as a call may take. The link stands.
    #[error("{0}")]
    TimedOut(String),
    /// It was done, but its answer is too large.
    #[error("{0}")]
    ResponseTooLarge(String),
}

/// One link. It breaks once and for all.
pub trait Channel: Send + Sync + 'static {
    /// Asks. The call is sent, behind those before it, when this returns; the future only waits, under any
    /// executor.
    fn call(&self, body: Bytes) -> BoxFuture<'static, Result<Bytes, ChannelError>>;

    /// The highest version of calls that both sides speak.
    fn version(&self) -> u32 {
        u32::from(crate::protocol::VERSION)
    }

    /// Bytes of the largest call.
    fn max_call(&self) -> usize;

    /// Waits until the link is broken or closed; all its calls have ended then.
    fn closed(&self) -> BoxFuture<'static, ()>;

    /// Breaks it: calls without an answer end, and nothing more is sent.
    fn close(&self);
}

/// Makes links, each to the same store.
pub trait Connect: Send + Sync + 'static {
    /// A new link. The future runs in the driver's runtime, and is dropped if it takes too long.
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
