//! Records on disk: a five-byte header, then the body.
//!
//! The header holds the kind, the format, the flags, and the id of the key that sealed the body (two bytes,
//! little-endian; 0: not sealed). Bodies are encoded as postcard, except for state, whose body is the guest's own
//! bytes. Every body passes through the single [`Seal`] hook, so encryption at rest only needs another `Seal`.
//!
//! Confusing at first: the kind is also part of the key, where it determines the order. Here it prevents a record
//! from being read as another kind. Anything unknown is [`StoreError::Corrupt`]: a store never guesses.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use ostraca_core::codec::{self, CodecError};
use ostraca_core::extensions::{Extensible, Extensions};
use ostraca_core::format;
use ostraca_core::records::{Claim, Head, HeadFloor, Lane, Tell, Timer};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::StoreError;

/// The kinds of records. Their numbers are stored on disk and are never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum RecordKind {
    /// A shard's current claim.
    Claim = 1,
    /// An entity's head.
    Head = 2,
    /// One key of an entity's state, with its value.
    State = 3,
    /// A spilled lane: one stored outside its entity's head.
    Lane = 4,
    /// A timer of an entity, or an entity's wake-up.
    Timer = 5,
    /// A tell waiting to be sent, ordered by target and number.
    Outbox = 6,
    /// An event of an entity's journal, or the snapshot of the journal.
    Journal = 7,
    /// The mark of a remembered entity.
    Remembered = 8,
    /// A dead letter: a tell that was set aside.
    DeadLetter = 9,
    /// A part of a record that is too large for its backend to store whole; written only by backends.
    Fragment = 10,
    /// A kept item of a channel.
    ChannelItem = 11,
    /// A row of the `ClusterStore`.
    Row = 32,
    /// A backend's own record.
    Meta = 33,
}

impl RecordKind {
    /// The kind with this number; `None` if unknown.
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
            11 => Self::ChannelItem,
            32 => Self::Row,
            33 => Self::Meta,
            _ => return None,
        })
    }
}

/// Flag: the body holds only the number of [`RecordKind::Fragment`] records that hold the real body.
pub const FRAGMENTED: u8 = 1;

/// The header of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The record's kind.
    pub kind: RecordKind,
    /// [`FRAGMENTED`] or 0.
    pub flags: u8,
    /// The key that sealed the body; 0: not sealed.
    pub key_id: u16,
}

impl Header {
    /// Size of the header on disk, in bytes.
    pub const BYTES: usize = 5;

    /// The header as stored on disk.
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let [low, high] = self.key_id.to_le_bytes();
        [self.kind as u8, format::written(), self.flags, low, high]
    }

    /// Splits a record, which must be of kind `expected`, into its header and its body.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] if the record is too short, is of another kind, or has an unknown format or flag.
    pub fn take(expected: RecordKind, record: &[u8]) -> Result<(Self, &[u8]), StoreError> {
        let [kind, format, flags, low, high, body @ ..] = record else {
            return Err(corrupt(expected, "it is shorter than its header"));
        };
        if RecordKind::from_number(*kind) != Some(expected) {
            return Err(corrupt(expected, &format!("it is of kind {kind}")));
        }
        format::check(*format).map_err(|why| corrupt(expected, &why))?;
        if flags & !FRAGMENTED != 0 {
            return Err(corrupt(expected, &format!("it has unknown flags {flags:#04x}")));
        }
        let key_id = u16::from_le_bytes([*low, *high]);
        Ok((Self { kind: expected, flags: *flags, key_id }, body))
    }
}

/// The hook for encryption at rest: every body passes through it on its way to and from the disk.
pub trait Seal: fmt::Debug + Send + Sync + 'static {
    /// Seals a body to be stored under `key`; returns the id of the sealing key, and the sealed body.
    fn seal(&self, key: &[u8], body: Vec<u8>) -> (u16, Vec<u8>);

    /// Opens a sealed body.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] if the body was not sealed under this `key` with the key `key_id`.
    fn open<'a>(
        &self,
        key: &[u8],
        key_id: u16,
        body: &'a [u8],
    ) -> Result<Cow<'a, [u8]>, StoreError>;
}

/// Leaves bodies unsealed.
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
            Err(StoreError::Corrupt(format!("record is sealed with unknown key {key_id}")))
        }
    }
}

/// A body that is encoded as postcard.
pub trait Body: Serialize + DeserializeOwned {
    /// The kind of the records that hold it.
    const KIND: RecordKind;
}

impl Body for Head {
    const KIND: RecordKind = RecordKind::Head;
}

impl Body for Lane {
    const KIND: RecordKind = RecordKind::Lane;
}

impl Body for Timer {
    const KIND: RecordKind = RecordKind::Timer;
}

/// A dead letter has the same body, but is stored as another kind.
impl Body for Tell {
    const KIND: RecordKind = RecordKind::Outbox;
}

/// A shard's current claim, and the commit sequences that are reserved for the shard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaimRecord {
    /// The current claim.
    pub claim: Claim,
    /// No commit of the shard has a higher sequence. Sequences are reserved in blocks, so that most turns need not
    /// write this record.
    pub reserved_sequence: u64,
    /// Fields added by later releases.
    pub extensions: Extensions<ClaimRecord>,
}

impl Extensible for ClaimRecord {
    const NAME: &'static str = "ClaimRecord";
    const FIELDS: &'static [u32] = &[ClaimRecord::FLOOR];
}

impl ClaimRecord {
    /// The field with the shard's floor ([`HeadFloor`]); absent if no head was removed. Required: a release without it
    /// would let versions fall.
    const FLOOR: u32 = 1;

    /// The shard's floor; `None` if no head was removed from the shard.
    ///
    /// # Errors
    /// [`CodecError`] if the field is damaged.
    pub fn floor(&self) -> Result<Option<HeadFloor>, CodecError> {
        if self.extensions.is_empty() {
            return Ok(None);
        }
        self.extensions.get(Self::FLOOR)
    }

    /// Sets the shard's floor.
    ///
    /// # Errors
    /// [`CodecError`] if fields of later releases leave no space for it.
    pub fn set_floor(&mut self, floor: &HeadFloor) -> Result<(), CodecError> {
        self.extensions.set(Self::FLOOR, floor)
    }
}

impl Body for ClaimRecord {
    const KIND: RecordKind = RecordKind::Claim;
}

/// Encodes bodies as records and decodes them.
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
    /// Creates a codec that passes bodies through `seal`.
    pub fn new(seal: Arc<dyn Seal>) -> Self {
        Self { seal }
    }

    /// Encodes `value` as the record to store under `key`.
    ///
    /// # Errors
    /// [`StoreError::LimitExceeded`] if the value cannot be encoded; no type of this project causes that.
    pub fn encode<T: Body>(&self, key: &[u8], value: &T) -> Result<Vec<u8>, StoreError> {
        let body = codec::encode(value)
            .map_err(|error| StoreError::LimitExceeded(format!("cannot encode record: {error}")))?;
        Ok(self.encode_bytes(T::KIND, key, body))
    }

    /// Encodes a body that is already serialized.
    #[must_use]
    pub fn encode_bytes(&self, kind: RecordKind, key: &[u8], body: impl Into<Vec<u8>>) -> Vec<u8> {
        let (key_id, body) = self.seal.seal(key, body.into());
        let mut record = Vec::with_capacity(Header::BYTES + body.len());
        record.extend_from_slice(&Header { kind, flags: 0, key_id }.to_bytes());
        record.extend_from_slice(&body);
        record
    }

    /// Decodes the record that was stored under `key`. The backend must have joined its fragments.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] if it is not a complete record of the expected kind.
    pub fn decode<T: Body>(&self, key: &[u8], record: &[u8]) -> Result<T, StoreError> {
        let body = self.open(T::KIND, key, record)?;
        codec::decode(&body).map_err(|error| corrupt(T::KIND, &error.to_string()))
    }

    /// Returns the body of a record that is stored as plain bytes. The backend must have joined its fragments.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] if it is not a complete record of the expected kind.
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
            return Err(corrupt(kind, "its fragments were not joined"));
        }
        self.seal.open(key, header.key_id, body)
    }
}

fn corrupt(kind: RecordKind, why: &str) -> StoreError {
    StoreError::Corrupt(format!("expected a {kind:?} record: {why}"))
}

#[cfg(test)]
mod tests;
