//! The stores of another node: of the one with the role `store`.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use ostraca_config::config::Config;
use ostraca_core::ids::ClusterId;
use ostraca_store::ClusterStore;
use ostraca_store_peer::{ClientOptions, PeerClusterStore, PeerEntityStore, StoreVerifier};
use ostraca_wire::peer::{Alpn, PeerDialer};
use tokio::runtime::Handle;
use tokio::time::sleep;

use super::WITNESS;
use super::locator::StoreLocator;
use crate::blocking::blocking;
use crate::error::NodeError;

/// Lower bound for the timeouts of links and calls, however short the lease is.
const SHORTEST: Duration = Duration::from_millis(500);

/// Path of the witness of another node's store.
fn witness_path(config: &Config) -> PathBuf {
    config.data.join("joined-store.witness")
}

/// Finds and connects to the stores of another node.
pub(super) struct PeerStores {
    locator: Arc<StoreLocator>,
    known: Arc<StoreVerifier>,
    options: ClientOptions,
    lease: Duration,
}

impl PeerStores {
    /// Reads what this node knows of the store (R5). The store's node is found through the addresses under `join`, or
    /// in the cluster's rows if those are elsewhere.
    ///
    /// # Errors
    /// [`NodeError::StoreConnect`] if the witness cannot be read.
    pub(super) async fn open(
        config: &Config,
        cluster: ClusterId,
        dialer: &PeerDialer,
        rows: Option<Arc<dyn ClusterStore>>,
    ) -> Result<Self, NodeError> {
        let path = witness_path(config);
        let known = blocking(move || StoreVerifier::open(cluster, Some(path))).await??;
        // An attempt longer than a lease would delay the next one, when the store may be available again.
        let connect_timeout =
            ClientOptions::default().connect_timeout.min(config.lease.max(SHORTEST));
        let call_timeout = config.store_call_timeout();
        let options = ClientOptions { call_timeout, connect_timeout, ..ClientOptions::default() };
        let locator = StoreLocator::new(dialer.clone(), cluster, &config.join, connect_timeout);
        let locator = Arc::new(locator.with_rows(rows));
        Ok(Self { locator, known, options, lease: config.lease })
    }

    /// Connects to the cluster's rows. The connection is dialled and driven on `runtime`.
    ///
    /// # Errors
    /// [`NodeError::StoreUnreachable`], [`NodeError::Join`], [`NodeError::StoreConnect`].
    pub(super) async fn rows(&self, runtime: &Handle) -> Result<PeerClusterStore, NodeError> {
        // A response to a renewal that arrives after the lease has expired is of no use (R8).
        let call_timeout = self.options.call_timeout.min(self.lease.max(SHORTEST));
        // A poll of a watch is held for less time than a call may take.
        let watch_hold = self.options.watch_poll_timeout.min(call_timeout / 3);
        let options =
            ClientOptions { call_timeout, watch_poll_timeout: watch_hold, ..self.options.clone() };
        let connector = self.locator.connector(Alpn::Control);
        let connecting =
            runtime.spawn(PeerClusterStore::connect(connector, self.known.clone(), options));
        let ended = |error| NodeError::UnexpectedExit(format!("reaching the store: {error}"));
        let connected = connecting.await.map_err(ended)?;
        let (store, driver) = connected.map_err(|error| self.locator.why(error))?;
        runtime.spawn(driver.run());
        Ok(store)
    }

    /// Connects to the state of entities. Must be called within the runtime of the bulk connections.
    ///
    /// # Errors
    /// Those of [`Self::rows`].
    pub(super) async fn state(&self) -> Result<PeerEntityStore, NodeError> {
        let (connector, options) = (self.locator.connector(Alpn::Bulk), self.options.clone());
        let connected = PeerEntityStore::connect(connector, self.known.clone(), options).await;
        let (store, driver) = connected.map_err(|error| self.locator.why(error))?;
        tokio::spawn(driver.run());
        Ok(store)
    }

    /// Writes the witness periodically.
    pub(super) fn keep_witness(&self) -> BoxFuture<'static, ()> {
        let known = self.known.clone();
        async move {
            loop {
                sleep(WITNESS).await;
                let known = known.clone();
                match blocking(move || known.persist()).await {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => tracing::warn!(%error, "failed to write the witness"),
                    Err(error) => tracing::warn!(%error, "failed to write the witness"),
                }
            }
        }
        .boxed()
    }
}
