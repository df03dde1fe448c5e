//! Clients of the small world, which has no gateways: they send straight to a node, any copy at any time.
//!
//! Those of the cluster go by the product's own books (`cluster/clients.rs`).

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
    /// Its creation time, as every copy bears it (R17).
    pub created: u64,
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
        Self { entity, kind, method, by, sent, created: sent, patience, copies: 0, refused: 0 }
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
    /// How far its clock is ahead of the cluster's, or behind.
    pub skew: i64,
    /// It stamps messages anew although copies of them, or of those behind them, may have run: a rule switched off.
    pub restamps_in_doubt: bool,
    /// Entities keep few lanes and replies, and may forget that a message ran before its client knows.
    pub forgetful: bool,
    /// The creation time of every message so far.
    pub stamps: BTreeMap<u64, u64>,
    /// Commands that ended unknown.
    given_up: Vec<(Entity, u64)>,
}

impl Client {
    /// A client with a session of its own.
    #[must_use]
    pub fn new(number: u64) -> Self {
        let session = Session::of("client", &number.to_le_bytes());
        Self {
            session,
            last: 0,
            pending: BTreeMap::new(),
            history: Vec::new(),
            skew: 0,
            restamps_in_doubt: false,
            forgetful: false,
            stamps: BTreeMap::new(),
            given_up: Vec::new(),
        }
    }

    /// The same with a clock that is so far ahead, and with a rule switched off or not.
    #[must_use]
    pub fn with(self, skew: i64, restamps_in_doubt: bool) -> Self {
        Self { skew, restamps_in_doubt, ..self }
    }

    /// The same where entities forget soon.
    #[must_use]
    pub fn of_forgetful(self, forgetful: bool) -> Self {
        Self { forgetful, ..self }
    }

    /// Takes a message under the next sequence.
    pub fn begin(&mut self, mut pending: Pending) -> u64 {
        self.last += 1;
        let latest = self.stamps.values().max().copied().unwrap_or(1);
        pending.created = pending.sent.saturating_add_signed(self.skew).max(latest);
        self.stamps.insert(self.last, pending.created);
        self.pending.insert(self.last, pending);
        self.last
    }

    /// What an outcome breaks if it says that a command was overtaken. A query whose answer was lost may be; a command
    /// never, unless its entity forgets soon, and then only one of which a copy may have run.
    #[must_use]
    pub fn overtaken(&self, sequence: u64, outcome: &Outcome) -> Option<Finding> {
        let overtaken =
            matches!(outcome, Outcome::NotRun { code, .. } if code == codes::SUPERSEDED);
        let pending = self.pending.get(&sequence).filter(|_| overtaken)?;
        if self.forgetful && pending.refused + 1 < pending.copies {
            return None;
        }
        (pending.kind == Kind::Command).then(|| {
            Broken::Overtaken
                .because(format!("{sequence} was overtaken in its lane, and never ran"))
        })
    }

    /// A copy of a message as it is sent now (R17).
    #[must_use]
    pub fn copy(&self, sequence: u64) -> Option<Message> {
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
            created: pending.created,
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
                    // It ran; what came of it is not told.
                    Answer::Dropped => return self.resolve(sequence, now, Seen::Unknown),
                };
                Seen::Final { version, value }
            }
            Outcome::Unknown { .. } => return Some(20),
            Outcome::NotRun { code, retry_after, stamp, .. } => {
                pending.refused += 1;
                // Only if every copy is accounted for is a refusal the end (R16).
                let overtaken = code == codes::SUPERSEDED;
                let certain = pending.refused >= pending.copies || (overtaken && !self.forgetful);
                if overtaken && !certain {
                    return self.resolve(sequence, now, Seen::Unknown);
                }
                if code == codes::TOO_OLD {
                    if !certain && !self.restamps_in_doubt {
                        // Whether an earlier copy ran cannot be found out any more.
                        return self.resolve(sequence, now, Seen::Unknown);
                    }
                    return self.stamp_anew(sequence, now, stamp.unwrap_or(now));
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

    /// Stamps a message anew of which no copy ran, and those behind it: a dropped lane must cover every sequence
    /// below its last. Where one behind it may still run, it waits for its end.
    fn stamp_anew(&mut self, sequence: u64, now: u64, stamp: u64) -> Option<u64> {
        let entity = self.pending.get(&sequence)?.entity.clone();
        if self.given_up.iter().any(|(of, later)| *of == entity && *later > sequence) {
            return self.resolve(sequence, now, Seen::NotRun);
        }
        let behind = |other: &Pending| other.entity == entity;
        let later = || self.pending.range(sequence + 1..).filter(|(_, other)| behind(other));
        if !self.restamps_in_doubt && later().any(|(_, other)| other.refused < other.copies) {
            return Some(20);
        }
        for (sequence, pending) in self.pending.range_mut(sequence..).filter(|(_, it)| behind(it)) {
            pending.created = pending.created.max(stamp);
            self.stamps.insert(*sequence, pending.created);
        }
        Some(1)
    }

    /// Waits no longer for an outcome: whether it ran is not known.
    pub fn give_up(&mut self, sequence: u64, now: u64) {
        self.resolve(sequence, now, Seen::Unknown);
    }

    fn resolve(&mut self, sequence: u64, now: u64, seen: Seen) -> Option<u64> {
        let pending = self.pending.remove(&sequence)?;
        if seen == Seen::Unknown {
            self.given_up.push((pending.entity.clone(), sequence));
        }
        self.history.push(Operation {
            entity: pending.entity.to_string(),
            session: format!("{:?}", self.session),
            sequence,
            command: pending.kind == Kind::Command,
            method: pending.method.into(),
            arguments: pending.by.into(),
            sent: pending.sent,
            received: now,
            given_up: None,
            outcome: seen,
        });
        None
    }
}
