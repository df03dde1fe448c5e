//! Why a pool was not copied to another one, with the code of each reason.

use ostraca_codes::{Code, codes};
use ostraca_store::pool_copy::PoolCopyError;

/// Why a pool cannot be copied to another one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PoolNotCopied {
    /// The cluster has no pool with this name.
    #[error("unknown pool `{name}`; this cluster has {known}")]
    Unknown {
        /// The name.
        name: String,
        /// The pools that there are.
        known: String,
    },
    /// The pools do not fit.
    #[error("{0}")]
    Refused(String),
    /// The state could not be copied.
    #[error(transparent)]
    Copy(#[from] PoolCopyError),
}

impl PoolNotCopied {
    pub(crate) fn code(&self) -> Code {
        match self {
            Self::Unknown { .. } => codes::UNKNOWN_POOL,
            Self::Refused(_) => codes::POOL_NOT_COPIED,
            Self::Copy(PoolCopyError::Store(_)) => codes::STORE_FAILED,
            Self::Copy(PoolCopyError::Claimed(_) | PoolCopyError::Overtaken) => codes::STORE_IN_USE,
            Self::Copy(_) => codes::POOL_NOT_COPIED,
        }
    }
}
