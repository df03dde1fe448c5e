//! Serves an `EntityStore`.

use std::sync::Arc;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::{BoxFuture, ready};
use ostraca_core::ids::NodeId;
use ostraca_core::records::{Claim, ClaimOutcome, CommitOutcome, CommitRefusal};
use ostraca_core::rows::Member;
use ostraca_store::{EntityStore, Scan};

use super::LinkSession;
use super::blobs::Blobs;
use super::fence::Fence;
use crate::options::ServerOptions;
use crate::protocol::{MAX_LOADS, Request, ResponseBody};

/// Serves one store to all nodes.
pub struct EntityServer {
    store: Arc<dyn EntityStore>,
    options: ServerOptions,
    fence: Fence,
}

impl std::fmt::Debug for EntityServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EntityServer").field("options", &self.options).finish_non_exhaustive()
    }
}

impl EntityServer {
    /// Creates a server for `store`.
    #[must_use]
    pub fn new(store: Arc<dyn EntityStore>, options: ServerOptions) -> Arc<Self> {
        Arc::new(Self { store, options, fence: Fence::default() })
    }

    /// Creates a link from `peer`, whose name comes from its certificate.
    #[must_use]
    pub fn link(self: &Arc<Self>, peer: &Member) -> EntityLink {
        let blobs = Arc::new(Blobs::new(&self.options));
        EntityLink { server: self.clone(), entrance: LinkSession::new(&peer.node), blobs }
    }
}

/// A link from one node.
pub struct EntityLink {
    server: Arc<EntityServer>,
    entrance: LinkSession,
    blobs: Arc<Blobs>,
}

impl std::fmt::Debug for EntityLink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EntityLink").field("node", &self.entrance.node).finish_non_exhaustive()
    }
}

impl EntityLink {
    /// Handles a call. Everything that depends on the order of calls is done when this returns.
    pub fn call(&mut self, body: &[u8]) -> BoxFuture<'static, Bytes> {
        let Self { server, entrance, blobs } = self;
        let (store, node) = (server.store.clone(), entrance.node.clone());
        let who = || (server.store.identity(), server.store.open_nonces());
        let sequence = move || store.identity().durable_sequence;
        let ask = |request| server.execute(request, &node, blobs);
        entrance.call(body, &server.fence, &server.options, who, sequence, ask)
    }
}

impl EntityServer {
    fn execute(
        &self,
        request: Request,
        node: &NodeId,
        blobs: &Arc<Blobs>,
    ) -> BoxFuture<'static, ResponseBody> {
        let (store, options) = (&self.store, &self.options);
        match request {
            Request::Claim(claims) => {
                let (own, foreign) = own(node, claims, |claim| claim);
                let answer = store.claim(own);
                let refusal = ClaimOutcome::Failed;
                answer.map(move |it| ResponseBody::Claim(merge(it, foreign, refusal))).boxed()
            }
            Request::Commit(turns) => {
                let (own, foreign) = own(node, turns, |turn| &turn.claim);
                let answer = store.commit(own);
                let refusal = |why| CommitOutcome::Refused(CommitRefusal::LimitReached(why));
                answer.map(move |it| ResponseBody::Commit(merge(it, foreign, refusal))).boxed()
            }
            Request::CurrentClaims(shards) => {
                store.current_claims(shards).map(ResponseBody::CurrentClaims).boxed()
            }
            Request::Load(entities) if entities.len() > MAX_LOADS => {
                let why = format!("a call loads at most {MAX_LOADS} entities");
                ready(ResponseBody::Refused(why)).boxed()
            }
            Request::Load(entities) => store.load(entities).map(ResponseBody::Load).boxed(),
            Request::Scan(scan) => {
                let limit = scan.max_records.min(options.max_page_records);
                let limit_bytes = scan.max_bytes.min(options.max_page_bytes);
                store
                    .scan(Scan { max_records: limit, max_bytes: limit_bytes, ..scan })
                    .map(ResponseBody::Scan)
                    .boxed()
            }
            Request::PutBlob { upload, total, offset, bytes } => {
                match blobs.receive_fragment(upload, total, offset, &bytes) {
                    Ok(Some(whole)) => {
                        let kept = store.put_blob(whole);
                        kept.map(|it| ResponseBody::PutBlob(it.map(Some))).boxed()
                    }
                    Ok(None) => ready(ResponseBody::PutBlob(Ok(None))).boxed(),
                    Err(error) => ready(ResponseBody::PutBlob(Err(error))).boxed(),
                }
            }
            Request::GetBlob { digest, offset, max_bytes: limit } => {
                let fragment = blobs.clone().read_fragment(store, digest, offset, limit);
                fragment.map(ResponseBody::GetBlob).boxed()
            }
            Request::Hello(_)
            | Request::Ping
            | Request::Get(_)
            | Request::List(_)
            | Request::CompareAndSet(_)
            | Request::Watch { .. }
            | Request::CancelWatch(_) => {
                let why = "row calls belong on the control connection";
                ready(ResponseBody::Refused(why.into())).boxed()
            }
        }
    }
}

/// Separates the claims or turns that `peer` may make from those in the name of another node. Returns the latter as
/// positions with error messages.
fn own<T>(
    peer: &NodeId,
    all: Vec<T>,
    claim: impl Fn(&T) -> &Claim,
) -> (Vec<T>, Vec<(usize, String)>) {
    let mut foreign = Vec::new();
    let mut own = Vec::with_capacity(all.len());
    for (at, one) in all.into_iter().enumerate() {
        let node = &claim(&one).owner.node;
        if node == peer {
            own.push(one);
        } else {
            foreign.push((at, format!("node {peer} may not write on behalf of node {node}")));
        }
    }
    (own, foreign)
}

/// Inserts refusals at their positions.
fn merge<T>(
    mut responses: Vec<T>,
    foreign: Vec<(usize, String)>,
    refusal: impl Fn(String) -> T,
) -> Vec<T> {
    for (at, why) in foreign {
        responses.insert(at.min(responses.len()), refusal(why));
    }
    responses
}
