//! Why a store was not reached in the first place.

use std::io;
use std::path::PathBuf;

use ostraca_store::StoreError;

/// Why there is no store to begin with.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// Nobody answered, or not in time. It may work later.
    #[error("the store is not reached: {0}")]
    Unreachable(String),
    /// It must not be used (R5); the text says what to do.
    #[error("{0}")]
    Refused(String),
    /// What is remembered of the store cannot be read.
    #[error("the witness {0} is no witness: restore it, or remove it to go on without its check")]
    InvalidWitness(PathBuf),
    /// The system refused a file operation.
    #[error("a file operation failed at {path}: {source}")]
    Io {
        /// Where.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
}

impl ConnectError {
    /// Whether the same may succeed later without anybody's help.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Unreachable(_))
    }
}

/// Why a call has no answer.
#[derive(Clone, Debug)]
pub(crate) enum RequestError {
    /// It had no effect and never will.
    NotExecuted(StoreError),
    /// It may have been done, or may still be.
    OutcomeUnknown(String),
    /// It was done; the answer is larger than what is taken.
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
