//! `ostraca restart-entity`: lets an entity start again that was stopped after a failure (K33), and repeats a migration
//! that failed (R24).

use ostraca_client::{CallOptions, SessionId};
use serde_json::json;

use super::send;
use crate::args::{Global, OutputFormat, RestartEntity};
use crate::failure::{Exit, Failure};
use crate::{connection, output};

pub(crate) async fn run(global: &Global, args: &RestartEntity) -> Result<Exit, Failure> {
    let entity = send::entity(&args.entity)?;
    let deadline = connection::Deadline::after(args.timeout);
    let client = connection::connect_by(global, deadline).await?;
    let session = client.session_with_id(SessionId::random(), 1);
    let options = CallOptions { timeout: deadline.remaining(), ..CallOptions::default() };
    let restarting = session.restart_entity(&entity, &options);
    let ended = connection::with_spinner("waiting for the outcome", restarting).await;
    connection::disconnect(client).await;
    let restarted =
        ended.map_err(|error| Failure::from(error).help("it is safe to repeat the command"))?;
    match global.output {
        OutputFormat::Json => {
            output::json(&json!({
                "entity": args.entity,
                "was_stopped": restarted.was_stopped,
                "migrates_again": restarted.migrates_again,
            }));
        }
        _ if restarted.migrates_again => {
            output::line(&format!("{} is migrated again when it next starts", args.entity));
        }
        _ if restarted.was_stopped => output::line(&format!("{} may start again", args.entity)),
        _ => output::line(&format!("{} was not stopped", args.entity)),
    }
    Ok(Exit::Done)
}
