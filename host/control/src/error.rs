//! Errors of the control thread, which end the node.

use ostraca_codes::{Code, codes};
use ostraca_core::rows::Member;

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
    /// The node lost an arbitration (E13).
    #[error(
        "this node lost arbitration {number}: node {winner} cannot reach it, and took the arbiter's lease"
    )]
    ArbitrationLost {
        /// The number of the arbitration.
        number: u64,
        /// The incarnation that won it.
        winner: Member,
    },
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
            Self::ArbitrationLost { .. } => codes::ARBITRATION_LOST,
            Self::WorkerPanicked(_) => codes::NODE_FAILED,
        }
    }

    /// What to do; `None` if the message already says so.
    #[must_use]
    pub fn help_text(&self) -> Option<&'static str> {
        match self {
            Self::Thread(_) => Some("check the limits on processes and memory (`ulimit -u`)"),
            Self::Row(error) => error.help_text(),
            Self::ArbitrationLost { .. } => Some(
                "restore the connection between the nodes' UDP ports, and start the node again; `ostraca nodes` shows who cannot reach whom",
            ),
            Self::WorkerPanicked(_) => None,
        }
    }

    /// Whether starting the node again may succeed without any other change.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Thread(_) | Self::ArbitrationLost { .. } | Self::WorkerPanicked(_) => true,
            Self::Row(error) => error.is_retryable(),
        }
    }
}
