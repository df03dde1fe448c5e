//! Records what operators ask for, and shows it.

use ostraca_catalog::audit::{self, Change, Log};
use ostraca_wire::proto::{
    AuditEntry, AuditRequest, NewLimit, Problem, QuotaChanges, ShardAtNode, VariableKind,
};
use ostraca_wire::server::{AdminOperation, AdminOutput};

use super::AdminService;
use super::authorize::type_in;
use super::catalog_problem::to_problem;

/// How many bytes of a digest are shown.
const DIGEST: usize = 8;

impl AdminService {
    /// Records a request that changes something, before it is handled. Returns whether it does.
    pub(super) async fn record(
        &self,
        principal: &str,
        request: &AdminOperation,
    ) -> Result<bool, Problem> {
        let changes = changes(request);
        let any = !changes.is_empty();
        self.audit.append(log(request), principal, changes).await.map_err(to_problem)?;
        Ok(any)
    }

    pub(super) async fn audit_log(&self, request: AuditRequest) -> Result<AdminOutput, Problem> {
        // The logs of all nodes take a lot of memory: one reader at a time.
        let _turn = self.audit_turn.lock().await;
        let all = audit::read(&*self.deployer.cluster_store).await.map_err(to_problem)?;
        let wanted = all.into_iter().filter(|(_, entry)| {
            entry.at_ms >= request.since_unix_ms
                && (request.principal.is_empty() || entry.principal == request.principal)
        });
        let entries = wanted.map(|(node, entry)| AuditEntry {
            unix_ms: entry.at_ms,
            node,
            principal: entry.principal,
            action: entry.action,
            target: entry.target,
            details: entry.details,
        });
        Ok(AdminOutput::Audit(entries.collect()))
    }
}

fn log(request: &AdminOperation) -> Log {
    use AdminOperation as Op;
    match request {
        Op::Deploy(_) | Op::Activate(_) | Op::Undeploy(_) | Op::Export(_) | Op::Variables(_) => {
            Log::Types
        }
        _ => Log::Cluster,
    }
}

/// What a request changes; nothing if it only reads.
fn changes(request: &AdminOperation) -> Vec<Change> {
    match request {
        // One entry for each, so that none is cut off.
        AdminOperation::Revocations(request) => {
            let change = |action, subject: &String| Change {
                action,
                target: subject.clone(),
                details: request.reason.clone(),
            };
            let revoked = request.revoke.iter().map(|subject| change("revoke", subject));
            let restored = request.restore.iter().map(|subject| change("revoke --undo", subject));
            revoked.chain(restored).collect()
        }
        request => change(request).into_iter().collect(),
    }
}

fn quotas_text(changes: &QuotaChanges) -> String {
    let QuotaChanges { namespace: _, entities, state_bytes, turns_per_second } = changes;
    let named = [("entities", entities), ("state", state_bytes), ("turns", turns_per_second)];
    let text = |limit: &NewLimit| limit.limit.map_or_else(|| "none".into(), |it| it.to_string());
    let changed = named
        .into_iter()
        .filter_map(|(name, limit)| Some(format!("{name} {}", text(limit.as_ref()?))));
    changed.collect::<Vec<_>>().join(", ")
}

/// What a request changes; `None` if it only reads.
fn change(request: &AdminOperation) -> Option<Change> {
    use AdminOperation as Op;
    let change = |action, target: &str, details: String| {
        Some(Change { action, target: target.into(), details })
    };
    match request {
        // It runs new code on copies of entities.
        Op::Deploy(upload) if upload.dry_run.is_some() => change(
            "deploy --dry-run",
            &type_in(&upload.manifest).unwrap_or_default(),
            String::new(),
        ),
        Op::Deploy(upload) => {
            let target = type_in(&upload.manifest).unwrap_or_default();
            let digest: String =
                upload.digest[..DIGEST].iter().map(|byte| format!("{byte:02x}")).collect();
            let inactive = if upload.inactive { ", inactive" } else { "" };
            change("deploy", &target, format!("component {digest}{inactive}"))
        }
        Op::Activate(request) => {
            let revision = match request.revision {
                Some(revision) => format!("revision {revision}"),
                None => "the revision before".into(),
            };
            let rollout = match &request.rollout {
                Some(rollout) => format!(
                    ", to {} of 1,000 entities and {} shards",
                    rollout.per_mille(),
                    rollout.shards()
                ),
                None => String::new(),
            };
            change("activate", &request.r#type, revision + &rollout)
        }
        Op::Undeploy(request) => change("undeploy", &request.r#type, String::new()),
        Op::Drain { node, undo: false } => change("drain", node, String::new()),
        Op::Drain { node, undo: true } => change("drain", node, "undone".into()),
        Op::Forget { node } => change("forget", node, String::new()),
        Op::Rebalance => change("rebalance", "", String::new()),
        Op::MoveShards(request) => request.wanted.as_ref().and_then(|range| {
            change("store move", "", format!("shards {} to {}", range.first, range.last))
        }),
        Op::Cluster(request) if request.changes.is_empty() && !request.upgrade_format => None,
        Op::Cluster(request) => {
            let mut all: Vec<_> =
                request.changes.iter().map(|it| format!("{} = {}", it.name, it.value)).collect();
            if request.upgrade_format {
                all.push("format raised".into());
            }
            change("cluster", "", all.join(", "))
        }
        Op::Pools(request) => request
            .create
            .as_ref()
            .and_then(|pool| change("pool create", &pool.name, format!("{} shards", pool.shards))),
        Op::PoolCopy(request) => change("pool copy", &request.from, format!("to {}", request.to)),
        Op::Namespaces(request) => match &request.change_quotas {
            Some(changes) => change("namespace quota", &changes.namespace, quotas_text(changes)),
            None if request.create.is_empty() => None,
            None => change("namespace create", &request.create, String::new()),
        },
        // A placement is recorded when it is new.
        Op::Placement(request) => {
            let list = |all: &[ShardAtNode]| {
                let shown = all.iter().take(8).map(|it| match it.node.as_str() {
                    "" => format!("{} unpinned", it.shard),
                    node => format!("{} to {node}", it.shard),
                });
                let more = if all.len() > 8 { ", and more" } else { "" };
                format!("{}{more}", shown.collect::<Vec<_>>().join(", "))
            };
            match (&request.pins[..], &request.moves[..]) {
                ([], []) => None,
                (pins, []) => change("shards pin", "", list(pins)),
                (_, moves) => change("shards move", "", list(moves)),
            }
        }
        Op::Policy(request) => request.text.as_ref().and_then(|text| {
            let digest = blake3::hash(text.as_bytes()).to_hex();
            let forced = if request.force { ", forced" } else { "" };
            change("policy set", "", format!("{} bytes, {}{forced}", text.len(), &digest[..16]))
        }),
        Op::Authorities(request) => match (&request.trusted, &request.issue) {
            (None, None) => None,
            (None, Some(issue)) => change("ca rotate", &issue.node, "certificate issued".into()),
            (Some(pem), issued) => {
                let digest = blake3::hash(pem.as_bytes()).to_hex();
                let count = pem.matches("BEGIN CERTIFICATE").count();
                let forced = if request.force { ", forced" } else { "" };
                let node = issued.as_ref().map_or("", |issue| &issue.node);
                change("ca rotate", node, format!("{count} trusted, {}{forced}", &digest[..16]))
            }
        },
        // Without the text.
        Op::Variables(request) => {
            let (kind, name, actions) = match (&request.set, &request.remove) {
                (Some(set), _) => (set.kind(), &set.name, ["secret set", "setting set"]),
                (None, Some(removed)) => {
                    (removed.kind(), &removed.name, ["secret remove", "setting remove"])
                }
                (None, None) => return None,
            };
            let action = actions[usize::from(kind != VariableKind::Secret)];
            change(action, &request.r#type, name.clone())
        }
        // They read what an operator should know was read.
        Op::Backup => change("backup", "", String::new()),
        Op::Export(request) => {
            change("export", &format!("{}/{}", request.r#type, request.id), String::new())
        }
        // See `changes`.
        Op::Revocations(_)
        | Op::Deployments(_)
        | Op::Methods(_)
        | Op::Status
        | Op::Node
        | Op::Nodes
        | Op::Shards(_)
        | Op::Entities(_)
        | Op::Inspect(_)
        | Op::DeadLetters(_)
        | Op::RebalancePlan
        | Op::Figures
        | Op::WhoAmI
        | Op::Pauses
        | Op::ShardFigures
        | Op::Events(_)
        | Op::Audit(_) => None,
    }
}

#[cfg(test)]
mod tests;
