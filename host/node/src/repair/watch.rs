//! Makes sure that no node lives, before rows change that only the manager may change otherwise.
//!
//! A node in whose process the store was is stopped: the lock of the store's directory proves it. Any other node may
//! still answer queries until its lease has lapsed (R8), and a node that reaches the rows renews its lease. So this
//! waits for the longest lease, and refuses if the row of a node changes meanwhile. Times are not compared between
//! machines.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use ostraca_catalog::rows::{self, SETTINGS, SettingsRow};
use ostraca_config::config::ClusterSettings;
use ostraca_core::ids::{Incarnation, NodeId};
use ostraca_core::rows::NodeStatus;
use ostraca_store::ClusterStore;
use tokio::time::sleep;

use super::nodes::LONGEST_LEASE;
use super::snapshot::Snapshot;
use crate::error::NodeError;

/// Polling interval.
const PAUSE: Duration = Duration::from_millis(250);

/// How long the leases of nodes last.
struct Leases {
    /// At least, if the node's row says so.
    known: Duration,
    /// If the row of the node, or of its last incarnation, is lost.
    unknown: Duration,
    margin: Duration,
}

impl Leases {
    /// Those of the cluster's settings. Without usable ones, the longest that a node's row names, or that is possible.
    fn of(snapshot: &Snapshot) -> Self {
        let settings = snapshot.other(SETTINGS).map(rows::decode::<SettingsRow>);
        if let Some(Ok(row)) = settings
            && row.settings().check().is_ok()
        {
            let ClusterSettings { lease, lease_margin, .. } = row.settings();
            return Self { known: lease, unknown: lease, margin: lease_margin };
        }
        let rows = snapshot.nodes.values().filter_map(|found| found.row.as_ref().ok());
        let plausible = rows.map(|row| row.lease).filter(|lease| *lease <= LONGEST_LEASE);
        Self {
            known: Duration::from_millis(plausible.max().unwrap_or(LONGEST_LEASE)),
            unknown: ClusterSettings::LONGEST_LEASE,
            margin: ClusterSettings::LONGEST_MARGIN,
        }
    }
}

/// For how long the leases of nodes that may live are to be watched; `None` if no node may. `stopped` is known to have
/// ended.
pub(super) fn time_to_watch(snapshot: &Snapshot, stopped: Option<&NodeId>) -> Option<Duration> {
    let Leases { known, unknown, margin } = Leases::of(snapshot);
    let mut longest = None::<Duration>;
    let mut watch = |lease: Duration| {
        let wait = lease.saturating_add(margin);
        longest = Some(longest.map_or(wait, |longest| longest.max(wait)));
    };
    // Claims name owners whose assignments are lost.
    let named = snapshot.named_in_rows.keys().chain(snapshot.named_in_claims.keys());
    for node in named.filter(|node| Some(*node) != stopped) {
        if !snapshot.nodes.contains_key(node) {
            watch(unknown);
        }
    }
    for (node, found) in snapshot.nodes.iter().filter(|(node, _)| Some(*node) != stopped) {
        match &found.row {
            Err(_) => watch(unknown),
            Ok(row) if row.status == NodeStatus::Live => match row.lease > LONGEST_LEASE {
                true => watch(unknown),
                false => watch(known.max(Duration::from_millis(row.lease))),
            },
            // An incarnation that the row does not know may be a later one.
            Ok(row) => {
                let is_later = |named: &Incarnation| {
                    *named != row.incarnation && named.counter >= row.incarnation.counter
                };
                if snapshot.named(node).any(is_later) {
                    watch(unknown);
                }
            }
        }
    }
    longest
}

/// Watches the rows of nodes from `began` on.
///
/// # Errors
/// [`NodeError::NodesRun`] names the nodes whose rows have changed; [`NodeError::Catalog`] if the store does not
/// answer.
pub(super) async fn watch_nodes(
    rows: &dyn ClusterStore,
    began: Instant,
    wait: Duration,
) -> Result<(), NodeError> {
    let before = revisions(rows).await?;
    while began.elapsed() < wait {
        sleep(PAUSE.min(wait.saturating_sub(began.elapsed()))).await;
        let now = revisions(rows).await?;
        let changed = now.iter().filter(|(key, at)| before.get(*key) != Some(at));
        let changed: Vec<_> = changed.map(|(key, _)| key.replace("nodes/", "")).collect();
        if !changed.is_empty() {
            return Err(NodeError::NodesRun(changed));
        }
    }
    Ok(())
}

async fn revisions(rows: &dyn ClusterStore) -> Result<BTreeMap<String, u64>, NodeError> {
    let (found, _) = rows.list("nodes/").await?;
    Ok(found.into_iter().map(|row| (row.key, row.revision)).collect())
}
