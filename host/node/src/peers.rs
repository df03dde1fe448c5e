//! Handles other nodes' streams: forwarded messages, store calls if the store is here, and control messages.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use futures::FutureExt;
use futures::future::{BoxFuture, ready};
use ostraca_store_peer::{ClusterServer, EntityServer};
use ostraca_wire::framed::{FrameReader, FrameWriter};
use ostraca_wire::outcome::node_starting;
use ostraca_wire::peer::forwarding::ForwardedMessageHandler;
use ostraca_wire::peer::rpc_server::serve_rpc;
use ostraca_wire::peer::{Alpn, PeerInfo, PeerService, StreamKind, forwarding, inspect};
use ostraca_wire::server::IncomingMessage;
use tokio::runtime::Handle;

use ostraca_control as control;
use ostraca_gateway::Gateway;

/// Handles the streams of other nodes.
pub(crate) struct PeerBackend {
    pub(crate) bulk_runtime: Handle,
    pub(crate) control_runtime: Handle,
    pub(crate) control_inbox: control::ControlInboxSender,
    /// Set if the store is in this process.
    pub(crate) entity_server: Option<Arc<EntityServer>>,
    /// Serves the rows, local or relayed: a joining node may ask any node for the store's address.
    pub(crate) cluster_server: OnceLock<Arc<ClusterServer>>,
    /// Set once the node can accept messages.
    pub(crate) gateway: OnceLock<Arc<Gateway>>,
}

/// The part of a node that [`PeerService`] needs. The node may end before the service does.
#[derive(Clone)]
pub(crate) struct PeerStreamHandler(pub(crate) Arc<PeerBackend>);

impl PeerService for PeerStreamHandler {
    fn serve_stream(
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
                tracing::debug!(%error, %node, %kind, "peer stream closed with an error");
            }
        }
        .boxed()
    }

    fn runtime(&self, alpn: Alpn) -> Handle {
        match alpn {
            Alpn::Bulk => self.0.bulk_runtime.clone(),
            Alpn::Control => self.0.control_runtime.clone(),
        }
    }
}

impl PeerStreamHandler {
    async fn serve(
        &self,
        peer: Arc<PeerInfo>,
        kind: StreamKind,
        reader: FrameReader,
        writer: FrameWriter,
    ) -> Result<(), ostraca_wire::Error> {
        match kind {
            StreamKind::Forwarding {
                max_in_flight_messages: messages,
                max_in_flight_bytes: bytes,
            } => forwarding::serve(reader, writer, &peer, (messages, bytes), self).await,
            StreamKind::EntityStore => {
                let Some(server) = &self.0.entity_server else { return no_store(reader, writer) };
                let mut link = server.link(&peer.member);
                serve_rpc(reader, writer, &peer, move |_, body| link.call(&body)).await
            }
            StreamKind::ClusterStore => {
                let Some(server) = self.0.cluster_server.get() else {
                    return no_store(reader, writer);
                };
                let mut link = server.link(&peer.member);
                serve_rpc(reader, writer, &peer, move |_, body| link.call(&body)).await
            }
            StreamKind::Inspect => {
                let gateway = self.0.gateway.get().cloned();
                let inspect_locally = move |question| {
                    let gateway = gateway.clone();
                    async move { gateway.as_ref()?.handle_inspect(question).await }.boxed()
                };
                inspect::serve(reader, writer, &peer, inspect_locally).await
            }
            StreamKind::Control => {
                let (node, inbox) = (peer.member.node.clone(), self.0.control_inbox.clone());
                let receive = move |_, body: Bytes| {
                    inbox.receive(&node, &body);
                    ready(Bytes::new()).boxed()
                };
                serve_rpc(reader, writer, &peer, receive).await
            }
        }
    }
}

/// Ends a stream for a store that this node does not have. Other nodes know from its row whether it has the store.
fn no_store(mut reader: FrameReader, mut writer: FrameWriter) -> Result<(), ostraca_wire::Error> {
    reader.stop(ostraca_wire::close_code::CloseCode::UnexpectedFrame);
    writer.reset(ostraca_wire::close_code::CloseCode::UnexpectedFrame);
    Ok(())
}

impl ForwardedMessageHandler for PeerStreamHandler {
    async fn handle_messages(&self, _: &Arc<PeerInfo>, batch: &mut Vec<IncomingMessage>) {
        match self.0.gateway.get() {
            Some(gateway) => gateway.accept_forwarded(batch),
            None => {
                for request in batch.drain(..) {
                    request.ticket.not_run(node_starting());
                }
            }
        }
    }
}
