//! The entity's journal: events that turns append and later turns read back.
//!
//! An entity can keep a journal beside its state or instead of it. Events are committed with their turn or not at all,
//! numbered from 1, and no number is used twice. A turn that only appends reads nothing from the store, however long
//! the journal is.
//!
//! An event-sourced entity is built from its events. Its methods decide what happens, and [`EventSourced::record`] both
//! appends an event and applies it:
//!
//! ```
//! use ostraca_sdk::journal::EventSourced;
//! use ostraca_sdk::{Error, entity};
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Default, Serialize, Deserialize)]
//! pub struct Account {
//!     balance: u64,
//! }
//!
//! #[derive(Serialize, Deserialize)]
//! pub enum Event {
//!     Deposited { cents: u64 },
//!     Withdrawn { cents: u64 },
//! }
//!
//! impl EventSourced for Account {
//!     type Event = Event;
//!
//!     fn apply(&mut self, event: &Event) {
//!         match event {
//!             Event::Deposited { cents } => self.balance += cents,
//!             Event::Withdrawn { cents } => self.balance -= cents,
//!         }
//!     }
//! }
//!
//! #[entity(state = "events")]
//! impl Account {
//!     /// Deposits an amount, and returns the new balance.
//!     #[message]
//!     pub fn deposit(&mut self, cents: u64) -> u64 {
//!         self.record(&Event::Deposited { cents });
//!         self.balance
//!     }
//!
//!     /// Withdraws an amount, and returns the new balance.
//!     #[message]
//!     pub fn withdraw(&mut self, cents: u64) -> Result<u64, Error> {
//!         if cents > self.balance {
//!             return Err(Error::new("insufficient-funds", "the balance is too low"));
//!         }
//!         self.record(&Event::Withdrawn { cents });
//!         Ok(self.balance)
//!     }
//! }
//! # fn main() {
//! # use ostraca_sdk::{serde_json::json, testing};
//! # testing::call::<Account>("deposit", 5).unwrap();
//! # testing::crash_instance::<Account>();
//! # assert_eq!(testing::call::<Account>("withdraw", 2), Ok(json!(3)));
//! # }
//! ```
//!
//! Events and snapshots are JSON; the functions with `raw` in their names use bytes. The manifest sets the limit:
//! `limits.journal`. What one turn may write is limited by `limits.turn-keys` and `limits.turn-bytes`, as for the state.

use std::marker::PhantomData;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::state::{from_json, to_json};
pub use crate::types::{JournalEvent, JournalExtent, JournalPage};

/// Number of events that [`events`] fetches from the host in one call.
const PAGE: u32 = 200;

/// An entity whose state is built from its events, with `#[entity(state = "events")]`.
///
/// The struct starts as its [`Default`] or as the last snapshot. Then the events after it are applied in order.
pub trait EventSourced: Serialize + DeserializeOwned + Default {
    /// What can happen to the entity. Stored as JSON: a later version must still decode the events of earlier ones.
    type Event: Serialize + DeserializeOwned;

    /// After how many events a snapshot of the struct is saved; 0 for never. More events take longer to apply when an
    /// instance starts.
    const SNAPSHOT_EVERY: u64 = 100;

    /// Whether events are kept after a snapshot includes them.
    const KEEP_EVENTS: bool = false;

    /// Applies an event to the struct. It must not fail, and must do the same each time: check what a message asks for
    /// before recording the event, and put times and random numbers into the event. A change to the struct outside of
    /// this method is lost when the instance is dropped; in native builds it panics.
    fn apply(&mut self, event: &Self::Event);

    /// Appends an event and applies it. Returns its number. Traps as [`append`] does.
    fn record(&mut self, event: &Self::Event) -> u64 {
        let number = append(event);
        self.apply(event);
        number
    }
}

/// Maximum number of events that one snapshot removes: a turn may write few records.
const MOST_REMOVED: u64 = 400;

/// Appends an event, and returns its number. Traps in a query, and beyond the type's limits.
///
/// # Panics
/// With `state-does-not-encode` if JSON cannot express the event.
pub fn append<E: Serialize + ?Sized>(event: &E) -> u64 {
    append_raw(&encode(event, "event"))
}

/// Appends an event in bytes, and returns its number.
pub fn append_raw(data: &[u8]) -> u64 {
    crate::host::append_event(data)
}

/// Iterates over the events from a number on, with their numbers. Starts with the first event that is kept if that
/// number is higher. Fetches pages as it goes.
pub fn events<E: DeserializeOwned>(from: u64) -> Events<E> {
    Events { page: Vec::new().into_iter(), next: Some(from), events: PhantomData }
}

/// Returns one page of events: at most `limit` of them (1 to 1000, otherwise it traps), from a number on.
pub fn read_raw(from: u64, limit: u32) -> JournalPage {
    crate::host::read_events(from, limit)
}

/// Returns which events there are.
pub fn extent() -> JournalExtent {
    crate::host::journal_extent()
}

/// Removes the events with lower numbers than `before`, oldest first, and returns the number of the first event that is
/// kept. One turn removes no more events than it may write (`limits.turn-keys`, and `limits.turn-bytes` at 100 bytes for
/// each); a later turn can remove the rest. Traps in a query.
pub fn truncate(before: u64) -> u64 {
    crate::host::truncate_journal(before)
}

/// Saves a snapshot, which includes all events so far and replaces the last snapshot. Traps as [`append`] does.
///
/// # Panics
/// With `state-does-not-encode` if JSON cannot express the snapshot.
pub fn save_snapshot<S: Serialize + ?Sized>(snapshot: &S) {
    save_snapshot_raw(&encode(snapshot, "snapshot"));
}

/// Saves a snapshot in bytes.
pub fn save_snapshot_raw(data: &[u8]) {
    crate::host::save_snapshot(data);
}

/// Returns the snapshot, and the number of the last event that it includes; `None` if there is none.
///
/// # Panics
/// With `state-does-not-decode` if the snapshot is not a valid `S`.
pub fn snapshot<S: DeserializeOwned>() -> Option<(u64, S)> {
    let (through, data) = snapshot_raw()?;
    Some((through, decode(&data, "the snapshot")))
}

/// Returns the snapshot in bytes, and the number of the last event that it includes; `None` if there is none.
pub fn snapshot_raw() -> Option<(u64, Vec<u8>)> {
    crate::host::load_snapshot()
}

/// The iterator that [`events`] returns.
///
/// # Panics
/// With `state-does-not-decode` at an event that is not a valid `E`.
#[derive(Debug)]
pub struct Events<E> {
    page: std::vec::IntoIter<JournalEvent>,
    /// The number at which the next page begins; `None` if there is no further page.
    next: Option<u64>,
    events: PhantomData<fn() -> E>,
}

impl<E: DeserializeOwned> Iterator for Events<E> {
    type Item = (u64, E);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(event) = self.page.next() {
                let what = format!("event {}", event.number);
                return Some((event.number, decode(&event.data, &what)));
            }
            let page = read_raw(self.next.take()?, PAGE);
            self.page = page.events.into_iter();
            self.next = page.next;
        }
    }
}

/// Builds an entity from the snapshot and the events before `next`.
pub(crate) fn replay<E: EventSourced>(next: u64) -> E {
    let (through, mut entity) = snapshot().unwrap_or_default();
    for (number, event) in events(through + 1) {
        if number >= next {
            break;
        }
        E::apply(&mut entity, &event);
    }
    entity
}

/// Saves the entity as the snapshot, and removes the events that it includes.
pub(crate) fn take_snapshot<E: EventSourced>(entity: &E, next: u64) {
    let data = encode(entity, "snapshot");
    // If such a snapshot were saved, the entity would never start again.
    if let Err(error) = from_json::<E>(&data) {
        panic!(
            "state-does-not-encode: the snapshot cannot be decoded from its own JSON: {error} (fields that are skipped \
             when it is written need #[serde(default)]); nothing was changed"
        );
    }
    // First, so that the snapshot finds room in a journal that is full. Older events remain for the next time.
    if !E::KEEP_EVENTS {
        truncate(next.min(extent().first + MOST_REMOVED));
    }
    save_snapshot_raw(&data);
}

/// Panics if the entity is not what its events make of it.
#[cfg(not(target_family = "wasm"))]
pub(crate) fn check_replay<E: EventSourced>(entity: &E, next: u64) {
    let (kept, replayed) = (encode(entity, "struct"), encode(&replay::<E>(next), "struct"));
    if kept != replayed {
        panic!(
            "changed-without-event: the struct is {}, but its events make {}: change it in `apply` only",
            String::from_utf8_lossy(&kept),
            String::from_utf8_lossy(&replayed)
        );
    }
}

fn encode<T: Serialize + ?Sized>(value: &T, what: &str) -> Vec<u8> {
    match to_json(value) {
        Ok(data) => data,
        Err(error) => {
            panic!(
                "state-does-not-encode: the {what} cannot be stored: {error}; nothing was changed"
            )
        }
    }
}

fn decode<T: DeserializeOwned>(data: &[u8], what: &str) -> T {
    match from_json(data) {
        Ok(value) => value,
        Err(error) => panic!(
            "state-does-not-decode: {what} of the journal is not a `{}`: {error}; read the old format with the raw \
             functions, or give new fields #[serde(default)], and deploy again; nothing was changed",
            std::any::type_name::<T>()
        ),
    }
}
