//! `ostraca reset sharding`: removes leases, owners of shards and routes from a stopped cluster (K36).

use ostraca_codes::codes;
use ostraca_node::{Config, OnWait, ResetReport};
use serde_json::json;

use super::config_file;
use super::repair::without_node;
use crate::args::{Global, OutputFormat, Reset, ResetCommand, ResetSharding};
use crate::failure::{Exit, Failure};
use crate::output;

pub(crate) async fn run(global: &Global, args: &Reset) -> Result<Exit, Failure> {
    match &args.what {
        ResetCommand::Sharding(args) => sharding(global, args).await,
    }
}

async fn sharding(global: &Global, args: &ResetSharding) -> Result<Exit, Failure> {
    let config = Config::load(&config_file(&args.file))?;
    let apply = args.yes;
    let what = if apply { "resetting" } else { "checking" };
    let work = move |on_wait: OnWait<'_>| {
        ostraca_node::reset_sharding(&config, apply, on_wait).map_err(Box::new)
    };
    let report = without_node(what, work).await?;
    match global.output {
        OutputFormat::Table => print(&report, apply),
        OutputFormat::Json => output::json(&json!({
            "place": report.place, "cluster_name": report.cluster_name, "applied": apply,
            "nodes": report.nodes, "owned_shards": report.owned_shards,
            "hand_offs": report.hand_offs, "rows": report.rows, "cache": report.had_cache,
        })),
    }
    if apply {
        return Ok(Exit::Done);
    }
    Err(Failure::usage(codes::USAGE, "not confirmed: nothing was removed")
        .help("stop all nodes, and run the command again with `--yes`"))
}

fn print(report: &ResetReport, apply: bool) {
    let ResetReport { place, cluster_name, nodes, owned_shards, hand_offs, rows, had_cache } =
        report;
    let verb = if apply { "was reset" } else { "would be reset" };
    output::line(&format!("the sharding of the cluster {cluster_name} in {place} {verb}"));
    let nodes = if nodes.is_empty() { "none".into() } else { nodes.join(", ") };
    output::pairs(&[
        ("leases", nodes),
        ("owners", format!("{owned_shards} shards")),
        ("hand-offs", hand_offs.to_string()),
        ("rows", rows.to_string()),
        ("cache", if *had_cache { "of this node" } else { "none" }.into()),
    ]);
    if apply {
        output::line("entities were not changed; the nodes assign all shards anew when they start");
    }
}
