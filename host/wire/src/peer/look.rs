//! What another node has in memory, asked for operators. A question is one call, on a stream of its own.

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use prost::Message;
use tokio::sync::mpsc;

use super::serve::serve_calls;
use super::{PeerInfo, PeerLink, StreamKind};
use crate::code::Code;
use crate::error::{Error, unreadable};
use crate::framed::{FrameReader, FrameWriter};
use crate::proto::{Look, Looked};

/// Asks a node. Waits for its answer as long as the connection stands.
///
/// # Errors
///
/// How the stream ended without an answer; [`Error::Violation`] if the answer is none to this question.
pub async fn ask(link: &PeerLink, look: &Look) -> Result<Looked, Error> {
    let calls = link.calls(StreamKind::Look).await?;
    let answer = calls.call(look.encode_to_vec().into()).await?;
    let bad = |text: String| Error::violation(Code::BadFrame, text);
    let looked = Looked::decode(answer)
        .map_err(|error| bad(format!("no answer: {}", unreadable(&error))))?;
    let fits = |(asked, seen): (&crate::proto::LookShard, &crate::proto::LookedShard)| {
        !seen.held || seen.entities.len() == asked.entities.len()
    };
    let whole = looked.shards.len() == look.shards.len()
        && looked.types.len() == look.types.len()
        && look.shards.iter().zip(&looked.shards).all(fits);
    match whole {
        true => Ok(looked),
        false => Err(bad("it starts or stops, or does not know the question".into())),
    }
}

/// Serves a stream of questions to its end. What cannot be read, or has no answer, is answered with nothing.
///
/// # Errors
///
/// As [`serve_calls`].
pub async fn serve<H>(
    reader: FrameReader,
    writer: FrameWriter,
    peer: &PeerInfo,
    look: H,
) -> Result<(), Error>
where
    H: Fn(Look) -> BoxFuture<'static, Option<Looked>> + Send,
{
    // Nothing is pushed.
    let (_, pushes) = mpsc::channel(1);
    let answer = move |_, body: Bytes| {
        let looking = Look::decode(body).ok().map(&look);
        async move {
            let looked = match looking {
                Some(looking) => looking.await,
                None => None,
            };
            looked.map_or_else(Bytes::new, |looked| looked.encode_to_vec().into())
        }
        .boxed()
    };
    serve_calls(reader, writer, peer, answer, pushes).await
}
