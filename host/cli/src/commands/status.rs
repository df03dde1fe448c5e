//! `ostraca status`: whether the node is well, in one screen.

use std::time::Duration;

use ostraca_client::Status;
use serde_json::json;

use crate::args::{Format, Global};
use crate::failure::{Exit, Failure};
use crate::{dial, output};

pub(crate) async fn run(global: &Global) -> Result<Exit, Failure> {
    let client = dial::connect(global).await?;
    let node = dial::patiently("asking the node", client.node()).await?;
    let status = dial::patiently("asking the node", client.status()).await?;
    let address = client.connected_to().map(|(_, address)| address.to_string());
    dial::part(client).await;
    let well = status.problems.is_empty();
    if global.output == Format::Json {
        let problems: Vec<_> = status
            .problems
            .iter()
            .map(|it| json!({ "code": it.code, "message": it.text, "help": it.help }))
            .collect();
        output::json(&json!({
            "well": well, "cluster": status.cluster, "node": status.node,
            "version": node.version, "address": address, "addresses": node.addresses,
            "incarnation": status.incarnation, "uptime_ms": status.uptime_ms,
            "store": status.store, "numbers": status.numbers, "texts": status.texts,
            "problems": problems,
        }));
        return Ok(Exit::Done);
    }
    let name = status.texts.get("cluster_name").map_or("", String::as_str);
    output::line(&format!("node {} of cluster {name} ({})", status.node, status.cluster));
    let up = Duration::from_secs(status.uptime_ms / 1_000);
    let mut rows = vec![
        ("at", address.unwrap_or_default()),
        ("up", format!("{} (life {})", humantime::format_duration(up), status.incarnation)),
        ("version", node.version),
        ("store", status.store.clone()),
    ];
    let texts = status.texts.iter().filter(|(name, _)| *name != "cluster_name");
    rows.extend(texts.map(|(name, value)| (name.as_str(), value.clone())));
    output::pairs(&rows);
    output::line("");
    numbers(&status);
    output::line("");
    if well {
        output::line("all is well");
    }
    for it in &status.problems {
        output::line(&format!("{}: {}", it.code, it.text));
        if !it.help.is_empty() {
            output::line(&format!("  to do: {}", it.help));
        }
    }
    Ok(Exit::Done)
}

/// Two columns of numbers: one screen.
fn numbers(status: &Status) {
    let all: Vec<_> = status.numbers.iter().map(|(name, n)| (name.replace('_', " "), n)).collect();
    let half = all.len().div_ceil(2);
    let name = all.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let show = |(text, n): &(String, &u64)| format!("{text:name$}  {n:>12}");
    for (at, left) in all.iter().take(half).enumerate() {
        let right = all.get(half + at).map(show).unwrap_or_default();
        output::line(format!("{}    {right}", show(left)).trim_end());
    }
}
