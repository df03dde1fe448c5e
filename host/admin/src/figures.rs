//! What the nodes have done since they started, for `ostraca top`.

use std::sync::PoisonError;

use futures::future::join_all;
use ostraca_core::rows::{Member, NodeRow, NodeStatus};
use ostraca_stats::{DURATION_BOUNDS, Ending, WorkKey, WorkTotal};
use ostraca_store_ranges::RangedStore;
use ostraca_wire::proto;

use super::AdminService;

/// Maximum number of methods and other kinds of work in a response.
const WORK: usize = 256;
/// Maximum number of hot entities in a response.
const HOTTEST: usize = 50;

impl AdminService {
    /// Asks all live nodes.
    pub(super) async fn figures(&self) -> proto::Figures {
        let mut all = proto::Figures::default();
        for answer in self.figures_of(|_| true).await {
            match answer {
                Ok(figures) => all.nodes.push(figures),
                Err(issue) => all.unresponsive.push(issue),
            }
        }
        all
    }

    /// Asks those of the live nodes that `is_asked` selects by their rows.
    pub(super) async fn figures_of(
        &self,
        is_asked: impl Fn(&NodeRow) -> bool,
    ) -> Vec<Result<proto::NodeFigures, proto::NodeIssue>> {
        let view = self.current_view();
        let asked =
            view.nodes.iter().filter(|(_, row)| row.status == NodeStatus::Live && is_asked(row));
        let members =
            asked.map(|(node, row)| Member { node: node.clone(), incarnation: row.incarnation });
        join_all(members.map(|member| async move { self.gateway.figures(&member).await })).await
    }

    /// What this node has done.
    #[must_use]
    pub fn own_figures(&self) -> proto::NodeFigures {
        let status = self.status();
        let mut metrics = status.metrics;
        let mut work: Vec<_> = self.status.stats.methods.all().iter().map(work_to_wire).collect();
        // Before the list is cut.
        let failed: u64 = work.iter().map(|it| it.error + it.not_run + it.unknown).sum();
        let messages = failed + work.iter().map(|it| it.ok).sum::<u64>();
        metrics.extend([("messages".into(), messages), ("messages_failed".into(), failed)]);
        work.sort_by_key(|it| std::cmp::Reverse(it.buckets.iter().sum::<u64>()));
        work.truncate(WORK);
        let mut hottest: Vec<_> = self
            .status
            .gauges
            .iter()
            .flat_map(|gauges| {
                gauges.hottest.lock().unwrap_or_else(PoisonError::into_inner).clone()
            })
            .map(|hot| proto::HotEntity {
                r#type: hot.entity.entity_type.to_string(),
                id: hot.entity.id.to_string(),
                turns_per_second: hot.rate,
            })
            .collect();
        hottest.sort_by_key(|hot| std::cmp::Reverse(hot.turns_per_second));
        hottest.truncate(HOTTEST);
        proto::NodeFigures {
            node: status.node,
            uptime_ms: status.uptime_ms,
            metrics,
            work,
            bounds: DURATION_BOUNDS.to_vec(),
            hottest,
            stores: self
                .ranges
                .get()
                .into_iter()
                .flat_map(RangedStore::ids)
                .map(|id| id.to_be_bytes().to_vec().into())
                .collect(),
        }
    }
}

fn work_to_wire(((entity_type, work), stats): &(WorkKey, WorkTotal)) -> proto::WorkFigures {
    let of_messages = work.name() == "message";
    let seen = if of_messages { stats.messages() } else { stats.turns() };
    proto::WorkFigures {
        r#type: entity_type.to_string(),
        work: work.name().into(),
        method: work.method().into(),
        ok: stats.ended(Ending::Ok),
        error: stats.ended(Ending::Error),
        not_run: stats.ended(Ending::NotRun),
        unknown: stats.ended(Ending::Unknown),
        buckets: seen.buckets.iter().map(|(_, count)| *count).collect(),
        total_us: (seen.sum * 1e6) as u64,
    }
}
