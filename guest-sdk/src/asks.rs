//! Requests to other entities, answered within the turn.
//!
//! An *ask* is a command or a query to another entity; the turn waits for the answer. Meanwhile, the node runs other
//! entities, but this one handles no other message until the turn ends.
//!
//! ```
//! use ostraca_sdk::asks::AskError;
//! use ostraca_sdk::messaging::Entity;
//! use ostraca_sdk::entity;
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Default, Serialize, Deserialize)]
//! pub struct Cart {
//!     items: Vec<String>,
//! }
//!
//! #[entity]
//! impl Cart {
//!     /// Adds an item, if the shop has it. Returns whether it does.
//!     #[message]
//!     pub fn add(&mut self, item: String) -> Result<bool, AskError> {
//!         let in_stock: u64 = Entity::new("stock", &item).ask("count", &())?;
//!         if in_stock > 0 {
//!             self.items.push(item);
//!         }
//!         Ok(in_stock > 0)
//!     }
//! }
//! # fn main() {
//! # use ostraca_sdk::testing;
//! # testing::answer_asks(|_| Ok(testing::json_answer(3)));
//! # assert_eq!(testing::call::<Cart>("add", "tea").unwrap(), true);
//! # }
//! ```
//!
//! The manifest must grant the target's type: `[grants] ask = ["stock"]`. The target's manifest must admit the asking
//! type, as the principal `entity/TYPE` (`[access] send`, by default everyone). The limits are `limits.asks`,
//! `limits.ask-bytes` and `limits.ask-timeout`.
//!
//! # Ask to read and decide, tell to change
//!
//! An ask is not part of the turn. If the turn fails afterwards, the effects of the ask remain. So ask for what the
//! turn needs to decide, and [tell](Entity::tell) other entities to act on the decision: tells are committed with the
//! turn. If a turn is interrupted, it runs again, perhaps on another node. If it asks the same command again, the
//! target answers from its record instead of running the command twice. This works only if the turn asks the same
//! things again, so what a turn asks should depend only on its state, its message, and the turn's [clock](crate::clock)
//! and [random numbers](crate::random). In a firing, the clock differs between attempts: use the time at which the timer
//! was due.
//!
//! A query may ask only queries. The `start` and `stop` hooks cannot ask. An ask that would make an entity wait for
//! itself, directly or through a chain of asks, returns [`AskError::NotRun`] with the code `ask-cycle` and the chain.

use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

pub use crate::ask_error::AskError;
use crate::host;
use crate::messaging::{Entity, JSON, encode};
use crate::state::from_json;
use crate::types::millis;

/// An ask that has been started. Dropping the handle does not cancel the ask.
#[derive(Debug)]
pub struct PendingAsk(host::AskHandle);

impl PendingAsk {
    /// Waits for the result, and decodes it from JSON. Waiting again returns the same result.
    ///
    /// # Errors
    /// [`AskError`] if there is no result, or if it does not decode as a `T`.
    pub fn wait<T: DeserializeOwned>(&self) -> Result<T, AskError> {
        let body = self.wait_raw()?;
        // A method without a result replies with an empty body.
        let body = if body.is_empty() { b"null" } else { &*body };
        from_json(body).map_err(|error| AskError::InvalidAnswer {
            message: format!("the answer is not what was expected: {error}"),
        })
    }

    /// Waits for the result as bytes. Waiting again returns the same result.
    ///
    /// # Errors
    /// [`AskError`] if there is no result.
    pub fn wait_raw(&self) -> Result<Vec<u8>, AskError> {
        host::wait_ask(&self.0)
    }
}

/// Waits until at least one of the asks is answered, and returns its position. If several are answered, returns the
/// lowest position.
///
/// # Panics
/// If there are no asks.
pub fn wait_any<'a>(asks: impl IntoIterator<Item = &'a PendingAsk>) -> usize {
    let handles: Vec<_> = asks.into_iter().map(|ask| &ask.0).collect();
    host::wait_any_ask(&handles)
}

impl Entity {
    /// Calls a method and waits for its result. Arguments are sent as JSON: an object with the parameters' names, or
    /// the bare value of a single parameter; `()` if there are none. Traps if the target's type is not granted, in
    /// hooks, and beyond the limits on asks.
    ///
    /// # Errors
    /// [`AskError`] if there is no result, or if it does not decode as a `T`.
    ///
    /// # Panics
    /// If JSON cannot express the arguments.
    pub fn ask<T: DeserializeOwned>(
        &self,
        method: &str,
        arguments: &(impl Serialize + ?Sized),
    ) -> Result<T, AskError> {
        self.start_ask(method, arguments).wait()
    }

    /// Like [`Entity::ask`], but returns at once, so a turn can ask several entities concurrently.
    ///
    /// # Panics
    /// If JSON cannot express the arguments.
    pub fn start_ask(&self, method: &str, arguments: &(impl Serialize + ?Sized)) -> PendingAsk {
        self.start_ask_raw(method, &encode(arguments), JSON, None)
    }

    /// Like [`Entity::start_ask`], but takes arbitrary bytes and a timeout. `limits.ask-timeout` is the maximum, and
    /// the default for `None`.
    pub fn start_ask_raw(
        &self,
        method: &str,
        body: &[u8],
        content_type: &str,
        timeout: Option<Duration>,
    ) -> PendingAsk {
        let to = (self.entity_type(), self.id());
        PendingAsk(host::start_ask(to, method, body, content_type, timeout.map(millis)))
    }
}
