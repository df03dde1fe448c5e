//! The requesting half of an RPC stream: opaque bodies in both directions, and many requests in flight.
//!
//! ```text
//! let client = RpcClient::new(writer, reader, &bounds);  // from PeerLink::open, within a tokio runtime
//! let response = client.call(bytes);                     // queued now; frames keep the order of calls
//! let response: Result<Bytes, Error> = response.await;   // responses come in any order
//! ```
//!
//! The error of a request says what is known about it. After [`Error::NotSent`], [`Error::Overloaded`] and
//! [`Error::TooLarge`] for the *request*, the peer never receives it. After [`Error::ConnectionLost`], it may have been
//! executed, or may still be. After [`Error::TooLarge`] for the *response*, it has been executed. Nothing is ever sent
//! twice.
//!
//! [`NegotiatedLimits`] bounds the unanswered requests and their bytes, and the size of a frame.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use prost::Message;
use tokio::sync::oneshot;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::pending::{PendingLimits, PendingRequests};
use super::{FRAME_OVERHEAD, NegotiatedLimits};
use crate::close_code::CloseCode;
use crate::error::{Error, decode_error_message};
use crate::framed::{BATCH_BYTES, FrameReader, FrameWriter};
use crate::proto::{RpcRequest, RpcResponse};

type ResponseSender = oneshot::Sender<Result<Bytes, Error>>;

/// Sends requests over one stream. Dropping it ends the stream and all unanswered requests.
pub struct RpcClient {
    shared: Arc<Inner>,
    _stop: DropGuard,
}

struct Inner {
    pending: PendingRequests<Bytes, ResponseSender>,
    last: AtomicU64,
    /// The largest frame that the peer accepts, in bytes.
    frame: u32,
}

impl RpcClient {
    /// Sends requests over a stream. Must be called within a tokio runtime: one of its tasks drives the stream
    /// until the stream ends or this is dropped. If the task panics, all requests end as lost.
    #[must_use]
    pub fn new(writer: FrameWriter, reader: FrameReader, bounds: &NegotiatedLimits) -> Self {
        let most = PendingLimits {
            count: (bounds.in_flight_requests, "calls", "peers.in-flight-requests"),
            bytes: (
                bounds.in_flight_request_bytes,
                "bytes of calls",
                "peers.in-flight-request-bytes",
            ),
        };
        let pending = PendingRequests::new(most);
        let shared = Arc::new(Inner { pending, last: AtomicU64::new(0), frame: bounds.max_frame });
        let stop = CancellationToken::new();
        let driver = Driver { shared: Arc::clone(&shared), writer, reader };
        tokio::spawn(driver.run(stop.clone()));
        Self { shared, _stop: stop.drop_guard() }
    }

    /// Sends a request. When this returns, the request is queued behind earlier ones. The future only waits for the
    /// response; dropping it does not cancel the request.
    ///
    /// # Errors
    ///
    /// The future returns the errors that the module's documentation describes.
    pub fn call(
        &self,
        body: Bytes,
    ) -> impl Future<Output = Result<Bytes, Error>> + Send + 'static + use<> {
        let (answer, answered) = oneshot::channel();
        let refused = self.shared.queue(body, answer).err();
        async move {
            match refused {
                Some(error) => Err(error),
                None => {
                    answered.await.unwrap_or_else(|_| Err(Error::ConnectionLost("given up".into())))
                }
            }
        }
    }

    /// Waits until the stream and all requests have ended.
    pub async fn closed(&self) {
        self.shared.pending.ended().cancelled().await;
    }

    /// Whether the stream has ended.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.shared.pending.ended().is_cancelled()
    }
}

impl Inner {
    fn queue(&self, body: Bytes, answer: ResponseSender) -> Result<(), Error> {
        let bytes = body.len() as u64;
        if body.len() + FRAME_OVERHEAD > self.frame as usize {
            return Err(self.too_large("a call", bytes));
        }
        self.pending.queue(|pending| {
            // Under the lock, so that tags ascend in the order of frames.
            let tag = self.last.fetch_add(1, Ordering::Relaxed) + 1;
            pending.check(tag, bytes)?;
            pending.put(tag, bytes, body, answer);
            Ok(())
        })
    }

    fn answer(&self, answer: RpcResponse) -> Result<(), Error> {
        let result = match answer.omitted_size {
            0 => Ok(answer.body),
            bytes => Err(self.too_large("an answer", bytes)),
        };
        let give = |_, asker: ResponseSender, result| {
            // A caller that no longer waits does not need the response.
            let _ = asker.send(result);
        };
        self.pending.complete(std::iter::once((answer.tag, result)), give).map_err(|tag| {
            let text = format!("response with unknown tag {tag}");
            Error::violation(CloseCode::UnexpectedFrame, text)
        })
    }

    fn lose(&self, why: &str) {
        let unanswered = self.pending.lose(why);
        for (_, asker) in unanswered.not_sent {
            let _ = asker.send(Err(Error::NotSent(why.to_owned())));
        }
        for (_, asker) in unanswered.in_doubt {
            let _ = asker.send(Err(Error::ConnectionLost(why.to_owned())));
        }
        self.pending.end();
    }

    fn too_large(&self, what: &'static str, bytes: u64) -> Error {
        let limit = u64::from(self.frame);
        Error::TooLarge { what, bytes, limit, setting: "peers.max-frame" }
    }
}

/// Drives the stream.
struct Driver {
    shared: Arc<Inner>,
    writer: FrameWriter,
    reader: FrameReader,
}

impl Driver {
    async fn run(mut self, stop: CancellationToken) {
        let (code, why) = tokio::select! {
            // Checked first, so that nothing queued is sent after this side has closed the stream.
            biased;
            () = stop.cancelled() => (CloseCode::Done, "this side closed the stream".to_owned()),
            error = self.work() => (error.close_code(), error.to_string()),
        };
        self.reader.stop(code);
        self.writer.reset(code);
        self.shared.lose(&why);
    }

    async fn work(&mut self) -> Error {
        loop {
            if let Err(error) = self.step().await {
                return error;
            }
        }
    }

    async fn step(&mut self) -> Result<(), Error> {
        self.read_responses()?;
        self.put_calls();
        tokio::select! {
            () = self.shared.pending.queued(), if self.writer.unwritten() < BATCH_BYTES => {}
            done = self.writer.write_some(), if !self.writer.is_flushed() => done?,
            more = self.reader.fill() => if !more? {
                return Err(Error::ConnectionLost("the peer closed the stream".into()));
            },
        }
        Ok(())
    }

    fn put_calls(&mut self) {
        if self.writer.unwritten() < BATCH_BYTES {
            self.shared.pending.send(|tag, body| {
                self.writer.put(&RpcRequest { tag, body });
                self.writer.unwritten() < BATCH_BYTES
            });
        }
    }

    fn read_responses(&mut self) -> Result<(), Error> {
        while let Some(frame) = self.reader.next_buffered()? {
            let answer = RpcResponse::decode(frame).map_err(|e| {
                Error::violation(
                    CloseCode::InvalidFrame,
                    format!("invalid response: {}", decode_error_message(&e)),
                )
            })?;
            self.shared.answer(answer)?;
        }
        Ok(())
    }
}

impl Drop for Driver {
    /// Also ends the requests if the runtime shuts down or the task panics.
    fn drop(&mut self) {
        self.shared.lose("stream task ended");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_response_to_no_request_violates_the_protocol() {
        let most = PendingLimits { count: (1, "calls", "c"), bytes: (1, "bytes of calls", "b") };
        let pending = PendingRequests::new(most);
        let inner = Inner { pending, last: AtomicU64::new(0), frame: 1 };
        for tag in [0, 1] {
            let response = RpcResponse { tag, body: Bytes::new(), omitted_size: 0 };
            let error = inner.answer(response).expect_err("no request has the tag");
            assert_eq!(error.close_code(), CloseCode::UnexpectedFrame);
        }
    }
}
