//! The cluster's two stores: opened here, where the node has the role `store`, or reached over the network.
//!
//! Addresses under `join` may be any nodes': one without the role `store` is asked for the rows of nodes, and where they
//! say that the store is, it is looked for. Each of the two stores has a connection of its own, apart from messages:
//! giving one up as dead ends nothing else.
//!
//! What is confusing: a connection belongs to the runtime in which it was dialled. All that concerns rows is
//! dialled and driven on the control thread's.

mod channel;
mod locator;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ostraca_core::ids::ClusterId;
use ostraca_core::rows::RowKey;
use ostraca_store::{ClusterStore, StoreIdentity};
use ostraca_store_peer::{ClientOptions, PeerClusterStore, PeerEntityStore, StoreVerifier};
use ostraca_store_sled::SledStore;
use ostraca_wire::peer::{Alpn, PeerDialer};
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::cluster_bootstrap::{HASH, POOL};
use crate::config::{ClusterSettings, Config};
use crate::error::NodeError;
use crate::node::blocking;
use crate::rows::{self, ClusterRow, PoolRow, SettingsRow, TimeRow};
use locator::StoreLocator;

/// How often the store's newest sequence is written to the witness (R5).
const WITNESS: Duration = Duration::from_secs(1);
/// However short the lease, a link and a call may take this long.
const SHORTEST: Duration = Duration::from_millis(500);
/// Pauses between attempts to reach the store at a start: the first and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));

/// What a store says of its cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClusterInfo {
    /// Who it is.
    pub(crate) identity: StoreIdentity,
    /// Shards of the pool.
    pub(crate) shards: u32,
    /// The hash that puts entities into them.
    pub(crate) hash: String,
    /// Cluster time in milliseconds, as it was last written.
    pub(crate) cluster_time: u64,
    pub(crate) settings: ClusterSettings,
}

/// The store, in this process.
pub(crate) struct LocalStore {
    pub(crate) sled: Arc<SledStore>,
    pub(crate) cluster_info: ClusterInfo,
}

/// The store, in another one.
pub(crate) struct RemoteStore {
    pub(crate) entity_store: Arc<PeerEntityStore>,
    pub(crate) cluster_store: Arc<PeerClusterStore>,
    pub(crate) cluster_info: ClusterInfo,
    /// Dropped, it ends the writing of the witness. The stores' drivers end with the stores.
    _stop: DropGuard,
}

/// Opens the node's own store.
///
/// # Errors
/// [`NodeError::Open`]; what its rows lack; what differs from the configuration.
pub(crate) async fn open_local(
    config: &Config,
    cluster: ClusterId,
) -> Result<LocalStore, NodeError> {
    let (dir, mut options) = (config.store_dir(), config.store_options());
    options.cluster = Some(cluster);
    let sled = Arc::new(blocking(move || SledStore::open(&dir, &options)).await??);
    let found = read_cluster_info(&*sled, config).await?;
    Ok(LocalStore { sled, cluster_info: found })
}

/// Where the witness of another node's store lies.
pub(crate) fn witness_path(config: &Config) -> PathBuf {
    config.data.join("joined-store.witness")
}

/// Reaches the store of the cluster that the node joins. While nobody answers it tries again, for `patience`. Must be
/// called within the runtime of the bulk connections.
///
/// # Errors
/// Why not: [`NodeError::Unreached`] after `patience`; at once [`NodeError::Join`] (refused on the way),
/// [`NodeError::Remote`] (the store is not to be used, R5), [`NodeError::OtherPool`], [`NodeError::Row`].
pub(crate) async fn connect(
    config: &Config,
    cluster: ClusterId,
    dialer: &PeerDialer,
    control: &Handle,
    patience: Duration,
) -> Result<RemoteStore, NodeError> {
    let path = witness_path(config);
    let known = blocking(move || StoreVerifier::open(cluster, Some(path))).await??;
    // An attempt that takes longer than a lease holds up the next one, which may find the store back.
    let connect_timeout = ClientOptions::default().connect_timeout.min(config.lease.max(SHORTEST));
    let call_timeout = config.store_call_timeout();
    let options = ClientOptions { call_timeout, connect_timeout, ..ClientOptions::default() };
    let way =
        Arc::new(StoreLocator::new(dialer.clone(), cluster, &config.join, options.connect_timeout));

    let began = Instant::now();
    let mut pause = PAUSES.0;
    loop {
        let error = match connect_once(config, &way, &known, &options, control).await {
            Ok((entity, cluster, found)) => {
                let (entity, cluster) = (Arc::new(entity), Arc::new(cluster));
                return Ok(RemoteStore {
                    entity_store: entity,
                    cluster_store: cluster,
                    cluster_info: found,
                    _stop: spawn_witness_task(known),
                });
            }
            Err(error) => error,
        };
        if !error.is_retryable() || began.elapsed() >= patience {
            return Err(error);
        }
        tracing::warn!(%error, "the cluster is not joined yet");
        sleep(pause).await;
        pause = (pause * 2).min(PAUSES.1);
    }
}

async fn connect_once(
    config: &Config,
    way: &Arc<StoreLocator>,
    known: &Arc<StoreVerifier>,
    options: &ClientOptions,
    control: &Handle,
) -> Result<(PeerEntityStore, PeerClusterStore, ClusterInfo), NodeError> {
    let connecting = {
        // A renewal's answer that is older than the lease renews nothing (R8).
        let call_timeout = options.call_timeout.min(config.lease.max(SHORTEST));
        // A watch's question is kept open for less than a call may take.
        let watch_hold = options.watch_poll_timeout.min(call_timeout / 3);
        let options =
            ClientOptions { call_timeout, watch_poll_timeout: watch_hold, ..options.clone() };
        control.spawn(PeerClusterStore::connect(
            way.connector(Alpn::Control),
            known.clone(),
            options,
        ))
    };
    let ended = |error| NodeError::UnexpectedExit(format!("reaching the store: {error}"));
    let connected = connecting.await.map_err(ended)?;
    let (cluster, driver) = connected.map_err(|error| way.why(error))?;
    control.spawn(driver.run());
    let found = read_cluster_info(&cluster, config).await?;
    let connecting =
        PeerEntityStore::connect(way.connector(Alpn::Bulk), known.clone(), options.clone()).await;
    let (entity, driver) = connecting.map_err(|error| way.why(error))?;
    tokio::spawn(driver.run());
    Ok((entity, cluster, found))
}

/// Reads what is fixed for the cluster's life, and compares it with what this program and the configuration want.
async fn read_cluster_info(
    store: &dyn ClusterStore,
    config: &Config,
) -> Result<ClusterInfo, NodeError> {
    let missing = || {
        NodeError::InvalidRow("the store holds no cluster: create one with `ostraca init`".into())
    };
    let (cluster, _) = rows::read::<ClusterRow>(store, "cluster").await?.ok_or_else(missing)?;
    cluster.readable()?;
    let pool = rows::read::<PoolRow>(store, &rows::pool_key()).await?;
    let (PoolRow { hash, shards, .. }, _) = pool.ok_or_else(missing)?;
    let (TimeRow { cluster_time_ms: time, .. }, _) =
        rows::read(store, "time").await?.ok_or_else(missing)?;
    let settings = rows::read::<SettingsRow>(store, rows::SETTINGS).await?.ok_or_else(missing)?.0;
    let settings = ClusterSettings::from_row(&settings);
    config.check_cluster_settings(&settings)?;
    let wanted = config.expected_shards.unwrap_or(shards);
    if wanted != shards {
        let (wanted, found) = (wanted.to_string(), shards.to_string());
        return Err(NodeError::PoolMismatch {
            property: "shards",
            expected: wanted,
            actual: found,
        });
    }
    for wanted in [config.expected_hash.as_deref().unwrap_or(HASH), HASH] {
        if wanted != hash {
            return Err(NodeError::PoolMismatch {
                property: "hash",
                expected: wanted.into(),
                actual: hash,
            });
        }
    }
    if shards == 0 {
        return Err(NodeError::InvalidRow(format!("the pool `{POOL}` has no shards")));
    }
    readable(store, &config.node).await?;
    Ok(ClusterInfo { identity: store.identity(), shards, hash, cluster_time: time, settings })
}

/// Refuses rows that this program cannot read and cannot do without: whoever manages, every assignment, and this node's
/// own row, over which it would try to register for ever. Another node's row is that node's business.
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

/// Writes the witness now and then, until the guard is dropped.
fn spawn_witness_task(known: Arc<StoreVerifier>) -> DropGuard {
    let stop = CancellationToken::new();
    let guard = stop.clone().drop_guard();
    tokio::spawn(stop.run_until_cancelled_owned(async move {
        loop {
            sleep(WITNESS).await;
            let known = known.clone();
            match blocking(move || known.persist()).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::warn!(%error, "the witness was not written"),
                Err(error) => tracing::warn!(%error, "the witness was not written"),
            }
        }
    }));
    guard
}

#[cfg(test)]
mod tests;
