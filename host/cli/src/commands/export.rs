//! `ostraca export TYPE/ID`: writes one entity to a file.

use std::fs;

use ostraca_client::encode_export;
use serde_json::json;

use super::inspect::many;
use super::send;
use crate::args::{Export, Global, OutputFormat};
use crate::failure::{Exit, Failure};
use crate::{connection, output};

pub(crate) async fn run(global: &Global, args: &Export) -> Result<Exit, Failure> {
    let entity = send::entity(&args.entity)?;
    let client = connection::connect(global).await?;
    let export = connection::with_spinner("reading the entity", client.export(&entity)).await;
    connection::disconnect(client).await;
    let export = export?;
    let content = encode_export(&export);
    fs::write(&args.file, &content).map_err(|error| Failure::file("write", &args.file, &error))?;
    let file = args.file.display().to_string();
    if global.output == OutputFormat::Json {
        output::json(&json!({
            "entity": args.entity, "file": file, "bytes": content.len(), "version": export.version,
            "outbox_count": export.outbox_count, "subscription_count": export.subscriptions.len(),
        }));
        return Ok(Exit::Done);
    }
    let size = output::size(content.len() as u64);
    output::line(&format!("{} at version {} is in {file}, {size}", args.entity, export.version));
    if export.outbox_count > 0 {
        let tells = many(export.outbox_count, "tell", "tells");
        output::line(&format!("its outbox with {tells} is not part of it"));
    }
    Ok(Exit::Done)
}
