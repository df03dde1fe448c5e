//! Writes a new cluster's immutable rows, and advances cluster time.

use ostraca_config::config::ClusterSettings;
use ostraca_core::extensions::Extensions;
use ostraca_store::ClusterStore;

use crate::clock::ClusterClock;
use crate::error::Error;
use crate::pool::HASH;
use crate::rows::{self, ClusterRow, FORMAT, PoolRow, SettingsRow, TimeRow};

/// Writes the rows that never change during the cluster's lifetime.
///
/// # Errors
/// [`Error::Store`], [`Error::RowConflict`] if the cluster already has them.
pub async fn initialize_cluster(
    store: &dyn ClusterStore,
    shards: u32,
    settings: &ClusterSettings,
) -> Result<(), Error> {
    rows::write(store, "cluster", None, &ClusterRow::new(FORMAT)).await?;
    rows::write(
        store,
        &rows::pool_key(),
        None,
        &PoolRow { hash: HASH.into(), shards, extensions: Extensions::default() },
    )
    .await?;
    rows::write(store, rows::SETTINGS, None, &SettingsRow::new(settings, 1, None)).await?;
    rows::write(store, "time", None, &TimeRow::default()).await?;
    Ok(())
}

/// Advances cluster time to this node's time, unless the row is already past it because another node's clock is
/// faster. The next owner would expire lanes too early if their times were far behind the cluster's (R17).
///
/// # Errors
/// [`Error::Store`], [`Error::InvalidRow`], or [`Error::RowConflict`] if another node wrote it meanwhile.
pub async fn advance_cluster_time(
    store: &dyn ClusterStore,
    clock: &ClusterClock,
) -> Result<(), Error> {
    let Some((row, revision)) = rows::read::<TimeRow>(store, "time").await? else { return Ok(()) };
    let before = row.cluster_time_ms;
    clock.advance_to(before);
    let now = clock.now().cluster_time;
    if before < now {
        rows::write(store, "time", Some(revision), &TimeRow { cluster_time_ms: now, ..row })
            .await?;
    }
    Ok(())
}
