//! `ostraca store move`: moves a range of shards to another database while the cluster runs.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use ostraca_client::{MoveShardsProgress, ShardRange};
use ostraca_codes::codes;
use serde_json::json;

use crate::args::{Global, OutputFormat, StoreMove};
use crate::failure::{Exit, Failure};
use crate::{connection, output};

/// Pause between two requests.
const PAUSE: Duration = Duration::from_millis(300);

pub(crate) async fn run(global: &Global, args: &StoreMove) -> Result<Exit, Failure> {
    let wanted = wanted(args)?;
    let client = connection::connect(global).await?;
    let bar = ProgressBar::new(0);
    // The template is a constant; if it is invalid the default style is shown.
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos} of {len} shards moved{msg}") {
        bar.set_style(style);
    }
    let mut running = None;
    let ended = loop {
        let progress = client.move_shards(wanted.clone()).await?;
        match &progress.running {
            None => break progress,
            Some(range) => running = Some(range.clone()),
        }
        bar.set_length(progress.shards.into());
        bar.set_position(progress.moved.into());
        if progress.moved == progress.shards {
            bar.set_message("; removing what they left behind");
        }
        tokio::time::sleep(PAUSE).await;
    };
    bar.finish_and_clear();
    connection::disconnect(client).await;
    show(global, running.or(wanted), &ended);
    Ok(Exit::Done)
}

/// The range that was named; `None`: the move in progress.
fn wanted(args: &StoreMove) -> Result<Option<ShardRange>, Failure> {
    let (Some(shards), Some(to)) = (&args.shards, &args.to) else { return Ok(None) };
    let (first, last) = shards.split_once('-').unwrap_or((shards, shards));
    let number = |text: &str| {
        text.trim().parse::<u32>().map_err(|_| {
            let text = format!("`{shards}` is not a range of shards");
            Failure::usage(codes::USAGE, text).help("write FIRST-LAST, as in 1-128")
        })
    };
    let id = u128::from_str_radix(to, 16).map_err(|_| {
        let text = format!("`{to}` is not the id of a store");
        Failure::usage(codes::USAGE, text).help("`ostraca config check` shows the ids")
    })?;
    let store_id = id.to_be_bytes().to_vec().into();
    Ok(Some(ShardRange { first: number(first)?, last: number(last)?, store_id }))
}

fn show(global: &Global, moved: Option<ShardRange>, ended: &MoveShardsProgress) {
    let id = |range: &ShardRange| -> String {
        range.store_id.iter().map(|byte| format!("{byte:02x}")).collect()
    };
    if global.output == OutputFormat::Json {
        let range =
            |range: &ShardRange| json!({ "first_shard": range.first, "store_id": id(range) });
        let ranges: Vec<_> = ended.ranges.iter().map(range).collect();
        return output::json(&json!({ "moved": moved.as_ref().map(range), "ranges": ranges }));
    }
    match moved {
        Some(range) => output::line(&format!(
            "shards {} to {} are in store {}",
            range.first,
            range.last,
            id(&range)
        )),
        None => output::line("no move is in progress"),
    }
    for range in &ended.ranges {
        let last = match range.last {
            u32::MAX => "the last".into(),
            last => last.to_string(),
        };
        output::line(&format!("  shards {} to {last}: store {}", range.first.max(1), id(range)));
    }
}
