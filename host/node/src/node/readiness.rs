//! The conditions that a node waits for: it is ready, another process uses its name, or one of its parts has ended.

use std::sync::Arc;
use std::time::Duration;

use ostraca_catalog::types::TypeRegistry;
use ostraca_control::view::{ClusterView, EventLog};
use ostraca_core::node::Notice;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use crate::error::NodeError;

/// How long a start waits until every shard has an owner. After that, a warning is logged, and the node counts as
/// ready anyway.
const READY_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a start waits for deployed types to be compiled.
const TYPES: Duration = Duration::from_secs(60);
/// How many times another process must be seen to renew this node's lease, counted once per lease, before a start
/// fails.
const NAME_CONFLICT_THRESHOLD: usize = 3;

/// Waits until the node knows an owner of every shard, serves its own, and has compiled the deployed types.
pub(super) async fn wait_until_ready(
    mut view: watch::Receiver<Arc<ClusterView>>,
    types: &TypeRegistry,
    min_hosts: usize,
) {
    let is_settled = {
        let waiting = view.wait_for(|view| view.is_ready(min_hosts));
        tokio::time::timeout(READY_TIMEOUT, waiting).await.is_ok()
    };
    if !is_settled {
        tracing::warn!("not every shard has an owner yet: see `ostraca status`");
    }
    if !types.wait_until_loaded(TYPES).await {
        tracing::warn!("some types are still being compiled");
    }
}

/// Resolves when another process keeps using this node's name. Returns that process's addresses.
pub(super) async fn wait_for_name_conflict(
    events: &EventLog,
    view: &watch::Receiver<Arc<ClusterView>>,
) -> String {
    let mut more = events.watch();
    let (mut last, mut seen) = (0, 0);
    loop {
        for event in events.after(last, usize::MAX) {
            last = event.sequence;
            let Notice::NodeNameInUse(member) = event.notice else { continue };
            seen += 1;
            if seen >= NAME_CONFLICT_THRESHOLD {
                let row = view.borrow().nodes.get(&member.node).cloned();
                return row.map_or_else(String::new, |row| row.addresses.join(", "));
            }
        }
        if more.changed().await.is_err() {
            return std::future::pending().await;
        }
    }
}

/// Resolves when a part of the node ends unexpectedly. A control thread that panics sends no error.
pub(super) async fn wait_for_failure(
    failed: &mut mpsc::UnboundedReceiver<ostraca_control::Error>,
    vital: &mut JoinSet<()>,
) -> NodeError {
    tokio::select! {
        error = failed.recv() => {
            error.map_or_else(|| NodeError::UnexpectedExit("the control thread".into()), Into::into)
        }
        Some(task) = vital.join_next() => {
            let why = task.err().map_or_else(String::new, |error| format!(": {error}"));
            NodeError::UnexpectedExit(format!("the network or the gateway{why}"))
        }
    }
}
