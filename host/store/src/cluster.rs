//! The store of nodes, leases, leadership, assignments and deployments: rows with compare-and-set and watch.

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
/// A row has a key (1 to 512 bytes) and a value (at most 64 KiB: components are blobs of the `EntityStore`, R6). Each
/// row has a *revision*: the value of the store's own counter at the row's last change. A revision is never reused, so
/// a row that is deleted and created again has a new one.
/// `compare_and_set` must be linearizable, and durable before it returns (R2, R10). Nothing needs to be atomic beyond
/// one row, and no order is required between rows and commits. A store should serve rows first, since leases are rows.
/// `get` and `list` must see every `compare_and_set` that was called before them.
/// A watch from a revision must deliver every later change under its prefix, in order of revision. It may skip values
/// that were overwritten before they were delivered, but never the last one. A watcher that is too slow, or asks for
/// a revision that the store no longer has, must get [`RowEvent::ResyncRequired`]; it then lists the rows again.
/// A key or value beyond its limit must be refused with [`StoreError::LimitExceeded`].
pub trait ClusterStore: Send + Sync + 'static {
    /// The store's identity.
    fn identity(&self) -> StoreIdentity;

    /// The nonces of the last openings that the store remembers, newest last (R5).
    fn open_nonces(&self) -> Vec<u64> {
        vec![self.identity().open_nonce]
    }

    /// The row with this key; `None` if it does not exist.
    fn get(&self, key: &str) -> StoreFuture<Result<Option<StoredRow>, StoreError>>;

    /// All rows whose keys start with `prefix`, ordered by key, and the revision at which they are listed.
    fn list(&self, prefix: &str) -> StoreFuture<Result<(Vec<StoredRow>, u64), StoreError>>;

    /// Writes or deletes a row if it has the expected revision; returns the revision of the change.
    fn compare_and_set(&self, cas: CompareAndSet) -> StoreFuture<Result<u64, CompareAndSetError>>;

    /// Watches rows whose keys start with `prefix` for changes after `revision`.
    fn watch(&self, prefix: &str, revision: u64) -> Box<dyn Watch>;
}

/// A conditional write of one row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CompareAndSet {
    /// The row's key.
    pub key: String,
    /// The revision that the row must have; `None`: the row must not exist.
    pub expected: Option<u64>,
    /// The new value; `None` deletes the row.
    pub value: Option<Bytes>,
}

impl CompareAndSet {
    /// Checks the key and the value against their limits.
    ///
    /// # Errors
    /// [`StoreError::LimitExceeded`] if the key is empty, or the key or value exceeds its limit.
    pub fn check(&self) -> Result<(), StoreError> {
        let value = self.value.as_ref().map_or(0, Bytes::len);
        if self.key.is_empty() || self.key.len() > MAX_ROW_KEY_BYTES {
            return Err(StoreError::LimitExceeded(format!(
                "row key is {} bytes, must be 1 to {MAX_ROW_KEY_BYTES}",
                self.key.len()
            )));
        }
        if value > MAX_ROW_VALUE_BYTES {
            return Err(StoreError::LimitExceeded(format!(
                "row value is {value} bytes, limit is {MAX_ROW_VALUE_BYTES}"
            )));
        }
        Ok(())
    }
}

/// Why a compare-and-set failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum CompareAndSetError {
    /// The row does not have the expected revision. Holds the current row; `None` if it does not exist.
    #[error("the row was changed concurrently")]
    RevisionMismatch(Option<StoredRow>),
    /// The store failed; it is unknown whether the row was written.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A row, as the store holds it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredRow {
    /// The row's key.
    pub key: String,
    /// The store's revision at the row's last change.
    pub revision: u64,
    /// The row's value.
    pub value: Bytes,
}

impl RowEvent {
    /// The key and the revision of the change; `None` for [`RowEvent::ResyncRequired`].
    #[must_use]
    pub fn key_and_revision(&self) -> Option<(&str, u64)> {
        match self {
            Self::Set(row) => Some((&row.key, row.revision)),
            Self::Deleted { key, revision } => Some((key, *revision)),
            Self::ResyncRequired => None,
        }
    }
}

/// A change, as a watch delivers it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RowEvent {
    /// The row now has this value.
    Set(StoredRow),
    /// The row was deleted.
    Deleted {
        /// The row's key.
        key: String,
        /// The revision of the deletion.
        revision: u64,
    },
    /// Changes were missed: list the rows again, and watch from the revision of the list.
    ResyncRequired,
}

/// A running watch. Dropping it ends the watch.
pub trait Watch: Send {
    /// The next change. Cancel safe. Once it has returned [`RowEvent::ResyncRequired`], it returns nothing else.
    fn next(&mut self) -> futures::future::BoxFuture<'_, RowEvent>;
}
