//! `ostraca deployments [TYPE]`: lists the deployments, or the stored revisions of one type.

use ostraca_client::Deployment;
use serde_json::json;

use crate::args::{Deployments, Global, OutputFormat};
use crate::failure::{Exit, Failure};
use crate::{connection, output};

pub(crate) async fn run(global: &Global, args: &Deployments) -> Result<Exit, Failure> {
    let client = connection::connect(global).await?;
    let mut all = connection::with_spinner("contacting the node", client.deployments()).await?;
    connection::disconnect(client).await;
    if let Some(wanted) = &args.entity_type {
        all.retain(|it| it.r#type == *wanted);
    }
    if global.output == OutputFormat::Json {
        let all = all.iter().map(|it| {
            json!({
                "namespace": it.namespace, "type": it.r#type, "revision": it.revision,
                "pool": it.pool, "digest": hex(&it.digest), "component_size": it.component_size,
                "schema": it.schema,
                "revisions": it.revisions.iter().map(|it| json!({
                    "revision": it.revision, "digest": hex(&it.digest),
                    "component_size": it.component_size, "schema": it.schema,
                    "inactive": it.inactive,
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
        [revision.to_string(), state.to_owned(), schema.to_string(), output::size(size), digest]
    };
    let active = row(it.revision, "active", it.schema, it.component_size, &it.digest);
    let mut rows = vec![(it.revision, active)];
    rows.extend(it.revisions.iter().map(|of| {
        let state = if of.inactive { "inactive" } else { "earlier" };
        (of.revision, row(of.revision, state, of.schema, of.component_size, &of.digest))
    }));
    rows.sort_by_key(|(revision, _)| *revision);
    let rows = rows.into_iter().map(|(_, row)| row).collect();
    output::table(["REVISION", "STATE", "SCHEMA", "COMPONENT", "DIGEST"], rows);
}

/// Bytes as hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
