//! A guest that uses every feature once. `tests/guests/behaving-javascript` and `-python` do the same in their languages.

#![allow(missing_docs, reason = "a guest for tests")]

use std::time::Duration;

use ostraca_sdk::asks::AskError;
use ostraca_sdk::messaging::Entity;
use ostraca_sdk::{Error, channels, context, entity, journal, lifecycle, random, timers};
use serde::{Deserialize, Serialize};

#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Behaving {
    value: i64,
    fired: Vec<String>,
    noted: Vec<String>,
}

fn me(id: &str) -> Entity {
    Entity::new(context::identity().entity_type, id)
}

#[entity]
impl Behaving {
    /// Adds to the value, and returns it.
    #[message]
    pub fn add(&mut self, by: i64) -> Result<i64, Error> {
        if by == 0 {
            self.value = -1;
            return Err(Error::new("nothing-to-add", "add something"));
        }
        self.value += by;
        Ok(self.value)
    }

    /// Returns the value.
    #[message]
    pub fn get(&self) -> i64 {
        self.value
    }

    /// Sets a timer that notes a text.
    #[message]
    pub fn later(&mut self, text: String, ms: u64) {
        timers::after("note", Duration::from_millis(ms)).payload(&text).set();
    }

    #[timer]
    fn note(&mut self, text: String) {
        self.fired.push(text);
    }

    /// Returns what timers have noted.
    #[message]
    pub fn fired(&self) -> Vec<String> {
        self.fired.clone()
    }

    /// Tells another entity to add 1, so often.
    #[message]
    pub fn tell(&mut self, id: String, times: u32) {
        for _ in 0..times {
            me(&id).tell("add", &1);
        }
    }

    /// Asks another entity to add. Returns its answer, or the code of its refusal.
    #[message]
    pub fn ask(&mut self, id: String, by: i64) -> String {
        match me(&id).ask::<i64>("add", &by) {
            Ok(sum) => sum.to_string(),
            Err(AskError::Refused { code, .. } | AskError::NotRun { code, .. }) => code,
            Err(other) => other.to_string(),
        }
    }

    /// Appends to the journal, and returns the event's number.
    #[message]
    pub fn append(&mut self, text: String) -> u64 {
        journal::append(&text)
    }

    /// Returns the journal.
    #[message]
    pub fn events(&self) -> Vec<String> {
        journal::events(1).map(|(_, event)| event).collect()
    }

    /// Emits an item.
    #[message]
    pub fn post(&mut self, text: String) {
        channels::emit("posts", &text);
    }

    /// Subscribes to another entity's items.
    #[message]
    pub fn follow(&mut self, id: String) {
        me(&id).subscribe("posts", "noted");
    }

    /// Notes an item.
    #[message]
    pub fn noted(&mut self, text: String) {
        self.noted.push(text);
    }

    /// Returns the noted items.
    #[message]
    pub fn notes(&self) -> Vec<String> {
        self.noted.clone()
    }

    /// Ends the entity.
    #[message]
    pub fn end(&mut self) {
        lifecycle::delete();
    }

    /// Draws two numbers.
    #[message]
    pub fn draw(&self) -> [u32; 2] {
        [random::u64() as u32, random::u64() as u32]
    }

    /// Fails.
    #[message]
    pub fn fail(&mut self) {
        panic!("it fails");
    }
}
