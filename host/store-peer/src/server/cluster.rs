//! Serving a `ClusterStore`.

use std::sync::Arc;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::{BoxFuture, ready};
use ostraca_sharding::ids::NodeId;
use ostraca_sharding::rows::Member;
use ostraca_store::ClusterStore;

use super::fence::{Fence, Pass};
use super::watches::Watches;
use super::{check_cluster, refused, reply};
use crate::options::ServerOptions;
use crate::protocol::{self, Answer, Hello, Request};

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
    /// Serves that store.
    #[must_use]
    pub fn new(store: Arc<dyn ClusterStore>, options: ServerOptions) -> Arc<Self> {
        Arc::new(Self { store, options, fence: Fence::default() })
    }

    /// A link of that node, whose name its certificate says.
    #[must_use]
    pub fn link(self: &Arc<Self>, peer: &Member) -> ClusterLink {
        let watches = Arc::new(Watches::new(&self.options));
        ClusterLink { server: self.clone(), node: peer.node.clone(), pass: None, watches }
    }
}

/// A link from one node. Its futures are to be awaited within a tokio runtime.
pub struct ClusterLink {
    server: Arc<ClusterServer>,
    node: NodeId,
    pass: Option<Pass>,
    watches: Arc<Watches>,
}

impl std::fmt::Debug for ClusterLink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClusterLink").field("node", &self.node).finish_non_exhaustive()
    }
}

impl ClusterLink {
    /// Takes a call. What must keep the order of calls is done when this returns.
    pub fn call(&mut self, body: &[u8]) -> BoxFuture<'static, Bytes> {
        let request = match protocol::decode_request(body, self.server.options.max_question) {
            Ok(Request::Hello(hello)) => return self.hello(&hello),
            Ok(request) => request,
            Err(error) => return refused(error),
        };
        let Some(pass) = &self.pass else { return refused("the first call of a link is a hello") };
        match pass.call(|| self.ask(request)) {
            Ok(answer) => {
                let store = self.server.store.clone();
                answer.map(move |answer| reply(store.identity().sequence, answer)).boxed()
            }
            Err(why) => refused(why),
        }
    }

    fn hello(&mut self, hello: &Hello) -> BoxFuture<'static, Bytes> {
        let store = &self.server.store;
        let identity = store.identity();
        let entered = check_cluster(hello, identity.cluster, &identity.cluster_name)
            .and_then(|()| self.server.fence.enter(&self.node, hello));
        match entered {
            Ok(pass) => {
                self.pass = Some(pass);
                let openings = store.openings();
                ready(reply(identity.sequence, Answer::Hello { identity, openings })).boxed()
            }
            Err(why) => refused(why),
        }
    }

    fn ask(&self, request: Request) -> BoxFuture<'static, Answer> {
        let store = &self.server.store;
        match request {
            Request::Get(key) => store.get(&key).map(Answer::Get).boxed(),
            Request::List(prefix) => store.list(&prefix).map(Answer::List).boxed(),
            Request::Cas(cas) => store.compare_and_set(cas).map(Answer::Cas).boxed(),
            Request::Watch { watch, prefix, revision, hold } => {
                self.watches.clone().next(&**store, watch, &prefix, revision, hold)
            }
            Request::Unwatch(watch) => {
                self.watches.end(watch);
                ready(Answer::Unwatch).boxed()
            }
            _ => {
                let why = "entities are asked for on the bulk connection";
                ready(Answer::Refused(why.into())).boxed()
            }
        }
    }
}
