//! An entity's outbox: the tells that it has yet to send (R19, R25).
//!
//! The turn that sends a tell writes it to the outbox. After that turn is durable, the shard's machine sends the tells,
//! in order and one at a time per target, and resends each one until the target has answered. The answer is final,
//! since the target remembers what it has run, and the entry is then deleted.
//!
//! Like timers, the outbox in memory runs ahead of the store, and is read again if a commit is refused. Only entries of
//! turns that are known to be durable are sent.

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::dead_letters::{DeadLetterAction, MAX_RESENT_BYTES};
use super::subscriptions::TopicMessage;
use crate::codec;
use crate::extensions::Extensions;
use crate::ids::Entity;
use crate::records::{RecordKey, RecordWrite, Tell};

/// Number of low bits of a tell's number that count the tells of one turn; the other bits are the entity's version
/// after that turn.
const INDEX_BITS: u32 = 16;

/// The number of done tells whose deletion is committed while others are still in flight.
const DELETED_TOGETHER: usize = 64;

/// The number of turns of a fan-out whose tells the outbox holds before the next one waits.
const FAN_OUT_TURNS: usize = 4;

/// A tell that a turn sends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewTell {
    /// The entity that it is sent to.
    pub target: Entity,
    /// The method's name.
    pub method: Arc<str>,
    /// The arguments.
    pub body: Bytes,
    /// The body's content type.
    pub content_type: Arc<str>,
    /// W3C trace context of the turn.
    pub traceparent: Arc<str>,
    /// The time of the turn, in milliseconds since the Unix epoch (UTC).
    pub utc_ms: u64,
}

/// How much of its limits an outbox uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutboxSize {
    /// Number of entries and dead letters.
    pub entries: u32,
    /// Size of their methods and bodies in bytes.
    pub bytes: u64,
}

/// The tells to one target.
#[derive(Clone, Debug, Default)]
struct Queue {
    tells: BTreeMap<u64, Arc<Tell>>,
    /// Whether the first tell is in flight.
    in_flight: bool,
    /// The version whose commit the first tell waits for: it makes the previous tell to this target a dead letter, which
    /// the target forgets when it runs the next one, or it stores the new creation time of the first tell.
    after: u64,
    /// When the first tell is sent again, on the node's clock, and the length of the last pause.
    pause: Option<(u64, u64)>,
}

/// An entity's tells after its last turn.
#[derive(Clone, Debug, Default)]
pub(super) struct Outbox {
    queues: BTreeMap<Entity, Queue>,
    /// The number of queues with a tell in flight.
    in_flight: usize,
    /// The target to which the last tell was sent: those after it are next.
    last_target: Option<Entity>,
    entries: usize,
    bytes: u64,
    /// The tells that were given up, by number.
    dead_letters: BTreeMap<u64, Arc<Tell>>,
    /// Turns up to this version are durable.
    durable: u64,
    /// Whether a turn has changed the outbox since it was read.
    changed: bool,
    /// Entries that the targets have run, and whose deletion is not part of a commit yet.
    done: Vec<(Entity, u64)>,
    /// The number of tells, apart from those of fan-outs to the entity itself, beyond which the next turn of a fan-out
    /// waits (R27).
    fan_out_limit: usize,
}

impl Outbox {
    /// The outbox as it was read at `version`. What `old` knows of answers and of tells in flight remains true, since
    /// it concerns only durable entries.
    pub(super) fn load(
        tells: Vec<(u64, Tell)>,
        dead_letters: Vec<(u64, Tell)>,
        version: u64,
        mut old: Self,
    ) -> Self {
        let last_target = old.last_target.take();
        let mut outbox = Self { durable: version, last_target, ..Self::default() };
        if tells.is_empty() && dead_letters.is_empty() {
            return outbox;
        }
        for (number, tell) in tells {
            outbox.insert(number, Arc::new(tell));
        }
        for (number, tell) in dead_letters {
            outbox.bytes += size(&tell);
            outbox.dead_letters.insert(number, Arc::new(tell));
        }
        for (target, number) in std::mem::take(&mut old.done) {
            outbox.finish(&target, number);
        }
        for (target, queue) in &mut outbox.queues {
            let first = queue.tells.keys().next();
            if let Some(known) = old.queues.get(target)
                && known.tells.keys().next() == first
            {
                (queue.in_flight, queue.pause) = (known.in_flight, known.pause);
                outbox.in_flight += usize::from(queue.in_flight);
            }
        }
        outbox
    }

    /// Sets how many tells a turn of a fan-out sends.
    pub(super) fn limit_fan_out(&mut self, page: usize) {
        self.fan_out_limit = page.saturating_mul(FAN_OUT_TURNS - 1);
    }

    /// Whether the first tell of this queue is the next turn of a fan-out, and there is no room for the tells of that
    /// turn.
    fn is_held(&self, queue: &Queue, first: &Tell) -> bool {
        *first.method == *TopicMessage::FanOut.method()
            && self.entries.saturating_sub(queue.tells.len()) > self.fan_out_limit
    }

    fn insert(&mut self, number: u64, tell: Arc<Tell>) {
        self.entries += 1;
        self.bytes += size(&tell);
        self.queues.entry(tell.target.clone()).or_default().tells.insert(number, tell);
    }

    fn remove(&mut self, target: &Entity, number: u64) -> Option<Arc<Tell>> {
        let queue = self.queues.get_mut(target)?;
        let tell = queue.tells.remove(&number)?;
        self.in_flight -= usize::from(std::mem::take(&mut queue.in_flight));
        queue.pause = None;
        if queue.tells.is_empty() {
            self.queues.remove(target);
        }
        self.entries -= 1;
        self.bytes -= size(&tell);
        Some(tell)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }

    /// The number of stored tells, including those whose deletion is not part of a commit yet, and of dead letters.
    pub(super) fn counts(&self) -> (u32, u32) {
        let stored = self.entries + self.done.len();
        let most = |count| u32::try_from(count).unwrap_or(u32::MAX);
        (most(stored), most(self.dead_letters.len()))
    }

    pub(super) fn size(&self) -> OutboxSize {
        let (waiting, dead) = self.counts();
        OutboxSize { entries: waiting.saturating_add(dead), bytes: self.bytes }
    }

    /// Whether the store may hold tells, in particular if the turns since the last read do not commit.
    pub(super) fn depends_on_commits(&self) -> bool {
        self.changed || !self.queues.is_empty() || !self.done.is_empty()
    }

    /// Whether tells are done and their deletion must be committed.
    pub(super) fn has_done(&self) -> bool {
        !self.done.is_empty()
    }

    /// Adds the tells of a turn, and deletes those that are done. Returns the writes.
    pub(super) fn apply(
        &mut self,
        tells: Vec<NewTell>,
        version: u64,
        cluster_time: u64,
    ) -> Vec<RecordWrite> {
        let mut writes = Vec::new();
        for (target, number) in std::mem::take(&mut self.done) {
            writes.push(RecordWrite { key: RecordKey::Outbox { target, number }, value: None });
        }
        self.changed |= !tells.is_empty() || !writes.is_empty();
        for (number, new) in (version << INDEX_BITS..).zip(tells) {
            let tell = Tell {
                target: new.target,
                method: new.method,
                body: new.body,
                content_type: new.content_type,
                traceparent: new.traceparent,
                created_ms: cluster_time,
                utc_ms: new.utc_ms,
                attempts: 0,
                retry_at: 0,
                failure: "".into(),
                extensions: Extensions::default(),
            };
            writes.push(write(number, &tell));
            self.insert(number, Arc::new(tell));
        }
        writes
    }

    /// Records that turns up to this version are durable.
    pub(super) fn on_durable(&mut self, version: u64) {
        self.durable = self.durable.max(version);
    }

    /// Whether the deletion of done tells is to be committed on its own. That can wait while answers are expected, so
    /// that one commit deletes many.
    pub(super) fn must_delete(&self) -> bool {
        !self.done.is_empty() && (self.in_flight == 0 || self.done.len() >= DELETED_TOGETHER)
    }

    /// The tells that can be sent now: the first one to each target, with at most `targets` tells in flight. Targets
    /// take turns.
    pub(super) fn ready(&self, mono: u64, utc: u64, targets: usize) -> Vec<(u64, Arc<Tell>)> {
        let room = targets.max(1).saturating_sub(self.in_flight);
        let can = |queue: &Queue| {
            let (number, tell) = queue.tells.first_key_value()?;
            let is_paused = queue.pause.is_some_and(|(until, _)| until > mono);
            let waits = queue.in_flight
                || is_paused
                || tell.retry_at > utc
                || self.is_held(queue, tell)
                || queue.after.max(*number >> INDEX_BITS) > self.durable;
            (!waits).then(|| (*number, tell.clone()))
        };
        let later = (self.last_target.as_ref().map_or(Unbounded, Excluded), Unbounded);
        let later = self.queues.range::<Entity, _>(later);
        let first = self.last_target.iter().flat_map(|last| self.queues.range(..=last));
        later.chain(first).filter_map(|(_, queue)| can(queue)).take(room).collect()
    }

    /// In how many milliseconds the next tell that is not in flight can be sent, as far as time is concerned.
    pub(super) fn wait(&self, mono: u64, utc: u64) -> Option<u64> {
        let wait = |queue: &Queue| {
            let (_, tell) = queue.tells.first_key_value().filter(|_| !queue.in_flight)?;
            if self.is_held(queue, tell) {
                // The answers to other tells make room.
                return None;
            }
            let pause = queue.pause.map_or(0, |(until, _)| until.saturating_sub(mono));
            Some(pause.max(tell.retry_at.saturating_sub(utc)))
        };
        let mut least = None;
        for wait in self.queues.values().filter_map(wait) {
            least = Some(least.map_or(wait, |least: u64| least.min(wait)));
            if wait == 0 {
                break;
            }
        }
        least
    }

    pub(super) fn has_in_flight(&self) -> bool {
        self.in_flight > 0
    }

    pub(super) fn sent(&mut self, target: &Entity) {
        if let Some(queue) = self.queues.get_mut(target) {
            self.in_flight += usize::from(!std::mem::replace(&mut queue.in_flight, true));
            self.last_target = Some(target.clone());
        }
    }

    /// Records an answer. Returns the tell in flight to the target, if the answer is to that tell.
    pub(super) fn answered(&mut self, target: &Entity, number: u64) -> Option<Arc<Tell>> {
        let queue = self.queues.get_mut(target).filter(|queue| queue.in_flight)?;
        let (first, tell) = queue.tells.first_key_value()?;
        if *first != number {
            return None;
        }
        queue.in_flight = false;
        self.in_flight -= 1;
        Some(tell.clone())
    }

    /// Records that the target has run the tell.
    pub(super) fn finish(&mut self, target: &Entity, number: u64) {
        if self.remove(target, number).is_some() {
            self.done.push((target.clone(), number));
        }
    }

    /// Delays the next attempt to send the first tell, which keeps its id, by a pause that doubles each time.
    pub(super) fn pause(&mut self, target: &Entity, mono: u64, least: u64, most: u64) {
        let Some(queue) = self.queues.get_mut(target) else { return };
        let span = queue.pause.map_or(least, |(_, span)| (span * 2).clamp(least, most.max(least)));
        queue.pause = Some((mono.saturating_add(span), span));
    }

    /// The tell's creation time.
    pub(super) fn created_ms(&self, target: &Entity, number: u64) -> Option<u64> {
        Some(self.queues.get(target)?.tells.get(&number)?.created_ms)
    }

    /// Gives the tell a new creation time, in the turn that leads to `version`: none of its copies ran, and none with
    /// the old time ever will. It waits for that turn's commit. Returns the writes.
    pub(super) fn restamp(
        &mut self,
        target: &Entity,
        number: u64,
        created_ms: u64,
        version: u64,
    ) -> Vec<RecordWrite> {
        let Some(queue) = self.queues.get_mut(target) else { return Vec::new() };
        let Some(tell) = queue.tells.get_mut(&number) else { return Vec::new() };
        let tell = Arc::make_mut(tell);
        // This fails only if a later release has filled the record with fields of its own.
        let restamped = tell.restamp(created_ms);
        debug_assert!(restamped.is_ok(), "{restamped:?}");
        queue.after = version;
        self.changed = true;
        vec![write(number, tell)]
    }

    /// Records a failed attempt: the tell waits until `retry_at`. Returns the writes.
    pub(super) fn fail(
        &mut self,
        target: &Entity,
        number: u64,
        why: &str,
        retry_at: u64,
    ) -> Vec<RecordWrite> {
        let queue = self.queues.get_mut(target);
        let Some(tell) = queue.and_then(|queue| queue.tells.get_mut(&number)) else {
            return Vec::new();
        };
        let tell = Arc::make_mut(tell);
        tell.attempts = tell.attempts.saturating_add(1);
        (tell.retry_at, tell.failure) = (retry_at, why.into());
        self.changed = true;
        vec![write(number, tell)]
    }

    /// Gives the tell up in the turn that leads to `version`: it becomes a dead letter, and the next tell to its target
    /// waits for that turn's commit. Returns the writes.
    pub(super) fn give_up(
        &mut self,
        target: &Entity,
        number: u64,
        why: &str,
        version: u64,
    ) -> Vec<RecordWrite> {
        let Some(tell) = self.remove(target, number) else { return Vec::new() };
        if let Some(queue) = self.queues.get_mut(target) {
            queue.after = version;
        }
        let mut tell = Tell::clone(&tell);
        tell.attempts = tell.attempts.saturating_add(1);
        tell.failure = why.into();
        self.changed = true;
        let value = codec::encode(&tell).unwrap_or_default();
        self.bytes += size(&tell);
        self.dead_letters.insert(number, Arc::new(tell));
        let waiting = RecordKey::Outbox { target: target.clone(), number };
        vec![
            RecordWrite { key: waiting, value: None },
            RecordWrite { key: RecordKey::DeadLetter { number }, value: Some(value.into()) },
        ]
    }

    /// Removes the given dead letters that exist: drops them, or turns each into a new tell of `version`. Returns the
    /// numbers removed, and the writes. With `keeps_numbers`, which violates R19, resent tells keep their numbers.
    pub(super) fn take_dead_letters(
        &mut self,
        action: DeadLetterAction,
        numbers: &[u64],
        version: u64,
        cluster_time: u64,
        keeps_numbers: bool,
    ) -> (Vec<u64>, Vec<RecordWrite>) {
        let (mut taken, mut writes) = (Vec::new(), Vec::new());
        let mut fresh = version << INDEX_BITS..;
        let mut resent = 0;
        for &number in numbers {
            if resent >= MAX_RESENT_BYTES {
                break;
            }
            let Some(tell) = self.dead_letters.remove(&number) else { continue };
            self.bytes -= size(&tell);
            self.changed = true;
            taken.push(number);
            writes.push(RecordWrite { key: RecordKey::DeadLetter { number }, value: None });
            if let (DeadLetterAction::Resend, Some(fresh)) = (action, fresh.next()) {
                let number = if keeps_numbers { number } else { fresh };
                resent += tell.body.len();
                let mut tell =
                    Tell { attempts: 0, retry_at: 0, failure: "".into(), ..Tell::clone(&tell) };
                tell.recreate(cluster_time);
                writes.push(write(number, &tell));
                self.insert(number, Arc::new(tell));
            }
        }
        (taken, writes)
    }

    /// The numbers of the first dead letters, at most `count`.
    pub(super) fn first_dead_letters(&self, count: usize) -> Vec<u64> {
        self.dead_letters.keys().take(count).copied().collect()
    }

    /// The lowest number of a tell to this target that may still be sent.
    pub(super) fn first_to(&self, target: &Entity) -> Option<u64> {
        let waiting = self.queues.get(target).and_then(|queue| queue.tells.keys().next().copied());
        let done = self.done.iter().filter(|(other, _)| other == target).map(|(_, number)| *number);
        waiting.into_iter().chain(done).min()
    }
}

fn write(number: u64, tell: &Tell) -> RecordWrite {
    // A struct of plain numbers, names and bytes always encodes; an empty record would be refused at load.
    let value = codec::encode(tell).unwrap_or_default();
    let key = RecordKey::Outbox { target: tell.target.clone(), number };
    RecordWrite { key, value: Some(value.into()) }
}

fn size(tell: &Tell) -> u64 {
    (tell.method.len() + tell.body.len()) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dead_letter_takes_room_until_it_is_dropped() {
        let tell = Tell {
            target: Entity::new("counter", "bob"),
            method: "m".into(),
            body: "12345".into(),
            content_type: "".into(),
            traceparent: "".into(),
            created_ms: 1,
            utc_ms: 1,
            attempts: 0,
            retry_at: 0,
            failure: "".into(),
            extensions: Extensions::default(),
        };
        let mut outbox =
            Outbox::load(vec![(1, tell.clone())], vec![(2, tell)], 1, Outbox::default());
        assert_eq!(outbox.size(), OutboxSize { entries: 2, bytes: 12 });
        outbox.give_up(&outbox.queues.keys().next().unwrap().clone(), 1, "no", 2);
        assert_eq!(
            (outbox.size(), outbox.counts()),
            (OutboxSize { entries: 2, bytes: 12 }, (0, 2))
        );
        outbox.take_dead_letters(DeadLetterAction::Resend, &[2], 7, 0, false);
        assert_eq!(
            (outbox.size(), outbox.counts()),
            (OutboxSize { entries: 2, bytes: 12 }, (1, 1))
        );
        outbox.take_dead_letters(DeadLetterAction::Drop, &[1], 8, 0, false);
        assert_eq!((outbox.size(), outbox.counts()), (OutboxSize { entries: 1, bytes: 6 }, (1, 0)));
    }

    #[test]
    fn a_pause_ends_with_the_tell_that_it_delayed() {
        let bob = Entity::new("counter", "bob");
        let tell = || NewTell {
            target: bob.clone(),
            method: "m".into(),
            body: Bytes::new(),
            content_type: "".into(),
            traceparent: "".into(),
            utc_ms: 0,
        };
        let mut outbox = Outbox::default();
        outbox.apply(vec![tell(), tell()], 1, 0);
        outbox.on_durable(1);
        let first = outbox.ready(0, 0, 1)[0].0;
        outbox.pause(&bob, 0, 1_000, 5_000);
        assert!(outbox.ready(0, 0, 1).is_empty());
        outbox.finish(&bob, first);
        assert_eq!(outbox.ready(0, 0, 1).len(), 1, "the next tell does not wait");
    }

    #[test]
    fn the_number_of_tells_in_flight_is_counted() {
        let tell = |target: &str| NewTell {
            target: Entity::new("counter", target),
            method: "m".into(),
            body: Bytes::new(),
            content_type: "".into(),
            traceparent: "".into(),
            utc_ms: 0,
        };
        let mut outbox = Outbox::default();
        outbox.apply(vec![tell("a"), tell("b"), tell("c"), tell("d"), tell("a")], 1, 0);
        outbox.on_durable(1);
        let mut step = 0;
        let mut counted = |outbox: &Outbox, expected: usize| {
            step += 1;
            let scanned = outbox.queues.values().filter(|queue| queue.in_flight).count();
            assert_eq!((outbox.in_flight, scanned), (expected, expected), "step {step}");
        };
        let ready = outbox.ready(0, 0, 3);
        assert_eq!(ready.len(), 3);
        for (_, tell) in &ready {
            outbox.sent(&tell.target);
            outbox.sent(&tell.target);
        }
        counted(&outbox, 3);
        assert!(outbox.ready(0, 0, 3).is_empty());
        let (number, tell) = &ready[0];
        outbox.answered(&tell.target, *number);
        counted(&outbox, 2);
        outbox.answered(&tell.target, *number);
        counted(&outbox, 2);
        outbox.finish(&ready[1].1.target, ready[1].0);
        counted(&outbox, 1);
        let tells: Vec<_> = outbox
            .queues
            .values()
            .flat_map(|queue| queue.tells.iter())
            .map(|(number, tell)| (*number, Tell::clone(tell)))
            .collect();
        let again = Outbox::load(tells, Vec::new(), 1, outbox);
        counted(&again, 1);
    }
}
