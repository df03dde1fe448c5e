//! Who still owns shards of two closed pools.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ostraca_catalog::rows::{self, SETTINGS, SettingsRow};
use ostraca_config::config::ClusterSettings;
use ostraca_core::ids::NodeId;
use ostraca_core::pools::Pool;
use ostraca_core::rows::{Member, NodeRow, NodeStatus, Row, RowKey, shard_at};
use ostraca_store::ClusterStore;
use ostraca_store::pool_copy::{OnPoolCopy, PoolCopyError, PoolCopyProgress, PoolCopyStep};
use tokio::time::sleep;

use super::failure::CopyFailure;

/// Polling interval.
const PAUSE: Duration = Duration::from_millis(100);

/// Watches the owners of the shards of two pools, in the store's rows: this node's own view of them may be old.
pub(super) struct Owners {
    rows: Arc<dyn ClusterStore>,
    pools: [Pool; 2],
    /// The revision of each node's row, and since when it has been seen.
    observed: BTreeMap<NodeId, (u64, Instant)>,
}

impl Owners {
    pub(super) fn new(rows: Arc<dyn ClusterStore>, pools: [Pool; 2]) -> Self {
        Self { rows, pools, observed: BTreeMap::new() }
    }

    /// Waits until no live node owns a shard of either pool. A node whose row does not change for the time of a lease is
    /// not live: its own lease has lapsed (R8).
    ///
    /// # Errors
    /// After `limit`, [`PoolCopyError::Owned`]; and the errors of the rows.
    pub(super) async fn released(
        mut self,
        limit: Duration,
        on_progress: &mut OnPoolCopy<'_>,
    ) -> Result<(), CopyFailure> {
        let began = Instant::now();
        let all_shards = self.pools.iter().map(|pool| pool.shards).sum::<u32>();
        loop {
            let owners = self.read().await?;
            let owned = owners.values().sum::<u32>();
            on_progress(PoolCopyProgress {
                step: PoolCopyStep::Releasing,
                shards: all_shards.saturating_sub(owned),
                all_shards,
                items: 0,
                bytes: 0,
            });
            if owners.is_empty() {
                return Ok(());
            }
            if began.elapsed() >= limit {
                let named = owners.iter().map(|(node, shards)| format!("{node} owns {shards}"));
                let owners = named.collect::<Vec<_>>().join(", ");
                let limit_ms = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
                return Err(PoolCopyError::Owned { owners, limit_ms }.into());
            }
            sleep(PAUSE).await;
        }
    }

    /// The live owners, and how many shards of the pools each has.
    async fn read(&mut self) -> Result<BTreeMap<NodeId, u32>, CopyFailure> {
        // In this order: a node that owns a shard was registered before.
        let assigned = self.assigned().await?;
        let settings = rows::read::<SettingsRow>(&*self.rows, SETTINGS).await?;
        let settings = settings.map_or_else(ClusterSettings::default, |(row, _)| row.settings());
        // The answer may be late: it proves nothing about the time after the question.
        let asked = Instant::now();
        let nodes = self.nodes().await?;
        let mut owners = BTreeMap::new();
        for owner in assigned {
            let Some((row, at)) = nodes.get(&owner.node) else { continue };
            let lease =
                settings.lease.max(Duration::from_millis(row.lease)) + settings.lease_margin;
            let seen = self.observed.entry(owner.node.clone()).or_insert((*at, Instant::now()));
            if seen.0 != *at {
                *seen = (*at, Instant::now());
            }
            let is_live = row.status == NodeStatus::Live && row.incarnation == owner.incarnation;
            if is_live && asked.saturating_duration_since(seen.1) < lease {
                *owners.entry(owner.node).or_default() += 1;
            }
        }
        Ok(owners)
    }

    /// The owner of each shard of the pools that has one.
    async fn assigned(&self) -> Result<Vec<Member>, CopyFailure> {
        let mut owners = Vec::new();
        for stored in self.rows.list("shards/").await?.0 {
            let Some((RowKey::Assignments(chunk), Row::Assignments(row), _)) =
                rows::decode_row(&stored)?
            else {
                continue;
            };
            for (place, assignment) in row.assignments.into_iter().enumerate() {
                let shard = shard_at(chunk, place);
                if self.pools.iter().any(|pool| pool.contains(shard)) {
                    owners.extend(assignment.owner);
                }
            }
        }
        Ok(owners)
    }

    async fn nodes(&self) -> Result<BTreeMap<NodeId, (NodeRow, u64)>, CopyFailure> {
        let mut nodes = BTreeMap::new();
        for stored in self.rows.list("nodes/").await?.0 {
            if let Some((RowKey::Node(node), Row::Node(row), at)) = rows::decode_row(&stored)? {
                nodes.insert(node, (row, at));
            }
        }
        Ok(nodes)
    }
}
