//! Where nodes, leases, leadership, assignments and deployments live: rows with compare-and-set and watch.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::{StoreError, StoreFuture, StoreIdentity};

/// The longest key of a row, in bytes.
pub const MAX_ROW_KEY_BYTES: usize = 512;

/// The largest value of a row, in bytes.
pub const MAX_ROW_VALUE_BYTES: usize = 64 * 1024;

/// The store of the cluster's own rows.
///
/// # Contract
///
/// A row is a key (1 to 512 bytes) and a value (at most 64 KiB: components are blobs of the `EntityStore`,
/// R6). Each row has a *revision*: the store's own counter at its last change, never used twice, so a row
/// deleted and made again has another one. `compare_and_set` must be linearizable and durable before it
/// returns (R2, R10); nothing is asked beyond one row at a time, and nothing of the order between rows and commits:
/// a store should serve rows first, since leases are rows. `get` and `list` come after every `compare_and_set` that
/// was called before them. A watch from a revision must deliver every
/// later change of the prefix, in order of revision; it may skip values that were overwritten before they
/// were delivered, but never the last one. A watcher that is too slow or asks for a revision that the
/// store no longer has must get [`RowEvent::Lost`], and lists anew. A key or a value beyond its limit is
/// answered [`StoreError::Limit`].
pub trait ClusterStore: Send + Sync + 'static {
    /// Who this store is.
    fn identity(&self) -> StoreIdentity;

    /// The nonces of its last openings, the newest last (R5): as many as it remembers.
    fn open_nonces(&self) -> Vec<u64> {
        vec![self.identity().open_nonce]
    }

    /// One row.
    fn get(&self, key: &str) -> StoreFuture<Result<Option<StoredRow>, StoreError>>;

    /// All rows whose keys start with `prefix`, in order of key, and the revision as of which they are listed.
    fn list(&self, prefix: &str) -> StoreFuture<Result<(Vec<StoredRow>, u64), StoreError>>;

    /// Writes or deletes a row if it is as expected.
    fn compare_and_set(&self, cas: CompareAndSet) -> StoreFuture<Result<u64, CompareAndSetError>>;

    /// Changes of rows whose keys start with `prefix`, after `revision`.
    fn watch(&self, prefix: &str, revision: u64) -> Box<dyn Watch>;
}

/// One compare-and-set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CompareAndSet {
    /// Which row.
    pub key: String,
    /// The revision that it must have; `None`: it must not exist.
    pub expected: Option<u64>,
    /// Its new value; `None` deletes it.
    pub value: Option<Bytes>,
}

impl CompareAndSet {
    /// Whether key and value are within their limits.
    ///
    /// # Errors
    /// [`StoreError::Limit`] if not.
    pub fn check(&self) -> Result<(), StoreError> {
        let value = self.value.as_ref().map_or(0, Bytes::len);
        if self.key.is_empty() || self.key.len() > MAX_ROW_KEY_BYTES {
            return Err(StoreError::LimitExceeded(format!(
                "a row's key has 1 to {MAX_ROW_KEY_BYTES} bytes, this one {}",
                self.key.len()
            )));
        }
        if value > MAX_ROW_VALUE_BYTES {
            return Err(StoreError::LimitExceeded(format!(
                "a row's value has at most {MAX_ROW_VALUE_BYTES} bytes, this one {value}"
            )));
        }
        Ok(())
    }
}

/// Why a compare-and-set did not happen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum CompareAndSetError {
    /// The row is not as expected; here is how it is.
    #[error("the row was changed by somebody else")]
    RevisionMismatch(Option<StoredRow>),
    /// The store failed; whether the row was written is not known.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// One row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredRow {
    /// Its key.
    pub key: String,
    /// The store's revision at its last change.
    pub revision: u64,
    /// Its value.
    pub value: Bytes,
}

impl RowEvent {
    /// Whose change it is and at which revision; nothing for [`RowEvent::Lost`].
    #[must_use]
    pub fn key_and_revision(&self) -> Option<(&str, u64)> {
        match self {
            Self::Set(row) => Some((&row.key, row.revision)),
            Self::Deleted { key, revision } => Some((key, *revision)),
            Self::ResyncRequired => None,
        }
    }
}

/// One change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RowEvent {
    /// The row has this value now.
    Set(StoredRow),
    /// The row was deleted at this revision.
    Deleted {
        /// Which row.
        key: String,
        /// When.
        revision: u64,
    },
    /// Changes were missed: list anew and watch from there.
    ResyncRequired,
}

/// A running watch; dropped, it ends.
pub trait Watch: Send {
    /// The next change. Cancel safe. After [`RowEvent::Lost`] it gives only that.
    fn next(&mut self) -> futures::future::BoxFuture<'_, RowEvent>;
}
