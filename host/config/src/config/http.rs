//! `[http]`: the HTTP gateway.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ostraca_http::{HttpSettings, TlsFiles};
use serde::{Deserialize, Serialize};

use super::numbers::{saturating_u32, saturating_usize};
use crate::user_file::units;

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct HttpSection {
    pub(super) listen: Option<SocketAddr>,
    pub(super) certificate: Option<PathBuf>,
    pub(super) key: Option<PathBuf>,
    pub(super) http3: bool,
    pub(super) hosts: Vec<String>,
    pub(super) max_connections: u32,
    pub(super) principal_requests: u32,
    pub(super) principal_rate: u32,
    #[serde(with = "units::size")]
    pub(super) max_header_bytes: u64,
    #[serde(with = "units::duration")]
    pub(super) header_timeout: Duration,
    #[serde(with = "units::duration")]
    pub(super) body_timeout: Duration,
    #[serde(with = "units::size")]
    pub(super) max_body_bytes: u64,
    #[serde(with = "units::duration")]
    pub(super) default_timeout: Duration,
    #[serde(with = "units::duration")]
    pub(super) max_timeout: Duration,
}

impl Default for HttpSection {
    fn default() -> Self {
        let http = HttpSettings::new(([127, 0, 0, 1], 0).into());
        Self {
            listen: None,
            certificate: None,
            key: None,
            http3: http.http3,
            hosts: Vec::new(),
            max_connections: saturating_u32(http.max_connections),
            principal_requests: saturating_u32(http.principal_requests),
            principal_rate: http.principal_rate,
            max_header_bytes: http.max_header_bytes as u64,
            header_timeout: http.header_timeout,
            body_timeout: http.body_timeout,
            max_body_bytes: http.max_body_bytes.into(),
            default_timeout: http.default_timeout,
            max_timeout: http.max_timeout,
        }
    }
}

impl HttpSection {
    /// The settings of the gateway, with paths relative to `data`; `None` if there is no gateway.
    pub(super) fn settings(&self, data: &Path) -> Option<HttpSettings> {
        let tls = self.certificate.as_ref().zip(self.key.as_ref()).map(|(certificate, key)| {
            TlsFiles { certificate: data.join(certificate), key: data.join(key) }
        });
        Some(HttpSettings {
            listen: self.listen?,
            tls,
            http3: self.http3,
            hosts: self.hosts.clone(),
            max_connections: self.max_connections as usize,
            principal_requests: self.principal_requests as usize,
            principal_rate: self.principal_rate,
            max_header_bytes: saturating_usize(self.max_header_bytes),
            header_timeout: self.header_timeout,
            body_timeout: self.body_timeout,
            max_body_bytes: u32::try_from(self.max_body_bytes).unwrap_or(u32::MAX),
            default_timeout: self.default_timeout,
            max_timeout: self.max_timeout,
        })
    }
}
