//! Messages that entities send, and the test's answers in place of types that are not deployed.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use bytes::Bytes;
use ostraca_core::ids::{Entity, ScopedSessionId};
use ostraca_core::message::Outcome;
use ostraca_core::records::GuestReply;
use ostraca_workers::{EntityMessage, EntityMessageContent};
use serde_json::Value;

/// A tell or an ask of an entity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SentMessage {
    /// The sender, as `TYPE/ID`.
    pub from: String,
    /// The target, as `TYPE/ID`.
    pub to: String,
    /// The method.
    pub method: String,
    /// The body.
    pub body: Bytes,
}

impl SentMessage {
    /// The body as JSON; `null` if it is not JSON.
    #[must_use]
    pub fn arguments(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }
}

/// An application error: its code and its message.
pub type Refusal = (String, String);

pub(crate) type Answer = Box<dyn FnMut(&SentMessage) -> Result<Value, Refusal>>;

/// Identifies a message: a copy of it has the same id.
type Id = (ScopedSessionId, Entity, u64);

/// What entities have sent, and who answers in place of types that are not deployed.
#[derive(Default)]
pub(crate) struct Sent {
    seen: HashSet<Id>,
    tells: Vec<SentMessage>,
    asks: Vec<SentMessage>,
    answers: HashMap<Arc<str>, Answer>,
    /// The outcomes of messages to those types.
    answered: HashMap<Id, Outcome>,
}

impl Sent {
    pub(crate) fn set_answer(&mut self, entity_type: &str, answer: Answer) {
        self.answers.insert(entity_type.into(), answer);
    }

    pub(crate) fn take_tells(&mut self) -> Vec<SentMessage> {
        std::mem::take(&mut self.tells)
    }

    pub(crate) fn take_asks(&mut self) -> Vec<SentMessage> {
        std::mem::take(&mut self.asks)
    }

    /// Notes a tell or an ask once, however often it is sent.
    pub(crate) fn note(&mut self, message: &EntityMessage) {
        let Some((id, sent)) = describe(message) else { return };
        if self.seen.insert(id) {
            match &message.content {
                EntityMessageContent::Ask(..) => self.asks.push(sent),
                _ => self.tells.push(sent),
            }
        }
    }

    /// The test's answer to a message; `None` if it does not answer for that type. Like an entity, it answers each
    /// message once, and a copy gets the same answer.
    pub(crate) fn answer(&mut self, message: &EntityMessage) -> Option<Outcome> {
        let answer = self.answers.get_mut(&message.to.entity_type)?;
        let Some((id, sent)) = describe(message) else {
            // Notes and queries of the core.
            let reply = GuestReply::Result(Bytes::new());
            return Some(Outcome::Final { reply, version: 0 });
        };
        let outcome = self.answered.entry(id).or_insert_with(|| {
            let reply = match answer(&sent) {
                Ok(value) => GuestReply::Result(value.to_string().into()),
                Err((code, message)) => GuestReply::Error { code, message },
            };
            Outcome::Final { reply, version: 1 }
        });
        Some(outcome.clone())
    }
}

fn describe(message: &EntityMessage) -> Option<(Id, SentMessage)> {
    let (session, number, method, body) = match &message.content {
        EntityMessageContent::Tell(number, tell) => {
            (ScopedSessionId::of_entity(&message.from), *number, &tell.method, &tell.body)
        }
        EntityMessageContent::Ask(_, ask, _) => {
            (ask.id.session, ask.id.sequence, &ask.method, &ask.body)
        }
        EntityMessageContent::AskNote(_) | EntityMessageContent::FirstTell => return None,
    };
    let sent = SentMessage {
        from: message.from.to_string(),
        to: message.to.to_string(),
        method: method.to_string(),
        body: body.clone(),
    };
    Some(((session, message.to.clone(), number), sent))
}
