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

use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use prost::Message;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::Bounds;
use crate::code::Code;
use crate::error::Error;
use crate::framed::{FrameReader, FrameWriter};
use crate::proto::{Answer, Call};

/// Bytes that go into one write, about.
pub(super) const BATCH_BYTES: usize = 256 << 10;
/// Bytes of a frame beside the body: two fields' heads and a tag, rounded up.
pub(super) const HEAD: usize = 32;

/// Asks over one stream. When it is dropped, the stream ends, and so do the calls that have no answer.
pub struct Calls {
    shared: Arc<Shared>,
    pushes: Mutex<Option<mpsc::Receiver<Bytes>>>,
    _stop: DropGuard,
}

struct Shared {
    state: Mutex<State>,
    queued: Notify,
    bounds: Bounds,
    ended: CancellationToken,
}

#[derive(Default)]
struct State {
    /// Not handed to the stream yet; they are in `waiting` too.
    queue: VecDeque<Call>,
    waiting: HashMap<u64, Waiting>,
    /// Of all that wait.
    bytes: u64,
    last: u64,
    lost: Option<String>,
}

struct Waiting {
    answer: oneshot::Sender<Result<Bytes, Error>>,
    bytes: u64,
}

impl Calls {
    /// Takes a stream of calls over. Must be called within a tokio runtime: a task of it works until the
    /// stream or this ends; if it should panic, all calls end as lost.
    #[must_use]
    pub fn new(writer: FrameWriter, reader: FrameReader, bounds: &Bounds) -> Self {
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            queued: Notify::new(),
            bounds: *bounds,
            ended: CancellationToken::new(),
        });
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
                None => answered.await.unwrap_or_else(|_| Err(Error::Lost("given up".into()))),
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
        self.shared.ended.cancelled().await;
    }

    /// Whether it is of no more use.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.shared.ended.is_cancelled()
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn queue(
        &self,
        body: Bytes,
        answer: oneshot::Sender<Result<Bytes, Error>>,
    ) -> Result<(), Error> {
        let (bytes, bounds) = (body.len() as u64, &self.bounds);
        if body.len() + HEAD > bounds.frame as usize {
            return Err(too_large("a call", bytes, bounds));
        }
        let mut state = self.state();
        if let Some(why) = &state.lost {
            return Err(Error::NotSent(why.clone()));
        }
        if state.waiting.len() >= bounds.calls as usize {
            let limit = u64::from(bounds.calls);
            return Err(Error::Overloaded { what: "calls", limit, setting: "peer_calls" });
        }
        // One that is larger than the whole bound goes alone.
        if state.bytes > 0 && state.bytes + bytes > bounds.call_bytes {
            return Err(Error::Overloaded {
                what: "bytes of calls",
                limit: bounds.call_bytes,
                setting: "peer_call_bytes",
            });
        }
        state.last += 1;
        let tag = state.last;
        state.bytes += bytes;
        state.waiting.insert(tag, Waiting { answer, bytes });
        state.queue.push_back(Call { tag, body });
        drop(state);
        self.queued.notify_one();
        Ok(())
    }

    fn answer(&self, answer: Answer) -> Result<(), Error> {
        let mut state = self.state();
        let Some(waiting) = state.waiting.remove(&answer.tag) else {
            let text = format!("an answer to call {}, which waits for none", answer.tag);
            return Err(Error::violation(Code::UnexpectedFrame, text));
        };
        state.bytes -= waiting.bytes;
        drop(state);
        let result = match answer.too_large {
            0 => Ok(answer.body),
            bytes => Err(too_large("an answer", bytes, &self.bounds)),
        };
        // Whoever does not wait any more does not need it.
        let _ = waiting.answer.send(result);
        Ok(())
    }

    /// Ends all calls. Only the first reason counts.
    fn lose(&self, why: &str) {
        let (queue, mut waiting) = {
            let mut state = self.state();
            state.lost.get_or_insert_with(|| why.to_owned());
            (std::mem::take(&mut state.queue), std::mem::take(&mut state.waiting))
        };
        for call in queue {
            if let Some(waiting) = waiting.remove(&call.tag) {
                let _ = waiting.answer.send(Err(Error::NotSent(why.to_owned())));
            }
        }
        for waiting in waiting.into_values() {
            let _ = waiting.answer.send(Err(Error::Lost(why.to_owned())));
        }
        self.ended.cancel();
    }
}

fn too_large(what: &'static str, bytes: u64, bounds: &Bounds) -> Error {
    let limit = u64::from(bounds.frame);
    Error::TooLarge { what, bytes, limit, setting: "peer_max_frame" }
}

/// What works on the stream.
struct Driver {
    shared: Arc<Shared>,
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
            () = stop.cancelled() => (Code::Done, "this side closed the stream".to_owned()),
            error = self.work() => match &error {
                Error::Violation { code, .. } => (*code, error.to_string()),
                _ => (Code::Done, error.to_string()),
            }
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
        self.take_answers()?;
        self.put_calls();
        let full = self.held.is_some();
        tokio::select! {
            () = room(self.pushes.as_ref()), if full => {
                if let Some(event) = self.held.take() {
                    self.push(event);
                }
            }
            () = self.shared.queued.notified(), if self.writer.unwritten() < BATCH_BYTES => {}
            done = self.writer.write_some(), if !self.writer.is_flushed() => done?,
            more = self.reader.fill(), if !full => if !more? {
                return Err(Error::Lost("the other side ended the stream".into()));
            },
        }
        Ok(())
    }

    fn put_calls(&mut self) {
        let mut state = self.shared.state();
        while self.writer.unwritten() < BATCH_BYTES {
            let Some(call) = state.queue.pop_front() else { return };
            self.writer.put(&call);
        }
    }

    fn take_answers(&mut self) -> Result<(), Error> {
        while self.held.is_none() {
            let Some(frame) = self.reader.buffered()? else { return Ok(()) };
            let answer = Answer::decode(frame)
                .map_err(|e| Error::violation(Code::BadFrame, format!("no answer: {e}")))?;
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
