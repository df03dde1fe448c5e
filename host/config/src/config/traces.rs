//! `[traces]`: where the node sends traces.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::time::Duration;

use ostraca_trace::TraceSettings;
use serde::{Deserialize, Serialize};

use super::numbers::saturating_u32;
use crate::user_file::units;

#[derive(Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct TracesSection {
    pub(super) endpoint: Option<String>,
    pub(super) headers: BTreeMap<String, String>,
    pub(super) max_rate: u32,
    pub(super) max_queued_spans: u32,
    #[serde(with = "units::duration")]
    pub(super) interval: Duration,
    #[serde(with = "units::duration")]
    pub(super) timeout: Duration,
}

impl Default for TracesSection {
    fn default() -> Self {
        let traces = TraceSettings::new("");
        Self {
            endpoint: None,
            headers: BTreeMap::new(),
            max_rate: traces.max_rate.get(),
            max_queued_spans: saturating_u32(traces.max_queued_spans),
            interval: traces.interval,
            timeout: traces.timeout,
        }
    }
}

impl std::fmt::Debug for TracesSection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Headers may have secrets, which the settings do not show.
        self.settings().fmt(f)
    }
}

impl TracesSection {
    /// The settings of traces; `None` if there is no collector.
    pub(super) fn settings(&self) -> Option<TraceSettings> {
        Some(TraceSettings {
            endpoint: self.endpoint.clone()?,
            headers: self.headers.clone(),
            max_rate: NonZeroU32::new(self.max_rate).unwrap_or(NonZeroU32::MIN),
            max_queued_spans: self.max_queued_spans as usize,
            interval: self.interval,
            timeout: self.timeout,
        })
    }
}
