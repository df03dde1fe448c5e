//! `ostraca methods TYPE`: lists a type's methods.

use ostraca_client::{MessageKind, Method};
use serde_json::json;

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
                json!({
                    "name": method.name, "kind": kind(method), "summary": method.summary,
                })
            })
            .collect();
        output::json(
            &json!({ "type": found.r#type, "revision": found.revision, "methods": methods }),
        );
    } else {
        let rows = found
            .methods
            .iter()
            .map(|method| [method.name.clone(), kind(method).into(), shown(&method.summary)]);
        output::table(["METHOD", "KIND", "SUMMARY"], rows.collect());
    }
    Ok(Exit::Done)
}

/// The word for a method's kind.
pub(crate) fn kind(method: &Method) -> &'static str {
    match method.kind() {
        MessageKind::Query => "query",
        MessageKind::Command => "command",
        MessageKind::Unspecified => "unknown",
    }
}
