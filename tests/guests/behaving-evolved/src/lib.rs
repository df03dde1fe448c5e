//! The later version of `behaving`, whose state has another layout.

#![allow(missing_docs, reason = "a guest for tests")]

use ostraca_sdk::serde_json::Value;
use ostraca_sdk::{Error, entity};
use serde::{Deserialize, Serialize};

#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Behaving {
    sum: i64,
}

#[entity]
impl Behaving {
    #[migrate(schema = 1)]
    fn migrate(from: u32, old: Value) -> Result<Self, Error> {
        let value = old["value"].as_i64();
        let value = value.ok_or_else(|| Error::new("no-value", format!("schema {from}")))?;
        Ok(Self { sum: value + 1_000 })
    }

    /// Adds to the sum, and returns it.
    #[message]
    pub fn add(&mut self, by: i64) -> i64 {
        self.sum += by;
        self.sum
    }

    /// Returns the sum.
    #[message]
    pub fn get(&self) -> i64 {
        self.sum
    }
}
