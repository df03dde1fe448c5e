//! A client's session on the real [`ostraca_client::ledger`], which decides what is sent, resent, in doubt,
//! given up or restamped. This module plays the callers in both worlds.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use ostraca_client::ledger::{CallAdmission, Ledger, Mutation, OutgoingMessage};
use ostraca_client::{CallError, MessageId, Reply, SessionId};
use ostraca_codes::codes;
use ostraca_core::ids::{Entity, ScopedSessionId as SessionKey};
use ostraca_core::message::MessageKind;
use ostraca_oracle::{Operation, Outcome as Seen};
use ostraca_wire::flags::KEYED;
use ostraca_wire::outcome::wire_kind;
use ostraca_wire::proto::{self, Envelope};

use crate::violation::{Violation, ViolationKind};

/// How long a caller without a deadline waits, in milliseconds: longer than any run.
pub(crate) const PATIENT: u64 = 600_000;

/// The kind that an envelope names, used where no deployed type determines it.
pub(crate) fn named_kind(envelope: &Envelope) -> MessageKind {
    match envelope.kind() {
        proto::MessageKind::Query => MessageKind::Query,
        _ => MessageKind::Command,
    }
}

/// A message without an outcome, and its copies so far.
#[derive(Clone, Debug)]
pub(crate) struct InFlightMessage {
    pub(crate) entity: Entity,
    pub(crate) kind: MessageKind,
    pub(crate) copies: u32,
    pub(crate) created: u64,
}

/// What a caller remembers about its call.
#[derive(Clone, Debug)]
pub(crate) struct PendingCall {
    pub(crate) entity: Entity,
    pub(crate) kind: MessageKind,
    /// `add`, `take` or `get`.
    pub(crate) method: &'static str,
    /// The argument.
    pub(crate) by: u64,
    /// When the call was made.
    pub(crate) sent: u64,
    /// When the caller stops waiting.
    pub(crate) until: u64,
    /// When the caller gave the call up and resent it under the same id, if it did.
    pub(crate) given_up: Option<u64>,
}

impl PendingCall {
    /// A call to an entity: command or query, method and argument.
    pub(crate) fn new(
        entity: Entity,
        (kind, method, by): (MessageKind, &'static str, u64),
    ) -> Self {
        Self { entity, kind, method, by, sent: 0, until: 0, given_up: None }
    }
}

/// How a call ended.
pub(crate) type CallOutcome = Result<Reply, CallError>;

/// A session: its ledger and what its callers saw.
pub(crate) struct SimSession {
    pub(crate) id: SessionId,
    pub(crate) key: SessionKey,
    pub(crate) history: Vec<Operation>,
    /// Calls without an outcome.
    pub(crate) unresolved: BTreeMap<u64, InFlightMessage>,
    pub(crate) ledger: Ledger<PendingCall>,
    pub(crate) admission: CallAdmission,
    /// Whether it is made from an idempotency key, and so has one message.
    pub(crate) is_keyed: bool,
}

impl SimSession {
    /// Creates session `number` of a principal, with these mutations.
    pub(crate) fn new(number: usize, principal: &str, seed: u64, off: Vec<Mutation>) -> Self {
        let id = SessionId((number as u128 + 1).to_be_bytes());
        Self {
            id,
            key: SessionKey::derive(principal, &id.0),
            history: Vec::new(),
            unresolved: BTreeMap::new(),
            ledger: Ledger::new(id, 1, seed).with_mutations(off),
            admission: CallAdmission::new(id, 1),
            is_keyed: false,
        }
    }

    /// A request that repeats the one of this session, which is made from an idempotency key.
    pub(crate) fn repeating(&self, seed: u64) -> Self {
        Self {
            id: self.id,
            key: self.key,
            history: Vec::new(),
            unresolved: BTreeMap::new(),
            ledger: Ledger::new(self.id, 1, seed),
            admission: CallAdmission::new(self.id, 1),
            is_keyed: true,
        }
    }

    /// Submits a new message with this cluster time as its creation time, or resends the message `again`.
    pub(crate) fn take(
        &mut self,
        begun: Instant,
        cluster_ms: u64,
        called: PendingCall,
        again: Option<MessageId>,
    ) {
        let body = called.by.to_le_bytes();
        // A run stays far below a session's limits.
        let Ok(id) = self.admission.admit(again, cluster_ms, body.len()) else { return };
        // Any time that differs from the nodes' will do.
        let utc_ms = again.map_or(cluster_ms, |id| id.utc_ms);
        let at = |millis| begun + Duration::from_millis(millis);
        let message = OutgoingMessage {
            entity: called.entity.clone(),
            envelope: Envelope {
                r#type: called.entity.entity_type.to_string(),
                id: called.entity.id.to_string(),
                kind: wire_kind(called.kind).into(),
                method: called.method.into(),
                body: body.to_vec().into(),
                utc_ms,
                flags: if self.is_keyed { KEYED } else { 0 },
                ..Envelope::default()
            },
            created_ms: id.created_ms,
            deadline: at(called.until),
            // A request that repeats another one's key does not know that one's creation time.
            is_resend: again.is_some(),
        };
        let entity = called.entity.clone();
        let sent = InFlightMessage { entity, kind: called.kind, copies: 0, created: id.created_ms };
        self.unresolved.insert(id.sequence, sent);
        self.ledger.push(id.sequence, message, called);
    }

    /// Takes the calls that have completed since the function was last called, each with its sequence.
    pub(crate) fn take_ended(&mut self) -> Vec<(u64, PendingCall, CallOutcome)> {
        let ended: Vec<_> = self.ledger.take_completed().collect();
        self.admission.release(ended.len(), ended.len() * 8);
        let ended = ended.into_iter().map(|(called, outcome)| {
            let sequence = match &outcome {
                Ok(answer) => answer.id.sequence,
                Err(error) => error.id().sequence,
            };
            self.unresolved.remove(&sequence);
            (sequence, called, outcome)
        });
        ended.collect()
    }

    /// Records the outcome that a caller has learnt.
    pub(crate) fn seen(
        &mut self,
        now: u64,
        sequence: u64,
        called: &PendingCall,
        outcome: CallOutcome,
    ) {
        self.history.push(Operation {
            entity: called.entity.to_string(),
            session: format!("{:?}", self.key),
            sequence,
            command: called.kind == MessageKind::Command,
            method: called.method.into(),
            arguments: called.by.into(),
            sent: called.sent,
            received: now,
            given_up: called.given_up,
            outcome: seen(outcome),
        });
    }
}

/// Reports a command that was overtaken in its lane. That may happen only to a command of which a copy may have run, on
/// an entity that keeps few lanes. Queries whose answer was lost and calls that were given up may be overtaken, since
/// later calls do not wait for them.
pub(crate) fn overtaken(
    sequence: u64,
    called: &PendingCall,
    outcome: &CallOutcome,
    forgetful: bool,
) -> Option<Violation> {
    let Err(error) = outcome else { return None };
    let may_have_run = matches!(error, CallError::Unknown { .. });
    let first = called.kind == MessageKind::Command && called.given_up.is_none();
    let overtaken = error.code() == codes::SUPERSEDED && first;
    (overtaken && !(may_have_run && forgetful)).then(|| {
        ViolationKind::Superseded
            .because(format!("{sequence} was superseded in its lane, but never ran"))
    })
}

/// Converts an outcome for the oracle.
fn seen(outcome: CallOutcome) -> Seen {
    match outcome {
        Ok(answer) => {
            let number = answer.body.as_ref().try_into().map_or(u64::MAX, u64::from_le_bytes);
            Seen::Final { version: answer.version, value: Ok(number.into()) }
        }
        Err(CallError::Application { code, version, .. }) => {
            Seen::Final { version, value: Err(code.into()) }
        }
        Err(CallError::NotRun { .. }) => Seen::NotRun,
        // After `ReplyDropped`, it is known that the message ran, but not with which result.
        Err(
            CallError::ReplyDropped { .. }
            | CallError::Unanswered { .. }
            | CallError::Unknown { .. },
        ) => Seen::Unknown,
    }
}
