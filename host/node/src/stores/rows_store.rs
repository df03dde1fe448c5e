//! A store with only the cluster's rows, in etcd or Kubernetes.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use ostraca_config::config::{Config, RowsStore};
use ostraca_core::ids::ClusterId;
use ostraca_store::{ClusterStore, StoreIdentity};
use ostraca_store_etcd::EtcdStore;
use ostraca_store_kubernetes::KubernetesStore;
use tokio::runtime::Handle;
use tokio::time::sleep;

use super::WITNESS;
use super::witness::WitnessFile;
use crate::error::NodeError;

/// Opens the store, and compares it with what this node knew of it before (R5). Its connections are driven on
/// `runtime`.
///
/// # Errors
/// [`NodeError::OpenEtcd`], [`NodeError::OpenKubernetes`], [`NodeError::StoreConnect`].
pub(super) async fn open(
    config: &Config,
    store: RowsStore,
    cluster: ClusterId,
    runtime: &Handle,
) -> Result<(Arc<dyn ClusterStore>, BoxFuture<'static, ()>), NodeError> {
    let (name, words) = match store {
        RowsStore::Etcd(_) => ("etcd.witness", "etcd"),
        RowsStore::Kubernetes(_) => ("kubernetes.witness", "the store in Kubernetes"),
    };
    let file = WitnessFile { path: config.data.join(name), store: words };
    let opening = runtime.spawn(open_now(store.of_cluster(cluster)));
    let ended = |error| NodeError::UnexpectedExit(format!("opening {words}: {error}"));
    let store = opening.await.map_err(ended)??;
    file.update(store.identity(), store.open_nonces()).await?;
    let keeper = keep_witness(file, store.clone()).boxed();
    Ok((store, keeper))
}

async fn open_now(store: RowsStore) -> Result<Arc<dyn ClusterStore>, NodeError> {
    Ok(match store {
        RowsStore::Etcd(options) => Arc::new(EtcdStore::open(options).await?),
        RowsStore::Kubernetes(options) => Arc::new(KubernetesStore::open(options).await?),
    })
}

/// Writes the witness periodically, as long as the node uses the store. Each answer shows the newest revision, and leases
/// are renewed all the time.
async fn keep_witness(file: WitnessFile, store: Arc<dyn ClusterStore>) {
    let store = Arc::downgrade(&store);
    loop {
        sleep(WITNESS).await;
        let Some(store) = store.upgrade() else { return };
        if let Err(error) = file.update(store.identity(), store.open_nonces()).await {
            tracing::warn!(%error, store = file.store, "failed to write the witness of a store");
        }
    }
}

/// Says whose store it is, without opening it: nothing is written.
///
/// # Errors
/// As [`open`].
pub(crate) async fn probe(store: RowsStore) -> Result<StoreIdentity, NodeError> {
    Ok(match store {
        RowsStore::Etcd(options) => EtcdStore::probe(options).await?,
        RowsStore::Kubernetes(options) => KubernetesStore::probe(options).await?,
    })
}

/// Checks that the store can be created: etcd or Kubernetes answers, would create it, and has none there yet.
///
/// # Errors
/// [`NodeError::OpenEtcd`], [`NodeError::OpenKubernetes`].
pub(crate) async fn check_missing(store: &RowsStore) -> Result<(), NodeError> {
    match store.clone() {
        RowsStore::Etcd(options) => EtcdStore::check_missing(options).await?,
        RowsStore::Kubernetes(options) => KubernetesStore::check_missing(options).await?,
    }
    Ok(())
}

/// Creates the store of a new cluster, and opens it.
///
/// # Errors
/// [`NodeError::OpenEtcd`], [`NodeError::OpenKubernetes`].
pub(crate) async fn create(
    store: RowsStore,
    cluster: ClusterId,
    name: &str,
) -> Result<Arc<dyn ClusterStore>, NodeError> {
    Ok(match store {
        RowsStore::Etcd(options) => Arc::new(EtcdStore::create(options, cluster, name).await?),
        RowsStore::Kubernetes(options) => {
            Arc::new(KubernetesStore::create(options, cluster, name).await?)
        }
    })
}
