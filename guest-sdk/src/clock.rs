//! The time. It belongs to the turn: a message's turn that runs again reads the same time.

use std::time::{Duration, SystemTime};

/// Returns the time of this turn; see [`unix_ms`].
pub fn now() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_millis(unix_ms())
}

/// Returns the time of this turn, in milliseconds since 1970-01-01 00:00 UTC.
///
/// In a message's turn it is the time at which the sender created the message, so it may be lower than in the entity's
/// previous turn if that turn's message had another sender. In a timer's turn it is the time at which the firing runs,
/// and in the start and stop hooks it is the node's time.
pub fn unix_ms() -> u64 {
    crate::host::now()
}
