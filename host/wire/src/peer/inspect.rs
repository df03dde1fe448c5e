//! Inspects the entities in another node's memory, for operators. An inspection is one request, on its own stream.

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use prost::Message;

use super::rpc_server::serve_rpc;
use super::{PeerInfo, PeerLink, StreamKind};
use crate::close_code::CloseCode;
use crate::error::{Error, decode_error_message};
use crate::framed::{FrameReader, FrameWriter};
use crate::proto::{PeerInspectRequest, PeerInspectResponse};

/// Sends a request to a node, and waits for the response as long as the connection lasts.
///
/// # Errors
///
/// How the stream ended without a response; [`Error::Violation`] if the response does not match the request.
pub async fn request(
    link: &PeerLink,
    request: &PeerInspectRequest,
) -> Result<PeerInspectResponse, Error> {
    let calls = link.open_rpc(StreamKind::Inspect).await?;
    let answer = calls.call(request.encode_to_vec().into()).await?;
    let bad = |text: String| Error::violation(CloseCode::InvalidFrame, text);
    let response = PeerInspectResponse::decode(answer)
        .map_err(|error| bad(format!("invalid response: {}", decode_error_message(&error))))?;
    let fits = |(asked, seen): (&crate::proto::InspectShard, &crate::proto::InspectedShard)| {
        !seen.held || seen.entities.len() == asked.entities.len()
    };
    let whole = response.shards.len() == request.shards.len()
        && response.types.len() == request.types.len()
        && request.shards.iter().zip(&response.shards).all(fits);
    match whole {
        true => Ok(response),
        false => {
            Err(bad("the node is starting or stopping, or does not support this request".into()))
        }
    }
}

/// Serves a stream of inspections to its end. A request that cannot be decoded, or has no result, gets an empty
/// response.
///
/// # Errors
///
/// As [`serve_rpc`].
pub async fn serve<H>(
    reader: FrameReader,
    writer: FrameWriter,
    peer: &PeerInfo,
    request: H,
) -> Result<(), Error>
where
    H: Fn(PeerInspectRequest) -> BoxFuture<'static, Option<PeerInspectResponse>> + Send,
{
    let answer = move |_, body: Bytes| {
        let pending = PeerInspectRequest::decode(body).ok().map(&request);
        async move {
            let response = match pending {
                Some(pending) => pending.await,
                None => None,
            };
            response.map_or_else(Bytes::new, |response| response.encode_to_vec().into())
        }
        .boxed()
    };
    serve_rpc(reader, writer, peer, answer).await
}
