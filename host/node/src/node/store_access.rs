//! The cluster's stores as a starting node finds them: in this process, over links to the node that has them, outside
//! the nodes, or unavailable for now.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use ostraca_catalog::clock::ClusterClock;
use ostraca_catalog::pool::KnownPools;
use ostraca_config::config::{ClusterSettings, Config};
use ostraca_core::ids::ClusterId;
use ostraca_core::pools::Pools;
use ostraca_stats::Stats;
use ostraca_store::{ClusterStore, EntityStore, MovableShards, StoreError, StoreIdentity};
use ostraca_store_peer::ConnectError;
use ostraca_store_ranges::RangedStore;
use ostraca_store_sled::SledStore;
use ostraca_wire::peer::PeerDialer;
use ostraca_workers::RandomKey;
use tokio::runtime::Handle;
use tokio::task::JoinSet;

use crate::deferred::{DeferredClusterStore, DeferredEntityStore, DeferredStores};
use crate::error::NodeError;
use crate::stores::{self, ClusterInfo, ReachedStores};

/// How long a start waits for an unavailable store.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(60);
/// The same timeout if the node can route with its cached routes.
const CONNECT_TIMEOUT_WITH_CACHE: Duration = Duration::from_secs(3);

/// Handles to the cluster's store, wherever it is.
pub(super) struct StoreHandles {
    pub(super) cluster_store: Arc<dyn ClusterStore>,
    pub(super) entity_store: Arc<dyn EntityStore>,
    pub(super) cluster_info: ClusterInfo,
    /// The store with the state of entities, if it is in this process.
    pub(super) local_store: Option<Arc<SledStore>>,
    /// Whether the store has not responded yet.
    pub(super) deferred: bool,
}

impl StoreHandles {
    /// The handles for the node's own store, which has both.
    pub(super) fn from_local(sled: Arc<SledStore>, cluster_info: ClusterInfo) -> Self {
        let (cluster_store, entity_store) = (sled.clone(), sled.clone());
        let local_store = Some(sled);
        Self { cluster_store, entity_store, cluster_info, local_store, deferred: false }
    }

    fn from_reached(reached: &ReachedStores) -> Self {
        Self {
            cluster_store: reached.cluster_store.clone(),
            entity_store: reached.entity_store.clone(),
            cluster_info: reached.cluster_info.clone(),
            local_store: None,
            deferred: false,
        }
    }

    /// Stand-ins for a store that has not responded yet.
    fn deferred(
        cluster: ClusterId,
        pools: Pools,
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
        let found = ClusterInfo {
            identity,
            pools: KnownPools::new(pools),
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

/// Connects to stores of which at least one is outside this process.
pub(super) struct StoreConnector {
    pub(super) config: Config,
    pub(super) cluster: ClusterId,
    /// The store with the state of entities, if it is in this process.
    pub(super) own: Option<Arc<SledStore>>,
    pub(super) dialer: PeerDialer,
    pub(super) control_runtime: Handle,
    pub(super) clock: Arc<ClusterClock>,
    pub(super) random_key: Arc<OnceLock<RandomKey>>,
    pub(super) ranges: Arc<OnceLock<RangedStore>>,
    pub(super) movable: Arc<OnceLock<Arc<dyn MovableShards>>>,
    pub(super) stats: Arc<Stats>,
}

impl StoreConnector {
    /// Connects to the store. If it is unavailable and the pools are in the cache, the node starts without it and
    /// keeps trying.
    pub(super) async fn connect_or_defer(
        self,
        pools: Option<Pools>,
        tasks: &mut JoinSet<()>,
    ) -> Result<StoreHandles, NodeError> {
        let pools = pools.filter(|_| self.config.roles().gateway);
        let limit = if pools.is_some() { CONNECT_TIMEOUT_WITH_CACHE } else { CONNECT_TIMEOUT };
        let error = match self.connect(limit).await {
            Ok(reached) => {
                self.note_state(&reached);
                let local_store = self.own.clone();
                let stores = StoreHandles { local_store, ..StoreHandles::from_reached(&reached) };
                reached.keepers.into_iter().for_each(|keeper| drop(tasks.spawn(keeper)));
                return Ok(stores);
            }
            Err(error) => error,
        };
        let Some(pools) = pools.filter(|_| error.is_retryable()) else { return Err(error) };
        tracing::warn!(%error, "store unavailable: using cached routes until it responds");
        let (stores, deferred) = StoreHandles::deferred(
            self.cluster,
            pools,
            self.clock.clone(),
            self.config.cluster_settings(),
        );
        tasks.spawn(self.keep_connecting(deferred));
        Ok(stores)
    }

    fn note_state(&self, reached: &ReachedStores) {
        // They are connected once.
        if let Some(ranges) = &reached.ranges {
            let _ = self.ranges.set(ranges.clone());
        }
        if let Some(movable) = &reached.movable {
            let _ = self.movable.set(movable.clone());
        }
    }

    async fn connect(&self, limit: Duration) -> Result<ReachedStores, NodeError> {
        let Self { config, cluster, own, dialer, control_runtime: control, .. } = self;
        stores::connect(config, *cluster, own.as_ref(), dialer, control, limit).await
    }

    /// Retries until it is connected, and then maintains the connection.
    async fn keep_connecting(self, deferred: Arc<DeferredStores>) {
        let mut logged = String::new();
        loop {
            match self.connect(CONNECT_TIMEOUT).await {
                Ok(reached) => {
                    self.note_state(&reached);
                    // Before any turn can run.
                    apply_cluster_info(&reached.cluster_info, &self.clock, &self.random_key);
                    let time = reached.cluster_info.cluster_time;
                    deferred.set_connected(time, reached.cluster_store, reached.entity_store);
                    let keepers: JoinSet<()> = reached.keepers.into_iter().collect();
                    keepers.join_all().await;
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
