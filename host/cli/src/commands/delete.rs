//! `ostraca delete`: deletes one entity (E17).

use ostraca_client::{CallError, CallOptions, SessionId};
use ostraca_codes::codes;
use serde_json::json;

use super::send;
use crate::args::{Delete, Global, OutputFormat};
use crate::failure::{Exit, Failure, STATUS};
use crate::{connection, output};

pub(crate) async fn run(global: &Global, args: &Delete) -> Result<Exit, Failure> {
    let entity = send::entity(&args.entity)?;
    let (id, next) =
        args.id.map_or_else(|| (SessionId::random(), 1), |id| (id.session, id.sequence));
    let deadline = connection::Deadline::after(args.timeout);
    let client = connection::connect_by(global, deadline).await?;
    let options =
        CallOptions { timeout: deadline.remaining(), resend: args.id, ..CallOptions::default() };
    let session = client.session_with_id(id, next);
    let call = session.delete_entity(&entity, &options);
    let outcome = connection::with_spinner("waiting for the acknowledgement", call).await;
    connection::disconnect(client).await;
    match outcome {
        Ok(answer) => {
            match global.output {
                OutputFormat::Table => output::line(&format!("{} is deleted", args.entity)),
                OutputFormat::Json => {
                    output::json(&json!({ "version": answer.version, "id": answer.id.to_string() }))
                }
            }
            Ok(Exit::Done)
        }
        Err(error @ CallError::Unknown { id, .. }) if error.code() != codes::TOO_OLD => {
            let again = send::command_line(global, "delete", [&args.entity, ""], None, &[], id);
            let help = format!(
                "resend it with the same id at any time; it never runs twice:\n{again}\n{STATUS}"
            );
            Err(Failure::from(error).help(help))
        }
        Err(error) => Err(error.into()),
    }
}
