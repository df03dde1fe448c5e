//! What goes into a turn and what comes out of it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use wasmtime::component::{ComponentType, Lift, Lower};

use crate::StateError;

/// Who an instance is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EntityIdentity {
    /// The namespace.
    pub namespace: Arc<str>,
    /// The entity type.
    pub entity_type: Arc<str>,
    /// The entity id.
    pub id: Arc<str>,
    /// The deployment's revision.
    pub revision: u64,
}

/// Whether a message may change something (R16).
#[derive(Debug, Clone, Copy, PartialEq, Eq, ComponentType, Lift, Lower)]
#[component(enum)]
#[repr(u8)]
pub enum MessageKind {
    /// May change state.
    #[component(name = "command")]
    Command,
    /// Changes nothing: its effects are refused.
    #[component(name = "query")]
    Query,
}

/// One method that a guest answers to.
#[derive(Debug, Clone, PartialEq, Eq, ComponentType, Lift)]
#[component(record)]
pub struct Method {
    /// 1 to 128 bytes.
    pub name: String,
    /// Command or query.
    pub kind: MessageKind,
    /// One line for people; may be empty.
    pub summary: String,
}

/// Why an instance starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ComponentType, Lower)]
#[component(enum)]
#[repr(u8)]
pub enum StartReason {
    /// A message came for an entity that had no turn yet.
    #[component(name = "first-message")]
    FirstMessage,
    /// A message came for an entity that sleeps.
    #[component(name = "message")]
    Message,
    /// The entity is remembered, and its shard has come to this node.
    #[component(name = "remembered")]
    Remembered,
}

/// Why an instance stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ComponentType, Lower)]
#[component(enum)]
#[repr(u8)]
pub enum StopReason {
    /// Nothing came for a while.
    #[component(name = "idle")]
    Idle,
    /// Room is needed for others.
    #[component(name = "evicted")]
    Evicted,
    /// The guest asked for it.
    #[component(name = "passivated")]
    Passivated,
    /// The shard goes to another node, or the node stops.
    #[component(name = "handed-off")]
    HandedOff,
    /// A newer revision takes over.
    #[component(name = "redeployed")]
    Redeployed,
}

/// The message that a turn handles.
#[derive(Debug, Clone)]
pub struct MessageContext {
    /// The sender's session; the guest sees 32 hexadecimal digits.
    pub session: u128,
    /// The message's place in its session.
    pub sequence: u64,
    /// Command or query: a query's writes are refused.
    pub kind: MessageKind,
    /// Who sent it.
    pub principal: Arc<str>,
    /// The body's content type, as sent.
    pub content_type: Arc<str>,
    /// W3C trace context; empty if there is none.
    pub traceparent: Arc<str>,
    /// How long the sender still waits, if it said.
    pub remaining: Option<Duration>,
    /// The entity's version before this turn.
    pub version: u64,
}

/// Where an instance's state comes from.
pub trait StateSource: Send {
    /// The entity's whole state. Called at most once in an instance's life, at its first access to state (E16). Its time
    /// is not the guest's. Keys must be UTF-8; values must be as of the last commit.
    fn load(&mut self) -> BoxFuture<'static, Result<Vec<(Bytes, Bytes)>, StateError>>;
}

/// An entity that has no state yet.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoState;

impl StateSource for NoState {
    fn load(&mut self) -> BoxFuture<'static, Result<Vec<(Bytes, Bytes)>, StateError>> {
        Box::pin(std::future::ready(Ok(Vec::new())))
    }
}

/// What one instance needs beyond its program.
pub struct InstanceSpec {
    /// Who it is.
    pub identity: EntityIdentity,
    /// Its state.
    pub state: Box<dyn StateSource>,
}

/// What one turn came to.
#[derive(Debug)]
pub struct GuestTurnOutput {
    /// The outcome.
    pub result: TurnResult,
    /// The net effect on state, in order of key; none deletes. Empty unless the result is [`TurnResult::Ok`].
    pub writes: Vec<(Bytes, Option<Bytes>)>,
    /// The size of the entity's keys and values in bytes after the turn; none while this instance has not loaded them.
    pub state_bytes: Option<u64>,
    /// Whether the guest asked for the instance to be dropped after this turn.
    pub passivate: bool,
    /// Time in the guest.
    pub guest_time: Duration,
    /// Log lines that were dropped in this turn.
    pub logs_dropped: u64,
}

/// How a turn ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TurnResult {
    /// The guest's result; empty for start and stop.
    Ok(Bytes),
    /// The guest refused; its writes of this turn are gone, in the host too (R21).
    Application {
        /// 1 to 128 bytes. `invalid-arguments` and `unknown-method` are the SDK's own.
        code: String,
        /// A sentence for people.
        message: String,
    },
    /// The turn left no trace. The instance is poisoned and must be dropped.
    Failed(Failure),
}

/// Whose doing a failure was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureKind {
    /// The guest broke: it trapped, panicked or returned rubbish.
    Guest,
    /// The guest met one of its limits.
    Limit,
    /// The host could not go on; the guest is not to blame, and the turn may be run again on a new instance.
    Host,
}

/// Why a turn failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// A stable code: see `docs/errors.md`.
    pub code: &'static str,
    /// A sentence for the caller, without a backtrace.
    pub message: String,
    /// Whose doing it was.
    pub kind: FailureKind,
}

impl Failure {
    /// Whether the same turn may go better on a new instance.
    pub fn is_retryable(&self) -> bool {
        self.kind == FailureKind::Host
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.message, self.code)
    }
}
