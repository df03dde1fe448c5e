//! Links over QUIC: the client side as a [`Channel`], and the server side of both stores.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use ostraca_wire::Error;
use ostraca_wire::framed::{FrameReader, FrameWriter};
use ostraca_wire::peer::rpc_client::RpcClient;
use ostraca_wire::peer::rpc_server::serve_rpc;
use ostraca_wire::peer::{PeerInfo, PeerLink, StreamKind};

use crate::channel::{Channel, ChannelError};
use crate::server::{ClusterServer, EntityServer};

/// Bytes of a call's frame in addition to its body, rounded up.
const HEAD: usize = 64;

/// Serves a stream of the bulk connection to its end.
///
/// # Errors
/// Why the stream ended, unless it ended gracefully.
pub async fn serve_entity(
    server: &Arc<EntityServer>,
    reader: FrameReader,
    writer: FrameWriter,
    peer: &PeerInfo,
) -> Result<(), Error> {
    let mut link = server.link(&peer.member);
    serve_rpc(reader, writer, peer, move |_, body| link.call(&body)).await
}

/// Serves a stream of the control connection to its end.
///
/// # Errors
/// Why the stream ended, unless it ended gracefully.
pub async fn serve_cluster(
    server: &Arc<ClusterServer>,
    reader: FrameReader,
    writer: FrameWriter,
    peer: &PeerInfo,
) -> Result<(), Error> {
    let mut link = server.link(&peer.member);
    serve_rpc(reader, writer, peer, move |_, body| link.call(&body)).await
}

/// A stream of calls over QUIC.
pub struct QuicChannel {
    calls: Mutex<Option<Arc<RpcClient>>>,
    max_call: usize,
    _link: PeerLink,
}

impl std::fmt::Debug for QuicChannel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WireChannel").field("max_call", &self.max_call).finish_non_exhaustive()
    }
}

impl QuicChannel {
    /// Opens a stream of calls to the store's node; `kind` is [`StreamKind::EntityStore`] or
    /// [`StreamKind::ClusterStore`]. The connection is kept open as long as the stream.
    ///
    /// # Errors
    /// Why the stream could not be opened.
    pub async fn open(link: &PeerLink, kind: StreamKind) -> Result<Self, Error> {
        let calls = Mutex::new(Some(Arc::new(link.open_rpc(kind).await?)));
        let frame = usize::try_from(link.info.limits.max_frame).unwrap_or(usize::MAX);
        Ok(Self { calls, max_call: frame.saturating_sub(HEAD), _link: link.clone() })
    }

    fn calls(&self) -> Option<Arc<RpcClient>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Channel for QuicChannel {
    fn call(&self, body: Bytes) -> BoxFuture<'static, Result<Bytes, ChannelError>> {
        match self.calls() {
            Some(calls) => calls.call(body).map(|answer| answer.map_err(failure)).boxed(),
            None => {
                let closed = ChannelError::NotSent("the link was closed".into());
                futures::future::ready(Err(closed)).boxed()
            }
        }
    }

    fn version(&self) -> u32 {
        self._link.info.version
    }

    fn max_call(&self) -> usize {
        self.max_call
    }

    fn closed(&self) -> BoxFuture<'static, ()> {
        let calls = self.calls();
        async move {
            if let Some(calls) = calls {
                calls.closed().await;
            }
        }
        .boxed()
    }

    fn close(&self) {
        drop(self.calls.lock().unwrap_or_else(PoisonError::into_inner).take());
    }
}

fn failure(error: Error) -> ChannelError {
    match &error {
        Error::NotSent(_) | Error::Overloaded { .. } => ChannelError::NotSent(error.to_string()),
        Error::TooLarge { what: "a call", .. } => ChannelError::NotSent(error.to_string()),
        Error::TooLarge { .. } => ChannelError::ResponseTooLarge(error.to_string()),
        _ => ChannelError::Disconnected(error.to_string()),
    }
}
