//! `ostraca tell`: sends a command and prints only whether it was committed (R19).

use ostraca_client::{CallError, CallOptions, MessageKind, SessionId};
use ostraca_codes::codes;
use serde_json::json;

use super::send;
use crate::args::{Global, OutputFormat, Tell};
use crate::failure::{Exit, Failure, STATUS};
use crate::{connection, output};

pub(crate) async fn run(global: &Global, args: &Tell) -> Result<Exit, Failure> {
    let entity = send::entity(&args.entity)?;
    let body = send::body(args.json.as_deref())?;
    let (id, next) =
        args.id.map_or_else(|| (SessionId::random(), 1), |id| (id.session, id.sequence));
    let deadline = connection::Deadline::after(args.timeout);
    let client = connection::connect_by(global, deadline).await?;
    if args.id.is_none() && !args.no_check {
        send::check(&client, &entity.entity_type, &args.method, &body, deadline).await?;
    }
    let options = CallOptions {
        timeout: deadline.remaining(),
        kind: MessageKind::Command,
        resend: args.id,
        traceparent: send::traceparent(args.traceparent.as_deref()),
        ..CallOptions::default()
    };
    let session = client.session_with_id(id, next);
    let call = session.send(&entity, &args.method, body.clone(), &options);
    let outcome = connection::with_spinner("waiting for the acknowledgement", call).await;
    connection::disconnect(client).await;
    match outcome {
        Ok(answer) => {
            match global.output {
                OutputFormat::Table => output::line(&format!("done, version {}", answer.version)),
                OutputFormat::Json => {
                    output::json(&json!({ "version": answer.version, "id": answer.id.to_string() }))
                }
            }
            Ok(Exit::Done)
        }
        Err(error @ CallError::Unknown { id, .. }) if error.code() != codes::TOO_OLD => {
            let parts = [&args.entity[..], &args.method];
            let json = args.json.is_some().then_some(&body[..]);
            let again = send::command_line(global, "tell", parts, json, &[], id);
            let help = format!(
                "resend it with the same id at any time; it never runs twice:\n{again}\n{STATUS}"
            );
            Err(Failure::from(error).help(help))
        }
        Err(CallError::NotRun { code, .. }) if code == codes::WRONG_KIND => {
            let text = format!("not run: {} is a query, but a tell must be a command", args.method);
            Err(Failure::new(Exit::NotRun, codes::WRONG_KIND, text)
                .help("use `ostraca send` for queries"))
        }
        Err(error) => Err(error.into()),
    }
}
