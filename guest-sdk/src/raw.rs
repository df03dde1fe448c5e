//! The layer below `#[entity]`: bytes in, bytes out.
//!
//! For entities that speak something other than JSON. A type implements [`Handler`], and [`export!`](crate::export) or
//! [`export_with_stop!`](crate::export_with_stop) makes it the component's exports. `#[entity]` does the same.

use crate::context::MessageKind;

/// One method, as the host learns it at deploy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Method {
    /// 1 to 128 bytes.
    pub name: String,
    /// Command or query.
    pub kind: MessageKind,
    /// One line for people; may be empty.
    pub summary: String,
}

/// How a message is refused. Final; what the turn wrote is discarded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MessageError {
    /// The application's own refusal.
    Application {
        /// A stable code, 1 to 128 bytes.
        code: String,
        /// A sentence for people.
        message: String,
    },
    /// The arguments do not fit the method; says how.
    InvalidArguments(String),
    /// There is no such method.
    UnknownMethod,
}

/// Why an instance starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StartReason {
    /// A message came for an entity that had no turn yet.
    FirstMessage,
    /// A message came for an entity that sleeps.
    Message,
    /// The entity is remembered, and its shard has come to this node.
    Remembered,
}

/// Why an instance stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopReason {
    /// Nothing came for a while.
    Idle,
    /// Room is needed for others.
    Evicted,
    /// The guest asked for it.
    Passivated,
    /// The shard goes to another node, or the node stops.
    HandedOff,
    /// A newer revision takes over.
    Redeployed,
}

/// The exports of an entity.
pub trait Handler {
    /// All methods. Called without an identity; what it writes is refused.
    fn methods() -> Vec<Method>;

    /// Called once in an instance's life, before its first message. What it writes is a turn of its own.
    ///
    /// # Errors
    /// A sentence for people: the instance does not start, and what was written is discarded.
    fn start(reason: StartReason) -> Result<(), String>;

    /// Runs one message as one turn.
    ///
    /// # Errors
    /// The message is refused for good. State that is held in memory must be what it was when the turn began (R21).
    fn message(method: String, body: Vec<u8>) -> Result<Vec<u8>, MessageError>;

    /// The instance's last call, if it was exported with `export_with_stop!`. What it writes is committed.
    fn stop(_reason: StopReason) {}
}

/// Exports a type that implements [`raw::Handler`](crate::raw::Handler). Outside of wasm it does nothing.
#[macro_export]
macro_rules! export {
    ($handler:ty) => {
        #[cfg(target_family = "wasm")]
        const _: () = {
            type Exports = $crate::bindings::Adapter<$handler>;
            $crate::bindings::entity::export_entity!(Exports with_types_in $crate::bindings::entity);
        };
    };
}

/// The same as [`export!`](crate::export), with the stop hook.
#[macro_export]
macro_rules! export_with_stop {
    ($handler:ty) => {
        #[cfg(target_family = "wasm")]
        const _: () = {
            type Exports = $crate::bindings::Adapter<$handler>;
            $crate::bindings::entity::export_entity!(Exports with_types_in $crate::bindings::entity);
            $crate::bindings::stop::export_stop!(Exports with_types_in $crate::bindings::stop);
        };
    };
}
