//! Asks in the simulated clusters: what turns ask, and the check that an asked command runs once, however often the
//! asking turn runs (R20).
//!
//! What a turn asks depends only on its message or firing, so a turn that runs again asks the same things.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use ostraca_core::ids::{Entity, MessageId, TurnId};
use ostraca_core::message::{Message, Outcome};
use ostraca_core::records::GuestReply;
use ostraca_core::shard::{Firing, NewAsk};

use crate::rng::Rng;
use crate::store::Image;
use crate::violation::{Violation, ViolationKind};

/// The method of asked commands.
pub(crate) const METHOD: &str = "asked";

/// A turn's input: the entity, and either its message or the timer, generation and due time of its firing.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum TurnKey {
    Message(Entity, MessageId),
    Firing(Entity, String, u64, u64),
}

impl TurnKey {
    pub(crate) fn of_message(message: &Message) -> Self {
        Self::Message(message.target.clone(), message.id)
    }

    pub(crate) fn of_firing(entity: &Entity, firing: &Firing) -> Self {
        Self::Firing(entity.clone(), firing.name.to_string(), firing.generation, firing.due)
    }

    fn rng(&self) -> Rng {
        let mut hasher = blake3::Hasher::new();
        match self {
            Self::Message(entity, id) => {
                hasher.update(entity.id.as_bytes());
                hasher.update(&id.session.0);
                hasher.update(&id.sequence.to_le_bytes());
            }
            Self::Firing(entity, name, generation, due) => {
                hasher.update(entity.id.as_bytes());
                hasher.update(name.as_bytes());
                hasher.update(&generation.to_le_bytes());
                hasher.update(&due.to_le_bytes());
            }
        }
        let hash = hasher.finalize();
        Rng::new(hash.as_bytes().iter().take(8).fold(0, |sum, byte| sum << 8 | u64::from(*byte)))
    }

    /// The turn's asks, in order.
    pub(crate) fn asks(&self, entities: u64, is_query: bool, long: bool) -> Vec<NewAsk> {
        let mut rng = self.rng();
        let count = if rng.chance(25) { rng.range(1, 4) } else { 0 };
        (0..count)
            .map(|place| NewAsk {
                target: Entity::new("counter", format!("e{}", rng.range(0, entities))),
                method: if is_query || rng.chance(20) { "get" } else { METHOD }.into(),
                body: Bytes::from(place.to_le_bytes().to_vec()),
                content_type: "".into(),
                traceparent: "".into(),
                // Some wait long enough for a cycle to be detected.
                timeout: match if long { 0 } else { rng.range(0, 10) } {
                    0 => rng.range(1_000, 2_500),
                    1..3 => rng.range(800, 1_300),
                    _ => rng.range(100, 700),
                },
            })
            .collect()
    }
}

/// An asked command as the asking turn identifies it, independent of its id.
type AskKey = (TurnKey, u32);

/// Every ask that any turn started.
#[derive(Default)]
pub(crate) struct AskCheck {
    /// By id: the ask, and the number of attempts that started it.
    started: BTreeMap<MessageId, (AskKey, u32)>,
    /// By id: the first final answer.
    answers: BTreeMap<MessageId, (u64, GuestReply)>,
    /// The asks that were reported to a turn as not run.
    not_run: BTreeSet<MessageId>,
    /// The durable turns that ran asked commands.
    ran: BTreeMap<MessageId, Vec<(Entity, u64)>>,
    found: Vec<Violation>,
}

impl AskCheck {
    /// Records that an attempt of a turn started an ask.
    pub(crate) fn started(&mut self, turn: &TurnKey, place: u32, id: MessageId) {
        let key = (turn.clone(), place);
        self.started.entry(id).or_insert((key, 0)).1 += 1;
    }

    /// Records the outcome of an asked command that a turn received. Returns whether a final answer was received
    /// before.
    pub(crate) fn answered(&mut self, id: MessageId, outcome: &Outcome) -> bool {
        match outcome {
            Outcome::Final { reply, version } => {
                let now = (*version, reply.clone());
                let repeated = self.answers.contains_key(&id);
                let first = self.answers.entry(id).or_insert_with(|| now.clone());
                let is_same = first.0 == now.0
                    && (first.1 == now.1
                        || now.1 == GuestReply::Dropped
                        || first.1 == GuestReply::Dropped);
                if !is_same {
                    let why = format!("{id:?} was answered with {first:?}, then with {now:?}");
                    self.found.push(ViolationKind::AskAnswerChanged.because(why));
                }
                repeated
            }
            Outcome::NotRun { .. } => {
                self.not_run.insert(id);
                false
            }
            Outcome::Unknown { .. } => false,
        }
    }

    pub(crate) fn add<'a>(
        &mut self,
        image: &Image,
        message_of: impl Fn(&TurnId) -> Option<&'a Message>,
    ) {
        for (entity, version, turn) in &image.turns {
            let Some(message) = message_of(turn).filter(|it| it.asked_by.is_some()) else {
                continue;
            };
            self.ran.entry(message.id).or_default().push((entity.clone(), *version));
        }
    }

    pub(crate) fn judge(self) -> Vec<Violation> {
        let mut found = self.found;
        let mut by_key: BTreeMap<&AskKey, Vec<&(Entity, u64)>> = BTreeMap::new();
        for (id, runs) in &self.ran {
            match self.started.get(id) {
                Some((key, attempts)) => {
                    by_key.entry(key).or_default().extend(runs);
                    if self.not_run.contains(id) && *attempts == 1 {
                        let why = format!("{key:?} ran as {runs:?}, but was reported as not run");
                        found.push(ViolationKind::AskRanAfterRefusal.because(why));
                    }
                }
                None => {
                    let why = format!("{runs:?} ran {id:?}, which no turn asked");
                    found.push(ViolationKind::AskRanTwice.because(why));
                }
            }
        }
        for (key, runs) in by_key.into_iter().filter(|(_, runs)| runs.len() > 1) {
            let why = format!("{key:?} ran as {runs:?}");
            found.push(ViolationKind::AskRanTwice.because(why));
        }
        for (id, answer) in self.answers.iter().filter(|(id, _)| !self.ran.contains_key(id)) {
            let why = format!("{id:?} was answered with {answer:?}, but no durable turn ran it");
            found.push(ViolationKind::AskLost.because(why));
        }
        found
    }
}
