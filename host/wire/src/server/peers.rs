//! Connections from other nodes.

use std::sync::Arc;

use bytes::Bytes;
use prost::Message;
use tokio::time::Instant;
use tracing::{debug, warn};

use super::connection_guard::ConnectionGuard;
use super::{Inner, Service, give_up};
use crate::close_code::CloseCode;
use crate::dial::close_for;
use crate::error::{Error, decode_error_message};
use crate::framed::{FrameReader, FrameWriter};
use crate::identity::Principal;
use crate::peer::descriptor::node_id_of;
use crate::peer::{Alpn, PeerInfo, PeerService, StreamKind};
use crate::proto::{PeerOpen, peer_open};
use crate::tls;
use crate::trust::{distrusted, lost};

/// Serves a connection on the runtime of its protocol, and passes its streams to the service.
pub(super) async fn connection<S: Service>(
    shared: Arc<Inner<S>>,
    service: Arc<dyn PeerService>,
    alpn: Alpn,
    connection: quinn::Connection,
    _counted: ConnectionGuard,
) {
    let remote = connection.remote_address();
    let peer = match linked(&shared, &connection).await {
        Ok(peer) => Arc::new(peer),
        Err(error) => {
            // Repeated attempts must not fill the log.
            match shared.refusals.should_log(Instant::now()) {
                Some(0) => warn!(%error, %remote, "rejected peer connection"),
                Some(suppressed) => warn!(%error, %remote, suppressed, "rejected peer connections"),
                None => debug!(%error, %remote, "rejected peer connection"),
            }
            return;
        }
    };
    debug!(member = %peer.member, %remote, %alpn, "peer connection opened");
    let chain = tls::peer_certificates(&connection);
    let streams = shared.streams(&connection, |send, recv| {
        let (shared, service) = (Arc::clone(&shared), Arc::clone(&service));
        let peer = Arc::clone(&peer);
        async move {
            let limits = &shared.limits;
            let frame = limits.peers.max_frame;
            let mut reader = FrameReader::new(recv, frame, limits.frame_timeout);
            let mut writer = FrameWriter::new(send);
            match opened(&shared, alpn, &mut reader).await {
                Ok(kind) => service.serve_stream(peer, kind, reader, writer).await,
                Err(error) => give_up(&error, &mut reader, &mut writer),
            }
        }
    });
    let ended = tokio::select! {
        ended = streams => ended,
        () = lost(shared.trust.subscribe(), &chain) => Err(distrusted(&connection)),
    };
    if let Err(error) = ended {
        debug!(%error, member = %peer.member, "peer connection closed");
    }
}

async fn opened<S: Service>(
    shared: &Inner<S>,
    alpn: Alpn,
    reader: &mut FrameReader,
) -> Result<StreamKind, Error> {
    let frame = shared.first(reader).await?;
    let open = PeerOpen::decode(frame)
        .map_err(|e| Error::violation(CloseCode::InvalidFrame, decode_error_message(&e)))?;
    StreamKind::opened(open.stream, alpn)
}

/// Checks the certificate first, since a peer that is not a node might never send a hello, and then exchanges hellos.
async fn linked<S: Service>(
    shared: &Inner<S>,
    connection: &quinn::Connection,
) -> Result<PeerInfo, Error> {
    let of_node = |certificate: Principal| match node_id_of(&certificate) {
        Ok(_) => Ok(certificate),
        Err((code, text)) => Err(Error::violation(code, text)),
    };
    let certificate = tls::peer(connection).map_err(Error::from).and_then(of_node);
    let certificate = certificate.map_err(|error| close_for(connection, error))?;
    let answer = async |frame, writer: &mut _| {
        answer_hello(shared, connection, &certificate, frame, writer).await
    };
    shared.exchange_hello(connection, answer).await
}

/// Answers the other node's hello, which is the connection's first frame.
async fn answer_hello<S: Service>(
    shared: &Inner<S>,
    connection: &quinn::Connection,
    certificate: &Principal,
    frame: Bytes,
    writer: &mut FrameWriter,
) -> Result<PeerInfo, Error> {
    let refused = |(code, text)| Error::violation(code, text);
    let bad = |text: String| Error::violation(CloseCode::InvalidHello, text);
    let open = PeerOpen::decode(frame).map_err(|e| bad(decode_error_message(&e)))?;
    let Some(peer_open::Stream::Hello(theirs)) = open.stream else {
        return Err(bad("the first stream must carry the hello".into()));
    };
    let own = shared.descriptor.now();
    let (remote, stopping) = (connection.remote_address(), shared.stopping.clone());
    let peer =
        own.negotiate(theirs, certificate, remote, &shared.budgets, stopping).map_err(refused)?;
    writer.put(&own.hello(&shared.limits));
    writer.flush().await?;
    writer.finish();
    Ok(peer)
}
