//! Who I am, and whose message this is.

/// Whether a message may change something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MessageKind {
    /// May change state; runs once; its outcome is recorded.
    Command,
    /// Changes nothing and records nothing.
    Query,
}

/// The entity itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The namespace.
    pub namespace: String,
    /// The entity type.
    pub entity_type: String,
    /// The entity id.
    pub id: String,
    /// The deployment's revision.
    pub revision: u64,
}

/// The message that a turn handles.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MessageContext {
    /// 32 hexadecimal digits that name the sender's session.
    pub session: String,
    /// The message's place in its session.
    pub sequence: u64,
    /// Command or query.
    pub kind: MessageKind,
    /// Who sent it, by certificate or token.
    pub principal: String,
    /// The body's content type, as sent.
    pub content_type: String,
    /// W3C trace context; empty if there is none.
    pub traceparent: String,
    /// Milliseconds until the sender stops waiting, if it said.
    pub remaining_ms: Option<u64>,
    /// The entity's version before this turn.
    pub version: u64,
}

/// This entity.
pub fn identity() -> Identity {
    crate::host::identity()
}

/// The present message; `None` during start and stop.
pub fn current_message() -> Option<MessageContext> {
    crate::host::message()
}
