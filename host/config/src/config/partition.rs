//! The section `partition`: nodes that cannot reach each other although all of them reach the store (E12, E13).

use std::time::Duration;

use ostraca_core::node;
use serde::{Deserialize, Serialize};

use super::numbers::millis;
use crate::user_file::units;

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct PartitionSection {
    #[serde(with = "units::duration")]
    pub(super) keep_alive_interval: Duration,
    pub(super) keep_alive_failures: u32,
    pub(super) arbiter: bool,
    #[serde(with = "units::duration")]
    pub(super) arbiter_timeout: Duration,
    #[serde(with = "units::duration")]
    pub(super) arbiter_flag_timeout: Duration,
}

impl Default for PartitionSection {
    fn default() -> Self {
        let settings = node::Settings::default();
        Self {
            keep_alive_interval: Duration::from_secs(1),
            keep_alive_failures: settings.keep_alive_failures,
            arbiter: settings.arbiter,
            arbiter_timeout: Duration::from_millis(settings.arbiter_timeout),
            arbiter_flag_timeout: Duration::from_millis(settings.arbiter_flag_timeout),
        }
    }
}

impl PartitionSection {
    /// The settings of the node's machine with those of this section.
    pub(super) fn apply(&self, settings: node::Settings) -> node::Settings {
        node::Settings {
            keep_alive_interval: Some(millis(self.keep_alive_interval)),
            keep_alive_failures: self.keep_alive_failures,
            arbiter: self.arbiter,
            arbiter_timeout: millis(self.arbiter_timeout),
            arbiter_flag_timeout: millis(self.arbiter_flag_timeout),
            ..settings
        }
    }
}
