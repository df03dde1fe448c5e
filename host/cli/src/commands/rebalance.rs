//! `ostraca rebalance`: evens out the shard counts of the nodes, to within one.

use std::collections::BTreeMap;

use indicatif::{ProgressBar, ProgressStyle};
use ostraca_client::{AdminError, Client, RebalancePlan, RebalanceProgress, ShardFigures};
use serde_json::{Value, json};

use crate::args::{Global, OutputFormat, Rebalance};
use crate::failure::{Exit, Failure};
use crate::{connection, output};

pub(crate) async fn run(global: &Global, args: &Rebalance) -> Result<Exit, Failure> {
    let client = connection::connect(global).await?;
    let plan = connection::with_spinner("contacting the node", client.rebalance_plan()).await?;
    if args.dry_run {
        let known = Known::ask(&client).await;
        connection::disconnect(client).await;
        show_plan(global, &plan, &known);
        return Ok(Exit::Done);
    }
    let mut updates = client.rebalance().await?;
    let bar = progress();
    let mut last = RebalanceProgress::default();
    while let Some(now) = updates.next().await? {
        bar.set_length(now.planned.into());
        bar.set_position(now.moved.into());
        bar.set_message(format!("{} in flight", now.in_flight));
        last = now;
        if last.done {
            break;
        }
    }
    bar.finish_and_clear();
    drop(updates);
    connection::disconnect(client).await;
    if !last.done {
        let text = "the progress stream ended early";
        return Err(AdminError::Connection(text.into()).into());
    }
    if global.output == OutputFormat::Json {
        output::json(&shape(&plan, Some(&last)));
    } else if last.planned == 0 {
        output::line("nothing had to be moved");
    } else {
        output::line(&format!("moved {} of {} shards", last.moved, last.planned));
        if last.failed > 0 {
            output::line(&format!(
                "not moved yet: {}; the manager retries (`ostraca events` shows why)",
                last.failed
            ));
        }
    }
    Ok(Exit::Done)
}

/// What is known about the shards that would move. Nothing, if the node is of an earlier release.
#[derive(Default)]
struct Known {
    shards: BTreeMap<u32, ShardFigures>,
    /// How long a shard's messages probably wait while it moves, in microseconds: the median of the last hand-offs.
    pause_us: Option<u64>,
}

impl Known {
    async fn ask(client: &Client) -> Self {
        let Ok(figures) = client.shard_figures().await else { return Self::default() };
        let shards = figures.shards.into_iter().map(|it| (it.shard, it)).collect();
        let mut pauses: Vec<_> = match client.pauses().await {
            Ok(pauses) => {
                pauses.iter().filter(|it| !it.fail_over).map(|it| it.duration_us).collect()
            }
            Err(_) => Vec::new(),
        };
        pauses.sort_unstable();
        Self { shards, pause_us: pauses.get(pauses.len() / 2).copied() }
    }

    /// How many live entities a shard has, and the bytes of their instances.
    fn of(&self, shard: u32) -> Option<(u64, u64)> {
        let it = self.shards.get(&shard)?;
        Some((it.live.values().sum(), it.memory_bytes))
    }
}

fn show_plan(global: &Global, plan: &RebalancePlan, known: &Known) {
    if global.output == OutputFormat::Json {
        let mut value = shape(plan, None);
        for it in value["moves"].as_array_mut().into_iter().flatten() {
            let shard = it["shard"].as_u64().and_then(|shard| u32::try_from(shard).ok());
            if let Some((live, memory)) = shard.and_then(|shard| known.of(shard)) {
                it["live"] = live.into();
                it["memory_bytes"] = memory.into();
                it["expected_pause_us"] = known.pause_us.into();
            }
        }
        return output::json(&value);
    }
    if plan.moves.is_empty() {
        output::line("nothing would be moved");
    } else {
        let mut pairs: BTreeMap<(&str, &str), [u64; 3]> = BTreeMap::new();
        for it in &plan.moves {
            let (live, memory) = known.of(it.shard).unwrap_or_default();
            let sums = pairs.entry((&it.from, &it.to)).or_default();
            for (sum, value) in sums.iter_mut().zip([1, live, memory]) {
                *sum += value;
            }
        }
        if known.shards.is_empty() {
            let rows = pairs.iter().map(|((from, to), [count, ..])| {
                [(*from).to_owned(), (*to).to_owned(), count.to_string()]
            });
            output::table(["FROM", "TO", "SHARDS"], rows.collect());
        } else {
            let rows = pairs.iter().map(|((from, to), [count, live, memory])| {
                let (from, to) = ((*from).to_owned(), (*to).to_owned());
                [from, to, count.to_string(), live.to_string(), output::size(*memory)]
            });
            output::table(["FROM", "TO", "SHARDS", "LIVE", "MEMORY"], rows.collect());
        }
        output::line("");
        output::line(&format!(
            "{} shards would be moved; --output json lists them",
            plan.moves.len()
        ));
        if let Some(pause) = known.pause_us {
            output::line(&format!(
                "messages to a shard probably wait {} ms while it moves: the median of the last hand-offs",
                pause.div_ceil(1_000)
            ));
        }
    }
    if !plan.blocked_reason.is_empty() {
        output::line(&format!("not now: {}", plan.blocked_reason));
    }
}

/// The JSON of a plan and of a result, which share a format: the initial plan and the progress. The progress may count
/// more moves than the plan has, if shards had to move for other reasons in the meantime.
fn shape(plan: &RebalancePlan, done: Option<&RebalanceProgress>) -> Value {
    let moves: Vec<_> = plan
        .moves
        .iter()
        .map(|it| json!({ "shard": it.shard, "from": it.from, "to": it.to }))
        .collect();
    let planned = u32::try_from(moves.len()).unwrap_or(u32::MAX);
    json!({
        "dry_run": done.is_none(), "moves": moves,
        "blocked_reason": Some(&plan.blocked_reason).filter(|text| !text.is_empty()),
        "planned": done.map_or(planned, |it| it.planned),
        "moved": done.map_or(0, |it| it.moved), "failed": done.map_or(0, |it| it.failed),
    })
}

fn progress() -> ProgressBar {
    let style = ProgressStyle::with_template("rebalancing [{bar:40}] {pos}/{len} shards, {msg}");
    // The template is a constant; if it is invalid the default style is shown.
    match style {
        Ok(style) => ProgressBar::new(0).with_style(style.progress_chars("=> ")),
        Err(_) => ProgressBar::new(0),
    }
}
