//! Reads of an entity's channels: what a subscriber asks for, and what it gets.
//!
//! A subscriber reads page by page: it names where it stands, and waits at the owner until there is something newer. An
//! owner keeps nothing about a subscriber between two reads, so a subscription survives the owner, and a subscriber
//! that is slow learns what it has missed.

use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::codec::{self, CodecError};
use crate::extensions::{Extensible, Extensions};
use crate::records::ChannelCursor;

/// The method of the query that reads a channel. No guest can declare it. Its body is an encoded [`ChannelRead`], and
/// its result an encoded [`ChannelPage`].
pub const READ_CHANNEL: &str = "\u{1}read-channel";

/// Maximum length of a channel's name in bytes.
pub const MAX_CHANNEL_NAME: usize = 128;

/// A request for the next items of a channel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChannelRead {
    /// The channel.
    pub channel: Arc<str>,
    /// Where to begin.
    pub from: ChannelPosition,
    /// Maximum number of items in the page.
    pub max_items: u32,
    /// Maximum size of the page in bytes; it nevertheless holds at least one item if there is one.
    pub max_bytes: u32,
    /// How long to wait for an item, in milliseconds, before the page is returned empty.
    pub wait_ms: u32,
    /// Fields of later releases.
    pub extensions: Extensions<ChannelRead>,
}

impl Extensible for ChannelRead {
    const NAME: &'static str = "ChannelRead";
}

/// Where a read begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ChannelPosition {
    /// Behind everything that has been emitted. The page is empty, and returned at once: its cursor is what matters.
    Now,
    /// At the oldest item that is available.
    Oldest,
    /// At the first item of a later version of the entity.
    AfterVersion(u64),
    /// Behind the item to which an earlier page's cursor points.
    After(ChannelCursor),
}

/// A page of a channel's items.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChannelPage {
    /// What the subscriber has missed between its position and the first item.
    pub lost: Lost,
    /// The items, in order.
    pub items: Vec<PageItem>,
    /// Where the next read begins.
    pub next: ChannelCursor,
    /// Fields of later releases.
    pub extensions: Extensions<ChannelPage>,
}

impl Extensible for ChannelPage {
    const NAME: &'static str = "ChannelPage";
}

/// One item of a page.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageItem {
    /// Its number in the channel.
    pub number: u64,
    /// The entity's version after the turn that emitted it.
    pub version: u64,
    /// When that turn ran, in milliseconds since the Unix epoch (UTC).
    pub utc_ms: u64,
    /// The guest's own bytes.
    pub data: Bytes,
}

/// What a subscriber has missed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Lost {
    /// Nothing.
    Nothing,
    /// This many items, which are no longer available.
    Items(u64),
    /// An unknown number of items, possibly none: the position belongs to a history of the entity that no longer
    /// exists, because the entity was deleted or its store was restored, or it names a version from before the first
    /// item that is available.
    Unknown,
}

impl Lost {
    /// Both losses together.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Unknown, _) | (_, Self::Unknown) => Self::Unknown,
            (Self::Nothing, it) | (it, Self::Nothing) => it,
            (Self::Items(one), Self::Items(two)) => Self::Items(one.saturating_add(two)),
        }
    }
}

impl ChannelRead {
    /// Encodes it as a message's body.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        codec::encode(self).unwrap_or_default().into()
    }

    /// Decodes and checks a message's body.
    ///
    /// # Errors
    /// A message that says what is wrong.
    pub fn decode(body: &[u8]) -> Result<Self, String> {
        let read: Self = codec::decode(body).map_err(|error| error.to_string())?;
        check_channel_name(&read.channel)?;
        if read.max_items == 0 || read.max_bytes == 0 {
            return Err("a read of a channel must allow at least one item and one byte".into());
        }
        Ok(read)
    }
}

impl ChannelPage {
    /// Encodes it as a message's result.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        codec::encode(self).unwrap_or_default().into()
    }

    /// Decodes a message's result.
    ///
    /// # Errors
    /// [`CodecError`] if the bytes are not a page.
    pub fn decode(body: &[u8]) -> Result<Self, CodecError> {
        codec::decode(body)
    }
}

/// Checks the name of a channel.
///
/// # Errors
/// A message that says what is wrong.
pub fn check_channel_name(name: &str) -> Result<(), String> {
    if name.is_empty() || name.len() > MAX_CHANNEL_NAME {
        let bytes = name.len();
        return Err(format!("a channel's name is {bytes} bytes, must be 1 to {MAX_CHANNEL_NAME}"));
    }
    match name.chars().any(char::is_control) {
        true => Err("a channel's name must not contain control characters".into()),
        false => Ok(()),
    }
}
