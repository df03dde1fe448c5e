//! Errors of the control thread, which end the node.

use ostraca_codes::{Code, codes};

/// Why the control thread was not started, or why the node cannot continue.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The thread could not be started.
    #[error("cannot start the thread ostraca-control: {0}")]
    Thread(std::io::Error),
    /// A row that every node must understand cannot be read.
    #[error(transparent)]
    Row(#[from] ostraca_catalog::Error),
    /// A worker panicked, and its shards are lost.
    #[error("a part of the node ended: worker {0} panicked")]
    WorkerPanicked(usize),
}

impl Error {
    /// The stable code; `docs/errors.md` lists all codes.
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            Self::Thread(_) => codes::THREAD_FAILED,
            Self::Row(error) => error.code(),
            Self::WorkerPanicked(_) => codes::NODE_FAILED,
        }
    }

    /// What to do; `None` if the message already says so.
    #[must_use]
    pub fn help_text(&self) -> Option<&'static str> {
        match self {
            Self::Thread(_) => Some("check the limits on processes and memory (`ulimit -u`)"),
            Self::Row(error) => error.help_text(),
            Self::WorkerPanicked(_) => None,
        }
    }

    /// Whether starting the node again may succeed without any other change.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Thread(_) | Self::WorkerPanicked(_) => true,
            Self::Row(error) => error.is_retryable(),
        }
    }
}
