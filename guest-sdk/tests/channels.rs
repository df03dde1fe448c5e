//! Channels in native unit tests.

#![allow(clippy::unwrap_used, reason = "tests")]

use ostraca_sdk::serde_json::json;
use ostraca_sdk::{Error, channels, entity, testing};
use serde::{Deserialize, Serialize};

/// A chat room.
#[derive(Default, Serialize, Deserialize)]
pub struct Room {
    posts: u64,
}

#[entity]
impl Room {
    /// Posts a text, unless it is empty.
    #[message]
    pub fn post(&mut self, text: String) -> Result<u64, Error> {
        self.posts += 1;
        channels::emit("posts", &text);
        if text.is_empty() {
            return Err(Error::new("empty", "a post needs a text"));
        }
        channels::emit_bytes("count", &[self.posts as u8]);
        Ok(self.posts)
    }

    /// A query that emits.
    #[message]
    pub fn sly(&self) {
        channels::emit("posts", "sly");
    }
}

#[test]
fn items_of_turns_that_succeed_are_emitted() {
    testing::reset();
    assert_eq!(testing::call::<Room>("post", "a"), Ok(json!(1)));
    testing::call::<Room>("post", "").unwrap_err();
    assert_eq!(testing::call::<Room>("post", "b"), Ok(json!(2)));
    assert_eq!(testing::emitted("posts"), [br#""a""#, br#""b""#]);
    assert_eq!(testing::emitted("count"), [[1], [2]]);
    assert!(testing::emitted("other").is_empty());
}

#[test]
#[should_panic(expected = "write-in-query")]
fn a_query_emits_nothing() {
    testing::reset();
    let _ = testing::call::<Room>("sly", ());
}
