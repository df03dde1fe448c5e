//! The contract of a health check.

use futures::future::BoxFuture;

use crate::suspect::Suspect;

/// What a health check has found out about the process of one incarnation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CheckOutcome {
    /// The process has ended: it executes nothing any more, and never will.
    Ended {
        /// How that is known, for the log.
        how: String,
    },
    /// The process runs, or nothing proves that it has ended. Nothing changes.
    NotKnown {
        /// What was found instead, for the log.
        why: String,
    },
    /// The check itself failed. Nothing changes, as with [`CheckOutcome::NotKnown`]; the log has a warning.
    Failed {
        /// What went wrong.
        why: String,
    },
}

impl CheckOutcome {
    pub(crate) fn failed(why: impl Into<String>) -> Self {
        Self::Failed { why: why.into() }
    }
}

/// Finds out whether the process of one incarnation of a node has ended. It may only hasten a death that it *knows* of.
///
/// The managers ask about a node that has not renewed its lease for half of the lease's time, or that another node
/// cannot reach, and ask again at an interval (`health-check.interval`). A node runs at most one check of an
/// incarnation at a time.
pub trait HealthCheck: Send + Sync {
    /// Checks the process of exactly this incarnation.
    ///
    /// - It must return [`CheckOutcome::Ended`] only if the process of this incarnation is known to have ended. Silence
    ///   proves nothing: a process that does not answer, a machine that cannot be reached, a time-out and an error are
    ///   not knowledge. Nor is the end of an earlier or a later process of the same node.
    /// - Knowledge must be final: a process that is only stopped, suspended, or on a machine that is paused or cut off
    ///   has not ended.
    /// - It must end within its time-out (`health-check.timeout`). [`CheckRunner`](crate::CheckRunner) drops one that
    ///   does not, so it may be dropped at any await.
    /// - It must not block the thread. It may be called for several nodes at the same time.
    /// - It may return [`CheckOutcome::NotKnown`] at any time: then the lease alone decides.
    fn check<'a>(&'a self, suspect: &'a Suspect) -> BoxFuture<'a, CheckOutcome>;
}
