//! The two store traits: what a backend must do, may do, and must never do.
//!
//! They are apart because people mix them: leases in one system, state in another. Both are shaped in
//! batches and know no clock. Every backend passes the suite in `conformance` (a feature); the
//! [`memory`] backend is the shortest reading of the contract. [`keys`] and [`record`] say how things
//! stand on disk, [`changes`] helps a backend to keep watches, [`witness`] tells a store from another, a
//! copy, or its own past (R5).

pub mod change_history;
pub mod cluster;
#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
pub mod entity;
pub mod keys;
pub mod memory;
pub mod record;
pub mod witness;

pub use cluster::{ClusterStore, CompareAndSet, CompareAndSetError, RowEvent, StoredRow, Watch};
pub use entity::{EntityStore, Page, Scan, ScanKind, ScannedRecord};
pub use memory::MemoryStore;

use futures::future::BoxFuture;
use ostraca_core::ids::ClusterId;
use serde::{Deserialize, Serialize};

/// The future of a store call. It owns all it needs: a caller may drop it, and the call goes on.
pub type StoreFuture<T> = BoxFuture<'static, T>;

/// Who a store is, and how often it was opened (R5).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreIdentity {
    /// Random, made when the store was explicitly created.
    pub store_id: u128,
    /// The cluster that it belongs to.
    pub cluster: ClusterId,
    /// The cluster's name, for people.
    pub cluster_name: String,
    /// Raised durably at each opening.
    pub open_count: u64,
    /// Random at each opening: two copies of a store opened equally often differ in it.
    pub open_nonce: u64,
    /// The highest sequence of the whole store that is durable; rises with every batch.
    pub durable_sequence: u64,
}

/// Why a store call gave no answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum StoreError {
    /// It may work again: retry after a while.
    #[error("the store does not answer now: {0}")]
    Unavailable(String),
    /// A write or sync failed: the store has stopped writing, until it is opened again.
    #[error("the store has stopped: {0}")]
    Stopped(String),
    /// The data on disk is not what this version writes.
    #[error("the store's data cannot be read: {0}")]
    Corrupt(String),
    /// A limit of the store would be passed.
    #[error("beyond a limit of the store: {0}")]
    LimitExceeded(String),
}

impl StoreError {
    /// Whether the same call may succeed later without anybody's help.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Unavailable(_))
    }
}
