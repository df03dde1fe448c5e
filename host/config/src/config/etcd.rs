//! The section `etcd`: the cluster's rows in etcd.

use std::path::{Path, PathBuf};
use std::time::Duration;

use ostraca_store_etcd::{Options, Tls};
use serde::{Deserialize, Serialize};

use super::ConfigError;
use super::numbers::{saturating_u32, saturating_usize};
use super::postgres::TlsMode;
use crate::user_file::{SourceText, units};

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct EtcdSection {
    pub(super) endpoints: Vec<String>,
    pub(super) prefix: String,
    pub(super) user: Option<String>,
    pub(super) password_file: Option<PathBuf>,
    pub(super) tls: Option<TlsMode>,
    pub(super) ca_file: Option<PathBuf>,
    pub(super) certificate_file: Option<PathBuf>,
    pub(super) key_file: Option<PathBuf>,
    #[serde(with = "units::duration")]
    pub(super) connect_timeout: Duration,
    #[serde(with = "units::duration")]
    pub(super) attempt_timeout: Duration,
    #[serde(with = "units::duration")]
    pub(super) watch_timeout: Duration,
    pub(super) batch_rows: u32,
    #[serde(with = "units::size")]
    pub(super) batch_bytes: u64,
}

impl Default for EtcdSection {
    fn default() -> Self {
        let options = Options::new(Vec::<String>::new());
        Self {
            endpoints: options.endpoints,
            prefix: options.prefix,
            user: None,
            password_file: None,
            tls: None,
            ca_file: None,
            certificate_file: None,
            key_file: None,
            connect_timeout: options.connect_timeout,
            attempt_timeout: options.attempt_timeout,
            watch_timeout: options.watch_timeout,
            batch_rows: saturating_u32(options.batch_rows),
            batch_bytes: options.batch_bytes as u64,
        }
    }
}

impl EtcdSection {
    /// The settings of the connections; `None` if the cluster's rows are not in etcd. `lease` bounds how long a member
    /// may be silent: a renewal must be able to reach another one in time (R8).
    pub(super) fn options(&self, data: &Path, lease: Duration) -> Option<Options> {
        if self.endpoints.is_empty() {
            return None;
        }
        let file = |path: &Option<PathBuf>| path.as_ref().map(|it| data.join(it));
        let longest = lease / 4;
        Some(Options {
            prefix: self.prefix.clone(),
            user: self.user.clone(),
            password_file: file(&self.password_file),
            tls: match self.tls {
                Some(TlsMode::Verify) => Tls::Verify {
                    ca: file(&self.ca_file),
                    identity: file(&self.certificate_file).zip(file(&self.key_file)),
                },
                Some(TlsMode::Off) | None => Tls::Off,
            },
            connect_timeout: self.connect_timeout.min(longest),
            attempt_timeout: self.attempt_timeout.min(longest),
            watch_timeout: self.watch_timeout.min(longest),
            batch_rows: self.batch_rows as usize,
            batch_bytes: saturating_usize(self.batch_bytes),
            ..Options::new(&self.endpoints)
        })
    }

    /// Checks the members' addresses, and that nobody can listen to or change what is sent there unless that is wanted.
    pub(super) fn check(&self, input: &SourceText<'_>) -> Result<(), ConfigError> {
        let error = |key: &str, why: String, help: Option<&str>| {
            Err(input.at(&["etcd", key], why, help.map(Into::into)))
        };
        for endpoint in &self.endpoints {
            if let Err(why) = Options::check_endpoint(endpoint) {
                let why = format!("{endpoint:?} is not the address of a member: {why}");
                return error("endpoints", why, Some("write \"HOST:PORT\" for each member"));
            }
        }
        let far = self.endpoints.iter().find(|endpoint| !Options::is_local(endpoint));
        if let (Some(far), None) = (far, self.tls) {
            let help =
                "add `tls = \"verify\"`, or `tls = \"off\"` if the network itself is protected";
            let why = format!("`tls` must be set for {far}, which is on another machine");
            return error("endpoints", why, Some(help));
        }
        if self.prefix.is_empty() {
            let help = "several clusters in one etcd need different ones, such as \"ostraca/\"";
            return error("prefix", "`prefix` must not be empty".into(), Some(help));
        }
        let verifies = self.tls == Some(TlsMode::Verify);
        for (key, file) in [
            ("ca-file", &self.ca_file),
            ("certificate-file", &self.certificate_file),
            ("key-file", &self.key_file),
        ] {
            if file.is_some() && !verifies {
                return error(key, format!("`{key}` is used only with `tls = \"verify\"`"), None);
            }
        }
        if self.certificate_file.is_some() != self.key_file.is_some() {
            let why = "`certificate-file` and `key-file` belong together".to_owned();
            return error("certificate-file", why, Some("set both, or neither"));
        }
        if self.user.is_some() != self.password_file.is_some() {
            let why = "`user` and `password-file` belong together".to_owned();
            return error("user", why, Some("set both, or neither"));
        }
        Ok(())
    }
}
