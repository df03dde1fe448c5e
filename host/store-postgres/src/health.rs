//! What the store's connections know of the database together.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use ostraca_store::{Stopped, StoreError};

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
    batches: Arc<AtomicU64>,
    /// The highest sequence that was read from the database.
    seen: Arc<AtomicU64>,
    stopped: Stopped,
    history: Arc<Mutex<History>>,
    /// Whether the commits wait for a standby.
    replicated: Arc<AtomicBool>,
}

impl Health {
    pub(crate) fn new(server: ServerState) -> Self {
        Self {
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

    /// Number of batches of this process that are durable.
    pub(crate) fn batches(&self) -> u64 {
        self.batches.load(Ordering::Relaxed)
    }

    pub(crate) fn count(&self, batches: i64) {
        self.batches.fetch_add(batches.cast_unsigned(), Ordering::Relaxed);
    }

    /// The highest sequence that was read from the database.
    pub(crate) fn seen(&self) -> u64 {
        self.seen.load(Ordering::Relaxed)
    }

    pub(crate) fn saw(&self, sequence: u64) {
        self.seen.fetch_max(sequence, Ordering::Relaxed);
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
