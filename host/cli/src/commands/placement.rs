//! `ostraca shards move|pin|unpin|pins|place`: where shards are wanted.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::Path;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use ostraca_client::{
    Client, PlacementRequest, PlacementState, PoolInfo, PoolPlacement, ShardAtNode, ShardState,
};
use ostraca_codes::codes;
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::args::{
    Global, MoveShards, OutputFormat, PinShards, PlaceShards, ShardNumbers, ShardsCommand,
};
use crate::failure::{Exit, Failure};
use crate::{connection, output, quote};

/// Interval at which the shards are looked at.
const PAUSE: Duration = Duration::from_millis(250);
/// How often a request is repeated: a new manager does not know it.
const REPEAT: Duration = Duration::from_secs(15);
/// Maximum number of shards in a request.
const MAX_SHARDS: u32 = 4_096;
/// The largest file of a placement.
const MAX_FILE: u64 = 16 << 20;

pub(crate) async fn run(global: &Global, what: &ShardsCommand) -> Result<Exit, Failure> {
    match what {
        ShardsCommand::Move(args) => move_shards(global, args).await,
        ShardsCommand::Pin(PinShards { shards, to }) => pin(global, *shards, to).await,
        ShardsCommand::Unpin(args) => pin(global, args.shards, "").await,
        ShardsCommand::Pins => pins(global).await,
        ShardsCommand::Place(args) => place(global, args).await,
    }
}

/// A range of shards, in words.
fn named(ShardNumbers { first, last }: ShardNumbers) -> String {
    if first == last { format!("shard {first}") } else { format!("shards {first} to {last}") }
}

fn at_node(shards: ShardNumbers, node: &str) -> Result<Vec<ShardAtNode>, Failure> {
    let ShardNumbers { first, last } = shards;
    if last - first >= MAX_SHARDS {
        let text = format!("{} are too many at once", named(shards));
        let help = format!("name at most {MAX_SHARDS} shards");
        return Err(Failure::usage(codes::USAGE, text).help(help));
    }
    Ok((first..=last).map(|shard| ShardAtNode { shard, node: node.into() }).collect())
}

async fn pin(global: &Global, shards: ShardNumbers, to: &str) -> Result<Exit, Failure> {
    let request = PlacementRequest { pins: at_node(shards, to)?, ..PlacementRequest::default() };
    let client = connection::connect(global).await?;
    connection::with_spinner("contacting the node", client.placement(request)).await?;
    connection::disconnect(client).await;
    match global.output {
        OutputFormat::Json => output::json(&json!({
            "first_shard": shards.first, "last_shard": shards.last,
            "node": Some(to).filter(|to| !to.is_empty()),
        })),
        OutputFormat::Table if to.is_empty() => {
            output::line(&format!("{} may be anywhere again", named(shards)));
        }
        OutputFormat::Table => {
            output::line(&format!("{} pinned to {to}", named(shards)));
            output::line(
                "they move there as soon as they can: `ostraca shards pins` shows where they are",
            );
        }
    }
    Ok(Exit::Done)
}

async fn pins(global: &Global) -> Result<Exit, Failure> {
    let client = connection::connect(global).await?;
    let request = PlacementRequest::default();
    let state = connection::with_spinner("contacting the node", client.placement(request)).await?;
    let shards = client.shards().await?;
    connection::disconnect(client).await;
    let owners: BTreeMap<_, _> = shards.iter().map(|it| (it.shard, it.owner.as_str())).collect();
    let owner = |shard: u32| owners.get(&shard).copied().unwrap_or_default();
    if global.output == OutputFormat::Json {
        output::json(&to_json(&state, owner));
        return Ok(Exit::Done);
    }
    if state.pins.is_empty() {
        output::line("no shard is pinned");
    } else {
        let rows = state.pins.iter().map(|pin| {
            [
                pin.shard.to_string(),
                pin.node.clone(),
                owner(pin.shard).to_owned(),
                output::wall(pin.created_unix_ms),
                pin.created_by.clone(),
            ]
        });
        output::table(["SHARD", "PINNED TO", "OWNER", "SINCE", "BY"], rows.collect());
    }
    for it in &state.placements {
        output::line(&format!(
            "pool {}: {} wants {} shards, of which {} are in place; last said {}{}",
            it.pool,
            it.said_by,
            it.wanted,
            it.in_place,
            output::wall(it.said_unix_ms),
            if it.has_effect {
                ""
            } else {
                "; the pool's strategy is not `external`, so this has no effect"
            },
        ));
    }
    Ok(Exit::Done)
}

fn to_json<'a>(state: &PlacementState, owner: impl Fn(u32) -> &'a str) -> serde_json::Value {
    let pins = state.pins.iter().map(|pin| {
        json!({
            "shard": pin.shard, "node": pin.node, "owner": owner(pin.shard),
            "created_unix_ms": pin.created_unix_ms, "created_by": pin.created_by,
        })
    });
    let placements = state.placements.iter().map(|it| {
        json!({
            "pool": it.pool, "wanted": it.wanted, "in_place": it.in_place,
            "said_unix_ms": it.said_unix_ms, "said_by": it.said_by, "has_effect": it.has_effect,
        })
    });
    json!({
        "pins": pins.collect::<Vec<_>>(), "placements": placements.collect::<Vec<_>>(),
    })
}

/// Requests the moves, and waits until they have been made.
async fn move_shards(global: &Global, args: &MoveShards) -> Result<Exit, Failure> {
    let all = at_node(args.shards, &args.to)?;
    let client = connection::connect(global).await?;
    let bar = ProgressBar::new(all.len() as u64);
    // The template is a constant; if it is invalid the default style is shown.
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos} of {len} shards moved") {
        bar.set_style(style);
    }
    let until = Instant::now() + args.timeout;
    let mut request_at = Instant::now();
    let left = loop {
        let moves = missing(&client, args, &all).await?;
        bar.set_position((all.len() - moves.away) as u64);
        if moves.away == 0 || Instant::now() >= until {
            break moves.away;
        }
        if !moves.idle.is_empty() && Instant::now() >= request_at {
            request_at = Instant::now() + REPEAT;
            let request = PlacementRequest { moves: moves.idle, ..PlacementRequest::default() };
            client.placement(request).await?;
        }
        sleep(PAUSE).await;
    };
    bar.finish_and_clear();
    connection::disconnect(client).await;
    if left > 0 {
        return Err(unfinished(args, left));
    }
    match global.output {
        OutputFormat::Json => output::json(&json!({
            "first_shard": args.shards.first, "last_shard": args.shards.last, "node": args.to,
        })),
        OutputFormat::Table => {
            output::line(&format!("{} moved to {}", named(args.shards), args.to));
            output::line(&format!(
                "balancing may move them again: `ostraca shards pin {} --to {}` keeps them there",
                match args.shards {
                    ShardNumbers { first, last } if first == last => first.to_string(),
                    ShardNumbers { first, last } => format!("{first}-{last}"),
                },
                quote::shell_quote(&args.to)
            ));
        }
    }
    Ok(Exit::Done)
}

fn unfinished(args: &MoveShards, left: usize) -> Failure {
    let after = humantime::format_duration(args.timeout);
    let text = format!("{left} of {} are not at {} after {after}", named(args.shards), args.to);
    Failure::unexpected(codes::MOVE_TIMEOUT, text).help(
        "those that are being handed off still move: repeat the command for the others; `ostraca events` shows why hand-offs failed",
    )
}

/// The shards that are not at their node.
struct Missing {
    away: usize,
    /// Those that are not being handed off.
    idle: Vec<ShardAtNode>,
}

async fn missing(
    client: &Client,
    args: &MoveShards,
    all: &[ShardAtNode],
) -> Result<Missing, Failure> {
    let shards = client.shards().await?;
    let known: BTreeMap<_, _> = shards.iter().map(|it| (it.shard, it)).collect();
    let is_there = |it: &ShardAtNode| {
        known
            .get(&it.shard)
            .is_some_and(|known| known.owner == args.to && known.state() != ShardState::Moving)
    };
    let away: Vec<_> = all.iter().filter(|it| !is_there(it)).collect();
    let moves = |it: &ShardAtNode| {
        known.get(&it.shard).is_some_and(|known| known.state() == ShardState::Moving)
    };
    let idle = away.iter().filter(|it| !moves(it)).map(|it| (*it).clone()).collect();
    Ok(Missing { away: away.len(), idle })
}

async fn place(global: &Global, args: &PlaceShards) -> Result<Exit, Failure> {
    let text = read(&args.file)?;
    let client = connection::connect(global).await?;
    let pools = connection::with_spinner("contacting the node", client.pools(None)).await?;
    let Some(pool) = pools.iter().find(|pool| pool.name == args.pool) else {
        let names: Vec<_> = pools.iter().map(|pool| pool.name.as_str()).collect();
        let text = format!("the cluster has no pool `{}`", args.pool);
        let help = format!("pools: {}", names.join(", "));
        return Err(Failure::usage(codes::UNKNOWN_POOL, text).help(help));
    };
    let placement = parse(&text, pool)?;
    let (placed, nodes) =
        (placement.shards.iter().filter(|at| **at > 0).count(), placement.nodes.len());
    let request = PlacementRequest { placement: Some(placement), ..PlacementRequest::default() };
    let state = client.placement(request).await?;
    connection::disconnect(client).await;
    let info = state.placements.into_iter().find(|it| it.pool == args.pool).unwrap_or_default();
    match global.output {
        OutputFormat::Json => output::json(&json!({
            "pool": args.pool, "wanted": placed, "nodes": nodes, "in_place": info.in_place,
            "has_effect": info.has_effect,
        })),
        OutputFormat::Table => {
            output::line(&format!(
                "pool {}: {placed} shards wanted on {nodes} nodes, of which {} are in place",
                args.pool, info.in_place
            ));
            if !info.has_effect {
                output::line("the pool's strategy is not `external`, so this has no effect");
            }
        }
    }
    Ok(Exit::Done)
}

fn read(file: &Path) -> Result<String, Failure> {
    let failed = |error: std::io::Error| Failure::file("read", file, &error);
    let mut text = String::new();
    if file == Path::new("-") {
        std::io::stdin().take(MAX_FILE).read_to_string(&mut text).map_err(failed)?;
    } else {
        let opened = std::fs::File::open(file).map_err(failed)?;
        opened.take(MAX_FILE).read_to_string(&mut text).map_err(failed)?;
    }
    Ok(text)
}

/// Reads lines `SHARDS NODE`. Empty lines and those that begin with `#` are ignored; a later line overrides an earlier
/// one.
fn parse(text: &str, pool: &PoolInfo) -> Result<PoolPlacement, Failure> {
    let mut nodes: Vec<String> = Vec::new();
    let mut shards = vec![0; pool.shards as usize];
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let wrong = |why: String| {
            let text = format!("line {number}: {why}");
            Failure::usage(codes::USAGE, text).help("write SHARDS NODE, as in: 1-128 node-1")
        };
        let (range, node) = line
            .split_once(char::is_whitespace)
            .map(|(range, node)| (range, node.trim()))
            .ok_or_else(|| wrong(format!("`{line}` names no node")))?;
        let ShardNumbers { first, last } = range.parse().map_err(wrong)?;
        let end = pool.first_shard + pool.shards;
        if first < pool.first_shard || last >= end {
            let (name, has) = (&pool.name, pool.first_shard);
            let why = format!("pool `{name}` has the shards {has} to {}", end - 1);
            return Err(wrong(why));
        }
        let place = match nodes.iter().position(|known| known == node) {
            Some(place) => place,
            None => {
                nodes.push(node.into());
                nodes.len() - 1
            }
        };
        for shard in first..=last {
            shards[(shard - pool.first_shard) as usize] =
                u32::try_from(place + 1).unwrap_or(u32::MAX);
        }
    }
    Ok(PoolPlacement { pool: pool.name.clone(), nodes, shards })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool() -> PoolInfo {
        PoolInfo { name: "orders".into(), first_shard: 11, shards: 5, ..PoolInfo::default() }
    }

    #[test]
    fn a_placement_is_lines_of_shards_and_nodes() {
        let text = "# who has what\n11-13 a\n\n14\tb\n12  b \n";
        let placement = parse(text, &pool()).expect("a placement");
        assert_eq!(placement.nodes, ["a", "b"]);
        assert_eq!(placement.shards, [1, 2, 1, 2, 0]);
        assert_eq!(parse("", &pool()).expect("no wishes").shards, [0; 5]);
    }

    #[test]
    fn a_move_that_is_not_made_in_time_says_what_to_do() {
        let shards = ShardNumbers { first: 3, last: 9 };
        let args = MoveShards { shards, to: "n2".into(), timeout: Duration::from_secs(60) };
        let error = unfinished(&args, 2).render(OutputFormat::Table, false);
        assert!(error.contains("2 of shards 3 to 9 are not at n2 after 1m"), "{error}");
        assert!(error.contains("repeat the command"), "{error}");
        assert!(error.contains("`ostraca events`"), "{error}");
    }

    #[test]
    fn a_wrong_line_is_named() {
        let cases = [
            ("11 a\n12", "line 2: `12` names no node"),
            ("11-x a", "line 1: `11-x` is not a range"),
            ("13-12 a", "line 1: `13-12` is not a range"),
            ("0 a", "line 1: `0` is not a range"),
            ("10-12 a", "line 1: pool `orders` has the shards 11 to 15"),
            ("\n15-16 a", "line 2: pool `orders` has the shards 11 to 15"),
        ];
        for (text, expected) in cases {
            let error = parse(text, &pool()).expect_err("an error");
            let error = error.render(OutputFormat::Table, false);
            assert!(error.contains(expected), "{text:?}: {error}");
        }
    }
}
