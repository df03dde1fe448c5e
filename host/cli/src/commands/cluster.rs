//! `ostraca cluster`: cluster-wide settings and format.

use ostraca_wire::proto::{ClusterConfigRequest, ClusterSetting};
use serde_json::{Map, json};

use crate::args::{Cluster, Global, OutputFormat};
use crate::failure::{Exit, Failure};
use crate::{connection, output};

pub(crate) async fn run(global: &Global, args: &Cluster) -> Result<Exit, Failure> {
    let client = connection::connect(global).await?;
    let setting = |(name, value): &(String, String)| ClusterSetting {
        name: name.clone(),
        value: value.clone(),
    };
    let set = args.set.iter().map(setting).collect();
    let request = ClusterConfigRequest { changes: set, upgrade_format: args.upgrade_format };
    let state = connection::with_spinner("contacting the node", client.cluster(request)).await?;
    connection::disconnect(client).await;
    if global.output == OutputFormat::Json {
        let settings: Map<_, _> =
            state.settings.iter().map(|it| (it.name.clone(), json!(it.value))).collect();
        let nodes: Vec<_> = state
            .nodes
            .iter()
            .map(|node| {
                json!({
                    "name": node.name, "format": node.format, "lease_ms": node.lease_ms,
                    "settings_revision": node.settings_revision,
                })
            })
            .collect();
        output::json(&json!({
            "format": state.format, "target_format": state.target_format, "settings": settings,
            "settings_revision": state.settings_revision, "nodes": nodes,
        }));
        return Ok(Exit::Done);
    }
    let mut pairs = vec![("format", state.format.to_string())];
    if state.target_format != state.format {
        pairs.push(("raised to", format!("{}, in progress", state.target_format)));
    }
    pairs.extend(state.settings.iter().map(|it| (it.name.as_str(), it.value.clone())));
    output::pairs(&pairs);
    for node in state.nodes.iter().filter(|node| node.settings_revision < state.settings_revision) {
        output::line(&format!(
            "{} still uses older settings (lease {} ms)",
            node.name, node.lease_ms
        ));
    }
    Ok(Exit::Done)
}
