//! Clients that pipeline, lose their patience and send again under the same id.

use std::collections::BTreeMap;

use ostraca_oracle::{Operation, Outcome as Seen};
use ostraca_sharding::ids::{Digest, Entity, MessageId, Session};
use ostraca_sharding::message::{Kind, Message, Outcome, Token, codes};
use ostraca_sharding::records::Answer;

use crate::finding::{Broken, Finding};

/// One message that a client has not seen the end of.
#[derive(Clone, Debug)]
pub struct Pending {
    /// Whom it is for.
    pub entity: Entity,
    /// Command or query.
    pub kind: Kind,
    /// `add`, `take` or `get`.
    pub method: &'static str,
    /// The argument.
    pub by: u64,
    /// When it was first sent.
    pub sent: u64,
    /// Milliseconds that each copy may wait to be started, until the client stops saying so.
    pub patience: Option<u64>,
    /// Copies sent, and copies answered with `not-run`.
    pub copies: u32,
    /// See `copies`.
    pub refused: u32,
}

impl Pending {
    /// A message that was not sent yet: command or query, method and argument.
    #[must_use]
    pub fn new(
        entity: Entity,
        (kind, method, by): (Kind, &'static str, u64),
        sent: u64,
        patience: Option<u64>,
    ) -> Self {
        Self { entity, kind, method, by, sent, patience, copies: 0, refused: 0 }
    }
}

/// One session.
#[derive(Debug)]
pub struct Client {
    /// Its id.
    pub session: Session,
    /// The last sequence that it used.
    pub last: u64,
    /// What is unresolved, by sequence.
    pub pending: BTreeMap<u64, Pending>,
    /// What it saw.
    pub history: Vec<Operation>,
}

impl Client {
    /// A client with a session of its own.
    #[must_use]
    pub fn new(number: u64) -> Self {
        let session = Session::of("client", &number.to_le_bytes());
        Self { session, last: 0, pending: BTreeMap::new(), history: Vec::new() }
    }

    /// Takes a message under the next sequence.
    pub fn begin(&mut self, pending: Pending) -> u64 {
        self.last += 1;
        self.pending.insert(self.last, pending);
        self.last
    }

    /// What an outcome breaks if it says that a command was overtaken. A query whose answer was lost may be; a command
    /// never.
    #[must_use]
    pub fn overtaken(&self, sequence: u64, outcome: &Outcome) -> Option<Finding> {
        let overtaken =
            matches!(outcome, Outcome::NotRun { code, .. } if code == codes::SUPERSEDED);
        let pending = self.pending.get(&sequence).filter(|_| overtaken)?;
        (pending.kind == Kind::Command).then(|| {
            Broken::Overtaken
                .because(format!("{sequence} was overtaken in its lane, and never ran"))
        })
    }

    /// A copy of a message as it is sent now (R17).
    #[must_use]
    pub fn copy(&self, sequence: u64, now: u64) -> Option<Message> {
        let pending = self.pending.get(&sequence)?;
        let before = self.pending.range(..sequence).rev();
        let after =
            before.filter(|(_, other)| other.entity == pending.entity).map(|(s, _)| *s).next();
        let settled = self.pending.keys().next().copied().unwrap_or(sequence);
        let body = pending.by.to_le_bytes();
        Some(Message {
            token: Token(0),
            target: pending.entity.clone(),
            id: MessageId { session: self.session, sequence },
            after: after.unwrap_or(0),
            settled,
            kind: pending.kind,
            method: pending.method.into(),
            body: body.to_vec().into(),
            digest: Digest::of(&pending.entity, pending.method, &body),
            age: now - pending.sent,
            arrived: 0,
            deadline: pending.patience,
            context: Default::default(),
        })
    }

    /// Takes a reply; says after how many milliseconds to send the message again, if it is not resolved.
    pub fn reply(&mut self, sequence: u64, now: u64, outcome: Outcome) -> Option<u64> {
        let pending = self.pending.get_mut(&sequence)?;
        let seen = match outcome {
            Outcome::Final { answer, version } => {
                let value = match answer {
                    Answer::Result(body) => {
                        Ok(body.as_ref().try_into().map_or(u64::MAX, u64::from_le_bytes).into())
                    }
                    Answer::Error { code, .. } => Err(code),
                };
                Seen::Final { version, value }
            }
            Outcome::Unknown { .. } => return Some(20),
            Outcome::NotRun { code, retry_after, .. } => {
                pending.refused += 1;
                // Only if every copy is accounted for is a refusal the end (R16).
                let certain = pending.refused >= pending.copies || code == codes::SUPERSEDED;
                if code == codes::TOO_OLD && !certain {
                    // Whether an earlier copy ran cannot be found out any more.
                    return self.resolve(sequence, now, Seen::Unknown);
                }
                match retry_after {
                    Some(after) if pending.patience.is_none() => return Some(u64::from(after) + 5),
                    _ if certain => Seen::NotRun,
                    _ => {
                        pending.patience = None;
                        return Some(30);
                    }
                }
            }
        };
        self.resolve(sequence, now, seen)
    }

    /// Waits no longer for an outcome: whether it ran is not known. Tells what was given up.
    pub fn give_up(&mut self, sequence: u64, now: u64) -> Option<Kind> {
        let kind = self.pending.get(&sequence)?.kind;
        self.resolve(sequence, now, Seen::Unknown);
        Some(kind)
    }

    fn resolve(&mut self, sequence: u64, now: u64, seen: Seen) -> Option<u64> {
        let pending = self.pending.remove(&sequence)?;
        self.history.push(Operation {
            entity: pending.entity.to_string(),
            session: format!("{:?}", self.session),
            sequence,
            command: pending.kind == Kind::Command,
            method: pending.method.into(),
            arguments: pending.by.into(),
            sent: pending.sent,
            received: now,
            outcome: seen,
        });
        None
    }
}
