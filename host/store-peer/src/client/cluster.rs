//! The `ClusterStore` over a reconnecting link.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures::FutureExt;
use ostraca_store::{
    ClusterStore, CompareAndSet, CompareAndSetError, StoreError, StoreFuture, StoreIdentity,
    StoredRow, Watch,
};

use super::reconnecting_link::{Driver, ReconnectingLink};
use super::verifier::StoreVerifier;
use super::watch::PeerWatch;
use crate::channel::Connect;
use crate::error::ConnectError;
use crate::options::ClientOptions;
use crate::protocol::{Request, ResponseBody};

/// Client of the cluster's `ClusterStore`, which another node runs. Its futures work with any executor.
pub struct PeerClusterStore {
    link: Arc<ReconnectingLink>,
    identity: StoreIdentity,
    watches: AtomicU64,
}

impl std::fmt::Debug for PeerClusterStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PeerClusterStore").field("store", &self.identity).finish_non_exhaustive()
    }
}

impl PeerClusterStore {
    /// Creates the first link. The driver maintains the link from then on; the caller must run it.
    ///
    /// # Errors
    /// [`ConnectError`]; if it is retryable, a retry may succeed later.
    pub async fn connect(
        connect: impl Connect,
        known: Arc<StoreVerifier>,
        options: ClientOptions,
    ) -> Result<(Self, Driver), ConnectError> {
        let (line, driver) = ReconnectingLink::connect(connect, known, options).await?;
        let identity = line.identity()?;
        Ok((Self { link: Arc::new(line), identity, watches: AtomicU64::new(0) }, driver))
    }
}

impl ClusterStore for PeerClusterStore {
    fn identity(&self) -> StoreIdentity {
        self.link.identity().unwrap_or_else(|_| self.identity.clone())
    }

    fn get(&self, key: &str) -> StoreFuture<Result<Option<StoredRow>, StoreError>> {
        let answer = self.link.read(&Request::Get(key.into()));
        let answer = answer.map(|answer| match answer {
            Ok(ResponseBody::Get(row)) => row,
            Ok(other) => {
                Err(StoreError::Unavailable(ReconnectingLink::unexpected_response(&other)))
            }
            Err(failed) => Err(failed.into()),
        });
        answer.boxed()
    }

    fn list(&self, prefix: &str) -> StoreFuture<Result<(Vec<StoredRow>, u64), StoreError>> {
        let answer = self.link.read(&Request::List(prefix.into()));
        let answer = answer.map(|answer| match answer {
            Ok(ResponseBody::List(rows)) => rows,
            Ok(other) => {
                Err(StoreError::Unavailable(ReconnectingLink::unexpected_response(&other)))
            }
            Err(failed) => Err(failed.into()),
        });
        answer.boxed()
    }

    fn compare_and_set(&self, cas: CompareAndSet) -> StoreFuture<Result<u64, CompareAndSetError>> {
        let answer = self.link.call(&Request::CompareAndSet(cas));
        let answer = answer.map(|answer| match answer {
            Ok(ResponseBody::CompareAndSet(result)) => result,
            Ok(other) => {
                Err(StoreError::Unavailable(ReconnectingLink::unexpected_response(&other)).into())
            }
            Err(failed) => Err(StoreError::from(failed).into()),
        });
        answer.boxed()
    }

    fn watch(&self, prefix: &str, revision: u64) -> Box<dyn Watch> {
        let number = self.watches.fetch_add(1, Ordering::Relaxed);
        Box::new(PeerWatch::new(self.link.clone(), number, prefix, revision))
    }
}
