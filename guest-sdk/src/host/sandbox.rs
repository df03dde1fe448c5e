//! Calls the host through the component's imports.

use crate::bindings::entity::ostraca::entity as wit;
use crate::types::{Identity, Level, MessageContext, MessageKind, Page};

pub(crate) fn get(key: &str) -> Option<Vec<u8>> {
    wit::state::get(key)
}

pub(crate) fn set(key: &str, value: &[u8]) {
    wit::state::set(key, value);
}

pub(crate) fn delete(key: &str) -> bool {
    wit::state::delete(key)
}

pub(crate) fn list(prefix: &str, limit: u32, cursor: Option<&str>) -> Page {
    let page = wit::state::list(prefix, limit, cursor);
    Page { entries: page.entries, next: page.next }
}

pub(crate) fn identity() -> Identity {
    let identity = wit::context::self_identity();
    Identity {
        namespace: identity.namespace,
        entity_type: identity.entity_type,
        id: identity.id,
        revision: identity.revision,
    }
}

pub(crate) fn message() -> Option<MessageContext> {
    wit::context::current_message().map(|message| MessageContext {
        session: message.session,
        sequence: message.sequence,
        kind: match message.kind {
            wit::types::MessageKind::Command => MessageKind::Command,
            wit::types::MessageKind::Query => MessageKind::Query,
        },
        principal: message.principal,
        content_type: message.content_type,
        traceparent: message.traceparent,
        tracestate: message.tracestate,
        remaining_ms: message.remaining_ms,
        version: message.version,
    })
}

pub(crate) fn now() -> u64 {
    wit::clock::now()
}

pub(crate) fn random_u64() -> u64 {
    wit::random::get_u64()
}

/// At most 65,536 bytes.
pub(crate) fn random_bytes(len: usize) -> Vec<u8> {
    // Longer ones would be refused, so `len` fits.
    wit::random::get_bytes(u32::try_from(len).unwrap_or(u32::MAX))
}

pub(crate) fn passivate() {
    wit::lifecycle::passivate();
}

pub(crate) fn log(level: Level, message: &str) {
    let level = match level {
        Level::Trace => wit::log::Level::Trace,
        Level::Debug => wit::log::Level::Debug,
        Level::Info => wit::log::Level::Info,
        Level::Warn => wit::log::Level::Warn,
        Level::Error => wit::log::Level::Error,
    };
    wit::log::log(level, message);
}
