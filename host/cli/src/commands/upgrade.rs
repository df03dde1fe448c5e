//! `ostraca upgrade status`: how far a rolling upgrade of the nodes is, and what comes next.

use std::collections::BTreeMap;

use ostraca_client::{NodeState, NodeStatus};
use serde_json::{Value, json};

use crate::args::{Global, OutputFormat, Upgrade, UpgradeCommand};
use crate::failure::{Exit, Failure};
use crate::{connection, output, quote};

pub(crate) async fn run(global: &Global, args: &Upgrade) -> Result<Exit, Failure> {
    let UpgradeCommand::Status = args.what;
    let client = connection::connect(global).await?;
    let all = connection::with_spinner("contacting the node", client.nodes()).await?;
    connection::disconnect(client).await;
    let progress = Progress::of(&all.nodes, &all.manager);
    match global.output {
        OutputFormat::Json => output::json(&progress.to_json()),
        OutputFormat::Table => progress.print(),
    }
    Ok(Exit::Done)
}

/// A version as numbers, so that 0.10 is newer than 0.9. Without numbers, it is the oldest.
fn key(version: &str) -> (Vec<u64>, &str) {
    let numbers = version.split(['.', '-', '+']).map_while(|part| part.parse().ok());
    (numbers.collect(), version)
}

/// What the live nodes run.
struct Progress<'a> {
    /// The nodes of each version, from the oldest version to the newest.
    versions: BTreeMap<(Vec<u64>, &'a str), Vec<&'a NodeState>>,
    manager: &'a str,
}

impl<'a> Progress<'a> {
    fn of(nodes: &'a [NodeState], manager: &'a str) -> Self {
        let mut versions: BTreeMap<_, Vec<_>> = BTreeMap::new();
        let live = |it: &&NodeState| {
            matches!(it.status(), NodeStatus::Live | NodeStatus::Draining | NodeStatus::Lapsed)
        };
        for node in nodes.iter().filter(live) {
            versions.entry(key(&node.version)).or_default().push(node);
        }
        Self { versions, manager }
    }

    fn newest(&self) -> &'a str {
        self.versions.keys().next_back().map_or("", |(_, version)| *version)
    }

    /// The nodes that do not run the newest version, in the order in which they should be upgraded: the manager late, so
    /// that it changes once, and the node with the store last, since all others need it.
    fn remaining(&self) -> Vec<&'a NodeState> {
        let mut old: Vec<_> = self.versions.values().rev().skip(1).flatten().copied().collect();
        let has_store = |it: &NodeState| it.roles.iter().any(|role| role == "store");
        old.sort_by_key(|it| (has_store(it), it.name == self.manager, it.name.clone()));
        old
    }

    fn print(&self) {
        if self.versions.len() < 2 {
            return output::line(&match self.newest() {
                "" => "no node is live".into(),
                version => format!("all live nodes run {version}: no upgrade is in progress"),
            });
        }
        let rows = self.versions.iter().rev().map(|((_, version), nodes)| {
            let shards: u32 = nodes.iter().map(|it| it.shards).sum();
            let names: Vec<_> = nodes.iter().map(|it| it.name.as_str()).collect();
            [(*version).to_owned(), shards.to_string(), names.join(", ")]
        });
        output::table(["VERSION", "SHARDS", "NODES"], rows.collect());
        output::line("");
        let remaining = self.remaining();
        let total: usize = self.versions.values().map(Vec::len).sum();
        output::line(&format!(
            "{} of {total} nodes run {}; until all do, shards go only to these, and no others are moved",
            total - remaining.len(),
            self.newest()
        ));
        if let Some(next) = remaining.first() {
            output::line(&format!(
                "next: stop {} (SIGTERM: it hands its {} shards over first), install {}, and start it",
                quote::shell_quote(&next.name),
                next.shards,
                self.newest()
            ));
        }
    }

    fn to_json(&self) -> Value {
        let versions = self.versions.iter().rev().map(|((_, version), nodes)| {
            json!({
                "version": version,
                "shards": nodes.iter().map(|it| it.shards).sum::<u32>(),
                "nodes": nodes.iter().map(|it| &it.name).collect::<Vec<_>>(),
            })
        });
        let remaining: Vec<_> = self.remaining().iter().map(|it| &it.name).collect();
        json!({
            "in_progress": self.versions.len() > 1,
            "newest": Some(self.newest()).filter(|version| !version.is_empty()),
            "versions": versions.collect::<Vec<_>>(),
            "remaining": remaining,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, version: &str, roles: &[&str], status: NodeStatus) -> NodeState {
        NodeState {
            name: name.into(),
            version: version.into(),
            roles: roles.iter().map(ToString::to_string).collect(),
            status: status.into(),
            shards: 4,
            ..NodeState::default()
        }
    }

    #[test]
    fn nodes_are_upgraded_in_an_order_that_disturbs_least() {
        let nodes = [
            node("a", "0.9.0", &["store", "manager"], NodeStatus::Live),
            node("b", "0.9.0", &["manager", "host"], NodeStatus::Live),
            node("c", "0.10.0", &["host"], NodeStatus::Live),
            node("d", "0.9.0", &["host"], NodeStatus::Draining),
            node("e", "0.8.0", &["host"], NodeStatus::Dead),
        ];
        let progress = Progress::of(&nodes, "b");
        assert_eq!(progress.newest(), "0.10.0");
        let remaining: Vec<_> = progress.remaining().iter().map(|it| it.name.as_str()).collect();
        assert_eq!(remaining, ["d", "b", "a"]);
        let value = progress.to_json();
        assert_eq!(value["in_progress"], true);
        assert_eq!(value["versions"][1]["shards"], 12);
        let done = Progress::of(&nodes[2..3], "c");
        assert_eq!(
            (done.to_json()["in_progress"].clone(), done.remaining().len()),
            (false.into(), 0)
        );
        assert_eq!(Progress::of(&[], "").to_json()["newest"], Value::Null);
    }
}
