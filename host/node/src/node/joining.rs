//! The cluster's stores, as a start finds them: in this process, over links to the node that has them, or away for now.

use std::sync::Arc;
use std::time::Duration;

use ostraca_core::ids::ClusterId;
use ostraca_store::{ClusterStore, EntityStore, StoreError, StoreIdentity};
use ostraca_store_peer::ConnectError;
use ostraca_store_sled::SledStore;
use ostraca_wire::peer::PeerDialer;
use tokio::runtime::Handle;
use tokio::task::JoinSet;

use crate::clock::Clock;
use crate::config::{ClusterSettings, Config};
use crate::error::NodeError;
use crate::late::{Late, LateEntities, LateRows};
use crate::rows::PoolRow;
use crate::stats::Stats;
use crate::stores::{self, Found, Local};

/// How long a start waits for a store that does not answer.
const PATIENCE: Duration = Duration::from_secs(60);
/// The same where it can send by what it remembers.
const PATIENCE_REMEMBERED: Duration = Duration::from_secs(3);

/// The cluster's store, wherever it is.
pub(super) struct Stores {
    pub(super) rows: Arc<dyn ClusterStore>,
    pub(super) entities: Arc<dyn EntityStore>,
    pub(super) found: Found,
    /// Where it is in this process.
    pub(super) local: Option<Arc<SledStore>>,
    /// It does not answer yet.
    pub(super) away: bool,
}

impl Stores {
    /// This node's own.
    pub(super) fn here(own: Local) -> Self {
        let Local { sled, found } = own;
        let (rows, entities) = (sled.clone(), sled.clone());
        Self { rows, entities, found, local: Some(sled), away: false }
    }

    fn linked(remote: &stores::Remote) -> Self {
        let (rows, entities) = (remote.cluster.clone(), remote.entity.clone());
        Self { rows, entities, found: remote.found.clone(), local: None, away: false }
    }

    /// Those of a cluster whose store does not answer yet.
    fn late(
        cluster: ClusterId,
        pool: PoolRow,
        clock: Arc<Clock>,
        settings: ClusterSettings,
    ) -> (Self, Arc<Late>) {
        let identity = StoreIdentity {
            store_id: 0,
            cluster,
            cluster_name: String::new(),
            open_count: 0,
            open_nonce: 0,
            durable_sequence: 0,
        };
        let late = Late::new(identity.clone(), clock);
        let PoolRow { shards, hash, .. } = pool;
        let found = Found { identity, shards, hash, time: 0, settings };
        let rows = Arc::new(LateRows(late.clone()));
        let entities = Arc::new(LateEntities(late.clone()));
        (Self { rows, entities, found, local: None, away: true }, late)
    }
}

/// What reaches another node's store.
pub(super) struct Joining {
    pub(super) config: Config,
    pub(super) cluster: ClusterId,
    pub(super) dialer: PeerDialer,
    pub(super) control: Handle,
    pub(super) clock: Arc<Clock>,
    pub(super) stats: Arc<Stats>,
}

impl Joining {
    /// Reaches the store. Where it is away and the pool is remembered, the node starts without it, and goes on trying.
    pub(super) async fn reach(
        self,
        pool: Option<PoolRow>,
        tasks: &mut JoinSet<()>,
    ) -> Result<Stores, NodeError> {
        let pool = pool.filter(|_| self.config.roles().gateway);
        let patience = if pool.is_some() { PATIENCE_REMEMBERED } else { PATIENCE };
        let error = match self.connect(patience).await {
            Ok(remote) => {
                let stores = Stores::linked(&remote);
                tasks.spawn(keep(remote));
                return Ok(stores);
            }
            Err(error) => error,
        };
        let Some(pool) = pool.filter(|_| error.is_retryable()) else { return Err(error) };
        tracing::warn!(%error, "the store is away: messages go by remembered routes until it is back");
        let (stores, late) =
            Stores::late(self.cluster, pool, self.clock.clone(), self.config.cluster_settings());
        tasks.spawn(self.go_on(late));
        Ok(stores)
    }

    async fn connect(&self, patience: Duration) -> Result<stores::Remote, NodeError> {
        let Self { config, cluster, dialer, control, .. } = self;
        stores::connect(config, *cluster, dialer, control, patience).await
    }

    /// Tries until it is reached, and keeps it from then on.
    async fn go_on(self, late: Arc<Late>) {
        let mut told = String::new();
        loop {
            match self.connect(PATIENCE).await {
                Ok(remote) => {
                    let time = remote.found.time;
                    late.reach(time, remote.cluster.clone(), remote.entity.clone());
                    return keep(remote).await;
                }
                Err(error) => {
                    if let NodeError::Remote(ConnectError::Refused(why)) = &error {
                        let refused = Err::<(), _>(StoreError::Stopped(why.clone()));
                        self.stats.store_answered(&refused);
                    }
                    let text = error.to_string();
                    if text != told {
                        tracing::warn!(%error, "the store is still away");
                        told = text;
                    }
                }
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }
}

/// Keeps what writes the store's witness, until the node ends.
async fn keep(remote: stores::Remote) {
    std::future::pending::<()>().await;
    drop(remote);
}
