//! `ostraca status`: shows cluster health and how to fix problems, in one screen.
//!
//! Problems come last, where they are visible at the bottom of a terminal. The exit code shows whether there are any,
//! for monitoring.

use ostraca_client::{ClusterStatus, Status};
use serde_json::{Value, json};

use crate::args::{Global, OutputFormat};
use crate::failure::{Exit, Failure};
use crate::{connection, output};

pub(crate) async fn run(global: &Global) -> Result<Exit, Failure> {
    let client = connection::connect(global).await?;
    let node = connection::with_spinner("contacting the node", client.node()).await?;
    let status = connection::with_spinner("contacting the node", client.status()).await?;
    let address = client.connected_to().map(|(_, address)| address.to_string());
    connection::disconnect(client).await;
    let healthy = status.problems.is_empty();
    let exit = if healthy { Exit::Done } else { Exit::Unhealthy };
    if global.output == OutputFormat::Json {
        let problems: Vec<_> = status
            .problems
            .iter()
            .map(|it| json!({ "code": it.code, "message": it.message, "help": it.help }))
            .collect();
        output::json(&json!({
            "healthy": healthy, "cluster_id": status.cluster_id, "node": status.node,
            "version": node.version, "address": address, "addresses": node.addresses,
            "incarnation": status.incarnation, "uptime_ms": status.uptime_ms,
            "store": status.store, "metrics": status.metrics, "info": status.info,
            "cluster_status": status.cluster_status.as_ref().map(cluster_status), "problems": problems,
        }));
        return Ok(exit);
    }
    let name = status.info.get("cluster_name").map_or("", String::as_str);
    let seen_by = match &status.cluster_status {
        // Everything that this node knows about other nodes comes from the store.
        Some(it) if !it.store_available => {
            let ago = output::span(it.since_renewal_ms);
            format!(
                "as seen by node {} {ago} ago, before the store stopped responding",
                status.node
            )
        }
        _ => format!("as seen by node {}", status.node),
    };
    output::line(&format!("cluster {name} ({}), {seen_by}", status.cluster_id));
    if let Some(it) = &status.cluster_status {
        output::pairs(&cluster(it));
    }
    output::line("");
    output::line(&format!("node {}", status.node));
    let uptime = output::span(status.uptime_ms);
    let mut rows = vec![
        ("address", address.unwrap_or_default()),
        ("uptime", format!("{uptime} (incarnation {})", status.incarnation)),
        ("version", node.version),
        ("store", status.store.clone()),
    ];
    let info = status.info.iter().filter(|(name, _)| *name != "cluster_name");
    rows.extend(info.map(|(name, value)| (name.as_str(), value.clone())));
    output::pairs(&rows);
    output::line("");
    metrics(&status);
    output::line("");
    if healthy {
        output::line("no problems found");
    }
    for it in &status.problems {
        output::line(&format!("{}: {}", it.code, it.message));
        if !it.help.is_empty() {
            output::line(&format!("  help: {}", it.help));
        }
    }
    Ok(exit)
}

fn cluster_status(it: &ClusterStatus) -> Value {
    let some = |name: &str| Some(name.to_owned()).filter(|name| !name.is_empty());
    json!({
        "manager": some(&it.manager), "term": it.term, "term_age_ms": it.term_age_ms,
        "nodes_live": it.nodes_live, "nodes_draining": it.nodes_draining,
        "nodes_dead": it.nodes_dead, "shards": it.shards, "shards_assigned": it.shards_assigned,
        "shards_unassigned": it.shards_unassigned, "shards_moving": it.shards_moving,
        "store_node": some(&it.store_node), "store_available": it.store_available,
        "since_renewal_ms": it.since_renewal_ms, "lease_duration_ms": it.lease_duration_ms,
    })
}

/// The cluster in four lines.
fn cluster(it: &ClusterStatus) -> [(&'static str, String); 4] {
    let manager = match it.manager.as_str() {
        "" => "unknown".into(),
        name => format!("{name}, term {}, for {}", it.term, output::span(it.term_age_ms)),
    };
    let others = |count: u32, label: &str| match count {
        0 => String::new(),
        count => format!(", {count} {label}"),
    };
    let nodes = format!(
        "{} live{}{}",
        it.nodes_live,
        others(it.nodes_draining, "draining"),
        others(it.nodes_dead, "dead")
    );
    let shards = format!(
        "{} of {} assigned{}{}",
        it.shards_assigned,
        it.shards,
        others(it.shards_moving, "moving"),
        others(it.shards_unassigned, "without a live owner")
    );
    let at = match it.store_node.as_str() {
        "" => String::new(),
        node => format!("on {node}, "),
    };
    let store = format!(
        "{at}{}; lease of {}, renewed {} ago",
        if it.store_available { "available" } else { "not responding" },
        output::span(it.lease_duration_ms),
        output::span(it.since_renewal_ms),
    );
    [("manager", manager), ("nodes", nodes), ("shards", shards), ("store", store)]
}

/// Metrics in two columns, to fit one screen.
fn metrics(status: &Status) {
    let all: Vec<_> = status.metrics.iter().map(|(name, n)| (name.replace('_', " "), n)).collect();
    let half = all.len().div_ceil(2);
    let name = all.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let show = |(text, n): &(String, &u64)| format!("{text:name$}  {n:>12}");
    for (at, left) in all.iter().take(half).enumerate() {
        let right = all.get(half + at).map(show).unwrap_or_default();
        output::line(format!("{}    {right}", show(left)).trim_end());
    }
}
