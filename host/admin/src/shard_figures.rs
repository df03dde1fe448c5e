//! What each shard has done and holds, from the shards' owners (K37, K38).

use std::collections::BTreeMap;

use futures::future::join_all;
use ostraca_core::rows::{Member, NodeStatus};
use ostraca_wire::proto::ShardStatistics;

use super::AdminService;

impl AdminService {
    /// Asks all live hosts. A shard that was being handed off meanwhile may be missing, or have the figures of the owner
    /// with the higher epoch.
    pub(super) async fn shard_figures(&self) -> ShardStatistics {
        let view = self.current_view();
        let hosts =
            view.nodes.iter().filter(|(_, row)| row.status == NodeStatus::Live && row.is_host());
        let members =
            hosts.map(|(node, row)| Member { node: node.clone(), incarnation: row.incarnation });
        let asked = members.map(|member| async move {
            let figures = self.gateway.shard_figures(&member).await;
            (member.node, figures)
        });
        let mut shards = BTreeMap::new();
        let mut unresponsive = Vec::new();
        for (node, answer) in join_all(asked).await {
            let figures = match answer {
                Ok(figures) => figures,
                Err(issue) => {
                    unresponsive.push(issue);
                    continue;
                }
            };
            for mut it in figures {
                it.owner = node.to_string();
                let known: Option<&ostraca_wire::proto::ShardFigures> = shards.get(&it.shard);
                if known.is_none_or(|known| known.epoch <= it.epoch) {
                    shards.insert(it.shard, it);
                }
            }
        }
        ShardStatistics { shards: shards.into_values().collect(), unresponsive }
    }
}
