//! Decides by the cluster's policy what a client may do, and records what operators do.
//!
//! Only the node that a client is connected to does so: what other nodes forward has been admitted there. A type's
//! manifest can refuse a message too; its shard's owner decides that.

use std::collections::BTreeMap;
use std::sync::Arc;

use ostraca_catalog::access::denied;
use ostraca_catalog::audit::{Change, Log, MAX_TEXT_BYTES};
use ostraca_catalog::types::{DeployedType, TypeTable};
use ostraca_catalog::{AccessRegistry, AuditLog};
use ostraca_codes::codes;
use ostraca_config::policy::{Permission, Permissions};
use ostraca_core::message::MessageKind;
use ostraca_core::names;
use ostraca_core::shard::{DeadLetterAction, OperatorCommand, READ_CHANNEL};
use ostraca_wire::outcome::{permanent_problem, wire_kind};
use ostraca_wire::proto::{self, Envelope, Problem};
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

/// Refuses a client that may do nothing in the namespace of a type.
///
/// # Errors
/// The refusal, which is the same whether the namespace and the type exist or not.
pub(crate) fn admit_to_namespace(
    access: &AccessRegistry,
    principal: &str,
    subjects: &[String],
    entity_type: &str,
) -> Result<(), Problem> {
    let permissions = access.permissions(principal, subjects);
    let permissions = permissions.map_err(|refused| refused.problem(principal))?;
    match names::namespace(entity_type) {
        namespace if permissions.allow_in(namespace) => Ok(()),
        namespace => {
            let what = nothing_in(namespace);
            Err(denied(principal, &permissions, &what))
        }
    }
}

fn nothing_in(namespace: &str) -> String {
    format!("do anything in the namespace `{namespace}`")
}

/// Refuses the messages that the client may not send, removes them from the batch, and records operators' commands.
/// Messages to types that are not in `types` stay, unless the client may do nothing in the namespace: what else they need
/// depends on the type.
pub(crate) async fn admit(
    access: &AccessRegistry,
    audit: &AuditLog,
    client: &ClientInfo,
    types: &TypeTable,
    batch: &mut Vec<IncomingMessage>,
) {
    admit_messages(access, client, types, batch);
    if record_commands(audit, client, types, batch).await {
        // That took a while: the client may have been revoked.
        admit_messages(access, client, types, batch);
    }
}

fn admit_messages(
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
        let envelope = &mut request.envelope;
        let Some(entry) = types.get(envelope.r#type.as_str()) else {
            // The client must not learn that there is no such type.
            return !permissions.allow_in(names::namespace(&envelope.r#type));
        };
        let (permission, kind) = needed(entry, &envelope.method);
        // The owner may have another revision, in which the method is of another kind: it must not run as that.
        if let Some(kind) = kind
            && envelope.kind == proto::MessageKind::Unspecified as i32
        {
            envelope.kind = wire_kind(kind) as i32;
        }
        !permissions.allow_on(permission, &entry.name)
    };
    for request in batch.extract_if(.., refused) {
        let envelope = &request.envelope;
        let namespace = names::namespace(&envelope.r#type);
        let what = if permissions.allow_in(namespace) {
            let entry = types.get(envelope.r#type.as_str());
            what(entry.map(|entry| needed(entry, &envelope.method).0), &envelope.r#type)
        } else {
            nothing_in(namespace)
        };
        request.ticket.not_run(denied(&client.principal_name, &permissions, &what));
    }
}

/// Records the operators' commands in a batch, before they are sent on: one entry for those of one kind to one type.
/// Refuses them if that fails. Messages to types that the node does not know are left for later. Returns whether there
/// were any.
async fn record_commands(
    audit: &AuditLog,
    client: &ClientInfo,
    types: &TypeTable,
    batch: &mut Vec<IncomingMessage>,
) -> bool {
    let mut entries: BTreeMap<(&'static str, String), Vec<String>> = BTreeMap::new();
    for request in batch.iter() {
        let envelope = &request.envelope;
        if let Some(action) = recorded_action(types, envelope) {
            let ids = entries.entry((action, envelope.r#type.clone())).or_default();
            ids.push(envelope.id.clone());
        }
    }
    if entries.is_empty() {
        return false;
    }
    let changes = entries.into_iter().flat_map(|((action, entity_type), ids)| {
        named_in_full(&ids)
            .into_iter()
            .map(move |ids| match ids {
                [id] => {
                    Change { action, target: format!("{entity_type}/{id}"), details: String::new() }
                }
                ids => Change { action, target: entity_type.clone(), details: format!("{ids:?}") },
            })
            .collect::<Vec<_>>()
    });
    let recorded = audit.append(Log::Types, &client.principal_name, changes.collect()).await;
    let Err(error) = recorded else { return true };
    let text = format!("the command cannot be recorded in the audit log: {error}");
    let mut refusal = permanent_problem(codes::STORE_UNAVAILABLE, text, "");
    refusal.retryable = true;
    let is_command =
        |request: &mut IncomingMessage| recorded_action(types, &request.envelope).is_some();
    for request in batch.extract_if(.., is_command) {
        request.ticket.not_run(refusal.clone());
    }
    true
}

/// Parts of a list, each so short that an entry of the audit log names all of it.
fn named_in_full(ids: &[String]) -> Vec<&[String]> {
    let (mut parts, mut rest) = (Vec::new(), ids);
    while !rest.is_empty() {
        let fits = |count: &usize| format!("{:?}", &rest[..*count]).len() <= MAX_TEXT_BYTES;
        let count = (1..=rest.len()).take_while(fits).last().unwrap_or(1);
        let (part, others) = rest.split_at(count);
        parts.push(part);
        rest = others;
    }
    parts
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
    if permissions.allow_on(Permission::Query, entity_type) {
        return Ok(());
    }
    admit_to_namespace(access, &client.principal_name, &client.subjects, entity_type)?;
    let what = format!("follow channels of `{entity_type}`");
    Err(denied(&client.principal_name, &permissions, &what))
}

/// What a method needs, and its kind if the type has it.
fn needed(entry: &DeployedType, method: &str) -> (Permission, Option<MessageKind>) {
    if let Some((_, kind)) = entry.methods_by_name().get(method) {
        let permission = match kind {
            MessageKind::Command => Permission::Command,
            MessageKind::Query => Permission::Query,
        };
        return (permission, Some(*kind));
    }
    if method == READ_CHANNEL {
        return (Permission::Query, None);
    }
    match OperatorCommand::of_method(method) {
        Some(_) => (Permission::Manage, None),
        // The owner may have a later revision with such a command; else it answers that there is no such method.
        None => (Permission::Command, None),
    }
}

fn what(needed: Option<Permission>, entity_type: &str) -> String {
    match needed {
        Some(Permission::Query) => format!("send queries to `{entity_type}`"),
        Some(Permission::Manage) => format!("send operators' commands to `{entity_type}`"),
        Some(_) => format!("send commands to `{entity_type}`"),
        None => format!("send anything to `{entity_type}`"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_id_is_in_an_entry_that_is_not_cut() {
        let ids: Vec<_> = (0..500).map(|at| format!("{at}-{}", "x".repeat(at))).collect();
        let parts = named_in_full(&ids);
        assert!(parts.iter().all(|part| format!("{part:?}").len() <= MAX_TEXT_BYTES));
        assert_eq!(parts.concat(), ids);
        assert_eq!(named_in_full(&ids[..3]).len(), 1);
        let long = vec!["y".repeat(2 * MAX_TEXT_BYTES); 2];
        assert_eq!(named_in_full(&long).len(), 2, "each alone, although it is too long");
    }
}
