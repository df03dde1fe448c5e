//! Other nodes' streams: messages that they pass on, calls of the store where it is here, and what they say.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use futures::FutureExt;
use futures::future::{BoxFuture, ready};
use ostraca_store_peer::{ClusterServer, EntityServer};
use ostraca_wire::framed::{FrameReader, FrameWriter};
use ostraca_wire::outcome::starting;
use ostraca_wire::peer::messages::Messages;
use ostraca_wire::peer::serve::serve_calls;
use ostraca_wire::peer::{Alpn, PeerInfo, PeerService, StreamKind, look, messages};
use ostraca_wire::server::Request;
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use crate::control;
use crate::gateway::Gateway;

/// A node, as other nodes' streams see it.
pub(crate) struct Peers {
    pub(crate) bulk: Handle,
    pub(crate) control: Handle,
    pub(crate) heard: control::Words,
    /// Where the store is here.
    pub(crate) entities: Option<Arc<EntityServer>>,
    /// The rows, here or passed on: whoever joins may ask any node where the store is.
    pub(crate) rows: OnceLock<Arc<ClusterServer>>,
    /// Set when the node can take messages.
    pub(crate) gateway: OnceLock<Arc<Gateway>>,
}

/// What [`PeerService`] needs of a node that it may outlive.
#[derive(Clone)]
pub(crate) struct Streams(pub(crate) Arc<Peers>);

impl PeerService for Streams {
    fn stream(
        &self,
        peer: Arc<PeerInfo>,
        kind: StreamKind,
        reader: FrameReader,
        writer: FrameWriter,
    ) -> BoxFuture<'static, ()> {
        let this = self.clone();
        async move {
            let node = peer.member.node.clone();
            if let Err(error) = this.serve(peer, kind, reader, writer).await {
                tracing::debug!(%error, %node, %kind, "a node's stream ended");
            }
        }
        .boxed()
    }

    fn runtime(&self, alpn: Alpn) -> Handle {
        match alpn {
            Alpn::Bulk => self.0.bulk.clone(),
            Alpn::Control => self.0.control.clone(),
        }
    }
}

impl Streams {
    async fn serve(
        &self,
        peer: Arc<PeerInfo>,
        kind: StreamKind,
        reader: FrameReader,
        writer: FrameWriter,
    ) -> Result<(), ostraca_wire::Error> {
        // Nothing is pushed: a watch is a call that waits.
        let (_, pushes) = mpsc::channel(1);
        match kind {
            StreamKind::Messages { messages, bytes } => {
                messages::serve(reader, writer, &peer, (messages, bytes), self).await
            }
            StreamKind::Store => {
                let Some(server) = &self.0.entities else { return no_store(reader, writer) };
                let mut link = server.link(&peer.member);
                serve_calls(reader, writer, &peer, move |_, body| link.call(&body), pushes).await
            }
            StreamKind::Cluster => {
                let Some(server) = self.0.rows.get() else { return no_store(reader, writer) };
                let mut link = server.link(&peer.member);
                serve_calls(reader, writer, &peer, move |_, body| link.call(&body), pushes).await
            }
            StreamKind::Look => {
                let gateway = self.0.gateway.get().cloned();
                let look = move |question| {
                    let gateway = gateway.clone();
                    async move { gateway.as_ref()?.looked(question).await }.boxed()
                };
                look::serve(reader, writer, &peer, look).await
            }
            StreamKind::Talk => {
                let (node, heard) = (peer.member.node.clone(), self.0.heard.clone());
                let hear = move |_, body: Bytes| {
                    match control::decode_message(&node, &body) {
                        Ok((from, talk)) => heard.put(from, talk, body.len()),
                        Err(why) => heard.ignore(&node, &why),
                    }
                    ready(Bytes::new()).boxed()
                };
                serve_calls(reader, writer, &peer, hear, pushes).await
            }
        }
    }
}

/// Other nodes read in a node's row whether the store is there; this one says it by ending the stream.
fn no_store(mut reader: FrameReader, mut writer: FrameWriter) -> Result<(), ostraca_wire::Error> {
    reader.stop(ostraca_wire::code::Code::UnexpectedFrame);
    writer.reset(ostraca_wire::code::Code::UnexpectedFrame);
    Ok(())
}

impl Messages for Streams {
    async fn messages(&self, _: &Arc<PeerInfo>, batch: &mut Vec<Request>) {
        match self.0.gateway.get() {
            Some(gateway) => gateway.take_passed_on(batch),
            None => {
                for request in batch.drain(..) {
                    request.ticket.not_run(starting());
                }
            }
        }
    }
}
