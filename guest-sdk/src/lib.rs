//! Write Ostraca entities in Rust: an entity is a struct, its messages are methods.
//!
//! # A first entity
//!
//! `ostraca new hello` writes a project with this crate in it, and `ostraca dev hello` runs it. To write one by hand,
//! create a library with the crate types `cdylib` and `rlib` and the dependencies `ostraca-sdk` and `serde`:
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
//!     /// Adds to the value, and returns the new one.
//!     #[message]
//!     pub fn add(&mut self, by: u64) -> u64 {
//!         self.value += by;
//!         self.value
//!     }
//!
//!     /// Returns the current value.
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
//! The manifest `entity.toml` next to `Cargo.toml` names the type and the component: `type = "counter"` and
//! `component = "target/ostraca/counter.wasm"`. `ostraca build` compiles it, `ostraca deploy --build` also deploys
//! it, and then `ostraca send counter/alice add 2` prints `2`. Each id is a separate entity with its own state,
//! which starts as [`Default`].
//!
//! # What you can rely on
//!
//! **Messages.** A method with `&mut self` is a command; one with `&self` is a query, which must not change state.
//! Arguments are a JSON object with the parameters' names. A single parameter may also be passed as the bare JSON
//! value; an object whose only member has the parameter's name is always read as the named form. If there are no
//! parameters, the body is empty, `null` or `{}`. A parameter of type `Option<…>` may be omitted. Arguments that do not
//! fit the parameters are refused as `invalid-arguments`, and the method does not run. An empty object counts as
//! omitting the only parameter. The first line of the doc comment is the method's summary. Bodies that are not JSON are
//! for methods marked `#[message(raw)]` ([`body`]).
//!
//! **Results** are JSON. A method returns `T`, nothing, or `Result<T, E>` with an [`ApplicationError`] as `E`. On an
//! error the caller gets its code and message, and the turn changes no state (R21).
//!
//! **State.** By default, `#[entity]` stores the whole struct as JSON under the one key [`entity::WHOLE_STATE_KEY`].
//! It loads the struct when it is first needed, saves it after a command that changed it, and restores it after an
//! application error. With `#[entity(state = "keys")]` nothing is stored automatically: the struct is empty, and its
//! methods use [`state`]. The SDK stores only what can be read back. A number that is NaN or infinite, which JSON
//! cannot express, or a struct that cannot be decoded from its own JSON, ends the turn with `state-does-not-encode`,
//! and nothing is written.
//!
//! **Events** are appended to a [`journal`]. With `#[entity(state = "events")]` they are the state: the struct is built
//! from them ([`journal::EventSourced`]).
//!
//! **Items** for subscribers are emitted on [`channels`].
//!
//! **Hooks.** `#[start] fn start(&mut self)` runs before an instance's first message or timer, and
//! `#[stop] fn stop(&mut self)` before the instance is dropped gracefully. Each may also take its reason
//! ([`StartReason`], [`StopReason`]).
//!
//! **Migration.** `#[migrate(schema = 2)] fn migrate(from: u32, old: serde_json::Value) -> Self` builds the struct from
//! the JSON that a component with another schema stored. It may return a `Result`; on an error, the entity remains on
//! the revision that ran it before. Without `#[migrate]`, the schema is 0. With other state models, the function takes
//! only `from`, returns nothing or a `Result`, and changes keys or events itself. `newest = 3` says that it also
//! migrates back from schema 3.
//!
//! **Timers** are set with [`timers`] and handled by methods marked `#[timer]`.
//!
//! **Messages to other entities** are sent with [`messaging`] or, checked by the compiler, with [`call`], and **HTTP calls** are made with [`http`].
//!
//! **Panics** are traps: the turn has no effect, the instance is dropped, and the message, file and line go to the
//! node's log and to the caller.
//!
//! **Integer overflow** panics, in the component as in tests, since `ostraca build` enables the checks. Where wrapping
//! is intended, write it explicitly (`wrapping_add`).
//!
//! **Time and randomness** come from [`clock`] and [`random`], and output goes to [`log`]. On
//! `wasm32-unknown-unknown`, the target of `ostraca build`, `SystemTime::now()` and `Instant::now()` panic, crates
//! that get random numbers from elsewhere panic or do not build, and `println!` prints nothing. The build cannot warn
//! about this, because the standard library has these functions on that target too.
//!
//! **Secrets and settings** that operators set for the type are read with [`variables`].
//!
//! # Building
//!
//! The crate type is `cdylib` (and `rlib` for tests). `ostraca build` compiles for `wasm32-unknown-unknown` and
//! converts the result into a component; the target `wasm32-wasip2` produces one directly. In native builds, everything
//! runs against an in-memory store, one per thread ([`testing`]).
//!
//! # Layout
//!
//! The interfaces are read from their only source, `../wit`, next to this crate's directory. A copy of the SDK
//! therefore needs `guest-sdk/` (with `guest-sdk/macros/`) and `wit/` side by side; `ostraca new` writes them this way.

// Generated code refers to this crate by name, both in this crate and in an entity's crate.
extern crate self as ostraca_sdk;

#[cfg(target_family = "wasm")]
#[doc(hidden)]
pub mod adapter;
mod arguments;
mod ask_error;
pub mod asks;
#[cfg(target_family = "wasm")]
#[doc(hidden)]
pub mod bindings;
pub mod body;
pub mod call;
pub mod channels;
pub mod clock;
pub mod context;
pub mod entity;
mod error;
mod export_macros;
mod finite;
mod host;
pub mod http;
mod http_error;
pub mod journal;
pub mod lifecycle;
pub mod log;
pub mod messaging;
mod migration;
pub mod random;
pub mod raw;
mod reply;
mod schema;
pub mod state;
#[cfg(not(target_family = "wasm"))]
pub mod testing;
pub mod timers;
mod types;
pub mod variables;

pub use body::Body;
pub use error::{ApplicationError, Error};
pub use ostraca_sdk_macros::{ApplicationError, entity};
pub use raw::{StartReason, StopReason};
pub use schemars::{self, JsonSchema};
pub use serde_json;

/// Items that the macros' output refers to. Not part of the API, and not stable.
#[doc(hidden)]
pub mod __private {
    pub use crate::arguments::{Arguments, Parameter};
    pub use crate::entity::{
        EventState, KeyedState, Method, MigrateHook, Runner, StartHook, StopHook, TimerMethod,
        WholeState, timer_payload,
    };
    pub use crate::migration::{IntoMigrated, migrate_struct};
    pub use crate::reply::{IntoStartResult, ResultKind, ValueKind};
    pub use crate::schema::{
        AnySchema, OkSchema, ParameterSchema, Probe, SchemaRow, TypeSchema, schemas,
    };
    #[cfg(target_family = "wasm")]
    pub use wit_bindgen;
}
