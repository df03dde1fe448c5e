//! Writes a new cluster's immutable rows, and advances cluster time.

use ostraca_core::extensions::Extensions;
use ostraca_core::ids::{ShardId, ShardPath};
use ostraca_store::ClusterStore;

use crate::clock::ClusterClock;
use crate::config::ClusterSettings;
use crate::error::NodeError;
use crate::rows::{self, ClusterRow, FORMAT, PoolRow, TimeRow};

/// The only namespace of 0.1.
pub(crate) use ostraca_wire::envelope::NAMESPACE;
/// The only pool of 0.1.
pub(crate) const POOL: &str = "default";
/// Path of a shard of that pool.
pub(crate) fn shard_key(shard: ShardId) -> ShardPath {
    ShardPath { namespace: NAMESPACE.into(), pool: POOL.into(), shard }
}

/// The only hash of 0.1 (M1).
pub(crate) const HASH: &str = "murmur3_x86_32";

/// Writes the rows that never change during the cluster's life.
///
/// # Errors
/// [`NodeError::Store`], [`NodeError::RowConflict`] if the cluster already has them.
pub async fn initialize_cluster(
    store: &dyn ClusterStore,
    shards: u32,
    settings: &ClusterSettings,
) -> Result<(), NodeError> {
    rows::write(store, "cluster", None, &ClusterRow::new(FORMAT)).await?;
    rows::write(
        store,
        &rows::pool_key(),
        None,
        &PoolRow { hash: HASH.into(), shards, extensions: Extensions::default() },
    )
    .await?;
    rows::write(store, rows::SETTINGS, None, &settings.to_row(1, None)).await?;
    rows::write(store, "time", None, &TimeRow::default()).await?;
    Ok(())
}

/// Advances cluster time to this node's time, unless the row is already past it because another node's clock is
/// faster. The next owner would expire lanes too early if their times were far behind the cluster's (R17).
pub(crate) async fn advance_cluster_time(
    store: &dyn ClusterStore,
    clock: &ClusterClock,
) -> Result<(), NodeError> {
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
