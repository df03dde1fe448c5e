//! Serves a `ClusterStore`.

use std::sync::Arc;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::{BoxFuture, ready};
use ostraca_core::rows::Member;
use ostraca_store::ClusterStore;

use super::LinkSession;
use super::fence::Fence;
use super::watches::Watches;
use crate::options::ServerOptions;
use crate::protocol::{Request, ResponseBody};

/// Serves one store to all nodes.
pub struct ClusterServer {
    store: Arc<dyn ClusterStore>,
    options: ServerOptions,
    fence: Fence,
}

impl std::fmt::Debug for ClusterServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClusterServer").field("options", &self.options).finish_non_exhaustive()
    }
}

impl ClusterServer {
    /// Creates a server for `store`.
    #[must_use]
    pub fn new(store: Arc<dyn ClusterStore>, options: ServerOptions) -> Arc<Self> {
        Arc::new(Self { store, options, fence: Fence::default() })
    }

    /// Creates a link from `peer`, whose name comes from its certificate.
    #[must_use]
    pub fn link(self: &Arc<Self>, peer: &Member) -> ClusterLink {
        let watches = Arc::new(Watches::new(&self.options));
        ClusterLink { server: self.clone(), entrance: LinkSession::new(&peer.node), watches }
    }
}

/// A link from one node. Its futures must be awaited within a tokio runtime.
pub struct ClusterLink {
    server: Arc<ClusterServer>,
    entrance: LinkSession,
    watches: Arc<Watches>,
}

impl std::fmt::Debug for ClusterLink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClusterLink").field("node", &self.entrance.node).finish_non_exhaustive()
    }
}

impl ClusterLink {
    /// Handles a call. Everything that depends on the order of calls is done when this returns.
    pub fn call(&mut self, body: &[u8]) -> BoxFuture<'static, Bytes> {
        let Self { server, entrance, watches } = self;
        let store = server.store.clone();
        let who = || (server.store.identity(), server.store.open_nonces());
        let sequence = move || store.identity().durable_sequence;
        let ask = |request| server.execute(request, watches);
        entrance.call(body, &server.fence, &server.options, who, sequence, ask)
    }
}

impl ClusterServer {
    fn execute(
        &self,
        request: Request,
        watches: &Arc<Watches>,
    ) -> BoxFuture<'static, ResponseBody> {
        let store = &self.store;
        match request {
            Request::Get(key) => store.get(&key).map(ResponseBody::Get).boxed(),
            Request::List(prefix) => store.list(&prefix).map(ResponseBody::List).boxed(),
            Request::CompareAndSet(cas) => {
                store.compare_and_set(cas).map(ResponseBody::CompareAndSet).boxed()
            }
            Request::Watch { watch, prefix, revision, poll_timeout_ms: hold } => {
                watches.clone().next(&**store, watch, &prefix, revision, hold)
            }
            Request::CancelWatch(watch) => {
                watches.end(watch);
                ready(ResponseBody::CancelWatch).boxed()
            }
            _ => {
                let why = "entity calls belong on the bulk connection";
                ready(ResponseBody::Refused(why.into())).boxed()
            }
        }
    }
}
