//! Rates, errors and durations of each method of each type, at the node that owns the entities.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::{Distribution, Histogram};

/// Stands for the type and the method of everything beyond the bound.
pub const OTHER: &str = "(other)";

/// What a turn runs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Work {
    /// A message to this method.
    Message(Arc<str>),
    /// A timer.
    Timer,
    /// The start of an instance.
    Start,
    /// The hook that runs before an instance is dropped.
    Stop,
    /// A migration of the entity's state.
    Migration,
}

impl Work {
    /// The name of the kind of work.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Message(_) => "message",
            Self::Timer => "timer",
            Self::Start => "start",
            Self::Stop => "stop",
            Self::Migration => "migration",
        }
    }

    /// The method, or nothing if it is not a message.
    #[must_use]
    pub fn method(&self) -> &str {
        match self {
            Self::Message(method) => method,
            _ => "",
        }
    }
}

/// How a message ended, as its owner knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// With a result.
    Ok,
    /// With an application error, which the guest returned.
    Error,
    /// It did not run.
    NotRun,
    /// It may have run.
    Unknown,
}

impl Ending {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Ok, Self::Error, Self::NotRun, Self::Unknown];

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Error => "error",
            Self::NotRun => "not-run",
            Self::Unknown => "unknown",
        }
    }
}

/// The figures of one method, or of another kind of work, of one type.
#[derive(Debug)]
pub struct WorkStats {
    endings: [AtomicU64; 4],
    /// From a message's arrival at its shard until its reply.
    messages: Histogram,
    /// Of turns in the guest, with what they wait for: reads of state, asks, calls.
    turns: Histogram,
}

impl Default for WorkStats {
    fn default() -> Self {
        Self {
            endings: Default::default(),
            messages: Histogram::of_durations(),
            turns: Histogram::of_durations(),
        }
    }
}

impl WorkStats {
    /// Counts a message that ended, this long after it arrived.
    pub fn message_ended(&self, ending: Ending, after: Duration) {
        self.endings[ending as usize].fetch_add(1, Ordering::Relaxed);
        self.messages.observe(after);
    }

    /// Counts a turn of this duration.
    pub fn turn_ended(&self, duration: Duration) {
        self.turns.observe(duration);
    }

    /// The number of messages that ended in this way.
    #[must_use]
    pub fn ended(&self, ending: Ending) -> u64 {
        self.endings[ending as usize].load(Ordering::Relaxed)
    }
}

/// The type and the work of a [`WorkStats`].
pub type WorkKey = (Arc<str>, Work);

/// The figures of one kind of work, of all threads that count it.
#[derive(Clone, Debug, Default)]
pub struct WorkTotal(Vec<Arc<WorkStats>>);

impl WorkTotal {
    /// The number of messages that ended in this way.
    #[must_use]
    pub fn ended(&self, ending: Ending) -> u64 {
        self.0.iter().map(|stats| stats.ended(ending)).sum()
    }

    /// The durations of messages, from their arrival at the shard until their reply.
    #[must_use]
    pub fn messages(&self) -> Distribution {
        Distribution::sum(self.0.iter().map(|stats| &stats.messages))
    }

    /// The durations of turns.
    #[must_use]
    pub fn turns(&self) -> Distribution {
        Distribution::sum(self.0.iter().map(|stats| &stats.turns))
    }
}

/// The figures of all types.
#[derive(Debug)]
pub struct Methods {
    known: Mutex<BTreeMap<WorkKey, WorkTotal>>,
    max: usize,
}

impl Default for Methods {
    fn default() -> Self {
        Self::new(Self::MAX)
    }
}

impl Methods {
    /// Default maximum number of pairs of a type and its work.
    pub const MAX: usize = 1_000;

    /// No figures yet. Beyond `max` pairs of a type and its work, those of all others are added up under [`OTHER`].
    #[must_use]
    pub fn new(max: usize) -> Self {
        Self { known: Mutex::default(), max }
    }

    /// New figures for a thread to count a type's work in. It must keep them: threads that share a counter slow each
    /// other down, so each call adds one.
    #[must_use]
    pub fn add(&self, entity_type: &Arc<str>, work: &Work) -> Arc<WorkStats> {
        let mut known = self.known();
        let key = (Arc::clone(entity_type), work.clone());
        let other = || (Arc::from(OTHER), Work::Message(OTHER.into()));
        let is_own = known.len() < self.max || known.contains_key(&key);
        let WorkTotal(all) = known.entry(if is_own { key } else { other() }).or_default();
        // Beyond the bound, all threads share one, or each further method would still take memory.
        if !is_own && let Some(shared) = all.first() {
            return Arc::clone(shared);
        }
        let stats = Arc::<WorkStats>::default();
        all.push(Arc::clone(&stats));
        stats
    }

    /// All figures, by type and work.
    #[must_use]
    pub fn all(&self) -> Vec<(WorkKey, WorkTotal)> {
        self.known().iter().map(|(key, total)| (key.clone(), total.clone())).collect()
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<WorkKey, WorkTotal>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods_beyond_the_bound_are_counted_together() {
        let methods = Methods::new(2);
        let of = |method: &str| methods.add(&"counter".into(), &Work::Message(method.into()));
        for method in ["add", "value", "reset", "value", "remove"] {
            of(method).message_ended(Ending::Ok, Duration::from_millis(1));
        }
        let all = methods.all().into_iter().map(|((entity_type, work), stats)| {
            (entity_type.to_string(), work.method().to_owned(), stats.ended(Ending::Ok))
        });
        let expected = [(OTHER, OTHER, 2), ("counter", "add", 1), ("counter", "value", 2)];
        let expected =
            expected.map(|(of, method, count)| (of.to_owned(), method.to_owned(), count));
        assert_eq!(all.collect::<Vec<_>>(), expected);
        let others =
            methods.all().into_iter().find(|((entity_type, _), _)| &**entity_type == OTHER);
        assert_eq!(others.map(|(_, WorkTotal(all))| all.len()), Some(1), "they take no memory");
    }

    #[test]
    fn each_ending_is_counted_by_itself() {
        let methods = Methods::default();
        // Two threads count.
        let of = || methods.add(&"counter".into(), &Work::Timer);
        let threads = [of(), of()];
        for (times, ending) in Ending::ALL.into_iter().enumerate() {
            for time in 0..=times {
                threads[time % 2].message_ended(ending, Duration::from_millis(2));
            }
        }
        threads[1].turn_ended(Duration::from_millis(3));
        let (_, total) = methods.all().pop().expect("one kind of work");
        assert_eq!(Ending::ALL.map(|ending| total.ended(ending)), [1, 2, 3, 4]);
        assert_eq!((total.messages().count, total.turns().count), (10, 1));
        assert!((total.turns().sum - 0.003).abs() < 1e-9);
    }
}
