//! Settings that a promise depends on: a row of the cluster holds them, and no node may deviate
//! (`docs/settings.md`).

use std::time::Duration;

use ostraca_core::node::LeaseSettings;

use super::Config;
use super::file::ConfigFile;
use super::numbers::millis;
use crate::error::Error;
use crate::user_file::units;

/// The settings of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClusterSettings {
    /// How long a lease lasts without a renewal (R7, R8). Default 3 s.
    pub lease: Duration,
    /// Added to another node's lease before it counts as expired, to allow for clock drift (R8). Default 600
    /// ms.
    pub lease_margin: Duration,
    /// How long a client's session is remembered after its last use (R17). Default 1 h.
    pub lane_ttl: Duration,
}

impl Default for ClusterSettings {
    fn default() -> Self {
        let file = ConfigFile::default();
        Self {
            lease: file.lease,
            lease_margin: file.lease_margin,
            lane_ttl: file.entities.lane_ttl,
        }
    }
}

const MS: Duration = Duration::from_millis(1);
const HOUR: Duration = Duration::from_secs(3_600);

/// Each setting: its name in a configuration, its minimum and its maximum.
const ALL: [(&str, Duration, Duration); 3] = [
    ("lease", Duration::from_millis(100), ClusterSettings::LONGEST_LEASE),
    ("lease-margin", Duration::from_millis(10), ClusterSettings::LONGEST_MARGIN),
    ("entities.lane-ttl", Duration::from_secs(1), Duration::from_secs(24 * 30 * 3_600)),
];

impl ClusterSettings {
    /// The longest lease that settings permit.
    pub const LONGEST_LEASE: Duration = HOUR;
    /// The longest margin that settings permit.
    pub const LONGEST_MARGIN: Duration = HOUR;

    /// Each setting with its name in a configuration.
    #[must_use]
    pub fn named(&self) -> [(&'static str, Duration); 3] {
        let values = [self.lease, self.lease_margin, self.lane_ttl];
        std::array::from_fn(|at| (ALL[at].0, values[at]))
    }

    /// Checks that each setting is within its range.
    ///
    /// # Errors
    /// A message that names the setting and its range.
    pub fn check(&self) -> Result<(), String> {
        for ((name, value), (_, low, high)) in self.named().into_iter().zip(ALL) {
            if !(low..=high).contains(&value) {
                let (low, high) = (units::format_duration(low), units::format_duration(high));
                return Err(format!("`{name}` is {value:?}, must be a time from {low} to {high}"));
            }
        }
        Ok(())
    }

    /// Sets a setting by name, from a duration as in a configuration (`10 s`).
    ///
    /// # Errors
    /// A message that names the valid settings, or the valid range of the value.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        let Some(at) = ALL.iter().position(|(known, ..)| *known == name) else {
            let names = ALL.map(|(name, ..)| format!("`{name}`")).join(", ");
            return Err(format!("unknown cluster setting `{name}`: the settings are {names}"));
        };
        let (_, low, high) = ALL[at];
        let time = units::parse_duration(value).filter(|time| (low..=high).contains(time));
        let Some(time) = time else {
            let (low, high) = (units::format_duration(low), units::format_duration(high));
            return Err(format!("`{name}` must be a time from {low} to {high}, as in `10 s`"));
        };
        *[&mut self.lease, &mut self.lease_margin, &mut self.lane_ttl][at] = time;
        Ok(())
    }
}

/// Which cluster settings a configuration sets explicitly.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ExplicitSettings([bool; 3]);

impl ExplicitSettings {
    /// Finds the settings in the text of a configuration.
    pub(super) fn from_toml(text: &str) -> Self {
        let table: toml::Table = text.parse().unwrap_or_default();
        Self(ALL.map(|(name, ..)| match name.split_once('.') {
            None => table.contains_key(name),
            Some((section, key)) => table.get(section).is_some_and(|it| it.get(key).is_some()),
        }))
    }
}

impl ExplicitSettings {
    pub(super) fn contains(self, name: &str) -> bool {
        ALL.iter().zip(self.0).any(|((known, ..), stated)| stated && *known == name)
    }

    /// Comments out each cluster setting that the configuration does not set explicitly, so that the text can be
    /// used as a file whatever the cluster's settings are.
    pub(super) fn comment_others(self, text: &str) -> String {
        let mut section = String::new();
        let mut lines = String::new();
        for line in text.lines() {
            if let Some(name) = line.strip_prefix('[') {
                section = name.trim_end_matches(']').to_owned() + ".";
            }
            let key = line.split_once(" = ").map_or("", |(key, _)| key);
            let name = format!("{section}{key}");
            let clusters = ALL.iter().any(|(known, ..)| *known == name);
            lines += if clusters && !self.contains(&name) { "# of the cluster: " } else { "" };
            lines += line;
            lines.push('\n');
        }
        lines
    }
}

impl Config {
    /// The cluster's settings according to this configuration: explicit values, otherwise defaults.
    #[must_use]
    pub fn cluster_settings(&self) -> ClusterSettings {
        let file = &self.file;
        ClusterSettings {
            lease: file.lease,
            lease_margin: file.lease_margin,
            lane_ttl: file.entities.lane_ttl,
        }
    }

    /// Checks that explicitly configured cluster settings match the cluster's.
    ///
    /// # Errors
    /// [`Error::SettingMismatch`] with both values.
    pub fn check_cluster_settings(&self, cluster: &ClusterSettings) -> Result<(), Error> {
        let pairs = self.cluster_settings().named().into_iter().zip(cluster.named());
        for (((name, here), (_, there)), stated) in pairs.zip(self.explicit_settings.0) {
            if stated && here != there {
                let (here, there) = (units::format_duration(here), units::format_duration(there));
                return Err(Error::SettingMismatch { name, local: here, cluster: there });
            }
        }
        Ok(())
    }

    /// Adopts the cluster's settings.
    pub fn apply_cluster_settings(&mut self, cluster: &ClusterSettings) {
        self.lease = cluster.lease;
        self.file.lease = cluster.lease;
        self.file.lease_margin = cluster.lease_margin;
        self.file.entities.lane_ttl = cluster.lane_ttl;
        self.renew_interval = self.renew_within(cluster.lease);
    }

    /// A renewal must be confirmed within 80 % of the lease, and one may be lost (R8).
    fn renew_within(&self, lease: Duration) -> Duration {
        self.file.renew_interval.min(lease * 2 / 5).max(10 * MS)
    }

    /// The lease settings of the node's state machine, derived from this revision of the cluster's settings.
    #[must_use]
    pub fn lease_settings(&self, revision: u64, cluster: &ClusterSettings) -> LeaseSettings {
        let lease = millis(cluster.lease);
        let hand_off = &self.file.hand_off;
        let informed_after = millis(hand_off.ack_timeout + hand_off.stop_resend_interval * 2);
        LeaseSettings {
            revision,
            lease,
            lease_margin: millis(cluster.lease_margin),
            renew_interval: millis(self.renew_within(cluster.lease)),
            manager_silence_timeout: lease
                .saturating_mul(self.file.manager_silence_leases.into())
                .max(informed_after + 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> Config {
        Config::parse(&format!("node = \"n\"\n{text}"), "ostraca.toml").expect("a configuration")
    }

    #[test]
    fn settings_in_a_file_must_match_those_of_the_cluster() {
        let mut cluster = ClusterSettings::default();
        cluster.set("lease", "10 s").expect("a time");
        let silent = config("renew-interval = \"2 s\"\n");
        silent.check_cluster_settings(&cluster).expect("it sets none of them");
        for (text, there) in [
            ("lease = \"3 s\"\n", "10 s"),
            ("lease-margin = \"1 s\"\n", "600 ms"),
            ("[entities]\nlane-ttl = \"2 h\"\n", "1 h"),
        ] {
            let error = config(text)
                .check_cluster_settings(&cluster)
                .expect_err("the values differ")
                .to_string();
            assert!(error.contains(there), "{error}");
        }
        config("lease = \"10 s\"\n").check_cluster_settings(&cluster).expect("the values agree");
        let mut taken = silent.clone();
        taken.apply_cluster_settings(&cluster);
        assert_eq!(taken.node_settings().lease, 10_000);
        assert_eq!(taken.node_settings().renew_interval, 2_000);
        cluster.set("lease", "1 s").expect("a time");
        taken.apply_cluster_settings(&cluster);
        assert_eq!(
            taken.node_settings().renew_interval,
            400,
            "at least two renewals in 80 % of a lease"
        );
        let agreed = taken.lease_settings(7, &cluster);
        assert_eq!((agreed.revision, agreed.lease, agreed.renew_interval), (7, 1_000, 400));
    }

    #[test]
    fn the_effective_text_comments_out_unset_cluster_settings() {
        let text = config("lease-margin = \"1 s\"\n").effective_toml();
        for line in
            ["# of the cluster: lease = ", "\nlease-margin = ", "# of the cluster: lane-ttl = "]
        {
            assert_eq!(text.matches(line).count(), 1, "{line}: {text}");
        }
        let again = Config::parse(&text, "ostraca.toml").expect("a configuration");
        let mut cluster = ClusterSettings::default();
        cluster.set("lease", "10 s").expect("a time");
        again.check_cluster_settings(&cluster).expect_err("the margin differs");
        cluster.set("lease-margin", "1 s").expect("a time");
        again.check_cluster_settings(&cluster).expect("it sets none of the others");
    }

    #[test]
    fn an_unknown_or_out_of_range_setting_is_refused_by_name() {
        let mut cluster = ClusterSettings::default();
        for (name, value, expected_text) in [
            ("renew-interval", "1 s", "`entities.lane-ttl`"),
            ("lease", "10", "as in `10 s`"),
            ("lease", "2 h", "from 100 ms to 1 h"),
            ("lease-margin", "1 ms", "from 10 ms to 1 h"),
        ] {
            let error = cluster.set(name, value).expect_err("refused");
            assert!(error.contains(expected_text), "{error}");
        }
        assert_eq!(cluster, ClusterSettings::default());
    }
}
