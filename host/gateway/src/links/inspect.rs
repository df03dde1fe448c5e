//! Requests between nodes on behalf of operators, for in-memory state that only a shard's owner knows.
//!
//! There is one request and one response, on a stream separate from the messages. A node answers from its own workers
//! only, so a request makes at most one hop.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::future::try_join_all;
use ostraca_core::ids::{Entity, ShardId};
use ostraca_core::rows::Member;
use ostraca_core::shard::StoredEntities;
use ostraca_stats::LastFailure;
use ostraca_wire::peer::inspect;
use ostraca_wire::proto;
use ostraca_wire::proto::{
    InspectEntity, InspectShard, InspectedEntity, InspectedShard, InspectedType, LiveEntities,
    NodeFigures, NodeIssue, PeerInspectRequest, PeerInspectResponse, RebalancePlan,
};
use ostraca_workers::{EntityInspection, Input, ShardFigures, ShardInspection, worker_of};
use tokio::sync::{mpsc, oneshot};

use super::{MessageLinks, lock};
use crate::Gateway;
use crate::usage::NodeUsage;

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
        self.ask_about_type(at, name, false).await
    }

    /// Like [`Gateway::inspect_type`], with the number of the type's live entities on the node.
    ///
    /// # Errors
    /// The same.
    pub async fn count_live(&self, at: &Member, name: &str) -> Result<InspectedType, NodeIssue> {
        self.ask_about_type(at, name, true).await
    }

    async fn ask_about_type(
        &self,
        at: &Member,
        name: &str,
        count_live: bool,
    ) -> Result<InspectedType, NodeIssue> {
        if at.node == self.links.local_node {
            let local = self.inspect_type_local(name, count_live).await;
            let node = at.node.to_string();
            return local.ok_or_else(|| NodeIssue { node, reason: "it stops".into() });
        }
        let types = vec![name.to_owned()];
        let request = PeerInspectRequest { types, count_live, ..PeerInspectRequest::default() };
        let response = self.ask(at, &request).await?;
        Ok(response.types.into_iter().next().unwrap_or_default())
    }

    /// What a node has done since it started. The node may be this one.
    ///
    /// # Errors
    /// If the node does not respond in time, is starting or stopping, is unreachable, or is of an earlier release.
    pub async fn figures(&self, at: &Member) -> Result<NodeFigures, NodeIssue> {
        let figures = match at.node == self.links.local_node {
            true => self.own_figures.get().and_then(|figures| figures()),
            false => {
                let request = PeerInspectRequest { figures: true, ..PeerInspectRequest::default() };
                self.ask(at, &request).await?.figures
            }
        };
        figures.ok_or_else(|| NodeIssue {
            node: at.node.to_string(),
            reason: "it is starting or stopping, or does not support this request".into(),
        })
    }

    /// The moves that a rebalance would make now, from another node that is the manager.
    ///
    /// # Errors
    /// If the node does not respond in time, is unreachable, is not the manager any more, or is of an earlier release.
    pub async fn rebalance_plan(&self, manager: &Member) -> Result<RebalancePlan, NodeIssue> {
        let request = PeerInspectRequest { rebalance_plan: true, ..PeerInspectRequest::default() };
        let plan = self.ask(manager, &request).await?.rebalance_plan;
        plan.ok_or_else(|| NodeIssue {
            node: manager.node.to_string(),
            reason: "it is not the manager, or does not support this request".into(),
        })
    }

    /// What the shards of a node have done. The node may be this one.
    ///
    /// # Errors
    /// If the node does not respond in time, is stopping, or is unreachable.
    pub async fn shard_figures(&self, at: &Member) -> Result<Vec<proto::ShardFigures>, NodeIssue> {
        if at.node == self.links.local_node {
            let node = at.node.to_string();
            let local = tokio::time::timeout(INSPECT_TIMEOUT, self.shard_figures_local()).await;
            let reason = match local {
                Ok(Some(figures)) => return Ok(figures),
                Ok(None) => "it stops".into(),
                Err(_) => format!("no response within {INSPECT_TIMEOUT:?}"),
            };
            return Err(NodeIssue { node, reason });
        }
        let request = PeerInspectRequest { shard_figures: true, ..PeerInspectRequest::default() };
        Ok(self.ask(at, &request).await?.shard_figures)
    }

    /// `None` if a worker has ended.
    async fn shard_figures_local(&self) -> Option<Vec<proto::ShardFigures>> {
        let ask = |worker: &mpsc::UnboundedSender<Input>| {
            let (answer, received) = oneshot::channel();
            // If the worker has ended, it drops the sender.
            let _ = worker.send(Input::MeasureShards { count_stored: true, answer });
            received
        };
        let all = try_join_all(self.workers.iter().map(ask)).await.ok()?;
        Some(all.into_iter().flatten().map(figures_to_wire).collect())
    }

    /// Sends a request to another node.
    pub(crate) async fn ask(
        &self,
        at: &Member,
        request: &PeerInspectRequest,
    ) -> Result<PeerInspectResponse, NodeIssue> {
        let answer = tokio::time::timeout(INSPECT_TIMEOUT, self.links.ask(at, request)).await;
        let answer =
            answer.unwrap_or_else(|_| Err(format!("no response within {INSPECT_TIMEOUT:?}")));
        answer.map_err(|reason| NodeIssue { node: at.node.to_string(), reason })
    }

    /// `None` if a worker has ended.
    async fn inspect_type_local(&self, name: &str, count_live: bool) -> Option<InspectedType> {
        let live = if count_live { self.count_live_local(name).await? } else { Vec::new() };
        let (revision, broken) = self.types.progress(name);
        let (broken_revision, broken) = broken.unwrap_or_default();
        Some(InspectedType {
            revision,
            failed_revision: broken_revision,
            failure_reason: broken.to_string(),
            live,
        })
    }

    async fn count_live_local(&self, name: &str) -> Option<Vec<LiveEntities>> {
        let entity_type: Arc<str> = name.into();
        let ask = |worker: &mpsc::UnboundedSender<Input>| {
            let (answer, received) = oneshot::channel();
            // If the worker has ended, it drops the sender.
            let _ = worker.send(Input::CountLive { entity_type: entity_type.clone(), answer });
            received
        };
        let mut total = BTreeMap::<u64, u64>::new();
        for counts in try_join_all(self.workers.iter().map(ask)).await.ok()? {
            for (revision, count) in counts {
                *total.entry(revision).or_default() += count;
            }
        }
        let live = total.into_iter().map(|(revision, count)| LiveEntities { revision, count });
        Some(live.collect())
    }

    /// Handles another node's inspect request; `None` if this node is stopping.
    pub async fn handle_inspect(&self, request: PeerInspectRequest) -> Option<PeerInspectResponse> {
        let question = request.shards.into_iter().map(|of| {
            let entities = of.entities.into_iter();
            (ShardId(of.shard), entities.map(|it| Entity::new(it.r#type, it.id)).collect())
        });
        let (count_live, figures) = (request.count_live, request.figures);
        let ask = async |name| self.inspect_type_local(name, count_live).await;
        let mut types = Vec::new();
        for name in &request.types {
            types.push(ask(name).await?);
        }
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
                    running_revision: it.running_revision,
                    failed_migration: it.failed_migration.map(migration_to_wire),
                    activity: it.activity,
                })
                .collect(),
        });
        let figures = self.own_figures.get().filter(|_| figures).and_then(|figures| figures());
        let shard_figures = match request.shard_figures {
            true => self.shard_figures_local().await?,
            false => Vec::new(),
        };
        let rebalance_plan = match self.own_plan.get().filter(|_| request.rebalance_plan) {
            Some(plan) => plan().await,
            None => None,
        };
        let usage = match request.namespace_usage {
            true => self.usage.own(),
            false => NodeUsage::default(),
        };
        Some(PeerInspectResponse {
            shards: shards.collect(),
            types,
            figures,
            shard_figures,
            rebalance_plan,
            namespace_usage: usage.namespaces,
            counted_shards: usage.counted_shards,
        })
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
        let request =
            PeerInspectRequest { shards: shards.collect(), ..PeerInspectRequest::default() };
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

/// Converts a failed migration: the revision to which an entity was to be migrated, and why it failed.
#[must_use]
pub fn migration_to_wire((revision, reason): (u64, Arc<str>)) -> proto::FailedMigration {
    proto::FailedMigration { revision, reason: reason.to_string() }
}

fn figures_to_wire(figures: ShardFigures) -> proto::ShardFigures {
    proto::ShardFigures {
        shard: figures.shard.0,
        epoch: figures.epoch.0,
        owner: String::new(),
        serving: figures.serving,
        turns: figures.turns,
        committed_bytes: figures.committed_bytes,
        memory_bytes: figures.memory_bytes,
        queued: figures.queued,
        live: figures.live.into_iter().map(|(name, count)| (name.to_string(), count)).collect(),
        stored_is_counted: figures.stored.is_some(),
        stored: figures
            .stored
            .into_iter()
            .flatten()
            .map(|(name, stored)| {
                let StoredEntities { entities, state_bytes } = stored;
                (name.to_string(), proto::StoredEntities { entities, state_bytes })
            })
            .collect(),
    }
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
        running_revision: it.running_revision,
        failed_migration: it.failed_migration.map(|it| (it.revision, it.reason.into())),
        activity: it.activity,
    });
    ShardInspection { held: shard.held, entities: entities.collect() }
}
