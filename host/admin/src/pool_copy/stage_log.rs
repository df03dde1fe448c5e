//! How far a copy is, in the row of the pools.

use std::sync::Arc;

use ostraca_catalog::pool::{PoolEntry, PoolFill, PoolsRow};
use ostraca_catalog::rows::{self, POOLS};
use ostraca_store::pool_copy::{PoolCopyError, PoolCopyStage};
use ostraca_store::{ClusterStore, StoreError};

use super::failure::row_error;

/// Maximum attempts when the row changes concurrently.
const ATTEMPTS: usize = 8;

/// Saves how far the copy is in the row of the pools. Only the process that took the copy over last can: its number is in
/// the row. What happens to other pools in the row does not matter.
#[derive(Clone)]
pub(super) struct StageLog {
    rows: Arc<dyn ClusterStore>,
    to: String,
    runner: u64,
}

impl StageLog {
    /// The log of the process with this number, for the copy to this pool.
    pub(super) fn new(rows: Arc<dyn ClusterStore>, to: &str, runner: u64) -> Self {
        Self { rows, to: to.into(), runner }
    }

    /// Begins a copy, which closes both pools.
    ///
    /// # Errors
    /// [`PoolCopyError::Overtaken`] if any pool has changed since the row had this revision.
    pub(super) async fn begin(&self, fill: &PoolFill, revision: u64) -> Result<(), PoolCopyError> {
        self.change(|entry, at| match at == revision {
            true => entry.set_fill(&self.owned(fill)).map_err(row_error),
            false => Err(PoolCopyError::Overtaken),
        })
        .await
    }

    /// Takes the copy over. From now on, the process that ran it cannot save anything.
    ///
    /// # Errors
    /// [`PoolCopyError::Overtaken`] if it is not as it was found.
    pub(super) async fn take_over(&self, found: &PoolFill) -> Result<(), PoolCopyError> {
        self.change(|entry, _| match entry.fill().map_err(row_error)?.as_ref() == Some(found) {
            true => entry.set_fill(&self.owned(found)).map_err(row_error),
            false => Err(PoolCopyError::Overtaken),
        })
        .await
    }

    pub(super) async fn save(self, stage: PoolCopyStage) -> Result<(), PoolCopyError> {
        self.change(|entry, _| {
            let fill = self.own_fill(entry)?;
            entry.set_fill(&PoolFill { stage, ..fill }).map_err(row_error)
        })
        .await
    }

    /// Gives the copy up in the row.
    pub(super) async fn remove(&self) -> Result<(), PoolCopyError> {
        self.change(|entry, _| {
            self.own_fill(entry)?;
            entry.give_up_fill().map_err(row_error)
        })
        .await
    }

    fn owned(&self, fill: &PoolFill) -> PoolFill {
        PoolFill { runner: self.runner, ..fill.clone() }
    }

    /// How far the copy is, if this process still runs it.
    fn own_fill(&self, entry: &PoolEntry) -> Result<PoolFill, PoolCopyError> {
        let fill = entry.fill().map_err(row_error)?;
        fill.filter(|fill| fill.runner == self.runner).ok_or(PoolCopyError::Overtaken)
    }

    async fn change(
        &self,
        change: impl Fn(&mut PoolEntry, u64) -> Result<(), PoolCopyError>,
    ) -> Result<(), PoolCopyError> {
        for _ in 0..ATTEMPTS {
            let found = rows::read::<PoolsRow>(&*self.rows, POOLS).await.map_err(row_error)?;
            let gone =
                || StoreError::Corrupt(format!("the row `{POOLS}` has no pool `{}`", self.to));
            let (mut row, revision) = found.ok_or_else(gone)?;
            let entry = row.pools.iter_mut().find(|entry| entry.name == self.to);
            change(entry.ok_or_else(gone)?, revision)?;
            match rows::write(&*self.rows, POOLS, Some(revision), &row).await {
                Err(ostraca_catalog::Error::RowConflict(_)) => {}
                written => return written.map(drop).map_err(row_error),
            }
        }
        Err(PoolCopyError::Overtaken)
    }
}
