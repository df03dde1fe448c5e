//! `ostraca nodes`: who is there, and how they stand.

use ostraca_client::{NodeStanding, NodeState, Nodes};
use serde_json::json;

use crate::args::{Format, Global};
use crate::failure::{Exit, Failure};
use crate::{dial, output};

pub(crate) async fn run(global: &Global) -> Result<Exit, Failure> {
    let client = dial::connect(global).await?;
    let all = dial::patiently("asking the node", client.nodes()).await?;
    dial::part(client).await;
    if global.output == Format::Json {
        let nodes: Vec<_> = all
            .nodes
            .iter()
            .map(|it| {
                json!({
                    "name": it.name, "standing": standing(it), "manager": it.name == all.manager,
                    "shards": it.shards, "roles": it.roles, "addresses": it.addresses,
                    "incarnation": it.incarnation, "age_ms": it.age_ms, "since": since(it),
                    "since_wall_ms": it.since_wall_ms, "renewals": it.renewals,
                    "store_answers": it.store_answers, "version": it.version,
                    "answering": it.answering, "reachable": it.reachable,
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
            standing(it).into(),
            it.shards.to_string(),
            it.roles.join(","),
            it.addresses.join(","),
            output::span(it.age_ms),
            since(it).unwrap_or_default(),
            it.version.clone(),
            notes(&all, it),
        ]
    });
    let headers = ["NODE", "STANDING", "SHARDS", "ROLES", "ADDRESS", "FOR", "SINCE", "VERSION", ""];
    output::table(headers, rows.collect());
    output::line("");
    output::line(&match all.manager.as_str() {
        "" => "no node manages now".into(),
        name => format!("{name} manages, term {}", all.term),
    });
    Ok(Exit::Done)
}

/// The word for how a node stands.
pub(crate) fn standing(it: &NodeState) -> &'static str {
    match it.standing() {
        NodeStanding::Live => "live",
        NodeStanding::Draining => "draining",
        NodeStanding::Lapsed => "lapsed",
        NodeStanding::Dead => "dead",
        NodeStanding::Stopped => "stopped",
        NodeStanding::Unspecified => "unknown",
    }
}

/// When its life registered, by its own clock, if it says so.
fn since(it: &NodeState) -> Option<String> {
    (it.since_wall_ms > 0).then(|| output::wall(it.since_wall_ms))
}

fn notes(all: &Nodes, it: &NodeState) -> String {
    let here = matches!(it.standing(), NodeStanding::Live | NodeStanding::Draining);
    let mut notes = Vec::new();
    if it.name == all.manager {
        notes.push("manager");
    }
    if it.answering {
        notes.push("answers this");
    }
    if here && !it.store_answers {
        notes.push("has no answer of the store");
    }
    if here && it.reachable == Some(false) {
        notes.push("not reached");
    }
    notes.join(", ")
}
