//! The asks of a running turn (R20): messages to other entities, for whose answers the turn waits.
//!
//! The asking side stores nothing about an ask. If the turn is abandoned, its message runs again, and the same ask gets
//! the same id. If the command has already run, the target answers from its record.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::timers::Firing;
use crate::codec;
use crate::ids::{Entity, MessageDigest, MessageId, ScopedSessionId, TurnId};

/// The method of an [`AskNote`]. No guest can declare it.
pub const ASK_NOTE: &str = "\u{1}ask-note";
/// Maximum number of asks in a note's path. Longer cycles end only at the asks' deadlines.
const MAX_PATH: usize = 64;
/// About the maximum number of notes that an entity sends while a turn waits: one call may exceed it by as much. Cycles
/// beyond that end only at the deadlines.
const MAX_NOTES: usize = 1_024;
/// Maximum number of lost notes that an entity sends again, and the pause before each resend, in milliseconds.
const MAX_LOST_NOTES: usize = 64;
const RESEND_NOTE_MS: u64 = 100;
/// The first and the longest pause before an unanswered ask is sent again, in milliseconds.
const RESEND_MS: u64 = 20;
const MAX_RESEND_MS: u64 = 1_000;

/// An ask as a turn starts it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewAsk {
    /// The target.
    pub target: Entity,
    /// The method.
    pub method: Arc<str>,
    /// The arguments.
    pub body: Bytes,
    /// The body's content type.
    pub content_type: Arc<str>,
    /// W3C trace context of the turn.
    pub traceparent: Arc<str>,
    /// How long the turn waits for the answer, in milliseconds.
    pub timeout: u64,
}

/// An ask as it is sent. Every copy is the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ask {
    /// Its id.
    pub id: MessageId,
    /// The target.
    pub target: Entity,
    /// The entities that wait for it, outermost first; the last one sends it.
    pub chain: Vec<Entity>,
    /// The method.
    pub method: Arc<str>,
    /// The arguments.
    pub body: Bytes,
    /// The body's content type.
    pub content_type: Arc<str>,
    /// W3C trace context.
    pub traceparent: Arc<str>,
    /// Whether the asking turn handles a query, which may ask only queries.
    pub query_only: bool,
    /// The creation time, in milliseconds of cluster time. If the turn runs again, it is at most `created_skew` later.
    pub created_ms: u64,
    /// See `created_ms`; 0 unless a firing or a request with an idempotency key asks, or a turn that one of them has asked.
    pub created_skew: u64,
    /// The time that the target's turn reads, in milliseconds since the Unix epoch (UTC): the time of the asking
    /// message's turn, or the time at which the timer was due.
    pub utc_ms: u64,
    /// When it was started, in milliseconds of cluster time.
    pub started: u64,
}

/// The part of a turn's input that its asks depend on.
#[derive(Clone, Debug)]
pub(super) struct AskingTurn {
    /// Identifies the message or firing, so another attempt of the turn derives the same ids.
    pub(super) key: Vec<u8>,
    pub(super) chain: Vec<Entity>,
    pub(super) query_only: bool,
    pub(super) created_ms: u64,
    pub(super) created_skew: u64,
    pub(super) utc_ms: u64,
}

impl AskingTurn {
    /// The key of a turn that handles a message.
    pub(super) fn key_of_message(id: &MessageId) -> Vec<u8> {
        [&[0][..], &id.session.0, &id.sequence.to_le_bytes()].concat()
    }

    /// The key of a turn that handles a firing; the same in every attempt.
    pub(super) fn key_of_firing(firing: &Firing) -> Vec<u8> {
        let (generation, due) = (firing.generation.to_le_bytes(), firing.due.to_le_bytes());
        [&[1][..], &generation, &due, firing.name.as_bytes()].concat()
    }

    /// Builds the ask that the turn sends.
    pub(super) fn ask(self, place: u32, ask: NewAsk, started: u64) -> Ask {
        let NewAsk { target, method, body, content_type, traceparent, timeout: _ } = ask;
        let digest = MessageDigest::compute(&target, &method, &body);
        let Self { key, chain, query_only, created_ms, created_skew, utc_ms } = self;
        let asker = chain.last().unwrap_or(&target);
        let session = ScopedSessionId::of_ask(asker, &key, place, &digest);
        let id = MessageId { session, sequence: 1 };
        Ask {
            id,
            target,
            chain,
            method,
            body,
            content_type,
            traceparent,
            query_only,
            created_ms,
            created_skew,
            utc_ms,
            started,
        }
    }
}

/// The asks of the running turn that have no answer yet.
#[derive(Clone, Debug, Default)]
pub(super) struct Asks {
    pending: BTreeMap<u32, PendingAsk>,
    /// The probes passed on so far: each one's number, and the first and last ask of its path. A probe may arrive along
    /// several asks, each of which may close a separate cycle.
    probes: BTreeSet<(u64, MessageId, MessageId)>,
    /// The number of notes that were sent for them.
    passed_on: usize,
    /// Notes that were lost, and when to send them again, on the node's clock.
    lost_notes: Vec<(u64, Entity, AskNote)>,
}

#[derive(Clone, Debug)]
pub(super) struct PendingAsk {
    pub(super) ask: Arc<Ask>,
    /// When the turn stops waiting, on the node's clock.
    pub(super) deadline: u64,
    /// When to send it, on the node's clock; `None` while a copy awaits its answer.
    send_at: Option<u64>,
    /// The pause after the next failure.
    pause: u64,
    /// Whether the outcome of an earlier copy is unknown.
    pub(super) in_doubt: bool,
    /// Why the last copy had no final outcome.
    pub(super) last_refusal: Option<String>,
}

impl PendingAsk {
    /// Whether a copy has been sent and not yet answered.
    pub(super) fn is_in_flight(&self) -> bool {
        self.send_at.is_none()
    }
}

impl Asks {
    pub(super) fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.pending.len()
    }

    /// Drops all asks, because the turn has ended.
    pub(super) fn clear(&mut self) {
        if !self.pending.is_empty() || !self.probes.is_empty() || !self.lost_notes.is_empty() {
            *self = Self::default();
        }
    }

    pub(super) fn start(&mut self, place: u32, ask: Ask, now: u64, timeout: u64) {
        let pending = PendingAsk {
            ask: Arc::new(ask),
            deadline: now.saturating_add(timeout),
            send_at: Some(now),
            pause: RESEND_MS,
            in_doubt: false,
            last_refusal: None,
        };
        self.pending.insert(place, pending);
    }

    /// Takes the asks that are due at `now`, with their remaining time, and marks them as sent.
    pub(super) fn send_due(&mut self, now: u64) -> Vec<(Arc<Ask>, u64)> {
        let mut due = Vec::new();
        for pending in self.pending.values_mut() {
            if pending.send_at.take_if(|at| *at <= now).is_some() {
                due.push((pending.ask.clone(), pending.deadline.saturating_sub(now).max(1)));
            }
        }
        due
    }

    /// Removes an ask whose deadline has passed.
    pub(super) fn take_expired(&mut self, now: u64) -> Option<(u32, PendingAsk)> {
        let place = *self.pending.iter().find(|(_, pending)| pending.deadline <= now)?.0;
        Some((place, self.pending.remove(&place)?))
    }

    /// When an ask or a note must next be sent, or an ask must end, on the node's clock. For asks that wait for
    /// something other than time, only the deadline counts.
    pub(super) fn due(&self, now: u64) -> Option<u64> {
        let resent = |pending: &PendingAsk| pending.send_at.filter(|at| *at > now);
        let at = |pending: &PendingAsk| {
            resent(pending).map_or(pending.deadline, |at| at.min(pending.deadline))
        };
        let notes = self.lost_notes.iter().map(|(at, ..)| *at).filter(|at| *at > now);
        self.pending.values().map(at).chain(notes).min()
    }

    /// Schedules a lost note to be sent again, if the turn still waits.
    pub(super) fn resend_note(&mut self, now: u64, target: Entity, note: AskNote) {
        if !self.is_empty() && self.lost_notes.len() < MAX_LOST_NOTES {
            self.lost_notes.push((now.saturating_add(RESEND_NOTE_MS), target, note));
        }
    }

    /// Takes the notes that are due to be sent again at `now`.
    pub(super) fn take_notes(&mut self, now: u64) -> Vec<(Entity, AskNote)> {
        let due = self.lost_notes.extract_if(.., |(at, ..)| *at <= now);
        due.map(|(_, target, note)| (target, note)).collect()
    }

    /// The place of the ask with this id, if a copy of it is in flight.
    pub(super) fn place_of(&self, id: &MessageId) -> Option<u32> {
        let mut pending = self.pending.iter();
        pending.find(|(_, it)| it.ask.id == *id && it.is_in_flight()).map(|(place, _)| *place)
    }

    pub(super) fn get_mut(&mut self, place: u32) -> Option<&mut PendingAsk> {
        self.pending.get_mut(&place)
    }

    pub(super) fn remove(&mut self, place: u32) -> Option<PendingAsk> {
        self.pending.remove(&place)
    }

    /// Schedules the ask to be sent again after a pause of at least `least` milliseconds.
    pub(super) fn resend_later(&mut self, place: u32, now: u64, least: u64) {
        if let Some(pending) = self.pending.get_mut(&place) {
            pending.send_at = Some(now.saturating_add(pending.pause.max(least)));
            pending.pause = (pending.pause * 2).min(MAX_RESEND_MS);
        }
    }

    /// The asks that a probe must follow. Empty if the probe has already arrived along the same ask.
    pub(super) fn follow(
        &mut self,
        number: u64,
        first: MessageId,
        last: MessageId,
    ) -> Vec<Arc<Ask>> {
        if self.is_empty()
            || self.passed_on >= MAX_NOTES
            || !self.probes.insert((number, first, last))
        {
            return Vec::new();
        }
        let in_flight = self.pending.values().filter(|it| it.is_in_flight());
        let asks: Vec<_> = in_flight.map(|it| it.ask.clone()).take(MAX_NOTES).collect();
        self.passed_on += asks.len();
        asks
    }

    /// Whether the turn waits for an ask to this entity.
    pub(super) fn wait_for(&self, target: &Entity) -> bool {
        self.pending.values().any(|pending| pending.ask.target == *target)
    }
}

/// One ask in the path of a note.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AskStep {
    /// The ask's id.
    pub id: MessageId,
    /// The entity that waits for it.
    pub asker: Entity,
    /// When it was started, in milliseconds of cluster time.
    pub started: u64,
    /// Whether it waits in its target's mailbox; otherwise a turn of its target handles it. Set by the target.
    pub is_queued: bool,
}

/// A message between entities about asks that may wait for each other (R20).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AskNote {
    /// Follows asks from one waiting entity to the next. Each ask in the path is at the entity that sent the next one,
    /// in its mailbox or in its turn; the last ask is at the entity that receives the note.
    Probe {
        /// Distinguishes the notes about one ask.
        number: u64,
        /// The path, oldest step first; not empty.
        path: Vec<AskStep>,
    },
    /// The ask is the youngest of the queued asks in a cycle: the entity at which it is queued refuses it.
    Cycle {
        /// The ask.
        id: MessageId,
        /// The entities in the cycle, starting and ending with the sender of this ask.
        chain: Vec<Entity>,
    },
}

impl AskNote {
    /// Encodes the note as a message body.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        // Encoding names and numbers cannot fail; the receiver would ignore an empty body.
        codec::encode(self).unwrap_or_default().into()
    }

    /// Decodes a message body. `None` if it is not a note, or is longer than any note that a node sends.
    #[must_use]
    pub fn decode(body: &[u8]) -> Option<Self> {
        let note = codec::decode::<Self>(body).ok()?;
        let length = match &note {
            Self::Probe { path, .. } => path.len(),
            Self::Cycle { chain, .. } => chain.len().saturating_sub(1),
        };
        (1..=MAX_PATH).contains(&length).then_some(note)
    }
}

/// The next step of a probe that has reached an entity with a pending ask.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ProbeStep {
    /// Send the note to the ask's target.
    PassOn(AskNote),
    /// The asks form a cycle. The youngest queued one is in the mailbox of `at`, which receives the note.
    Cycle { at: Entity, id: MessageId, chain: Vec<Entity> },
    /// The path is too long.
    Drop,
}

/// Extends a probe's path by an ask of the entity that received the probe, or reports a cycle if the ask is already in
/// the path.
pub(super) fn extend_probe(number: u64, path: &[AskStep], entity: &Entity, ask: &Ask) -> ProbeStep {
    let Some(from) = path.iter().position(|step| step.id == ask.id) else {
        if path.len() >= MAX_PATH {
            return ProbeStep::Drop;
        }
        let (id, started) = (ask.id, ask.started);
        let mut path = path.to_vec();
        path.push(AskStep { id, asker: entity.clone(), started, is_queued: false });
        return ProbeStep::PassOn(AskNote::Probe { number, path });
    };
    let cycle = path.get(from..).unwrap_or_default();
    // An ask that a turn handles can no longer be refused. The ask that closed the cycle was queued.
    let queued = (0..cycle.len()).filter(|at| cycle[*at].is_queued);
    let Some(youngest) = queued.max_by_key(|at| (cycle[*at].started, cycle[*at].id)) else {
        return ProbeStep::Drop;
    };
    let askers = cycle.iter().cycle().skip(youngest).take(cycle.len() + 1);
    let chain: Vec<_> = askers.map(|step| step.asker.clone()).collect();
    // Each ask is at the next asker in the chain.
    let at = chain.get(1).unwrap_or(entity).clone();
    ProbeStep::Cycle { at, id: cycle[youngest].id, chain }
}

/// The chain of a cycle as human-readable text.
pub(super) fn chain_text(chain: &[Entity]) -> String {
    chain.iter().map(ToString::to_string).collect::<Vec<_>>().join(" → ")
}

/// The turn's own id as the key of its asks, used by the mutation [`Mutation::NewAskIds`](super::Mutation::NewAskIds).
pub(super) fn key_of_turn(turn: &TurnId) -> Vec<u8> {
    [turn.nonce, turn.number, turn.epoch.0].iter().flat_map(|it| it.to_le_bytes()).collect()
}
