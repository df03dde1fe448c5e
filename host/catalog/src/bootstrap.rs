//! Writes a new cluster's immutable rows, and advances cluster time and UTC.

use ostraca_config::config::ClusterSettings;
use ostraca_core::extensions::Extensions;
use ostraca_core::format;
use ostraca_store::ClusterStore;

use crate::clock::ClusterClock;
use crate::error::Error;
use crate::pool::HASH;
use crate::rows::{
    self, ClusterRow, PoolRow, SecretRow, SettingsRow, StoreRange, StoresRow, TimeRow,
};

/// Writes the rows that never change during the cluster's lifetime. `state` is the id of the store with the state of
/// entities.
///
/// # Errors
/// [`Error::Store`], [`Error::RowConflict`] if the cluster already has them.
pub async fn initialize_cluster(
    store: &dyn ClusterStore,
    state: u128,
    shards: u32,
    settings: &ClusterSettings,
) -> Result<(), Error> {
    rows::write(store, "cluster", None, &ClusterRow::new(format::newest().into())).await?;
    rows::write(
        store,
        &rows::pool_key(),
        None,
        &PoolRow { hash: HASH.into(), shards, extensions: Extensions::default() },
    )
    .await?;
    let ranges = vec![StoreRange { first_shard: 0, store_id: state }];
    let stores = StoresRow { ranges, extensions: Extensions::default() };
    rows::write(store, &rows::stores_key(), None, &stores).await?;
    rows::write(store, rows::SETTINGS, None, &SettingsRow::new(settings, 1, None)).await?;
    rows::write(store, rows::TIME, None, &TimeRow::default()).await?;
    Ok(())
}

/// Returns the key from which the random numbers of turns are derived. The first node that asks for it creates it.
///
/// # Errors
/// [`Error::Store`], [`Error::InvalidRow`].
pub async fn random_key(store: &dyn ClusterStore) -> Result<[u8; 32], Error> {
    loop {
        if let Some((row, _)) = rows::read::<SecretRow>(store, rows::SECRET).await? {
            return Ok(row.random_key);
        }
        let row = SecretRow { random_key: rand::random(), extensions: Extensions::default() };
        match rows::write(store, rows::SECRET, None, &row).await {
            Ok(_) => return Ok(row.random_key),
            // Another node was faster.
            Err(Error::RowConflict(_)) => {}
            Err(error) => return Err(error),
        }
    }
}

/// Advances cluster time to this node's time, unless the row is already past it because another node's clock is
/// faster. A shard's next owner would expire lanes too early if their times were far behind the cluster's (R17).
///
/// UTC advances to `wall`, the wall clock of this machine, unless the row is already past it. `wall` is `None` if this
/// node's wall clock does not count. Only the wall clock of the store's node counts, or of the manager if the store is a
/// database: among many, the fastest would always win.
///
/// # Errors
/// [`Error::Store`], [`Error::InvalidRow`], or [`Error::RowConflict`] if another node wrote the row concurrently.
pub async fn advance_cluster_time(
    store: &dyn ClusterStore,
    clock: &ClusterClock,
    wall: Option<u64>,
) -> Result<(), Error> {
    let Some((mut row, revision)) = rows::read::<TimeRow>(store, rows::TIME).await? else {
        return Ok(());
    };
    let before = (row.cluster_time_ms, row.utc_ms()?);
    clock.advance_to(row.cluster_time_ms);
    row.cluster_time_ms = row.cluster_time_ms.max(clock.now().cluster_time);
    let utc = before.1.max(wall);
    if let Some(utc) = utc {
        row.set_utc_ms(utc)?;
    }
    if before != (row.cluster_time_ms, utc) {
        rows::write(store, rows::TIME, Some(revision), &row).await?;
    }
    // Only to the row's value: this node's time must not go back when it starts again.
    clock.advance_utc_to(utc.unwrap_or_default());
    Ok(())
}

#[cfg(test)]
mod tests {
    use ostraca_core::ids::ClusterId;
    use ostraca_store::MemoryStore;

    use super::*;

    async fn founded() -> MemoryStore {
        let store = MemoryStore::new(9, ClusterId(1), "test");
        rows::write(&store, rows::TIME, None, &TimeRow::default()).await.expect("written");
        store
    }

    async fn row(store: &MemoryStore) -> TimeRow {
        rows::read::<TimeRow>(store, rows::TIME).await.expect("read").expect("a row").0
    }

    #[tokio::test]
    async fn r25_utc_is_the_store_nodes_and_never_goes_back() {
        let store = founded().await;
        let (stores, other) = (ClusterClock::new(0), ClusterClock::new(0));
        advance_cluster_time(&store, &other, None).await.expect("advanced");
        assert_eq!((row(&store).await.utc_ms().expect("UTC"), other.utc_ms()), (None, 0));
        for (wall, utc) in [(5_000_000, 5_000_000), (4_000_000, 5_000_000), (6_000_000, 6_000_000)]
        {
            advance_cluster_time(&store, &stores, Some(wall)).await.expect("advanced");
            advance_cluster_time(&store, &other, None).await.expect("advanced");
            assert_eq!(row(&store).await.utc_ms().expect("UTC"), Some(utc), "wall clock {wall}");
            for clock in [&stores, &other] {
                assert!((utc..utc + 60_000).contains(&clock.utc_ms()), "{clock:?}");
            }
        }
    }

    #[tokio::test]
    async fn every_node_finds_the_same_random_key() {
        let store = founded().await;
        let key = random_key(&store).await.expect("a key");
        assert_eq!(random_key(&store).await.expect("a key"), key);
        assert_ne!(random_key(&founded().await).await.expect("a key"), key);
    }
}
