//! Connections from other nodes.

use std::sync::Arc;

use prost::Message;
use tokio::time::Instant;
use tracing::{debug, warn};

use super::connection::{Counted, give_up};
use super::{Service, Shared};
use crate::code::Code;
use crate::error::{Error, unreadable};
use crate::framed::{FrameReader, FrameWriter};
use crate::peer::facts::is_node;
use crate::peer::{Alpn, PeerInfo, PeerService, StreamKind};
use crate::proto::{PeerOpen, peer_open};
use crate::tls;

/// Serves a connection on the runtime that its protocol has, with the service's streams.
pub(super) async fn connection<S: Service>(
    shared: Arc<Shared<S>>,
    service: Arc<dyn PeerService>,
    alpn: Alpn,
    connection: quinn::Connection,
    _counted: Counted,
) {
    let remote = connection.remote_address();
    let peer = match shared.greet(&connection, hello(&shared, &connection)).await {
        Ok(peer) => Arc::new(peer),
        Err(error) => {
            // Whoever tries again and again does not fill the log.
            match shared.refusals.one_more(Instant::now()) {
                Some(0) => warn!(%error, %remote, "a node was refused"),
                Some(unsaid) => warn!(%error, %remote, unsaid, "nodes were refused"),
                None => debug!(%error, %remote, "a node was refused"),
            }
            return;
        }
    };
    debug!(member = %peer.member, %remote, %alpn, "a node's connection began");
    let ended = shared
        .streams(&connection, |send, recv| {
            let (shared, service) = (Arc::clone(&shared), Arc::clone(&service));
            let peer = Arc::clone(&peer);
            async move {
                let limits = &shared.limits;
                let frame = limits.peers.max_frame;
                let mut reader = FrameReader::new(recv, frame, limits.frame_deadline);
                let mut writer = FrameWriter::new(send);
                match opened(&shared, alpn, &mut reader).await {
                    Ok(kind) => service.stream(peer, kind, reader, writer).await,
                    Err(error) => give_up(&error, &mut reader, &mut writer),
                }
            }
        })
        .await;
    if let Err(error) = ended {
        debug!(%error, member = %peer.member, "a node's connection ended");
    }
}

async fn opened<S: Service>(
    shared: &Shared<S>,
    alpn: Alpn,
    reader: &mut FrameReader,
) -> Result<StreamKind, Error> {
    let frame = shared.first(reader).await?;
    let open =
        PeerOpen::decode(frame).map_err(|e| Error::violation(Code::BadFrame, unreadable(&e)))?;
    StreamKind::opened(open.stream, alpn)
}

/// Hears the node's hello and answers it.
async fn hello<S: Service>(
    shared: &Shared<S>,
    connection: &quinn::Connection,
) -> Result<PeerInfo, Error> {
    let refused = |(code, text)| Error::violation(code, text);
    let certificate = tls::peer(connection)?;
    is_node(&certificate).map_err(refused)?;
    let (frame, mut writer) = shared.hear(connection).await?;
    let bad = |text: String| Error::violation(Code::BadHello, text);
    let open = PeerOpen::decode(frame).map_err(|e| bad(unreadable(&e)))?;
    let Some(peer_open::Stream::Hello(theirs)) = open.stream else {
        return Err(bad("the first stream is for the hello".into()));
    };
    let own = shared.facts.now();
    let (remote, stopping) = (connection.remote_address(), shared.stopping.clone());
    let peer =
        own.agree(theirs, &certificate, remote, &shared.budgets, stopping).map_err(refused)?;
    writer.put(&own.hello(&shared.limits));
    writer.flush().await?;
    writer.finish();
    Ok(peer)
}
