//! `ostraca repair`: checks the rows of a stopped cluster for contradictions, and fixes them (K36).

use std::time::Duration;

use ostraca_node::{Config, Contradiction, NodeError, OnWait, Remedy, RepairReport};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::config_file;
use crate::args::{Global, OutputFormat, Repair};
use crate::connection;
use crate::failure::{Exit, Failure};
use crate::{output, quote};

pub(crate) async fn run(global: &Global, args: &Repair) -> Result<Exit, Failure> {
    let config = Config::load(&config_file(&args.file))?;
    let apply = args.apply;
    let what = if apply { "repairing" } else { "checking" };
    let work = move |on_wait: OnWait<'_>| {
        ostraca_node::repair_rows(&config, apply, on_wait).map_err(Box::new)
    };
    let report = without_node(what, work).await?;
    match global.output {
        OutputFormat::Table => print(args, &report),
        OutputFormat::Json => output::json(&json!({
            "place": report.place, "cluster_name": report.cluster_name,
            "found": report.found.iter().map(to_json).collect::<Vec<_>>(),
            "remaining": report.remaining.iter().map(to_json).collect::<Vec<_>>(),
            "changed_rows": report.changed_rows,
        })),
    }
    Ok(if report.remaining.is_empty() { Exit::Done } else { Exit::Unhealthy })
}

/// Runs work that opens the stores itself, and may wait for leases to lapse: then a line on standard error says so.
pub(super) async fn without_node<T: Send + 'static>(
    what: &str,
    work: impl FnOnce(OnWait<'_>) -> Result<T, Box<NodeError>> + Send + 'static,
) -> Result<T, Failure> {
    let (waits, mut waiting) = mpsc::unbounded_channel();
    let working = tokio::task::spawn_blocking(move || {
        // Nobody receives if the command was interrupted.
        work(&|wait| {
            let _ = waits.send(wait);
        })
    });
    // Without a wait, this ends with the work, which owns the sender.
    while let Some(wait) = connection::with_spinner(what, waiting.recv()).await {
        eprintln!("{}", wait_text(wait));
    }
    let ended = working.await;
    let done = ended.map_err(|error| NodeError::UnexpectedExit(error.to_string()))?;
    Ok(done.map_err(|error| *error)?)
}

fn wait_text(wait: Duration) -> String {
    let seconds = wait.as_millis().div_ceil(1_000);
    format!("waiting {seconds} s until the leases of other nodes have lapsed")
}

fn print(args: &Repair, report: &RepairReport) {
    let RepairReport { place, cluster_name, found, remaining, changed_rows } = report;
    output::line(&format!("checked the rows of the cluster {cluster_name} in {place}"));
    for it in found {
        output::line(&format!("{}  {}", it.kind, it.key));
        output::line(&format!("  {}", it.what));
        output::line(&format!("  {}: {}", it.remedy.name(), it.remedy.text()));
    }
    let is_fixable = |it: &&Contradiction| matches!(it.remedy, Remedy::Fix(_));
    let fixable = remaining.iter().filter(is_fixable).count();
    if args.apply && *changed_rows > 0 {
        output::line(&format!("{changed_rows} rows were changed; no entity was"));
    }
    if remaining.is_empty() {
        output::line("no contradictions");
        return;
    }
    output::line(&format!("{} contradictions, of which {fixable} can be fixed", remaining.len()));
    if fixable > 0 && !args.apply {
        let path = quote::shell_quote(&args.file.display().to_string());
        output::line(&format!("next, with all nodes stopped: ostraca repair {path} --apply"));
    }
}

fn to_json(it: &Contradiction) -> Value {
    json!({
        "kind": it.kind.name(), "key": it.key, "what": it.what,
        "remedy": it.remedy.name(), "does": it.remedy.text(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn k36_a_wait_for_leases_is_said_in_whole_seconds() {
        let expected = "waiting 63 s until the leases of other nodes have lapsed";
        assert_eq!(wait_text(Duration::from_millis(62_100)), expected);
        let done = without_node("repairing", |on_wait| {
            on_wait(Duration::from_secs(1));
            Ok(7)
        });
        assert!(matches!(done.await, Ok(7)), "the work's result is the command's");
    }
}
