//! The cluster's two stores: opened here, where the node has the role `store`, or reached over the network.
//!
//! Addresses under `join` may be any nodes': one without the role `store` is asked for the rows of nodes, and where they
//! say that the store is, it is looked for. Each of the two stores has a connection of its own, apart from messages:
//! giving one up as dead ends nothing else.
//!
//! What is confusing: a connection belongs to the runtime in which it was dialled. All that concerns rows is
//! dialled and driven on the control thread's.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt};
use ostraca_sharding::ids::ClusterId;
use ostraca_sharding::rows::{Row, Standing};
use ostraca_store::{ClusterStore, StoreIdentity};
use ostraca_store_peer::{
    Channel, Connect, ConnectError, Failure, Known, Options, PeerClusterStore, PeerEntityStore,
};
use ostraca_store_sled::SledStore;
use ostraca_wire::peer::calls::Calls;
use ostraca_wire::peer::{Alpn, PeerDialer, PeerLink, StreamKind};
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::config::Config;
use crate::error::NodeError;
use crate::ownership::{HASH, POOL};
use crate::rows::{self, ClusterRow, FORMAT, PoolRow, TimeRow};

/// How often the store's newest sequence is written to the witness (R5).
const WITNESS: Duration = Duration::from_secs(1);
/// However short the lease, a link and a call may take this long.
const SHORTEST: Duration = Duration::from_millis(500);
/// Bytes of a frame beside its body, rounded up.
const FRAME: usize = 64;
/// Pauses between attempts to reach the store at a start: the first and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));

/// What a store says of its cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    /// Who it is.
    pub(crate) identity: StoreIdentity,
    /// Shards of the pool.
    pub(crate) shards: u32,
    /// The hash that puts entities into them.
    pub(crate) hash: String,
    /// Cluster time in milliseconds, as it was last written.
    pub(crate) time: u64,
}

/// The store, in this process.
pub(crate) struct Local {
    pub(crate) sled: Arc<SledStore>,
    pub(crate) found: Found,
}

/// The store, in another one.
pub(crate) struct Remote {
    pub(crate) entity: Arc<PeerEntityStore>,
    pub(crate) cluster: Arc<PeerClusterStore>,
    pub(crate) found: Found,
    /// Dropped, it ends the writing of the witness. The stores' drivers end with the stores.
    _stop: DropGuard,
}

/// Opens the node's own store.
///
/// # Errors
/// [`NodeError::Open`]; what its rows lack; what differs from the configuration.
pub(crate) async fn open_local(config: &Config, cluster: ClusterId) -> Result<Local, NodeError> {
    let (dir, mut options) = (config.store_dir(), config.store_options());
    options.cluster = Some(cluster);
    let sled = Arc::new(blocking(move || SledStore::open(&dir, &options)).await??);
    let found = found(&*sled, config).await?;
    Ok(Local { sled, found })
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
) -> Result<Remote, NodeError> {
    let path = witness_path(config);
    let known = blocking(move || Known::open(cluster, Some(path))).await??;
    // An attempt that takes longer than a lease holds up the next one, which may find the store back.
    let connect_timeout = Options::default().connect_timeout.min(config.lease.max(SHORTEST));
    let call_timeout = config.store_call_timeout();
    let options = Options { call_timeout, connect_timeout, ..Options::default() };
    let way = Arc::new(Way::new(dialer.clone(), cluster, &config.join, options.connect_timeout));

    let began = Instant::now();
    let mut pause = PAUSES.0;
    loop {
        let error = match reach(config, &way, &known, &options, control).await {
            Ok((entity, cluster, found)) => {
                let (entity, cluster) = (Arc::new(entity), Arc::new(cluster));
                return Ok(Remote { entity, cluster, found, _stop: remember(known) });
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

async fn reach(
    config: &Config,
    way: &Arc<Way>,
    known: &Arc<Known>,
    options: &Options,
    control: &Handle,
) -> Result<(PeerEntityStore, PeerClusterStore, Found), NodeError> {
    let connecting = {
        // A renewal's answer that is older than the lease renews nothing (R8).
        let call_timeout = options.call_timeout.min(config.lease.max(SHORTEST));
        // A watch's question is kept open for less than a call may take.
        let watch_hold = options.watch_hold.min(call_timeout / 3);
        let options = Options { call_timeout, watch_hold, ..options.clone() };
        control.spawn(PeerClusterStore::connect(
            way.connector(Alpn::Control),
            known.clone(),
            options,
        ))
    };
    let ended = |error| NodeError::Ended(format!("reaching the store: {error}"));
    let connected = connecting.await.map_err(ended)?;
    let (cluster, driver) = connected.map_err(|error| way.why(error))?;
    control.spawn(driver.run());
    let found = found(&cluster, config).await?;
    let connecting =
        PeerEntityStore::connect(way.connector(Alpn::Bulk), known.clone(), options.clone()).await;
    let (entity, driver) = connecting.map_err(|error| way.why(error))?;
    tokio::spawn(driver.run());
    Ok((entity, cluster, found))
}

/// Reads what is fixed for the cluster's life, and compares it with what this program and the configuration want.
async fn found(store: &dyn ClusterStore, config: &Config) -> Result<Found, NodeError> {
    let missing =
        || NodeError::Row("the store holds no cluster: create one with `ostraca init`".into());
    let (cluster, _) = rows::read::<ClusterRow>(store, "cluster").await?.ok_or_else(missing)?;
    if cluster.format > FORMAT {
        return Err(NodeError::Row(format!(
            "the cluster's record format is {}, and this program reads {FORMAT}: use a newer one",
            cluster.format
        )));
    }
    let pool = rows::read::<PoolRow>(store, &rows::pool_key()).await?;
    let (PoolRow { hash, shards }, _) = pool.ok_or_else(missing)?;
    let (TimeRow(time), _) = rows::read(store, "time").await?.ok_or_else(missing)?;
    let wanted = config.expected_shards.unwrap_or(shards);
    if wanted != shards {
        let (wanted, found) = (wanted.to_string(), shards.to_string());
        return Err(NodeError::OtherPool { what: "shards", wanted, found });
    }
    for wanted in [config.expected_hash.as_deref().unwrap_or(HASH), HASH] {
        if wanted != hash {
            return Err(NodeError::OtherPool { what: "hash", wanted: wanted.into(), found: hash });
        }
    }
    if shards == 0 {
        return Err(NodeError::Row(format!("the pool `{POOL}` has no shards")));
    }
    Ok(Found { identity: store.identity(), shards, hash, time })
}

/// Writes the witness now and then, until the guard is dropped.
fn remember(known: Arc<Known>) -> DropGuard {
    let stop = CancellationToken::new();
    let guard = stop.clone().drop_guard();
    tokio::spawn(stop.run_until_cancelled_owned(async move {
        loop {
            sleep(WITNESS).await;
            let known = known.clone();
            match blocking(move || known.refresh()).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::warn!(%error, "the witness was not written"),
                Err(error) => tracing::warn!(%error, "the witness was not written"),
            }
        }
    }));
    guard
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, NodeError> {
    let ended = |error: tokio::task::JoinError| NodeError::Ended(error.to_string());
    tokio::task::spawn_blocking(work).await.map_err(ended)
}

/// The way to the store.
struct Way {
    dialer: PeerDialer,
    cluster: ClusterId,
    /// `host:port`, none twice.
    places: Mutex<Places>,
    /// How long the nodes have to answer: less than a link may take, so that their errors are heard.
    wait: Duration,
    /// Why there was no link the last time.
    failed: Mutex<Option<NodeError>>,
}

struct Places {
    /// Where to look.
    all: Vec<String>,
    /// Where the store was found.
    store: Option<String>,
}

/// What one place came to.
enum There {
    Store(PeerLink),
    /// Another node; and what it says of where the store is.
    Other(String, Vec<String>),
}

impl Way {
    fn new(
        dialer: PeerDialer,
        cluster: ClusterId,
        join: &[String],
        connect_timeout: Duration,
    ) -> Self {
        let places = Mutex::new(Places { all: join.to_vec(), store: None });
        Self { dialer, cluster, places, wait: connect_timeout * 3 / 4, failed: Mutex::default() }
    }

    /// Why the store is not there, as exactly as it is known.
    fn why(&self, error: ConnectError) -> NodeError {
        let heard = lock(&self.failed).take();
        match (error, heard) {
            (ConnectError::Unreachable(_), Some(heard)) => heard,
            (error, _) => NodeError::Remote(error),
        }
    }

    /// A connection to the store node: whoever has it and answers first.
    async fn link(&self, alpn: Alpn) -> Result<PeerLink, NodeError> {
        let places = {
            let places = lock(&self.places);
            match &places.store {
                Some(store) => vec![store.clone()],
                None => places.all.clone(),
            }
        };
        let looking = self.look(&places, alpn);
        let looked = timeout(self.wait, looking).await.unwrap_or_else(|_| {
            let why = format!("no answer from {} within {:?}", places.join(", "), self.wait);
            Err(NodeError::Unreached(why))
        });
        looked.inspect_err(|_| {
            // The next time everybody is asked again.
            lock(&self.places).store = None;
        })
    }

    async fn look(&self, places: &[String], alpn: Alpn) -> Result<PeerLink, NodeError> {
        let mut asked: Vec<String> = places.to_vec();
        let mut asking: FuturesUnordered<_> =
            places.iter().map(|place| self.ask(place.clone(), alpn)).collect();
        let (mut silent, mut others, mut refused) = (Vec::new(), Vec::new(), None);
        while let Some((place, there)) = asking.next().await {
            match there {
                Ok(There::Store(link)) => {
                    let mut places = lock(&self.places);
                    if !places.all.contains(&place) {
                        places.all.push(place.clone());
                    }
                    places.store = Some(place);
                    return Ok(link);
                }
                Ok(There::Other(node, leads)) => {
                    others.push(format!("{place} is node {node}"));
                    for lead in leads {
                        if !asked.contains(&lead) {
                            asked.push(lead.clone());
                            asking.push(self.ask(lead, alpn));
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
        Err(NodeError::Unreached(silent.into_iter().chain(others).collect::<Vec<_>>().join("; ")))
    }

    async fn ask(&self, place: String, alpn: Alpn) -> (String, Result<There, NodeError>) {
        let there = self.dial(&place, alpn).await;
        (place, there)
    }

    async fn dial(&self, place: &str, alpn: Alpn) -> Result<There, NodeError> {
        let unreached = |error: std::io::Error| NodeError::Unreached(format!("{place}: {error}"));
        let addresses: Vec<SocketAddr> =
            tokio::net::lookup_host(place).await.map_err(unreached)?.collect();
        let mut last = NodeError::Unreached(format!("{place} has no address"));
        for address in addresses {
            match self.dialer.connect(address, alpn, None).await {
                Ok(link) if link.info.roles.store => return Ok(There::Store(link)),
                Ok(link) => {
                    let node = link.info.member.node.to_string();
                    let leads = match alpn {
                        Alpn::Control => leads(&link, self.cluster).await.unwrap_or_else(|error| {
                            tracing::debug!(%error, %node, "it does not say where the store is");
                            Vec::new()
                        }),
                        Alpn::Bulk => Vec::new(),
                    };
                    link.close();
                    return Ok(There::Other(node, leads));
                }
                Err(source) => last = NodeError::Join { place: place.into(), source },
            }
        }
        Err(last)
    }
}

impl Way {
    /// Makes the links of a store over one of the protocols.
    fn connector(self: &Arc<Self>, alpn: Alpn) -> impl Connect + use<> {
        let way = self.clone();
        move || -> BoxFuture<'static, Result<Box<dyn Channel>, String>> {
            let way = way.clone();
            async move {
                let linked = match way.link(alpn).await {
                    Ok(link) => open(link, alpn).await,
                    Err(error) => Err(error),
                };
                linked.map_err(|error| {
                    let text = error.to_string();
                    *lock(&way.failed) = Some(error);
                    text
                })
            }
            .boxed()
        }
    }
}

/// Where a node that has no store says that it is. It answers for the rows as it has them itself; nothing but the
/// addresses in them is used.
async fn leads(link: &PeerLink, cluster: ClusterId) -> Result<Vec<String>, NodeError> {
    let link = link.clone();
    let again = move || -> BoxFuture<'static, Result<Box<dyn Channel>, String>> {
        let link = link.clone();
        async move { open(link, Alpn::Control).await.map_err(|error| error.to_string()) }.boxed()
    };
    let known = Known::open(cluster, None)?;
    // One question: nobody keeps the link up.
    let (store, _driver) = PeerClusterStore::connect(again, known, Options::default()).await?;
    let (rows, _) = store.list("nodes/").await?;
    let mut leads = Vec::new();
    for row in &rows {
        if let Ok(Some((_, Row::Node(node), _))) = rows::decode_core(row)
            && node.roles.store
            && node.standing != Standing::Dead
        {
            leads.extend(node.addresses);
        }
    }
    Ok(leads)
}

/// Opens the stream of a store's calls.
async fn open(link: PeerLink, alpn: Alpn) -> Result<Box<dyn Channel>, NodeError> {
    let kind = match alpn {
        Alpn::Bulk => StreamKind::Store,
        Alpn::Control => StreamKind::Cluster,
    };
    let calls = Arc::new(link.calls(kind).await?);
    // The stores push nothing.
    drop(calls.pushes());
    Ok(Box::new(Wire { link, calls }))
}

/// A stream of calls, as the stores' clients need it.
struct Wire {
    link: PeerLink,
    calls: Arc<Calls>,
}

impl Channel for Wire {
    fn call(&self, body: Bytes) -> BoxFuture<'static, Result<Bytes, Failure>> {
        self.calls.call(body).map(|answer| answer.map_err(failure)).boxed()
    }

    fn max_call(&self) -> usize {
        let bounds = &self.link.info.bounds;
        let bytes = u64::from(bounds.frame).min(bounds.call_bytes);
        usize::try_from(bytes).unwrap_or(usize::MAX).saturating_sub(FRAME)
    }

    fn closed(&self) -> BoxFuture<'static, ()> {
        let calls = self.calls.clone();
        async move { calls.closed().await }.boxed()
    }

    fn close(&self) {
        self.link.close();
    }
}

/// What is known of a call that has no answer: a mistake here would tell `not run` where a turn may have run.
fn failure(error: ostraca_wire::Error) -> Failure {
    use ostraca_wire::Error;
    let why = error.to_string();
    match error {
        Error::NotSent(_) | Error::Overloaded { .. } => Failure::NotSent(why),
        Error::TooLarge { what: "a call", .. } => Failure::NotSent(why),
        Error::TooLarge { .. } => Failure::AnswerTooLarge(why),
        _ => Failure::Lost(why),
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
