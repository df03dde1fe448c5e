//! `ostraca import TYPE/ID`: creates an entity from a file that `ostraca export` wrote.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use ostraca_client::{CallOptions, Client, Entity, SessionId, decode_export, encode_export};
use ostraca_codes::codes;
use serde_json::json;

use super::send;
use crate::args::{Global, Import, OutputFormat};
use crate::failure::{Exit, Failure};
use crate::quote::shell_quote;
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
    let replaced = PathBuf::from(format!("{file}.replaced"));
    let deadline = connection::Deadline::after(args.timeout);
    let client = connection::connect_by(global, deadline).await?;
    let session = client.session_with_id(SessionId::random(), 1);
    let options = || CallOptions { timeout: deadline.remaining(), ..CallOptions::default() };
    let importing = async {
        // Whatever is wrong with the file is found before anything is deleted.
        match session.import_entity(&entity, export.clone(), &options()).await {
            Err(error) if args.replace && error.code() == codes::ENTITY_EXISTS => {}
            ended => return ended.map_err(Failure::from),
        }
        keep(&client, &entity, &replaced).await?;
        let replacing = async {
            match session.delete_entity(&entity, &options()).await {
                Err(error) if error.code() != codes::UNKNOWN_ENTITY => Err(error),
                _ => session.import_entity(&entity, export, &options()).await,
            }
        };
        replacing.await.map_err(|error| {
            let (id, file) = (&args.entity, shell_quote(&replaced.display().to_string()));
            let back = format!("`ostraca import {id} --file {file}` brings back what it was");
            let text = format!("{id} may be deleted; repeat without --replace; {back}");
            Failure::from(error).help(text)
        })
    };
    let ended = connection::with_spinner("waiting for the acknowledgement", importing).await;
    connection::disconnect(client).await;
    let reply = ended?;
    match global.output {
        OutputFormat::Json => {
            output::json(&json!({ "entity": args.entity, "version": reply.version }));
        }
        OutputFormat::Table => output::line(&format!("{} is imported", args.entity)),
    }
    Ok(Exit::Done)
}

/// Writes what the entity is to a new file, before it is replaced.
async fn keep(client: &Client, entity: &Entity, path: &Path) -> Result<(), Failure> {
    let export = client.export(entity).await?;
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::AlreadyExists => {
            let text = format!("cannot keep what {entity} is: {} exists", path.display());
            let help = "it is what an earlier --replace has replaced: move it away";
            Failure::new(Exit::Usage, codes::FILE_ERROR, text).help(help)
        }
        _ => Failure::file("write", path, &error),
    };
    let mut file = File::create_new(path).map_err(failed)?;
    file.write_all(&encode_export(&export)).and_then(|()| file.sync_all()).map_err(failed)
}
