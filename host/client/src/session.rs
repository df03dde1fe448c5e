//! What an application holds: sessions, and calls that are on their way.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use ostraca_core::ids::Entity;
use ostraca_wire::problem;
use ostraca_wire::proto::{Envelope, Kind};
use tokio::sync::{Notify, oneshot};

use crate::call::{Answer, CallError, MessageId, SessionId};
use crate::ledger::{Intake, Message, Refused};
use crate::stamp::ClusterClock;

/// What a call may say beside its message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// How long the caller waits (R22). Default 10 s.
    pub deadline: Duration,
    /// Command, query, or as the method declares it (the default).
    pub kind: Kind,
    /// What the body is. Default `application/json`.
    pub content_type: String,
    /// W3C trace context; default none.
    pub traceparent: String,
    /// W3C trace context; default none.
    pub tracestate: String,
    /// Sends again what was sent under this id of the session, with the same target, method and body, however long
    /// ago: it is answered with the recorded outcome, and run only if it never was. If the entity has forgotten the
    /// session since, it is told as unknown, with `too-old`. Default: a new message.
    pub again: Option<MessageId>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            deadline: Duration::from_secs(10),
            kind: Kind::Unspecified,
            content_type: "application/json".into(),
            traceparent: String::new(),
            tracestate: String::new(),
            again: None,
        }
    }
}

/// A sender's series of messages (R17). Cheap to clone; all clones are the same session. Messages go
/// out in the order of the calls, whether or not their futures are polled, and those to one entity
/// run in that order. When the last clone is dropped, what was called still goes out.
#[derive(Clone)]
pub struct Session {
    handle: Arc<Handle>,
}

struct Handle {
    shared: Arc<Shared>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.inbox().closed = true;
        self.shared.called.notify_one();
    }
}

impl Session {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { handle: Arc::new(Handle { shared }) }
    }

    /// Its id. Keep it, and [`Session::next_sequence`], to go on with the session in another process.
    #[must_use]
    pub fn id(&self) -> SessionId {
        self.handle.shared.id
    }

    /// The sequence that the next message gets.
    #[must_use]
    pub fn next_sequence(&self) -> u64 {
        self.handle.shared.inbox().intake.next_sequence()
    }

    /// Sends a command; a method that is a query is refused.
    pub fn command(&self, entity: &Entity, method: &str, body: impl Into<Bytes>) -> Call {
        let options = Options { kind: Kind::Command, ..Options::default() };
        self.send(entity, method, body, &options)
    }

    /// Sends a query; a method that is a command is refused.
    pub fn query(&self, entity: &Entity, method: &str, body: impl Into<Bytes>) -> Call {
        let options = Options { kind: Kind::Query, ..Options::default() };
        self.send(entity, method, body, &options)
    }

    /// Sends a message of the kind that its method declares.
    pub fn call(&self, entity: &Entity, method: &str, body: impl Into<Bytes>) -> Call {
        self.send(entity, method, body, &Options::default())
    }

    /// Sends a message. It is on its way when this returns; the future only waits for the outcome.
    pub fn send(
        &self,
        entity: &Entity,
        method: &str,
        body: impl Into<Bytes>,
        options: &Options,
    ) -> Call {
        let shared = &self.handle.shared;
        let called = Instant::now();
        let body = body.into();
        let size = body.len();
        let mut message = Message {
            entity: entity.clone(),
            envelope: Envelope {
                namespace: shared.namespace.clone(),
                r#type: entity.entity_type.to_string(),
                id: entity.id.to_string(),
                kind: options.kind.into(),
                traceparent: options.traceparent.clone(),
                tracestate: options.tracestate.clone(),
                content_type: options.content_type.clone(),
                method: method.into(),
                body,
                ..Envelope::default()
            },
            called,
            created: 0,
            // A deadline beyond what the clock can say is none to speak of: a year.
            deadline: called
                .checked_add(options.deadline)
                .unwrap_or(called + Duration::from_secs(31_536_000)),
            again: options.again.is_some(),
        };
        let (waiter, outcome) = oneshot::channel();
        let mut inbox = shared.inbox();
        let id = match inbox.intake.take(options.again, shared.clock.now(), size) {
            Ok(id) => id,
            Err(Refused { id, why }) => {
                drop(inbox);
                // The receiver is in our hands: it cannot be gone.
                let _ = waiter.send(Err(CallError::not_run(id, *why)));
                return Call { id, outcome };
            }
        };
        let sequence = id.sequence;
        message.created = id.created;
        let first = inbox.new.is_empty();
        inbox.new.push_back(New { sequence, message, waiter: Waiter { outcome: waiter, size } });
        drop(inbox);
        if first {
            shared.called.notify_one();
        }
        Call { id, outcome }
    }
}

/// A message on its way; a future of its outcome. Dropping it is fine: the message is not taken back,
/// and counts as unresolved until its reply or its deadline.
#[derive(Debug)]
#[must_use = "the outcome says whether the message has run"]
pub struct Call {
    id: MessageId,
    outcome: oneshot::Receiver<Result<Answer, CallError>>,
}

impl Call {
    /// The message's id: with it the message can be sent again, by another process too.
    #[must_use]
    pub fn id(&self) -> MessageId {
        self.id
    }
}

impl Future for Call {
    type Output = Result<Answer, CallError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.outcome).poll(context).map(|outcome| match outcome {
            Ok(outcome) => outcome,
            // The session's task is gone, with the runtime that it was on.
            Err(_) => {
                Err(CallError::unknown(self.id, problem("client-closed", "the client is gone")))
            }
        })
    }
}

/// What a session's handles and its task share.
pub(crate) struct Shared {
    pub(crate) id: SessionId,
    pub(crate) namespace: String,
    pub(crate) clock: Arc<ClusterClock>,
    inbox: Mutex<Inbox>,
    /// Something is in the inbox, or it was closed.
    pub(crate) called: Notify,
}

pub(crate) struct Inbox {
    pub(crate) intake: Intake,
    pub(crate) new: VecDeque<New>,
    /// No handle is left.
    pub(crate) closed: bool,
}

pub(crate) struct New {
    pub(crate) sequence: u64,
    pub(crate) message: Message,
    pub(crate) waiter: Waiter,
}

pub(crate) struct Waiter {
    pub(crate) outcome: oneshot::Sender<Result<Answer, CallError>>,
    pub(crate) size: usize,
}

impl Shared {
    pub(crate) fn new(
        id: SessionId,
        next: u64,
        namespace: String,
        clock: Arc<ClusterClock>,
    ) -> Self {
        let intake = Intake::new(id, next);
        let inbox = Inbox { intake, new: VecDeque::new(), closed: false };
        Self { id, namespace, clock, inbox: Mutex::new(inbox), called: Notify::new() }
    }

    pub(crate) fn inbox(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn release(&self, messages: usize, bytes: usize) {
        self.inbox().intake.release(messages, bytes);
    }
}
