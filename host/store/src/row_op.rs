//! A call of a [`ClusterStore`](crate::ClusterStore) that waits for its turn in a backend's queue.

use futures::channel::oneshot::Sender;

use crate::{CompareAndSet, CompareAndSetError, StoreError, StoredRow};

/// A call, and where its answer goes.
#[derive(Debug)]
pub enum RowOp {
    /// [`compare_and_set`](crate::ClusterStore::compare_and_set).
    Cas(CompareAndSet, Sender<Result<u64, CompareAndSetError>>),
    /// [`get`](crate::ClusterStore::get).
    Get(String, Sender<Result<Option<StoredRow>, StoreError>>),
    /// [`list`](crate::ClusterStore::list).
    List(String, Sender<Result<(Vec<StoredRow>, u64), StoreError>>),
}

impl RowOp {
    /// Answers with an error. The caller may no longer wait for it.
    pub fn fail(self, error: StoreError) {
        match self {
            Self::Cas(_, to) => drop(to.send(Err(error.into()))),
            Self::Get(_, to) => drop(to.send(Err(error))),
            Self::List(_, to) => drop(to.send(Err(error))),
        }
    }
}
