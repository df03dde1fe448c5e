//! `ostraca inspect TYPE/ID`: how one entity does.

use serde_json::json;

use super::{entities, send};
use crate::args::{Format, Global, Inspect};
use crate::failure::{Exit, Failure};
use crate::{dial, output};

pub(crate) async fn run(global: &Global, args: &Inspect) -> Result<Exit, Failure> {
    let entity = send::entity(&args.entity)?;
    let client = dial::connect(global).await?;
    let it = dial::patiently("asking the node", client.inspect(&entity)).await?;
    dial::part(client).await;
    let owner = Some(&it.owner).filter(|owner| !owner.is_empty());
    if global.output == Format::Json {
        let keys: Vec<_> =
            it.keys.iter().map(|key| json!({ "key": key.key, "bytes": key.size })).collect();
        output::json(&json!({
            "type": it.r#type, "id": it.id, "shard": it.shard, "epoch": it.epoch, "owner": owner,
            "exists": it.exists, "version": it.version, "revision": it.revision,
            "sequence": it.sequence, "lanes": it.lanes, "unsettled": it.unsettled,
            "state_bytes": it.state_bytes, "keys_total": it.keys_total, "keys": keys,
            "live": it.live, "waiting": it.waiting,
            "unanswered": it.unanswered.as_ref().map(|it| json!({ "node": it.node, "why": it.why })),
        }));
        return entities::told(it.unanswered.as_slice());
    }
    let owner = match owner {
        Some(owner) => format!("of {owner}, epoch {}", it.epoch),
        None => "without an owner".into(),
    };
    let mut rows = vec![
        ("entity", format!("{}/{}", it.r#type, it.id)),
        ("shard", format!("{}, {owner}", it.shard)),
    ];
    if it.exists {
        rows.extend([
            ("version", format!("{}, written by revision {}", it.version, it.revision)),
            ("last commit", format!("{} of its shard", it.sequence)),
            (
                "sessions",
                format!(
                    "{}, with {}",
                    it.lanes,
                    many(it.unsettled, "unsettled reply", "unsettled replies")
                ),
            ),
            (
                "state",
                format!(
                    "{} in {}",
                    output::size(it.state_bytes),
                    many(it.keys_total, "key", "keys")
                ),
            ),
        ]);
    } else {
        rows.push(("version", "nothing of it is stored".into()));
    }
    rows.push(("instance", entities::life(it.live).into()));
    rows.extend(it.waiting.map(|waiting| ("waiting", many(waiting, "message", "messages"))));
    output::pairs(&rows);
    if !it.keys.is_empty() {
        output::line("");
        let rows = it.keys.iter().map(|key| [shown(&key.key), output::size(key.size)]);
        output::table(["KEY", "SIZE"], rows.collect());
        let more = it.keys_total.saturating_sub(it.keys.len() as u64);
        if more > 0 {
            output::line(&format!("and {more} more"));
        }
    }
    entities::told(it.unanswered.as_slice())
}

fn many(count: u64, one: &str, more: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { more })
}

/// A key as it is if a terminal may see it, else escaped: guests make keys of whatever they like.
fn shown(key: &str) -> String {
    match key.chars().any(char::is_control) {
        true => key.escape_debug().to_string(),
        false => key.to_owned(),
    }
}
