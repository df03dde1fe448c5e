//! The asks of a running turn (R20): messages to other entities whose answers the turn waits for.
//!
//! Nothing of an ask is stored on the asking side. If the turn is abandoned, its message runs again, and the same ask
//! gets the same id, so a command that has run there is answered from its record.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::timers::Firing;
use crate::codec;
use crate::ids::{Entity, MessageDigest, MessageId, ScopedSessionId, TurnId};

/// The method of an [`AskNote`]. No guest can declare it.
pub const ASK_NOTE: &str = "\u{1}ask-note";
/// Maximum number of asks in the path of a note. A cycle of more asks ends at their deadlines.
const MAX_PATH: usize = 64;
/// Maximum number of probes that an entity passes on while a turn waits. Cycles beyond it end at their deadlines.
const MAX_PROBES: usize = 4_096;
/// Maximum number of lost notes that an entity sends again, and the pause before, in milliseconds.
const MAX_LOST_NOTES: usize = 64;
const RESEND_NOTE_MS: u64 = 100;
/// The first pause before an unanswered ask is sent again, and the longest, in milliseconds.
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
    /// Whether it comes from a query, which may ask only queries.
    pub query_only: bool,
    /// The creation time, in milliseconds of cluster time. If the turn runs again, it is at most `created_skew` later.
    pub created_ms: u64,
    /// See `created_ms`; 0 if a message's turn asks.
    pub created_skew: u64,
    /// The time that the target's turn reads, in milliseconds since the Unix epoch (UTC): that of the message's turn, or
    /// when the timer was due.
    pub utc_ms: u64,
    /// When it was started, in milliseconds of cluster time.
    pub started: u64,
}

/// What a turn handles, as far as its asks need to know.
#[derive(Clone, Debug)]
pub(super) struct AskingTurn {
    /// Identifies the message or firing, so that another attempt of the turn derives the same ids.
    pub(super) key: Vec<u8>,
    pub(super) chain: Vec<Entity>,
    pub(super) query_only: bool,
    pub(super) created_ms: u64,
    pub(super) created_skew: u64,
    pub(super) utc_ms: u64,
}

impl AskingTurn {
    /// The key of a message's turn.
    pub(super) fn key_of_message(id: &MessageId) -> Vec<u8> {
        [&[0][..], &id.session.0, &id.sequence.to_le_bytes()].concat()
    }

    /// The key of a firing's turn, the same in every attempt.
    pub(super) fn key_of_firing(firing: &Firing) -> Vec<u8> {
        let (generation, due) = (firing.generation.to_le_bytes(), firing.due.to_le_bytes());
        [&[1][..], &generation, &due, firing.name.as_bytes()].concat()
    }

    /// The ask that the turn sends.
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
    /// The probes that were passed on: their number, and the first and the last ask of their path. A probe may come along
    /// several asks, and each may close a cycle of its own.
    probes: BTreeSet<(u64, MessageId, MessageId)>,
    /// Notes that did not arrive, and when they are sent again, on the node's clock.
    lost_notes: Vec<(u64, Entity, AskNote)>,
}

#[derive(Clone, Debug)]
pub(super) struct PendingAsk {
    pub(super) ask: Arc<Ask>,
    /// When the turn stops waiting, on the node's clock.
    pub(super) deadline: u64,
    /// When it is sent, on the node's clock; `None` while an answer is awaited.
    send_at: Option<u64>,
    /// The pause after the next failure.
    pause: u64,
    /// Whether a copy was sent whose outcome is unknown.
    pub(super) in_doubt: bool,
    /// Why the last copy had no outcome.
    pub(super) last_refusal: Option<String>,
}

impl PendingAsk {
    /// Whether a copy has been sent and not been answered.
    pub(super) fn is_in_flight(&self) -> bool {
        self.send_at.is_none()
    }
}

impl Asks {
    pub(super) fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// Forgets all asks: the turn has ended.
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

    /// The asks that can be sent at `now`, which count as sent from now on.
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

    /// When an ask must be sent or ended, on the node's clock. Asks that wait for something else than time count only
    /// with their deadlines.
    pub(super) fn due(&self, now: u64) -> Option<u64> {
        let resent = |pending: &PendingAsk| pending.send_at.filter(|at| *at > now);
        let at = |pending: &PendingAsk| {
            resent(pending).map_or(pending.deadline, |at| at.min(pending.deadline))
        };
        let notes = self.lost_notes.iter().map(|(at, ..)| *at).filter(|at| *at > now);
        self.pending.values().map(at).chain(notes).min()
    }

    /// Sends a note again later, if a turn still waits.
    pub(super) fn resend_note(&mut self, now: u64, target: Entity, note: AskNote) {
        if !self.is_empty() && self.lost_notes.len() < MAX_LOST_NOTES {
            self.lost_notes.push((now.saturating_add(RESEND_NOTE_MS), target, note));
        }
    }

    /// Takes the notes that are sent again at `now`.
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

    /// Sends the ask again after a pause of at least `least` milliseconds.
    pub(super) fn resend_later(&mut self, place: u32, now: u64, least: u64) {
        if let Some(pending) = self.pending.get_mut(&place) {
            pending.send_at = Some(now.saturating_add(pending.pause.max(least)));
            pending.pause = (pending.pause * 2).min(MAX_RESEND_MS);
        }
    }

    /// The asks that a probe must follow. Empty if the probe has come along the same ask before.
    pub(super) fn follow(
        &mut self,
        number: u64,
        first: MessageId,
        last: MessageId,
    ) -> Vec<Arc<Ask>> {
        if self.is_empty()
            || self.probes.len() >= MAX_PROBES
            || !self.probes.insert((number, first, last))
        {
            return Vec::new();
        }
        self.pending.values().filter(|it| it.is_in_flight()).map(|it| it.ask.clone()).collect()
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
}

/// What entities tell each other about asks that may wait for each other (R20).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AskNote {
    /// Follows asks from one waiting entity to the next. Each ask in the path waits at the entity that sent the next
    /// one, and the last one waits at the entity that gets the note.
    Probe {
        /// Distinguishes the notes about one ask.
        number: u64,
        /// The path, oldest step first; not empty.
        path: Vec<AskStep>,
    },
    /// The ask is the youngest one of a cycle: the entity at which it waits refuses it.
    Cycle {
        /// The ask.
        id: MessageId,
        /// The entities of the cycle, starting and ending with the one that sent this ask.
        chain: Vec<Entity>,
    },
}

impl AskNote {
    /// Encodes the note as a message's body.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        // Names and numbers always encode; an empty body would be ignored.
        codec::encode(self).unwrap_or_default().into()
    }

    /// Decodes a message's body. `None` if it is not a note, or a longer one than any node sends.
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

/// What follows from a probe at an entity that waits for `ask`.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ProbeStep {
    /// The note goes to the ask's target.
    PassOn(AskNote),
    /// The asks wait for each other. The youngest one waits at `at`, which gets the note.
    Cycle { at: Entity, note: AskNote },
    /// The path is too long.
    Drop,
}

/// Extends a probe's path by an ask of the entity that got the probe, or finds that the ask is already in the path.
pub(super) fn extend_probe(number: u64, path: &[AskStep], entity: &Entity, ask: &Ask) -> ProbeStep {
    let Some(from) = path.iter().position(|step| step.id == ask.id) else {
        if path.len() >= MAX_PATH {
            return ProbeStep::Drop;
        }
        let (id, started) = (ask.id, ask.started);
        let mut path = path.to_vec();
        path.push(AskStep { id, asker: entity.clone(), started });
        return ProbeStep::PassOn(AskNote::Probe { number, path });
    };
    let cycle = path.get(from..).unwrap_or_default();
    let Some(youngest) = (0..cycle.len()).max_by_key(|at| (cycle[*at].started, cycle[*at].id))
    else {
        return ProbeStep::Drop;
    };
    let askers = cycle.iter().cycle().skip(youngest).take(cycle.len() + 1);
    let chain: Vec<_> = askers.map(|step| step.asker.clone()).collect();
    // The cycle's last ask waits at its first asker.
    let at = chain.get(1).unwrap_or(entity).clone();
    ProbeStep::Cycle { at, note: AskNote::Cycle { id: cycle[youngest].id, chain } }
}

/// The chain of a cycle, for people.
pub(super) fn chain_text(chain: &[Entity]) -> String {
    chain.iter().map(ToString::to_string).collect::<Vec<_>>().join(" → ")
}

/// A turn's own id as the key of its asks: what [`Mutation::NewAskIds`](super::Mutation::NewAskIds) does instead.
pub(super) fn key_of_turn(turn: &TurnId) -> Vec<u8> {
    [turn.nonce, turn.number, turn.epoch.0].iter().flat_map(|it| it.to_le_bytes()).collect()
}
