//! `ostraca methods TYPE`: lists a type's methods.

use ostraca_client::{MessageKind, Method};
use ostraca_schema as schema;
use serde_json::{Value, json};

use super::inspect::shown;
use crate::args::{Global, Methods, OutputFormat};
use crate::failure::{Exit, Failure};
use crate::{connection, output};

pub(crate) async fn run(global: &Global, args: &Methods) -> Result<Exit, Failure> {
    let client = connection::connect(global).await?;
    let found =
        connection::with_spinner("contacting the node", client.methods(&args.entity_type)).await?;
    connection::disconnect(client).await;
    if global.output == OutputFormat::Json {
        let methods: Vec<_> = found
            .methods
            .iter()
            .map(|method| {
                let mut shown = json!({
                    "name": method.name, "kind": kind(method), "summary": method.summary,
                });
                if let Some(schema) = &method.schema {
                    shown["arguments"] = json_schema(&schema.arguments);
                    shown["result"] = json_schema(&schema.result);
                }
                shown
            })
            .collect();
        output::json(
            &json!({ "type": found.r#type, "revision": found.revision, "methods": methods }),
        );
    } else {
        let rows = found
            .methods
            .iter()
            .map(|method| [signature(method), kind(method).into(), shown(&method.summary)]);
        output::table(["METHOD", "KIND", "SUMMARY"], rows.collect());
    }
    Ok(Exit::Done)
}

/// The method as in `add(by: integer) -> integer`; only its name if its component describes no types.
fn signature(method: &Method) -> String {
    match &method.schema {
        Some(it) => shown(&schema::signature(&method.name, &it.arguments, &it.result)),
        None => method.name.clone(),
    }
}

fn json_schema(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_default()
}

/// The word for a method's kind.
pub(crate) fn kind(method: &Method) -> &'static str {
    match method.kind() {
        MessageKind::Query => "query",
        MessageKind::Command => "command",
        MessageKind::Unspecified => "unknown",
    }
}
