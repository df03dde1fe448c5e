//! Calls of another entity's methods, checked by the compiler.
//!
//! `#[entity(type = "counter")]` generates a reference to entities of that type: `Counter::at("alice").add(5)` is a
//! [`Command`], and `Counter::at("alice").get()` a [`Query`]. Nothing happens until the call is used:
//!
//! ```
//! use ostraca_sdk::asks::AskError;
//! use ostraca_sdk::entity;
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Default, Serialize, Deserialize)]
//! pub struct Counter {
//!     value: u64,
//! }
//!
//! #[entity(type = "counter")]
//! impl Counter {
//!     /// Adds to the value, and returns the new one.
//!     #[message]
//!     pub fn add(&mut self, by: u64) -> u64 {
//!         self.value += by;
//!         self.value
//!     }
//!
//!     /// Adds the value of another counter, and sets that one back.
//!     #[message]
//!     pub fn merge(&mut self, other: String) -> Result<u64, AskError> {
//!         let taken = Counter::at(&other).take().ask()?;   // waits for the result
//!         self.value += taken;
//!         Counter::at("total").add(taken).tell();          // committed with the turn
//!         Ok(self.value)
//!     }
//!
//!     /// Sets the value to zero, and returns the old one.
//!     #[message]
//!     pub fn take(&mut self) -> u64 {
//!         std::mem::take(&mut self.value)
//!     }
//! }
//! # fn main() {
//! # use ostraca_sdk::testing;
//! # testing::answer_asks(|_| Ok(testing::json_answer(3)));
//! # assert_eq!(testing::call::<Counter>("merge", "bob").unwrap(), 3);
//! # assert_eq!(testing::take_tells()[0].arguments(), ostraca_sdk::serde_json::json!({ "by": 3 }));
//! # }
//! ```
//!
//! What [`messaging`](crate::messaging) and [`asks`](crate::asks) say applies: grants, limits, and when to tell and when
//! to ask. Programs outside of the cluster send the same calls with `ostraca-client` and its feature `sdk`.
//!
//! # References between crates
//!
//! A component contains one entity, so a crate that is a component cannot depend on another one: linking would fail,
//! since both define the component's exports. Put an entity that others refer to into a library of its own, with
//! `export = false`, and its component into a second crate, which contains one line:
//!
//! ```text
//! // In the library `counter-entity`: #[entity(type = "counter", export = false)] impl Counter { … }
//! // In the component `counter`:
//! counter_entity::export_counter!(counter_entity::Counter);
//! ```
//!
//! Only the second crate has the crate type `cdylib`. `examples/bank` is built this way. A feature of one crate would not
//! do: cargo keeps libraries of the crate types `cdylib` and `rlib` under one file name, whatever their features, so
//! builds of the two would overwrite each other.

use std::fmt;
use std::marker::PhantomData;
use std::time::{Duration, SystemTime};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::asks::{AskError, PendingAsk};
use crate::messaging::{Entity, JSON, encode};

/// The message of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    to: Entity,
    method: &'static str,
    body: Vec<u8>,
}

/// A call of a method that may change state. `T` is the method's result.
#[must_use = "a call does nothing until it is used: tell() or ask()"]
pub struct Command<T> {
    message: Message,
    result: PhantomData<fn() -> T>,
}

/// A call of a method that does not change state. `T` is the method's result.
#[must_use = "a call does nothing until it is used: ask()"]
pub struct Query<T> {
    message: Message,
    result: PhantomData<fn() -> T>,
}

/// A call that has been started. Dropping it does not cancel the call.
#[derive(Debug)]
pub struct Pending<T> {
    ask: PendingAsk,
    result: PhantomData<fn() -> T>,
}

/// A [`Command`] or [`Query`], for programs outside of the cluster that send it.
pub trait TypedCall {
    /// The method's result.
    type Output;
    /// Whether the method may change state.
    const IS_COMMAND: bool;

    /// The message.
    fn message(&self) -> &Message;

    /// Decodes the result from a reply. A method without a result replies with an empty body.
    ///
    /// # Errors
    /// Returns why the reply is not what the method returns.
    fn decode(&self, reply: &[u8]) -> Result<Self::Output, String>
    where
        Self::Output: DeserializeOwned,
    {
        let reply = if reply.is_empty() { b"null" } else { reply };
        crate::state::from_json(reply).map_err(|error| error.to_string())
    }
}

impl Message {
    /// The entity that is called.
    #[must_use]
    pub fn entity(&self) -> &Entity {
        &self.to
    }

    /// The method.
    #[must_use]
    pub fn method(&self) -> &'static str {
        self.method
    }

    /// The arguments, as JSON.
    #[must_use]
    pub fn body(&self) -> &[u8] {
        &self.body
    }

    fn start<T>(&self, timeout: Option<Duration>) -> Pending<T> {
        let ask = self.to.start_ask_raw(self.method, &self.body, JSON, timeout);
        Pending { ask, result: PhantomData }
    }
}

impl<T> Command<T> {
    /// Sends the command with this turn, without a result: see [`Entity::tell`].
    pub fn tell(self) {
        let Message { to, method, body } = &self.message;
        to.tell_raw(method, body, JSON);
    }

    /// Sends the command later, under a name: see [`Entity::tell_after`].
    ///
    /// # Panics
    /// In a query.
    pub fn tell_after(self, name: &str, delay: Duration) {
        let due = crate::host::now().saturating_add(crate::types::millis(delay));
        self.tell_due(name, due);
    }

    /// Like [`Command::tell_after`], but takes a point in time.
    ///
    /// # Panics
    /// In a query.
    pub fn tell_at(self, name: &str, time: SystemTime) {
        let due = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        self.tell_due(name, crate::types::millis(due));
    }

    fn tell_due(self, name: &str, due: u64) {
        let Message { to, method, body } = &self.message;
        to.tell_raw_at(name, due, method, body, JSON);
    }
}

macro_rules! asks {
    ($call:ident, $is_command:literal) => {
        impl<T> TypedCall for $call<T> {
            type Output = T;
            const IS_COMMAND: bool = $is_command;

            fn message(&self) -> &Message {
                &self.message
            }
        }

        impl<T> $call<T> {
            /// Starts the call and returns at once, so a turn can ask several entities concurrently.
            pub fn start_ask(self) -> Pending<T> {
                self.message.start(None)
            }

            /// Like `start_ask`, with a timeout for the answer. `limits.ask-timeout` is the maximum.
            pub fn start_ask_within(self, timeout: Duration) -> Pending<T> {
                self.message.start(Some(timeout))
            }

            /// Makes the call, and waits for its result.
            ///
            /// # Errors
            /// [`AskError`] if there is no result, or if it does not decode as a `T`.
            pub fn ask(self) -> Result<T, AskError>
            where
                T: DeserializeOwned,
            {
                self.start_ask().wait()
            }
        }

        impl<T> fmt::Debug for $call<T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_tuple(stringify!($call)).field(&self.message).finish()
            }
        }
    };
}

asks!(Command, true);
asks!(Query, false);

impl<T: DeserializeOwned> Pending<T> {
    /// Waits for the result. Waiting again returns the same result.
    ///
    /// # Errors
    /// [`AskError`] if there is no result, or if it does not decode as a `T`.
    pub fn wait(&self) -> Result<T, AskError> {
        self.ask.wait()
    }
}

impl<T> AsRef<PendingAsk> for Pending<T> {
    /// The untyped handle, for [`asks::wait_any`](crate::asks::wait_any).
    fn as_ref(&self) -> &PendingAsk {
        &self.ask
    }
}

/// Builds a call with its arguments in the order of the parameters. Used by generated code.
#[doc(hidden)]
#[derive(Debug)]
pub struct CallBuilder {
    to: Entity,
    method: &'static str,
    body: Vec<u8>,
}

impl CallBuilder {
    #[must_use]
    pub fn new(to: &Entity, method: &'static str) -> Self {
        Self { to: to.clone(), method, body: vec![b'{'] }
    }

    #[must_use]
    pub fn argument<T: Serialize>(mut self, name: &str, value: &T) -> Self {
        if self.body.len() > 1 {
            self.body.push(b',');
        }
        self.body.extend(encode(name));
        self.body.push(b':');
        self.body.extend(encode(value));
        self
    }

    pub fn command<T>(self) -> Command<T> {
        Command { message: self.message(), result: PhantomData }
    }

    pub fn query<T>(self) -> Query<T> {
        Query { message: self.message(), result: PhantomData }
    }

    fn message(mut self) -> Message {
        self.body.push(b'}');
        Message { to: self.to, method: self.method, body: self.body }
    }
}
