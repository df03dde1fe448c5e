//! Why a worker may fail to start.

use std::path::PathBuf;

use ostraca_codes::{Code, codes};

/// Why a worker was not started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The worker's thread could not be started.
    #[error("cannot start the thread {name}: {source}")]
    Thread {
        /// The thread's name.
        name: String,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// The file for the worker's recording could not be created.
    #[error("cannot create {path}: {source}")]
    Recording {
        /// The directory for recordings.
        path: PathBuf,
        /// The I/O error.
        source: std::io::Error,
    },
}

impl Error {
    /// The stable code; `docs/errors.md` lists all codes.
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            Self::Thread { .. } => codes::THREAD_FAILED,
            Self::Recording { .. } => codes::FILE_ERROR,
        }
    }

    /// What to do.
    #[must_use]
    pub fn help_text(&self) -> &'static str {
        match self {
            Self::Thread { .. } => "check the limits on processes and memory (`ulimit -u`)",
            Self::Recording { .. } => "check the path and its permissions",
        }
    }

    /// Whether retrying may succeed without any other change.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Thread { .. })
    }
}
