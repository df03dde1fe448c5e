//! //! Requests of operators, answered from this node's view of the cluster and from the store.

mod cluster;
mod deploy_wait;
mod entities;
mod events;
mod forget;
mod listing;
mod rebalance;

use std::sync::Arc;

use ostraca_config::user_file::closest_name;
use ostraca_control as control;
use ostraca_control::view::{ClusterView, EventLog};
use ostraca_core::ids::ShardId;
use ostraca_gateway::Gateway;
use ostraca_store::{EntityStore, StoreError};
use ostraca_wire::outcome::permanent_problem as problem;
use ostraca_wire::proto::Problem;
use ostraca_wire::server::{AdminOperation, AdminOutput};
use tokio::sync::{mpsc, oneshot, watch};

use crate::deploy::Deployer;
use crate::status::StatusReporter;

/// Handles operators' requests.
pub(crate) struct AdminService {
    pub(crate) deployer: Deployer,
    pub(crate) status: StatusReporter,
    pub(crate) entity_store: Arc<dyn EntityStore>,
    pub(crate) view: watch::Receiver<Arc<ClusterView>>,
    pub(crate) events: Arc<EventLog>,
    pub(crate) control: mpsc::UnboundedSender<control::Input>,
    pub(crate) shard_count: u32,
    /// How long a deploy waits for the live hosts (`guests.deploy-wait-timeout`).
    pub(crate) deploy_wait_timeout: std::time::Duration,
}

impl AdminService {
    pub(crate) async fn handle_request(
        &self,
        gateway: &Arc<Gateway>,
        principal: &str,
        request: AdminOperation,
    ) -> Result<AdminOutput, Problem> {
        match request {
            AdminOperation::Status => Ok(AdminOutput::Status(Box::new(self.status.now(gateway)))),
            AdminOperation::Nodes => Ok(AdminOutput::Nodes(self.nodes(gateway))),
            AdminOperation::Shards => Ok(AdminOutput::Shards(self.shards())),
            AdminOperation::Entities(request) => self.entities(gateway, request).await,
            AdminOperation::Inspect(request) => self.inspect(gateway, principal, request).await,
            AdminOperation::Drain { node, undo } => self.drain(&node, undo),
            AdminOperation::Forget { node } => self.forget(&node).await,
            AdminOperation::Cluster(request) => self.cluster(request).await,
            AdminOperation::RebalancePlan => self.plan().await,
            AdminOperation::Rebalance => self.rebalance().await,
            AdminOperation::Events(request) => Ok(self.events(request)),
            _ => Err(problem("unknown-request", "this node does not know that request", "")),
        }
    }

    fn current_view(&self) -> Arc<ClusterView> {
        self.view.borrow().clone()
    }

    fn send_event(&self, event: ostraca_core::node::Event) {
        // If the control thread has ended, the node is ending too.
        let _ = self.control.send(control::Input::Event(event));
    }
}

fn unknown_node(view: &ClusterView, node: &str) -> Problem {
    let near = closest_name(node, view.nodes.keys().map(|known| &*known.0));
    let help = match near {
        Some(near) => format!("did you mean `{near}`?"),
        None => "`ostraca nodes` lists them".into(),
    };
    problem("unknown-node", format!("the cluster has no node `{node}`"), &help)
}

fn store_failed(error: &StoreError) -> Problem {
    let mut failed = problem(
        "store-unavailable",
        error.to_string(),
        "`ostraca status` says where the store is, and what to do",
    );
    failed.retryable = true;
    failed
}
