//! What the entities of namespaces with a quota use, as this node last measured it.

use std::sync::{Mutex, MutexGuard, PoisonError};

use ostraca_core::rows::Member;
use ostraca_wire::proto::{NamespaceUsage, NodeIssue, PeerInspectRequest};

use crate::Gateway;

/// What a node's shards use.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeUsage {
    /// By namespace. None of them says whether it is complete.
    pub namespaces: Vec<NamespaceUsage>,
    /// How many shards have been counted.
    pub counted_shards: u32,
}

/// The last measurements. They are empty while no namespace has a quota.
#[derive(Debug, Default)]
pub struct NamespaceUsages {
    own: Mutex<NodeUsage>,
    total: Mutex<Vec<NamespaceUsage>>,
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl NamespaceUsages {
    /// Sets what the shards of all nodes use.
    pub fn set_total(&self, total: Vec<NamespaceUsage>) {
        *lock(&self.total) = total;
    }

    /// Sets what this node's shards use: other nodes ask for it.
    pub fn set_own(&self, own: NodeUsage) {
        *lock(&self.own) = own;
    }

    /// What this node's shards use.
    #[must_use]
    pub fn own(&self) -> NodeUsage {
        lock(&self.own).clone()
    }

    /// What a namespace uses on all nodes; `None` if it has no quota, or before the first measurement.
    #[must_use]
    pub fn total(&self, namespace: &str) -> Option<NamespaceUsage> {
        lock(&self.total).iter().find(|it| it.namespace == namespace).cloned()
    }
}

impl Gateway {
    /// What the shards of another node use, as that node last measured it: at most a few seconds ago.
    ///
    /// # Errors
    /// If the node does not respond in time, is stopping, or is unreachable.
    pub async fn namespace_usage(&self, at: &Member) -> Result<NodeUsage, NodeIssue> {
        let request = PeerInspectRequest { namespace_usage: true, ..PeerInspectRequest::default() };
        let response = self.ask(at, &request).await?;
        Ok(NodeUsage {
            namespaces: response.namespace_usage,
            counted_shards: response.counted_shards,
        })
    }
}
