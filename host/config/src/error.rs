//! Errors in a configuration whose text is valid.

use ostraca_codes::{Code, codes};
use ostraca_wire::identity::IdentityError;

/// Why a node cannot run with a valid configuration. Deterministic: retrying does not help.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A certificate or key is unusable.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The certificate belongs to another node, or to no node.
    #[error("the certificate belongs to {actual}, but the configuration is for node/{node}")]
    IdentityMismatch {
        /// The node's name in the configuration.
        node: String,
        /// The name in the certificate.
        actual: String,
    },
    /// This node's configuration contradicts the cluster's row of settings.
    #[error("`{name}` is {local} in this node's configuration, but {cluster} in the cluster")]
    SettingMismatch {
        /// The setting's name in a configuration.
        name: &'static str,
        /// The value in this node's file.
        local: String,
        /// The value in the cluster's row.
        cluster: String,
    },
}

impl Error {
    /// The stable code; `docs/errors.md` lists all codes.
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            Self::Identity(IdentityError::Expired { .. }) => codes::CERTIFICATE_EXPIRED,
            Self::Identity(_) => codes::INVALID_IDENTITY,
            Self::IdentityMismatch { .. } => codes::IDENTITY_MISMATCH,
            Self::SettingMismatch { .. } => codes::SETTING_MISMATCH,
        }
    }

    /// What to do.
    #[must_use]
    pub fn help_text(&self) -> &'static str {
        match self {
            Self::Identity(IdentityError::Expired { .. }) => {
                "check this machine's clock; if it is right, issue a new certificate with `ostraca ca issue node NAME`, and name it in [identity] of the configuration"
            }
            Self::Identity(_) => {
                "check [identity] in the configuration; `ostraca ca issue node NAME` creates a new one"
            }
            Self::IdentityMismatch { .. } => {
                "check `node` and [identity] in the configuration, or issue a certificate for this node"
            }
            Self::SettingMismatch { .. } => {
                "remove it from this node's configuration, or change it for all nodes with `ostraca cluster --set NAME=VALUE`"
            }
        }
    }

    /// Whether retrying may succeed without any other change: never.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        false
    }
}
