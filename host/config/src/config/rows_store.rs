//! The store outside the nodes that has only the cluster's rows.

use ostraca_core::ids::ClusterId;

/// Settings of a store that has the cluster's rows, and no state of entities.
#[derive(Clone, Debug)]
pub enum RowsStore {
    /// An etcd cluster.
    Etcd(ostraca_store_etcd::Options),
    /// A namespace of Kubernetes.
    Kubernetes(ostraca_store_kubernetes::Options),
}

impl RowsStore {
    /// The same store, which must belong to this cluster.
    #[must_use]
    pub fn of_cluster(mut self, cluster: ClusterId) -> Self {
        match &mut self {
            Self::Etcd(options) => options.cluster = Some(cluster),
            Self::Kubernetes(options) => options.cluster = Some(cluster),
        }
        self
    }

    /// Where it is, in words.
    #[must_use]
    pub fn place(&self) -> String {
        match self {
            Self::Etcd(options) => options.place(),
            Self::Kubernetes(options) => format!("Kubernetes, {}", options.place()),
        }
    }
}
