//! Finds the store node: tries the address where the store was last found, or else queries every known address.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt};
use ostraca_catalog::rows;
use ostraca_core::ids::ClusterId;
use ostraca_core::rows::{NodeStatus, Row};
use ostraca_store::ClusterStore;
use ostraca_store_peer::{
    Channel, ClientOptions, Connect, ConnectError, PeerClusterStore, StoreVerifier,
};
use ostraca_wire::peer::{Alpn, PeerDialer, PeerLink};
use tokio::time::timeout;

use super::channel::open;
use crate::error::NodeError;

pub(super) struct StoreLocator {
    dialer: PeerDialer,
    cluster: ClusterId,
    /// The cluster's rows, if they are outside the nodes: they show where the store is.
    rows: Option<Arc<dyn ClusterStore>>,
    /// `host:port`, without duplicates.
    places: Mutex<StoreAddresses>,
    /// Timeout for the nodes' responses, shorter than the timeout for a link, so that their errors still arrive.
    wait: Duration,
    /// Why the last attempt failed to connect.
    failed: Mutex<Option<NodeError>>,
}

struct StoreAddresses {
    /// All addresses to query.
    all: Vec<String>,
    /// Where the store was last found.
    store: Option<String>,
}

/// The result for one address.
enum Probe {
    Store(PeerLink),
    /// A node without the store, and the addresses that it reports for the store.
    Other(String, Vec<String>),
}

impl StoreLocator {
    pub(super) fn new(
        dialer: PeerDialer,
        cluster: ClusterId,
        join: &[String],
        connect_timeout: Duration,
    ) -> Self {
        let places = Mutex::new(StoreAddresses { all: join.to_vec(), store: None });
        let wait = connect_timeout * 3 / 4;
        Self { dialer, cluster, rows: None, places, wait, failed: Mutex::default() }
    }

    /// Finds the store through these rows instead of the addresses under `join`.
    pub(super) fn with_rows(self, rows: Option<Arc<dyn ClusterStore>>) -> Self {
        Self { rows, ..self }
    }

    /// The most specific known reason why the store was not found.
    pub(super) fn why(&self, error: ConnectError) -> NodeError {
        let failure = lock(&self.failed).take();
        match (error, failure) {
            (ConnectError::Unreachable(_), Some(failure)) => failure,
            (error, _) => NodeError::StoreConnect(error),
        }
    }

    /// Connects to the store node: the first node that responds and has the store.
    pub(super) async fn connect(&self, alpn: Alpn) -> Result<PeerLink, NodeError> {
        let known = lock(&self.places).store.clone();
        let places = match (known, &self.rows) {
            (Some(store), _) => vec![store],
            (None, None) => lock(&self.places).all.clone(),
            (None, Some(rows)) => {
                let found = store_addresses(&**rows).await?;
                if found.is_empty() {
                    let why = "no node with the role `store` has registered".to_owned();
                    return Err(NodeError::StoreUnreachable(why));
                }
                found
            }
        };
        let search = self.find_store(&places, alpn);
        let found = timeout(self.wait, search).await.unwrap_or_else(|_| {
            let why = format!("no response from {} within {:?}", places.join(", "), self.wait);
            Err(NodeError::StoreUnreachable(why))
        });
        found.inspect_err(|_| {
            // The next attempt queries all addresses again.
            lock(&self.places).store = None;
        })
    }

    async fn find_store(&self, places: &[String], alpn: Alpn) -> Result<PeerLink, NodeError> {
        let mut queried: Vec<String> = places.to_vec();
        let mut probes: FuturesUnordered<_> =
            places.iter().map(|place| self.probe(place.clone(), alpn)).collect();
        let (mut silent, mut others, mut refused) = (Vec::new(), Vec::new(), None);
        while let Some((place, result)) = probes.next().await {
            match result {
                Ok(Probe::Store(link)) => {
                    let mut places = lock(&self.places);
                    if !places.all.contains(&place) {
                        places.all.push(place.clone());
                    }
                    places.store = Some(place);
                    return Ok(link);
                }
                Ok(Probe::Other(node, leads)) => {
                    others.push(format!("{place} is node {node}"));
                    for lead in leads {
                        if !queried.contains(&lead) {
                            queried.push(lead.clone());
                            probes.push(self.probe(lead, alpn));
                        }
                    }
                }
                Err(error) if error.is_retryable() => silent.push(format!("{place}: {error}")),
                Err(error) => {
                    refused.get_or_insert(error);
                }
            }
        }
        if let Some(error) = refused {
            return Err(error);
        }
        if silent.is_empty() && !others.is_empty() {
            return Err(NodeError::NoStoreNode(others.join(", ")));
        }
        Err(NodeError::StoreUnreachable(
            silent.into_iter().chain(others).collect::<Vec<_>>().join("; "),
        ))
    }

    async fn probe(&self, place: String, alpn: Alpn) -> (String, Result<Probe, NodeError>) {
        let result = self.dial(&place, alpn).await;
        (place, result)
    }

    async fn dial(&self, place: &str, alpn: Alpn) -> Result<Probe, NodeError> {
        let unreached =
            |error: std::io::Error| NodeError::StoreUnreachable(format!("{place}: {error}"));
        let addresses: Vec<SocketAddr> =
            tokio::net::lookup_host(place).await.map_err(unreached)?.collect();
        let mut last =
            NodeError::StoreUnreachable(format!("{place} does not resolve to an address"));
        for address in addresses {
            match self.dialer.connect(address, alpn, None).await {
                Ok(link) if link.info.roles.store => return Ok(Probe::Store(link)),
                Ok(link) => {
                    let node = link.info.member.node.to_string();
                    let leads = match alpn {
                        Alpn::Control => read_store_addresses(&link, self.cluster).await.unwrap_or_else(|error| {
                            tracing::debug!(%error, %node, "it does not know where the store is");
                            Vec::new()
                        }),
                        Alpn::Bulk => Vec::new(),
                    };
                    link.close();
                    return Ok(Probe::Other(node, leads));
                }
                Err(source) => last = NodeError::Join { place: place.into(), source },
            }
        }
        Err(last)
    }

    /// Returns a connector that creates links to a store over one of the protocols.
    pub(super) fn connector(self: &Arc<Self>, alpn: Alpn) -> impl Connect + use<> {
        let locator = self.clone();
        move || -> BoxFuture<'static, Result<Box<dyn Channel>, String>> {
            let locator = locator.clone();
            async move {
                let linked = match locator.connect(alpn).await {
                    Ok(link) => open(link, alpn).await,
                    Err(error) => Err(error),
                };
                linked.map_err(|error| {
                    let text = error.to_string();
                    *lock(&locator.failed) = Some(error);
                    text
                })
            }
            .boxed()
        }
    }
}

/// Requests the store's addresses from a node without a store. That node relays the rows, of which only the
/// addresses are used.
async fn read_store_addresses(
    link: &PeerLink,
    cluster: ClusterId,
) -> Result<Vec<String>, NodeError> {
    let link = link.clone();
    let again = move || -> BoxFuture<'static, Result<Box<dyn Channel>, String>> {
        let link = link.clone();
        async move { open(link, Alpn::Control).await.map_err(|error| error.to_string()) }.boxed()
    };
    let known = StoreVerifier::open(cluster, None)?;
    // This is a single request, so the driver need not run.
    let (store, _driver) =
        PeerClusterStore::connect(again, known, ClientOptions::default()).await?;
    store_addresses(&store).await
}

/// The addresses of the nodes with the role `store`, from the cluster's rows.
async fn store_addresses(store: &dyn ClusterStore) -> Result<Vec<String>, NodeError> {
    let (rows, _) = store.list("nodes/").await?;
    let mut leads = Vec::new();
    for row in &rows {
        if let Ok(Some((_, Row::Node(node), _))) = rows::decode_row(row)
            && node.roles.store
            && node.status != NodeStatus::Dead
        {
            leads.extend(node.addresses);
        }
    }
    Ok(leads)
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}
