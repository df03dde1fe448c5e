//! Several databases with the state of entities, and the row that says which one has which shards.

use std::sync::Arc;
use std::time::Duration;

use ostraca_catalog::rows::{self, StoresRow};
use ostraca_store::{ClusterStore, MovableShards, RowEvent, StoredRow, Watch};
use ostraca_store_postgres::PostgresStore;
use ostraca_store_ranges::{RangedStore, ShardMap};
use tokio::time::sleep;

use crate::error::NodeError;

/// Pause before the map is read again, because a store has shown that it is old, or the watch ended.
const PAUSE: Duration = Duration::from_millis(200);

/// Combines the databases, after a check that each one that the row names is among them.
///
/// # Errors
/// [`NodeError::UnknownStore`], [`ostraca_catalog::Error::InvalidRow`].
pub(super) async fn combine(
    first: &Arc<PostgresStore>,
    further: &[Arc<PostgresStore>],
    rows: &dyn ClusterStore,
) -> Result<RangedStore, NodeError> {
    let first: Arc<dyn MovableShards> = first.clone();
    let further = further.iter().cloned().map(|store| store as Arc<dyn MovableShards>).collect();
    let found = rows::read::<StoresRow>(rows, &rows::stores_key()).await?;
    let map = match found {
        Some((row, _)) => row.map()?,
        // The cluster is from before the row existed.
        None => {
            let ranges = vec![(0, first.identity().store_id)];
            ShardMap { version: 0, ranges, moving: None }
        }
    };
    let named: Vec<_> = map.stores().collect();
    let ranges = RangedStore::new(first, further, map, RangedStore::CLAIM_WAIT);
    match named.into_iter().find(|store| !ranges.knows(*store)) {
        Some(store) => Err(NodeError::UnknownStore(store)),
        None => Ok(ranges),
    }
}

/// Uses the map of a row.
fn use_map(ranges: &RangedStore, row: &StoredRow) {
    match rows::decode::<StoresRow>(row).and_then(|row| row.map()) {
        Ok(map) => ranges.set_map(map),
        Err(error) => tracing::error!(%error, "cannot decode which database has which shards"),
    }
}

/// Follows the row as long as the node runs.
pub(super) async fn keep_map(ranges: RangedStore, rows: Arc<dyn ClusterStore>) {
    let key = rows::stores_key();
    loop {
        match rows.list(&key).await {
            Ok((found, revision)) => {
                found.iter().filter(|row| row.key == key).for_each(|row| use_map(&ranges, row));
                // It begins behind what was listed.
                follow(&ranges, rows.watch(&key, revision)).await;
            }
            Err(error) => tracing::debug!(%error, "cannot read which database has which shards"),
        }
        sleep(PAUSE).await;
    }
}

/// Follows a watch until it must be begun anew, or a store has shown that the map is old.
async fn follow(ranges: &RangedStore, mut watch: Box<dyn Watch>) {
    loop {
        tokio::select! {
            event = watch.next() => match event {
                RowEvent::Set(row) => use_map(ranges, &row),
                RowEvent::Deleted { .. } => {}
                RowEvent::ResyncRequired => return,
            },
            () = ranges.map_needed() => return,
        }
    }
}
