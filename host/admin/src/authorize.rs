//! What each request needs under the cluster's policy.
//!
//! A type's manifest plays no part here: it restricts messages only.

use ostraca_catalog::access::denied;
use ostraca_config::Manifest;
use ostraca_config::policy::{Permission, Permissions};
use ostraca_wire::proto::{NamespacesRequest, PlacementRequest, Problem};
use ostraca_wire::server::AdminOperation;

use super::AdminService;

/// What a request needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Needed {
    /// Any role.
    AnyRole,
    /// A permission on some type.
    Somewhere(Permission),
    /// Any permission on this type.
    AnythingOn(String),
    /// A permission on this type.
    OnType(Permission, String),
    /// A permission on all types, and thus on the cluster.
    Everywhere(Permission),
}

use Needed::{AnyRole, AnythingOn, Everywhere, OnType, Somewhere};

/// Whether a request shows why a node does not know the policy. It is judged by what the node last knew.
#[must_use]
pub fn is_diagnostic(request: &AdminOperation) -> bool {
    matches!(
        request,
        AdminOperation::Node
            | AdminOperation::Nodes
            | AdminOperation::Status
            | AdminOperation::Events(_)
            | AdminOperation::Figures
    )
}

/// Refuses a request that the principal has no permission for.
pub(crate) fn authorize(
    principal: &str,
    permissions: &Permissions,
    request: &AdminOperation,
) -> Result<(), Problem> {
    check_all(principal, permissions, &needed(request))
}

/// Refuses a principal that lacks one of these.
pub(crate) fn check_all(
    principal: &str,
    permissions: &Permissions,
    all: &[Needed],
) -> Result<(), Problem> {
    all.iter().try_for_each(|needed| check(principal, permissions, needed))
}

fn check(principal: &str, permissions: &Permissions, needed: &Needed) -> Result<(), Problem> {
    let (granted, what) = match needed {
        AnyRole => (!permissions.is_empty(), "use this cluster".to_owned()),
        Somewhere(permission) => (
            permissions.allow_somewhere(*permission),
            format!("do this: it needs `{permission}` on some type"),
        ),
        AnythingOn(name) => (permissions.allow_any_on(name), format!("do anything with `{name}`")),
        OnType(permission, name) => (
            permissions.allow_on(*permission, name),
            format!("do this: it needs `{permission}` on `{name}`"),
        ),
        Everywhere(permission) => (
            permissions.allow_everywhere(*permission),
            format!("do this: it needs `{permission}` on all types"),
        ),
    };
    if granted { Ok(()) } else { Err(denied(principal, permissions, &what)) }
}

/// A manifest that cannot be read is refused for that reason, once the request is handled.
fn needed_to_deploy(manifest: &str) -> Needed {
    match type_in(manifest) {
        Some(name) => OnType(Permission::Deploy, name),
        None => Somewhere(Permission::Deploy),
    }
}

/// Everything that a request needs.
pub(crate) fn needed(request: &AdminOperation) -> Vec<Needed> {
    use AdminOperation as Op;
    use Permission::{Administer, Deploy, Operate, ReadState, View};
    match request {
        Op::Deploy(upload) => vec![needed_to_deploy(&upload.manifest)],
        Op::Activate(request) => vec![OnType(Deploy, request.r#type.clone())],
        Op::Undeploy(request) => vec![OnType(Deploy, request.r#type.clone())],
        // Whoever deploys a component to a type can read all that it is granted.
        Op::Variables(request) => vec![on(Deploy, &request.r#type)],
        // Lists only types that the principal may view.
        Op::Deployments(None) => vec![Somewhere(View)],
        Op::Deployments(Some(name)) => vec![OnType(View, name.clone())],
        // Whoever may use a type must know its methods.
        Op::Methods(name) => vec![AnythingOn(name.clone())],
        // Clients find the nodes of their cluster with these.
        Op::Node | Op::Nodes => vec![AnyRole],
        // They are the sender's own.
        Op::WhoAmI => Vec::new(),
        Op::Status
        | Op::Shards(_)
        | Op::Events(_)
        | Op::RebalancePlan
        | Op::Figures
        | Op::ShardFigures
        | Op::Pauses => vec![Everywhere(View)],
        Op::Entities(request) => vec![on(View, &request.r#type)],
        Op::Inspect(request) => with_values(&request.r#type, request.values),
        Op::DeadLetters(request) => with_values(&request.r#type, request.values),
        Op::Export(request) => vec![OnType(ReadState, request.r#type.clone())],
        Op::Backup => vec![Everywhere(Operate), Everywhere(ReadState)],
        Op::Drain { .. }
        | Op::Forget { .. }
        | Op::MoveShards(_)
        | Op::PoolCopy(_)
        | Op::Rebalance => vec![Everywhere(Operate)],
        Op::Cluster(request) if request.changes.is_empty() && !request.upgrade_format => {
            vec![Everywhere(View)]
        }
        Op::Cluster(_) => vec![Everywhere(Operate)],
        Op::Pools(request) if request.create.is_none() => vec![Everywhere(View)],
        Op::Placement(request) if *request == PlacementRequest::default() => {
            vec![Everywhere(View)]
        }
        Op::Placement(_) => vec![Everywhere(Operate)],
        Op::Pools(_) => vec![Everywhere(Operate)],
        Op::Namespaces(request) if is_list(request) => vec![Everywhere(View)],
        Op::Namespaces(_) => vec![Everywhere(Operate)],
        Op::Policy(request) if request.text.is_none() => vec![Everywhere(View)],
        // They name people, and why they were shut out.
        Op::Audit(_) => vec![Everywhere(Operate)],
        Op::Authorities(request) if request.trusted.is_none() && request.issue.is_none() => {
            vec![Everywhere(View)]
        }
        Op::Authorities(_) => vec![Everywhere(Administer)],
        Op::Revocations(request) if request.revoke.is_empty() && request.restore.is_empty() => {
            vec![Everywhere(Operate)]
        }
        Op::Policy(_) | Op::Revocations(_) => vec![Everywhere(Administer)],
    }
}

/// Whether a request only lists namespaces.
fn is_list(request: &NamespacesRequest) -> bool {
    request.create.is_empty() && request.change_quotas.is_none()
}

/// A permission on a type, or on all types if none is named.
fn on(permission: Permission, name: &str) -> Needed {
    match name {
        "" => Everywhere(permission),
        name => OnType(permission, name.into()),
    }
}

fn with_values(name: &str, values: bool) -> Vec<Needed> {
    let mut needed = vec![on(Permission::View, name)];
    if values {
        needed.push(on(Permission::ReadState, name));
    }
    needed
}

/// The type that a manifest is for, if it can be read.
pub(super) fn type_in(manifest: &str) -> Option<String> {
    Manifest::parse(manifest, "entity.toml").ok().map(|manifest| manifest.entity_type)
}

impl AdminService {
    /// Checks whether a client may deploy under this manifest, before its component is received.
    ///
    /// # Errors
    /// The refusal.
    pub fn check_upload(
        &self,
        principal: &str,
        permissions: &Permissions,
        manifest: &str,
    ) -> Result<(), Problem> {
        check(principal, permissions, &needed_to_deploy(manifest))
    }
}

#[cfg(test)]
mod tests;
