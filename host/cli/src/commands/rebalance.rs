//! `ostraca rebalance`: evens out the shard counts of the nodes, to within one.

use std::collections::BTreeMap;

use indicatif::{ProgressBar, ProgressStyle};
use ostraca_client::{AdminError, RebalancePlan, RebalanceProgress};
use serde_json::{Value, json};

use crate::args::{Global, OutputFormat, Rebalance};
use crate::failure::{Exit, Failure};
use crate::{connection, output};

pub(crate) async fn run(global: &Global, args: &Rebalance) -> Result<Exit, Failure> {
    let client = connection::connect(global).await?;
    let plan = connection::with_spinner("contacting the node", client.rebalance_plan()).await?;
    if args.dry_run {
        connection::disconnect(client).await;
        show_plan(global, &plan);
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

fn show_plan(global: &Global, plan: &RebalancePlan) {
    if global.output == OutputFormat::Json {
        return output::json(&shape(plan, None));
    }
    if plan.moves.is_empty() {
        output::line("nothing would be moved");
    } else {
        let mut pairs: BTreeMap<(&str, &str), usize> = BTreeMap::new();
        for it in &plan.moves {
            *pairs.entry((&it.from, &it.to)).or_default() += 1;
        }
        let rows = pairs
            .iter()
            .map(|((from, to), count)| [(*from).to_owned(), (*to).to_owned(), count.to_string()]);
        output::table(["FROM", "TO", "SHARDS"], rows.collect());
        output::line("");
        output::line(&format!(
            "{} shards would be moved; --output json lists them",
            plan.moves.len()
        ));
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
