//! What the cluster's rows say about the cluster, checked against this program and the configuration.

use ostraca_catalog::bootstrap;
use ostraca_catalog::pool::{KnownPools, PoolsRow};
use ostraca_catalog::rows::{self, ClusterRow, POOLS, PoolRow, SettingsRow, StoresRow, TimeRow};
use ostraca_config::config::{ClusterSettings, Config};
use ostraca_core::rows::RowKey;
use ostraca_store::{ClusterStore, StoreIdentity};
use ostraca_workers::RandomKey;

use crate::error::NodeError;

/// Information about the cluster, from its store.
#[derive(Clone, Debug)]
pub(crate) struct ClusterInfo {
    /// The store's identity.
    pub(crate) identity: StoreIdentity,
    /// The pools. They grow while the node runs.
    pub(crate) pools: KnownPools,
    /// Cluster time in milliseconds, as last written.
    pub(crate) cluster_time: u64,
    /// UTC in milliseconds, as last written; 0 if it was never written.
    pub(crate) utc_ms: u64,
    /// The secret from which the random numbers of turns are derived; `None` while no store has responded.
    pub(crate) random_key: Option<RandomKey>,
    pub(crate) settings: ClusterSettings,
}

impl ClusterInfo {
    /// The number of shards and the hash of the pool that the cluster has from its start.
    pub(crate) fn first_pool(&self) -> (u32, &'static str) {
        let pools = self.pools.get();
        pools.iter().next().map_or((0, ""), |pool| (pool.shards, pool.hash.name()))
    }
}

/// Reads the rows that describe the cluster, and checks them against this program and the configuration.
pub(super) async fn read_cluster_info(
    store: &dyn ClusterStore,
    config: &Config,
) -> Result<ClusterInfo, NodeError> {
    let missing = || {
        ostraca_catalog::Error::InvalidRow(
            "the store holds no cluster: create one with `ostraca init`".into(),
        )
    };
    let (cluster, _) = rows::read::<ClusterRow>(store, "cluster").await?.ok_or_else(missing)?;
    cluster.readable()?;
    cluster.adopt_format()?;
    let pool = rows::read::<PoolRow>(store, &rows::pool_key()).await?;
    let (pool, _) = pool.ok_or_else(missing)?;
    let added = rows::read::<PoolsRow>(store, POOLS).await?.map(|(row, _)| row);
    let (time, _) = rows::read::<TimeRow>(store, rows::TIME).await?.ok_or_else(missing)?;
    let settings = rows::read::<SettingsRow>(store, rows::SETTINGS).await?.ok_or_else(missing)?.0;
    let settings = settings.settings();
    config.check_cluster_settings(&settings)?;
    let wanted = config.expected_shards.unwrap_or(pool.shards);
    if wanted != pool.shards {
        let (wanted, found) = (wanted.to_string(), pool.shards.to_string());
        return Err(NodeError::PoolMismatch {
            property: "shards",
            expected: wanted,
            actual: found,
        });
    }
    let wanted = config.expected_hash.as_ref().unwrap_or(&pool.hash);
    if *wanted != pool.hash {
        return Err(NodeError::PoolMismatch {
            property: "hash",
            expected: wanted.clone(),
            actual: pool.hash,
        });
    }
    let pools = added.unwrap_or_default().add_to(&pool.pools()?)?;
    readable(store, &config.node).await?;
    Ok(ClusterInfo {
        identity: store.identity(),
        pools: KnownPools::new(pools),
        cluster_time: time.cluster_time_ms,
        utc_ms: time.utc_ms()?.unwrap_or_default(),
        random_key: Some(RandomKey::new(bootstrap::random_key(store).await?)),
        settings,
    })
}

/// Fails if this program cannot read a row that it needs: the manager's, every assignment, and this node's own row,
/// which it would otherwise try to overwrite forever. Another node's row concerns only that node.
async fn readable(store: &dyn ClusterStore, node: &str) -> Result<(), NodeError> {
    let own = rows::key_text(&RowKey::Node(node.into()));
    for prefix in [own.as_str(), "manager", "shards/"] {
        let (found, _) = store.list(prefix).await?;
        for row in found.iter().filter(|row| row.key == own || prefix != own) {
            rows::decode_row(row)?;
        }
    }
    Ok(())
}

/// Checks that the state of entities is in the store that the cluster's rows name (R5).
pub(crate) async fn check_state_store(
    rows: &dyn ClusterStore,
    state: &StoreIdentity,
) -> Result<(), NodeError> {
    let Some((row, _)) = rows::read::<StoresRow>(rows, &rows::stores_key()).await? else {
        return Ok(());
    };
    let map = row.map()?;
    match map.stores().find(|store| *store != state.store_id) {
        None => Ok(()),
        Some(other) if map.stores().any(|store| store == state.store_id) => {
            Err(NodeError::UnknownStore(other))
        }
        Some(other) => Err(NodeError::OtherStateStore { expected: other, actual: state.store_id }),
    }
}
