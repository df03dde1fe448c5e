//! A running node: its parts, in the order in which they start and stop.
//!
//! Starting: control thread, store (its own, or over links to the node that has it), network, guests' host, workers,
//! gateway; then the machine registers the node, and the node is ready when every shard has an owner that it
//! knows. Stopping: the node drains, so that its shards serve elsewhere before they end here (S10); what it
//! took is answered; the network closes, and the store last.

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
use std::time::Duration;

use ostraca_core::ids::{ClusterId, NodeId};
use ostraca_core::node::Event;
use ostraca_store_sled::SledStore;
use ostraca_wire::server::Server;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;

use crate::config::Config;
use crate::control::ControlThread;
use crate::error::NodeError;
use crate::gateway::Gateway;
use crate::service::ClientService;
use crate::stats::Stats;
use crate::types::TypeRegistry;
use crate::view::{ClusterView, EventLog};
use crate::worker::Input;
use workers::WorkerHandle;

/// How long a store node that stops waits for others that leave and have not said goodbye yet, in parts of the grace.
const OTHERS: u32 = 4;
/// How long a store node that stops gives live nodes to say that they leave too.
const TOGETHER: Duration = Duration::from_millis(500);
/// What a stop may take where the store is refused: neither a hand-over nor a goodbye can be written.
const REFUSED: Duration = Duration::from_secs(2);

/// A node that serves.
pub struct Node {
    server: Arc<Server<ClientService>>,
    address: SocketAddr,
    summary: Summary,
    workers: Vec<WorkerHandle>,
    control: ControlThread,
    gateway: Arc<Gateway>,
    view: watch::Receiver<Arc<ClusterView>>,
    events: Arc<EventLog>,
    types: TypeRegistry,
    shards: u32,
    /// The store did not answer when the node started.
    started_without_store: bool,
    /// None of them ends before the node does.
    vital: JoinSet<()>,
    /// End with the node.
    tasks: JoinSet<()>,
    failed: mpsc::UnboundedReceiver<NodeError>,
    stats: Arc<Stats>,
    /// Where it is in this process. It closes last.
    store: Option<Arc<SledStore>>,
}

/// What a node is, for the line that says it is ready.
#[derive(Clone, Debug)]
pub struct Summary {
    /// The node's name.
    pub node: String,
    /// The cluster's id.
    pub cluster: ClusterId,
    /// The cluster's name.
    pub cluster_name: String,
    /// Shards that it serves.
    pub shards: u32,
    /// Types that are deployed.
    pub types: usize,
}

impl Node {
    /// Starts a node, and waits until it has settled. Must be called within a multi-threaded tokio runtime: the network
    /// runs there, the guests and the lease on threads of their own.
    ///
    /// # Errors
    /// Whatever keeps it from serving, each with what to do.
    pub async fn start(config: Config) -> Result<Self, NodeError> {
        let mut node = Self::launch(config).await?;
        match node.wait_until_ready().await {
            Ok(()) => Ok(node),
            Err(error) => {
                node.stop(Duration::from_secs(1)).await;
                Err(error)
            }
        }
    }

    /// The second half of [`Node::start`]: waits until the node knows an owner of every shard and serves its own, and has
    /// compiled what is deployed; each for a while, and says so if it took longer.
    ///
    /// # Errors
    /// [`NodeError::NameInUse`]; what ended meanwhile.
    pub async fn wait_until_ready(&mut self) -> Result<(), NodeError> {
        if self.started_without_store {
            return Ok(());
        }
        let (view, shards) = (&self.view, self.shards);
        tokio::select! {
            () = readiness::wait_until_ready(view.clone(), &self.types, shards) => {}
            addresses = readiness::wait_for_name_conflict(&self.events, view) => {
                let node = self.summary.node.clone();
                return Err(NodeError::NameInUse { node, addresses });
            }
            error = readiness::wait_for_failure(&mut self.failed, &mut self.vital) => return Err(error),
        }
        self.summary.types = self.types.snapshot().len();
        Ok(())
    }

    /// Where it takes clients.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What it is.
    #[must_use]
    pub fn summary(&self) -> &Summary {
        &self.summary
    }

    /// Resolves when the node can serve no more. A store that stopped is no reason: the node says so to whoever asks.
    pub async fn wait_for_failure(&mut self) -> NodeError {
        readiness::wait_for_failure(&mut self.failed, &mut self.vital).await
    }

    /// Stops in good order, within about twice `grace` at the very worst: hands its shards over, or stops them where nobody
    /// takes them; says goodbye, answers what was taken, closes the network and the store.
    pub async fn stop(mut self, grace: Duration) {
        // What a store that is refused keeps from being done is not waited for.
        let refused = self.stats.store_refused.borrow().is_some();
        let grace = if refused { grace.min(REFUSED) } else { grace };
        self.leave(grace).await;
        if self.store.is_some() {
            self.outlast(grace / OTHERS).await;
        }
        // Nothing new is taken from here on, and answers come and go until the endpoint closes.
        let closing = self.gateway.close(grace / 8);
        futures::join!(closing, self.server.shut_down(grace / 4));
        let in_time = self.stop_workers(grace / 8).await;
        self.vital.shutdown().await;
        self.tasks.shutdown().await;
        let workers = std::mem::take(&mut self.workers);
        let control = self.control;
        let joined = blocking(move || {
            for (input, thread) in workers {
                drop(input);
                // One that has said so is at its end, and lets go of the store with it.
                if (in_time || thread.is_finished()) && thread.join().is_err() {
                    tracing::error!("a worker had panicked");
                }
            }
            control.stop();
        });
        if let Err(error) = joined.await {
            tracing::error!(%error, "the node did not stop in good order");
        }
    }

    /// Hands the shards over and says goodbye.
    async fn leave(&mut self, grace: Duration) {
        let left = |view: &Arc<ClusterView>| view.has_left;
        let mut refused = self.stats.store_refused.subscribe();
        self.control.send_event(Event::Leave);
        let leaving = tokio::time::timeout(grace, self.view.wait_for(left));
        tokio::select! {
            gone = leaving => match gone {
                Ok(_) => return,
                Err(_) => tracing::warn!(
                    "the shards were not handed over within {grace:?}: they stop here"
                ),
            },
            // Both a hand-over and a goodbye are rows of the store.
            Ok(_) = refused.wait_for(Option::is_some) => {
                tracing::warn!("the store is refused: nothing can be handed over, and no goodbye said");
                return self.control.send_event(Event::LeaveNow);
            }
        }
        self.control.send_event(Event::LeaveNow);
        if tokio::time::timeout(grace / 4, self.view.wait_for(left)).await.is_err() {
            tracing::warn!("the node could not say goodbye; its lease lapses by itself");
        }
    }

    /// Waits for others that leave: they cannot without the store, so where all stop together, its node is the last.
    async fn outlast(&mut self, patience: Duration) {
        let node = NodeId::from(self.summary.node.as_str());
        if self.view.borrow().has_live_peers(&node) {
            // One that was told to stop at the same moment may not have said so yet.
            tokio::time::sleep(TOGETHER).await;
        }
        let gone = |view: &Arc<ClusterView>| !view.has_leaving_peers(&node);
        if tokio::time::timeout(patience, self.view.wait_for(gone)).await.is_err() {
            tracing::warn!("other nodes still leave, and now without the store");
        }
    }

    /// Has the workers stop what they run; whether all said in time that they did.
    async fn stop_workers(&self, patience: Duration) -> bool {
        let mut stopped = Vec::new();
        for (input, _) in &self.workers {
            let (done, heard) = oneshot::channel();
            if input.send(Input::Stop(done)).is_ok() {
                stopped.push(heard);
            }
        }
        let all = futures::future::join_all(stopped);
        let in_time = tokio::time::timeout(patience, all).await.is_ok();
        if !in_time {
            tracing::warn!("some shards did not stop in time; what they ran is not lost");
        }
        in_time
    }
}

/// Runs what blocks on a thread for it.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, NodeError> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|error| NodeError::UnexpectedExit(format!("a thread of the node: {error}")))
}
