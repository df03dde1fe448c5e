//! The control thread: it drives the node's state machine, apart from messages and guests (R8).
//!
//! Leases, rows and control messages have this thread and connections of their own, so that no load on the
//! message path can delay a renewal. The machine decides. This module turns its actions into store calls,
//! control messages to other nodes, and inputs of workers and gateway.

mod actions;
mod event_loop;
mod inbox;
mod links;
mod message;
mod store_calls;

use std::sync::Arc;
use std::time::Duration;

use ostraca_catalog::clock::ClusterClock;
use ostraca_catalog::loader::Loader;
use ostraca_config::config::{Config, ControlInboxLimits};
use ostraca_core::ids::{ClusterId, NodeId, ShardId};
use ostraca_core::node::{Event, Machine};
use ostraca_core::rows::Member;
use ostraca_gateway::Gateway;
use ostraca_stats::Stats;
use ostraca_store::{ClusterStore, EntityStore, RowEvent};
use ostraca_store_sled::SledStore;
use ostraca_workers as worker;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot, watch};

use crate::cache::RouteCache;
use crate::error::NodeError;
use crate::view::{ClusterView, EventLog};
pub(crate) use inbox::ControlInboxSender;
pub(crate) use message::decode as decode_control_message;

/// How long blocking work may delay the thread's end.
const LINGER: Duration = Duration::from_secs(1);

/// Input of the thread from its own node. None of it is ever dropped.
pub(crate) enum Input {
    /// An event for the machine.
    Event(Event),
    /// A report of a worker.
    Report(worker::WorkerReport),
    /// A row changed, or the watch of that number ended.
    Watched(u64, RowEvent),
    /// Asks which moves a rebalance would make now.
    Plan(oneshot::Sender<Vec<(ShardId, NodeId, NodeId)>>),
}

/// What the thread works with.
pub(crate) struct ControlDeps {
    pub(crate) machine: Machine,
    pub(crate) cluster: ClusterId,
    pub(crate) cluster_store: Arc<dyn ClusterStore>,
    pub(crate) entity_store: Arc<dyn EntityStore>,
    /// The store, if it is in this process: its witness is kept up to date.
    pub(crate) local_store: Option<Arc<SledStore>>,
    pub(crate) workers: Vec<mpsc::UnboundedSender<worker::Input>>,
    pub(crate) gateway: Arc<Gateway>,
    pub(crate) loader: Loader,
    pub(crate) cache: Option<RouteCache>,
    pub(crate) clock: Arc<ClusterClock>,
    pub(crate) stats: Arc<Stats>,
    pub(crate) events: Arc<EventLog>,
    pub(crate) view: watch::Sender<Arc<ClusterView>>,
    pub(crate) dialer: ostraca_wire::peer::PeerDialer,
    /// Tells the network side the node's current incarnation.
    pub(crate) registered: Box<dyn Fn(&Member) + Send>,
    /// An error sent here ends the node.
    pub(crate) failures: mpsc::UnboundedSender<NodeError>,
    /// Interval of lease renewals, and of probes of the entity store.
    pub(crate) renew_interval: Duration,
    /// Derives this node's values from the cluster's settings.
    pub(crate) config: Config,
}

/// The control thread, with the runtime that it drives.
pub(crate) struct ControlThread {
    pub(crate) runtime: Handle,
    pub(crate) input: mpsc::UnboundedSender<Input>,
    /// Where control messages of other nodes go.
    pub(crate) inbox: ControlInboxSender,
    start: Option<oneshot::Sender<ControlDeps>>,
    thread: Option<std::thread::JoinHandle<()>>,
    end: Option<oneshot::Sender<()>>,
}

impl ControlThread {
    /// Starts the thread. Until [`ControlThread::start`] it only drives its connections.
    pub(crate) fn spawn(bounds: ControlInboxLimits, stats: &Arc<Stats>) -> Result<Self, NodeError> {
        let failed = |source| NodeError::Thread { name: "ostraca-control".into(), source };
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let handle = runtime.handle().clone();
        let (start, started) = oneshot::channel();
        let (end, ended) = oneshot::channel();
        let (input, inputs) = mpsc::unbounded_channel();
        let (words, heard) = inbox::control_inbox(bounds, stats.clone());
        let own = input.clone();
        let work = async move {
            let running = async {
                if let Ok(parts) = started.await {
                    event_loop::run(parts, own, inputs, heard).await;
                }
                std::future::pending::<()>().await;
            };
            tokio::select! {
                // It ends whether it is told to or its handle is dropped.
                _ = ended => {}
                () = running => {}
            }
        };
        let thread = std::thread::Builder::new()
            .name("ostraca-control".into())
            .spawn(move || {
                runtime.block_on(work);
                // A name lookup may block a thread for long; it is not waited for.
                runtime.shutdown_timeout(LINGER);
            })
            .map_err(failed)?;
        let (start, thread, end) = (Some(start), Some(thread), Some(end));
        Ok(Self { runtime: handle, input, inbox: words, start, thread, end })
    }

    pub(crate) fn start(&mut self, parts: ControlDeps) {
        if let Some(start) = self.start.take() {
            // If the thread has ended, it has reported the reason.
            let _ = start.send(parts);
        }
    }

    pub(crate) fn send_event(&self, event: Event) {
        // If the thread has ended, it has reported the reason.
        let _ = self.input.send(Input::Event(event));
    }

    /// Ends the thread, and its connections with it.
    pub(crate) fn stop(mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the control thread had panicked");
        }
    }
}
