//! An entity's timers as its instance sees them: those before the current turn, and what that turn has changed (R25).
//!
//! They are read from the host only when a turn first uses them, so a turn without timers costs nothing.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

use crate::InstanceLimits;
use crate::tells::{GuestTell, OutboxUse};
use crate::trap::HostTrap;

/// Maximum length of a timer's name, in bytes.
pub(crate) const NAME_LIMIT: usize = 128;

/// Bytes charged for each timer in addition to its name and payload.
const CHARGE: u64 = 100;

/// The latest time of a timer, in milliseconds since the Unix epoch (UTC): the end of the year 9999.
pub(crate) const LATEST: u64 = 253_402_300_799_999;

/// A timer of the entity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuestTimer {
    /// Unique in the entity; 1 to 128 bytes.
    pub name: Arc<str>,
    /// When it fires next, in milliseconds since 1970-01-01 00:00 UTC.
    pub due: u64,
    /// Milliseconds between firings; 0 if it fires once.
    pub interval: u64,
    /// Bytes that the guest passed.
    pub payload: Bytes,
    /// How many attempts at the next firing have failed.
    pub attempts: u32,
    /// Why the last attempt failed; empty if none did.
    pub failure: Arc<str>,
    /// Whether it failed too often, so that it will not fire until it is set again.
    pub set_aside: bool,
    /// The tell that its firing sends; `None` if the firing calls the guest. Names of the two kinds do not collide.
    pub tell: Option<GuestTell>,
}

impl GuestTimer {
    fn bytes(&self) -> u64 {
        let tell = self.tell.as_ref().map_or(0, GuestTell::size);
        (self.name.len() + self.payload.len()) as u64 + tell + CHARGE
    }

    fn key(&self) -> Key {
        (self.tell.is_some(), self.name.clone())
    }
}

/// Whether a timer sends a tell, and its name.
type Key = (bool, Arc<str>);

/// A change to the entity's timers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TimerChange {
    /// Sets a timer, replacing any existing timer of that name.
    Set {
        /// The timer's name.
        name: Arc<str>,
        /// When it fires first, in milliseconds since 1970-01-01 00:00 UTC.
        due: u64,
        /// Milliseconds between firings; 0 if it fires once.
        interval: u64,
        /// Bytes that the guest passed.
        payload: Bytes,
    },
    /// Cancels the timer of that name.
    Cancel {
        /// The timer's name.
        name: Arc<str>,
    },
    /// Sends a tell later, replacing any existing delayed tell of that name.
    SetTell {
        /// The delayed tell's name.
        name: Arc<str>,
        /// When it leaves, in milliseconds since 1970-01-01 00:00 UTC.
        due: u64,
        /// The tell.
        tell: GuestTell,
    },
    /// Cancels the delayed tell of that name.
    CancelTell {
        /// The delayed tell's name.
        name: Arc<str>,
    },
}

/// Where a turn reads the entity's timers from.
pub trait TimerSource: fmt::Debug + Send + Sync {
    /// The timers before the turn. In a firing's turn, the timer that fires is absent, or due at its next time.
    /// Called at most once per turn.
    fn timers(&self) -> Vec<GuestTimer>;
}

/// A firing of a timer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TimerFiring {
    /// The timer's name.
    pub name: Arc<str>,
    /// When it was due, in milliseconds since 1970-01-01 00:00 UTC.
    pub due: u64,
    /// How many further firings of an interval have come due by now; they are skipped.
    pub missed: u64,
    /// The number of this attempt, from 1.
    pub attempt: u32,
    /// Bytes that the guest passed.
    pub payload: Bytes,
}

/// The timers during a turn.
#[derive(Default)]
pub(crate) struct TurnTimers {
    source: Option<Arc<dyn TimerSource>>,
    /// Read at first use.
    timers: Option<BTreeMap<Key, GuestTimer>>,
    /// The last change of each: what replaces it is not kept.
    changes: BTreeMap<Key, TimerChange>,
}

impl TurnTimers {
    /// Begins a turn. `source` has the timers before it; `None` if the entity has none.
    pub(crate) fn begin(source: Option<Arc<dyn TimerSource>>) -> TurnTimers {
        TurnTimers { source, ..TurnTimers::default() }
    }

    fn read(&mut self) -> &mut BTreeMap<Key, GuestTimer> {
        let source = self.source.take();
        self.timers.get_or_insert_with(|| {
            let timers = source.map_or_else(Vec::new, |source| source.timers());
            timers.into_iter().map(|timer| (timer.key(), timer)).collect()
        })
    }

    /// The timers that call the guest.
    pub(crate) fn list(&mut self) -> Vec<GuestTimer> {
        self.read().values().filter(|timer| timer.tell.is_none()).cloned().collect()
    }

    /// Names, due times and content of the delayed tells.
    pub(crate) fn list_tells(&mut self) -> Vec<(Arc<str>, u64, GuestTell)> {
        let tell = |timer: &GuestTimer| Some((timer.name.clone(), timer.due, timer.tell.clone()?));
        self.read().values().filter_map(tell).collect()
    }

    /// Sets a timer unless that would exceed a limit. Timers that already exceed one may still shrink.
    pub(crate) fn set(
        &mut self,
        name: &str,
        due: u64,
        interval: u64,
        payload: Bytes,
        limits: &InstanceLimits,
    ) -> Result<(), HostTrap> {
        let least = limits.timer_interval;
        if interval > 0 && interval < least {
            return Err(HostTrap::TimerIntervalTooShort { interval, least });
        }
        let name: Arc<str> = name.into();
        let timer = fresh(name.clone(), due, interval, payload.clone(), None);
        let (key, due) = self.insert(timer, limits)?;
        self.changes.insert(key, TimerChange::Set { name, due, interval, payload });
        Ok(())
    }

    /// The outbox space that the delayed tells will need.
    pub(crate) fn delayed_use(&mut self) -> OutboxUse {
        let tells = self.read().values().filter_map(|timer| timer.tell.as_ref());
        tells.fold(OutboxUse::default(), |sum, tell| OutboxUse {
            entries: sum.entries + 1,
            bytes: sum.bytes + tell.bytes(),
        })
    }

    /// Sends a tell later unless that would exceed a limit.
    pub(crate) fn set_tell(
        &mut self,
        name: &str,
        due: u64,
        tell: GuestTell,
        limits: &InstanceLimits,
    ) -> Result<(), HostTrap> {
        let name: Arc<str> = name.into();
        let timer = fresh(name.clone(), due, 0, Bytes::new(), Some(tell.clone()));
        let (key, due) = self.insert(timer, limits)?;
        self.changes.insert(key, TimerChange::SetTell { name, due, tell });
        Ok(())
    }

    /// Adds or replaces a timer unless that would exceed a limit. Returns its key and due time.
    fn insert(
        &mut self,
        timer: GuestTimer,
        limits: &InstanceLimits,
    ) -> Result<(Key, u64), HostTrap> {
        let key = timer.key();
        self.may_change(&key, limits)?;
        let timers = self.read();
        let old = timers.get(&key).map(GuestTimer::bytes);
        if old.is_none() && timers.len() as u64 >= limits.timers {
            return Err(HostTrap::TooManyTimers { limit: limits.timers });
        }
        let bytes: u64 = timers.values().map(GuestTimer::bytes).sum();
        let would = bytes - old.unwrap_or(0) + timer.bytes();
        if would > limits.timer_bytes && timer.bytes() > old.unwrap_or(0) {
            return Err(HostTrap::TimersTooLarge { would, limit: limits.timer_bytes });
        }
        let due = timer.due;
        timers.insert(key.clone(), timer);
        Ok((key, due))
    }

    /// Cancels a timer, and returns whether there was one.
    pub(crate) fn cancel(&mut self, name: &str, limits: &InstanceLimits) -> Result<bool, HostTrap> {
        let name: Arc<str> = name.into();
        let key = (false, name.clone());
        self.may_change(&key, limits)?;
        let existed = self.read().remove(&key).is_some();
        self.changes.extend(existed.then_some((key, TimerChange::Cancel { name })));
        Ok(existed)
    }

    /// Cancels a delayed tell, and returns whether there was one.
    pub(crate) fn cancel_tell(
        &mut self,
        name: &str,
        limits: &InstanceLimits,
    ) -> Result<bool, HostTrap> {
        let name: Arc<str> = name.into();
        let key = (true, name.clone());
        self.may_change(&key, limits)?;
        let existed = self.read().remove(&key).is_some();
        self.changes.extend(existed.then_some((key, TimerChange::CancelTell { name })));
        Ok(existed)
    }

    /// Fails if the turn has changed as many other timers as it may write keys.
    fn may_change(&self, key: &Key, limits: &InstanceLimits) -> Result<(), HostTrap> {
        if self.changes.len() as u64 >= limits.turn_keys && !self.changes.contains_key(key) {
            let (what, setting, limit) = ("timers", "turn-keys", limits.turn_keys);
            return Err(HostTrap::TurnTooLarge { what, setting, limit });
        }
        Ok(())
    }

    /// Returns the changes of the turn, which ends.
    pub(crate) fn take_changes(&mut self) -> Vec<TimerChange> {
        std::mem::take(&mut self.changes).into_values().collect()
    }
}

/// A timer as a turn sets it: without failed attempts, and due no later than [`LATEST`].
fn fresh(
    name: Arc<str>,
    due: u64,
    interval: u64,
    payload: Bytes,
    tell: Option<GuestTell>,
) -> GuestTimer {
    let due = due.min(LATEST);
    let (attempts, failure, set_aside) = (0, "".into(), false);
    GuestTimer { name, due, interval, payload, attempts, failure, set_aside, tell }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits() -> InstanceLimits {
        InstanceLimits {
            timers: 2,
            timer_bytes: 220,
            timer_interval: 10,
            turn_keys: 3,
            ..InstanceLimits::default()
        }
    }

    #[derive(Debug)]
    struct One;

    impl TimerSource for One {
        fn timers(&self) -> Vec<GuestTimer> {
            let mut turn = TurnTimers::default();
            turn.set("old", 5, 0, Bytes::from_static(b"12345"), &limits()).unwrap();
            turn.list()
        }
    }

    #[test]
    fn limits_on_timers_are_exact_and_named() {
        let mut turn = TurnTimers::begin(Some(Arc::new(One)));
        let mut set = |name: &str, payload: usize, interval| {
            let done = turn.set(name, 1, interval, vec![0; payload].into(), &limits());
            done.map_err(|trap| trap.to_string())
        };
        assert_eq!(set("a", 11, 0), Ok(()), "108 + 112 bytes");
        assert!(set("b", 0, 0).unwrap_err().contains("limits.timers (2)"));
        assert!(set("a", 12, 0).unwrap_err().contains("221"), "one byte too many");
        assert!(set("a", 1, 9).unwrap_err().contains("9 ms"));
        assert_eq!(set("a", 1, 10), Ok(()), "a replaced timer does not count");
        assert_eq!(turn.list().len(), 2);
        assert!(turn.cancel("old", &limits()).unwrap() && !turn.cancel("old", &limits()).unwrap());
        assert_eq!(turn.list().len(), 1);
        turn.set("c", 1, 0, Bytes::new(), &limits()).unwrap();
        let full = turn.set("d", 1, 0, Bytes::new(), &limits()).unwrap_err().to_string();
        assert!(full.contains("`turn-keys` (3)"), "{full}");
        for _ in 0..10 {
            turn.set("c", 1, 0, vec![0; 10].into(), &limits()).unwrap();
        }
        assert_eq!(turn.take_changes().len(), 3, "what was replaced in the same turn is not kept");
    }

    #[test]
    fn delayed_tells_share_the_limits_of_timers_not_their_names() {
        let mut turn = TurnTimers::begin(None);
        turn.set("a", 1, 0, Bytes::new(), &limits()).unwrap();
        let mut send = |name: &str, body| {
            turn.set_tell(name, 5, GuestTell::of_body(body), &limits())
                .map_err(|trap| trap.to_string())
        };
        assert!(send("a", 16).unwrap_err().contains("221"), "101 + 101 + 3 + 16 bytes");
        assert_eq!(send("a", 15), Ok(()));
        assert!(send("b", 0).unwrap_err().contains("limits.timers (2)"));
        assert_eq!(turn.list().len(), 1, "only the timers that call the guest");
        let listed = turn.list_tells();
        assert_eq!((listed.len(), &*listed[0].0, listed[0].1), (1, "a", 5));
        assert!(turn.cancel("a", &limits()).unwrap());
        assert_eq!(turn.list_tells().len(), 1);
        assert!(turn.cancel_tell("a", &limits()).unwrap());
        assert!(!turn.cancel_tell("a", &limits()).unwrap());
        let kinds = turn.take_changes();
        assert!(matches!(kinds[..], [TimerChange::Cancel { .. }, TimerChange::CancelTell { .. }]));
    }
}
