//! The responding half of an RPC stream; [`rpc_client`](super::rpc_client) is the requesting half.
//!
//! Everything runs in the task that calls [`serve_rpc`]: the handler in the order of frames, its futures concurrently.
//! A request is in flight from the time it is read until its response has been handed to QUIC. So nothing is read from
//! a node that does not read its responses.
//!
//! Memory per stream: requests up to their limit plus one frame, 256 KiB plus one frame of responses to be written, and
//! what the handler's futures hold. The handler should not prepare more responses at once than it can afford.

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use prost::Message;
use tokio::time::timeout;

use super::FRAME_OVERHEAD;
use super::PeerInfo;
use crate::close_code::CloseCode;
use crate::error::{Error, decode_error_message};
use crate::framed::{BATCH_BYTES, FrameReader, FrameWriter, LINGER};
use crate::proto::{RpcRequest, RpcResponse};

/// Serves a stream of requests to its end. Calls the handler with each request's tag and body, in the order in which
/// the requests were sent. Before it returns its future, the handler must do what depends on that order. When the
/// stream breaks, unfinished responses are dropped. When the node stops, reads nothing more, and answers what has been
/// accepted.
///
/// # Errors
///
/// [`Error::Violation`] if the peer violated the protocol, else how the stream or connection ended.
pub async fn serve_rpc<H>(
    mut reader: FrameReader,
    mut writer: FrameWriter,
    peer: &PeerInfo,
    handler: H,
) -> Result<(), Error>
where
    H: FnMut(u64, Bytes) -> BoxFuture<'static, Bytes> + Send,
{
    let mut serving = RpcServer {
        peer,
        handler,
        making: FuturesUnordered::new(),
        in_flight: InFlight::default(),
        written: InFlight::default(),
        read_all: false,
    };
    let done = loop {
        match serving.step(&mut reader, &mut writer).await {
            Ok(true) => {}
            Ok(false) => break Ok(()),
            Err(error) => break Err(error),
        }
    };
    match &done {
        Ok(()) => {
            writer.finish();
            // Do not wait for a peer that no longer reads.
            let _ = timeout(LINGER, writer.taken()).await;
        }
        Err(error) => {
            reader.stop(error.close_code());
            writer.reset(error.close_code());
        }
    }
    done
}

/// A number of requests and their bytes.
#[derive(Clone, Copy, Default)]
struct InFlight {
    calls: u32,
    bytes: u64,
}

struct Made {
    tag: u64,
    /// Size of the request.
    bytes: u64,
    answer: Bytes,
}

struct RpcServer<'a, H> {
    peer: &'a PeerInfo,
    handler: H,
    making: FuturesUnordered<BoxFuture<'static, Made>>,
    in_flight: InFlight,
    /// The part of `in_flight` whose responses are in the writer.
    written: InFlight,
    read_all: bool,
}

impl<H> RpcServer<'_, H>
where
    H: FnMut(u64, Bytes) -> BoxFuture<'static, Bytes> + Send,
{
    /// Returns `false` when everything is done.
    async fn step(
        &mut self,
        reader: &mut FrameReader,
        writer: &mut FrameWriter,
    ) -> Result<bool, Error> {
        self.take_calls(reader)?;
        if self.read_all && self.making.is_empty() && writer.is_flushed() {
            return Ok(false);
        }
        let room = writer.unwritten() < BATCH_BYTES;
        let full = self.is_full();
        // While nothing is read, this is how the end of the stream is noticed.
        let unwanted = writer.unwanted();
        // In this order, ready responses go into one write, and written ones free the window before it is checked.
        tokio::select! {
            biased;
            () = self.peer.stopping.cancelled(), if !self.read_all => {
                reader.stop(CloseCode::ShuttingDown);
                self.read_all = true;
            }
            Some(made) = self.making.next(), if room => {
                self.put(made, writer);
                while writer.unwritten() < BATCH_BYTES
                    && let Some(Some(made)) = self.making.next().now_or_never()
                {
                    self.put(made, writer);
                }
            }
            done = writer.write_some(), if !writer.is_flushed() => {
                done?;
                if writer.is_flushed() {
                    self.in_flight.calls -= self.written.calls;
                    self.in_flight.bytes -= self.written.bytes;
                    self.written = InFlight::default();
                }
            }
            more = reader.fill(), if !self.read_all && !full => self.read_all = !more?,
            () = unwanted, if self.read_all || full => {
                return Err(Error::ConnectionLost("the peer closed the response stream".into()));
            }
        }
        Ok(true)
    }

    fn is_full(&self) -> bool {
        let bounds = &self.peer.limits;
        self.in_flight.calls >= bounds.in_flight_requests
            || self.in_flight.bytes >= bounds.in_flight_request_bytes
    }

    fn take_calls(&mut self, reader: &mut FrameReader) -> Result<(), Error> {
        while !self.is_full() {
            let Some(frame) = reader.next_buffered()? else { return Ok(()) };
            let bytes = frame.len() as u64;
            let call = RpcRequest::decode(frame).map_err(|e| {
                Error::violation(
                    CloseCode::InvalidFrame,
                    format!("invalid request: {}", decode_error_message(&e)),
                )
            })?;
            if call.tag == 0 {
                return Err(Error::violation(CloseCode::InvalidFrame, "request without a tag"));
            }
            self.in_flight.calls += 1;
            self.in_flight.bytes += bytes;
            let answer = (self.handler)(call.tag, call.body);
            let tag = call.tag;
            self.making.push(async move { Made { tag, bytes, answer: answer.await } }.boxed());
        }
        Ok(())
    }

    fn put(&mut self, made: Made, writer: &mut FrameWriter) {
        self.written.calls += 1;
        self.written.bytes += made.bytes;
        let Made { tag, answer: body, .. } = made;
        if body.len() + FRAME_OVERHEAD > self.peer.limits.max_frame as usize {
            let too_large = body.len() as u64;
            writer.put(&RpcResponse { tag, body: Bytes::new(), omitted_size: too_large });
        } else {
            writer.put(&RpcResponse { tag, body, omitted_size: 0 });
        }
    }
}
