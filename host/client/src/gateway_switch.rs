//! A client's patience, shared: its sessions report to it, and the keeper of its connection is told when it is lost.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use crate::ledger::{Stall, SwitchTimer};

/// One for a client.
#[derive(Debug)]
pub(crate) struct SharedSwitchTimer {
    switch_timer: Mutex<SwitchTimer>,
    /// Somebody lost patience.
    pub(crate) switch_due: Notify,
}

impl SharedSwitchTimer {
    pub(crate) fn new(bound: Duration) -> Self {
        let patience = Mutex::new(SwitchTimer::new(bound, rand::random(), Instant::now()));
        Self { switch_timer: patience, switch_due: Notify::new() }
    }

    /// See [`Patience::heard`].
    pub(crate) fn record_replies(&self, answered: bool, now: Instant) {
        self.lock().record_replies(answered, now);
    }

    /// When a session that is stuck like this loses patience; if that is now, the keeper is told.
    pub(crate) fn ends(&self, stuck: Stall, now: Instant) -> Instant {
        let mut patience = self.lock();
        let ends = patience.deadline(stuck);
        if patience.try_switch(stuck, now) {
            self.switch_due.notify_one();
        }
        ends
    }

    fn lock(&self) -> MutexGuard<'_, SwitchTimer> {
        self.switch_timer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
