//! Turns an envelope into a message of the core, and checks it against the type's deployment (S11.6).

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use ostraca_catalog::clock::ClusterClock;
use ostraca_catalog::types::{TypeTable, resolve_method};
use ostraca_core::ids::ScopedSessionId;
use ostraca_core::message::{Message, MessageMetadata, ReplyToken};
use ostraca_wire::clock::BootInstant;
use ostraca_wire::envelope::{TimeoutLimits, UtcLimits};
use ostraca_wire::proto::{Envelope, Problem};

use super::lock;

/// Maximum number of interned content types, principals and nodes, and the maximum length of each in bytes. Beyond
/// that, each message has its own copy.
const SHARED: (usize, usize) = (256, 128);

/// Turns envelopes into messages.
pub(crate) struct EnvelopeResolver {
    /// This node's name, which is the origin of messages from its own clients.
    node: Arc<str>,
    clock: Arc<ClusterClock>,
    timeout_limits: TimeoutLimits,
    utc_limits: UtcLimits,
    /// Interned strings, never removed. There are few distinct ones; otherwise, each message would have its own copy.
    shared: Mutex<HashMap<String, Arc<str>>>,
}

impl EnvelopeResolver {
    pub(crate) fn new(
        node: Arc<str>,
        clock: Arc<ClusterClock>,
        timeout_limits: TimeoutLimits,
        utc_limits: UtcLimits,
    ) -> Self {
        Self { node, clock, timeout_limits, utc_limits, shared: Mutex::default() }
    }

    /// Bounds a message's timeout and time, and sets them if the sender gave none.
    pub(crate) fn apply_limits(&self, envelope: &mut Envelope, utc_ms: u64) {
        self.timeout_limits.apply(envelope);
        // An entity's message has the time of the turn that sent it, however long it waited in the outbox.
        if !envelope.is_from_entity() {
            self.utc_limits.apply(envelope, utc_ms);
        }
    }

    fn share(&self, text: &str) -> Arc<str> {
        if text.len() > SHARED.1 {
            return text.into();
        }
        let mut shared = lock(&self.shared);
        if let Some(known) = shared.get(text) {
            return known.clone();
        }
        let fresh: Arc<str> = text.into();
        if shared.len() < SHARED.0 {
            shared.insert(text.to_owned(), fresh.clone());
        }
        fresh
    }

    /// Returns the message, or why it must not run.
    pub(crate) fn to_message(
        &self,
        types: &TypeTable,
        session: ScopedSessionId,
        envelope: &Envelope,
        received: BootInstant,
        token: ReplyToken,
    ) -> Result<Arc<Message>, Problem> {
        let (entry, method, kind) = resolve_method(types, &envelope.principal, envelope)?;
        let now = self.clock.now().mono;
        let held_ms = u64::try_from(received.elapsed().as_millis()).unwrap_or(u64::MAX);
        let context = MessageMetadata {
            principal: self.share(&envelope.principal),
            content_type: self.share(&envelope.content_type),
            traceparent: own(&envelope.traceparent),
            tracestate: own(&envelope.tracestate),
            // Empty if the message came from a client: then its gateway is this node.
            origin: match envelope.origin.as_str() {
                "" => self.node.clone(),
                node => self.share(node),
            },
            utc_ms: envelope.utc_ms,
        };
        let resolved = (entry.name.clone(), method, kind);
        Ok(Arc::new(envelope.to_message(token, session, resolved, (now, held_ms), context)))
    }
}

/// A separate copy of a string that other messages are unlikely to share. Empty strings take no memory.
fn own(text: &str) -> Arc<str> {
    if text.is_empty() { Arc::default() } else { text.into() }
}
