//! `ostraca inspect TYPE/ID`: shows one entity's state.

use std::borrow::Cow;

use ostraca_client::StateKey;
use serde_json::{Value, json};

use super::deployments::hex;
use super::{entities, send};
use crate::args::{Global, Inspect, OutputFormat};
use crate::failure::{Exit, Failure};
use crate::{connection, output};

pub(crate) async fn run(global: &Global, args: &Inspect) -> Result<Exit, Failure> {
    let entity = send::entity(&args.entity)?;
    let client = connection::connect(global).await?;
    let it = connection::with_spinner("contacting the node", client.inspect(&entity, args.values))
        .await?;
    connection::disconnect(client).await;
    let owner = Some(&it.owner).filter(|owner| !owner.is_empty());
    if global.output == OutputFormat::Json {
        let keys: Vec<_> = it.keys.iter().map(|key| key_json(key, args.values)).collect();
        output::json(&json!({
            "type": it.r#type, "id": it.id, "shard": it.shard, "epoch": it.epoch, "owner": owner,
            "exists": it.exists, "version": it.version, "revision": it.revision,
            "last_commit_sequence": it.last_commit_sequence, "lane_count": it.lane_count, "unsettled_replies": it.unsettled_replies,
            "state_bytes": it.state_bytes, "key_count": it.key_count, "keys": keys,
            "active": it.active, "mailbox_length": it.mailbox_length,
            "last_failure": it.last_failure.as_ref().map(|it| json!({
                "code": it.code, "message": it.message, "consecutive_failures": it.consecutive_failures,
                "unix_ms": it.unix_ms, "timestamp": output::wall(it.unix_ms),
            })),
            "unresponsive_owner": it.unresponsive_owner.as_ref().map(|it| json!({ "node": it.node, "reason": it.reason })),
        }));
        return entities::check_owners(it.unresponsive_owner.as_slice());
    }
    let owner = match owner {
        Some(owner) => format!("owned by {owner}, epoch {}", it.epoch),
        None => "no owner".into(),
    };
    let mut rows = vec![
        ("entity", format!("{}/{}", it.r#type, it.id)),
        ("shard", format!("{}, {owner}", it.shard)),
    ];
    if it.exists {
        rows.extend([
            ("version", format!("{}, written by revision {}", it.version, it.revision)),
            ("last commit", format!("{} in its shard", it.last_commit_sequence)),
            (
                "sessions",
                format!(
                    "{}, with {}",
                    it.lane_count,
                    many(it.unsettled_replies, "unsettled reply", "unsettled replies")
                ),
            ),
            (
                "state",
                format!(
                    "{} in {}",
                    output::size(it.state_bytes),
                    many(it.key_count, "key", "keys")
                ),
            ),
        ]);
    } else {
        rows.push(("version", "nothing is stored".into()));
    }
    rows.push(("instance", entities::instance_state(it.active).into()));
    rows.extend(it.mailbox_length.map(|waiting| ("mailbox", many(waiting, "message", "messages"))));
    if let Some(it) = &it.last_failure {
        rows.push(("last turn", format!("failed at {}: {}", output::wall(it.unix_ms), it.code)));
        rows.push(("", shown(&it.message)));
        let count = many(it.consecutive_failures, "turn has failed", "turns have failed in a row");
        rows.push(("failures", count));
    }
    output::pairs(&rows);
    if !it.keys.is_empty() {
        output::line("");
        if args.values {
            let rows =
                it.keys.iter().map(|key| [shown(&key.key), output::size(key.size), value(key)]);
            output::table(["KEY", "SIZE", "VALUE"], rows.collect());
        } else {
            let rows = it.keys.iter().map(|key| [shown(&key.key), output::size(key.size)]);
            output::table(["KEY", "SIZE"], rows.collect());
        }
        let more = it.key_count.saturating_sub(it.keys.len() as u64);
        if more > 0 {
            output::line(&format!("and {more} more"));
        }
    }
    entities::check_owners(it.unresponsive_owner.as_slice())
}

/// A value is shown as JSON if it is complete and parses as that, else as text, else as hexadecimal digits.
fn key_json(key: &StateKey, values: bool) -> Value {
    let mut it = json!({ "key": key.key, "bytes": key.size });
    if !values {
        return it;
    }
    let complete = key.value.len() as u64 == key.size;
    let text = std::str::from_utf8(&key.value).ok().filter(|_| complete);
    let name = if text.is_some() { "value" } else { "value_hex" };
    let value = text.map_or_else(
        || json!(hex(&key.value)),
        |text| serde_json::from_str(text).unwrap_or_else(|_| json!(text)),
    );
    it[name] = value;
    it["truncated"] = (!complete).into();
    it
}

/// A value in one line, safe to print on a terminal.
fn value(key: &StateKey) -> String {
    let complete = key.value.len() as u64 == key.size;
    let text = match String::from_utf8_lossy(&key.value) {
        Cow::Borrowed(text) => shown(text),
        // It was cut within a character, or is not text.
        Cow::Owned(_) if complete => format!("0x{}", hex(&key.value)),
        Cow::Owned(text) => shown(text.trim_end_matches(char::REPLACEMENT_CHARACTER)),
    };
    if complete { text } else { format!("{text}…") }
}

fn many(count: u64, one: &str, more: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { more })
}

/// A key, escaped unless it is safe to print on a terminal: guests choose arbitrary keys.
pub(super) fn shown(key: &str) -> String {
    match key.chars().any(char::is_control) {
        true => key.escape_debug().to_string(),
        false => key.to_owned(),
    }
}
