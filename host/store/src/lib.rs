//! The two store traits: what a backend must do, may do, and must never do.
//!
//! They are separate so that a deployment can combine two systems: leases in one, state in another. [`EntityStore`]
//! works in batches, and neither trait reads a clock. Every backend passes the suite in `conformance` (a feature);
//! [`memory`] is the shortest implementation of the contract. [`keys`] and [`record`] define the layout on disk,
//! [`change_history`] helps a backend implement watches, and [`witness`] distinguishes a store from another one,
//! from a copy, and from an earlier state of itself (R5). [`transfer`] copies one store to another, [`shard_move`] moves
//! single shards.

pub mod backup;
pub mod change_history;
pub mod cluster;
#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
pub mod entity;
pub mod keys;
pub mod memory;
pub mod pool_copy;
pub mod record;
mod row_op;
pub mod shard_move;
mod stopped;
pub mod transfer;
pub mod witness;

pub use cluster::{ClusterStore, CompareAndSet, CompareAndSetError, RowEvent, StoredRow, Watch};
pub use entity::{EntityStore, Page, Scan, ScanKind, ScannedRecord};
pub use memory::MemoryStore;
pub use row_op::RowOp;
pub use shard_move::{MovableShards, ShardMove, ShardMoveError};
pub use stopped::Stopped;

use futures::future::BoxFuture;
use ostraca_core::ids::ClusterId;
use serde::{Deserialize, Serialize};

/// The future of a store call. It owns everything that it needs. Dropping it does not cancel the call, which may
/// still take effect.
pub type StoreFuture<T> = BoxFuture<'static, T>;

/// A store's identity, and how many times it has been opened (R5).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreIdentity {
    /// Random, chosen when the store was explicitly created.
    pub store_id: u128,
    /// The cluster that the store belongs to.
    pub cluster: ClusterId,
    /// The cluster's name, for display.
    pub cluster_name: String,
    /// Incremented durably each time the store is opened.
    pub open_count: u64,
    /// Random for each opening, so that two copies of a store with the same `open_count` differ.
    pub open_nonce: u64,
    /// The highest durable sequence of the whole store. Every batch that writes anything raises it.
    pub durable_sequence: u64,
}

/// Why a store call failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum StoreError {
    /// Temporary: retry later.
    #[error("store unavailable: {0}")]
    Unavailable(String),
    /// A write or sync failed. The store writes nothing until it is opened again.
    #[error("the store has stopped: {0}")]
    Stopped(String),
    /// The stored data is damaged, or in a format that this version does not know.
    #[error("store data is corrupt: {0}")]
    Corrupt(String),
    /// The call would exceed a limit of the store.
    #[error("store limit exceeded: {0}")]
    LimitExceeded(String),
}

impl StoreError {
    /// Whether the same call may succeed later without intervention.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Unavailable(_))
    }
}
