//! Who the entity is, and which message it is handling.

pub use crate::types::{Identity, MessageContext, MessageKind};

/// Returns the identity of this entity.
pub fn identity() -> Identity {
    crate::host::identity()
}

/// Returns the message that this turn handles; `None` in a timer's turn and in the start and stop hooks.
pub fn current_message() -> Option<MessageContext> {
    crate::host::message()
}
