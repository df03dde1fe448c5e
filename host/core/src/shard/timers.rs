//! The durable timers of one entity (R25): which one is due, and how a turn changes them.
//!
//! Like lanes, timers in memory run ahead of the store: a turn's changes apply at once to the next turn, and the timers
//! are read again from the store if a commit is refused. Confusing at first: an entity has two kinds of records. Each
//! timer is stored by name, with the entity; and one *wake-up* is stored by time, with the shard, under the time at
//! which the entity's first timer fires, or under 0 while tells are in its outbox. A new owner of the shard at first
//! reads only the wake-ups.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::settings::Settings;
use crate::codec;
use crate::extensions::Extensions;
use crate::records::{OWN_TIMERS, RecordKey, RecordWrite, Timer};

/// An entity's timers by name.
pub type TimerMap = BTreeMap<Arc<str>, Arc<Timer>>;

/// A change that a turn makes to an entity's timers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TimerChange {
    /// Sets a timer, and replaces any timer of that name.
    Set {
        /// The timer's name; not empty.
        name: Arc<str>,
        /// When it fires first, in milliseconds since the Unix epoch (UTC).
        due: u64,
        /// Milliseconds between firings; 0 if it fires once.
        interval: u64,
        /// Opaque data for the firings.
        payload: Bytes,
    },
    /// Cancels the timer of that name, if there is one.
    Cancel {
        /// The timer's name.
        name: Arc<str>,
    },
}

/// One firing of a timer: the input of a turn.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Firing {
    /// The timer's name.
    pub name: Arc<str>,
    /// Distinguishes the timer from earlier ones of the same name.
    pub generation: u64,
    /// When it was due, in milliseconds since the Unix epoch (UTC).
    pub due: u64,
    /// How many further firings have come due by now; they are skipped.
    pub missed: u64,
    /// The number of this attempt, from 1.
    pub attempt: u32,
    /// The timer's opaque data.
    pub payload: Bytes,
    /// The time of the turn, in milliseconds since the Unix epoch (UTC).
    pub utc_ms: u64,
}

/// The timers of an entity after its last turn.
#[derive(Clone, Debug, Default)]
pub(super) struct Timers {
    map: Arc<TimerMap>,
    /// Whether a turn has changed the timers since they were read.
    changed: bool,
}

impl Timers {
    pub(super) fn load(timers: Vec<Timer>) -> Self {
        if timers.is_empty() {
            return Self::default();
        }
        let by_name = timers.into_iter().map(|timer| (timer.name.clone(), Arc::new(timer)));
        Self { map: Arc::new(by_name.collect()), changed: false }
    }

    pub(super) fn map(&self) -> &Arc<TimerMap> {
        &self.map
    }

    /// Whether the store may hold timers, in particular if the turns since the last read do not commit.
    pub(super) fn depend_on_commits(&self) -> bool {
        self.changed || !self.map.is_empty()
    }

    /// When the first timer fires, in milliseconds since the Unix epoch (UTC).
    pub(super) fn first(&self) -> Option<u64> {
        self.map.values().filter_map(|timer| timer.fires_at()).min()
    }

    /// The firing that is due at `utc`: that of the `wanted` timer that has waited longest.
    pub(super) fn due(&self, utc: u64, wanted: impl Fn(&Timer) -> bool) -> Option<Firing> {
        let fires_at = |timer: &&Arc<Timer>| timer.fires_at().unwrap_or(u64::MAX);
        let timer = self.map.values().filter(|timer| wanted(timer)).min_by_key(fires_at)?;
        timer.fires_at().filter(|at| *at <= utc)?;
        let missed = utc.saturating_sub(timer.due).checked_div(timer.interval).unwrap_or(0);
        Some(Firing {
            name: timer.name.clone(),
            generation: timer.generation,
            due: timer.due,
            missed,
            attempt: timer.attempts.saturating_add(1),
            payload: timer.payload.clone(),
            utc_ms: utc,
        })
    }

    /// Whether the firing's timer still exists, with the same generation and due time (R25).
    pub(super) fn matches(&self, firing: &Firing) -> bool {
        self.map
            .get(&firing.name)
            .is_some_and(|timer| (timer.generation, timer.due) == (firing.generation, firing.due))
    }

    /// The timers as the firing's turn sees them: its own timer is gone, or due at its next time.
    pub(super) fn after(&self, firing: &Firing) -> Arc<TimerMap> {
        let mut map = TimerMap::clone(&self.map);
        advance(&mut map, firing);
        Arc::new(map)
    }

    /// Applies a turn: the firing that it ran, if any, then its changes in order. Returns the writes.
    pub(super) fn apply(
        &mut self,
        firing: Option<&Firing>,
        changes: Vec<TimerChange>,
        version: u64,
    ) -> Vec<RecordWrite> {
        if firing.is_none() && changes.is_empty() {
            return Vec::new();
        }
        let mut map = TimerMap::clone(&self.map);
        if let Some(firing) = firing {
            advance(&mut map, firing);
        }
        for change in changes {
            match change {
                TimerChange::Set { name, due, interval, payload } => {
                    let timer = Timer {
                        name: name.clone(),
                        generation: version,
                        due: due.min(OWN_TIMERS - 1),
                        interval,
                        payload,
                        attempts: 0,
                        retry_at: 0,
                        failure: "".into(),
                        set_aside: false,
                        extensions: Extensions::default(),
                    };
                    map.insert(name, Arc::new(timer));
                }
                TimerChange::Cancel { name } => {
                    map.remove(&name);
                }
            }
        }
        self.replace(map)
    }

    /// Records a failed attempt: the timer waits, and after the last attempt its firing is given up. Returns the
    /// writes, and whether the firing was given up.
    pub(super) fn fail(
        &mut self,
        firing: &Firing,
        why: &str,
        utc: u64,
        settings: &Settings,
    ) -> (Vec<RecordWrite>, bool) {
        let mut map = TimerMap::clone(&self.map);
        let Some(timer) = map.get_mut(&firing.name) else { return (Vec::new(), false) };
        let timer = Arc::make_mut(timer);
        timer.attempts = firing.attempt;
        timer.failure = why.into();
        let gives_up = timer.attempts >= settings.timer_attempts.max(1);
        if !gives_up {
            timer.retry_at = utc.saturating_add(settings.timer_pause(timer.attempts));
        } else if timer.interval > 0 {
            // This firing is given up, and the timer moves on to its next one.
            timer.due = next_due(timer.due, timer.interval, firing.missed);
            (timer.attempts, timer.retry_at) = (0, 0);
        } else {
            timer.set_aside = true;
        }
        (self.replace(map), gives_up)
    }

    /// Removes the first timers, at most `count`. Returns the writes.
    pub(super) fn remove_first(&mut self, count: usize) -> Vec<RecordWrite> {
        if self.map.is_empty() || count == 0 {
            return Vec::new();
        }
        let kept = self.map.iter().skip(count);
        self.replace(kept.map(|(name, timer)| (name.clone(), timer.clone())).collect())
    }

    /// Replaces the timers with `map`, and returns the writes that do the same in the store.
    fn replace(&mut self, map: TimerMap) -> Vec<RecordWrite> {
        let old = std::mem::replace(&mut self.map, Arc::new(map));
        self.changed = true;
        let mut writes = Vec::new();
        let mut write = |due, name: &Arc<str>, value| {
            writes.push(RecordWrite { key: RecordKey::Timer { due, name: name.clone() }, value });
        };
        for (name, timer) in &*self.map {
            if old.get(name) != Some(timer) {
                let value = codec::encode(&**timer).unwrap_or_default();
                write(OWN_TIMERS, name, Some(value.into()));
            }
        }
        for name in old.keys().filter(|name| !self.map.contains_key(*name)) {
            write(OWN_TIMERS, name, None);
        }
        writes
    }
}

/// The writes that move an entity's wake-up.
pub(super) fn move_wake_up(before: Option<u64>, after: Option<u64>) -> Vec<RecordWrite> {
    if before == after {
        return Vec::new();
    }
    let write = |due, value| RecordWrite { key: RecordKey::Timer { due, name: "".into() }, value };
    let old = before.map(|due| write(due, None));
    old.into_iter().chain(after.map(|due| write(due, Some(Bytes::new())))).collect()
}

/// Removes the fired timer, or moves it to its next time. A timer with another generation or due time is not changed.
fn advance(map: &mut TimerMap, firing: &Firing) {
    let Some(timer) = map.get_mut(&firing.name) else { return };
    if (timer.generation, timer.due) != (firing.generation, firing.due) {
        return;
    }
    if timer.interval == 0 {
        map.remove(&firing.name);
        return;
    }
    let timer = Arc::make_mut(timer);
    timer.due = next_due(timer.due, timer.interval, firing.missed);
    (timer.attempts, timer.retry_at, timer.failure) = (0, 0, "".into());
}

/// The next due time at a fixed rate, after the firing at `due` and those that were missed.
fn next_due(due: u64, interval: u64, missed: u64) -> u64 {
    let ahead = interval.saturating_mul(missed.saturating_add(1));
    due.saturating_add(ahead).min(OWN_TIMERS - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(name: &str, due: u64, interval: u64) -> TimerChange {
        TimerChange::Set { name: name.into(), due, interval, payload: Bytes::from_static(b"p") }
    }

    fn cancel(name: &str) -> TimerChange {
        TimerChange::Cancel { name: name.into() }
    }

    /// The writes as text: `name@due` for a wake-up or a timer that is set, `-name@due` for one that is deleted.
    fn text(writes: Vec<RecordWrite>) -> Vec<String> {
        let own = |due: u64| if due == OWN_TIMERS { "own".into() } else { due.to_string() };
        let line = |write: RecordWrite| match write.key {
            RecordKey::Timer { due, name } => {
                let sign = if write.value.is_some() { "" } else { "-" };
                format!("{sign}{name}@{}", own(due))
            }
            other => panic!("{other:?}"),
        };
        writes.into_iter().map(line).collect()
    }

    #[test]
    fn only_changed_timers_are_written() {
        let mut timers = Timers::default();
        assert_eq!(timers.apply(None, vec![], 1), []);
        let writes = timers.apply(None, vec![set("b", 20, 0), set("a", 30, 0)], 1);
        assert_eq!(
            (text(writes), timers.first()),
            (vec!["a@own".into(), "b@own".into()], Some(20))
        );
        assert_eq!(text(timers.apply(None, vec![set("c", 25, 0)], 2)), ["c@own"]);
        assert_eq!(text(timers.apply(None, vec![cancel("b")], 3)), ["-b@own"]);
        assert_eq!(timers.first(), Some(25));
        let both = vec![set("a", 24, 0), cancel("a"), cancel("c"), cancel("none")];
        assert_eq!(text(timers.apply(None, both, 4)), ["-a@own", "-c@own"]);
        assert_eq!(timers.first(), None);
    }

    #[test]
    fn r25_a_wake_up_moves_in_one_commit() {
        assert_eq!(move_wake_up(Some(1), Some(1)), []);
        assert_eq!(text(move_wake_up(None, Some(0))), ["@0"]);
        assert_eq!(text(move_wake_up(Some(20), Some(25))), ["-@20", "@25"]);
        assert_eq!(text(move_wake_up(Some(25), None)), ["-@25"]);
    }

    #[test]
    fn r25_a_firing_is_never_early_and_the_longest_wait_first() {
        let mut timers = Timers::default();
        timers.apply(None, vec![set("a", 30, 0), set("b", 20, 0), set("c", 20, 0)], 7);
        assert_eq!(timers.due(19, |_| true), None);
        let firing = timers.due(20, |_| true).unwrap();
        assert_eq!((&*firing.name, firing.generation, firing.attempt), ("b", 7, 1));
        assert_eq!(text(timers.apply(Some(&firing), vec![], 8)), ["-b@own"]);
        assert!(!timers.matches(&firing), "it fires once");
        assert_eq!(&*timers.due(99, |_| true).unwrap().name, "c");
    }

    #[test]
    fn a_timer_is_never_due_at_the_time_that_timers_are_stored_under() {
        let mut timers = Timers::default();
        timers.apply(None, vec![set("a", u64::MAX, 0)], 1);
        assert_eq!(timers.first(), Some(OWN_TIMERS - 1));
    }

    #[test]
    fn r25_missed_firings_of_a_fixed_rate_are_one_firing() {
        let mut timers = Timers::default();
        timers.apply(None, vec![set("tick", 100, 10)], 1);
        let firing = timers.due(100, |_| true).unwrap();
        assert_eq!((firing.due, firing.missed), (100, 0));
        timers.apply(Some(&firing), vec![], 2);
        let firing = timers.due(149, |_| true).unwrap();
        assert_eq!((firing.due, firing.missed), (110, 3));
        timers.apply(Some(&firing), vec![], 3);
        assert_eq!(
            (timers.due(149, |_| true), timers.first()),
            (None, Some(150)),
            "the rate remains fixed"
        );
    }

    #[test]
    fn r25_a_replaced_timer_is_another_generation() {
        let mut timers = Timers::default();
        timers.apply(None, vec![set("a", 10, 0)], 1);
        let firing = timers.due(10, |_| true).unwrap();
        timers.apply(None, vec![set("a", 10, 0)], 2);
        assert!(!timers.matches(&firing));
        timers.apply(Some(&firing), vec![], 3);
        assert_eq!(timers.first(), Some(10), "the new timer is not touched");
        let firing = timers.due(10, |_| true).unwrap();
        assert!(timers.matches(&firing));
        // The handler sets its own timer again: this change applies after the firing.
        assert!(timers.after(&firing).is_empty());
        timers.apply(Some(&firing), vec![set("a", 50, 0)], 4);
        assert_eq!(timers.first(), Some(50));
    }

    #[test]
    fn a_failing_firing_waits_longer_and_ends_set_aside() {
        let settings = Settings {
            timer_attempts: 3,
            timer_backoff: 100,
            timer_max_backoff: 150,
            ..Settings::default()
        };
        let mut timers = Timers::default();
        timers.apply(None, vec![set("a", 10, 0)], 1);
        for (attempt, utc, next) in [(1, 10, 110), (2, 110, 260)] {
            let firing = timers.due(utc, |_| true).unwrap();
            assert_eq!((firing.attempt, firing.due), (attempt, 10));
            let (_, gives_up) = timers.fail(&firing, "why", utc, &settings);
            assert!(!gives_up);
            assert_eq!((timers.first(), timers.due(next - 1, |_| true)), (Some(next), None));
        }
        let firing = timers.due(260, |_| true).unwrap();
        let (writes, gives_up) = timers.fail(&firing, "why", 260, &settings);
        assert!(gives_up);
        assert_eq!((text(writes), timers.first()), (vec!["a@own".into()], None));
        let kept = &timers.map()["a"];
        assert!(kept.set_aside && &*kept.failure == "why", "it is kept, but does not fire again");
        timers.apply(None, vec![set("a", 300, 0)], 9);
        assert_eq!(timers.first(), Some(300), "setting it again revives it");
    }

    #[test]
    fn a_repeated_timer_survives_a_firing_that_is_given_up() {
        let settings = Settings { timer_attempts: 1, ..Settings::default() };
        let mut timers = Timers::default();
        timers.apply(None, vec![set("a", 10, 10)], 1);
        let firing = timers.due(35, |_| true).unwrap();
        assert!(timers.fail(&firing, "why", 35, &settings).1);
        assert_eq!(timers.first(), Some(40));
        let firing = timers.due(40, |_| true).unwrap();
        assert_eq!((firing.attempt, firing.missed), (1, 0));
    }
}
