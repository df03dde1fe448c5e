//! Decides by the cluster's policy what a client may do.
//!
//! Only the node that a client is connected to does so: what other nodes forward has been admitted there. A type's
//! manifest can refuse a message too; its shard's owner decides that.

use std::sync::Arc;

use ostraca_catalog::AccessRegistry;
use ostraca_catalog::access::denied;
use ostraca_catalog::types::{DeployedType, TypeTable};
use ostraca_config::policy::{Permission, Permissions};
use ostraca_core::message::MessageKind;
use ostraca_core::shard::{OperatorCommand, READ_CHANNEL};
use ostraca_wire::envelope::NAMESPACE;
use ostraca_wire::proto::{Envelope, Problem};
use ostraca_wire::server::{ClientInfo, IncomingMessage};

/// What a client may do. With `diagnostic`, what it might do when the node last knew.
///
/// # Errors
/// A refusal if it may do nothing, or if the node does not know.
pub(crate) fn permissions(
    access: &AccessRegistry,
    client: &ClientInfo,
    diagnostic: bool,
) -> Result<Arc<Permissions>, Problem> {
    let (principal, subjects) = (&*client.principal_name, &client.subjects);
    let permissions = match diagnostic {
        true => access.last_known_permissions(principal, subjects),
        false => access.permissions(principal, subjects),
    };
    permissions.map_err(|refused| refused.problem(principal))
}

/// Refuses the messages that the client may not send, and removes them from the batch. Messages to types that the node
/// does not know stay: what they need depends on the type.
pub(crate) fn admit_messages(
    access: &AccessRegistry,
    client: &ClientInfo,
    types: &TypeTable,
    batch: &mut Vec<IncomingMessage>,
) {
    if batch.is_empty() {
        return;
    }
    let permissions = match permissions(access, client, false) {
        Ok(permissions) => permissions,
        Err(refused) => {
            for request in batch.drain(..) {
                request.ticket.not_run(refused.clone());
            }
            return;
        }
    };
    let refused = |request: &mut IncomingMessage| {
        let envelope = &request.envelope;
        let entry = types.get(envelope.r#type.as_str());
        entry.is_some_and(|entry| !may_send(&permissions, entry, envelope))
    };
    for request in batch.extract_if(.., refused) {
        let envelope = &request.envelope;
        let entry = types.get(envelope.r#type.as_str());
        let needed = entry.and_then(|entry| needed(entry, &envelope.method));
        let what = what(needed, &envelope.r#type);
        request.ticket.not_run(denied(&client.principal_name, &permissions, &what));
    }
}

/// Refuses a subscription to a channel of an entity of this type.
///
/// # Errors
/// The refusal.
pub(crate) fn admit_subscription(
    access: &AccessRegistry,
    client: &ClientInfo,
    entity_type: &str,
) -> Result<(), Problem> {
    let permissions = permissions(access, client, false)?;
    if permissions.allow(Permission::Query, NAMESPACE, entity_type) {
        return Ok(());
    }
    let what = format!("follow channels of `{entity_type}`");
    Err(denied(&client.principal_name, &permissions, &what))
}

fn may_send(permissions: &Permissions, entry: &DeployedType, envelope: &Envelope) -> bool {
    match needed(entry, &envelope.method) {
        Some(permission) => permissions.allow(permission, NAMESPACE, &entry.name),
        // The owner answers that there is no such method.
        None => permissions.allow_any(NAMESPACE, &entry.name),
    }
}

/// What a method needs; `None` if the type does not have it.
fn needed(entry: &DeployedType, method: &str) -> Option<Permission> {
    if let Some((_, kind)) = entry.methods_by_name().get(method) {
        return Some(match kind {
            MessageKind::Command => Permission::Command,
            MessageKind::Query => Permission::Query,
        });
    }
    if method == READ_CHANNEL {
        return Some(Permission::Query);
    }
    OperatorCommand::of_method(method).map(|_| Permission::Manage)
}

fn what(needed: Option<Permission>, entity_type: &str) -> String {
    match needed {
        Some(Permission::Query) => format!("send queries to `{entity_type}`"),
        Some(Permission::Manage) => format!("send operators' commands to `{entity_type}`"),
        Some(_) => format!("send commands to `{entity_type}`"),
        None => format!("send anything to `{entity_type}`"),
    }
}
