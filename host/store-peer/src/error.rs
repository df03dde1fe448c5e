//! Why a client cannot connect to the store, and why a call has no response.

use std::io;
use std::path::PathBuf;

use ostraca_store::StoreError;

/// Why connecting to the store failed.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The store did not respond, or not in time. A retry may succeed.
    #[error("cannot reach the store: {0}")]
    Unreachable(String),
    /// The store must not be used (R5); the message says how to fix it.
    #[error("{0}")]
    Refused(String),
    /// The witness file cannot be read.
    #[error("invalid witness file {0}: restore it, or remove it to continue without its check")]
    InvalidWitness(PathBuf),
    /// A file operation failed.
    #[error("file operation on {path} failed: {source}")]
    Io {
        /// Path of the file.
        path: PathBuf,
        /// The underlying I/O error.
        source: io::Error,
    },
}

impl ConnectError {
    /// Whether a retry may succeed without intervention.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Unreachable(_))
    }
}

/// Why a call has no response.
#[derive(Clone, Debug)]
pub(crate) enum RequestError {
    /// The call had no effect and never will.
    NotExecuted(StoreError),
    /// The call may have been executed, or may be executed later.
    OutcomeUnknown(String),
    /// The call was executed, but its response is too large.
    ResponseTooLarge(String),
}

impl From<RequestError> for StoreError {
    fn from(failed: RequestError) -> Self {
        match failed {
            RequestError::NotExecuted(error) => error,
            RequestError::OutcomeUnknown(why) => Self::Unavailable(why),
            RequestError::ResponseTooLarge(why) => Self::LimitExceeded(why),
        }
    }
}
