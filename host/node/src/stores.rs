//! The cluster's two stores: the state of entities, and the cluster's rows. Each is in this process if the node has the
//! role `store`, in another node ([`peer`]), or outside the nodes ([`postgres`], [`rows_store`]).
//!
//! The addresses under `join` may belong to any nodes of the cluster. A node without the role `store` is asked for the
//! rows of nodes, which show where the store is. Each of the two stores has its own connection, separate from
//! messages: closing a dead connection affects nothing else.
//!
//! Confusing at first: a connection belongs to the runtime in which it was dialled. All connections for rows are
//! dialled and driven on the control thread's runtime.

mod channel;
mod cluster_info;
mod locator;
mod peer;
mod postgres;
mod ranges;
pub(crate) mod rows_store;
mod stopped;
mod witness;

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use ostraca_config::config::Config;
use ostraca_core::ids::ClusterId;
use ostraca_stats::Stats;
use ostraca_store::{ClusterStore, EntityStore, MovableShards};
use ostraca_store_postgres::PostgresStore;
use ostraca_store_ranges::RangedStore;
use ostraca_store_sled::{BatchObserver, SledStore};
use ostraca_wire::peer::PeerDialer;
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep};

use crate::blocking::blocking;
use crate::error::NodeError;
use cluster_info::read_cluster_info;
use peer::PeerStores;

pub(crate) use cluster_info::{ClusterInfo, check_state_store};
pub(crate) use stopped::{StoppedStores, open_stopped};

/// Pause between writes of what is known of a store to its witness (R5).
const WITNESS: Duration = Duration::from_secs(1);
/// The first and the longest pause between attempts to reach the stores during a start.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));

/// The store in this process.
pub(crate) struct LocalStore {
    pub(crate) sled: Arc<SledStore>,
    /// `None` if the cluster's rows are elsewhere.
    pub(crate) cluster_info: Option<ClusterInfo>,
}

/// The stores, at least one of them outside this process.
pub(crate) struct ReachedStores {
    pub(crate) cluster_store: Arc<dyn ClusterStore>,
    pub(crate) entity_store: Arc<dyn EntityStore>,
    /// The stores of the state, if there are several.
    pub(crate) ranges: Option<RangedStore>,
    /// The store of the state, if it is one that this process opened.
    pub(crate) movable: Option<Arc<dyn MovableShards>>,
    pub(crate) cluster_info: ClusterInfo,
    /// Tasks that the stores need until the node ends: they write the witnesses.
    pub(crate) keepers: Vec<BoxFuture<'static, ()>>,
}

/// Opens the node's own store.
///
/// # Errors
/// [`NodeError::OpenStore`], or an error about missing or unreadable rows, or about a pool or settings that differ from
/// the configuration.
pub(crate) async fn open_local(
    config: &Config,
    cluster: ClusterId,
    stats: &Arc<Stats>,
) -> Result<LocalStore, NodeError> {
    let (dir, mut options) = (config.store_dir(), config.store_options());
    options.cluster = Some(cluster);
    let stats = Arc::clone(stats);
    options.on_batch = Some(BatchObserver(Arc::new(move |calls, sync| {
        stats.store_batches.observe_size(calls);
        stats.store_syncs.observe(sync);
    })));
    let sled = Arc::new(blocking(move || SledStore::open(&dir, &options)).await??);
    if config.has_rows_outside() {
        return Ok(LocalStore { sled, cluster_info: None });
    }
    let found = read_cluster_info(&*sled, config).await?;
    check_state_store(&*sled, &EntityStore::identity(&*sled)).await?;
    Ok(LocalStore { sled, cluster_info: Some(found) })
}

/// Connects to the stores of the cluster: `own` has the state if it is in this process. Retries for `limit` after errors
/// that are retryable. Must be called within the runtime of the bulk connections.
///
/// # Errors
/// After `limit`: [`NodeError::StoreUnreachable`], or another retryable error. Immediately: [`NodeError::Join`] (a
/// connection was refused), [`NodeError::StoreConnect`] (a store must not be used, R5), [`NodeError::PoolMismatch`],
/// [`NodeError::OtherStateStore`], [`ostraca_catalog::Error::InvalidRow`], or an error about a store's settings.
pub(crate) async fn connect(
    config: &Config,
    cluster: ClusterId,
    own: Option<&Arc<SledStore>>,
    dialer: &PeerDialer,
    control: &Handle,
    limit: Duration,
) -> Result<ReachedStores, NodeError> {
    let (began, mut pause) = (Instant::now(), PAUSES.0);
    let mut opened = OpenedStores::default();
    // It remembers, over all attempts, where the store is.
    let peers = match config.has_rows_outside() {
        true => None,
        false => Some(PeerStores::open(config, cluster, dialer, None).await?),
    };
    loop {
        let attempt = match &peers {
            Some(peers) => of_peers(config, peers, control).await,
            None => outside(config, cluster, own, dialer, control, &mut opened).await,
        };
        let error = match attempt {
            Ok(reached) => return Ok(reached),
            Err(error) => error,
        };
        if !error.is_retryable() || began.elapsed() >= limit {
            return Err(error);
        }
        tracing::warn!(%error, "this node cannot use the cluster's stores yet");
        sleep(pause).await;
        pause = (pause * 2).min(PAUSES.1);
    }
}

/// Connects to both stores in another node.
async fn of_peers(
    config: &Config,
    peers: &PeerStores,
    control: &Handle,
) -> Result<ReachedStores, NodeError> {
    let rows = peers.rows(control).await?;
    let cluster_info = read_cluster_info(&rows, config).await?;
    let state = peers.state().await?;
    check_state_store(&rows, &state.identity()).await?;
    Ok(ReachedStores {
        cluster_store: Arc::new(rows),
        entity_store: Arc::new(state),
        ranges: None,
        movable: None,
        cluster_info,
        keepers: vec![peers.keep_witness()],
    })
}

/// Stores outside the nodes that are open already: later attempts do not open them again.
#[derive(Default)]
struct OpenedStores {
    /// The store of the cluster's rows, if it has nothing else.
    rows: Option<Arc<dyn ClusterStore>>,
    database: Option<Arc<PostgresStore>>,
    /// Further databases with state of entities.
    further: Vec<Arc<PostgresStore>>,
    keepers: Vec<BoxFuture<'static, ()>>,
}

impl OpenedStores {
    async fn open(
        &mut self,
        config: &Config,
        cluster: ClusterId,
        control: &Handle,
    ) -> Result<(), NodeError> {
        if let (None, Some(rows)) = (&self.rows, config.rows_store()) {
            let (store, keeper) = rows_store::open(config, rows, cluster, control).await?;
            self.rows = Some(store);
            self.keepers.push(keeper);
        }
        if let (None, Some(options)) = (&self.database, config.postgres_options()) {
            let for_rows = self.rows.is_none().then_some(control);
            let (store, keeper) = postgres::open(config, options, cluster, for_rows).await?;
            self.database = Some(store);
            self.keepers.push(keeper);
        }
        for options in config.further_databases().into_iter().skip(self.further.len()) {
            let (store, keeper) = postgres::open_further(config, options, cluster).await?;
            self.further.push(store);
            self.keepers.push(keeper);
        }
        Ok(())
    }

    /// The store of the cluster's rows.
    fn rows(&self) -> Result<Arc<dyn ClusterStore>, NodeError> {
        match (&self.rows, &self.database) {
            (Some(rows), _) => Ok(rows.clone()),
            (None, Some(database)) => Ok(database.clone()),
            (None, None) => Err(NodeError::UnexpectedExit("no store has the rows".into())),
        }
    }
}

/// Connects to rows outside the nodes, and to the state wherever it is.
async fn outside(
    config: &Config,
    cluster: ClusterId,
    own: Option<&Arc<SledStore>>,
    dialer: &PeerDialer,
    control: &Handle,
    opened: &mut OpenedStores,
) -> Result<ReachedStores, NodeError> {
    opened.open(config, cluster, control).await?;
    let cluster_store = opened.rows()?;
    let cluster_info = read_cluster_info(&*cluster_store, config).await?;
    let movable: Option<Arc<dyn MovableShards>> = match (&opened.database, own) {
        (Some(database), _) => Some(database.clone()),
        (None, Some(own)) => Some(own.clone()),
        (None, None) => None,
    };
    let state: Arc<dyn EntityStore> = match &movable {
        Some(opened) => opened.clone(),
        None => {
            let rows = Some(cluster_store.clone());
            let peers = PeerStores::open(config, cluster, dialer, rows).await?;
            let state = peers.state().await?;
            opened.keepers.push(peers.keep_witness());
            Arc::new(state)
        }
    };
    if let (Some(first), false) = (&opened.database, opened.further.is_empty()) {
        let ranges = ranges::combine(first, &opened.further, &*cluster_store).await?;
        let mut keepers = std::mem::take(&mut opened.keepers);
        keepers.push(ranges::keep_map(ranges.clone(), cluster_store.clone()).boxed());
        let entity_store = Arc::new(ranges.clone());
        let ranges = Some(ranges);
        return Ok(ReachedStores {
            cluster_store,
            entity_store,
            ranges,
            movable: None,
            cluster_info,
            keepers,
        });
    }
    check_state_store(&*cluster_store, &state.identity()).await?;
    let keepers = std::mem::take(&mut opened.keepers);
    Ok(ReachedStores {
        cluster_store,
        entity_store: state,
        ranges: None,
        movable,
        cluster_info,
        keepers,
    })
}

#[cfg(test)]
mod tests;
