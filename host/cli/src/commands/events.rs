//! `ostraca events`: what happened in the cluster, as the connected node saw it.

use ostraca_client::{AdminError, Event, Events};
use serde_json::json;

use crate::args::{self, Format, Global};
use crate::failure::{Exit, Failure};
use crate::{dial, output};

pub(crate) async fn run(global: &Global, args: &args::Events) -> Result<Exit, Failure> {
    let client = dial::connect(global).await?;
    let mut updates = client.events(args.follow, args.since.unwrap_or(0)).await?;
    let mut next = args.since.unwrap_or(0);
    let ended = loop {
        match updates.next().await {
            Ok(Some(page)) => {
                next = page.events.last().map_or(next, |event| event.sequence + 1);
                print(global, &page);
            }
            Ok(None) => break Ok(Exit::Done),
            Err(error) => break Err(error),
        }
    };
    drop(updates);
    dial::part(client).await;
    ended.map_err(|error| match error {
        AdminError::Connection(_) if args.follow => Failure::from(error)
            .help(format!("go on with `ostraca events --follow --since {next}`, on this node")),
        error => error.into(),
    })
}

fn print(global: &Global, page: &Events) {
    if global.output == Format::Json {
        if page.missed > 0 {
            output::json_line(&json!({ "missed": page.missed }));
        }
        for it in &page.events {
            output::json_line(&json!({
                "sequence": it.sequence, "time_ms": it.time_ms, "kind": it.kind, "text": it.text,
                "node": Some(&it.node).filter(|node| !node.is_empty()),
                "shard": Some(it.shard).filter(|shard| *shard > 0),
                "epoch": Some(it.epoch).filter(|epoch| *epoch > 0),
            }));
        }
        return;
    }
    if page.missed > 0 {
        output::line(&format!("… {} earlier events are not kept any more", page.missed));
    }
    for it in &page.events {
        output::line(&line(it, page.now_ms));
    }
}

/// One event in one line: lines come one by one, so their columns are fixed.
fn line(it: &Event, now: u64) -> String {
    let ago = match now.saturating_sub(it.time_ms) {
        0..1_000 => "now".into(),
        past => format!("{} ago", output::span(past)),
    };
    format!("{:>6}  {ago:>16}  {:<20}  {}", it.sequence, it.kind, it.text)
}
