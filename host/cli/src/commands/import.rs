//! `ostraca import TYPE/ID`: creates an entity from a file that `ostraca export` wrote.

use std::fs;

use ostraca_client::{CallOptions, SessionId, decode_export};
use ostraca_codes::codes;
use serde_json::json;

use super::send;
use crate::args::{Global, Import, OutputFormat};
use crate::failure::{Exit, Failure};
use crate::{connection, output};

pub(crate) async fn run(global: &Global, args: &Import) -> Result<Exit, Failure> {
    let entity = send::entity(&args.entity)?;
    let file = args.file.display();
    let content =
        fs::read(&args.file).map_err(|error| Failure::file("read", &args.file, &error))?;
    let mut export = decode_export(&content).map_err(|why| {
        Failure::new(Exit::Usage, codes::INVALID_IMPORT, format!("cannot use {file}: {why}"))
    })?;
    if args.without_subscriptions {
        export.subscriptions.clear();
    }
    let deadline = connection::Deadline::after(args.timeout);
    let client = connection::connect_by(global, deadline).await?;
    let session = client.session_with_id(SessionId::random(), 1);
    let options = || CallOptions { timeout: deadline.remaining(), ..CallOptions::default() };
    let importing = async {
        if args.replace {
            match session.delete_entity(&entity, &options()).await {
                Ok(_) => {}
                Err(error) if error.code() == codes::UNKNOWN_ENTITY => {}
                Err(error) => return Err(error),
            }
        }
        session.import_entity(&entity, export, &options()).await
    };
    let ended = connection::with_spinner("waiting for the acknowledgement", importing).await;
    connection::disconnect(client).await;
    let reply = ended.map_err(|error| {
        let replaced = "the entity may have been deleted already; repeat the command";
        let failure = Failure::from(error);
        if args.replace { failure.help(replaced) } else { failure }
    })?;
    match global.output {
        OutputFormat::Json => {
            output::json(&json!({ "entity": args.entity, "version": reply.version }));
        }
        OutputFormat::Table => output::line(&format!("{} is imported", args.entity)),
    }
    Ok(Exit::Done)
}
