//! The answering half of a stream of calls; [`calls`](super::calls) is the asking one.
//!
//! Everything runs in the task that calls [`serve_calls`]: the handler in the order of frames, its futures
//! side by side. A call is in flight from its reading until its answer has been handed to QUIC, so a node
//! that does not read its answers is not read either.
//!
//! Memory of a stream: calls of `peer_call_bytes` and one frame, 256 KiB and one frame of answers that wait
//! to be written, and what the handler's futures hold: it should not make more answers at once than it can
//! afford.

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use prost::Message;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::FRAME_OVERHEAD;
use super::PeerInfo;
use crate::close_code::CloseCode;
use crate::error::{Error, decode_error_message};
use crate::framed::{BATCH_BYTES, FrameReader, FrameWriter, LINGER};
use crate::proto::{RpcRequest, RpcResponse};

/// Serves a stream of calls to its end. The handler is called with each call's tag and body, in the order
/// in which they were sent; what must keep that order it does before it returns. What comes from `pushes`
/// is sent as events. When the stream breaks, answers that are being made are dropped; when the node
/// stops, nothing more is read, and what was taken is answered.
///
/// # Errors
///
/// [`Error::Violation`] by what the other side sent, else how the stream or connection ended.
pub async fn serve_rpc<H>(
    mut reader: FrameReader,
    mut writer: FrameWriter,
    peer: &PeerInfo,
    handler: H,
    pushes: mpsc::Receiver<Bytes>,
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
        pushes: Some(pushes),
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
            // Whoever reads nothing more is not waited for.
            let _ = timeout(LINGER, writer.taken()).await;
        }
        Err(error) => {
            reader.stop(error.close_code());
            writer.reset(error.close_code());
        }
    }
    done
}

/// Calls and their bytes.
#[derive(Clone, Copy, Default)]
struct InFlight {
    calls: u32,
    bytes: u64,
}

struct Made {
    tag: u64,
    /// Of the call.
    bytes: u64,
    answer: Bytes,
}

struct RpcServer<'a, H> {
    peer: &'a PeerInfo,
    handler: H,
    making: FuturesUnordered<BoxFuture<'static, Made>>,
    /// In flight.
    in_flight: InFlight,
    /// The part of them whose answers are in the writer.
    written: InFlight,
    read_all: bool,
    /// Until nobody pushes any more.
    pushes: Option<mpsc::Receiver<Bytes>>,
}

impl<H> RpcServer<'_, H>
where
    H: FnMut(u64, Bytes) -> BoxFuture<'static, Bytes> + Send,
{
    /// `false` when all is done.
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
        // While nothing is read, this is how the stream's end is heard of.
        let unwanted = writer.unwanted();
        // In this order answers that are ready go into one write, and the window opens before it is looked at.
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
            push = next(&mut self.pushes), if room => match push {
                Some(body) => writer.put(&RpcResponse { tag: 0, body, omitted_size: 0 }),
                None => self.pushes = None,
            },
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
                return Err(Error::ConnectionLost("nobody waits for the answers any more".into()));
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
                    format!("no call: {}", decode_error_message(&e)),
                )
            })?;
            if call.tag == 0 {
                return Err(Error::violation(CloseCode::InvalidFrame, "a call without a tag"));
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

async fn next(pushes: &mut Option<mpsc::Receiver<Bytes>>) -> Option<Bytes> {
    match pushes {
        Some(pushes) => pushes.recv().await,
        None => std::future::pending().await,
    }
}
