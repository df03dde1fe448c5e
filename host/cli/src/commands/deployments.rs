//! `ostraca deployments`: lists the deployments.

use serde_json::json;

use crate::args::{Global, OutputFormat};
use crate::failure::{Exit, Failure};
use crate::{connection, output};

pub(crate) async fn run(global: &Global) -> Result<Exit, Failure> {
    let client = connection::connect(global).await?;
    let all = connection::with_spinner("contacting the node", client.deployments()).await?;
    connection::disconnect(client).await;
    if global.output == OutputFormat::Json {
        let all = all.iter().map(|it| {
            json!({
                "namespace": it.namespace, "type": it.r#type, "revision": it.revision,
                "pool": it.pool, "digest": hex(&it.digest), "component_size": it.component_size,
            })
        });
        output::json(&all.collect());
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

/// Bytes as hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
