//! A client's switch timer, shared: its sessions report to it, and it tells the connection task when to switch.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use crate::ledger::{Stall, SwitchTimer};

/// The switch timer of a client.
#[derive(Debug)]
pub(crate) struct SharedSwitchTimer {
    switch_timer: Mutex<SwitchTimer>,
    /// Notified when the client should switch its gateway.
    pub(crate) switch_due: Notify,
}

impl SharedSwitchTimer {
    pub(crate) fn new(bound: Duration) -> Self {
        let timer = Mutex::new(SwitchTimer::new(bound, rand::random(), Instant::now()));
        Self { switch_timer: timer, switch_due: Notify::new() }
    }

    /// See [`SwitchTimer::record_replies`].
    pub(crate) fn record_replies(&self, answered: bool, now: Instant) {
        self.lock().record_replies(answered, now);
    }

    /// Returns when a session with this stall makes the client switch. If that time has come, notifies the connection
    /// task.
    pub(crate) fn ends(&self, stuck: Stall, now: Instant) -> Instant {
        let mut timer = self.lock();
        let ends = timer.deadline(stuck);
        if timer.try_switch(stuck, now) {
            self.switch_due.notify_one();
        }
        ends
    }

    fn lock(&self) -> MutexGuard<'_, SwitchTimer> {
        self.switch_timer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
