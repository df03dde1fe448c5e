//! Delayed tells (R19): each is a timer whose firing puts a tell into the outbox without calling the guest.
//!
//! A delayed tell therefore behaves like a timer: it is durable, can be replaced and cancelled by name, survives
//! hand-offs, and is sent even if its entity has no instance. It gets its number when it enters the outbox. Guests
//! cannot use the prefix of these timers' names.

use std::sync::Arc;

use bytes::Bytes;

use super::outbox::NewTell;
use super::timers::{Firing, TimerChange};
use crate::codec::{self, CodecError};
use crate::records::{DelayedTell, Timer};

/// Prefix of the name of a delayed tell's timer.
const PREFIX: char = '\u{1}';

/// The name of a delayed tell's timer.
#[must_use]
pub fn timer_of_delayed_tell(name: &str) -> Arc<str> {
    format!("{PREFIX}{name}").into()
}

/// The name of the delayed tell whose timer has this name; `None` if the timer is the guest's.
#[must_use]
pub fn delayed_tell_name(timer: &str) -> Option<&str> {
    timer.strip_prefix(PREFIX)
}

/// The timer change that sends a tell at `due`, in milliseconds since the Unix epoch (UTC). It replaces a delayed tell
/// of the same name.
#[must_use]
pub fn set_delayed_tell(name: &str, due: u64, tell: &DelayedTell) -> TimerChange {
    // Encoding names and bytes cannot fail. If it did, the timer would be set aside as damaged when due.
    let payload = Bytes::from(codec::encode(tell).unwrap_or_default());
    TimerChange::Set { name: timer_of_delayed_tell(name), due, interval: 0, payload }
}

/// The delayed tell of a timer; `None` if the timer is the guest's.
///
/// # Errors
/// [`CodecError`] if its record is damaged.
pub fn delayed_tell(timer: &Timer) -> Result<Option<DelayedTell>, CodecError> {
    match delayed_tell_name(&timer.name) {
        Some(_) => codec::decode(&timer.payload).map(Some),
        None => Ok(None),
    }
}

impl Firing {
    /// Whether the firing sends a delayed tell instead of calling the guest.
    pub(super) fn sends_tell(&self) -> bool {
        delayed_tell_name(&self.name).is_some()
    }

    /// The tell that the firing sends.
    pub(super) fn new_tell(&self) -> Result<NewTell, CodecError> {
        let tell: DelayedTell = codec::decode(&self.payload)?;
        Ok(NewTell {
            target: tell.target,
            method: tell.method,
            body: tell.body,
            content_type: tell.content_type,
            traceparent: tell.traceparent,
            utc_ms: self.utc_ms,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Entity;

    #[test]
    fn a_delayed_tell_round_trips_through_its_timer() {
        let tell = DelayedTell {
            target: Entity::new("t", "i"),
            method: "m".into(),
            body: "b".into(),
            content_type: "c".into(),
            traceparent: "p".into(),
            extensions: Default::default(),
        };
        let set = set_delayed_tell("n", 5, &tell);
        let TimerChange::Set { name, due: 5, interval: 0, payload } = set else {
            panic!("{set:?}")
        };
        // The stored form: the fields in order, then an empty extension block.
        assert_eq!(payload[..], *b"\x01t\x01i\x01m\x01b\x01c\x01p\0");
        assert_eq!((delayed_tell_name(&name), delayed_tell_name("n")), (Some("n"), None));
        let timer = Timer {
            name,
            generation: 1,
            due: 5,
            interval: 0,
            payload,
            attempts: 0,
            retry_at: 0,
            failure: "".into(),
            set_aside: false,
            extensions: Default::default(),
        };
        assert_eq!(delayed_tell(&timer), Ok(Some(tell)));
        assert_eq!(delayed_tell(&Timer { name: "n".into(), ..timer.clone() }), Ok(None));
        assert!(delayed_tell(&Timer { payload: "?".into(), ..timer }).is_err());
    }
}
