//! Timers in the simulated worlds: what guests set, and the check that firings obey R25.
//!
//! The check reads only the store: each turn that took effect is compared with the timers that were durable before it,
//! in the order of commits. So it detects every firing of a timer that had been cancelled, replaced or fired, whichever
//! node ran it.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use ostraca_core::ids::{Entity, TurnId};
use ostraca_core::records::{Head, OWN_TIMERS, RecordKey, Timer};
use ostraca_core::shard::{Firing, TimerChange, delayed_tell_name};

use crate::rng::Rng;
use crate::store::Image;
use crate::violation::{Violation, ViolationKind};

/// UTC at the start of a run, in milliseconds.
const BEGIN: u64 = 1_700_000_000_000;

const NAMES: [&str; 2] = ["a", "b"];

/// UTC as a node sees it. Nodes lag by a few milliseconds, some more than others.
pub(crate) fn utc(now: u64, incarnation: u64) -> u64 {
    BEGIN + now - (incarnation % 3 * 15).min(now)
}

/// The changes that a message's turn makes to its entity's timers.
pub(crate) fn by_message(rng: &mut Rng, utc: u64) -> Vec<TimerChange> {
    let count = rng.range(0, 3);
    (0..count).map(|_| change(rng, utc, 25)).collect()
}

/// The changes that a firing's turn makes to its entity's timers: few enough that the firings come to an end.
pub(crate) fn by_firing(rng: &mut Rng, firing: &Firing, utc: u64) -> Vec<TimerChange> {
    let mut changes = Vec::new();
    if rng.chance(30) {
        changes.push(TimerChange::Cancel { name: firing.name.clone() });
    }
    if rng.chance(10) {
        changes.push(change(rng, utc, 0));
    }
    changes
}

fn change(rng: &mut Rng, utc: u64, cancels: u64) -> TimerChange {
    let name: Arc<str> = NAMES[rng.range(0, 2) as usize].into();
    if rng.chance(cancels) {
        return TimerChange::Cancel { name };
    }
    let interval = if rng.chance(25) { rng.range(50, 200) } else { 0 };
    TimerChange::Set { name, due: utc + rng.range(0, 400), interval, payload: Bytes::new() }
}

/// A change to one timer by a turn that took effect.
#[derive(Clone, Debug)]
pub struct DurableChange {
    turn: TurnId,
    entity: Entity,
    before: Option<Timer>,
    after: Option<Timer>,
}

impl DurableChange {
    /// The change that a write makes. `None` if it does not affect a timer.
    pub(crate) fn of(
        turn: TurnId,
        entity: &Entity,
        key: &RecordKey,
        before: Option<&Bytes>,
        after: Option<&Bytes>,
    ) -> Option<Self> {
        let RecordKey::Timer { due: OWN_TIMERS, .. } = key else { return None };
        let timer = |bytes: &Bytes| ostraca_core::codec::decode::<Timer>(bytes).ok();
        let (before, after) = (before.and_then(timer), after.and_then(timer));
        Some(Self { turn, entity: entity.clone(), before, after })
    }
}

impl DurableChange {
    /// The delayed tell that the change removed, and the turn in which it left or was cancelled.
    pub(crate) fn ended_delayed_tell(&self) -> Option<(TurnId, &Timer)> {
        let before = self.before.as_ref().filter(|_| self.after.is_none())?;
        delayed_tell_name(&before.name).map(|_| (self.turn, before))
    }
}

/// The firings whose turns were started.
#[derive(Debug, Default)]
pub(crate) struct Firings {
    started: BTreeMap<TurnId, Arc<Firing>>,
    early: Vec<Violation>,
}

impl Firings {
    pub(crate) fn ran(&self, turn: &TurnId) -> bool {
        self.started.contains_key(turn)
    }

    /// Records that a firing's turn starts on a node that sees this UTC.
    pub(crate) fn started(&mut self, turn: TurnId, firing: &Arc<Firing>, utc: u64) {
        if firing.due > utc || firing.utc_ms > utc {
            let why = format!("fired early, at {utc}: {firing:?}");
            self.early.push(ViolationKind::FiredEarly.because(why));
        }
        self.started.insert(turn, firing.clone());
    }

    /// Returns all violations that the firings and a store's contents show.
    pub(crate) fn judge(&self, image: &Image) -> Vec<Violation> {
        let mut found = self.early.clone();
        let mut changes: BTreeMap<TurnId, Vec<&DurableChange>> = BTreeMap::new();
        for change in &image.timer_changes {
            changes.entry(change.turn).or_default().push(change);
        }
        for (entity, version, turn) in &image.turns {
            let Some(firing) = self.started.get(turn) else { continue };
            let of_turn = changes.get(turn).map_or(&[][..], |changes| changes);
            let change = of_turn.iter().find(|change| {
                change.entity == *entity
                    && change.before.as_ref().is_some_and(|it| it.name == firing.name)
            });
            let before = change.and_then(|change| change.before.as_ref());
            let is_its_own =
                before.is_some_and(|it| (it.generation, it.due) == (firing.generation, firing.due));
            let moved = change.is_some_and(|change| {
                change.after.as_ref().is_none_or(|after| {
                    after.generation != firing.generation || after.due > firing.due
                })
            });
            if !is_its_own || !moved {
                found.push(ViolationKind::FiredVoid.because(format!(
                    "version {version} of {entity} fired {firing:?}, but its timer was {before:?} and became {:?}",
                    change.map(|change| &change.after)
                )));
            }
        }
        found
    }
}

/// Whether a record is a wake-up, or affects when an entity needs one.
pub(crate) fn may_move_wake_up(key: &RecordKey) -> bool {
    matches!(key, RecordKey::Timer { .. } | RecordKey::Outbox { .. })
}

/// The wake-ups that a version of an entity left in the store, and the one that it needs (R25).
#[derive(Clone, Debug)]
pub struct WrongWakeUps {
    entity: Entity,
    version: u64,
    stored: Vec<u64>,
    needed: Option<u64>,
}

impl WrongWakeUps {
    /// Compares an entity's wake-ups with its timers, its outbox and what a deletion has yet to remove.
    pub(crate) fn find(
        records: &BTreeMap<(Entity, RecordKey), Bytes>,
        entity: &Entity,
        head: &Head,
    ) -> Option<Self> {
        let first = (entity.clone(), RecordKey::Timer { due: 0, name: "".into() });
        let purge = head.is_purged().unwrap_or_default().then_some(0);
        let (mut stored, mut needed) = (Vec::new(), purge.or(head.expires_at));
        for ((of, key), value) in records.range(first..) {
            let at = match key {
                _ if of != entity => break,
                RecordKey::Timer { due: OWN_TIMERS, .. } => {
                    ostraca_core::codec::decode::<Timer>(value).ok().and_then(|it| it.fires_at())
                }
                RecordKey::Timer { due, .. } => {
                    stored.push(*due);
                    continue;
                }
                RecordKey::Outbox { .. } => Some(0),
                _ => continue,
            };
            needed = needed.into_iter().chain(at).min();
        }
        let is_right = stored.iter().eq(&needed);
        let version = head.version;
        (!is_right).then(|| Self { entity: entity.clone(), version, stored, needed })
    }

    pub(crate) fn judge(&self) -> Violation {
        let Self { entity, version, stored, needed } = self;
        ViolationKind::WakeUpWrong.because(format!(
            "version {version} of {entity} needs the wake-up {needed:?}, but has {stored:?}"
        ))
    }
}

/// The timers that have yet to fire, by entity.
pub(crate) fn pending(image: &Image) -> Vec<(Entity, Timer)> {
    let records = image.records.iter().filter_map(|((entity, key), value)| match key {
        RecordKey::Timer { due: OWN_TIMERS, .. } => {
            let timer = ostraca_core::codec::decode::<Timer>(value).ok()?;
            Some((entity.clone(), timer))
        }
        _ => None,
    });
    records.filter(|(_, timer)| !timer.set_aside).collect()
}
