//! The cluster's rows in etcd.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use ostraca_config::config::Config;
use ostraca_core::ids::ClusterId;
use ostraca_store::ClusterStore;
use ostraca_store_etcd::{EtcdStore, Options};
use tokio::runtime::Handle;
use tokio::time::sleep;

use super::WITNESS;
use super::witness::WitnessFile;
use crate::error::NodeError;

/// Opens the store, and compares it with what this node knew of it before (R5). Its connections are driven on
/// `runtime`.
///
/// # Errors
/// [`NodeError::OpenEtcd`], [`NodeError::StoreConnect`].
pub(super) async fn open(
    config: &Config,
    options: Options,
    cluster: ClusterId,
    runtime: &Handle,
) -> Result<(Arc<EtcdStore>, BoxFuture<'static, ()>), NodeError> {
    let options = Options { cluster: Some(cluster), ..options };
    let opening = runtime.spawn(EtcdStore::open(options));
    let ended = |error| NodeError::UnexpectedExit(format!("opening the store in etcd: {error}"));
    let store = Arc::new(opening.await.map_err(ended)??);
    let file = WitnessFile { path: config.data.join("etcd.witness"), store: "etcd" };
    file.update(store.identity(), store.open_nonces()).await?;
    let keeper = keep_witness(file, store.clone()).boxed();
    Ok((store, keeper))
}

/// Writes the witness periodically, as long as the node uses the store. Each answer shows etcd's newest revision, and
/// leases are renewed all the time.
async fn keep_witness(file: WitnessFile, store: Arc<EtcdStore>) {
    let store = Arc::downgrade(&store);
    loop {
        sleep(WITNESS).await;
        let Some(store) = store.upgrade() else { return };
        if let Err(error) = file.update(store.identity(), store.open_nonces()).await {
            tracing::warn!(%error, "failed to write the witness of etcd");
        }
    }
}
