//! The layer below `#[entity]`: bytes in, bytes out.
//!
//! For entities that use a format other than JSON. Implement [`Handler`] for a type and turn it into the component's
//! exports with [`export!`](crate::export) or [`export_with_stop!`](crate::export_with_stop). If it has timers, it also
//! implements [`TimerHandler`] and is passed to [`export_timer_handler!`](crate::export_timer_handler); with a migration,
//! it implements [`Migration`] and is passed to [`export_migration!`](crate::export_migration). The code that `#[entity]` generates does the same.

pub use crate::types::Firing;
use crate::types::MessageKind;

/// One method, as the entity describes it to the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Method {
    /// 1 to 128 bytes, without control characters or direction marks, and unique in the component.
    pub name: String,
    /// Whether a call of this method is a command or a query.
    pub kind: MessageKind,
    /// A one-line description for people; may be empty.
    pub summary: String,
}

/// The JSON Schemas of one method's arguments and result, as texts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MethodSchema {
    /// The method's name.
    pub method: String,
    /// The schema of the message's body.
    pub arguments: String,
    /// The schema of the result.
    pub result: String,
}

/// Why a message is refused. Every refusal is final, and discards what the turn wrote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MessageError {
    /// The entity's own refusal, with a code that its author chose.
    Application {
        /// A stable code for programs: 1 to 128 bytes, without control characters or direction marks.
        code: String,
        /// A message for people.
        message: String,
    },
    /// The arguments do not fit the method; the text says why.
    InvalidArguments(String),
    /// The entity has no such method.
    UnknownMethod,
}

/// Why an instance starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StartReason {
    /// A message arrived for an entity that has no committed turn yet (version 0), or none since it was deleted.
    FirstMessage,
    /// A message arrived or a timer is due for an entity that has committed turns, but no instance.
    Message,
    /// The entity is remembered ([`lifecycle::remember`](crate::lifecycle::remember)), and had no instance on this
    /// node. No message arrived.
    Remembered,
}

/// Why an instance stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopReason {
    /// No message arrived and no timer fired for the type's `idle-timeout`.
    Idle,
    /// The node needs room for another instance.
    Evicted,
    /// The guest called [`lifecycle::passivate`](crate::lifecycle::passivate).
    Passivated,
    /// The shard moves to another node, or the node shuts down.
    HandedOff,
    /// A newer revision of the type replaces this one.
    Redeployed,
}

/// The functions that an entity exports.
pub trait Handler {
    /// Lists all methods. The instance has no identity: all names are empty, and the revision is 0. Its state is
    /// empty, and writes trap.
    fn methods() -> Vec<Method>;

    /// Called once per instance, before its first message or timer. It is a separate turn, committed before the one
    /// that follows.
    ///
    /// # Errors
    /// Returns a message for people. The instance then does not start, and what `start` wrote is discarded.
    fn start(reason: StartReason) -> Result<(), String>;

    /// Runs one message as one turn. The host does not interpret `body` or the result.
    ///
    /// # Errors
    /// Returns why the message is refused. State that is kept in memory must be restored to what it was when the turn
    /// began (R21).
    fn message(method: String, body: Vec<u8>) -> Result<Vec<u8>, MessageError>;

    /// The last call to an instance, if it was exported with `export_with_stop!`. What it writes is committed.
    fn stop(_reason: StopReason) {}
}

/// The function that an entity with timers exports.
pub trait TimerHandler {
    /// Handles one firing, as one turn.
    ///
    /// # Errors
    /// Returns a stable code (1 to 128 bytes, without control characters or direction marks) and a message for people.
    /// What the turn wrote is discarded, and the firing is attempted again later. State that is kept in memory must be
    /// restored to what it was when the turn began (R21).
    fn timer(firing: Firing) -> Result<(), (String, String)>;
}

/// The functions that an entity with a migration exports.
pub trait Migration {
    /// The schema of the state that this component reads and writes.
    fn schema_version() -> u32;

    /// The highest schema from which `migrate` can migrate.
    fn newest_schema() -> u32 {
        Self::schema_version()
    }

    /// Migrates the stored state from another schema, as one turn on an instance of its own.
    ///
    /// # Errors
    /// Returns why the state cannot be migrated. What the turn wrote is discarded, and the entity remains on the revision
    /// that ran it before.
    fn migrate(from_schema: u32) -> Result<(), String>;
}

/// The function that an entity whose methods have JSON Schemas exports.
pub trait SchemaProvider {
    /// Describes the methods. The instance has no identity: see [`Handler::methods`].
    fn schemas() -> Vec<MethodSchema>;
}
