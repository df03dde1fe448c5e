//! `ostraca audit`: who has asked for which change of the cluster.

use std::time::{SystemTime, UNIX_EPOCH};

use ostraca_wire::proto::{AuditEntry, AuditRequest};
use serde_json::json;

use super::as_node;
use crate::args::{Audit, Global, OutputFormat};
use crate::failure::{Exit, Failure};
use crate::{connection, output};

pub(crate) async fn run(global: &Global, args: &Audit) -> Result<Exit, Failure> {
    let since = args.since.and_then(|since| SystemTime::now().checked_sub(since));
    let since = since.and_then(|since| since.duration_since(UNIX_EPOCH).ok());
    let request = AuditRequest {
        since_unix_ms: since
            .map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX)),
        principal: args.principal.clone().unwrap_or_default(),
    };
    let client = as_node::connect(global, args.node.config.as_deref()).await?;
    let all = connection::with_spinner("contacting the node", client.audit(request)).await?;
    connection::disconnect(client).await;
    match global.output {
        OutputFormat::Json => {
            let entries = all.iter().map(|it| {
                json!({
                    "unix_ms": it.unix_ms, "timestamp": output::wall(it.unix_ms), "node": it.node,
                    "principal": it.principal, "action": it.action, "target": it.target,
                    "details": it.details,
                })
            });
            output::json(&json!({ "entries": entries.collect::<Vec<_>>() }));
        }
        OutputFormat::Table if all.is_empty() => output::line("nothing was asked for"),
        OutputFormat::Table => {
            let row = |it: &AuditEntry| {
                [
                    output::wall(it.unix_ms),
                    it.node.clone(),
                    it.principal.clone(),
                    it.action.clone(),
                    it.target.clone(),
                    it.details.clone(),
                ]
            };
            output::table(
                ["TIME", "NODE", "PRINCIPAL", "ACTION", "TARGET", "DETAILS"],
                all.iter().map(row).collect(),
            );
        }
    }
    Ok(Exit::Done)
}
