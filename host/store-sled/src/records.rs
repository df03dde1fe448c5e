//! Records in sled's single tree. A full key is the letter of the table, followed by the key. Large records are split
//! into fragments.
//!
//! Tables: `E` entities' records and claims, `C` rows, `M` the store's own records, `K` fragments. A record larger
//! than [`INLINE_BYTES`] is split after it is sealed. Its own key then holds only the number of fragments. Each
//! fragment is stored under `K`, the record's full key, and the fragment's number. So no value is ever large enough
//! to reach sled's `blobs/`, which sled does not sync. Code that overwrites a record must know how many fragments
//! the old one had, to remove those that are no longer used.

use ostraca_store::StoreError;
use ostraca_store::record::{Body, Codec, FRAGMENTED, Header, RecordKind};
use sled::{Batch, Db, IVec};

/// The largest value that is passed to sled, in bytes.
pub(crate) const INLINE_BYTES: usize = 4096;

const FRAGMENT_BYTES: usize = INLINE_BYTES - Header::BYTES;

/// The table of a key, as the first byte of the full key.
#[derive(Clone, Copy, Debug)]
#[repr(u8)]
pub(crate) enum Table {
    Rows = b'C',
    Entities = b'E',
    Fragments = b'K',
    Meta = b'M',
}

impl Table {
    /// The full key, as sled stores it, for a key in this table.
    pub(crate) fn key(self, key: &[u8]) -> Vec<u8> {
        let mut full = Vec::with_capacity(1 + key.len());
        full.push(self as u8);
        full.extend_from_slice(key);
        full
    }
}

/// The tree, and the codec of its values. Clones share the same tree.
#[derive(Clone, Debug)]
pub(crate) struct Records {
    pub(crate) db: Db,
    pub(crate) codec: Codec,
}

impl Records {
    /// The raw record under a full key.
    pub(crate) fn raw(&self, key: &[u8]) -> Result<Option<IVec>, StoreError> {
        self.db.get(key).map_err(read_error)
    }

    /// Whether there is a record whose full key starts with `prefix`.
    pub(crate) fn has(&self, prefix: &[u8]) -> Result<bool, StoreError> {
        self.db
            .scan_prefix(prefix)
            .next()
            .map_or(Ok(false), |found| found.map(|_| true).map_err(read_error))
    }

    /// The value under a full key.
    pub(crate) fn get<T: Body>(&self, key: &[u8]) -> Result<Option<T>, StoreError> {
        self.raw(key)?.map(|raw| self.decode(key, &raw)).transpose()
    }

    /// The value of a record that was read under `key`.
    pub(crate) fn decode<T: Body>(&self, key: &[u8], raw: &[u8]) -> Result<T, StoreError> {
        match self.join_fragments(T::KIND, key, raw)? {
            Some(whole) => self.codec.decode(key, &whole),
            None => self.codec.decode(key, raw),
        }
    }

    /// The bytes of a record that was read under `key`.
    pub(crate) fn decode_bytes(
        &self,
        kind: RecordKind,
        key: &[u8],
        raw: &[u8],
    ) -> Result<bytes::Bytes, StoreError> {
        match self.join_fragments(kind, key, raw)? {
            Some(whole) => self.codec.decode_bytes(kind, key, &whole),
            None => self.codec.decode_bytes(kind, key, raw),
        }
    }

    /// Joins the fragments of a record; `None` if it is not fragmented.
    fn join_fragments(
        &self,
        kind: RecordKind,
        key: &[u8],
        raw: &[u8],
    ) -> Result<Option<Vec<u8>>, StoreError> {
        let count = fragment_count(kind, raw)?;
        if count == 0 {
            return Ok(None);
        }
        let (header, _) = Header::take(kind, raw)?;
        let mut whole = Header { flags: 0, ..header }.to_bytes().to_vec();
        whole.reserve(count as usize * FRAGMENT_BYTES);
        for number in 0..count {
            let fragment = self.raw(&fragment_key(key, number))?;
            let fragment = fragment.ok_or_else(|| {
                StoreError::Corrupt(format!(
                    "fragment {number} of {count} of a {kind:?} record is missing"
                ))
            })?;
            whole.extend_from_slice(Header::take(RecordKind::Fragment, &fragment)?.1);
        }
        Ok(Some(whole))
    }
}

/// Adds the write of a record to `batch`. The record replaces one that had `old_fragments` fragments. Returns the
/// number of new fragments.
pub(crate) fn put(batch: &mut Batch, key: Vec<u8>, record: Vec<u8>, old_fragments: u32) -> u32 {
    if record.len() <= INLINE_BYTES {
        remove_fragments(batch, &key, 0, old_fragments);
        batch.insert(key, record);
        return 0;
    }
    let (header, body) = record.split_at(Header::BYTES);
    let mut count = 0;
    for fragment in body.chunks(FRAGMENT_BYTES) {
        let mut chunk =
            Header { kind: RecordKind::Fragment, flags: 0, key_id: 0 }.to_bytes().to_vec();
        chunk.extend_from_slice(fragment);
        batch.insert(fragment_key(&key, count), chunk);
        count += 1;
    }
    remove_fragments(batch, &key, count, old_fragments);
    let mut main = header.to_vec();
    main[2] |= FRAGMENTED;
    main.extend_from_slice(&count.to_le_bytes());
    batch.insert(key, main);
    count
}

/// Adds the removal of a record that had `old` fragments to `batch`.
pub(crate) fn remove(batch: &mut Batch, key: Vec<u8>, old: u32) {
    remove_fragments(batch, &key, 0, old);
    batch.remove(key);
}

/// The number of fragments of a raw record; 0 if it is stored inline.
pub(crate) fn fragment_count(kind: RecordKind, raw: &[u8]) -> Result<u32, StoreError> {
    let (header, body) = Header::take(kind, raw)?;
    if header.flags & FRAGMENTED == 0 {
        return Ok(0);
    }
    match <[u8; 4]>::try_from(body).map(u32::from_le_bytes) {
        Ok(count) if count > 0 => Ok(count),
        _ => Err(StoreError::Corrupt(format!(
            "a fragmented {kind:?} record has an invalid fragment count"
        ))),
    }
}

/// The store error for a sled error during a read.
pub(crate) fn read_error(error: sled::Error) -> StoreError {
    match error {
        sled::Error::Corruption { .. } => StoreError::Corrupt(error.to_string()),
        other => StoreError::Unavailable(other.to_string()),
    }
}

fn remove_fragments(batch: &mut Batch, key: &[u8], from: u32, to: u32) {
    for number in from..to {
        batch.remove(fragment_key(key, number));
    }
}

/// The prefix of the fragment keys of all records whose full keys start with `prefix`.
pub(crate) fn fragment_prefix(prefix: &[u8]) -> Vec<u8> {
    Table::Fragments.key(prefix)
}

fn fragment_key(key: &[u8], number: u32) -> Vec<u8> {
    let mut full = Table::Fragments.key(key);
    full.extend_from_slice(&number.to_be_bytes());
    full
}
