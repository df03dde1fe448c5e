//! The settings of traces.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::time::Duration;

/// Where traces go, and their bounds.
#[derive(Clone, PartialEq, Eq)]
pub struct TraceSettings {
    /// The URL of the collector for OTLP over HTTP, such as `http://127.0.0.1:4318/v1/traces`.
    pub endpoint: String,
    /// Headers of each request to it, such as a key: secrets.
    pub headers: BTreeMap<String, String>,
    /// Maximum number of messages from outside the cluster that are traced in a second; further ones are not. Default
    /// 1,000.
    pub max_rate: NonZeroU32,
    /// Maximum number of spans that wait to be sent; further ones are dropped. Default 4,096.
    pub max_queued_spans: usize,
    /// How often spans are sent. Default 2 s.
    pub interval: Duration,
    /// How long a request to the collector may take. Default 10 s.
    pub timeout: Duration,
}

const DEFAULT_RATE: NonZeroU32 = NonZeroU32::new(1_000).unwrap();

impl TraceSettings {
    /// The defaults, for this collector.
    #[must_use]
    pub fn new(endpoint: impl Into<String>) -> Self {
        Self {
            endpoint: endpoint.into(),
            headers: BTreeMap::new(),
            max_rate: DEFAULT_RATE,
            max_queued_spans: 4_096,
            interval: Duration::from_secs(2),
            timeout: Duration::from_secs(10),
        }
    }
}

impl std::fmt::Debug for TraceSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TraceSettings")
            .field("endpoint", &self.endpoint)
            .field("headers", &self.headers.keys())
            .field("max_rate", &self.max_rate)
            .field("max_queued_spans", &self.max_queued_spans)
            .field("interval", &self.interval)
            .field("timeout", &self.timeout)
            .finish()
    }
}
