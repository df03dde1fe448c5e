//! Requests between nodes on behalf of operators, for in-memory state that only a shard's owner knows.
//!
//! There is one request and one response, on a stream separate from the messages. A node answers from its own workers
//! only, so a request makes at most one hop.

use std::time::Duration;

use futures::future::try_join_all;
use ostraca_core::ids::{Entity, ShardId};
use ostraca_core::rows::Member;
use ostraca_stats::LastFailure;
use ostraca_wire::peer::inspect;
use ostraca_wire::proto;
use ostraca_wire::proto::{
    InspectEntity, InspectShard, InspectedEntity, InspectedShard, InspectedType, NodeIssue,
    PeerInspectRequest, PeerInspectResponse,
};
use ostraca_workers::{EntityInspection, Input, ShardInspection, worker_of};
use tokio::sync::{mpsc, oneshot};

use super::{MessageLinks, lock};
use crate::Gateway;

/// Timeout of an inspect request.
const INSPECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Shards, and entities of each.
pub type InspectTargets = Vec<(ShardId, Vec<Entity>)>;

impl Gateway {
    /// Inspects what a node, possibly this one, has in memory. Returns one result for each shard, in the same
    /// order.
    ///
    /// # Errors
    /// If the node does not respond in time, is stopping, or is unreachable.
    pub async fn inspect(
        &self,
        at: &Member,
        question: InspectTargets,
    ) -> Result<Vec<ShardInspection>, NodeIssue> {
        let requests = async {
            match at.node == self.links.local_node {
                true => self.inspect_local(question).await.ok_or_else(|| "it stops".to_owned()),
                false => self.links.inspect(at, question).await,
            }
        };
        let answer = tokio::time::timeout(INSPECT_TIMEOUT, requests).await;
        let answer =
            answer.unwrap_or_else(|_| Err(format!("no response within {INSPECT_TIMEOUT:?}")));
        answer.map_err(|why| NodeIssue { node: at.node.to_string(), reason: why })
    }

    /// What this node has in memory; `None` if a worker has ended.
    async fn inspect_local(&self, question: InspectTargets) -> Option<Vec<ShardInspection>> {
        let ask = |(shard, entities)| {
            let worker = self.workers.get(worker_of(shard, self.workers.len()));
            let inspection = worker.map(|worker| send_inspect(worker, shard, entities));
            async move {
                match inspection {
                    Some(received) => received.await.map_err(drop),
                    // This node runs no entities.
                    None => Ok(ShardInspection::default()),
                }
            }
        };
        try_join_all(question.into_iter().map(ask)).await.ok()
    }

    /// A node's progress with a type: the revision that it runs, and the one that it cannot run. The node may be this
    /// one.
    ///
    /// # Errors
    /// If the node does not respond in time, is stopping, or is unreachable.
    pub async fn inspect_type(&self, at: &Member, name: &str) -> Result<InspectedType, NodeIssue> {
        if at.node == self.links.local_node {
            return Ok(self.inspect_type_local(name));
        }
        let request = PeerInspectRequest { shards: Vec::new(), types: vec![name.to_owned()] };
        let answer = tokio::time::timeout(INSPECT_TIMEOUT, self.links.ask(at, &request)).await;
        let answer =
            answer.unwrap_or_else(|_| Err(format!("no response within {INSPECT_TIMEOUT:?}")));
        let of_type =
            |response: PeerInspectResponse| response.types.into_iter().next().unwrap_or_default();
        answer.map(of_type).map_err(|why| NodeIssue { node: at.node.to_string(), reason: why })
    }

    fn inspect_type_local(&self, name: &str) -> InspectedType {
        let (revision, broken) = self.types.progress(name);
        let (broken_revision, broken) = broken.unwrap_or_default();
        InspectedType {
            revision,
            failed_revision: broken_revision,
            failure_reason: broken.to_string(),
        }
    }

    /// Handles another node's inspect request; `None` if this node is stopping.
    pub async fn handle_inspect(&self, request: PeerInspectRequest) -> Option<PeerInspectResponse> {
        let question = request.shards.into_iter().map(|of| {
            let entities = of.entities.into_iter();
            (ShardId(of.shard), entities.map(|it| Entity::new(it.r#type, it.id)).collect())
        });
        let types = request.types.iter().map(|name| self.inspect_type_local(name)).collect();
        let seen = self.inspect_local(question.collect()).await?;
        let shards = seen.into_iter().map(|shard| InspectedShard {
            held: shard.held,
            entities: shard
                .entities
                .into_iter()
                .map(|it| InspectedEntity {
                    active: it.active,
                    mailbox_length: it.mailbox_length as u64,
                    last_failure: it.last_failure.map(failure_to_wire),
                    activity: it.activity,
                })
                .collect(),
        });
        Some(PeerInspectResponse { shards: shards.collect(), types })
    }
}

fn send_inspect(
    worker: &mpsc::UnboundedSender<Input>,
    shard: ShardId,
    entities: Vec<Entity>,
) -> oneshot::Receiver<ShardInspection> {
    let (answer, received) = oneshot::channel();
    // If the worker has ended, it drops the sender.
    let _ = worker.send(Input::Inspect { shard, entities, answer });
    received
}

impl MessageLinks {
    /// Requests the inspection from another node, over the established link to it.
    async fn inspect(
        &self,
        to: &Member,
        question: InspectTargets,
    ) -> Result<Vec<ShardInspection>, String> {
        let shards = question.into_iter().map(|(shard, entities)| InspectShard {
            shard: shard.0,
            entities: entities
                .iter()
                .map(|it| InspectEntity {
                    r#type: it.entity_type.to_string(),
                    id: it.id.to_string(),
                })
                .collect(),
        });
        let request = PeerInspectRequest { shards: shards.collect(), types: Vec::new() };
        Ok(self.ask(to, &request).await?.shards.into_iter().map(inspected).collect())
    }

    async fn ask(
        &self,
        to: &Member,
        request: &PeerInspectRequest,
    ) -> Result<PeerInspectResponse, String> {
        let peer = {
            let routes = self.routes.read().unwrap_or_else(std::sync::PoisonError::into_inner);
            let route = routes.get(&to.node).filter(|route| route.member == *to);
            route.and_then(|route| lock(&route.state.link).as_ref().map(|up| up.peer.clone()))
        };
        let peer =
            peer.ok_or_else(|| format!("{} has no connection to this node", self.local_node))?;
        inspect::request(&peer, request).await.map_err(|error| error.to_string())
    }
}

/// Converts an entity's last failure to its protobuf form, for other nodes and for operators.
#[must_use]
pub fn failure_to_wire(failure: LastFailure) -> proto::LastFailure {
    let LastFailure { code, message, wall_ms: unix_ms, consecutive_failures } = failure;
    proto::LastFailure { code, message, unix_ms, consecutive_failures }
}

fn inspected(shard: InspectedShard) -> ShardInspection {
    let entities = shard.entities.into_iter().map(|it| EntityInspection {
        active: it.active,
        mailbox_length: usize::try_from(it.mailbox_length).unwrap_or(usize::MAX),
        last_failure: it.last_failure.map(|it| LastFailure {
            code: it.code,
            message: it.message,
            wall_ms: it.unix_ms,
            consecutive_failures: it.consecutive_failures,
        }),
        activity: it.activity,
    });
    ShardInspection { held: shard.held, entities: entities.collect() }
}
