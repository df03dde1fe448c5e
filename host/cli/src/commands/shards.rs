//! `ostraca shards`: shows the owner of each shard, as a map of letters.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use ostraca_client::{ShardInfo, ShardState};
use serde_json::json;

use super::{placement, statistics};
use crate::args::{Global, OutputFormat, Shards};
use crate::failure::{Exit, Failure};
use crate::{connection, output};

/// Shards per line of the map.
const LINE: usize = 64;
/// Letters for owners, one each; all further owners share one symbol.
const LETTERS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ";

pub(crate) async fn run(global: &Global, args: &Shards) -> Result<Exit, Failure> {
    if let Some(what) = &args.what {
        return placement::run(global, what).await;
    }
    if args.stats {
        return statistics::run(global, args.interval).await;
    }
    let client = connection::connect(global).await?;
    let all = connection::with_spinner("contacting the node", client.shards()).await?;
    connection::disconnect(client).await;
    if global.output == OutputFormat::Json {
        let shards: Vec<_> = all
            .iter()
            .map(|it| {
                json!({
                    "shard": it.shard, "epoch": it.epoch, "owner": some(&it.owner),
                    "state": state(it), "target_node": some(&it.target_node), "pool": some(&it.pool),
                })
            })
            .collect();
        output::json(&json!({ "shards_by_owner": counts(&all), "shards": shards }));
    } else if args.list {
        let rows = all.iter().map(|it| {
            let to = some(&it.target_node).map(|to| format!(" to {to}")).unwrap_or_default();
            let state = format!("{}{to}", state(it));
            [it.shard.to_string(), it.pool.clone(), it.epoch.to_string(), it.owner.clone(), state]
        });
        output::table(["SHARD", "POOL", "EPOCH", "OWNER", "STATE"], rows.collect());
    } else {
        output::text(&map(&all));
    }
    Ok(Exit::Done)
}

fn some(name: &str) -> Option<&str> {
    Some(name).filter(|name| !name.is_empty())
}

fn state(it: &ShardInfo) -> &'static str {
    match it.state() {
        ShardState::Unassigned => "unassigned",
        ShardState::Assigned => "assigned",
        ShardState::Claiming => "claiming",
        ShardState::Serving => "serving",
        ShardState::Moving => "moving",
        ShardState::Unspecified => "unknown",
    }
}

/// Number of shards per owner. A dead owner keeps its shards until they are reassigned.
fn counts(all: &[ShardInfo]) -> BTreeMap<&str, usize> {
    let mut counts = BTreeMap::new();
    for owner in all.iter().filter_map(|it| some(&it.owner)) {
        *counts.entry(owner).or_default() += 1;
    }
    counts
}

/// A letter for each shard, and a legend.
fn map(all: &[ShardInfo]) -> String {
    let counts = counts(all);
    let letter = |owner: &str| {
        let at = counts.keys().position(|name| *name == owner).unwrap_or(LETTERS.len());
        LETTERS.get(at).map_or('#', |letter| char::from(*letter))
    };
    let (mut text, mut moving, mut unassigned) = (String::new(), 0, 0);
    let pools: Vec<_> = all.chunk_by(|one, next| one.pool == next.pool).collect();
    let names = pools.iter().flat_map(|pool| {
        // One pool needs no name.
        let name = pool.first().filter(|_| pools.len() > 1).map(|shard| shard.pool.as_str());
        let lines = pool.chunks(LINE).enumerate();
        lines.map(move |(at, line)| (name.filter(|_| at == 0), line))
    });
    for (name, line) in names {
        let signs = line.iter().map(|it| match it.state() {
            ShardState::Unassigned => {
                unassigned += 1;
                '.'
            }
            ShardState::Moving => {
                moving += 1;
                letter(&it.owner).to_ascii_lowercase()
            }
            _ => letter(&it.owner),
        });
        let signs: String = signs.collect();
        let first = line.first().map_or(0, |it| it.shard);
        if let Some(name) = name {
            let _ = writeln!(text, "pool {name}");
        }
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{first:>6}  {signs}");
    }
    let mut rows: Vec<(char, String, usize)> =
        counts.iter().map(|(name, count)| (letter(name), (*name).to_owned(), *count)).collect();
    if moving > 0 {
        rows.push(('a', "lower case: being handed over".into(), moving));
    }
    if unassigned > 0 {
        rows.push(('.', "no live owner".into(), unassigned));
    }
    let width = rows.iter().map(|(_, name, _)| name.chars().count()).max().unwrap_or(0);
    text.push('\n');
    for (sign, name, count) in rows {
        let _ = writeln!(text, "     {sign}  {name:width$}  {count:>6}");
    }
    text
}
