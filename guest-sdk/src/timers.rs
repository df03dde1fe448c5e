//! The entity's durable timers.
//!
//! A timer is set in a turn and committed with it, and fires as a separate turn: never before it is due, and never
//! twice for one due time, whichever node the entity is on by then. If the entity has no instance, one is started. A
//! method marked `#[timer]` handles timers that have the method's name, and timers whose name is that name followed by
//! `/` and more:
//!
//! ```
//! use std::time::Duration;
//!
//! use ostraca_sdk::{entity, timers};
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Default, Serialize, Deserialize)]
//! pub struct Cart {
//!     items: Vec<String>,
//! }
//!
//! #[entity]
//! impl Cart {
//!     /// Adds an item. The cart is emptied if no other item is added for half an hour.
//!     #[message]
//!     pub fn add(&mut self, item: String) {
//!         self.items.push(item);
//!         timers::after("expire", Duration::from_secs(1_800)).set();
//!     }
//!
//!     #[timer]
//!     fn expire(&mut self) {
//!         self.items.clear();
//!     }
//! }
//! # fn main() {
//! # use ostraca_sdk::{serde_json::json, testing};
//! # testing::call::<Cart>("add", "tea").unwrap();
//! # testing::advance_time(Duration::from_secs(1_800));
//! # assert_eq!(testing::fire_timers::<Cart>(), 1);
//! # }
//! ```
//!
//! The method may take the payload as its one parameter, and return nothing or a `Result` with an
//! [`ApplicationError`](crate::ApplicationError). After an error or a panic the turn has no effect, and the firing is
//! attempted again after increasing pauses. After the last attempt (`entities.timer-attempts`) a timer that fires once
//! is set aside, and one with an interval continues with its next due time.
//!
//! A name is 1 to 128 bytes long, without control characters or direction marks. The manifest sets the limits:
//! `limits.timers`, `limits.timer-bytes` and `limits.timer-interval`.

use std::time::{Duration, SystemTime};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::state::{from_json, to_json};
pub use crate::types::Firing;
use crate::types::{StoredTimer, TimerTime, millis};

/// A description of a timer. [`NewTimer::set`] sets the timer.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "a timer is set by `set`"]
pub struct NewTimer {
    name: String,
    time: TimerTime,
    interval: Option<u64>,
    payload: Vec<u8>,
}

/// A timer of the entity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Timer {
    /// The timer's name.
    pub name: String,
    /// When it fires next.
    pub due: SystemTime,
    /// The time between firings; `None` if it fires once.
    pub interval: Option<Duration>,
    /// How many attempts at the next firing have failed.
    pub attempts: u32,
    /// Why the last attempt failed; `None` if none did.
    pub failure: Option<String>,
    /// Whether it failed too often, so that it will not fire until it is set again.
    pub set_aside: bool,
    payload: Vec<u8>,
}

/// Describes a timer that fires `delay` after the turn's [`clock::now`](crate::clock::now).
pub fn after(name: impl Into<String>, delay: Duration) -> NewTimer {
    NewTimer::new(name.into(), TimerTime::After(millis(delay)))
}

/// Describes a timer that fires at `time`, or immediately if that time has passed.
pub fn at(name: impl Into<String>, time: SystemTime) -> NewTimer {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    NewTimer::new(name.into(), TimerTime::At(millis(since)))
}

/// Cancels a timer, and returns whether there was one. Traps in a query.
pub fn cancel(name: &str) -> bool {
    crate::host::cancel_timer(name)
}

/// Lists all timers, ordered by name. While a timer's own firing runs, it is listed with its next due time, or left out
/// if it has none.
pub fn list() -> Vec<Timer> {
    crate::host::list_timers().into_iter().map(Timer::from).collect()
}

/// Returns the timer of that name, if there is one.
pub fn get(name: &str) -> Option<Timer> {
    list().into_iter().find(|timer| timer.name == name)
}

/// Returns the firing that this turn handles; `None` in any other turn.
pub fn current() -> Option<Firing> {
    CURRENT.with_borrow(Clone::clone)
}

thread_local! {
    static CURRENT: std::cell::RefCell<Option<Firing>> = const { std::cell::RefCell::new(None) };
}

/// Runs a firing's turn, during which [`current`] returns that firing.
pub(crate) fn during<T>(firing: &Firing, run: impl FnOnce() -> T) -> T {
    struct Clear;

    impl Drop for Clear {
        fn drop(&mut self) {
            CURRENT.set(None);
        }
    }

    CURRENT.set(Some(firing.clone()));
    let _clear = Clear;
    run()
}

impl NewTimer {
    fn new(name: String, time: TimerTime) -> Self {
        Self { name, time, interval: None, payload: Vec::new() }
    }

    /// Makes the timer fire repeatedly, at a fixed rate. Firings that were missed, for example because no node was
    /// running, are combined into one.
    pub fn every(mut self, interval: Duration) -> Self {
        self.interval = Some(millis(interval));
        self
    }

    /// Sets a value that is passed, as JSON, to the method that handles the timer.
    ///
    /// # Panics
    /// If JSON cannot express the value.
    pub fn payload<T: Serialize + ?Sized>(mut self, payload: &T) -> Self {
        match to_json(payload) {
            Ok(payload) => self.payload = payload,
            Err(error) => panic!("timer-payload: the payload cannot be stored: {error}"),
        }
        self
    }

    /// Sets the timer, replacing any existing timer of that name. Traps in a query, and beyond the type's limits.
    pub fn set(self) {
        crate::host::set_timer(&self.name, self.time, self.interval, &self.payload);
    }
}

impl Timer {
    /// Decodes the payload.
    ///
    /// # Panics
    /// If it is not a `T`.
    pub fn payload<T: DeserializeOwned>(&self) -> T {
        match decode(&self.payload) {
            Ok(payload) => payload,
            Err(error) => panic!("timer-payload: the payload of `{}` is {error}", self.name),
        }
    }
}

impl From<StoredTimer> for Timer {
    fn from(timer: StoredTimer) -> Self {
        Self {
            name: timer.name,
            due: SystemTime::UNIX_EPOCH + Duration::from_millis(timer.due),
            interval: timer.interval.map(Duration::from_millis),
            attempts: timer.attempts,
            failure: timer.failure,
            set_aside: timer.set_aside,
            payload: timer.payload,
        }
    }
}

/// Decodes a payload. A timer without a payload has `null`.
pub(crate) fn decode<T: DeserializeOwned>(payload: &[u8]) -> Result<T, String> {
    from_json(if payload.is_empty() { b"null" } else { payload }).map_err(|error| error.to_string())
}
