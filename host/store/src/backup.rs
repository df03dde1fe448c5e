//! Backups of a store that runs: their parts, and the directory that holds them.
//!
//! A store reads all records once while turns go on, then again those that have changed meanwhile, and the last of them
//! while no turn can be committed. So all parts together show the store as of one moment, the *cut*, and tells that
//! were on their way are either still with their senders or already with their targets. What was read in a later round
//! replaces what was read before.
//!
//! ```text
//! chunks/<BLAKE3 of the content>   what was read: shared by all backups in the directory
//! backups/<time>                   the manifest of a backup: a text with the digests of its chunks
//! ```
//!
//! A chunk ends where its last key says so, not after a number of records. So a store that has hardly changed since the
//! backup before has nearly the same chunks, which are not written again. The manifest is written last, after all
//! chunks have been read back and compared.

mod contents;
mod dir;
mod manifest;

use ostraca_core::codec;
use ostraca_core::ids::{Entity, ShardPath};
use ostraca_core::records::RecordKey;
use serde::{Deserialize, Serialize};

use crate::transfer::Item;
use crate::{StoreError, keys};

pub use contents::BackupContents;
pub use dir::{BackupError, BackupWriter, list_backups};
pub use manifest::{Manifest, Section};

/// The first byte of a chunk of records: its format.
const FORMAT: u8 = 1;
/// Size of a chunk in bytes from which on it may end.
const LEAST_BYTES: usize = 256 << 10;
/// Size of a chunk in bytes at which it ends, whatever its last key is.
const MOST_BYTES: usize = 2 << 20;
/// One in this many keys ends a chunk.
const ENDS: u8 = 64;

/// A record in a chunk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum BackupRecord {
    /// An item as it was read.
    Item(Item),
    /// The head of an entity, if `key` is `None`, or another record of it, which was removed after an earlier round.
    Removed {
        /// The entity's shard.
        shard: ShardPath,
        /// The entity.
        entity: Entity,
        /// The record's key.
        key: Option<RecordKey>,
    },
}

impl BackupRecord {
    /// The key by which a record of a later round replaces one of an earlier round; `None` for what is read only once.
    #[must_use]
    pub fn key(&self) -> Option<Vec<u8>> {
        match self {
            Self::Item(Item::Head { shard, entity, .. })
            | Self::Removed { shard, entity, key: None } => Some(keys::head(shard, entity)),
            Self::Item(Item::Record { shard, entity, key, .. })
            | Self::Removed { shard, entity, key: Some(key) } => {
                Some(keys::record_key(shard, entity, key).0)
            }
            Self::Item(Item::Shard { .. } | Item::Component(_) | Item::Row { .. }) => None,
        }
    }
}

/// Collects records of ascending keys into chunks.
#[derive(Debug, Default)]
pub struct Chunker {
    records: Vec<BackupRecord>,
    bytes: usize,
}

impl Chunker {
    /// Adds a record. Returns the chunk that it ends, if it does.
    ///
    /// # Errors
    /// [`StoreError::LimitExceeded`] if a record cannot be encoded.
    pub fn add(&mut self, record: BackupRecord) -> Result<Option<Vec<u8>>, StoreError> {
        let key = record.key().unwrap_or_default();
        self.bytes += key.len();
        if let BackupRecord::Item(item) = &record {
            self.bytes += item.bytes();
        }
        self.records.push(record);
        let may_end = self.bytes >= LEAST_BYTES;
        let ends = may_end && blake3::hash(&key).as_bytes()[0].is_multiple_of(ENDS);
        if ends || self.bytes >= MOST_BYTES { self.finish() } else { Ok(None) }
    }

    /// Ends the last chunk, if it has any records.
    ///
    /// # Errors
    /// [`StoreError::LimitExceeded`] if a record cannot be encoded.
    pub fn finish(&mut self) -> Result<Option<Vec<u8>>, StoreError> {
        if self.records.is_empty() {
            return Ok(None);
        }
        self.bytes = 0;
        encode_chunk(&std::mem::take(&mut self.records)).map(Some)
    }
}

/// Encodes a chunk: a byte for the format, then the records as postcard.
///
/// # Errors
/// [`StoreError::LimitExceeded`] if a record cannot be encoded.
pub fn encode_chunk(records: &[BackupRecord]) -> Result<Vec<u8>, StoreError> {
    let failed = |error| StoreError::LimitExceeded(format!("cannot encode a chunk: {error}"));
    let body = codec::encode(records).map_err(failed)?;
    Ok([&[FORMAT][..], &body].concat())
}

/// Decodes a chunk.
///
/// # Errors
/// [`StoreError::Corrupt`] if the bytes are not a chunk that this release reads.
pub fn decode_chunk(bytes: &[u8]) -> Result<Vec<BackupRecord>, StoreError> {
    match bytes.split_first() {
        Some((&FORMAT, body)) => codec::decode(body)
            .map_err(|error| StoreError::Corrupt(format!("cannot decode a chunk: {error}"))),
        Some((format, _)) => Err(StoreError::Corrupt(format!(
            "a chunk has format {format}, but this release reads format {FORMAT}"
        ))),
        None => Err(StoreError::Corrupt("a chunk is empty".into())),
    }
}

#[cfg(test)]
mod tests;
