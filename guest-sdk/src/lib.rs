//! Write Ostraca entities in Rust: an entity is a struct, its messages are methods.
//!
//! ```
//! use ostraca_sdk::entity;
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Default, Serialize, Deserialize)]
//! pub struct Counter {
//!     value: u64,
//! }
//!
//! #[entity]
//! impl Counter {
//!     /// Adds, and answers the new value.
//!     #[message]
//!     pub fn add(&mut self, by: u64) -> u64 {
//!         self.value += by;
//!         self.value
//!     }
//!
//!     /// The present value.
//!     #[message]
//!     pub fn get(&self) -> u64 {
//!         self.value
//!     }
//! }
//! # fn main() {
//! use ostraca_sdk::{serde_json::json, testing};
//! assert_eq!(testing::call::<Counter>("add", 2), Ok(json!(2)));
//! assert_eq!(testing::call::<Counter>("get", ()), Ok(json!(2)));
//! # }
//! ```
//!
//! **Messages.** A method with `&mut self` is a command, one with `&self` a query; a query may change nothing. Arguments
//! are a JSON object with the parameters' names; a single parameter may also come as the bare JSON value (an object
//! whose only member has the parameter's name is always read as the named form). Without parameters the body is empty,
//! `null` or `{}`. A parameter of type `Option<…>` may be left out. What does not fit is `invalid-arguments`, and the
//! entity is not touched. The first line of the doc comment is the method's summary.
//!
//! **Results** are JSON. A method returns `T`, nothing, or `Result<T, E>` with an [`ApplicationError`] as `E`: the
//! caller gets its code and message, and the turn leaves no trace (R21).
//!
//! **State.** `#[entity]` keeps the whole struct, as JSON under the one key [`entity::WHOLE_STATE_KEY`]: it is loaded at
//! first need, written after a command that changed it, and put back after an application error.
//! `#[entity(state = "keys")]` keeps nothing by itself: the struct is empty, and its methods use [`state`].
//! What is written can be read back: a number that is NaN or infinite, for which JSON has no word, and a struct whose
//! own JSON does not become that struct again, end the turn with `state-does-not-encode`, and nothing is written.
//!
//! **Hooks.** `#[start] fn start(&mut self)` runs before the first message of an instance, `#[stop] fn stop(&mut self)`
//! before it is dropped in good order. Either may take its reason ([`StartReason`], [`StopReason`]) too.
//!
//! **Panics** are traps: the turn leaves no trace, the instance is dropped, and the message, file and line reach the
//! node's log and the caller.
//!
//! **Overflow** of integers panics, in the component as in tests: `ostraca build` switches the checks on. Where wrapping
//! is meant, say so (`wrapping_add`).
//!
//! **No clock, no randomness, no standard output.** On `wasm32-unknown-unknown`, which `ostraca build` compiles for,
//! `SystemTime::now()` and `Instant::now()` panic, crates that want random numbers do not build or panic, and `println!`
//! goes nowhere: log with [`log`], and pass times and random numbers in as arguments. Nothing can tell this when a guest
//! is built, as the standard library has these functions on that target too.
//!
//! # Building
//!
//! The crate type is `cdylib` (and `rlib` for tests). `ostraca build` compiles for `wasm32-unknown-unknown` and makes a
//! component of the result; `wasm32-wasip2` gives one directly. Natively everything runs against a store in memory, one
//! a thread ([`testing`]).
//!
//! # Layout
//!
//! The interfaces are read from `../wit`, beside this crate's folder, which is the one source of truth. A copy of the
//! SDK therefore needs `guest-sdk/` (with `guest-sdk/macros/`) and `wit/` side by side; `ostraca new` writes them so.

// The generated glue names this crate by its name, here as in an entity's crate.
extern crate self as ostraca_sdk;

mod arguments;
#[cfg(target_family = "wasm")]
#[doc(hidden)]
pub mod bindings;
pub mod context;
pub mod entity;
mod error;
mod finite;
mod host;
pub mod lifecycle;
pub mod log;
pub mod raw;
mod reply;
pub mod state;
#[cfg(not(target_family = "wasm"))]
pub mod testing;

pub use error::{ApplicationError, Error};
pub use ostraca_sdk_macros::{ApplicationError, entity};
pub use raw::{StartReason, StopReason};
pub use serde_json;

/// What the macros' output names. Not for use by hand, and not stable.
#[doc(hidden)]
pub mod __private {
    pub use crate::arguments::{Arguments, Parameter};
    pub use crate::entity::{KeyedState, Method, Runner, StartHook, StopHook, WholeState};
    pub use crate::reply::{IntoStartResult, ResultKind, ValueKind};
    #[cfg(target_family = "wasm")]
    pub use wit_bindgen;
}
