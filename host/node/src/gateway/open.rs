//! From an envelope to a message of the core: what the type's deployment says of it is checked here (S11.6).

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use ostraca_sharding::ids::{Digest, Entity, MessageId, Session};
use ostraca_sharding::message::{Context, Message, Token};
use ostraca_wire::clock::Moment;
use ostraca_wire::proto::{Envelope, Problem};

use super::lock;
use crate::clock::Clock;
use crate::service::resolve;
use crate::types::Table;

/// Content types and principals that are kept shared, and the longest of them in bytes; beyond it each message has its own.
const SHARED: (usize, usize) = (256, 128);

/// How long messages may have, in milliseconds: no message is kept for ever because its sender forgot to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Deadlines {
    /// Of a message that names none (`gateway.default-deadline`).
    pub(crate) unless_named: u64,
    /// The longest; more is cut to it (`gateway.max-deadline`).
    pub(crate) longest: u64,
}

/// Opens envelopes.
pub(crate) struct Opener {
    clock: Arc<Clock>,
    deadlines: Deadlines,
    /// Texts in use, shared: there are few, and each message would else carry a copy.
    shared: Mutex<HashMap<String, Arc<str>>>,
}

impl Opener {
    pub(crate) fn new(clock: Arc<Clock>, deadlines: Deadlines) -> Self {
        Self { clock, deadlines, shared: Mutex::default() }
    }

    /// Sees to it that the message has a deadline, and none that is too long.
    pub(crate) fn bound_deadline(&self, envelope: &mut Envelope) {
        let Deadlines { unless_named, longest } = self.deadlines;
        envelope.remaining_ms = match envelope.remaining_ms {
            0 => unless_named,
            named => named.min(longest),
        };
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

    /// The message, or why it may not be run.
    pub(crate) fn open(
        &self,
        types: &Table,
        session: Session,
        envelope: &Envelope,
        received: Moment,
        token: Token,
    ) -> Result<Arc<Message>, Problem> {
        let (entry, method, kind) = resolve(types, &envelope.principal, envelope)?;
        let now = self.clock.now().mono;
        let target = Entity { kind: entry.name.clone(), id: envelope.id.as_str().into() };
        let held = u64::try_from(received.elapsed().as_millis()).unwrap_or(u64::MAX);
        let deadline = (envelope.remaining_ms > 0)
            .then(|| now.saturating_add(envelope.remaining_ms.saturating_sub(held)));
        Ok(Arc::new(Message {
            token,
            digest: Digest::of(&target, &method, &envelope.body),
            target,
            id: MessageId { session, sequence: envelope.sequence },
            after: envelope.after,
            settled: envelope.settled,
            kind,
            method,
            body: envelope.body.clone(),
            created: envelope.created_ms,
            arrived: now,
            deadline,
            context: Arc::new(Context {
                principal: self.share(&envelope.principal),
                content_type: self.share(&envelope.content_type),
                traceparent: envelope.traceparent.as_str().into(),
            }),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_message_has_a_deadline_within_bounds() {
        let deadlines = Deadlines { unless_named: 60, longest: 600 };
        let opener = Opener::new(Clock::new(0).into(), deadlines);
        for (named, bounded) in [(0, 60), (1, 1), (600, 600), (601, 600), (u64::MAX, 600)] {
            let mut envelope = Envelope { remaining_ms: named, ..Envelope::default() };
            opener.bound_deadline(&mut envelope);
            assert_eq!(envelope.remaining_ms, bounded, "{named}");
        }
    }
}
