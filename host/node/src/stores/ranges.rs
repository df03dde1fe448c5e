//! Several databases with the state of entities, and the row that says which one has which shards.

use std::sync::Arc;
use std::time::Duration;

use ostraca_catalog::rows::{self, StoresRow};
use ostraca_store::{ClusterStore, MovableShards, RowEvent};
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
    let map = read_map(rows).await?.unwrap_or_else(|| ShardMap {
        version: 0,
        ranges: vec![(0, first.identity().store_id)],
        moving: None,
    });
    let named = map.ranges.iter().map(|(_, store)| *store).chain(map.moving.map(|it| it.to));
    let named: Vec<_> = named.collect();
    let ranges = RangedStore::new(first, further, map, RangedStore::CLAIM_WAIT);
    match named.into_iter().find(|store| !ranges.knows(*store)) {
        Some(store) => Err(NodeError::UnknownStore(store)),
        None => Ok(ranges),
    }
}

/// Reads the map; `None` if the cluster is from before it existed.
async fn read_map(rows: &dyn ClusterStore) -> Result<Option<ShardMap>, NodeError> {
    let found = rows::read::<StoresRow>(rows, &rows::stores_key()).await?;
    Ok(found.map(|(row, _)| row.map()).transpose()?)
}

/// Follows the row as long as the node runs.
pub(super) async fn keep_map(ranges: RangedStore, rows: Arc<dyn ClusterStore>) {
    loop {
        let key = rows::stores_key();
        // The watch begins behind what is read.
        let listed = rows.list(&key).await;
        let map = match &listed {
            Ok((found, _)) => {
                let row = found.iter().find(|row| row.key == key);
                row.map(|row| rows::decode::<StoresRow>(row).and_then(|row| row.map())).transpose()
            }
            Err(error) => {
                tracing::warn!(%error, "cannot read which database has which shards");
                Ok(None)
            }
        };
        match map {
            Ok(Some(map)) => ranges.set_map(map),
            Ok(None) => {}
            Err(error) => tracing::error!(%error, "cannot decode which database has which shards"),
        }
        if let Ok((_, revision)) = listed {
            let mut watch = rows.watch(&key, revision);
            loop {
                tokio::select! {
                    event = watch.next() => match event {
                        RowEvent::Set(row) => {
                            match rows::decode::<StoresRow>(&row).and_then(|row| row.map()) {
                                Ok(map) => ranges.set_map(map),
                                Err(error) => {
                                    tracing::error!(%error, "cannot decode which database has which shards");
                                }
                            }
                        }
                        RowEvent::Deleted { .. } => {}
                        RowEvent::ResyncRequired => break,
                    },
                    () = ranges.map_needed() => break,
                }
            }
        }
        sleep(PAUSE).await;
    }
}
