//! The cluster's two stores: opened here if the node has the role `store`, otherwise reached over the network. They may
//! be in a database instead ([`postgres`]).
//!
//! The addresses under `join` may belong to any nodes of the cluster. A node without the role `store` is asked for the
//! rows of nodes, which show where the store is. Each of the two stores has its own connection, separate from
//! messages: closing a dead connection affects nothing else.
//!
//! Confusing at first: a connection belongs to the runtime in which it was dialled. All connections for rows are
//! dialled and driven on the control thread's runtime.

mod channel;
mod locator;
pub(crate) mod postgres;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ostraca_catalog::bootstrap;
use ostraca_catalog::pool::{HASH, POOL};
use ostraca_catalog::rows::{self, ClusterRow, PoolRow, SettingsRow, TimeRow};
use ostraca_config::config::{ClusterSettings, Config};
use ostraca_core::ids::ClusterId;
use ostraca_core::rows::RowKey;
use ostraca_store::{ClusterStore, StoreIdentity};
use ostraca_store_peer::{ClientOptions, PeerClusterStore, PeerEntityStore, StoreVerifier};
use ostraca_store_sled::SledStore;
use ostraca_wire::peer::{Alpn, PeerDialer};
use ostraca_workers::RandomKey;
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::blocking::blocking;
use crate::error::NodeError;
use locator::StoreLocator;

/// Pause between writes of the store's newest sequence to the witness (R5).
const WITNESS: Duration = Duration::from_secs(1);
/// Lower bound for the timeouts of links and calls, however short the lease is.
const SHORTEST: Duration = Duration::from_millis(500);
/// The first and the longest pause between attempts to reach the store during a start.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));

/// Information about the cluster, from its store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClusterInfo {
    /// The store's identity.
    pub(crate) identity: StoreIdentity,
    /// The pool's number of shards.
    pub(crate) shards: u32,
    /// The hash that maps entities to shards.
    pub(crate) hash: String,
    /// Cluster time in milliseconds, as last written.
    pub(crate) cluster_time: u64,
    /// UTC in milliseconds, as last written; 0 if it was never written.
    pub(crate) utc_ms: u64,
    /// The secret from which the random numbers of turns are derived; `None` while no store has responded.
    pub(crate) random_key: Option<RandomKey>,
    pub(crate) settings: ClusterSettings,
}

/// The store in this process.
pub(crate) struct LocalStore {
    pub(crate) sled: Arc<SledStore>,
    pub(crate) cluster_info: ClusterInfo,
}

/// The store in another process.
pub(crate) struct RemoteStore {
    pub(crate) entity_store: Arc<PeerEntityStore>,
    pub(crate) cluster_store: Arc<PeerClusterStore>,
    pub(crate) cluster_info: ClusterInfo,
    /// Dropping it ends the task that writes the witness. The stores' drivers end with the stores.
    _stop: DropGuard,
}

/// Opens the node's own store.
///
/// # Errors
/// [`NodeError::OpenStore`], or an error about missing or unreadable rows, or about a pool or settings that differ from
/// the configuration.
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

/// Path of the witness of another node's store.
pub(crate) fn witness_path(config: &Config) -> PathBuf {
    config.data.join("joined-store.witness")
}

/// Connects to the store of the cluster that the node joins. Retries for `limit` after errors that are retryable. Must
/// be called within the runtime of the bulk connections.
///
/// # Errors
/// After `limit`: [`NodeError::StoreUnreachable`], or another retryable error. Immediately: [`NodeError::Join`] (a
/// connection was refused), [`NodeError::StoreConnect`] (the store must not be used, R5), [`NodeError::PoolMismatch`],
/// [`ostraca_catalog::Error::InvalidRow`].
pub(crate) async fn connect(
    config: &Config,
    cluster: ClusterId,
    dialer: &PeerDialer,
    control: &Handle,
    limit: Duration,
) -> Result<RemoteStore, NodeError> {
    let path = witness_path(config);
    let known = blocking(move || StoreVerifier::open(cluster, Some(path))).await??;
    // An attempt longer than a lease would delay the next one, when the store may be available again.
    let connect_timeout = ClientOptions::default().connect_timeout.min(config.lease.max(SHORTEST));
    let call_timeout = config.store_call_timeout();
    let options = ClientOptions { call_timeout, connect_timeout, ..ClientOptions::default() };
    let locator =
        Arc::new(StoreLocator::new(dialer.clone(), cluster, &config.join, options.connect_timeout));

    let began = Instant::now();
    let mut pause = PAUSES.0;
    loop {
        let error = match connect_once(config, &locator, &known, &options, control).await {
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
        if !error.is_retryable() || began.elapsed() >= limit {
            return Err(error);
        }
        tracing::warn!(%error, "this node has not joined the cluster yet");
        sleep(pause).await;
        pause = (pause * 2).min(PAUSES.1);
    }
}

async fn connect_once(
    config: &Config,
    locator: &Arc<StoreLocator>,
    known: &Arc<StoreVerifier>,
    options: &ClientOptions,
    control: &Handle,
) -> Result<(PeerEntityStore, PeerClusterStore, ClusterInfo), NodeError> {
    let connecting = {
        // A response to a renewal that arrives after the lease has expired is of no use (R8).
        let call_timeout = options.call_timeout.min(config.lease.max(SHORTEST));
        // A poll of a watch is held for less time than a call may take.
        let watch_hold = options.watch_poll_timeout.min(call_timeout / 3);
        let options =
            ClientOptions { call_timeout, watch_poll_timeout: watch_hold, ..options.clone() };
        control.spawn(PeerClusterStore::connect(
            locator.connector(Alpn::Control),
            known.clone(),
            options,
        ))
    };
    let ended = |error| NodeError::UnexpectedExit(format!("reaching the store: {error}"));
    let connected = connecting.await.map_err(ended)?;
    let (cluster, driver) = connected.map_err(|error| locator.why(error))?;
    control.spawn(driver.run());
    let found = read_cluster_info(&cluster, config).await?;
    let connecting =
        PeerEntityStore::connect(locator.connector(Alpn::Bulk), known.clone(), options.clone())
            .await;
    let (entity, driver) = connecting.map_err(|error| locator.why(error))?;
    tokio::spawn(driver.run());
    Ok((entity, cluster, found))
}

/// Reads the rows that describe the cluster, and checks them against this program and the configuration.
async fn read_cluster_info(
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
    let pool = rows::read::<PoolRow>(store, &rows::pool_key()).await?;
    let (PoolRow { hash, shards, .. }, _) = pool.ok_or_else(missing)?;
    let (time, _) = rows::read::<TimeRow>(store, rows::TIME).await?.ok_or_else(missing)?;
    let settings = rows::read::<SettingsRow>(store, rows::SETTINGS).await?.ok_or_else(missing)?.0;
    let settings = settings.settings();
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
        return Err(
            ostraca_catalog::Error::InvalidRow(format!("the pool `{POOL}` has no shards")).into()
        );
    }
    readable(store, &config.node).await?;
    Ok(ClusterInfo {
        identity: store.identity(),
        shards,
        hash,
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

/// Writes the witness periodically, until the guard is dropped.
fn spawn_witness_task(known: Arc<StoreVerifier>) -> DropGuard {
    let stop = CancellationToken::new();
    let guard = stop.clone().drop_guard();
    tokio::spawn(stop.run_until_cancelled_owned(async move {
        loop {
            sleep(WITNESS).await;
            let known = known.clone();
            match blocking(move || known.persist()).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::warn!(%error, "failed to write the witness"),
                Err(error) => tracing::warn!(%error, "failed to write the witness"),
            }
        }
    }));
    guard
}

#[cfg(test)]
mod tests;
