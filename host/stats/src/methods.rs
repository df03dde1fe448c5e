//! Rates, errors and durations of each method of each type, at the node that owns the entities.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use crate::Histogram;

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

    /// The durations of messages, from their arrival at the shard until their reply.
    #[must_use]
    pub fn messages(&self) -> &Histogram {
        &self.messages
    }

    /// The durations of turns.
    #[must_use]
    pub fn turns(&self) -> &Histogram {
        &self.turns
    }
}

/// The type and the work of a [`WorkStats`].
pub type WorkKey = (Arc<str>, Work);

/// The figures of all types.
#[derive(Debug)]
pub struct Methods {
    known: RwLock<BTreeMap<WorkKey, Arc<WorkStats>>>,
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
        Self { known: RwLock::default(), max }
    }

    /// The figures to count a type's work in. Callers keep it, since this takes a lock.
    #[must_use]
    pub fn of(&self, entity_type: &Arc<str>, work: &Work) -> Arc<WorkStats> {
        let key = (Arc::clone(entity_type), work.clone());
        if let Some(found) = self.known.read().unwrap_or_else(PoisonError::into_inner).get(&key) {
            return Arc::clone(found);
        }
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        let other = || (Arc::from(OTHER), Work::Message(OTHER.into()));
        let key = if known.len() < self.max || known.contains_key(&key) { key } else { other() };
        Arc::clone(known.entry(key).or_default())
    }

    /// All figures, by type and work.
    #[must_use]
    pub fn all(&self) -> Vec<(WorkKey, Arc<WorkStats>)> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        known.iter().map(|(key, stats)| (key.clone(), Arc::clone(stats))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods_beyond_the_bound_are_counted_together() {
        let methods = Methods::new(2);
        let of = |method: &str| methods.of(&"counter".into(), &Work::Message(method.into()));
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
    }

    #[test]
    fn each_ending_is_counted_by_itself() {
        let stats = WorkStats::default();
        for (times, ending) in Ending::ALL.into_iter().enumerate() {
            for _ in 0..=times {
                stats.message_ended(ending, Duration::from_millis(2));
            }
        }
        assert_eq!(Ending::ALL.map(|ending| stats.ended(ending)), [1, 2, 3, 4]);
        assert_eq!(stats.messages().distribution().count, 10);
        assert_eq!(stats.turns().distribution().count, 0);
    }
}
