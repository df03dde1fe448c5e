//! The asks of a turn: messages to other entities, for whose answers the turn waits (R20).

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::oneshot;

use crate::InstanceLimits;
use crate::trap::HostTrap;

/// An ask that a turn starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuestAsk {
    /// The target's type; the manifest grants it.
    pub entity_type: Arc<str>,
    /// The target's id: 1 to 512 bytes.
    pub id: Arc<str>,
    /// 1 to 128 bytes.
    pub method: Arc<str>,
    /// The arguments.
    pub body: Bytes,
    /// The body's content type.
    pub content_type: Arc<str>,
    /// How long the turn waits for the answer.
    pub timeout: Duration,
}

impl GuestAsk {
    /// Size of the method and body in bytes.
    fn bytes(&self) -> u64 {
        (self.method.len() + self.body.len()) as u64
    }
}

/// The answer to an ask.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AskAnswer {
    /// The method's result.
    Result(Bytes),
    /// The target refused the message.
    Application {
        /// The code that the target's author chose.
        code: String,
        /// A message for people.
        message: String,
    },
    /// The target refused the ask, and no copy from this attempt of the turn will run.
    NotRun {
        /// A stable code: see `docs/errors.md`.
        code: String,
        /// What happened.
        message: String,
    },
    /// The ask may have run.
    Unknown {
        /// What happened.
        message: String,
    },
}

impl AskAnswer {
    fn bytes(&self) -> u64 {
        let bytes = match self {
            Self::Result(body) => body.len(),
            Self::Application { code, message } | Self::NotRun { code, message } => {
                code.len() + message.len()
            }
            Self::Unknown { message } => message.len(),
        };
        bytes as u64
    }
}

/// Takes the asks of one turn.
pub trait AskSink: Send + Sync + fmt::Debug {
    /// Sends an ask. Places are numbered from 0 in the order in which a turn starts its asks and HTTP calls. If `reply`
    /// is dropped, the turn fails with the code `interrupted`.
    fn ask(&self, place: u32, ask: GuestAsk, reply: AskReply);
}

/// The right to answer one ask.
#[derive(Debug)]
pub struct AskReply {
    answer: oneshot::Sender<Result<AskAnswer, u64>>,
    held: Arc<AtomicU64>,
    limit: u64,
}

impl AskReply {
    /// Passes the answer to the turn, if the turn still waits. An answer that exceeds the turn's limit is discarded,
    /// and the turn fails.
    pub fn answer(self, answer: AskAnswer) {
        let bytes = answer.bytes();
        let would = self.held.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
        let result = if would > self.limit { Err(would) } else { Ok(answer) };
        // The turn may have ended.
        let _ = self.answer.send(result);
    }
}

/// A guest's handle of a started ask: the host type of the WIT's `pending-ask`.
pub(crate) struct PendingAsk;

enum Waiting {
    Open(oneshot::Receiver<Result<AskAnswer, u64>>),
    Answered(AskAnswer),
}

/// The asks of the current turn.
#[derive(Default)]
pub(crate) struct TurnAsks {
    sink: Option<Arc<dyn AskSink>>,
    started: u32,
    /// Size in bytes of the methods and bodies of the turn's asks, and of their answers.
    held: Arc<AtomicU64>,
    /// By handle. Later turns do not reuse handles.
    asks: BTreeMap<u32, Waiting>,
    next_handle: u32,
}

impl TurnAsks {
    /// Begins a turn. Without a sink, the turn cannot ask.
    pub(crate) fn begin(&mut self, sink: Option<Arc<dyn AskSink>>) {
        self.end();
        self.sink = sink;
    }

    /// Ends the turn. Handles that the guest keeps become invalid.
    pub(crate) fn end(&mut self) {
        if self.sink.is_some() {
            let next_handle = self.next_handle;
            *self = Self { next_handle, ..Self::default() };
        }
    }

    pub(crate) fn check_allowed(&self) -> Result<(), HostTrap> {
        if self.sink.is_none() { Err(HostTrap::AskOutsideTurn) } else { Ok(()) }
    }

    /// Starts an ask at this place of the turn, and returns its handle. Fails if the ask exceeds a limit.
    pub(crate) fn start(
        &mut self,
        place: u32,
        ask: GuestAsk,
        limits: &InstanceLimits,
    ) -> Result<u32, HostTrap> {
        let Some(sink) = &self.sink else { return Err(HostTrap::AskOutsideTurn) };
        if u64::from(self.started) >= limits.asks {
            return Err(HostTrap::TooManyAsks { limit: limits.asks });
        }
        let would = self.held.fetch_add(ask.bytes(), Ordering::Relaxed) + ask.bytes();
        if would > limits.ask_bytes {
            return Err(HostTrap::AsksTooLarge { would, limit: limits.ask_bytes });
        }
        let (answer, receiver) = oneshot::channel();
        let reply = AskReply { answer, held: self.held.clone(), limit: limits.ask_bytes };
        sink.ask(place, ask, reply);
        self.started += 1;
        let handle = self.next_handle;
        self.next_handle = handle.wrapping_add(1);
        self.asks.insert(handle, Waiting::Open(receiver));
        Ok(handle)
    }

    pub(crate) fn forget(&mut self, handle: u32) {
        self.asks.remove(&handle);
    }

    /// Polls an ask. Once it is answered, every later poll returns the same answer.
    pub(crate) fn poll(
        &mut self,
        handle: u32,
        limits: &InstanceLimits,
        context: &mut Context<'_>,
    ) -> Poll<Result<AskAnswer, HostTrap>> {
        let Some(waiting) = self.asks.get_mut(&handle) else {
            let why = "asks was called with a pending ask of an earlier turn";
            return Poll::Ready(Err(HostTrap::InvalidHostCall(why.into())));
        };
        let received = match waiting {
            Waiting::Answered(answer) => return Poll::Ready(Ok(answer.clone())),
            Waiting::Open(receiver) => Pin::new(receiver).poll(context),
        };
        received.map(|received| match received {
            Ok(Ok(answer)) => {
                *waiting = Waiting::Answered(answer.clone());
                Ok(answer)
            }
            Ok(Err(would)) => Err(HostTrap::AsksTooLarge { would, limit: limits.ask_bytes }),
            // The worker has abandoned the turn.
            Err(_) => Err(HostTrap::Interrupted),
        })
    }
}
