//! The `ClusterStore` over a line.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures::FutureExt;
use ostraca_store::{
    Cas, ClusterStore, Conflict, Row, StoreError, StoreFuture, StoreIdentity, Watch,
};

use super::known::Known;
use super::line::{Driver, Line};
use super::watch::PeerWatch;
use crate::channel::Connect;
use crate::error::ConnectError;
use crate::options::Options;
use crate::protocol::{Answer, Request};

/// The cluster's `ClusterStore`, carried by another node. Its futures may be awaited under any executor.
pub struct PeerClusterStore {
    line: Arc<Line>,
    identity: StoreIdentity,
    watches: AtomicU64,
}

impl std::fmt::Debug for PeerClusterStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PeerClusterStore").field("store", &self.identity).finish_non_exhaustive()
    }
}

impl PeerClusterStore {
    /// Makes the first link. The driver keeps it up from then on, and has to be run.
    ///
    /// # Errors
    /// [`ConnectError`]; if it is retryable, the same may succeed later.
    pub async fn connect(
        connect: impl Connect,
        known: Arc<Known>,
        options: Options,
    ) -> Result<(Self, Driver), ConnectError> {
        let (line, driver) = Line::connect(connect, known, options).await?;
        let identity = line.identity()?;
        Ok((Self { line: Arc::new(line), identity, watches: AtomicU64::new(0) }, driver))
    }
}

impl ClusterStore for PeerClusterStore {
    fn identity(&self) -> StoreIdentity {
        self.line.identity().unwrap_or_else(|_| self.identity.clone())
    }

    fn get(&self, key: &str) -> StoreFuture<Result<Option<Row>, StoreError>> {
        let answer = self.line.ask(&Request::Get(key.into()));
        let answer = answer.map(|answer| match answer {
            Ok(Answer::Get(row)) => row,
            Ok(other) => Err(StoreError::Unavailable(Line::strange(&other))),
            Err(failed) => Err(failed.into()),
        });
        answer.boxed()
    }

    fn list(&self, prefix: &str) -> StoreFuture<Result<(Vec<Row>, u64), StoreError>> {
        let answer = self.line.ask(&Request::List(prefix.into()));
        let answer = answer.map(|answer| match answer {
            Ok(Answer::List(rows)) => rows,
            Ok(other) => Err(StoreError::Unavailable(Line::strange(&other))),
            Err(failed) => Err(failed.into()),
        });
        answer.boxed()
    }

    fn compare_and_set(&self, cas: Cas) -> StoreFuture<Result<u64, Conflict>> {
        let answer = self.line.ask(&Request::Cas(cas));
        let answer = answer.map(|answer| match answer {
            Ok(Answer::Cas(result)) => result,
            Ok(other) => Err(StoreError::Unavailable(Line::strange(&other)).into()),
            Err(failed) => Err(StoreError::from(failed).into()),
        });
        answer.boxed()
    }

    fn watch(&self, prefix: &str, revision: u64) -> Box<dyn Watch> {
        let number = self.watches.fetch_add(1, Ordering::Relaxed);
        Box::new(PeerWatch::new(self.line.clone(), number, prefix, revision))
    }
}
