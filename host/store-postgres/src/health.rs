//! What the store's connections know of the database together.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use ostraca_store::{Stopped, StoreError};

use crate::error::OpenError;

/// Which server it is, and its time line: a fail-over, or a restore to a point in time, begins a new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct History {
    pub(crate) system: i64,
    pub(crate) timeline: i64,
}

/// What a server says about itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServerState {
    pub(crate) history: History,
    /// Whether commits wait for a standby.
    pub(crate) replicated: bool,
}

/// What the store's connections know of the database together.
#[derive(Clone)]
pub(crate) struct Health {
    /// The store's sequence at its opening.
    opened: u64,
    /// Number of batches of this process that are durable.
    batches: Arc<AtomicU64>,
    /// The highest sequence that was read from the database.
    seen: Arc<AtomicU64>,
    stopped: Stopped,
    history: Arc<Mutex<History>>,
    /// Whether the commits wait for a standby.
    replicated: Arc<AtomicBool>,
}

impl Health {
    /// `sequence` is that of the store at its opening.
    pub(crate) fn new(server: ServerState, sequence: u64) -> Self {
        Self {
            opened: sequence,
            batches: Arc::default(),
            seen: Arc::default(),
            stopped: Stopped::default(),
            history: Arc::new(Mutex::new(server.history)),
            replicated: Arc::new(AtomicBool::new(server.replicated)),
        }
    }

    /// The server's history, as last checked.
    pub(crate) fn history(&self) -> History {
        *self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Goes on with the server after a fail-over.
    pub(crate) fn follow(&self, history: History) {
        *self.history.lock().unwrap_or_else(PoisonError::into_inner) = history;
    }

    /// Whether the last commits waited for a standby.
    pub(crate) fn is_replicated(&self) -> bool {
        self.replicated.load(Ordering::SeqCst)
    }

    pub(crate) fn note_replication(&self, replicated: bool) {
        self.replicated.store(replicated, Ordering::SeqCst);
    }

    /// Notes that batches of this process are durable.
    pub(crate) fn count(&self, batches: i64) {
        self.batches.fetch_add(batches.cast_unsigned(), Ordering::Relaxed);
    }

    /// The highest sequence of the store that this process knows.
    pub(crate) fn sequence(&self) -> u64 {
        let own = self.opened + self.batches.load(Ordering::Relaxed);
        own.max(self.seen.load(Ordering::Relaxed))
    }

    /// Notes a sequence that was read, when `known` was already the highest one. A lower one shows that batches are
    /// lost: then the store stops (R5).
    pub(crate) fn saw(&self, sequence: u64, known: u64) -> Result<(), OpenError> {
        if sequence < known {
            let error = OpenError::RolledBack;
            self.stop(&error.to_string());
            return Err(error);
        }
        self.seen.fetch_max(sequence, Ordering::Relaxed);
        Ok(())
    }

    /// Fails if the store has stopped.
    pub(crate) fn check(&self) -> Result<(), StoreError> {
        self.stopped.check()
    }

    pub(crate) fn stop(&self, why: &str) {
        tracing::error!(why, "the store has stopped");
        self.stopped.stop(why);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r5_a_sequence_below_that_of_before_the_read_stops() {
        let history = History { system: 7, timeline: 1 };
        let health = Health::new(ServerState { history, replicated: false }, 10);
        health.count(2);
        assert_eq!((health.saw(15, 12).is_ok(), health.sequence()), (true, 15));
        // A read that was sent before the last answer may be answered with less.
        assert!(health.saw(14, 12).is_ok() && health.check().is_ok());
        assert_eq!(health.sequence(), 15);
        let refused = health.saw(14, health.sequence());
        assert!(matches!(refused, Err(OpenError::RolledBack)), "{refused:?}");
        assert!(matches!(health.check(), Err(StoreError::Stopped(_))));
    }
}
