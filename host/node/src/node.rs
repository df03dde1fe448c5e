//! A running node: its parts, in the order in which they start and stop.
//!
//! Start: control thread, store (local, or over links to the node that has it), network, WebAssembly runtime,
//! workers, gateway. Then the machine registers the node, which is ready once it knows an owner of every shard.
//! Stop: the node drains, so that other nodes serve its shards before they end here (S10); accepted messages are
//! answered; the network closes, and the store last.
//!
//! The futures of both are boxed: a future of an `async fn` is compiled in each program that awaits it, and these
//! contain most of the node.

mod builder;
mod network;
mod readiness;
mod startup;
mod store_access;
#[cfg(test)]
mod tests;
mod workers;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use ostraca_catalog::types::TypeRegistry;
use ostraca_config::Config;
use ostraca_control::ControlThread;
use ostraca_control::view::{ClusterView, EventLog};
use ostraca_core::assign::AllocationStrategy;
use ostraca_core::ids::{ClusterId, NodeId};
use ostraca_core::node::Event;
use ostraca_gateway::Gateway;
use ostraca_health::HealthCheck;
use ostraca_http::LoginLinks;
use ostraca_stats::Stats;
use ostraca_store_sled::SledStore;
use ostraca_trace::Tracer;
use ostraca_wire::server::Server;
use ostraca_workers::{Input, WorkerThread};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;

use crate::blocking::blocking;
use crate::error::NodeError;
use crate::service::ClientService;

/// A stopping store node waits for other leaving nodes for at most the grace period divided by this.
const OTHERS: u32 = 4;
/// How long a stopping store node waits for other live nodes to announce that they are also leaving.
const TOGETHER: Duration = Duration::from_millis(500);
/// Maximum grace period while the store is refused, since neither a hand-off nor the node's leave can then be written.
const REFUSED: Duration = Duration::from_secs(2);

/// A running node.
pub struct Node {
    server: Arc<Server<ClientService>>,
    address: SocketAddr,
    summary: Summary,
    workers: Vec<WorkerThread>,
    control: ControlThread,
    gateway: Arc<Gateway>,
    view: watch::Receiver<Arc<ClusterView>>,
    events: Arc<EventLog>,
    http: Option<HttpTask>,
    metrics: Option<MetricsTask>,
    tracer: Tracer,
    types: TypeRegistry,
    /// How many hosts there must be before the first of them owns a shard (K27).
    min_hosts: usize,
    /// Whether the node was started although the store did not respond.
    started_without_store: bool,
    /// Tasks that must not end before the node does.
    vital: JoinSet<()>,
    /// Tasks that end with the node.
    tasks: JoinSet<()>,
    failed: mpsc::UnboundedReceiver<ostraca_control::Error>,
    stats: Arc<Stats>,
    /// The store, if it is in this process. It closes last.
    store: Option<Arc<SledStore>>,
}

/// The running HTTP gateway.
struct HttpTask {
    address: SocketAddr,
    url: String,
    links: Arc<LoginLinks>,
    /// Set when the node begins to stop: it is not ready any more.
    leaving: Arc<AtomicBool>,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

/// How long the collector may take to get the last spans when the node stops.
const TRACES: Duration = Duration::from_secs(2);

/// Who serves the node's metrics.
struct MetricsTask {
    address: SocketAddr,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl MetricsTask {
    /// Ends it. It holds the node's store, which can be opened again only afterwards.
    async fn stop(self) {
        self.stop.cancel();
        if let Err(error) = self.task.await {
            tracing::error!(%error, "the server of the metrics did not stop gracefully");
        }
    }
}

/// How long HTTP requests in progress may take when the node stops.
const HTTP_GRACE: Duration = Duration::from_secs(2);

impl HttpTask {
    /// Accepts nothing more, and waits until the requests in progress have ended.
    async fn stop(self) {
        self.stop.cancel();
        if let Err(error) = self.task.await {
            tracing::error!(%error, "the HTTP gateway did not stop gracefully");
        }
    }
}

/// Parts of a node that the program supplies, in place of what the configuration says.
#[derive(Clone, Default)]
pub struct NodeParts {
    /// Finds out whether the processes of other nodes have ended (S7). `health-check.interval` and
    /// `health-check.timeout` apply to it; `health-check.kind` does not. Default: what the configuration says.
    pub health_check: Option<Arc<dyn HealthCheck>>,
    /// Decides which host gets which shard while this node is the manager, in pools that name no strategy (K22, K23).
    /// Default: what the configuration says.
    pub strategy: Option<Arc<dyn AllocationStrategy>>,
}

/// A node's description, for the line that reports it ready.
#[derive(Clone, Debug)]
pub struct Summary {
    /// The node's name.
    pub node: String,
    /// The cluster's id.
    pub cluster: ClusterId,
    /// The cluster's name.
    pub cluster_name: String,
    /// The number of shards of the pool.
    pub shards: u32,
    /// The number of deployed types that the node knows.
    pub types: usize,
}

impl Node {
    /// Starts a node, and waits until it is ready. Must be called within a multi-threaded tokio runtime: the
    /// network runs there, guests and the lease on dedicated threads.
    ///
    /// # Errors
    /// Any error that keeps the node from serving, with help text.
    pub fn start(config: Config) -> BoxFuture<'static, Result<Self, NodeError>> {
        Self::start_with(config, NodeParts::default())
    }

    /// Like [`Node::start`], with parts that the program supplies.
    ///
    /// # Errors
    /// The same as for [`Node::start`].
    pub fn start_with(
        config: Config,
        parts: NodeParts,
    ) -> BoxFuture<'static, Result<Self, NodeError>> {
        let starting = async move {
            let mut node = Self::launch_with(config, parts).await?;
            match node.wait_until_ready().await {
                Ok(()) => Ok(node),
                Err(error) => {
                    node.stop(Duration::from_secs(1)).await;
                    Err(error)
                }
            }
        };
        starting.boxed()
    }

    /// The second half of [`Node::start`]: waits until the node knows an owner of every shard, serves its own, and
    /// has compiled the deployed types. Each wait has a timeout, after which a warning is logged and the start
    /// continues.
    ///
    /// # Errors
    /// [`NodeError::NameInUse`], or the error of a part of the node that failed in the meantime.
    pub fn wait_until_ready(&mut self) -> BoxFuture<'_, Result<(), NodeError>> {
        self.become_ready().boxed()
    }

    async fn become_ready(&mut self) -> Result<(), NodeError> {
        if self.started_without_store {
            return Ok(());
        }
        let (view, min_hosts) = (&self.view, self.min_hosts);
        tokio::select! {
            () = readiness::wait_until_ready(view.clone(), &self.types, min_hosts) => {}
            addresses = readiness::wait_for_name_conflict(&self.events, view) => {
                let node = self.summary.node.clone();
                return Err(NodeError::NameInUse { node, addresses });
            }
            error = readiness::wait_for_failure(&mut self.failed, &mut self.vital) => return Err(error),
        }
        self.summary.types = self.types.snapshot().len();
        Ok(())
    }

    /// The address at which the node accepts connections.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The address of the HTTP gateway; `None` if the node has none.
    #[must_use]
    pub fn http_address(&self) -> Option<SocketAddr> {
        self.http.as_ref().map(|http| http.address)
    }

    /// The address of the HTTP gateway as a URL; `None` if the node has none.
    #[must_use]
    pub fn http_url(&self) -> Option<&str> {
        self.http.as_ref().map(|http| http.url.as_str())
    }

    /// A link with which the holder of this token opens the console, once, within an hour; `None` if the node has no HTTP
    /// gateway. The token is not in it.
    #[must_use]
    pub fn console_link(&self, token: &str) -> Option<String> {
        let http = self.http.as_ref()?;
        // What follows the `#` is not sent to the node, so it is in no log.
        Some(format!("{}/console/#link={}", http.url, http.links.add(token)))
    }

    /// The address of the node's metrics; `None` if it serves none.
    #[must_use]
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.metrics.as_ref().map(|metrics| metrics.address)
    }

    /// The node's description.
    #[must_use]
    pub fn summary(&self) -> &Summary {
        &self.summary
    }

    /// Resolves when the node can no longer serve. It does not resolve if the store has stopped: the node then reports
    /// this to clients.
    pub async fn wait_for_failure(&mut self) -> NodeError {
        readiness::wait_for_failure(&mut self.failed, &mut self.vital).await
    }

    /// Stops gracefully, within about twice `grace` at worst. The node hands its shards over, or stops those that
    /// no other node takes over. It marks itself as left, answers accepted messages, and closes the network and the
    /// store.
    pub fn stop(self, grace: Duration) -> BoxFuture<'static, ()> {
        self.end(grace).boxed()
    }

    async fn end(mut self, grace: Duration) {
        // While the store is refused, waiting for anything that needs it is pointless.
        if let Some(http) = &self.http {
            http.leaving.store(true, Ordering::Relaxed);
        }
        let refused = self.stats.store_refused.borrow().is_some();
        let grace = if refused { grace.min(REFUSED) } else { grace };
        self.leave(grace).await;
        if self.store.is_some() {
            self.outlast(grace / OTHERS).await;
        }
        // Nothing new is accepted from now on; replies still flow until the endpoint closes.
        let closing = self.gateway.close(grace / 8);
        let http = self.http.take();
        let http = async {
            if let Some(http) = http {
                http.stop().await;
            }
        };
        futures::join!(closing, http, self.server.shut_down(grace / 4));
        if let Some(metrics) = self.metrics.take() {
            metrics.stop().await;
        }
        let in_time = self.stop_workers(grace / 8).await;
        self.vital.shutdown().await;
        self.tasks.shutdown().await;
        let workers = std::mem::take(&mut self.workers);
        let (control, tracer) = (self.control, self.tracer);
        let joined = blocking(move || {
            for WorkerThread { input, thread } in workers {
                drop(input);
                // A worker that has reported its stop is about to end, and keeps the store open until then.
                if (in_time || thread.is_finished()) && thread.join().is_err() {
                    tracing::error!("a worker panicked");
                }
            }
            control.stop();
            tracer.shut_down(TRACES);
        });
        if let Err(error) = joined.await {
            tracing::error!(%error, "the node did not stop gracefully");
        }
    }

    /// Hands the shards over and marks the node as left.
    async fn leave(&mut self, grace: Duration) {
        let left = |view: &Arc<ClusterView>| view.has_left;
        let mut refused = self.stats.store_refused.subscribe();
        self.control.send_event(Event::Leave);
        let leaving = tokio::time::timeout(grace, self.view.wait_for(left));
        tokio::select! {
            gone = leaving => match gone {
                Ok(_) => return,
                Err(_) => tracing::warn!(
                    "the shards were not handed over within {grace:?}; stopping them here"
                ),
            },
            // Both hand-offs and the node's leave are written to rows of the store.
            Ok(_) = refused.wait_for(Option::is_some) => {
                tracing::warn!("the store is refused: cannot hand shards over or mark the node as left");
                return self.control.send_event(Event::LeaveNow);
            }
        }
        self.control.send_event(Event::LeaveNow);
        if tokio::time::timeout(grace / 4, self.view.wait_for(left)).await.is_err() {
            tracing::warn!("could not mark the node as left; its lease will lapse");
        }
    }

    /// Waits for other leaving nodes: they need the store to leave, so if all nodes stop together, the store's node
    /// must be the last.
    async fn outlast(&mut self, limit: Duration) {
        let node = NodeId::from(self.summary.node.as_str());
        if self.view.borrow().has_live_peers(&node) {
            // A node that was asked to stop at the same moment may not have announced it yet.
            tokio::time::sleep(TOGETHER).await;
        }
        let gone = |view: &Arc<ClusterView>| !view.has_leaving_peers(&node);
        if tokio::time::timeout(limit, self.view.wait_for(gone)).await.is_err() {
            tracing::warn!("other nodes are still leaving, now without the store");
        }
    }

    /// Makes the workers stop their shards. Returns whether all of them reported back in time.
    async fn stop_workers(&self, limit: Duration) -> bool {
        let mut stopped = Vec::new();
        for WorkerThread { input, .. } in &self.workers {
            let (done, received) = oneshot::channel();
            if input.send(Input::Stop(done)).is_ok() {
                stopped.push(received);
            }
        }
        let all = futures::future::join_all(stopped);
        let in_time = tokio::time::timeout(limit, all).await.is_ok();
        if !in_time {
            tracing::warn!("some shards did not stop in time; committed turns are not lost");
        }
        in_time
    }
}
