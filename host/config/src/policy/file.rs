//! A policy as written in its file.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;

use crate::user_file::units;

#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct PolicyFile {
    #[serde(with = "units::duration")]
    pub(super) revocation_staleness: Duration,
    #[serde(with = "units::duration")]
    pub(super) token_ttl: Duration,
    pub(super) web_origins: Vec<String>,
    pub(super) issuers: BTreeMap<String, IssuerSection>,
    pub(super) roles: BTreeMap<String, RoleSection>,
    pub(super) grants: Vec<GrantSection>,
}

impl Default for PolicyFile {
    fn default() -> Self {
        Self {
            revocation_staleness: Duration::from_secs(300),
            token_ttl: Duration::from_secs(24 * 3_600),
            web_origins: Vec::new(),
            issuers: BTreeMap::new(),
            roles: BTreeMap::new(),
            grants: Vec::new(),
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct IssuerSection {
    /// The `iss` of its tokens.
    pub(super) issuer: String,
    /// A JSON Web Key Set, as text.
    pub(super) jwks: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct RoleSection {
    pub(super) permissions: Vec<String>,
    #[serde(default = "everything")]
    pub(super) namespaces: Vec<String>,
    #[serde(default = "everything")]
    pub(super) types: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct GrantSection {
    pub(super) principals: Vec<String>,
    pub(super) roles: Vec<String>,
    #[serde(default = "everything")]
    pub(super) namespaces: Vec<String>,
    #[serde(default = "everything")]
    pub(super) types: Vec<String>,
}

fn everything() -> Vec<String> {
    vec!["*".into()]
}
