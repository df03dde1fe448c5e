//! `ostraca events`: events in the cluster, as the connected node saw them.

use std::collections::BTreeMap;

use ostraca_client::{AdminError, Event, Events};
use serde_json::json;

use crate::args::{self, Global, OutputFormat};
use crate::failure::{Exit, Failure};
use crate::{connection, output};

pub(crate) async fn run(global: &Global, args: &args::Events) -> Result<Exit, Failure> {
    let client = connection::connect(global).await?;
    let mut updates = client.events(args.follow, args.from_sequence.unwrap_or(0)).await?;
    let mut next = args.from_sequence.unwrap_or(0);
    let mut groups = Groups::default();
    let ended = loop {
        match updates.next().await {
            Ok(Some(page)) => {
                next = page.events.last().map_or(next, |event| event.sequence + 1);
                match (global.output, args.shards) {
                    (OutputFormat::Json, _) => print_json(&page),
                    (OutputFormat::Table, true) => print(&page),
                    (OutputFormat::Table, false) => {
                        groups.take(page);
                        if args.follow {
                            // The next event may take a long time: print what has been grouped.
                            groups.end();
                        }
                    }
                }
            }
            Ok(None) => break Ok(Exit::Done),
            Err(error) => break Err(error),
        }
    };
    groups.end();
    drop(updates);
    connection::disconnect(client).await;
    ended.map_err(|error| match error {
        AdminError::Connection(_) if args.follow => Failure::from(error).help(format!(
            "continue with `ostraca events --follow --from-sequence {next}`, on this node"
        )),
        error => error.into(),
    })
}

fn print_json(page: &Events) {
    if page.missed > 0 {
        output::json_line(&json!({ "missed": page.missed }));
    }
    for it in &page.events {
        output::json_line(&json!({
            "sequence": it.sequence, "cluster_time_ms": it.cluster_time_ms, "timestamp": output::wall(it.unix_ms),
            "unix_ms": it.unix_ms, "age_ms": it.age_ms, "kind": it.kind, "message": it.message,
            "node": Some(&it.node).filter(|node| !node.is_empty()),
            "shard": Some(it.shard).filter(|shard| *shard > 0),
            "epoch": Some(it.epoch).filter(|epoch| *epoch > 0),
        }));
    }
}

fn print(page: &Events) {
    print_missed(page.missed);
    for it in &page.events {
        output::line(&line(it));
    }
}

fn print_missed(missed: u64) {
    if missed > 0 {
        output::line(&format!("… {missed} earlier events are no longer available"));
    }
}

/// One event as a line. Lines are printed one by one, so the column widths are fixed.
fn line(it: &Event) -> String {
    columns(it, &it.kind, &it.message)
}

fn columns(it: &Event, kind: &str, text: &str) -> String {
    let ago = match it.age_ms {
        0..1_000 => "now".into(),
        past => format!("{} ago", output::span(past)),
    };
    let at = output::wall(it.unix_ms);
    format!("{:>6}  {at}  {ago:>16}  {kind:<20}  {text}", it.sequence)
}

/// At least this many consecutive shard events are grouped into one line.
const MANY: usize = 4;

/// Groups events of many shards into one line: a node that joins or dies moves hundreds of them.
#[derive(Default)]
struct Groups {
    run: Vec<Event>,
}

impl Groups {
    fn take(&mut self, page: Events) {
        if page.missed > 0 {
            self.end();
            print_missed(page.missed);
        }
        for it in page.events {
            // A failed hand-off gets its own line.
            if matches!(it.kind.as_str(), "shard-assigned" | "hand-off-started") {
                self.run.push(it);
                continue;
            }
            self.end();
            output::line(&line(&it));
        }
    }

    /// Prints the group.
    fn end(&mut self) {
        let run = std::mem::take(&mut self.run);
        match run.last() {
            Some(last) if run.len() >= MANY => {
                output::line(&columns(last, "shards", &summary(&run)));
            }
            _ => run.iter().for_each(|it| output::line(&line(it))),
        }
    }
}

/// How many shards went to which node, and how many hand-offs started.
fn summary(run: &[Event]) -> String {
    let mut to: BTreeMap<&str, usize> = BTreeMap::new();
    for it in run.iter().filter(|it| it.kind == "shard-assigned") {
        *to.entry(&it.node).or_default() += 1;
    }
    let assigned: usize = to.values().sum();
    let begun = run.len() - assigned;
    let mut parts = Vec::new();
    if begun > 0 {
        parts.push(format!("{begun} hand-offs started"));
    }
    if assigned > 0 {
        let to: Vec<_> = to.iter().map(|(node, count)| format!("{node} {count}")).collect();
        parts.push(format!("{assigned} shards assigned ({})", to.join(", ")));
    }
    format!("{} (--shards shows each)", parts.join(", "))
}
