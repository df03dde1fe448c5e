//! `ostraca dead-letters`: lists, resends and drops dead letters (R19).

use ostraca_client::{
    CallError, CallOptions, Client, DeadLetter, DeadLetterAction, DeadLettersRequest, Entity,
    MAX_DEAD_LETTERS, SessionId,
};
use ostraca_codes::codes;
use serde_json::{Value, json};

use super::deployments::hex;
use super::{entities, inspect, send};
use crate::args::{
    ChosenDeadLetters, DeadLetterCommand, DeadLetters, Global, ListedDeadLetters, OutputFormat,
};
use crate::failure::{Exit, Failure};
use crate::{connection, output, quote};

/// Maximum number of dead letters per page.
const PAGE: u32 = 1_000;

pub(crate) async fn run(global: &Global, args: &DeadLetters) -> Result<Exit, Failure> {
    match &args.what {
        DeadLetterCommand::List(args) => list(global, args).await,
        DeadLetterCommand::Resend(args) => handle(global, args, DeadLetterAction::Resend).await,
        DeadLetterCommand::Drop(args) => handle(global, args, DeadLetterAction::Drop).await,
    }
}

async fn list(global: &Global, args: &ListedDeadLetters) -> Result<Exit, Failure> {
    let (r#type, id) = match &args.sender {
        Some(sender) if sender.contains('/') => {
            let entity = send::entity(sender)?;
            (entity.entity_type.to_string(), entity.id.to_string())
        }
        Some(entity_type) => (entity_type.clone(), String::new()),
        None => Default::default(),
    };
    let cursor = args.cursor.as_deref().map(entities::cursor).transpose()?.unwrap_or_default();
    let request = DeadLettersRequest { r#type, id, limit: args.limit, cursor, values: args.values };
    let client = connection::connect(global).await?;
    let reading = read(&client, request, args.limit as usize);
    let (letters, next) = connection::with_spinner("contacting the node", reading).await?;
    connection::disconnect(client).await;
    if global.output == OutputFormat::Json {
        let letters: Vec<_> = letters.iter().map(|it| letter_json(it, args.values)).collect();
        output::json(&json!({ "dead_letters": letters, "next_cursor": next }));
        return Ok(Exit::Done);
    }
    if letters.is_empty() {
        output::line("there are no dead letters");
        return Ok(Exit::Done);
    }
    let rows = letters.iter().map(row);
    output::table(["FROM", "NUMBER", "SENT", "TO", "METHOD", "LAST FAILURE"], rows.collect());
    if args.values {
        output::line("");
        let bodies = letters.iter().map(|it| [number(it).to_string(), body_text(it)]);
        output::table(["NUMBER", "BODY"], bodies.collect());
    }
    if let Some(next) = next {
        let mut parts = vec!["ostraca dead-letters list".to_owned()];
        parts.extend(args.sender.as_deref().map(quote::shell_quote));
        parts.extend((args.limit != 100).then(|| format!("--limit {}", args.limit)));
        parts.extend(args.values.then(|| "--values".to_owned()));
        output::line(&format!("\nnext page: {} --cursor {next}", parts.join(" ")));
    }
    Ok(Exit::Done)
}

/// Reads up to `limit` dead letters, and the cursor of those that follow.
async fn read(
    client: &Client,
    mut request: DeadLettersRequest,
    limit: usize,
) -> Result<(Vec<DeadLetter>, Option<String>), Failure> {
    let mut all = Vec::new();
    loop {
        let remaining = u32::try_from(limit.saturating_sub(all.len())).unwrap_or(u32::MAX);
        request.limit = remaining.min(PAGE);
        let page = client.dead_letters(request.clone()).await?;
        all.extend(page.dead_letters);
        request.cursor = page.next_cursor;
        if request.cursor.is_empty() || all.len() >= limit {
            let next = Some(hex(&request.cursor)).filter(|next| !next.is_empty());
            return Ok((all, next));
        }
    }
}

async fn handle(
    global: &Global,
    args: &ChosenDeadLetters,
    action: DeadLetterAction,
) -> Result<Exit, Failure> {
    let sender = send::entity(&args.sender)?;
    let deadline = connection::Deadline::after(args.timeout);
    let client = connection::connect_by(global, deadline).await?;
    let mut left = args.numbers.clone();
    if args.all {
        let request = DeadLettersRequest {
            r#type: sender.entity_type.to_string(),
            id: sender.id.to_string(),
            ..DeadLettersRequest::default()
        };
        left = read(&client, request, usize::MAX).await?.0.iter().map(number).collect();
    }
    let mut handled = Vec::new();
    let handling = handle_all(&client, &sender, action, &mut left, &mut handled, deadline);
    let ended = connection::with_spinner("waiting for the outcome", handling).await;
    connection::disconnect(client).await;
    let count = inspect::many(handled.len() as u64, "dead letter", "dead letters");
    let done = match action {
        DeadLetterAction::Resend => format!("{count} of {} resent", args.sender),
        DeadLetterAction::Drop => format!("{count} of {} dropped", args.sender),
    };
    ended.map_err(|error| {
        Failure::from(error).help(format!(
            "so far: {done}\nit is safe to repeat the command: no dead letter is handled twice\n`ostraca dead-letters list {}` shows which remain",
            quote::shell_quote(&args.sender)
        ))
    })?;
    // With `--all`, someone else has handled them since they were listed.
    let unknown = if args.all { Vec::new() } else { left };
    if global.output == OutputFormat::Json {
        output::json(&json!({ "handled": handled, "unknown": unknown }));
    } else {
        output::line(&done);
    }
    if unknown.is_empty() {
        return Ok(Exit::Done);
    }
    let numbers: Vec<_> = unknown.iter().map(u64::to_string).collect();
    let text =
        format!("{} has no dead letters with these numbers: {}", args.sender, numbers.join(", "));
    Err(Failure::new(Exit::NotRun, codes::UNKNOWN_DEAD_LETTER, text).help(format!(
        "they were already resent or dropped, or never existed; `ostraca dead-letters list {}` shows those that remain",
        quote::shell_quote(&args.sender)
    )))
}

/// Resends or drops the dead letters in turns of the sender, and moves them from `left` to `handled`. Those that do not
/// exist remain in `left`.
async fn handle_all(
    client: &Client,
    sender: &Entity,
    action: DeadLetterAction,
    left: &mut Vec<u64>,
    handled: &mut Vec<u64>,
    deadline: connection::Deadline,
) -> Result<(), CallError> {
    let session = client.session_with_id(SessionId::random(), 1);
    let mut unknown = Vec::new();
    left.sort_unstable();
    left.dedup();
    while !left.is_empty() {
        let some = &left[..left.len().min(MAX_DEAD_LETTERS)];
        let options = CallOptions { timeout: deadline.remaining(), ..CallOptions::default() };
        match session.handle_dead_letters(sender, action, some, &options).await {
            Ok(numbers) => {
                left.retain(|number| !numbers.contains(number));
                handled.extend(numbers);
            }
            Err(CallError::NotRun { code, .. }) if code == codes::UNKNOWN_DEAD_LETTER => {
                unknown.extend(left.drain(..left.len().min(MAX_DEAD_LETTERS)));
            }
            Err(error) => return Err(error),
        }
    }
    *left = unknown;
    Ok(())
}

fn number(letter: &DeadLetter) -> u64 {
    letter.tell.as_ref().map_or(0, |tell| tell.number)
}

fn row(letter: &DeadLetter) -> [String; 6] {
    let tell = letter.tell.clone().unwrap_or_default();
    let [number, to, method, failure] = inspect::tell_row(&tell);
    let from = inspect::shown(&format!("{}/{}", letter.r#type, letter.id));
    [from, number, output::wall(letter.unix_ms), to, method, failure]
}

fn body_text(letter: &DeadLetter) -> String {
    let size = letter.tell.as_ref().map_or(0, |tell| tell.body_size);
    inspect::bytes_text(&letter.body, size)
}

fn letter_json(letter: &DeadLetter, values: bool) -> Value {
    let tell = letter.tell.clone().unwrap_or_default();
    let mut it = json!({
        "sender": { "type": letter.r#type, "id": letter.id }, "unix_ms": letter.unix_ms,
        "timestamp": output::wall(letter.unix_ms), "tell": inspect::tell_json(&tell),
    });
    if values {
        inspect::add_bytes(&mut it, "body", &letter.body, tell.body_size);
        it["content_type"] = letter.content_type.clone().into();
    }
    it
}
