//! `ostraca forget-entity`: removes the mark of a remembered entity (K31).

use ostraca_client::{CallOptions, SessionId};
use serde_json::json;

use super::send;
use crate::args::{ForgetEntity, Global, OutputFormat};
use crate::failure::{Exit, Failure};
use crate::{connection, output, quote};

pub(crate) async fn run(global: &Global, args: &ForgetEntity) -> Result<Exit, Failure> {
    let entity = send::entity(&args.entity)?;
    let deadline = connection::Deadline::after(args.timeout);
    let client = connection::connect_by(global, deadline).await?;
    let session = client.session_with_id(SessionId::random(), 1);
    let options = CallOptions { timeout: deadline.remaining(), ..CallOptions::default() };
    let forgetting = session.forget_entity(&entity, &options);
    let ended = connection::with_spinner("waiting for the outcome", forgetting).await;
    connection::disconnect(client).await;
    ended.map_err(|error| {
        Failure::from(error).help(format!(
            "it is safe to repeat the command\n`ostraca inspect {}` shows whether the entity is remembered",
            quote::shell_quote(&args.entity)
        ))
    })?;
    match global.output {
        OutputFormat::Json => output::json(&json!({ "entity": args.entity, "forgotten": true })),
        _ => output::line(&format!(
            "{} is no longer remembered; it starts only for messages and timers",
            args.entity
        )),
    }
    Ok(Exit::Done)
}
