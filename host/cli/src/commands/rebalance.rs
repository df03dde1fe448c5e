//! `ostraca rebalance`: as many shards on each node, give or take one.

use std::collections::BTreeMap;

use indicatif::{ProgressBar, ProgressStyle};
use ostraca_client::{AdminError, RebalancePlan, RebalanceProgress};
use serde_json::json;

use crate::args::{Format, Global, Rebalance};
use crate::failure::{Exit, Failure};
use crate::{dial, output};

pub(crate) async fn run(global: &Global, args: &Rebalance) -> Result<Exit, Failure> {
    let client = dial::connect(global).await?;
    if args.dry_run {
        let plan = dial::patiently("asking the node", client.rebalance_plan()).await?;
        dial::part(client).await;
        show_plan(global, &plan);
        return Ok(Exit::Done);
    }
    let mut updates = client.rebalance().await?;
    let bar = progress();
    let mut last = RebalanceProgress::default();
    while let Some(now) = updates.next().await? {
        bar.set_length(now.planned.into());
        bar.set_position(now.moved.into());
        bar.set_message(format!("{} under way", now.in_flight));
        last = now;
        if last.done {
            break;
        }
    }
    bar.finish_and_clear();
    drop(updates);
    dial::part(client).await;
    if !last.done {
        let text = "the node told no more of the rebalance";
        return Err(AdminError::Connection(text.into()).into());
    }
    if global.output == Format::Json {
        output::json(&json!({
            "planned": last.planned, "moved": last.moved, "failed": last.failed,
        }));
    } else if last.planned == 0 {
        output::line("nothing had to be moved");
    } else {
        output::line(&format!("{} of {} shards were moved", last.moved, last.planned));
        if last.failed > 0 {
            output::line(&format!(
                "{} stayed where they were; the manager tries again by itself (`ostraca events` says why)",
                last.failed
            ));
        }
    }
    Ok(Exit::Done)
}

fn show_plan(global: &Global, plan: &RebalancePlan) {
    let held_up = Some(&plan.held_up).filter(|text| !text.is_empty());
    if global.output == Format::Json {
        let moves: Vec<_> = plan
            .moves
            .iter()
            .map(|it| json!({ "shard": it.shard, "from": it.from, "to": it.to }))
            .collect();
        output::json(&json!({ "moves": moves, "held_up": held_up }));
        return;
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
            "{} shards would be moved; --output json says which",
            plan.moves.len()
        ));
    }
    if let Some(why) = held_up {
        output::line(&format!("not now: {why}"));
    }
}

fn progress() -> ProgressBar {
    let style = ProgressStyle::with_template("rebalancing [{bar:40}] {pos}/{len} shards, {msg}");
    // The template is a constant; without it the default style is shown.
    match style {
        Ok(style) => ProgressBar::new(0).with_style(style.progress_chars("=> ")),
        Err(_) => ProgressBar::new(0),
    }
}
