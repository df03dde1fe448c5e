//! `ostraca drain NODE`: moves all shards off a node, so that it can be stopped.
//!
//! The drain is a mark in the node's row, so it continues even if nobody watches it (R12). Therefore this command
//! reconnects if a connection breaks, and prints how to continue if the command ends early.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use ostraca_client::{AdminError, Client, DrainProgress};
use ostraca_codes::codes;
use ostraca_node::user_file::closest_name;
use serde_json::json;
use tokio::time::{Instant, sleep, timeout_at};

use crate::args::{Drain, Global, OutputFormat};
use crate::failure::{Exit, Failure};
use crate::{connection, output, quote};

/// Number of broken connections that are tolerated, and the pause after each.
const RECONNECT: (u32, Duration) = (10, Duration::from_millis(500));

pub(crate) async fn run(global: &Global, args: &Drain) -> Result<Exit, Failure> {
    let client = connection::connect(global).await?;
    ensure_node_exists(&client, &args.node).await?;
    let bar = progress(args);
    let mut last = None;
    let watched =
        timeout_at(Instant::now() + args.timeout, watch(&client, args, &bar, &mut last)).await;
    bar.finish_and_clear();
    connection::disconnect(client).await;
    let Ok(total) = watched else { return Err(unfinished(args, last.as_ref())) };
    let total = total?;
    let remaining = last.map_or(0, |last| last.remaining);
    if global.output == OutputFormat::Json {
        output::json(&json!({
            "node": args.node, "undo": args.undo, "shards": total,
            "moved": total.saturating_sub(remaining), "remaining": remaining,
        }));
    } else if args.undo {
        output::line(&format!("{} may own shards again", args.node));
    } else {
        output::line(&format!("{} is drained: {total} shards moved", args.node));
        output::line(&format!(
            "it gets no shards, even after a restart, until you run `ostraca drain {} --undo`",
            quote::shell_quote(&args.node)
        ));
    }
    Ok(Exit::Done)
}

/// Follows the drain to its end and reconnects if a connection breaks. Returns the number of shards that the node
/// had at the start.
async fn watch(
    client: &Client,
    args: &Drain,
    bar: &ProgressBar,
    last: &mut Option<DrainProgress>,
) -> Result<u32, Failure> {
    let (mut total, mut broken) = (0, 0);
    loop {
        let lost = match follow(client, args, bar, last, &mut total).await {
            Ok(true) => return Ok(total),
            Ok(false) => "the progress stream ended early".into(),
            Err(AdminError::Connection(text)) => text,
            Err(error) => return Err(error.into()),
        };
        broken += 1;
        if broken > RECONNECT.0 {
            return Err(AdminError::Connection(lost).into());
        }
        sleep(RECONNECT.1).await;
    }
}

/// Follows the drain over one connection. Returns whether it reached the end.
async fn follow(
    client: &Client,
    args: &Drain,
    bar: &ProgressBar,
    last: &mut Option<DrainProgress>,
    total: &mut u32,
) -> Result<bool, AdminError> {
    let mut updates = client.drain(&args.node, args.undo).await?;
    while let Some(now) = updates.next().await? {
        *total = now.total.max(*total);
        bar.set_length((*total).into());
        bar.set_position(total.saturating_sub(now.remaining).into());
        bar.set_message(format!("{} in flight", now.in_flight));
        let done = now.done;
        *last = Some(now);
        if done {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Reports a mistyped name before the drain is requested.
async fn ensure_node_exists(client: &Client, name: &str) -> Result<(), Failure> {
    let nodes = client.nodes().await?.nodes;
    let names = || nodes.iter().map(|node| node.name.as_str());
    if names().any(|known| known == name) {
        return Ok(());
    }
    let help = match closest_name(name, names()) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("nodes: {}", names().collect::<Vec<_>>().join(", ")),
    };
    Err(Failure::usage(codes::UNKNOWN_NODE, format!("the cluster has no node `{name}`")).help(help))
}

fn progress(args: &Drain) -> ProgressBar {
    let style = ProgressStyle::with_template("{prefix} [{bar:40}] {pos}/{len} shards, {msg}");
    let bar = ProgressBar::new(0).with_prefix(format!("draining {}", args.node));
    // The template is a constant; if it is invalid the default style is shown.
    match style {
        Ok(style) => bar.with_style(style.progress_chars("=> ")),
        Err(_) => bar,
    }
}

fn unfinished(args: &Drain, last: Option<&DrainProgress>) -> Failure {
    let after = humantime::format_duration(args.timeout);
    let text = match last {
        Some(last) => format!("{} still owns {} shards after {after}", args.node, last.remaining),
        None => format!("received no progress report on the drain of {} for {after}", args.node),
    };
    let node = quote::shell_quote(&args.node);
    Failure::unexpected(codes::DRAIN_TIMEOUT, text).help(format!(
        "the drain continues: `ostraca drain {node}` shows its progress, `ostraca drain {node} --undo` cancels it"
    ))
}
