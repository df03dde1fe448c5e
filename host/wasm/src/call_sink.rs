//! What the owner of an instance learns about a turn's outgoing HTTP calls (R20).

use std::fmt;

use tokio::sync::oneshot;

/// A call that a turn starts: what its `Idempotency-Key` depends on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuestCall {
    /// The method, such as `POST`.
    pub method: String,
    /// `http` or `https`.
    pub scheme: &'static str,
    /// The host in lower case, and the port.
    pub authority: String,
    /// The path with its query.
    pub path: String,
}

/// Takes the calls of one turn. The node makes them; the sink says when, and under which key.
pub trait CallSink: Send + Sync + fmt::Debug {
    /// A call was started. It waits until `release` is called; if that is dropped, the call fails. Places are numbered
    /// from 0, together with those of asks.
    fn start(&self, place: u32, call: GuestCall, release: CallRelease);
    /// The call has a result or was abandoned. Called on any thread, possibly after the turn has ended.
    fn end(&self, place: u32);
}

/// The right to release one call.
#[derive(Debug)]
pub struct CallRelease(pub(crate) oneshot::Sender<String>);

impl CallRelease {
    /// Lets the call be made, with this value of its `Idempotency-Key` header.
    pub fn release(self, key: String) {
        // The turn may have ended.
        let _ = self.0.send(key);
    }
}
