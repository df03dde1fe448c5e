//! What is fixed for a cluster's life, and its time.

use ostraca_core::extensions::Extensions;
use ostraca_core::ids::{ShardId, ShardPath};
use ostraca_store::ClusterStore;

use crate::clock::ClusterClock;
use crate::config::ClusterSettings;
use crate::error::NodeError;
use crate::rows::{self, ClusterRow, FORMAT, PoolRow, TimeRow};

/// The one namespace of 0.1.
pub(crate) use ostraca_wire::envelope::NAMESPACE;
/// The one pool of 0.1.
pub(crate) const POOL: &str = "default";
/// A shard of the one pool.
pub(crate) fn shard_key(shard: ShardId) -> ShardPath {
    ShardPath { namespace: NAMESPACE.into(), pool: POOL.into(), shard }
}

/// The one hash of 0.1 (M1).
pub(crate) const HASH: &str = "murmur3_x86_32";

/// Writes the rows that are fixed for the cluster's life.
///
/// # Errors
/// [`NodeError::Store`], [`NodeError::Conflict`] if the cluster has them already.
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

/// Moves cluster time on: the row's, or this node's where its clock is slower than others'. Lanes that bear a time far
/// behind the cluster's would be forgotten too soon by their next owner (R17).
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
