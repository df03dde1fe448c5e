//! The asking half of a stream of calls: bytes go, bytes come back, many at a time.
//!
//! ```text
//! let calls = Calls::new(writer, reader, &bounds);    // of PeerLink::open, within a tokio runtime
//! let answer = calls.call(bytes);                     // is queued now; frames keep the order of calls
//! let answer: Result<Bytes, Error> = answer.await;    // answers come in any order
//! let mut pushes: mpsc::Receiver<Bytes> = calls.pushes();
//! ```
//!
//! How a call fails says what is known of it. [`Error::NotSent`], [`Error::Overloaded`] and a call that is
//! [`Error::TooLarge`]: the other side has not heard of it, and never will. [`Error::Lost`]: it may have been
//! done, or may still be. An *answer* that is [`Error::TooLarge`]: it was done. Nothing is ever sent twice.
//!
//! Bounds: `peer_calls` and `peer_call_bytes` without an answer, `peer_max_frame` a frame, `peer_pushes`
//! events that nobody has taken yet. Beyond the last one the stream is not read, answers included: whoever
//! has asked for events must not wait for an answer instead of taking them.

use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use prost::Message;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::pending::{PendingLimits, PendingRequests};
use super::{FRAME_OVERHEAD, NegotiatedLimits};
use crate::close_code::CloseCode;
use crate::error::{Error, decode_error_message};
use crate::framed::{BATCH_BYTES, FrameReader, FrameWriter};
use crate::proto::{RpcRequest, RpcResponse};

type ResponseSender = oneshot::Sender<Result<Bytes, Error>>;

/// Asks over one stream. When it is dropped, the stream ends, and so do the calls that have no answer.
pub struct RpcClient {
    shared: Arc<Inner>,
    pushes: Mutex<Option<mpsc::Receiver<Bytes>>>,
    _stop: DropGuard,
}

struct Inner {
    pending: PendingRequests<Bytes, ResponseSender>,
    last: AtomicU64,
    /// Bytes of a frame that the other side takes.
    frame: u32,
}

impl RpcClient {
    /// Takes a stream of calls over. Must be called within a tokio runtime: a task of it works until the
    /// stream or this ends; if it should panic, all calls end as lost.
    #[must_use]
    pub fn new(writer: FrameWriter, reader: FrameReader, bounds: &NegotiatedLimits) -> Self {
        let most = PendingLimits {
            count: (bounds.in_flight_requests, "calls", "peer_calls"),
            bytes: (bounds.in_flight_request_bytes, "bytes of calls", "peer_call_bytes"),
        };
        let pending = PendingRequests::new(most);
        let shared = Arc::new(Inner { pending, last: AtomicU64::new(0), frame: bounds.max_frame });
        let (sender, pushes) = mpsc::channel(bounds.pushes.max(1));
        let stop = CancellationToken::new();
        let driver = Driver {
            shared: Arc::clone(&shared),
            writer,
            reader,
            pushes: Some(sender),
            held: None,
        };
        tokio::spawn(driver.run(stop.clone()));
        Self { shared, pushes: Mutex::new(Some(pushes)), _stop: stop.drop_guard() }
    }

    /// Asks. The call is queued when this returns, behind those before it; the future only waits for the
    /// answer, and may be dropped without taking the call back.
    ///
    /// # Errors
    ///
    /// The future's: see the module.
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

    /// What the other side says without having been asked. There is one receiver: a second one is at its
    /// end. When it is dropped, events are read and thrown away.
    #[must_use]
    pub fn pushes(&self) -> mpsc::Receiver<Bytes> {
        let first = self.pushes.lock().unwrap_or_else(PoisonError::into_inner).take();
        first.unwrap_or_else(|| mpsc::channel(1).1)
    }

    /// Waits until the stream is of no more use. All calls have ended then.
    pub async fn closed(&self) {
        self.shared.pending.ended().cancelled().await;
    }

    /// Whether it is of no more use.
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
            // Within the lock, so that tags rise in the order of frames.
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
            // Whoever does not wait any more does not need it.
            let _ = asker.send(result);
        };
        self.pending.complete(std::iter::once((answer.tag, result)), give).map_err(|tag| {
            let text = format!("an answer to call {tag}, which waits for none");
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
        Error::TooLarge { what, bytes, limit, setting: "peer_max_frame" }
    }
}

/// What works on the stream.
struct Driver {
    shared: Arc<Inner>,
    writer: FrameWriter,
    reader: FrameReader,
    /// Until nobody wants events any more.
    pushes: Option<mpsc::Sender<Bytes>>,
    /// An event for which there is no room.
    held: Option<Bytes>,
}

impl Driver {
    async fn run(mut self, stop: CancellationToken) {
        let (code, why) = tokio::select! {
            // First, so that what is queued when this side gives up is not sent any more.
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
        let full = self.held.is_some();
        tokio::select! {
            () = room(self.pushes.as_ref()), if full => {
                if let Some(event) = self.held.take() {
                    self.push(event);
                }
            }
            () = self.shared.pending.queued(), if self.writer.unwritten() < BATCH_BYTES => {}
            done = self.writer.write_some(), if !self.writer.is_flushed() => done?,
            more = self.reader.fill(), if !full => if !more? {
                return Err(Error::ConnectionLost("the other side ended the stream".into()));
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
        while self.held.is_none() {
            let Some(frame) = self.reader.next_buffered()? else { return Ok(()) };
            let answer = RpcResponse::decode(frame).map_err(|e| {
                Error::violation(
                    CloseCode::InvalidFrame,
                    format!("no answer: {}", decode_error_message(&e)),
                )
            })?;
            if answer.tag != 0 {
                self.shared.answer(answer)?;
                continue;
            }
            self.push(answer.body);
        }
        Ok(())
    }

    fn push(&mut self, event: Bytes) {
        match self.pushes.as_ref().map(|pushes| pushes.try_send(event)) {
            Some(Err(TrySendError::Full(event))) => self.held = Some(event),
            Some(Err(TrySendError::Closed(_))) => self.pushes = None,
            Some(Ok(())) | None => {}
        }
    }
}

impl Drop for Driver {
    /// A runtime that ends, or a panic, ends the calls as well.
    fn drop(&mut self) {
        self.shared.lose("what worked on the stream has ended");
    }
}

/// Waits until there is room for an event, or nobody wants one.
async fn room(pushes: Option<&mpsc::Sender<Bytes>>) {
    if let Some(pushes) = pushes {
        // The place is taken right after, by the only sender there is.
        let _ = pushes.reserve().await;
    }
}
