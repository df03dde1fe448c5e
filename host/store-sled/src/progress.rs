//! The committer's progress, for reads that must wait for it (R2), and whether the store has stopped.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use futures::channel::oneshot::{Receiver, Sender, channel};
use ostraca_store::StoreError;

/// The numbers of the last applied batch, whose writes sled shows, and of the last durable batch, whose writes survive
/// a crash.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    applied: AtomicU64,
    durable: AtomicU64,
    row_changes: AtomicU64,
    sequence: AtomicU64,
    stopped: OnceLock<String>,
    read_panics: AtomicU64,
    low_disk_reason: Mutex<Option<String>>,
    waiters: Mutex<Vec<Sender<String>>>,
    lock: Mutex<()>,
    moved: Condvar,
    /// Number of reads waiting for a sync, for tests.
    #[cfg(test)]
    waiting: AtomicU64,
    /// Write-locked while a batch is applied, so that reads never see part of a turn.
    apply_lock: RwLock<()>,
}

impl Progress {
    pub(crate) fn new(sequence: u64) -> Self {
        Self { sequence: sequence.into(), ..Self::default() }
    }

    /// Prevents batches from being applied while the guard is held.
    pub(crate) fn reading(&self) -> RwLockReadGuard<'_, ()> {
        self.apply_lock.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Prevents reads while the guard is held.
    pub(crate) fn applying(&self) -> RwLockWriteGuard<'_, ()> {
        self.apply_lock.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of the last applied batch; stable under [`reading`](Self::reading).
    pub(crate) fn applied(&self) -> u64 {
        self.applied.load(Ordering::Acquire)
    }

    /// Must be called under [`applying`](Self::applying). `rows` is the number of row changes in the batch.
    pub(crate) fn set_applied(&self, batch: u64, rows: usize) {
        self.row_changes.fetch_add(rows as u64, Ordering::Release);
        self.applied.store(batch, Ordering::Release);
    }

    /// The number of applied row changes; stable under [`reading`](Self::reading).
    pub(crate) fn row_changes(&self) -> u64 {
        self.row_changes.load(Ordering::Acquire)
    }

    /// The store's durable sequence.
    pub(crate) fn sequence(&self) -> u64 {
        self.sequence.load(Ordering::Acquire)
    }

    pub(crate) fn set_durable(&self, batch: u64, sequence: u64) {
        self.sequence.store(sequence, Ordering::Release);
        self.durable.store(batch, Ordering::Release);
        self.wake();
    }

    pub(crate) fn wait_durable(&self, batch: u64) -> Result<(), StoreError> {
        self.check()?;
        if self.durable.load(Ordering::Acquire) >= batch {
            return Ok(());
        }
        let mut guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            self.check()?;
            if self.durable.load(Ordering::Acquire) >= batch {
                return Ok(());
            }
            #[cfg(test)]
            self.waiting.fetch_add(1, Ordering::Relaxed);
            guard = self.moved.wait(guard).unwrap_or_else(PoisonError::into_inner);
            #[cfg(test)]
            self.waiting.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Whether any read has read its data and is waiting for a sync.
    #[cfg(test)]
    pub(crate) fn is_waited_for(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// Why the store has stopped, if it has.
    pub(crate) fn stop_reason(&self) -> Option<&str> {
        self.stopped.get().map(String::as_str)
    }

    /// Why commits are refused for lack of free disk space, if they are.
    pub(crate) fn low_disk_reason(&self) -> Option<String> {
        self.low_disk_reason.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn set_low_disk_reason(&self, low: Option<String>) {
        *self.low_disk_reason.lock().unwrap_or_else(PoisonError::into_inner) = low;
    }

    /// Number of reads that have panicked.
    pub(crate) fn read_panics(&self) -> u64 {
        self.read_panics.load(Ordering::Relaxed)
    }

    pub(crate) fn read_panicked(&self) {
        self.read_panics.fetch_add(1, Ordering::Relaxed);
    }

    /// Fails once the store has stopped.
    pub(crate) fn check(&self) -> Result<(), StoreError> {
        self.stop_reason().map_or(Ok(()), |why| Err(StoreError::Stopped(why.into())))
    }

    /// Stops the store until it is opened again.
    pub(crate) fn stop(&self, why: &str) {
        if self.stopped.set(why.into()).is_ok() {
            tracing::error!(why, "the store has stopped");
        }
        let mut waiters = self.waiters.lock().unwrap_or_else(PoisonError::into_inner);
        for waiter in waiters.drain(..) {
            drop(waiter.send(why.into()));
        }
        drop(waiters);
        self.wake();
    }

    /// The receiver gets the reason when the store stops, and is cancelled if the store is closed first.
    pub(crate) fn when_stopped(&self) -> Receiver<String> {
        let (send, receive) = channel();
        let mut waiters = self.waiters.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(why) = self.stop_reason() {
            drop(send.send(why.into()));
        } else {
            waiters.retain(|waiter| !waiter.is_canceled());
            waiters.push(send);
        }
        receive
    }

    fn wake(&self) {
        drop(self.lock.lock().unwrap_or_else(PoisonError::into_inner));
        self.moved.notify_all();
    }
}
