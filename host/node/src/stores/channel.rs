//! A stream of store calls as the [`Channel`] that the stores' clients need.

use std::sync::Arc;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use ostraca_store_peer::{Channel, ChannelError};
use ostraca_wire::peer::rpc_client::RpcClient;
use ostraca_wire::peer::{Alpn, PeerLink, StreamKind};

use crate::error::NodeError;

/// Bytes of a frame in addition to its body, rounded up.
const FRAME: usize = 64;

/// Opens the stream for a store's calls.
pub(super) async fn open(link: PeerLink, alpn: Alpn) -> Result<Box<dyn Channel>, NodeError> {
    let kind = match alpn {
        Alpn::Bulk => StreamKind::EntityStore,
        Alpn::Control => StreamKind::ClusterStore,
    };
    let calls = Arc::new(link.open_rpc(kind).await?);
    Ok(Box::new(CallChannel { link, calls }))
}

struct CallChannel {
    link: PeerLink,
    calls: Arc<RpcClient>,
}

impl Channel for CallChannel {
    fn call(&self, body: Bytes) -> BoxFuture<'static, Result<Bytes, ChannelError>> {
        self.calls.call(body).map(|answer| answer.map_err(failure)).boxed()
    }

    fn version(&self) -> u32 {
        self.link.info.version
    }

    fn max_call(&self) -> usize {
        let bounds = &self.link.info.limits;
        let bytes = u64::from(bounds.max_frame).min(bounds.in_flight_request_bytes);
        usize::try_from(bytes).unwrap_or(usize::MAX).saturating_sub(FRAME)
    }

    fn closed(&self) -> BoxFuture<'static, ()> {
        let (calls, link) = (self.calls.clone(), self.link.clone());
        async move {
            tokio::select! {
                () = calls.closed() => {}
                _ = link.closed() => {}
            }
        }
        .boxed()
    }

    fn close(&self) {
        self.link.close();
    }
}

/// Determines whether a call without a response may have been executed. A mistake here would report `not run` although
/// a turn may have run.
pub(super) fn failure(error: ostraca_wire::Error) -> ChannelError {
    use ostraca_wire::Error;
    let why = error.to_string();
    match error {
        Error::NotSent(_) | Error::Overloaded { .. } => ChannelError::NotSent(why),
        Error::TooLarge { what: "a call", .. } => ChannelError::NotSent(why),
        Error::TooLarge { .. } => ChannelError::ResponseTooLarge(why),
        _ => ChannelError::Disconnected(why),
    }
}
