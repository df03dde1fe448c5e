//! `ostraca send`: sends one message and prints its outcome.

use std::io::Read;
use std::time::Duration;

use bytes::Bytes;
use miette::{Diagnostic, NamedSource, SourceSpan};
use ostraca_client::{
    CallError, CallOptions, Client, Entity, MessageId, MessageKind, Reply, SessionId,
};
use ostraca_codes::codes;
use ostraca_schema::{self as schema, Mismatch};
use serde::de::IgnoredAny;
use serde_json::json;

use crate::args::{Global, OutputFormat, Send};
use crate::failure::{Exit, Failure, STATUS};
use crate::{connection, output, quote};

/// Maximum size of a body that is read from standard input: no node accepts more.
const MAX_INPUT: u64 = 64 << 20;

/// How long to wait for the schema of a method's arguments.
const CHECK_TIMEOUT: Duration = Duration::from_secs(2);

pub(crate) async fn run(global: &Global, args: &Send) -> Result<Exit, Failure> {
    let entity = entity(&args.entity)?;
    let body = body(args.json.as_deref())?;
    let (id, next) =
        args.id.map_or_else(|| (SessionId::random(), 1), |id| (id.session, id.sequence));
    let deadline = connection::Deadline::after(args.timeout);
    let client = connection::connect_by(global, deadline).await?;
    let mut options = CallOptions {
        timeout: Duration::ZERO,
        kind: match (args.command, args.query) {
            (true, _) => MessageKind::Command,
            (_, true) => MessageKind::Query,
            _ => MessageKind::Unspecified,
        },
        resend: args.id,
        retry: !args.no_retry,
        traceparent: traceparent(args.traceparent.as_deref()),
        ..CallOptions::default()
    };
    if args.id.is_none() && !args.no_check {
        check(&client, &entity.entity_type, &args.method, &body, deadline).await?;
    }
    options.timeout = deadline.remaining();
    let session = client.session_with_id(id, next);
    let call = session.send(&entity, &args.method, body.clone(), &options);
    let waiting = connection::with_spinner("waiting for the outcome", call);
    // If no outcome arrives, the error depends on the kind: only a command is in doubt. So find out the kind in the
    // meantime.
    let asking = is_query(&client, &entity.entity_type, &args.method, options.timeout / 2);
    let (outcome, query) = with_kind(waiting, asking).await;
    connection::disconnect(client).await;
    match outcome {
        Err(CallError::Unknown { id, code, message }) if query => {
            Err(Failure::unanswered(id, &code, &message))
        }
        Ok(answer) => {
            print(global, &answer);
            Ok(Exit::Done)
        }
        Err(error @ CallError::Unknown { id, .. }) if error.code() != codes::TOO_OLD => {
            let flags: &[&str] = match (args.command, args.query) {
                (true, _) => &["--command"],
                (_, true) => &["--query"],
                _ => &[],
            };
            let parts = [&args.entity[..], &args.method];
            let json = args.json.is_some().then_some(&body[..]);
            let again = command_line(global, "send", parts, json, flags, id);
            let help = format!(
                "resend it with the same id at any time; it never runs twice:\n{again}\n{STATUS}"
            );
            Err(Failure::from(error).help(help))
        }
        Err(error) => Err(error.into()),
    }
}

/// A trace context to send. One that is none, such as a variable of another meaning, is left out.
pub(super) fn traceparent(given: Option<&str>) -> String {
    let is_context = |text: &&str| {
        text.len() == 55 && text.bytes().all(|byte| byte == b'-' || byte.is_ascii_hexdigit())
    };
    given.filter(is_context).unwrap_or_default().to_owned()
}

/// Compares the arguments with the method's schema, if the node knows one. Whatever else goes wrong here, sending the
/// message shows it better.
pub(super) async fn check(
    client: &Client,
    kind: &str,
    method: &str,
    body: &[u8],
    deadline: connection::Deadline,
) -> Result<(), Failure> {
    let asking =
        tokio::time::timeout(CHECK_TIMEOUT.min(deadline.remaining() / 2), client.methods(kind));
    let Ok(Ok(found)) = asking.await else { return Ok(()) };
    let Some(method) = found.methods.iter().find(|it| it.name == method) else { return Ok(()) };
    let Some(known) = &method.schema else { return Ok(()) };
    let checked = schema::check_body(&known.arguments, body);
    checked.map_err(|mismatch: Mismatch| {
        let signature = schema::signature(&method.name, &known.arguments, &known.result);
        Failure::usage(codes::SCHEMA_MISMATCH, format!("not sent: {mismatch}"))
            .help(format!("the method is {signature}; --no-check sends it anyway"))
    })
}

/// Whether a method is declared a query. Asks the node after a pause.
async fn is_query(client: &Client, kind: &str, method: &str, after: Duration) -> bool {
    tokio::time::sleep(after).await;
    let methods = client.methods(kind).await.map(|found| found.methods).unwrap_or_default();
    methods.iter().any(|it| it.name == method && it.kind() == MessageKind::Query)
}

/// Waits only for the outcome, and returns it with whatever `asking` has found out by then.
async fn with_kind<T>(
    outcome: impl Future<Output = T>,
    asking: impl Future<Output = bool>,
) -> (T, bool) {
    tokio::pin!(outcome, asking);
    let mut query = None;
    loop {
        tokio::select! {
            biased;
            outcome = &mut outcome => return (outcome, query.unwrap_or(false)),
            found = &mut asking, if query.is_none() => query = Some(found),
        }
    }
}

pub(super) fn entity(text: &str) -> Result<Entity, Failure> {
    let bad = |text: String| {
        Failure::usage(codes::INVALID_ENTITY, text).help("write TYPE/ID, as in counter/alice")
    };
    match text.split_once('/') {
        Some(("", _)) => Err(bad(format!("{text:?} has no type"))),
        Some((_, "")) => Err(bad(format!("{text:?} has no id"))),
        Some((_, id)) if id.len() > 512 => {
            Err(bad(format!("the id is {} bytes, must be 1 to 512", id.len())))
        }
        Some((kind, id)) => Ok(Entity::new(kind, id)),
        None => Err(bad(format!("{text:?} is not an entity"))),
    }
}

/// The arguments, checked to be JSON before anything is sent, and sent unchanged.
pub(super) fn body(json: Option<&str>) -> Result<Bytes, Failure> {
    let (name, text) = match json {
        None => return Ok(Bytes::new()),
        Some("-") => ("standard input", stdin()?),
        Some(text) => ("the argument", text.to_owned()),
    };
    if let Err(error) = serde_json::from_str::<IgnoredAny>(&text) {
        return Err(invalid_json(name, &text, &error));
    }
    Ok(text.into())
}

fn stdin() -> Result<String, Failure> {
    let mut text = String::new();
    let read = std::io::stdin().lock().take(MAX_INPUT + 1).read_to_string(&mut text);
    read.map_err(|error| {
        Failure::usage(codes::INVALID_JSON, format!("cannot read standard input: {error}"))
    })?;
    if text.len() as u64 > MAX_INPUT {
        let text = format!("standard input has more than {MAX_INPUT} bytes");
        return Err(Failure::usage(codes::MESSAGE_TOO_LARGE, text).help("send a smaller message"));
    }
    Ok(text)
}

/// The place at which the JSON becomes invalid.
#[derive(Debug, thiserror::Error, Diagnostic)]
#[error("not JSON")]
struct InvalidJson {
    #[source_code]
    text: NamedSource<String>,
    #[label("here")]
    at: SourceSpan,
}

fn invalid_json(name: &str, text: &str, error: &serde_json::Error) -> Failure {
    // serde counts columns in bytes from 1, and reports the end of the previous line as column 0.
    let before: usize =
        text.split_inclusive('\n').take(error.line().saturating_sub(1)).map(str::len).sum();
    let mut at = (before + error.column().saturating_sub(1)).min(text.len());
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    let length = text[at..].chars().next().map_or(0, char::len_utf8);
    let place = InvalidJson {
        text: NamedSource::new(name, text.to_owned()),
        at: SourceSpan::new(at.into(), length),
    };
    Failure::usage(codes::INVALID_JSON, format!("{name} is not JSON: {error}"))
        .help("quote it for the shell, as in '{\"by\": 3}' or '\"text\"'")
        .place(place)
}

fn print(global: &Global, answer: &Reply) {
    if global.output == OutputFormat::Table {
        return output::bytes(&answer.body);
    }
    let result = serde_json::from_slice(&answer.body)
        .unwrap_or_else(|_| json!(String::from_utf8_lossy(&answer.body)));
    output::json(&json!({
        "result": result, "version": answer.version, "id": answer.id.to_string(),
        "kind": if answer.kind == MessageKind::Query { "query" } else { "command" },
    }));
}

/// The command that sends the same message again.
pub(super) fn command_line(
    global: &Global,
    verb: &str,
    [entity, method]: [&str; 2],
    body: Option<&[u8]>,
    flags: &[&str],
    id: MessageId,
) -> String {
    let mut parts = vec!["ostraca".to_owned(), verb.into()];
    if let Some(profile) = &global.profile {
        parts.extend(["--profile".into(), quote::shell_quote(&profile.display().to_string())]);
    }
    if let Some(namespace) = &global.namespace {
        parts.extend(["--namespace".into(), quote::shell_quote(namespace)]);
    }
    let named = [entity, method].into_iter().filter(|part| !part.is_empty());
    parts.extend(named.map(quote::shell_quote));
    parts.extend(body.map(|body| quote::shell_quote(&String::from_utf8_lossy(body))));
    parts.extend(flags.iter().map(|flag| (*flag).to_owned()));
    parts.extend(["--id".into(), id.to_string()]);
    parts.join(" ")
}
