//! Records on disk: a header of five bytes, then the body.
//!
//! The header is kind, format, flags, and the id of the key that sealed the body (two bytes,
//! little-endian; 0: not sealed). Bodies are postcard, but for state, whose body is the guest's own bytes.
//! Every body passes the one [`Seal`] hook, so encryption at rest is a matter of another `Seal`.
//!
//! What is confusing: the kind stands in the key too, where it orders; here it guards against a record
//! that is read as what it is not. Anything unknown is [`StoreError::Corrupt`]: a store never guesses.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use ostraca_core::codec::{self, FORMAT};
use ostraca_core::extensions::{Extensible, Extensions};
use ostraca_core::records::{Claim, Head, Lane};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::StoreError;

/// The kinds of records. The numbers are on disk: none is ever used for something else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum RecordKind {
    /// The claim that stands on a shard.
    Claim = 1,
    /// An entity's head.
    Head = 2,
    /// A key of an entity's state.
    State = 3,
    /// A lane beside an entity's head.
    Lane = 4,
    /// Reserved: a timer, by due time.
    Timer = 5,
    /// Reserved: a message that waits to be sent, by number.
    Outbox = 6,
    /// Reserved: an event of an entity's journal.
    Journal = 7,
    /// Reserved: the mark of a remembered entity.
    Remembered = 8,
    /// Reserved: a tell that was set aside.
    DeadLetter = 9,
    /// A piece of a record that is too large for its backend; only backends write it.
    Fragment = 10,
    /// A row of the `ClusterStore`.
    Row = 32,
    /// A backend's own record.
    Meta = 33,
}

impl RecordKind {
    /// The kind with that number.
    #[must_use]
    pub fn from_number(number: u8) -> Option<Self> {
        Some(match number {
            1 => Self::Claim,
            2 => Self::Head,
            3 => Self::State,
            4 => Self::Lane,
            5 => Self::Timer,
            6 => Self::Outbox,
            7 => Self::Journal,
            8 => Self::Remembered,
            9 => Self::DeadLetter,
            10 => Self::Fragment,
            32 => Self::Row,
            33 => Self::Meta,
            _ => return None,
        })
    }
}

/// Flag: the body only says how many [`Kind::Chunk`] records hold the real one.
pub const FRAGMENTED: u8 = 1;

/// A record's first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What it is.
    pub kind: RecordKind,
    /// [`CHUNKED`] or nothing.
    pub flags: u8,
    /// Which key sealed the body; 0: none.
    pub key_id: u16,
}

impl Header {
    /// Its size on disk, in bytes.
    pub const BYTES: usize = 5;

    /// As on disk.
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let [low, high] = self.key_id.to_le_bytes();
        [self.kind as u8, FORMAT, self.flags, low, high]
    }

    /// Takes the header off a record that must be of kind `expected`; gives the body too.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] for another or an unknown kind, format or flag.
    pub fn take(expected: RecordKind, record: &[u8]) -> Result<(Self, &[u8]), StoreError> {
        let [kind, format, flags, low, high, body @ ..] = record else {
            return Err(corrupt(expected, "it is shorter than its header"));
        };
        if RecordKind::from_number(*kind) != Some(expected) {
            return Err(corrupt(expected, &format!("it is of kind {kind}")));
        }
        codec::check_format(*format).map_err(|why| corrupt(expected, &why))?;
        if flags & !FRAGMENTED != 0 {
            return Err(corrupt(expected, &format!("it has unknown flags {flags:#04x}")));
        }
        let key_id = u16::from_le_bytes([*low, *high]);
        Ok((Self { kind: expected, flags: *flags, key_id }, body))
    }
}

/// Encryption at rest, one day: every body passes here on its way to and from the disk.
pub trait Seal: fmt::Debug + Send + Sync + 'static {
    /// Seals a body that will stand under `key`; gives the id of the key used.
    fn seal(&self, key: &[u8], body: Vec<u8>) -> (u16, Vec<u8>);

    /// Opens it again.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] if it was not sealed under this `key` by the key with that id.
    fn open<'a>(
        &self,
        key: &[u8],
        key_id: u16,
        body: &'a [u8],
    ) -> Result<Cow<'a, [u8]>, StoreError>;
}

/// Seals nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Plain;

impl Seal for Plain {
    fn seal(&self, _: &[u8], body: Vec<u8>) -> (u16, Vec<u8>) {
        (0, body)
    }

    fn open<'a>(&self, _: &[u8], key_id: u16, body: &'a [u8]) -> Result<Cow<'a, [u8]>, StoreError> {
        if key_id == 0 {
            Ok(Cow::Borrowed(body))
        } else {
            Err(StoreError::Corrupt(format!("a record is sealed by the unknown key {key_id}")))
        }
    }
}

/// A body that is postcard.
pub trait Body: Serialize + DeserializeOwned {
    /// The kind of records that hold it.
    const KIND: RecordKind;
}

impl Body for Head {
    const KIND: RecordKind = RecordKind::Head;
}

impl Body for Lane {
    const KIND: RecordKind = RecordKind::Lane;
}

/// The claim that stands on a shard, and how far commit sequences are spoken for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaimRecord {
    /// The claim.
    pub claim: Claim,
    /// No commit of the shard has a higher sequence than this. Reserved in blocks, so that a turn need not write it.
    pub reserved_sequence: u64,
    /// Fields of later releases.
    pub extensions: Extensions<ClaimRecord>,
}

impl Extensible for ClaimRecord {
    const NAME: &'static str = "StandingClaim";
}

impl Body for ClaimRecord {
    const KIND: RecordKind = RecordKind::Claim;
}

/// Turns bodies into records and back.
#[derive(Clone, Debug)]
pub struct Codec {
    seal: Arc<dyn Seal>,
}

impl Default for Codec {
    fn default() -> Self {
        Self::new(Arc::new(Plain))
    }
}

impl Codec {
    /// A codec whose bodies pass `seal`.
    pub fn new(seal: Arc<dyn Seal>) -> Self {
        Self { seal }
    }

    /// The record that stands under `key`.
    ///
    /// # Errors
    /// [`StoreError::Limit`] if the value cannot be encoded; none of ours can fail.
    pub fn encode<T: Body>(&self, key: &[u8], value: &T) -> Result<Vec<u8>, StoreError> {
        let body = codec::encode(value).map_err(|error| {
            StoreError::LimitExceeded(format!("a record cannot be encoded: {error}"))
        })?;
        Ok(self.encode_bytes(T::KIND, key, body))
    }

    /// The record of a body that is already bytes.
    #[must_use]
    pub fn encode_bytes(&self, kind: RecordKind, key: &[u8], body: impl Into<Vec<u8>>) -> Vec<u8> {
        let (key_id, body) = self.seal.seal(key, body.into());
        let mut record = Vec::with_capacity(Header::BYTES + body.len());
        record.extend_from_slice(&Header { kind, flags: 0, key_id }.to_bytes());
        record.extend_from_slice(&body);
        record
    }

    /// The value of the record that stood under `key`, put together again if it was in chunks.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] if it is not a whole record of that kind.
    pub fn decode<T: Body>(&self, key: &[u8], record: &[u8]) -> Result<T, StoreError> {
        let body = self.open(T::KIND, key, record)?;
        codec::decode(&body).map_err(|error| corrupt(T::KIND, &error.to_string()))
    }

    /// The body of a record whose body is bytes.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] if it is not a whole record of that kind.
    pub fn decode_bytes(
        &self,
        kind: RecordKind,
        key: &[u8],
        record: &[u8],
    ) -> Result<Bytes, StoreError> {
        Ok(self.open(kind, key, record)?.into_owned().into())
    }

    fn open<'a>(
        &self,
        kind: RecordKind,
        key: &[u8],
        record: &'a [u8],
    ) -> Result<Cow<'a, [u8]>, StoreError> {
        let (header, body) = Header::take(kind, record)?;
        if header.flags != 0 {
            return Err(corrupt(kind, "its chunks were not put together"));
        }
        self.seal.open(key, header.key_id, body)
    }
}

fn corrupt(kind: RecordKind, why: &str) -> StoreError {
    StoreError::Corrupt(format!("a record that should be a {kind:?} is none: {why}"))
}

#[cfg(test)]
mod tests;
