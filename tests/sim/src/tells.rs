//! Tells in the simulated clusters: what guests send, and the check that every tell runs once and in order (R19, R25).
//!
//! The check reads only the stores: what was put into outboxes, what was taken out of them and why, and which turns ran
//! tells, each in the order of commits.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use ostraca_core::ids::{Entity, TurnId};
use ostraca_core::message::Message;
use ostraca_core::records::{DelayedTell, RecordKey, Tell, Timer};
use ostraca_core::shard::{NewTell, TimerChange, set_delayed_tell, timer_of_delayed_tell};

use crate::rng::Rng;
use crate::store::Image;
use crate::subscriptions::RanTopic;
use crate::violation::{Violation, ViolationKind};

/// The method of tells.
pub(crate) const METHOD: &str = "told";

/// The tells that a command's turn sends.
pub(crate) fn by_command(rng: &mut Rng, entities: u64, utc: u64) -> Vec<NewTell> {
    let count = if rng.chance(40) { rng.range(1, 4) } else { 0 };
    (0..count)
        .map(|_| NewTell {
            target: Entity::new("counter", format!("e{}", rng.range(0, entities))),
            method: METHOD.into(),
            body: Bytes::from_static(b"tell"),
            content_type: "".into(),
            traceparent: "".into(),
            utc_ms: utc,
        })
        .collect()
}

/// The changes that a command's turn makes to its entity's delayed tells.
pub(crate) fn delayed_by_command(rng: &mut Rng, entities: u64, utc: u64) -> Vec<TimerChange> {
    if !rng.chance(15) {
        return Vec::new();
    }
    let name = ["d", "e"][rng.range(0, 2) as usize];
    if rng.chance(20) {
        return vec![TimerChange::Cancel { name: timer_of_delayed_tell(name) }];
    }
    let tell = DelayedTell {
        target: Entity::new("counter", format!("e{}", rng.range(0, entities))),
        method: METHOD.into(),
        body: Bytes::from_static(b"tell"),
        content_type: "".into(),
        traceparent: "".into(),
        extensions: Default::default(),
    };
    vec![set_delayed_tell(name, utc + rng.range(0, 600), &tell)]
}

/// A change to an outbox or to dead letters by a turn that took effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OutboxChange {
    /// A tell was added, or a failed attempt recorded: sender, target, number, and the tell's UTC in milliseconds.
    Put(Entity, Entity, u64, u64),
    /// A tell was deleted.
    Deleted(Entity, Entity, u64),
    /// A tell became a dead letter.
    GivenUp(Entity, u64),
    /// A dead letter was resent or dropped: sender, number, and the sender's version after that turn.
    Taken(Entity, u64, u64),
}

impl OutboxChange {
    /// The change that a write makes. `None` if it affects neither an outbox nor a dead letter.
    pub(crate) fn of(
        sender: &Entity,
        version: u64,
        key: &RecordKey,
        value: Option<&Bytes>,
    ) -> Option<Self> {
        match key {
            RecordKey::Outbox { target, number } if value.is_some() => {
                let tell = ostraca_core::codec::decode::<Tell>(value?).ok()?;
                Some(Self::Put(sender.clone(), target.clone(), *number, tell.utc_ms))
            }
            RecordKey::Outbox { target, number } => {
                Some(Self::Deleted(sender.clone(), target.clone(), *number))
            }
            RecordKey::DeadLetter { number } if value.is_some() => {
                Some(Self::GivenUp(sender.clone(), *number))
            }
            RecordKey::DeadLetter { number } => Some(Self::Taken(sender.clone(), *number, version)),
            _ => None,
        }
    }
}

/// The tells in all stores.
#[derive(Default)]
pub(crate) struct TellCheck {
    put: BTreeSet<(Entity, Entity, u64)>,
    deleted: BTreeSet<(Entity, Entity, u64)>,
    given_up: BTreeSet<(Entity, u64)>,
    taken: BTreeSet<(Entity, u64)>,
    found: Vec<Violation>,
    /// Number of delayed tells that left.
    pub(crate) left_later: u64,
    /// The numbers of the tells that ran, in order, by target and sender.
    ran: BTreeMap<(Entity, Entity), Vec<u64>>,
}

impl TellCheck {
    pub(crate) fn add<'a>(
        &mut self,
        image: &Image,
        message_of: impl Fn(&TurnId) -> Option<&'a Message>,
        ran_guest: impl Fn(&TurnId) -> bool,
        topic_of: impl Fn(&TurnId) -> Option<&'a RanTopic>,
    ) {
        self.check_turns_without_guest(image, |turn| ran_guest(turn) || topic_of(turn).is_some());
        for change in &image.outbox_changes {
            match change.clone() {
                OutboxChange::Put(sender, target, number, _) => {
                    let tell = (sender, target, number);
                    if self.deleted.contains(&tell) {
                        let why = format!("{tell:?} was put back after its deletion");
                        self.found.push(ViolationKind::TellReturned.because(why));
                    }
                    self.put.insert(tell);
                }
                OutboxChange::Deleted(sender, target, number) => {
                    self.deleted.insert((sender, target, number));
                }
                OutboxChange::Taken(sender, number, _) => {
                    let letter = (sender, number);
                    if !self.given_up.contains(&letter) || !self.taken.insert(letter.clone()) {
                        let why = format!("{letter:?} was taken, but was not a dead letter");
                        self.found.push(ViolationKind::TellReturned.because(why));
                    }
                }
                OutboxChange::GivenUp(sender, number) => {
                    self.given_up.insert((sender, number));
                }
            }
        }
        for (entity, _, turn) in &image.turns {
            if let Some(topic) = topic_of(turn) {
                let key = (entity.clone(), topic.sender.clone());
                self.ran.entry(key).or_default().push(topic.number);
            }
            let Some(message) = message_of(turn) else { continue };
            let Some(sender) = &message.sender else { continue };
            let key = (entity.clone(), sender.clone());
            self.ran.entry(key).or_default().push(message.id.sequence);
        }
    }

    /// Checks turns without the guest: they send a tell only if a delayed tell was due or an operator resent a dead
    /// letter.
    fn check_turns_without_guest(&mut self, image: &Image, ran_guest: impl Fn(&TurnId) -> bool) {
        // By sender and version.
        let mut added: BTreeMap<_, BTreeMap<u64, (&Entity, u64)>> = BTreeMap::new();
        let mut taken: BTreeMap<_, usize> = BTreeMap::new();
        for change in &image.outbox_changes {
            match change {
                OutboxChange::Put(sender, target, number, utc) => {
                    let of = added.entry((sender, number >> 16)).or_default();
                    of.entry(*number).or_insert((target, *utc));
                }
                OutboxChange::Taken(sender, _, version) => {
                    *taken.entry((sender, *version)).or_default() += 1;
                }
                _ => {}
            }
        }
        let mut ended: BTreeMap<TurnId, Vec<&Timer>> = BTreeMap::new();
        for (turn, timer) in image.timer_changes.iter().filter_map(|it| it.ended_delayed_tell()) {
            ended.entry(turn).or_default().push(timer);
        }
        // A deletion takes delayed tells with it.
        ended.retain(|turn, _| !image.deletions.contains(turn));
        for (entity, version, turn) in image.turns.iter().filter(|(.., turn)| !ran_guest(turn)) {
            let key = (entity, *version);
            let mut left: Vec<_> = added.get(&key).into_iter().flat_map(BTreeMap::values).collect();
            if taken.get(&key).is_some_and(|taken| left.len() <= *taken) {
                continue;
            }
            for timer in ended.get(turn).into_iter().flatten() {
                let tell = ostraca_core::shard::delayed_tell(timer).ok().flatten();
                let is_it = |(target, _): &&(&Entity, u64)| {
                    tell.as_ref().is_some_and(|tell| tell.target == **target)
                };
                let Some(at) = left.iter().position(is_it) else {
                    let why = format!("version {version} of {entity} lost {timer:?}");
                    self.found.push(ViolationKind::TellLost.because(why));
                    continue;
                };
                let (_, utc) = left.remove(at);
                self.left_later += 1;
                if *utc < timer.due {
                    let why =
                        format!("version {version} of {entity} sent {timer:?} early, at {utc}");
                    self.found.push(ViolationKind::FiredEarly.because(why));
                }
            }
            if !left.is_empty() {
                let why = format!("version {version} of {entity} sent {left:?} without a reason");
                self.found.push(ViolationKind::ToldUncommitted.because(why));
            }
        }
    }

    pub(crate) fn judge(self) -> Vec<Violation> {
        let mut found = self.found;
        let mut all = BTreeSet::new();
        for ((target, sender), numbers) in &self.ran {
            for pair in numbers.windows(2).filter(|pair| pair[0] >= pair[1]) {
                let kind = match pair[0] == pair[1]
                    || numbers.iter().filter(|it| **it == pair[1]).count() > 1
                {
                    true => ViolationKind::ToldTwice,
                    false => ViolationKind::TellOrder,
                };
                found.push(
                    kind.because(format!("{target} ran the tells {numbers:?} from {sender}")),
                );
            }
            for number in numbers {
                let tell = (sender.clone(), target.clone(), *number);
                if !self.put.contains(&tell) {
                    let why =
                        format!("{target} ran tell {number} from {sender}, which no turn sent");
                    found.push(ViolationKind::ToldUncommitted.because(why));
                }
                all.insert(tell);
            }
        }
        for tell in &self.deleted {
            let (sender, target, number) = tell;
            if !all.contains(tell) && !self.given_up.contains(&(sender.clone(), *number)) {
                let why = format!("{sender} deleted tell {number}, which {target} has not run");
                found.push(ViolationKind::TellLost.because(why));
            }
        }
        found
    }
}

/// The tells waiting in outboxes.
pub(crate) fn pending(image: &Image) -> Vec<(Entity, Entity, u64)> {
    let waiting = |(sender, key): &(Entity, RecordKey)| match key {
        RecordKey::Outbox { target, number } => Some((sender.clone(), target.clone(), *number)),
        _ => None,
    };
    image.records.keys().filter_map(waiting).collect()
}
