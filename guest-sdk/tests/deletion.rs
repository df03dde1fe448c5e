//! Deletions in native builds.

use std::time::Duration;

use ostraca_sdk::{Error, StartReason, entity, lifecycle, state, testing, timers};

/// A cart that is deleted when it is paid, and one hour after it was opened.
#[derive(Default)]
pub struct Cart;

#[entity(state = "keys")]
impl Cart {
    #[start]
    fn start(&mut self, reason: StartReason) {
        if reason == StartReason::FirstMessage {
            state::set("opened", &true);
        }
    }

    /// Adds an item; `stop` is refused.
    #[message]
    pub fn add(&mut self, item: String) -> u64 {
        timers::after("end", Duration::from_secs(3_600)).set();
        let count = state::get("count").unwrap_or(0_u64) + 1;
        state::set("count", &count);
        state::set("last", &item);
        count
    }

    /// Pays; refuses with an error if nothing was added.
    #[message]
    pub fn pay(&mut self) -> Result<u64, Error> {
        lifecycle::delete();
        state::get("count").ok_or_else(|| Error::new("empty", "nothing was added"))
    }

    /// The number of items.
    #[message]
    pub fn count(&self) -> u64 {
        state::get("count").unwrap_or(0)
    }

    /// Tries to delete it in a query.
    #[message]
    pub fn sly(&self) {
        lifecycle::delete();
    }

    #[timer]
    fn end(&mut self) {
        lifecycle::delete();
    }
}

#[test]
fn e17_a_deletion_takes_state_and_timers_with_it() {
    assert!(testing::call::<Cart>("pay", ()).is_err(), "a refused turn deletes nothing");
    assert_eq!(state::get("opened"), Some(true));
    assert_eq!(testing::call::<Cart>("add", "tea").ok(), Some(1.into()));
    assert_eq!(testing::call::<Cart>("add", "cup").ok(), Some(2.into()));
    assert_eq!(testing::call::<Cart>("pay", ()).ok(), Some(2.into()));
    assert!(!testing::has_live_instance::<Cart>());
    assert_eq!((state::get::<bool>("opened"), timers::list().len()), (None, 0));
    assert_eq!(testing::call::<Cart>("add", "pot").ok(), Some(1.into()), "it starts anew");
    assert_eq!(state::get("opened"), Some(true));
    testing::advance_time(Duration::from_secs(3_600));
    assert_eq!(testing::fire_timers::<Cart>(), 1);
    assert_eq!((state::get::<u64>("count"), timers::list().len()), (None, 0));
}

#[test]
#[should_panic(expected = "write-in-query")]
fn a_query_that_deletes_panics() {
    let _ = testing::call::<Cart>("sly", ());
}
