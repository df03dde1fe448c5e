//! `ostraca entities`: lists entities.

use bytes::Bytes;
use ostraca_client::{EntitiesRequest, EntityInfo, NodeIssue};
use ostraca_codes::codes;
use serde_json::json;

use super::deployments::hex;
use crate::args::{Entities, Global, OutputFormat};
use crate::failure::{Exit, Failure};
use crate::{connection, output, quote};

pub(crate) async fn run(global: &Global, args: &Entities) -> Result<Exit, Failure> {
    let mut request = EntitiesRequest {
        r#type: args.entity_type.clone().unwrap_or_default(),
        shard: args.shard.unwrap_or(0),
        limit: 0,
        cursor: args.cursor.as_deref().map(cursor).transpose()?.unwrap_or_default(),
    };
    let client = connection::connect(global).await?;
    let mut all: Vec<EntityInfo> = Vec::new();
    let mut silent: Vec<NodeIssue> = Vec::new();
    // A page may have fewer entities than requested without being the last.
    loop {
        let remaining = (args.limit as usize).saturating_sub(all.len());
        request.limit = u32::try_from(remaining).unwrap_or(u32::MAX);
        let page =
            connection::with_spinner("contacting the node", client.entities(request.clone()))
                .await?;
        all.extend(page.entities);
        for one in page.unresponsive_owners {
            if silent.iter().all(|known| known.node != one.node) {
                silent.push(one);
            }
        }
        request.cursor = page.next_cursor;
        if request.cursor.is_empty() || all.len() >= args.limit as usize {
            break;
        }
    }
    connection::disconnect(client).await;
    let next = Some(hex(&request.cursor)).filter(|next| !next.is_empty());
    if global.output == OutputFormat::Json {
        let entities: Vec<_> = all
            .iter()
            .map(|it| {
                json!({
                    "type": it.r#type, "id": it.id, "shard": it.shard, "version": it.version,
                    "revision": it.revision, "state_bytes": it.state_bytes, "active": it.active,
                    "owner": Some(&it.owner).filter(|owner| !owner.is_empty()),
                })
            })
            .collect();
        let unanswered: Vec<_> =
            silent.iter().map(|it| json!({ "node": it.node, "reason": it.reason })).collect();
        output::json(
            &json!({ "entities": entities, "next_cursor": next, "unresponsive_owners": unanswered }),
        );
        return check_owners(&silent);
    }
    if all.is_empty() {
        output::line("no matching entity is stored");
        return Ok(Exit::Done);
    }
    let rows = all.iter().map(|it| {
        [
            format!("{}/{}", it.r#type, it.id),
            it.shard.to_string(),
            it.owner.clone(),
            it.version.to_string(),
            it.revision.to_string(),
            output::size(it.state_bytes),
            instance_state(it.active).into(),
        ]
    });
    output::table(["ENTITY", "SHARD", "NODE", "VERSION", "REVISION", "STATE", ""], rows.collect());
    if let Some(next) = next {
        output::line("");
        output::line(&format!("next page: {}", next_page_command(args, &next)));
    }
    check_owners(&silent)
}

/// The stored data has been shown, but missing information from an owner is still an error.
pub(crate) fn check_owners(silent: &[NodeIssue]) -> Result<Exit, Failure> {
    let Some(first) = silent.first() else { return Ok(Exit::Done) };
    let describe = |it: &NodeIssue| {
        format!(
            "node {} did not respond; whether its entities are active is unknown: {}",
            it.node, it.reason
        )
    };
    let text = silent.iter().map(describe).collect::<Vec<_>>().join("; ");
    let help = format!(
        "stored data was shown; check {} with `ostraca nodes`; shards of a dead node are reassigned soon",
        first.node
    );
    Err(Failure::new(Exit::Unreachable, codes::OWNER_UNRESPONSIVE, text).help(help))
}

/// The word for whether an entity is active.
pub(crate) fn instance_state(live: Option<bool>) -> &'static str {
    match live {
        Some(true) => "live",
        Some(false) => "asleep",
        None => "unknown",
    }
}

pub(super) fn cursor(text: &str) -> Result<Bytes, Failure> {
    let digit = |at| text.get(at..at + 2).and_then(|two| u8::from_str_radix(two, 16).ok());
    let bytes: Option<Vec<u8>> = (0..text.len()).step_by(2).map(digit).collect();
    bytes.map(Bytes::from).ok_or_else(|| {
        Failure::usage(codes::INVALID_CURSOR, format!("{text:?} is not a cursor"))
            .help("use the cursor that the previous page printed, or leave it out")
    })
}

/// The command that prints the next page.
fn next_page_command(args: &Entities, next: &str) -> String {
    let mut parts = vec!["ostraca".to_owned(), "entities".into()];
    parts.extend(args.entity_type.as_deref().map(quote::shell_quote));
    parts.extend(args.shard.map(|shard| format!("--shard {shard}")));
    parts.extend((args.limit != 100).then(|| format!("--limit {}", args.limit)));
    parts.push(format!("--cursor {next}"));
    parts.join(" ")
}
