//! How the store uses etcd's keys and values.
//!
//! | Key | Value |
//! |---|---|
//! | PREFIX`store` | JSON: what the store is, and how often it was opened |
//! | PREFIX`openings/`NUMBER | the nonce of that opening, as 16 hexadecimal digits |
//! | PREFIX`batch` | empty; written with each transaction of several calls |
//! | PREFIX`rows/`KEY | a row: the format (1 byte), a nonce of the write (16 bytes), the value |
//!
//! A row's revision is etcd's `mod_revision`. The nonce shows a writer whose answer was lost that the write is its own.

use bytes::{BufMut, Bytes, BytesMut};
use ostraca_store::{StoreError, StoredRow};

use crate::proto::KeyValue;

const FORMAT: u8 = 1;
const NONCE: usize = size_of::<u128>();

/// The keys under a prefix.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    rows: String,
    store: String,
    batch: String,
    openings: String,
}

impl Layout {
    pub(crate) fn new(prefix: &str) -> Self {
        Self {
            rows: format!("{prefix}rows/"),
            store: format!("{prefix}store"),
            batch: format!("{prefix}batch"),
            openings: format!("{prefix}openings/"),
        }
    }

    /// The key of the store itself.
    pub(crate) fn store(&self) -> Bytes {
        self.store.clone().into()
    }

    /// The key that is written with each transaction of several calls.
    pub(crate) fn batch(&self) -> Bytes {
        self.batch.clone().into()
    }

    /// The key of an opening of the store. The keys sort as their numbers do.
    pub(crate) fn opening(&self, number: u64) -> Bytes {
        format!("{}{number:020}", self.openings).into()
    }

    /// The key of a row.
    pub(crate) fn row(&self, key: &str) -> Bytes {
        format!("{}{key}", self.rows).into()
    }

    /// The first key, and the one behind the last, of the rows whose keys start with `prefix`.
    pub(crate) fn range(&self, prefix: &str) -> (Bytes, Bytes) {
        let from = self.row(prefix);
        // No text contains this byte.
        let end = [&from[..], &[0xff]].concat();
        (from, end.into())
    }

    /// The row's own key.
    pub(crate) fn key_of(&self, key: &[u8]) -> Result<String, StoreError> {
        let own = key.strip_prefix(self.rows.as_bytes()).map(<[u8]>::to_vec);
        own.and_then(|own| String::from_utf8(own).ok()).ok_or_else(|| {
            let key = String::from_utf8_lossy(key);
            StoreError::Corrupt(format!("the key {key} in etcd is not one of Ostraca: delete it"))
        })
    }

    /// The row in a key of etcd, and the nonce of its last write.
    pub(crate) fn decode(&self, stored: &KeyValue) -> Result<(StoredRow, u128), StoreError> {
        let key = self.key_of(&stored.key)?;
        let corrupt = |why: &str| {
            StoreError::Corrupt(format!("the row {key} in etcd cannot be read: {why}; restore it"))
        };
        let (nonce, value) = match stored.value.split_first() {
            Some((&FORMAT, rest)) => {
                let nonce =
                    rest.first_chunk::<NONCE>().ok_or_else(|| corrupt("it is too short"))?;
                (u128::from_be_bytes(*nonce), stored.value.slice(1 + NONCE..))
            }
            Some((format, _)) => {
                let why = format!("it has format {format}, and this release knows {FORMAT}");
                return Err(corrupt(&why));
            }
            None => return Err(corrupt("it is empty")),
        };
        let revision = stored.mod_revision.cast_unsigned();
        Ok((StoredRow { key, revision, value }, nonce))
    }
}

/// The value of etcd for a row's value.
pub(crate) fn encode(nonce: u128, value: &[u8]) -> Bytes {
    let mut bytes = BytesMut::with_capacity(1 + NONCE + value.len());
    bytes.put_u8(FORMAT);
    bytes.put_u128(nonce);
    bytes.put_slice(value);
    bytes.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(key: &'static str, value: Bytes) -> KeyValue {
        KeyValue { key: key.into(), mod_revision: 5, value }
    }

    #[test]
    fn a_row_in_etcd_has_a_format_and_a_nonce() {
        let layout = Layout::new("x/");
        let value = encode(3, b"v");
        assert_eq!(value[..], [&[1][..], &3_u128.to_be_bytes(), b"v"].concat());
        let row = StoredRow { key: "nodes/a".into(), revision: 5, value: "v".into() };
        assert_eq!(layout.decode(&stored("x/rows/nodes/a", value)), Ok((row, 3)));
    }

    #[test]
    fn values_that_others_wrote_are_refused_by_name() {
        let layout = Layout::new("x/");
        for (key, value, expected) in [
            ("x/rows/a", Bytes::new(), "it is empty"),
            ("x/rows/a", Bytes::from_static(&[1, 0]), "too short"),
            ("x/rows/a", Bytes::from_static(b"\x02abc"), "format 2"),
            ("y/rows/a", encode(1, b""), "y/rows/a"),
        ] {
            let refused = layout.decode(&stored(key, value)).expect_err("refused");
            assert!(
                matches!(&refused, StoreError::Corrupt(why) if why.contains(expected)),
                "{refused}"
            );
        }
    }
}
