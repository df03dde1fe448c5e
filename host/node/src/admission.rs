//! Decides by the cluster's policy what a client may do, and records what operators do.
//!
//! Only the node that a client is connected to does so: what other nodes forward has been admitted there. A type's
//! manifest can refuse a message too; its shard's owner decides that.

use std::collections::BTreeMap;
use std::sync::Arc;

use ostraca_catalog::access::denied;
use ostraca_catalog::audit::Change;
use ostraca_catalog::types::{DeployedType, TypeTable};
use ostraca_catalog::{AccessRegistry, AuditLog};
use ostraca_codes::codes;
use ostraca_config::policy::{Permission, Permissions};
use ostraca_core::message::MessageKind;
use ostraca_core::shard::{DeadLetterAction, OperatorCommand, READ_CHANNEL};
use ostraca_wire::envelope::NAMESPACE;
use ostraca_wire::outcome::permanent_problem;
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

/// Records the operators' commands in a batch, before they are sent on: one entry for those of one kind to one type.
/// Refuses them if that fails. Messages to types that the node does not know are left for later.
pub(crate) async fn record_commands(
    audit: &AuditLog,
    client: &ClientInfo,
    types: &TypeTable,
    batch: &mut Vec<IncomingMessage>,
) {
    let mut entries: BTreeMap<(&'static str, String), Vec<String>> = BTreeMap::new();
    for request in batch.iter() {
        let envelope = &request.envelope;
        if let Some(action) = recorded_action(types, envelope) {
            let ids = entries.entry((action, envelope.r#type.clone())).or_default();
            ids.push(envelope.id.clone());
        }
    }
    if entries.is_empty() {
        return;
    }
    let changes = entries.into_iter().map(|((action, entity_type), ids)| match ids.as_slice() {
        [id] => Change { action, target: format!("{entity_type}/{id}"), details: String::new() },
        ids => Change {
            action,
            target: entity_type,
            details: format!("{} entities: {}", ids.len(), ids.join(", ")),
        },
    });
    let recorded = audit.append(&client.principal_name, changes.collect()).await;
    let Err(error) = recorded else { return };
    let text = format!("the command cannot be recorded in the audit log: {error}");
    let mut refusal = permanent_problem(codes::STORE_UNAVAILABLE, text, "");
    refusal.retryable = true;
    let is_command =
        |request: &mut IncomingMessage| recorded_action(types, &request.envelope).is_some();
    for request in batch.extract_if(.., is_command) {
        request.ticket.not_run(refusal.clone());
    }
}

/// What a message is called in the audit log; `None` if it is not an operator's command, or to an unknown type.
fn recorded_action(types: &TypeTable, envelope: &Envelope) -> Option<&'static str> {
    let command = OperatorCommand::of_method(&envelope.method)?;
    let entry = types.get(envelope.r#type.as_str())?;
    // A type's own method is no command, whatever its name.
    if entry.methods_by_name().contains_key(envelope.method.as_str()) {
        return None;
    }
    Some(match command {
        OperatorCommand::DeleteEntity => "delete",
        OperatorCommand::ImportEntity => "import",
        OperatorCommand::ForgetEntity => "forget-entity",
        OperatorCommand::RestartEntity => "restart-entity",
        OperatorCommand::DeadLetters(DeadLetterAction::Resend) => "dead-letters resend",
        OperatorCommand::DeadLetters(DeadLetterAction::Drop) => "dead-letters drop",
    })
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
