//! Channels of an entity: the items that its turns emit, which of them are kept, and where a subscriber stands.

use std::fmt;
use std::num::ParseIntError;
use std::str::FromStr;
use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::extensions::{Extensible, Extensions};

/// Which items a channel has had, and which of them are kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChannelExtent {
    /// The channel's name.
    pub name: Arc<str>,
    /// The number of the next item; 1 if there was none yet.
    pub next: u64,
    /// The entity's version after the turn that emitted the last item; 0 if there was none yet.
    pub last_version: u64,
    /// The first item that is kept. If none is, its number is `next`.
    pub first: ChannelCut,
    /// Bytes of all items before `next`.
    pub end: u64,
    /// The number of the first item whose record may still be stored. It is lower than that of `first` while records of
    /// items that are no longer kept wait to be deleted.
    pub stored: u64,
    /// Later items that may become `first`, in order.
    pub cuts: Vec<ChannelCut>,
}

/// An item that may become the first one that is kept. It is the first that its turn emitted on the channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChannelCut {
    /// The item's number.
    pub number: u64,
    /// The entity's version after the turn that emitted it.
    pub version: u64,
    /// Bytes of all items before it.
    pub start: u64,
}

impl ChannelExtent {
    /// A channel that has had no item.
    #[must_use]
    pub fn new(name: Arc<str>) -> Self {
        Self {
            name,
            next: 1,
            last_version: 0,
            first: ChannelCut { number: 1, version: 0, start: 0 },
            end: 0,
            stored: 1,
            cuts: Vec::new(),
        }
    }

    /// Size of the kept items in bytes, as counted for `channels.keep-bytes`.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.end.saturating_sub(self.first.start)
    }

    /// Number of items that are kept.
    #[must_use]
    pub fn kept(&self) -> u64 {
        self.next.saturating_sub(self.first.number)
    }
}

/// A kept item of a channel. Channel and number are part of the key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChannelItem {
    /// The entity's version after the turn that emitted it.
    pub version: u64,
    /// When that turn ran, in milliseconds since the Unix epoch (UTC).
    pub utc_ms: u64,
    /// The guest's own bytes.
    pub data: Bytes,
    /// Fields of later releases.
    pub extensions: Extensions<ChannelItem>,
}

impl Extensible for ChannelItem {
    const NAME: &'static str = "ChannelItem";
}

/// Where a subscriber stands in a channel: behind one of its items. Its text form is opaque to subscribers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ChannelCursor {
    /// Rises when the entity is deleted.
    pub generation: u64,
    /// The version of the item; 0 if the subscriber stands before the first one.
    pub version: u64,
    /// The number of the item; 0 before the first one.
    pub number: u64,
}

impl fmt::Display for ChannelCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}-{:x}-{:x}", self.generation, self.version, self.number)
    }
}

/// A text is not a cursor.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a cursor: {0:?}")]
pub struct InvalidCursor(String);

impl FromStr for ChannelCursor {
    type Err = InvalidCursor;

    fn from_str(text: &str) -> Result<Self, InvalidCursor> {
        let numbers: Result<Vec<u64>, ParseIntError> =
            text.split('-').map(|part| u64::from_str_radix(part, 16)).collect();
        match numbers.as_deref() {
            Ok([generation, version, number]) => {
                Ok(Self { generation: *generation, version: *version, number: *number })
            }
            _ => Err(InvalidCursor(text.chars().take(64).collect())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_parsed_back_from_its_text() {
        for numbers in [[0, 0, 0], [1, 258, 3], [u64::MAX; 3]] {
            let [generation, version, number] = numbers;
            let cursor = ChannelCursor { generation, version, number };
            assert_eq!(cursor.to_string().parse(), Ok(cursor));
        }
        for text in ["", "1", "1-2", "1-2-3-4", "1-2-x", "-1-2", "1-2-10000000000000000"] {
            assert!(text.parse::<ChannelCursor>().is_err(), "{text:?}");
        }
    }
}
