//! What operators ask of a node: answered from its picture of the cluster, and from the store.

mod agreed;
mod compiled;
mod entities;
mod events;
mod forget;
mod moves;
mod rows;

use std::sync::Arc;

use ostraca_core::ids::ShardId;
use ostraca_store::{EntityStore, StoreError};
use ostraca_wire::proto::Problem;
use ostraca_wire::server::{AdminOperation, AdminOutput};
use tokio::sync::{mpsc, oneshot, watch};

use crate::control;
use crate::deploy::Deployer;
use crate::gateway::Gateway;
use crate::input::nearest;
use crate::service::problem;
use crate::status::Status;
use crate::view::{Events, View};

/// What answers.
pub(crate) struct Desk {
    pub(crate) deployer: Deployer,
    pub(crate) status: Status,
    pub(crate) store: Arc<dyn EntityStore>,
    pub(crate) view: watch::Receiver<Arc<View>>,
    pub(crate) events: Arc<Events>,
    pub(crate) control: mpsc::UnboundedSender<control::Input>,
    pub(crate) shards: u32,
    /// How long a deploy waits for the live hosts (`guests.deploy-wait`).
    pub(crate) deploy_wait: std::time::Duration,
}

impl Desk {
    pub(crate) async fn answer(
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

    fn seen(&self) -> Arc<View> {
        self.view.borrow().clone()
    }

    fn tell(&self, event: ostraca_core::node::Event) {
        // A control thread that has ended ends the node.
        let _ = self.control.send(control::Input::Event(event));
    }
}

fn unknown_node(view: &View, node: &str) -> Problem {
    let near = nearest(node, view.nodes.keys().map(|known| &*known.0));
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
