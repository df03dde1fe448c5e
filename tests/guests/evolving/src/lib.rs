//! The first version of a guest whose next version is `evolved`: it counts under the key `n`, and appends each addend to
//! the journal if its id begins with `journal`. It has no schema.

#![allow(missing_docs, reason = "a guest for tests")]

use ostraca_sdk::{context, entity, journal, state};

#[derive(Debug, Default)]
pub struct Evolving;

#[entity(state = "keys")]
impl Evolving {
    /// Adds to the count, and returns it.
    #[message]
    pub fn add(&mut self, by: u64) -> u64 {
        let sum = state::get("n").unwrap_or(0_u64) + by;
        state::set("n", &sum);
        if context::identity().id.starts_with("journal") {
            journal::append(&by);
        }
        sum
    }

    /// Returns the count.
    #[message]
    pub fn get(&self) -> u64 {
        state::get("n").unwrap_or(0)
    }
}
