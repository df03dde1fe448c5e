//! `[metrics]`: what the node tells Prometheus.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct MetricsSection {
    pub(super) listen: Option<SocketAddr>,
    pub(super) max_methods: u32,
}

impl Default for MetricsSection {
    fn default() -> Self {
        Self { listen: None, max_methods: 1_000 }
    }
}
