//! The control thread: it drives the node's state machine, separately from messages and guests (R8).
//!
//! Leases, rows and control messages have this dedicated thread and dedicated connections, so that no load on the
//! message path can delay a renewal. The core's machine decides. This crate turns its actions into store calls,
//! control messages to other nodes, and inputs for the workers and the gateway. In turn, reports from workers, changed
//! rows and messages from other nodes become events of the machine. A [`ControlThread`] is spawned first, since
//! connections need its runtime, and started with [`ControlDeps`] when all its dependencies exist.
//!
//! This crate also publishes the cluster's state to the rest of the node: the [`view`] of the cluster and its events,
//! and the route [`cache`], which remembers the cluster for the next start.
//!
//! Confusing at first: there are two queues. [`Input`] comes from this node and is never dropped; a
//! [`ControlInboxSender`] receives what other nodes send, is bounded, and drops messages that do not fit.

mod actions;
pub mod cache;
mod error;
mod event_loop;
mod failed_checks;
mod health;
mod inbox;
mod links;
mod loads;
mod measuring;
mod message;
mod store_calls;
pub mod view;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use ostraca_catalog::clock::ClusterClock;
use ostraca_catalog::loader::Loader;
use ostraca_catalog::{AccessRegistry, VariablesReader};
use ostraca_config::config::{Config, ControlInboxLimits};
use ostraca_core::ids::{ClusterId, NodeId, ShardId};
use ostraca_core::node::{Event, Machine};
use ostraca_core::rows::Member;
use ostraca_gateway::Gateway;
use ostraca_health::CheckRunner;
use ostraca_stats::Stats;
use ostraca_store::{ClusterStore, EntityStore, RowEvent, StoredRow};
use ostraca_store_ranges::RangedStore;
use ostraca_store_sled::SledStore;
use ostraca_workers as worker;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot, watch};

use cache::RouteCache;
pub use error::Error;
pub use inbox::ControlInboxSender;
use view::{ClusterView, EventLog};

/// How long blocking work may delay the end of the thread.
const LINGER: Duration = Duration::from_secs(1);

/// Input for the thread from its own node. It is never dropped.
pub enum Input {
    /// An event for the machine.
    Event(Event),
    /// A report from a worker.
    Report(worker::WorkerReport),
    /// A cluster-wide row that was found when all rows were listed, before the watch with that number.
    Listed(u64, StoredRow),
    /// From the thread's own watch: a row changed, or the watch with that number ended.
    Watched(u64, RowEvent),
    /// What the workers' shards have done, for their loads.
    Measured(Vec<worker::ShardFigures>),
    /// Requests the moves that a rebalance would make now: shards, each with its current and its next owner.
    Plan(oneshot::Sender<Vec<(ShardId, NodeId, NodeId)>>),
}

/// The dependencies of the thread.
pub struct ControlDeps {
    /// The node's machine, before its first action.
    pub machine: Machine,
    /// The cluster's id.
    pub cluster: ClusterId,
    /// Reads, writes and watches rows.
    pub cluster_store: Arc<dyn ClusterStore>,
    /// Reads claims back. The store is probed at an interval, to learn whether it responds.
    pub entity_store: Arc<dyn EntityStore>,
    /// The stores of the state, if there are several; set once they are connected.
    pub ranges: Arc<OnceLock<RangedStore>>,
    /// The store, if it is in this process: its witness is kept up to date.
    pub local_store: Option<Arc<SledStore>>,
    /// The workers' inputs, in the order of their indexes.
    pub workers: Vec<mpsc::UnboundedSender<worker::Input>>,
    /// Notified of routes and nodes.
    pub gateway: Arc<Gateway>,
    /// Notified of changes to the rows of types.
    pub loader: Loader,
    /// Notified of the policy and the revocations.
    pub access: AccessRegistry,
    /// Notified of the secrets and settings of types.
    pub variables: VariablesReader,
    /// Notified of each new view; `None` on the node with the store.
    pub cache: Option<RouteCache>,
    /// The node's clock.
    pub clock: Arc<ClusterClock>,
    /// The node's counters.
    pub stats: Arc<Stats>,
    /// Keeps the machine's notices for operators.
    pub events: Arc<EventLog>,
    /// Publishes each new view.
    pub view: watch::Sender<Arc<ClusterView>>,
    /// Connects to other nodes.
    pub dialer: ostraca_wire::peer::PeerDialer,
    /// Publishes the node's current incarnation to the network code.
    pub registered: Box<dyn Fn(&Member) + Send>,
    /// Checks the processes of nodes that do not renew their leases; `None`: nobody can.
    pub health_checks: Option<CheckRunner>,
    /// An error sent here ends the node.
    pub failures: mpsc::UnboundedSender<Error>,
    /// Interval of lease renewals, and of probes of the entity store.
    pub renew_interval: Duration,
    /// Derives this node's values from the cluster's settings.
    pub config: Config,
}

/// The control thread, with the runtime that it drives.
pub struct ControlThread {
    /// The runtime on which the thread's connections run.
    pub runtime: Handle,
    /// Sends inputs from this node.
    pub input: mpsc::UnboundedSender<Input>,
    /// Receives control messages from other nodes.
    pub inbox: ControlInboxSender,
    start: Option<oneshot::Sender<ControlDeps>>,
    thread: Option<std::thread::JoinHandle<()>>,
    end: Option<oneshot::Sender<()>>,
}

impl ControlThread {
    /// Starts the thread. Until [`ControlThread::start`] is called, it only drives its connections.
    ///
    /// # Errors
    /// [`Error::Thread`].
    pub fn spawn(bounds: ControlInboxLimits, stats: &Arc<Stats>) -> Result<Self, Error> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(Error::Thread)?;
        let handle = runtime.handle().clone();
        let (start, started) = oneshot::channel();
        let (end, ended) = oneshot::channel();
        let (input, inputs) = mpsc::unbounded_channel();
        let (inbox_sender, inbox_receiver) = inbox::control_inbox(bounds, stats.clone());
        let own = input.clone();
        let work = async move {
            let running = async {
                if let Ok(parts) = started.await {
                    event_loop::run(parts, own, inputs, inbox_receiver).await;
                }
                std::future::pending::<()>().await;
            };
            tokio::select! {
                // The thread ends when it is stopped, or when its handle is dropped.
                _ = ended => {}
                () = running => {}
            }
        };
        let thread = std::thread::Builder::new()
            .name("ostraca-control".into())
            .spawn(move || {
                runtime.block_on(work);
                // A name lookup may block a thread for a long time; do not wait for it.
                runtime.shutdown_timeout(LINGER);
            })
            .map_err(Error::Thread)?;
        let (start, thread, end) = (Some(start), Some(thread), Some(end));
        Ok(Self { runtime: handle, input, inbox: inbox_sender, start, thread, end })
    }

    /// Starts the machine. Later calls do nothing.
    pub fn start(&mut self, parts: ControlDeps) {
        if let Some(start) = self.start.take() {
            // If the thread has ended, it has reported the reason.
            let _ = start.send(parts);
        }
    }

    /// Passes an event to the machine.
    pub fn send_event(&self, event: Event) {
        // If the thread has ended, it has reported the reason.
        let _ = self.input.send(Input::Event(event));
    }

    /// Ends the thread, and its connections with it.
    pub fn stop(mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the control thread panicked");
        }
    }
}
