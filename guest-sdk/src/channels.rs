//! Channels: named streams of items that subscribers follow.
//!
//! An item leaves when the turn that emitted it has been committed. The items of a channel reach each subscriber in the
//! order in which they were emitted, and none twice. A channel keeps its last items for subscribers that come late or
//! are slow, as far as the manifest says (`[channels]`); by default it keeps none.
//!
//! ```
//! use ostraca_sdk::{channels, entity};
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Default, Serialize, Deserialize)]
//! pub struct Room {
//!     posts: u64,
//! }
//!
//! #[entity]
//! impl Room {
//!     /// Posts a text, and returns its number.
//!     #[message]
//!     pub fn post(&mut self, text: String) -> u64 {
//!         self.posts += 1;
//!         channels::emit("posts", &text);
//!         self.posts
//!     }
//! }
//! # fn main() {
//! # use ostraca_sdk::testing;
//! # testing::call::<Room>("post", "hello").unwrap();
//! # assert_eq!(testing::emitted("posts"), [r#""hello""#.as_bytes()]);
//! # }
//! ```
//!
//! A client follows the channel with `ostraca watch room/lobby posts`, or with `Client::subscribe` of the client crate.

use serde::Serialize;

/// Emits an item on a channel, as JSON. The channel's name is 1 to 128 bytes long, without control characters.
///
/// # Panics
///
/// Ends the turn: in a query; with an invalid name; beyond the type's limits on channels, on the size of an item or on
/// what one turn writes; or if JSON cannot express the item.
pub fn emit<T: Serialize + ?Sized>(channel: &str, item: &T) {
    match serde_json::to_vec(item) {
        Ok(json) => emit_bytes(channel, &json),
        Err(error) => panic!("cannot emit an item on the channel `{channel}`: {error}"),
    }
}

/// Emits an item on a channel as it is.
///
/// # Panics
///
/// As [`emit`].
pub fn emit_bytes(channel: &str, item: &[u8]) {
    crate::host::emit(channel, item);
}
