//! The cluster's stores as a starting node finds them: in this process, over links to the node that has them, in a
//! database, or unavailable for now.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use ostraca_catalog::clock::ClusterClock;
use ostraca_catalog::rows::PoolRow;
use ostraca_config::config::{ClusterSettings, Config};
use ostraca_core::ids::ClusterId;
use ostraca_stats::Stats;
use ostraca_store::{ClusterStore, EntityStore, StoreError, StoreIdentity};
use ostraca_store_peer::ConnectError;
use ostraca_store_sled::SledStore;
use ostraca_wire::peer::PeerDialer;
use ostraca_workers::RandomKey;
use tokio::runtime::Handle;
use tokio::task::JoinSet;

use crate::deferred::{DeferredClusterStore, DeferredEntityStore, DeferredStores};
use crate::error::NodeError;
use crate::stores::postgres::{self, DatabaseStore};
use crate::stores::{self, ClusterInfo, LocalStore};

/// How long a start waits for an unavailable store.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(60);
/// The same timeout if the node can route with its cached routes.
const CONNECT_TIMEOUT_WITH_CACHE: Duration = Duration::from_secs(3);

/// Handles to the cluster's store, wherever it is.
pub(super) struct StoreHandles {
    pub(super) cluster_store: Arc<dyn ClusterStore>,
    pub(super) entity_store: Arc<dyn EntityStore>,
    pub(super) cluster_info: ClusterInfo,
    /// The store, if it is in this process.
    pub(super) local_store: Option<Arc<SledStore>>,
    /// Whether the store has not responded yet.
    pub(super) deferred: bool,
}

impl StoreHandles {
    /// The handles for the node's own store.
    pub(super) fn from_local(own: LocalStore) -> Self {
        let LocalStore { sled, cluster_info: found } = own;
        let (rows, entities) = (sled.clone(), sled.clone());
        Self {
            cluster_store: rows,
            entity_store: entities,
            cluster_info: found,
            local_store: Some(sled),
            deferred: false,
        }
    }

    /// The handles for the stores in a database.
    fn from_database(opened: &DatabaseStore) -> Self {
        let (rows, entities) = (opened.store.clone(), opened.store.clone());
        Self {
            cluster_store: rows,
            entity_store: entities,
            cluster_info: opened.cluster_info.clone(),
            local_store: None,
            deferred: false,
        }
    }

    fn from_remote(remote: &stores::RemoteStore) -> Self {
        let (rows, entities) = (remote.cluster_store.clone(), remote.entity_store.clone());
        Self {
            cluster_store: rows,
            entity_store: entities,
            cluster_info: remote.cluster_info.clone(),
            local_store: None,
            deferred: false,
        }
    }

    /// Stand-ins for a store that has not responded yet.
    fn deferred(
        cluster: ClusterId,
        pool: PoolRow,
        clock: Arc<ClusterClock>,
        settings: ClusterSettings,
    ) -> (Self, Arc<DeferredStores>) {
        let identity = StoreIdentity {
            store_id: 0,
            cluster,
            cluster_name: String::new(),
            open_count: 0,
            open_nonce: 0,
            durable_sequence: 0,
        };
        let deferred = DeferredStores::new(identity.clone(), clock);
        let PoolRow { shards, hash, .. } = pool;
        let found = ClusterInfo {
            identity,
            shards,
            hash,
            cluster_time: 0,
            utc_ms: 0,
            random_key: None,
            settings,
        };
        let rows = Arc::new(DeferredClusterStore(deferred.clone()));
        let entities = Arc::new(DeferredEntityStore(deferred.clone()));
        (
            Self {
                cluster_store: rows,
                entity_store: entities,
                cluster_info: found,
                local_store: None,
                deferred: true,
            },
            deferred,
        )
    }
}

/// Stores outside this process.
enum Reached {
    /// In another node.
    Node(stores::RemoteStore),
    /// In a database.
    Database(DatabaseStore),
}

impl Reached {
    fn handles(&self) -> StoreHandles {
        match self {
            Self::Node(remote) => StoreHandles::from_remote(remote),
            Self::Database(opened) => StoreHandles::from_database(opened),
        }
    }
}

/// Connects to another node's store, or to a database.
pub(super) struct StoreConnector {
    pub(super) config: Config,
    pub(super) cluster: ClusterId,
    pub(super) dialer: PeerDialer,
    pub(super) control_runtime: Handle,
    pub(super) clock: Arc<ClusterClock>,
    pub(super) random_key: Arc<OnceLock<RandomKey>>,
    pub(super) stats: Arc<Stats>,
}

impl StoreConnector {
    /// Connects to the store. If it is unavailable and the pool is in the cache, the node starts without it and
    /// keeps trying.
    pub(super) async fn connect_or_defer(
        self,
        pool: Option<PoolRow>,
        tasks: &mut JoinSet<()>,
    ) -> Result<StoreHandles, NodeError> {
        let pool = pool.filter(|_| self.config.roles().gateway);
        let limit = if pool.is_some() { CONNECT_TIMEOUT_WITH_CACHE } else { CONNECT_TIMEOUT };
        let error = match self.connect(limit).await {
            Ok(reached) => {
                let stores = reached.handles();
                self.hold(reached, tasks);
                return Ok(stores);
            }
            Err(error) => error,
        };
        let Some(pool) = pool.filter(|_| error.is_retryable()) else { return Err(error) };
        tracing::warn!(%error, "store unavailable: using cached routes until it responds");
        let (stores, deferred) = StoreHandles::deferred(
            self.cluster,
            pool,
            self.clock.clone(),
            self.config.cluster_settings(),
        );
        tasks.spawn(self.keep_connecting(deferred));
        Ok(stores)
    }

    async fn connect(&self, limit: Duration) -> Result<Reached, NodeError> {
        let Self { config, cluster, dialer, control_runtime: control, .. } = self;
        let Some(options) = config.postgres_options() else {
            let remote = stores::connect(config, *cluster, dialer, control, limit).await?;
            return Ok(Reached::Node(remote));
        };
        let opened = postgres::open(config, options, *cluster, control, limit).await?;
        Ok(Reached::Database(opened))
    }

    /// Keeps what the stores need until the node ends.
    fn hold(&self, reached: Reached, tasks: &mut JoinSet<()>) {
        match reached {
            Reached::Node(remote) => drop(tasks.spawn(hold_until_shutdown(remote))),
            Reached::Database(opened) => postgres::keep_witness(&self.config, &opened.store, tasks),
        }
    }

    /// Retries until it is connected, and then maintains the connection.
    async fn keep_connecting(self, deferred: Arc<DeferredStores>) {
        let mut logged = String::new();
        loop {
            match self.connect(CONNECT_TIMEOUT).await {
                Ok(reached) => {
                    let stores = reached.handles();
                    // Before any turn can run.
                    apply_cluster_info(&stores.cluster_info, &self.clock, &self.random_key);
                    let time = stores.cluster_info.cluster_time;
                    deferred.set_connected(time, stores.cluster_store, stores.entity_store);
                    let mut tasks = JoinSet::new();
                    self.hold(reached, &mut tasks);
                    while tasks.join_next().await.is_some() {}
                    return;
                }
                Err(error) => {
                    if let NodeError::StoreConnect(ConnectError::Refused(why)) = &error {
                        let refused = Err::<(), _>(StoreError::Stopped(why.clone()));
                        self.stats.record_store_result(&refused);
                    }
                    let text = error.to_string();
                    if text != logged {
                        tracing::warn!(%error, "the store is still unavailable");
                        logged = text;
                    }
                }
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }
}

/// Sets the values that turns need from the cluster: its UTC and its secret.
pub(super) fn apply_cluster_info(
    cluster_info: &ClusterInfo,
    clock: &ClusterClock,
    random_key: &OnceLock<RandomKey>,
) {
    clock.advance_utc_to(cluster_info.utc_ms);
    if let Some(key) = cluster_info.random_key {
        // The secret never changes: a second value would be the same.
        let _ = random_key.set(key);
    }
}

/// Keeps the task that writes the store's witness alive until the node ends.
async fn hold_until_shutdown(remote: stores::RemoteStore) {
    std::future::pending::<()>().await;
    drop(remote);
}
