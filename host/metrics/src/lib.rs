//! The metrics of a node, in the text format of OpenMetrics 1.0, for Prometheus.
//!
//! Nothing is counted here: the figures are those of `ostraca status`, the node's [`Stats`], and what the store, the
//! network and the kernel say when they are asked. Each name with its labels is in `docs/metrics.md`, which a test
//! compares.
//!
//! The number of series is bounded: labels have fixed values, except types and methods, whose number
//! `metrics.max-methods` bounds, codes of problems, which are those of `docs/errors.md`, and namespaces with quotas.

mod families;
mod page;
mod process;

use std::sync::Arc;

use ostraca_stats::{Stats, WorkerGauges};
use ostraca_store_sled::SledStore;
use ostraca_wire::proto;
use ostraca_wire::server::NetworkStats;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, text};
use prometheus_client::registry::Registry;

use page::Page;

/// Where the figures come from.
pub struct MetricsSources {
    /// The node's status.
    pub status: Box<dyn Fn() -> proto::Status + Send + Sync>,
    /// The figures of the network.
    pub network: Box<dyn Fn() -> NetworkStats + Send + Sync>,
    /// The namespaces that have quotas.
    pub namespaces: Box<dyn Fn() -> Vec<proto::NamespaceInfo> + Send + Sync>,
    /// The node's counters.
    pub stats: Arc<Stats>,
    /// Those of its workers.
    pub workers: Vec<Arc<WorkerGauges>>,
    /// The store, if it is in this process.
    pub store: Option<Arc<SledStore>>,
}

impl std::fmt::Debug for MetricsSources {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("MetricsSources(..)")
    }
}

/// All metrics of a node.
#[derive(Debug)]
pub struct NodeMetrics {
    registry: Registry,
}

impl NodeMetrics {
    /// Metrics with figures from these sources.
    #[must_use]
    pub fn new(sources: MetricsSources) -> Self {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(sources));
        Self { registry }
    }

    /// Writes the metrics. Reads files of the kernel and asks the file system, so it may block for a moment.
    ///
    /// # Errors
    /// If a metric cannot be written, which would be a fault in this crate.
    pub fn render(&self) -> Result<String, std::fmt::Error> {
        let mut text = String::new();
        text::encode(&mut text, &self.registry)?;
        Ok(text)
    }
}

impl Collector for MetricsSources {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let mut page = Page::new(encoder);
        let status = (self.status)();
        families::node(&mut page, &status)?;
        families::cluster(&mut page, status.cluster_status.as_ref())?;
        families::methods(&mut page, &self.stats.methods)?;
        families::durations(&mut page, &self.stats, &self.workers)?;
        families::network(&mut page, &(self.network)())?;
        families::http(&mut page, &self.stats.http)?;
        families::namespaces(&mut page, &(self.namespaces)())?;
        if let Some(store) = &self.store {
            families::store(&mut page, &self.stats, store)?;
        }
        process::process(&mut page)
    }
}
