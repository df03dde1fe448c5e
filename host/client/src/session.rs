//! What an application holds: sessions, and calls that are on their way.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use ostraca_sharding::ids::Entity;
use ostraca_wire::problem;
use ostraca_wire::proto::{Envelope, Kind};
use tokio::sync::{Notify, oneshot};

use crate::call::{Answer, CallError, MessageId, SessionId};
use crate::ledger::Message;
use crate::stamp::ClusterClock;

/// Messages that a session holds without an outcome, at most; beyond it `session-full`.
pub(crate) const MAX_HELD: usize = 65_536;
/// Bytes of their bodies, at most.
pub(crate) const MAX_HELD_BYTES: usize = 64 << 20;

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
        self.handle.shared.inbox().next
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
                r#type: entity.kind.to_string(),
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
        let fresh = || MessageId {
            session: shared.id,
            sequence: inbox.next.max(1),
            created: shared.clock.now().max(inbox.latest),
        };
        let id = options.again.unwrap_or_else(fresh);
        let sequence = id.sequence;
        message.created = id.created;
        let refused = if id.session != shared.id {
            Some(problem("other-session", "the id is of another session than the one that sends"))
        } else if sequence == 0 || id.created == 0 {
            Some(problem("bad-message", "an id has a sequence and a creation time from 1"))
        } else if inbox.ended {
            Some(problem("client-closed", "the client was closed"))
        } else if inbox.held >= MAX_HELD || inbox.held_bytes + size > MAX_HELD_BYTES {
            let text = format!(
                "the session holds {} messages of {} bytes without an outcome: {MAX_HELD} and {MAX_HELD_BYTES} are allowed",
                inbox.held, inbox.held_bytes
            );
            let mut full = problem("session-full", text);
            full.retryable = true;
            Some(full)
        } else {
            None
        };
        if let Some(problem) = refused {
            drop(inbox);
            // The receiver is in our hands: it cannot be gone.
            let _ = waiter.send(Err(CallError::not_run(id, problem)));
            return Call { id, outcome };
        }
        inbox.next = inbox.next.max(sequence.saturating_add(1));
        inbox.latest = inbox.latest.max(id.created);
        inbox.held += 1;
        inbox.held_bytes += size;
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
    next: u64,
    /// The highest creation time so far: it never falls within a session.
    pub(crate) latest: u64,
    pub(crate) new: VecDeque<New>,
    held: usize,
    held_bytes: usize,
    /// No handle is left.
    pub(crate) closed: bool,
    /// The task is gone.
    pub(crate) ended: bool,
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
        let inbox = Inbox {
            next: next.max(1),
            latest: 0,
            new: VecDeque::new(),
            held: 0,
            held_bytes: 0,
            closed: false,
            ended: false,
        };
        Self { id, namespace, clock, inbox: Mutex::new(inbox), called: Notify::new() }
    }

    pub(crate) fn inbox(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn release(&self, messages: usize, bytes: usize) {
        let mut inbox = self.inbox();
        inbox.held -= messages;
        inbox.held_bytes -= bytes;
    }
}
