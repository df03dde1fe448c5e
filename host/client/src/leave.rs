//! A client's patience, shared: its sessions report to it, and the keeper of its connection is told when it is lost.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use crate::ledger::{Patience, Stuck};

/// One for a client.
#[derive(Debug)]
pub(crate) struct SharedPatience {
    patience: Mutex<Patience>,
    /// Somebody lost patience.
    pub(crate) lost: Notify,
}

impl SharedPatience {
    pub(crate) fn new(bound: Duration) -> Self {
        let patience = Mutex::new(Patience::new(bound, rand::random(), Instant::now()));
        Self { patience, lost: Notify::new() }
    }

    /// See [`Patience::heard`].
    pub(crate) fn heard(&self, answered: bool, now: Instant) {
        self.lock().heard(answered, now);
    }

    /// When a session that is stuck like this loses patience; if that is now, the keeper is told.
    pub(crate) fn ends(&self, stuck: Stuck, now: Instant) -> Instant {
        let mut patience = self.lock();
        let ends = patience.ends(stuck);
        if patience.is_lost(stuck, now) {
            self.lost.notify_one();
        }
        ends
    }

    fn lock(&self) -> MutexGuard<'_, Patience> {
        self.patience.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
