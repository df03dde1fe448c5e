//! The application's handles: sessions, and pending calls.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use ostraca_codes::codes;
use ostraca_core::ids::Entity;
use ostraca_core::shard::{
    DeadLetterAction, MIGRATION_HAD_FAILED, OperatorCommand, WAS_STOPPED, decode_dead_letters,
    encode_dead_letters,
};
use ostraca_wire::flags::SENT_ONCE;
use ostraca_wire::problem;
use ostraca_wire::proto::{EntityExport, Envelope, MessageKind};
use tokio::sync::{Notify, oneshot};

use crate::call::{CallError, MessageId, Reply, SessionId};
use crate::cluster_clock::ClusterClock;
use crate::entity_export::copy_of;
use crate::ledger::{AdmissionError, CallAdmission, OutgoingMessage};
use crate::namespace::namespace_of;

/// What [`Session::restart_entity`] has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RestartedEntity {
    /// Whether the entity was stopped.
    pub was_stopped: bool,
    /// Whether a migration of the entity had failed, and is attempted again at its next start.
    pub migrates_again: bool,
}

/// Options of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallOptions {
    /// How long the caller waits (R22). Default 10 s.
    pub timeout: Duration,
    /// Command, query, or as the method declares it (the default).
    pub kind: MessageKind,
    /// Media type of the body. Default `application/json`.
    pub content_type: String,
    /// W3C trace context; default none.
    pub traceparent: String,
    /// W3C trace context; default none.
    pub tracestate: String,
    /// Whether the message is sent again while its outcome is not known. Default: yes, it runs exactly once. Otherwise it
    /// runs at most once (K18): no other copy is sent once one may have run, neither by the client nor by a gateway, and
    /// a lost reply ends the call as [`CallError::Unknown`]; every other refusal ends it at once, too.
    pub retry: bool,
    /// Resends the session's message with this id, however long ago it was first sent. Target, method and body must be
    /// the same. The message gets the recorded outcome, and runs only if it never has. If the entity has dropped the
    /// session since, the outcome is `unknown`, with the code `too-old`. Default: a new message.
    pub resend: Option<MessageId>,
}

impl Default for CallOptions {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(10),
            kind: MessageKind::Unspecified,
            content_type: "application/json".into(),
            traceparent: String::new(),
            tracestate: String::new(),
            retry: true,
            resend: None,
        }
    }
}

/// A sender's series of messages (R17). Cheap to clone; all clones are the same session. Messages are sent in
/// the order of the calls, whether or not their futures are polled, and those to one entity run in that order.
/// After the last clone is dropped, messages that are already queued are still sent.
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

    /// The session's id. To continue the session in another process, save it with [`Session::next_sequence`].
    #[must_use]
    pub fn id(&self) -> SessionId {
        self.handle.shared.id
    }

    /// The sequence that the next message gets.
    #[must_use]
    pub fn next_sequence(&self) -> u64 {
        self.handle.shared.inbox().admission.next_sequence()
    }

    /// Sends a command; a method that is a query is refused.
    pub fn command(&self, entity: &Entity, method: &str, body: impl Into<Bytes>) -> Call {
        let options = CallOptions { kind: MessageKind::Command, ..CallOptions::default() };
        self.send(entity, method, body, &options)
    }

    /// Sends a query; a method that is a command is refused.
    pub fn query(&self, entity: &Entity, method: &str, body: impl Into<Bytes>) -> Call {
        let options = CallOptions { kind: MessageKind::Query, ..CallOptions::default() };
        self.send(entity, method, body, &options)
    }

    /// Sends a message of the kind that its method declares.
    pub fn call(&self, entity: &Entity, method: &str, body: impl Into<Bytes>) -> Call {
        self.send(entity, method, body, &CallOptions::default())
    }

    /// Resends or drops up to [`MAX_DEAD_LETTERS`](crate::MAX_DEAD_LETTERS) dead letters of an entity. Like any
    /// command, it runs once and needs permission to send to the type. Returns the numbers it handled, which may be
    /// fewer than given: some no longer exist, or a resend reached its size limit. If none exists, the command is
    /// refused (`unknown-dead-letter`).
    ///
    /// # Errors
    ///
    /// [`CallError`].
    pub async fn handle_dead_letters(
        &self,
        entity: &Entity,
        action: DeadLetterAction,
        numbers: &[u64],
        options: &CallOptions,
    ) -> Result<Vec<u64>, CallError> {
        let options = CallOptions { kind: MessageKind::Command, ..options.clone() };
        let body = encode_dead_letters(numbers);
        let reply = self.send(entity, action.method(), body, &options).await?;
        Ok(decode_dead_letters(&reply.body).unwrap_or_default())
    }

    /// Deletes an entity, without calling its guest. Like any command, this runs once and needs permission to send to
    /// the type. An entity that does not exist is refused (`unknown-entity`).
    pub fn delete_entity(&self, entity: &Entity, options: &CallOptions) -> Call {
        let options = CallOptions { kind: MessageKind::Command, ..options.clone() };
        self.send(entity, OperatorCommand::DeleteEntity.method(), Bytes::new(), &options)
    }

    /// Creates an entity from an export, in one commit and without calling its guest. Like any command, this runs once
    /// and needs permission to send to the type. An entity that exists is refused (`entity-exists`). The export must
    /// fit into one message.
    pub fn import_entity(
        &self,
        entity: &Entity,
        export: EntityExport,
        options: &CallOptions,
    ) -> Call {
        let options = CallOptions { kind: MessageKind::Command, ..options.clone() };
        // An export is never too large to be encoded, only to be sent.
        let body = copy_of(export).and_then(|copy| copy.encode()).unwrap_or_default();
        self.send(entity, OperatorCommand::ImportEntity.method(), body, &options)
    }

    /// Removes the mark of a remembered entity, which then starts only for messages and timers (K31). Like any command,
    /// it runs once and needs permission to send to the type. An entity that is not remembered is refused
    /// (`not-remembered`).
    ///
    /// # Errors
    ///
    /// [`CallError`].
    pub async fn forget_entity(
        &self,
        entity: &Entity,
        options: &CallOptions,
    ) -> Result<(), CallError> {
        let options = CallOptions { kind: MessageKind::Command, ..options.clone() };
        let method = OperatorCommand::ForgetEntity.method();
        self.send(entity, method, Bytes::new(), &options).await.map(drop)
    }

    /// Lets an entity that was stopped after a failure start again (K33), and retries its failed migration at its next
    /// start (R24). Needs permission to send to the type. Returns which of the two applied.
    ///
    /// # Errors
    ///
    /// [`CallError`].
    pub async fn restart_entity(
        &self,
        entity: &Entity,
        options: &CallOptions,
    ) -> Result<RestartedEntity, CallError> {
        let options = CallOptions { kind: MessageKind::Query, ..options.clone() };
        let method = OperatorCommand::RestartEntity.method();
        let reply = self.send(entity, method, Bytes::new(), &options).await?;
        let flags = reply.body.first().copied().unwrap_or_default();
        Ok(RestartedEntity {
            was_stopped: flags & WAS_STOPPED != 0,
            migrates_again: flags & MIGRATION_HAD_FAILED != 0,
        })
    }

    /// Sends a message. It is queued when this returns; the future only waits for the outcome.
    pub fn send(
        &self,
        entity: &Entity,
        method: &str,
        body: impl Into<Bytes>,
        options: &CallOptions,
    ) -> Call {
        let shared = &self.handle.shared;
        let now = Instant::now();
        let body = body.into();
        let size = body.len();
        let mut message = OutgoingMessage {
            entity: entity.clone(),
            envelope: Envelope {
                namespace: namespace_of(&shared.namespace, entity),
                r#type: entity.entity_type.to_string(),
                id: entity.id.to_string(),
                kind: options.kind.into(),
                traceparent: options.traceparent.clone(),
                tracestate: options.tracestate.clone(),
                content_type: options.content_type.clone(),
                method: method.into(),
                flags: if options.retry { 0 } else { SENT_ONCE },
                body,
                ..Envelope::default()
            },
            created_ms: 0,
            // A deadline beyond the clock's range becomes one year.
            deadline: now
                .checked_add(options.timeout)
                .unwrap_or(now + Duration::from_secs(31_536_000)),
            is_resend: options.resend.is_some(),
        };
        let (waiter, outcome) = oneshot::channel();
        let mut inbox = shared.inbox();
        let id = match inbox.admission.admit(options.resend, shared.clock.now(), size) {
            // A copy keeps the UTC of the message.
            Ok(id) if options.resend.is_some() => id,
            Ok(id) => MessageId { utc_ms: shared.clock.utc_ms(), ..id },
            Err(AdmissionError { id, problem: why }) => {
                drop(inbox);
                // This function still holds the receiver, so sending cannot fail.
                let _ = waiter.send(Err(CallError::not_run(id, *why)));
                return Call { id, outcome };
            }
        };
        let sequence = id.sequence;
        message.created_ms = id.created_ms;
        message.envelope.utc_ms = id.utc_ms;
        let first = inbox.calls.is_empty();
        inbox.calls.push_back(QueuedCall {
            sequence,
            message,
            waiter: Waiter { outcome: waiter, size },
        });
        drop(inbox);
        if first {
            shared.called.notify_one();
        }
        Call { id, outcome }
    }
}

/// A pending message: a future of its outcome. Dropping it does not cancel the message, which counts as unresolved
/// until its reply or its deadline.
#[derive(Debug)]
#[must_use = "the outcome tells whether the message ran"]
pub struct Call {
    id: MessageId,
    outcome: oneshot::Receiver<Result<Reply, CallError>>,
}

impl Call {
    /// The message's id, under which it can be sent again, even by another process.
    #[must_use]
    pub fn id(&self) -> MessageId {
        self.id
    }
}

impl Future for Call {
    type Output = Result<Reply, CallError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.outcome).poll(context).map(|outcome| match outcome {
            Ok(outcome) => outcome,
            // The session's task ended with the runtime that it ran on.
            Err(_) => Err(CallError::unknown(
                self.id,
                problem(codes::CLIENT_CLOSED, "the client was dropped"),
            )),
        })
    }
}

/// The state that a session's handles and its task share.
pub(crate) struct Shared {
    pub(crate) id: SessionId,
    pub(crate) namespace: String,
    pub(crate) clock: Arc<ClusterClock>,
    inbox: Mutex<CallQueue>,
    /// Notified when the inbox has a call, or was closed.
    pub(crate) called: Notify,
}

pub(crate) struct CallQueue {
    pub(crate) admission: CallAdmission,
    pub(crate) calls: VecDeque<QueuedCall>,
    /// Whether all handles are dropped.
    pub(crate) closed: bool,
}

pub(crate) struct QueuedCall {
    pub(crate) sequence: u64,
    pub(crate) message: OutgoingMessage,
    pub(crate) waiter: Waiter,
}

pub(crate) struct Waiter {
    pub(crate) outcome: oneshot::Sender<Result<Reply, CallError>>,
    pub(crate) size: usize,
}

impl Shared {
    pub(crate) fn new(
        id: SessionId,
        next: u64,
        namespace: String,
        clock: Arc<ClusterClock>,
    ) -> Self {
        let admission = CallAdmission::new(id, next);
        let inbox = CallQueue { admission, calls: VecDeque::new(), closed: false };
        Self { id, namespace, clock, inbox: Mutex::new(inbox), called: Notify::new() }
    }

    pub(crate) fn inbox(&self) -> MutexGuard<'_, CallQueue> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn release(&self, messages: usize, bytes: usize) {
        self.inbox().admission.release(messages, bytes);
    }
}
