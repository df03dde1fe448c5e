//! Errors of reading and writing rows.

use ostraca_codes::{Code, codes};
use ostraca_store::StoreError;

/// Why a row of the cluster was not read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The store failed.
    #[error("the store failed: {0}")]
    Store(#[from] StoreError),
    /// Some nodes cannot read the new format.
    #[error("{0}")]
    FormatNotSupported(String),
    /// A row of the cluster is missing or unreadable.
    #[error("invalid cluster row: {0}")]
    InvalidRow(String),
    /// Another process changed a row while this node was writing it.
    #[error("the row `{0}` was changed concurrently")]
    RowConflict(String),
    /// A type's row already keeps the last revision of as many schemas as it may.
    #[error("the type keeps revisions of {0} earlier schemas, which is the limit")]
    TooManySchemas(usize),
}

impl Error {
    /// The stable code; `docs/errors.md` lists all codes.
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            Self::Store(_) => codes::STORE_FAILED,
            Self::FormatNotSupported(_) => codes::FORMAT_NOT_SUPPORTED,
            Self::InvalidRow(_) => codes::INVALID_ROW,
            Self::RowConflict(_) => codes::ROW_CONFLICT,
            Self::TooManySchemas(_) => codes::TOO_MANY_SCHEMAS,
        }
    }

    /// What to do if the error keeps a node from starting; `None` if the message already says so.
    #[must_use]
    pub fn help_text(&self) -> Option<&'static str> {
        match self {
            Self::Store(_) => Some("read the reason, fix it, and start the node again"),
            Self::FormatNotSupported(_) => {
                Some("update these nodes, or forget lost ones (`ostraca forget`); then retry")
            }
            Self::InvalidRow(_) | Self::TooManySchemas(_) => None,
            Self::RowConflict(_) => Some("start the node again"),
        }
    }

    /// Whether a retry may succeed without any other change.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::RowConflict(_) | Self::Store(StoreError::Unavailable(_)))
    }
}
