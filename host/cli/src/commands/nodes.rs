//! `ostraca nodes`: lists the nodes and their status.

use ostraca_client::{NodeState, NodeStatus, Nodes};
use serde_json::json;

use crate::args::{Global, OutputFormat};
use crate::failure::{Exit, Failure};
use crate::{connection, output};

pub(crate) async fn run(global: &Global) -> Result<Exit, Failure> {
    let client = connection::connect(global).await?;
    let all = connection::with_spinner("contacting the node", client.nodes()).await?;
    connection::disconnect(client).await;
    if global.output == OutputFormat::Json {
        let nodes: Vec<_> = all
            .nodes
            .iter()
            .map(|it| {
                json!({
                    "name": it.name, "status": status_name(it), "manager": it.name == all.manager,
                    "shards": it.shards, "roles": it.roles, "addresses": it.addresses,
                    "incarnation": it.incarnation, "registered_for_ms": it.registered_for_ms, "registered_at": registered_at(it),
                    "registered_at_unix_ms": it.registered_at_unix_ms, "renewals": it.renewals,
                    "store_available": it.store_available, "version": it.version,
                    "is_self": it.is_self, "reachable": it.reachable,
                    "unanswered_keep_alives": it.unanswered_keep_alives, "unreachable": it.unreachable,
                })
            })
            .collect();
        let manager = Some(&all.manager).filter(|name| !name.is_empty());
        output::json(&json!({ "manager": manager, "term": all.term, "nodes": nodes }));
        return Ok(Exit::Done);
    }
    let rows = all.nodes.iter().map(|it| {
        [
            it.name.clone(),
            status_name(it).into(),
            it.shards.to_string(),
            it.roles.join(","),
            it.addresses.join(","),
            output::span(it.registered_for_ms),
            registered_at(it).unwrap_or_default(),
            it.version.clone(),
            notes(&all, it),
        ]
    });
    let headers =
        ["NODE", "STATUS", "SHARDS", "ROLES", "ADDRESS", "AGE", "REGISTERED", "VERSION", ""];
    output::table(headers, rows.collect());
    output::line("");
    output::line(&match all.manager.as_str() {
        "" => "no manager".into(),
        name => format!("manager {name}, term {}", all.term),
    });
    Ok(Exit::Done)
}

/// The word for a node's status.
pub(crate) fn status_name(it: &NodeState) -> &'static str {
    match it.status() {
        NodeStatus::Live => "live",
        NodeStatus::Draining => "draining",
        NodeStatus::Lapsed => "lapsed",
        NodeStatus::Dead => "dead",
        NodeStatus::Left => "left",
        NodeStatus::Unspecified => "unknown",
    }
}

/// When the node's incarnation registered, according to the node's own clock, if known.
fn registered_at(it: &NodeState) -> Option<String> {
    (it.registered_at_unix_ms > 0).then(|| output::wall(it.registered_at_unix_ms))
}

fn notes(all: &Nodes, it: &NodeState) -> String {
    let is_live = matches!(it.status(), NodeStatus::Live | NodeStatus::Draining);
    let mut notes = Vec::new();
    if it.name == all.manager {
        notes.push("manager".to_owned());
    }
    if it.is_self {
        notes.push("answered this request".into());
    }
    if is_live && !it.store_available {
        notes.push("store unreachable".into());
    }
    if is_live && it.reachable == Some(false) {
        notes.push("not connected".into());
    }
    if is_live && it.unreachable {
        let by = all.nodes.iter().find(|node| node.is_self).map_or("", |node| node.name.as_str());
        notes.push(format!("unreachable by {by} ({} keep-alives)", it.unanswered_keep_alives));
    }
    notes.join(", ")
}
