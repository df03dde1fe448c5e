//! A chat room: each room is an entity.
//!
//! Clients post messages and follow the channel `messages`. Who is in the room is kept by timers: a member who neither
//! posts nor sends `here` for a minute is removed. The channel `presence` says who comes and goes.
//!
//! ```text
//! ostraca dev examples/chat
//! ostraca watch chat/lobby messages           # in another terminal
//! ostraca send chat/lobby join alice
//! ostraca send chat/lobby post '{"name":"alice","text":"hello"}'
//! ```

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use ostraca_sdk::{ApplicationError, channels, entity, lifecycle, timers};
use serde::{Deserialize, Serialize};

/// How long a member stays after its last message, unless it asks for another time.
const AWAY_AFTER_SECONDS: u64 = 60;
/// Maximum number of members: each has a timer.
const MAX_MEMBERS: usize = 1_000;
/// Maximum length of a name in bytes: it is part of a timer's name.
const MAX_NAME: usize = 64;

/// The state of one room. The messages are in its channel.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Room {
    members: BTreeSet<String>,
    /// The number of messages so far.
    posts: u64,
}

/// An item of the channel `messages`.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Post {
    /// Counts from 1.
    pub number: u64,
    /// The member who wrote it.
    pub name: String,
    /// What they wrote.
    pub text: String,
}

/// An item of the channel `presence`.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Presence {
    /// The member.
    pub name: String,
    /// What the member did.
    pub change: Change,
}

/// What a member did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Change {
    /// Came.
    Joined,
    /// Left.
    Left,
    /// Was silent for too long, and was removed.
    TimedOut,
}

/// Why a room refuses a message.
#[derive(Debug, PartialEq, Eq, ApplicationError)]
pub enum Refused {
    /// A name has 1 to 64 bytes and no control characters.
    InvalidName,
    /// Only members may do this.
    NotHere,
    /// The room is full.
    Full,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refused::InvalidName => {
                write!(f, "a name has 1 to {MAX_NAME} bytes and no control characters")
            }
            Refused::NotHere => f.write_str("join the room first"),
            Refused::Full => write!(f, "the room has {MAX_MEMBERS} members"),
        }
    }
}

#[entity]
impl Room {
    /// Enters the room. Entering it again is the same as `here`.
    ///
    /// # Errors
    /// `invalid-name`, `full`.
    #[message]
    pub fn join(&mut self, name: String) -> Result<(), Refused> {
        if name.is_empty() || name.len() > MAX_NAME || name.chars().any(char::is_control) {
            return Err(Refused::InvalidName);
        }
        if !self.members.contains(&name) {
            if self.members.len() == MAX_MEMBERS {
                return Err(Refused::Full);
            }
            if self.members.is_empty() {
                // While somebody is here, the room has an instance: after a crash of its node, the next post does not
                // wait for one.
                lifecycle::remember();
            }
            self.members.insert(name.clone());
            announce(&name, Change::Joined);
        }
        self.here(name, None)
    }

    /// Posts a message, and returns its number.
    ///
    /// # Errors
    /// `not-here`.
    #[message]
    pub fn post(&mut self, name: String, text: String) -> Result<u64, Refused> {
        self.here(name.clone(), None)?;
        self.posts += 1;
        let post = Post { number: self.posts, name, text };
        channels::emit("messages", &post);
        Ok(post.number)
    }

    /// Says that a member is still here, and will be for so many seconds (default: 60). A client sends it regularly.
    ///
    /// # Errors
    /// `not-here`.
    #[message]
    pub fn here(&mut self, name: String, seconds: Option<u64>) -> Result<(), Refused> {
        if !self.members.contains(&name) {
            return Err(Refused::NotHere);
        }
        let stays = Duration::from_secs(seconds.unwrap_or(AWAY_AFTER_SECONDS).min(86_400));
        // Replaces the member's previous timer.
        timers::after(away(&name), stays).payload(&name).set();
        Ok(())
    }

    /// Leaves the room. Returns whether the member was here.
    #[message]
    pub fn leave(&mut self, name: String) -> bool {
        timers::cancel(&away(&name));
        self.remove(&name, Change::Left)
    }

    /// Returns the names of all who are here.
    #[message]
    pub fn members(&self) -> BTreeSet<String> {
        self.members.clone()
    }

    /// A member has been silent for too long.
    #[timer]
    fn away(&mut self, name: String) {
        self.remove(&name, Change::TimedOut);
    }
}

impl Room {
    fn remove(&mut self, name: &str, change: Change) -> bool {
        if !self.members.remove(name) {
            return false;
        }
        announce(name, change);
        if self.members.is_empty() {
            lifecycle::forget();
        }
        true
    }
}

/// The name of a member's timer, which the method `away` handles.
fn away(name: &str) -> String {
    format!("away/{name}")
}

fn announce(name: &str, change: Change) {
    channels::emit("presence", &Presence { name: name.to_owned(), change });
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ostraca_sdk::lifecycle;
    use ostraca_sdk::serde_json::{self, Value, json};
    use ostraca_sdk::testing::{self, MessageError, call};

    use super::{MAX_MEMBERS, Room};

    fn items(channel: &str) -> Vec<Value> {
        let items = testing::emitted(channel);
        items.iter().map(|item| serde_json::from_slice(item).unwrap()).collect()
    }

    fn presence() -> Vec<String> {
        let text = |item: Value| format!("{} {}", item["name"], item["change"]).replace('"', "");
        items("presence").into_iter().map(text).collect()
    }

    fn is_refused(outcome: Result<Value, MessageError>, expected: &str) -> bool {
        matches!(outcome, Err(MessageError::Application { code, .. }) if code == expected)
    }

    fn post(name: &str, text: &str) -> Result<Value, MessageError> {
        call::<Room>("post", json!({ "name": name, "text": text }))
    }

    /// Lets time pass, and fires the timers that are due.
    fn pass(seconds: u64) -> usize {
        testing::advance_time(Duration::from_secs(seconds));
        testing::fire_timers::<Room>()
    }

    #[test]
    fn messages_are_numbered_and_emitted_in_order() {
        call::<Room>("join", "alice").unwrap();
        assert_eq!(post("alice", "hello"), Ok(json!(1)));
        assert_eq!(post("alice", "anybody?"), Ok(json!(2)));
        let posts = items("messages");
        assert_eq!(posts[0], json!({ "number": 1, "name": "alice", "text": "hello" }));
        assert_eq!(posts[1], json!({ "number": 2, "name": "alice", "text": "anybody?" }));
        assert_eq!(presence(), ["alice joined"]);
    }

    #[test]
    fn only_members_post() {
        assert!(is_refused(post("mallory", "hello"), "not-here"));
        let here = call::<Room>("here", json!({ "name": "mallory" }));
        assert!(is_refused(here, "not-here"));
        assert_eq!(items("messages"), Vec::<Value>::new());
    }

    #[test]
    fn a_silent_member_times_out_and_a_busy_one_stays() {
        for name in ["alice", "bob", "carol"] {
            call::<Room>("join", name).unwrap();
        }
        assert_eq!(pass(40), 0);
        post("alice", "hello").unwrap();
        call::<Room>("here", json!({ "name": "bob" })).unwrap();
        assert_eq!(pass(40), 1);
        assert_eq!(call::<Room>("members", ()), Ok(json!(["alice", "bob"])));
        assert_eq!(presence()[3..], ["carol timed-out"]);
    }

    #[test]
    fn a_member_chooses_how_long_it_stays() {
        call::<Room>("join", "alice").unwrap();
        call::<Room>("here", json!({ "name": "alice", "seconds": 5 })).unwrap();
        assert_eq!((pass(4), pass(1)), (0, 1));
        assert_eq!(presence(), ["alice joined", "alice timed-out"]);
    }

    #[test]
    fn who_left_does_not_time_out() {
        call::<Room>("join", "alice").unwrap();
        assert_eq!(call::<Room>("leave", "alice"), Ok(json!(true)));
        assert_eq!(call::<Room>("leave", "alice"), Ok(json!(false)));
        assert_eq!(pass(120), 0);
        assert_eq!(presence(), ["alice joined", "alice left"]);
    }

    #[test]
    fn a_room_is_remembered_while_somebody_is_here() {
        assert!(!lifecycle::is_remembered());
        call::<Room>("join", "alice").unwrap();
        call::<Room>("join", "bob").unwrap();
        call::<Room>("leave", "alice").unwrap();
        assert!(lifecycle::is_remembered());
        assert_eq!(pass(60), 1);
        assert!(!lifecycle::is_remembered());
    }

    #[test]
    fn names_and_the_number_of_members_are_bounded() {
        for name in ["", "a\nb", &"x".repeat(65)] {
            assert!(is_refused(call::<Room>("join", name), "invalid-name"));
        }
        for number in 0..MAX_MEMBERS {
            call::<Room>("join", format!("m{number}")).unwrap();
        }
        assert!(is_refused(call::<Room>("join", "one more"), "full"));
        call::<Room>("join", "m0").unwrap();
    }
}
