//! Removes a permanently lost node from the list of problems.
//!
//! The node's row is kept, since the next incarnation of that name must be higher than any before (R7). Its status
//! becomes that of a node that left. Only an incarnation that was marked dead can be forgotten: its shards may
//! already have other owners. If the node's process is still running, it finds that its incarnation has ended and
//! registers a new one.

use std::sync::Arc;
use std::time::Duration;

use ostraca_catalog::rows;
use ostraca_codes::codes;
use ostraca_control::view::ClusterView;
use ostraca_core::ids::NodeId;
use ostraca_core::rows::{NodeRow, NodeStatus, Row, RowKey};
use ostraca_store::{CompareAndSet, CompareAndSetError};
use ostraca_wire::outcome::permanent_problem as problem;
use ostraca_wire::proto::{ForgetResult, Problem};
use ostraca_wire::server::AdminOutput;

use super::{AdminService, store_failed, unknown_node};

/// Maximum attempts when the row changes concurrently.
const ATTEMPTS: usize = 8;
/// How long to wait until this node's own view shows the write.
const VIEW_TIMEOUT: Duration = Duration::from_secs(2);

impl AdminService {
    pub(super) async fn forget(&self, node: &str) -> Result<AdminOutput, Problem> {
        let name = NodeId::from(node);
        let key = rows::key_text(&RowKey::Node(name.clone()));
        let answer = |unchanged| {
            let node = node.to_owned();
            Ok(AdminOutput::Forgotten(ForgetResult { node, unchanged }))
        };
        let store = &self.deployer.cluster_store;
        for _ in 0..ATTEMPTS {
            let stored = store.get(&key).await.map_err(|error| store_failed(&error))?;
            let Some(stored) = stored else { return Err(unknown_node(&self.current_view(), node)) };
            let row = match rows::decode_row(&stored) {
                Ok(Some((_, Row::Node(row), _))) => row,
                Ok(_) => return Err(unknown_node(&self.current_view(), node)),
                Err(error) => return Err(problem(error.code(), error.to_string(), "")),
            };
            match row.status {
                NodeStatus::Left if !row.draining => {
                    self.forget_certificate(node).await?;
                    return answer(true);
                }
                NodeStatus::Live => return Err(node_live_problem(node)),
                NodeStatus::Dead | NodeStatus::Left => {}
            }
            let incarnation = row.incarnation;
            let row = Row::Node(NodeRow { status: NodeStatus::Left, draining: false, ..row });
            let value = rows::encode_row(&row)
                .map_err(|error| problem(error.code(), error.to_string(), ""))?;
            let cas = CompareAndSet {
                key: key.clone(),
                expected: Some(stored.revision),
                value: Some(value),
            };
            match store.compare_and_set(cas).await {
                Ok(_) => {}
                // The node registered again, or another request forgot it.
                Err(CompareAndSetError::RevisionMismatch(_)) => continue,
                Err(CompareAndSetError::Store(error)) => return Err(store_failed(&error)),
            }
            tracing::info!(node, "forgotten");
            // If the node comes back, it says again what it presents.
            self.forget_certificate(node).await?;
            // The next request that this node handles must see the other node as forgotten.
            let dead = |view: &Arc<ClusterView>| {
                view.nodes.get(&name).is_some_and(|row| {
                    row.incarnation == incarnation && row.status == NodeStatus::Dead
                })
            };
            let mut views = self.view.clone();
            // The write has succeeded either way.
            let _ = tokio::time::timeout(VIEW_TIMEOUT, views.wait_for(|view| !dead(view))).await;
            return answer(false);
        }
        let text = format!("the row of node `{node}` keeps changing");
        Err(Problem { retryable: true, ..problem(codes::ROW_CONFLICT, text, "try again") })
    }
}

fn node_live_problem(node: &str) -> Problem {
    let text = format!("node `{node}` is live: only a dead node can be forgotten");
    let help =
        "stop it gracefully first, with SIGTERM; the manager marks a dead node within seconds";
    problem(codes::NODE_LIVE, text, help)
}
