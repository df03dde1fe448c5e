//! The node's workers, one thread each, and what they share.

use std::sync::{Arc, OnceLock};

use ostraca_control::{self as control, ControlThread};
use ostraca_gateway::Gateway;
use ostraca_stats::WorkerGauges;
use ostraca_workers::{
    EntityMessage, Input, ReplySink, ReportSink, TurnQuotas, WorkerDeps, WorkerReply, WorkerThread,
};
use tokio::sync::mpsc;

use super::builder::NodeBuilder;
use super::store_access::StoreHandles;
use crate::error::NodeError;

/// All workers of a node.
pub(super) struct Workers {
    pub(super) threads: Vec<WorkerThread>,
    pub(super) gauges: Vec<Arc<WorkerGauges>>,
    pub(super) turn_quotas: TurnQuotas,
    gateway: Arc<DeferredGateway>,
}

impl Workers {
    /// Starts the workers (none on a node that hosts no pool). They share `total_instances` instances, and
    /// report to the control thread.
    pub(super) fn start(
        basis: &NodeBuilder,
        stores: &StoreHandles,
        control: &ControlThread,
        total_instances: usize,
    ) -> Result<Self, NodeError> {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let settings = basis.config.worker_settings(processors, total_instances);
        let answerer = Arc::new(DeferredGateway::default());
        let control = control.input.clone();
        let reports: ReportSink = Arc::new(move |report| {
            // The receiver is dropped only when the node is stopping.
            let _ = control.send(control::Input::Report(report));
        });
        let (mut threads, mut gauges) = (Vec::new(), Vec::new());
        let turn_quotas = TurnQuotas::default();
        for index in 0..settings.count {
            let gauge = Arc::new(WorkerGauges::default());
            gauges.push(gauge.clone());
            threads.push(ostraca_workers::spawn(WorkerDeps {
                index,
                settings: settings.shard.clone(),
                instance_limits: settings.instance_limits,
                pool_instance_limits: settings.pool_instance_limits.clone(),
                clock: basis.clock.clone(),
                random_key: basis.random_key.clone(),
                entity_store: stores.entity_store.clone(),
                stats: basis.stats.clone(),
                tracer: basis.tracer.clone(),
                turn_quotas: turn_quotas.clone(),
                gauges: gauge,
                recording_dir: settings.recording_dir.clone(),
                reports: reports.clone(),
                replies: answerer.clone(),
            })?);
        }
        Ok(Self { threads, gauges, turn_quotas, gateway: answerer })
    }

    /// The workers' inputs.
    pub(super) fn inputs(&self) -> Vec<mpsc::UnboundedSender<Input>> {
        self.threads.iter().map(|worker| worker.input.clone()).collect()
    }

    /// Sets the gateway, which receives the workers' replies and messages: the workers are created before it.
    pub(super) fn set_gateway(&self, gateway: &Arc<Gateway>) {
        // Cannot fail: it is set once, during the start.
        let _ = self.gateway.0.set(gateway.clone());
    }
}

/// Stands in for the gateway in workers, which are created before it.
#[derive(Default)]
struct DeferredGateway(OnceLock<Arc<Gateway>>);

impl ReplySink for DeferredGateway {
    fn deliver_replies(&self, replies: &mut Vec<WorkerReply>) {
        if let Some(gateway) = self.0.get() {
            gateway.deliver_replies(replies);
        }
    }

    fn send_messages(&self, messages: &mut Vec<EntityMessage>) {
        // Until the gateway is set, the messages remain in the list.
        if let Some(gateway) = self.0.get() {
            gateway.send_messages(messages);
        }
    }
}
