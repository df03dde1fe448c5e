//! The next version of `evolving`: it counts under the key `count`, and panics on state that was not migrated. It cannot
//! migrate entities whose ids begin with `stuck` or `refused`. In the journal, it replaces all events but the last one by
//! a snapshot with their sum, and appends the sum of all.

#![allow(missing_docs, reason = "a guest for tests")]

use ostraca_sdk::{Error, context, entity, journal, state};

#[derive(Debug, Default)]
pub struct Evolved;

fn count() -> u64 {
    assert_eq!(state::get_raw("n"), None, "the state was not migrated");
    state::get("count").unwrap_or(0)
}

#[entity(state = "keys")]
impl Evolved {
    #[migrate(schema = 2)]
    fn migrate(from: u32) -> Result<(), Error> {
        assert_eq!(from, 0, "the only earlier schema");
        let id = context::identity().id;
        let count: u64 = state::get("n").unwrap_or(0);
        state::set("count", &count);
        state::delete("n");
        if journal::extent().next > 1 {
            journal::save_snapshot(&count);
            journal::truncate(journal::extent().next - 1);
            journal::append(&count);
        }
        assert!(!id.starts_with("stuck"), "this id traps");
        if id.starts_with("refused") {
            return Err(Error::new("no", "this id is refused"));
        }
        Ok(())
    }

    /// Adds to the count, and returns it.
    #[message]
    pub fn add(&mut self, by: u64) -> u64 {
        let sum = count() + by;
        state::set("count", &sum);
        sum
    }

    /// Returns the count.
    #[message]
    pub fn get(&self) -> u64 {
        count()
    }

    /// Returns the snapshot, and the events of the journal.
    #[message]
    pub fn history(&self) -> (Option<(u64, u64)>, Vec<u64>) {
        (journal::snapshot(), journal::events(1).map(|(_, event)| event).collect())
    }
}
