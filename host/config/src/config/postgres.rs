//! The section `postgres`: the cluster's stores in a PostgreSQL database.

use std::path::{Path, PathBuf};
use std::time::Duration;

use ostraca_store_postgres::{Durability, Options, Tls};
use serde::{Deserialize, Serialize};

use super::numbers::saturating_u32;
use crate::user_file::units;

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct PostgresSection {
    pub(super) url: Option<String>,
    pub(super) databases: Vec<String>,
    pub(super) password_file: Option<PathBuf>,
    pub(super) tls: Option<TlsMode>,
    pub(super) ca_file: Option<PathBuf>,
    pub(super) durability: DurabilityName,
    pub(super) writers: u32,
    pub(super) readers: u32,
    #[serde(with = "units::duration")]
    pub(super) connect_timeout: Duration,
    #[serde(with = "units::duration")]
    pub(super) statement_timeout: Duration,
    pub(super) row_changes: u32,
    pub(super) listen: bool,
    #[serde(with = "units::duration")]
    pub(super) watch_interval: Duration,
}

/// Encryption of the connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum TlsMode {
    Off,
    Verify,
}

/// What a commit waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum DurabilityName {
    Local,
    Applied,
}

impl Default for PostgresSection {
    fn default() -> Self {
        let options = Options::new("");
        Self {
            url: None,
            databases: Vec::new(),
            password_file: None,
            tls: None,
            ca_file: None,
            durability: match options.durability {
                Durability::Local => DurabilityName::Local,
                Durability::Applied => DurabilityName::Applied,
            },
            writers: saturating_u32(options.writers),
            readers: saturating_u32(options.readers),
            connect_timeout: options.connect_timeout,
            statement_timeout: options.statement_timeout,
            row_changes: saturating_u32(options.row_changes),
            listen: options.listen,
            watch_interval: options.watch_interval,
        }
    }
}

impl PostgresSection {
    /// The settings of the connections to the further databases.
    pub(super) fn further(&self, data: &Path, lease: Duration) -> Vec<Options> {
        let first = self.options(data, lease).into_iter();
        let of = |first: Options| {
            let urls = self.databases.iter();
            urls.map(move |url| Options { url: url.clone(), ..first.clone() }).collect::<Vec<_>>()
        };
        first.flat_map(of).collect()
    }

    /// The settings of the connections; `None` if the stores are not in PostgreSQL. `lease` bounds how long a
    /// statement may take: a claim must not wait that long for a lock (R4).
    pub(super) fn options(&self, data: &Path, lease: Duration) -> Option<Options> {
        let url = self.url.as_ref()?;
        let ca = self.ca_file.as_ref().map(|it| data.join(it));
        Some(Options {
            password_file: self.password_file.as_ref().map(|it| data.join(it)),
            tls: match self.tls {
                Some(TlsMode::Verify) => Tls::Verify { ca },
                Some(TlsMode::Off) | None => Tls::Off,
            },
            durability: match self.durability {
                DurabilityName::Local => Durability::Local,
                DurabilityName::Applied => Durability::Applied,
            },
            writers: self.writers as usize,
            readers: self.readers as usize,
            connect_timeout: self.connect_timeout,
            statement_timeout: self.statement_timeout.min(lease.mul_f64(0.6)),
            row_changes: self.row_changes as usize,
            listen: self.listen,
            watch_interval: self.watch_interval,
            ..Options::new(url.as_str())
        })
    }
}
