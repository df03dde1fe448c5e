//! The inputs and outputs of a turn.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use ostraca_codes::Code;
use wasmtime::component::{ComponentType, Lift, Lower};

use crate::{
    AskSink, CallSink, ChannelNames, GuestEmit, GuestTell, JournalChange, JournalUse, OutboxUse,
    StoredEvent, TimerChange, TimerSource, TurnValues,
};

/// The identity of an instance's entity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EntityIdentity {
    /// The namespace.
    pub namespace: Arc<str>,
    /// The entity type.
    pub entity_type: Arc<str>,
    /// The entity id.
    pub id: Arc<str>,
    /// The revision of the deployment.
    pub revision: u64,
}

/// Whether a message may change state (R16).
#[derive(Debug, Clone, Copy, PartialEq, Eq, ComponentType, Lift, Lower)]
#[component(enum)]
#[repr(u8)]
pub enum MessageKind {
    /// May change state.
    #[component(name = "command")]
    Command,
    /// Must not change state: its writes are refused.
    #[component(name = "query")]
    Query,
}

/// One method of a guest.
#[derive(Debug, Clone, PartialEq, Eq, ComponentType, Lift)]
#[component(record)]
pub struct Method {
    /// 1 to 128 bytes, without control characters or direction marks, and unique in the component.
    pub name: String,
    /// Whether a call of this method is a command or a query.
    pub kind: MessageKind,
    /// A one-line description for people; may be empty.
    pub summary: String,
}

/// Why an instance starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ComponentType, Lower)]
#[component(enum)]
#[repr(u8)]
pub enum StartReason {
    /// A message arrived for an entity that has no committed turn yet (version 0).
    #[component(name = "first-message")]
    FirstMessage,
    /// A message arrived or a timer is due for an entity that has committed turns, but no instance.
    #[component(name = "message")]
    Message,
    /// The entity is remembered, and had no instance on this node; no message arrived.
    #[component(name = "remembered")]
    Remembered,
}

/// Why an instance stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ComponentType, Lower)]
#[component(enum)]
#[repr(u8)]
pub enum StopReason {
    /// No message arrived and no timer fired for the type's `idle-timeout`.
    #[component(name = "idle")]
    Idle,
    /// The node needs room for another instance.
    #[component(name = "evicted")]
    Evicted,
    /// The guest asked for it.
    #[component(name = "passivated")]
    Passivated,
    /// The shard moves to another node, or the node shuts down.
    #[component(name = "handed-off")]
    HandedOff,
    /// A newer revision of the type replaces this one.
    #[component(name = "redeployed")]
    Redeployed,
}

/// The message that a turn handles.
#[derive(Debug, Clone)]
pub struct MessageContext {
    /// The sender's session; the guest sees 32 hexadecimal digits.
    pub session: u128,
    /// The message's number in its session, from 1.
    pub sequence: u64,
    /// Whether the message is a command or a query: a query's writes are refused.
    pub kind: MessageKind,
    /// The principal that sent it.
    pub principal: Arc<str>,
    /// The content type of the body, as the sender set it.
    pub content_type: Arc<str>,
    /// W3C trace context (`traceparent`); empty if there is none.
    pub traceparent: Arc<str>,
    /// W3C trace context (`tracestate`); empty if there is none.
    pub tracestate: Arc<str>,
    /// The node whose gateway accepted it, for logs: the guest does not see it.
    pub origin: Arc<str>,
    /// Time from the start of the turn to the sender's deadline; `None` without a deadline.
    pub remaining: Option<Duration>,
    /// The entity's version before this turn.
    pub version: u64,
    /// Clock and randomness of the turn.
    pub values: TurnValues,
    /// What the entity has besides its state; `None` if it has nothing, and may neither ask nor call.
    pub records: Option<Box<TurnRecords>>,
}

/// What the entity has besides its state when a turn begins.
#[derive(Debug, Clone, Default)]
pub struct TurnRecords {
    /// Whether other entities have subscribed to its channels: each item that it emits then takes a place in its
    /// outbox.
    pub has_subscribers: bool,
    /// Its timers; `None` if it has none.
    pub timers: Option<Arc<dyn TimerSource>>,
    /// How much its outbox holds.
    pub outbox: OutboxUse,
    /// The extent of its journal.
    pub journal: JournalUse,
    /// The channels that it has emitted on; `None` if there are none.
    pub channels: Option<Arc<dyn ChannelNames>>,
    /// Whether it is remembered (K31).
    pub remembered: bool,
    /// When it expires, in milliseconds since 1970; `None` if no time is set.
    pub expires_at: Option<u64>,
    /// Takes the turn's asks; `None` if the turn may not ask.
    pub asks: Option<Arc<dyn AskSink>>,
    /// Takes the turn's outgoing HTTP calls; `None` if the turn may not call.
    pub calls: Option<Arc<dyn CallSink>>,
}

/// A snapshot in the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredSnapshot {
    /// The number of the last event that it includes.
    pub through: u64,
    /// The entity's version after the turn that saved it.
    pub version: u64,
    /// The guest's own bytes.
    pub data: Bytes,
}

/// Why an entity's state could not be loaded.
#[derive(Debug, Clone, thiserror::Error)]
#[error("cannot load the entity's state: {0}")]
pub struct StateError(pub String);

/// Where an instance reads its entity's state and journal from.
pub trait StateSource: Send {
    /// Loads the entity's whole state. Called at most once per instance, on its first access to state (E16). The time
    /// is not charged to the guest. Keys must be UTF-8; values must be those of the last commit.
    fn load(&mut self) -> BoxFuture<'static, Result<Vec<(Bytes, Bytes)>, StateError>>;

    /// Reads events of the journal, in order from a number on: at least one if there is one, and at most `count`. The
    /// time is not charged to the guest. The result includes the events of all earlier turns, durable or not, and may
    /// include later ones.
    fn events(
        &mut self,
        from: u64,
        count: usize,
    ) -> BoxFuture<'static, Result<Vec<StoredEvent>, StateError>> {
        let _ = (from, count);
        Box::pin(std::future::ready(Ok(Vec::new())))
    }

    /// Reads the journal's snapshot, as `events` does.
    fn snapshot(&mut self) -> BoxFuture<'static, Result<Option<StoredSnapshot>, StateError>> {
        Box::pin(std::future::ready(Ok(None)))
    }
}

/// An entity that has no state yet.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoState;

impl StateSource for NoState {
    fn load(&mut self) -> BoxFuture<'static, Result<Vec<(Bytes, Bytes)>, StateError>> {
        Box::pin(std::future::ready(Ok(Vec::new())))
    }
}

/// What an instance needs besides its program.
pub struct InstanceSpec {
    /// The identity of its entity.
    pub identity: EntityIdentity,
    /// The source of its entity's state.
    pub state: Box<dyn StateSource>,
    /// Clock and randomness of the instantiation and of the start hook.
    pub values: TurnValues,
    /// The entity's timers and outbox.
    pub records: TurnRecords,
}

/// The output of one turn.
#[derive(Debug)]
pub struct GuestTurnOutput {
    /// How the turn ended.
    pub result: TurnResult,
    /// The net effect on state, in order of key; a value of `None` deletes the key. Empty unless the result is
    /// [`TurnResult::Ok`].
    pub writes: Vec<(Bytes, Option<Bytes>)>,
    /// The last change to each timer, by kind and name. Empty unless the result is [`TurnResult::Ok`].
    pub timers: Vec<TimerChange>,
    /// The tells that the turn sends, in order. Empty unless the result is [`TurnResult::Ok`].
    pub tells: Vec<GuestTell>,
    /// What the turn changes in the journal. Empty unless the result is [`TurnResult::Ok`].
    pub journal: JournalChange,
    /// The items that the turn emits, in order. Empty unless the result is [`TurnResult::Ok`].
    pub emits: Vec<GuestEmit>,
    /// The size of the entity's state in bytes after the turn, including 100 for each key; `None` while this instance
    /// has not loaded the state.
    pub state_bytes: Option<u64>,
    /// Whether the entity is remembered from now on; `None` if the turn leaves that as it is. `None` unless the result
    /// is [`TurnResult::Ok`].
    pub remember: Option<bool>,
    /// When the entity expires from now on, in milliseconds since 1970; `Some(None)` leaves it to the type, `None` as
    /// it is. `None` unless the result is [`TurnResult::Ok`].
    pub expiry: Option<Option<u64>>,
    /// Whether the turn deletes its entity. False unless the result is [`TurnResult::Ok`].
    pub delete: bool,
    /// Whether the guest asked for the instance to be dropped after this turn.
    pub passivate: bool,
    /// Milliseconds without a message or a timer after which the instance is dropped from now on; `Some(None)` for the
    /// type's idle timeout, `None` as it is.
    pub passivate_after: Option<Option<u64>>,
    /// The bytes of the instance's memory and of its state, if they have changed by 64 KiB or more since they were last
    /// reported; the first turn reports them.
    pub new_size: Option<u64>,
    /// Time spent in the guest.
    pub guest_time: Duration,
    /// Log lines that were dropped in this turn.
    pub logs_dropped: u64,
}

/// How a turn ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TurnResult {
    /// The guest's result; empty for start, stop and timers.
    Ok(Bytes),
    /// The guest refused the message. Its writes of this turn are discarded, in the host too (R21).
    Application {
        /// 1 to 128 bytes. `invalid-arguments` and `unknown-method` stand for the cases of these names in the WIT's
        /// `message-error`.
        code: String,
        /// A message for people.
        message: String,
    },
    /// The turn had no effect. The instance is poisoned and must be dropped.
    Failed(Failure),
}

/// What caused a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureKind {
    /// The guest failed: it trapped, panicked or returned an invalid value.
    Guest,
    /// The guest exceeded one of its limits.
    Limit,
    /// The host could not continue. The guest is not at fault, and the turn may be run again on a new instance.
    Host,
}

/// Why a turn failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// A stable code: see `docs/errors.md`.
    pub code: Code,
    /// A message for the caller, without a backtrace.
    pub message: String,
    /// What caused it.
    pub kind: FailureKind,
}

impl Failure {
    /// Whether the same turn may succeed on a new instance.
    pub fn is_retryable(&self) -> bool {
        self.kind == FailureKind::Host
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.message, self.code)
    }
}
