//! `ostraca namespace`: lists the cluster's namespaces, and creates more of them.

use ostraca_client::NamespaceInfo;
use serde_json::{Value, json};

use crate::args::{Global, NamespaceArgs, NamespaceCommand, OutputFormat};
use crate::failure::{Exit, Failure};
use crate::{connection, output};

pub(crate) async fn run(global: &Global, args: &NamespaceArgs) -> Result<Exit, Failure> {
    let create = match &args.what {
        NamespaceCommand::List => None,
        NamespaceCommand::Create { name } => Some(name.as_str()),
    };
    let client = connection::connect(global).await?;
    let all = connection::with_spinner("contacting the node", client.namespaces(create)).await?;
    connection::disconnect(client).await;
    let created = all.iter().find(|it| Some(it.name.as_str()) == create);
    if global.output == OutputFormat::Json {
        output::json(&match created {
            Some(namespace) => to_json(namespace),
            None => json!({ "namespaces": all.iter().map(to_json).collect::<Vec<_>>() }),
        });
        return Ok(Exit::Done);
    }
    if let Some(it) = created {
        output::line(&format!("the cluster has the namespace {}", it.name));
        return Ok(Exit::Done);
    }
    let rows = all.iter().map(|it| [it.name.clone(), it.types.to_string(), it.created_by.clone()]);
    output::table(["NAMESPACE", "TYPES", "CREATED BY"], rows.collect());
    Ok(Exit::Done)
}

fn to_json(it: &NamespaceInfo) -> Value {
    json!({
        "name": it.name, "types": it.types,
        "created_unix_ms": Some(it.created_unix_ms).filter(|at| *at > 0),
        "created_by": Some(&it.created_by).filter(|by| !by.is_empty()),
    })
}
