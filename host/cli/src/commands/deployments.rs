//! `ostraca deployments [TYPE]`: lists the deployments, or the stored revisions of one type.

use ostraca_client::{AdminError, Client, Deployment, Rollout};
use ostraca_wasm::text::printable;
use serde_json::json;

use crate::args::{Deployments, Global, OutputFormat};
use crate::failure::{Exit, Failure};
use crate::{connection, output};

pub(crate) async fn run(global: &Global, args: &Deployments) -> Result<Exit, Failure> {
    let client = connection::connect(global).await?;
    let all = connection::with_spinner("contacting the node", list(&client, args)).await?;
    connection::disconnect(client).await;
    if global.output == OutputFormat::Json {
        let all = all.iter().map(|it| {
            json!({
                "namespace": it.namespace, "type": it.r#type, "revision": it.revision,
                "pool": it.pool, "digest": hex(&it.digest), "component_size": it.component_size,
                "schema": it.schema,
                "rollout": it.rollout.as_ref().map(|of| json!({
                    "per_mille": of.per_mille(), "shards": of.shards(), "rate": of.rate,
                    "from": of.from, "stopped": of.stopped,
                })),
                "revisions": it.revisions.iter().map(|it| json!({
                    "revision": it.revision, "digest": hex(&it.digest),
                    "component_size": it.component_size, "schema": it.schema,
                    "inactive": it.inactive,
                })).collect::<Vec<_>>(),
                "live": it.live.iter().map(|of| json!({
                    "revision": of.revision, "entities": of.count,
                })).collect::<Vec<_>>(),
                "unreachable": it.unreachable.iter().map(|of| json!({
                    "node": of.node, "reason": of.reason,
                })).collect::<Vec<_>>(),
            })
        });
        output::json(&all.collect());
    } else if let (Some(wanted), true) = (&args.entity_type, all.is_empty()) {
        output::line(&format!("no type `{wanted}` is deployed"));
    } else if let (Some(_), Some(it)) = (&args.entity_type, all.first()) {
        revisions(it);
    } else if all.is_empty() {
        output::line("nothing is deployed; `ostraca deploy DIR` deploys an entity project");
    } else {
        let rows = all.iter().map(|it| {
            let digest = hex(&it.digest).chars().take(12).collect();
            [
                it.r#type.clone(),
                it.revision.to_string(),
                it.pool.clone(),
                output::size(it.component_size),
                digest,
            ]
        });
        output::table(["TYPE", "REVISION", "POOL", "COMPONENT", "DIGEST"], rows.collect());
    }
    Ok(Exit::Done)
}

/// The revisions of one type, in ascending order.
fn revisions(it: &Deployment) {
    let row = |revision: u64, state: &str, schema: u32, size: u64, digest: &[u8]| {
        let digest = hex(digest).chars().take(12).collect();
        let live = it.live.iter().find(|of| of.revision == revision).map_or(0, |of| of.count);
        let (number, schema) = (revision.to_string(), schema.to_string());
        [number, state.to_owned(), live.to_string(), schema, output::size(size), digest]
    };
    let active = row(it.revision, "active", it.schema, it.component_size, &it.digest);
    let mut rows = vec![(it.revision, active)];
    rows.extend(it.revisions.iter().map(|of| {
        let state = if of.inactive { "inactive" } else { "earlier" };
        (of.revision, row(of.revision, state, of.schema, of.component_size, &of.digest))
    }));
    rows.sort_by_key(|(revision, _)| *revision);
    let rows = rows.into_iter().map(|(_, row)| row).collect();
    if let Some(rollout) = &it.rollout {
        output::line(&rollout_line(it.revision, rollout));
    }
    output::table(["REVISION", "STATE", "LIVE", "SCHEMA", "COMPONENT", "DIGEST"], rows);
    for of in &it.unreachable {
        let (node, reason) = (printable(&of.node), printable(&of.reason));
        output::line(&format!("the live entities of {node} are not included: {reason}"));
    }
}

async fn list(client: &Client, args: &Deployments) -> Result<Vec<Deployment>, AdminError> {
    match &args.entity_type {
        Some(wanted) => Ok(client.deployment(wanted).await?.into_iter().collect()),
        None => client.deployments().await,
    }
}

/// Bytes as hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn rollout_line(revision: u64, rollout: &Rollout) -> String {
    let share = f64::from(rollout.per_mille()) / 10.0;
    let pace = match rollout {
        Rollout { stopped, .. } if !stopped.is_empty() => {
            format!("stopped: {}", printable(stopped))
        }
        Rollout { rate: 0, .. } => "stands still".to_owned(),
        Rollout { rate, .. } => format!("{rate} more shards a minute"),
    };
    format!(
        "revision {revision} runs in the shards 1 to {}, and for {share} % of the other entities; the rest runs revision {} ({pace})",
        rollout.shards(),
        rollout.from,
    )
}
