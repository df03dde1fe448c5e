//! How far a copy is, in the row of the pools.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ostraca_catalog::pool::{PoolFill, PoolsRow};
use ostraca_catalog::rows::{self, POOLS};
use ostraca_store::pool_copy::{PoolCopyError, PoolCopyStage};
use ostraca_store::{ClusterStore, StoreError};

use super::failure::row_error;

/// Saves how far the copy is in the row of the pools. Only the process that wrote the row last can write it again: another
/// one that continues the copy has overtaken it.
#[derive(Clone)]
pub(super) struct StageLog {
    rows: Arc<dyn ClusterStore>,
    to: String,
    fill: PoolFill,
    /// The revision of the row as this process read it first, or wrote it last.
    revision: Arc<AtomicU64>,
}

impl StageLog {
    pub(super) fn new(
        rows: Arc<dyn ClusterStore>,
        to: &str,
        fill: PoolFill,
        revision: u64,
    ) -> Self {
        Self { rows, to: to.into(), fill, revision: Arc::new(revision.into()) }
    }

    /// The revision of the row as this process wrote it last.
    pub(super) fn revision(&self) -> u64 {
        self.revision.load(Ordering::Relaxed)
    }

    pub(super) async fn save(self, stage: PoolCopyStage) -> Result<(), PoolCopyError> {
        self.write(Some(stage)).await
    }

    /// Gives the copy up in the row.
    pub(super) async fn remove(&self) -> Result<(), PoolCopyError> {
        self.write(None).await
    }

    async fn write(&self, stage: Option<PoolCopyStage>) -> Result<(), PoolCopyError> {
        let found = rows::read::<PoolsRow>(&*self.rows, POOLS).await.map_err(row_error)?;
        let gone = || StoreError::Corrupt(format!("the row `{POOLS}` has no pool `{}`", self.to));
        let (mut row, revision) = found.ok_or_else(gone)?;
        if revision != self.revision.load(Ordering::Relaxed) {
            return Err(PoolCopyError::Overtaken);
        }
        let entry = row.pools.iter_mut().find(|entry| entry.name == self.to).ok_or_else(gone)?;
        match stage {
            Some(stage) => entry.set_fill(&PoolFill { stage, ..self.fill.clone() }),
            None => entry.give_up_fill(),
        }
        .map_err(row_error)?;
        let written = rows::write(&*self.rows, POOLS, Some(revision), &row).await;
        self.revision.store(written.map_err(row_error)?, Ordering::Relaxed);
        Ok(())
    }
}
