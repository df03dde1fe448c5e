//! The server side: executes the calls to a store as they arrive over a link.
//!
//! Every call to the store is *made* while its frame is handled, in the order of frames; only its result is awaited
//! later. So the calls of one link take effect in the order in which they were sent.

mod blobs;
mod cluster;
mod entity;
mod fence;
mod watches;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::{BoxFuture, ready};
use ostraca_core::ids::NodeId;
use ostraca_store::StoreIdentity;

use crate::options::ServerOptions;
use crate::protocol::{self, DecodeError, Hello, Request, Response, ResponseBody};
use fence::{Fence, LinkPermit};

pub use cluster::{ClusterLink, ClusterServer};
pub use entity::{EntityLink, EntityServer};

/// Encodes a response. If that fails, the response is empty, which no client accepts, so the link ends.
fn reply(sequence: u64, answer: ResponseBody) -> Bytes {
    protocol::encode(&Response { durable_sequence: sequence, body: answer }).unwrap_or_default()
}

/// Responds that no part of the call was executed.
fn refused(why: impl ToString) -> BoxFuture<'static, Bytes> {
    ready(reply(0, ResponseBody::Refused(why.to_string()))).boxed()
}

/// Admits a link's calls: refuses them before the hello, and after a newer link has replaced this one.
struct LinkSession {
    node: NodeId,
    pass: Option<LinkPermit>,
}

impl LinkSession {
    fn new(node: &NodeId) -> Self {
        Self { node: node.clone(), pass: None }
    }

    /// Handles a call. `who` identifies the store; `sequence` returns its newest sequence at the time of the
    /// response.
    fn call(
        &mut self,
        body: &[u8],
        fence: &Fence,
        options: &ServerOptions,
        who: impl FnOnce() -> (StoreIdentity, Vec<u64>),
        sequence: impl FnOnce() -> u64 + Send + 'static,
        ask: impl FnOnce(Request) -> BoxFuture<'static, ResponseBody>,
    ) -> BoxFuture<'static, Bytes> {
        let request = match protocol::decode_request(body, options.max_request_bytes) {
            Ok(Request::Hello(hello)) => {
                return match self.enter(fence, &hello, who) {
                    Ok((identity, openings)) => {
                        let at = identity.durable_sequence;
                        ready(reply(at, ResponseBody::Hello { identity, open_nonces: openings }))
                            .boxed()
                    }
                    Err(why) => refused(why),
                };
            }
            Ok(Request::Ping) => return ready(reply(0, ResponseBody::Ping)).boxed(),
            Ok(request) => request,
            Err(DecodeError::UnknownRequest(call)) => {
                return ready(reply(0, ResponseBody::Unsupported { call })).boxed();
            }
            Err(error) => return refused(error),
        };
        let Some(pass) = &self.pass else {
            return refused("the first call of a link must be a hello");
        };
        match pass.call(|| ask(request)) {
            Ok(answer) => answer.map(move |answer| reply(sequence(), answer)).boxed(),
            Err(why) => refused(why),
        }
    }

    fn enter(
        &mut self,
        fence: &Fence,
        hello: &Hello,
        who: impl FnOnce() -> (StoreIdentity, Vec<u64>),
    ) -> Result<(StoreIdentity, Vec<u64>), String> {
        let (identity, openings) = who();
        let StoreIdentity { cluster, cluster_name, .. } = &identity;
        if hello.cluster != *cluster {
            let theirs = hello.cluster;
            return Err(format!(
                "the store belongs to cluster {cluster} (\"{cluster_name}\"), not to cluster {theirs}"
            ));
        }
        self.pass = Some(fence.enter(&self.node, hello)?);
        Ok((identity, openings))
    }
}
