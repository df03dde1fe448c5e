//! Inspecting the entities in another node's memory, for operators. An inspection is one request, on a stream
//! of its own.

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

/// Sends the request to a node, and waits for the response as long as the connection lasts.
///
/// # Errors
///
/// How the stream ended without a response; [`Error::Violation`] if the response does not match the request.
pub async fn request(
    link: &PeerLink,
    look: &PeerInspectRequest,
) -> Result<PeerInspectResponse, Error> {
    let calls = link.open_rpc(StreamKind::Inspect).await?;
    let answer = calls.call(look.encode_to_vec().into()).await?;
    let bad = |text: String| Error::violation(CloseCode::InvalidFrame, text);
    let looked = PeerInspectResponse::decode(answer)
        .map_err(|error| bad(format!("invalid response: {}", decode_error_message(&error))))?;
    let fits = |(asked, seen): (&crate::proto::InspectShard, &crate::proto::InspectedShard)| {
        !seen.held || seen.entities.len() == asked.entities.len()
    };
    let whole = looked.shards.len() == look.shards.len()
        && looked.types.len() == look.types.len()
        && look.shards.iter().zip(&looked.shards).all(fits);
    match whole {
        true => Ok(looked),
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
    look: H,
) -> Result<(), Error>
where
    H: Fn(PeerInspectRequest) -> BoxFuture<'static, Option<PeerInspectResponse>> + Send,
{
    let answer = move |_, body: Bytes| {
        let looking = PeerInspectRequest::decode(body).ok().map(&look);
        async move {
            let looked = match looking {
                Some(looking) => looking.await,
                None => None,
            };
            looked.map_or_else(Bytes::new, |looked| looked.encode_to_vec().into())
        }
        .boxed()
    };
    serve_rpc(reader, writer, peer, answer).await
}
