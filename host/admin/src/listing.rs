//! Lists nodes, shards, deployments and methods.

use std::collections::BTreeMap;

use futures::future::join_all;
use ostraca_catalog::clock::wall_millis;
use ostraca_catalog::revisions::EarlierEntry;
use ostraca_catalog::types::{DeployedType, TypeTable};
use ostraca_codes::codes;
use ostraca_core::ids::ShardId;
use ostraca_core::names;
use ostraca_core::pools::{HOST_ROLE, HOST_ROLE_PREFIX, Pools};
use ostraca_core::rows::{Member, NodeRow, NodeStatus};
use ostraca_gateway::Gateway;
use ostraca_wire::outcome::{permanent_problem as problem, wire_kind};
use ostraca_wire::proto::{
    self, LiveEntities, NodeState, Nodes, Problem, ShardInfo, ShardState, ShardsRequest,
};
use ostraca_wire::server::AdminOutput;

use super::{AdminService, wire_rollout};

impl AdminService {
    pub(super) fn nodes(&self, gateway: &Gateway) -> Nodes {
        let view = self.current_view();
        let (now, wall) = (gateway.clock.now().cluster_time, wall_millis());
        let reached = gateway.connected_nodes();
        let own = view.member.as_ref().map(|member| member.node.clone());
        let nodes = view.nodes.iter().map(|(node, row)| {
            let owned = |shard: &&ostraca_core::rows::Assignment| {
                shard.owner.as_ref().is_some_and(|owner| {
                    owner.node == *node && owner.incarnation == row.incarnation
                })
            };
            let answering = own.as_ref() == Some(node);
            let member = Member { node: node.clone(), incarnation: row.incarnation };
            let (unanswered_keep_alives, unreachable) =
                view.unanswered_keep_alives.get(&member).copied().unwrap_or_default();
            NodeState {
                name: node.to_string(),
                incarnation: row.incarnation.to_string(),
                roles: row.role_names(),
                addresses: row.addresses.clone(),
                status: node_status(row).into(),
                version: version(row.version),
                registered_for_ms: row.registered_unix_ms().map_or_else(
                    || now.saturating_sub(row.registered_at),
                    |registered| wall.saturating_sub(registered),
                ),
                registered_at_unix_ms: row.registered_unix_ms().unwrap_or(0),
                renewals: row.renewals,
                store_available: row.store_available,
                shards: u32::try_from(view.shards.iter().filter(owned).count()).unwrap_or(u32::MAX),
                is_self: answering,
                reachable: (!answering && row.status == NodeStatus::Live)
                    .then(|| reached.contains(node)),
                unanswered_keep_alives,
                unreachable,
            }
        });
        let manager = view.manager.as_ref().filter(|row| view.alive(&row.holder));
        Nodes {
            nodes: nodes.collect(),
            manager: manager.map_or_else(String::new, |row| row.holder.node.to_string()),
            term: manager.map_or(0, |row| row.term),
        }
    }

    /// The deployments, or only this type with its live entities.
    pub(super) async fn deployments(
        &self,
        gateway: &Gateway,
        kind: Option<&str>,
    ) -> Vec<proto::Deployment> {
        let mut all = deployments(&gateway.types.snapshot(), &gateway.pools.get());
        let Some(kind) = kind else { return all };
        all.retain(|it| it.r#type == kind);
        let Some(deployment) = all.first_mut() else { return all };
        let hosts = self.live_hosts(kind);
        let counts = join_all(hosts.iter().map(|host| gateway.count_live(host, kind))).await;
        let mut live = BTreeMap::new();
        for counted in counts {
            match counted {
                Ok(host) => {
                    for of in host.live {
                        *live.entry(of.revision).or_default() += of.count;
                    }
                }
                Err(issue) => deployment.unreachable.push(issue),
            }
        }
        let live = live.into_iter().map(|(revision, count)| LiveEntities { revision, count });
        deployment.live = live.collect();
        all
    }

    /// The shards, or a range of them.
    pub(super) fn shards(&self, request: &ShardsRequest) -> Result<AdminOutput, Problem> {
        let count = self.shard_count();
        if request.first > count {
            return Err(unknown_shard(request.first, count));
        }
        let pools = self.gateway.pools.get();
        let view = self.current_view();
        let skipped = request.first.saturating_sub(1) as usize;
        let most = if request.limit == 0 { usize::MAX } else { request.limit as usize };
        let rows = view.shards.iter().zip(1_u32..).skip(skipped).take(most);
        let shards = rows.map(|(row, shard)| {
            let owner = row.owner.as_ref().filter(|owner| view.alive(owner));
            let held = view.held_shards.get(&ShardId(shard));
            let state = match owner {
                None => ShardState::Unassigned,
                Some(_) if row.hand_off.is_some() => ShardState::Moving,
                Some(owner) if view.member.as_ref() != Some(owner) => ShardState::Assigned,
                Some(_) if held.is_some_and(|(_, serving)| *serving) => ShardState::Serving,
                Some(_) => ShardState::Claiming,
            };
            let to = row.hand_off.as_ref().and_then(|moving| moving.target.as_ref());
            ShardInfo {
                shard,
                epoch: row.epoch.0,
                owner: owner.map_or_else(String::new, |owner| owner.node.to_string()),
                state: state.into(),
                target_node: to.map_or_else(String::new, ToString::to_string),
                pool: pools.of(ShardId(shard)).map_or_else(String::new, |pool| pool.name.clone()),
            }
        });
        Ok(AdminOutput::Shards(shards.collect()))
    }
}

/// Shows only that a node is a host, not of which pools: their names may be those of tenants.
pub(super) fn hide_pools(nodes: &mut Nodes) {
    for node in &mut nodes.nodes {
        let before = node.roles.len();
        node.roles.retain(|role| role != HOST_ROLE && !role.starts_with(HOST_ROLE_PREFIX));
        if node.roles.len() < before {
            node.roles.push(HOST_ROLE.into());
        }
    }
}

pub(super) fn unknown_shard(shard: u32, count: u32) -> Problem {
    let text = format!("shard {shard} does not exist; the cluster has {count} shards");
    problem(codes::UNKNOWN_SHARD, text, "shards are counted from 1")
}

fn node_status(row: &NodeRow) -> proto::NodeStatus {
    match row.status {
        NodeStatus::Live if row.is_draining_or_leaving() => proto::NodeStatus::Draining,
        NodeStatus::Live => proto::NodeStatus::Live,
        NodeStatus::Dead => proto::NodeStatus::Dead,
        NodeStatus::Left => proto::NodeStatus::Left,
    }
}

/// Decodes the number that a node writes for its version: 1,002,003 is 1.2.3.
fn version(number: u64) -> String {
    format!("{}.{}.{}", number / 1_000_000, number / 1_000 % 1_000, number % 1_000)
}

/// The deployed types, by name.
fn deployments(types: &TypeTable, pools: &Pools) -> Vec<proto::Deployment> {
    let mut list: Vec<_> = types.values().map(|entry| deployment(entry, pools)).collect();
    list.sort_by(|a, b| a.r#type.cmp(&b.r#type));
    list
}

fn deployment(entry: &DeployedType, pools: &Pools) -> proto::Deployment {
    let pool = pools.home(&entry.manifest.pool).map_or(&entry.manifest.pool, |pool| &pool.name);
    proto::Deployment {
        namespace: names::namespace(&entry.name).into(),
        r#type: entry.name.to_string(),
        revision: entry.revision,
        digest: entry.component_digest.to_vec().into(),
        pool: pool.clone(),
        component_size: entry.component_size,
        schema: entry.schema.version,
        revisions: entry.stored.iter().map(stored_revision).collect(),
        rollout: entry.rollout.as_ref().map(wire_rollout::to_wire),
        live: Vec::new(),
        unreachable: Vec::new(),
    }
}

fn stored_revision((entry, inactive): &(EarlierEntry, bool)) -> proto::StoredRevision {
    proto::StoredRevision {
        revision: entry.revision,
        digest: entry.component_digest.to_vec().into(),
        component_size: entry.component_size,
        schema: entry.schema.version,
        inactive: *inactive,
    }
}

/// The methods of a type, in the component's order.
#[must_use]
pub fn methods(entry: &DeployedType) -> proto::Methods {
    let methods = entry.entries().iter().map(|method| proto::Method {
        name: method.name.clone(),
        kind: wire_kind(method.kind()).into(),
        summary: method.summary(),
        schema: method.schema().map(|schema| proto::MethodSchema {
            arguments: schema.arguments,
            result: schema.result,
        }),
    });
    proto::Methods {
        r#type: entry.name.to_string(),
        revision: entry.revision,
        methods: methods.collect(),
    }
}
