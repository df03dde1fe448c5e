//! Prevents batches from being applied during a read, and limits how much is read before a waiting batch is applied.

use std::sync::RwLockReadGuard;

use crate::progress::Progress;

/// Bytes read, plus [`RECORD`] for each record, after which a waiting batch is applied.
const LONG: usize = 1 << 20;

/// The bytes that each record counts in addition to its size, for finding and decoding it.
const RECORD: usize = 4 << 10;

/// A read lock on the applied state. It never shows part of a batch.
pub(crate) struct ReadGuard<'a> {
    progress: &'a Progress,
    guard: Option<RwLockReadGuard<'a, ()>>,
    /// The number of the last visible batch.
    applied: u64,
    read: usize,
}

impl<'a> ReadGuard<'a> {
    pub(crate) fn new(progress: &'a Progress) -> Self {
        let guard = Some(progress.reading());
        Self { progress, guard, applied: progress.applied(), read: 0 }
    }

    /// Counts a record of this many bytes as read.
    pub(crate) fn count(&mut self, bytes: usize) {
        self.read += RECORD + bytes;
    }

    /// Lets waiting batches be applied if much was read since the last pause; returns whether any batch was applied.
    pub(crate) fn pause(&mut self) -> bool {
        if self.read < LONG {
            return false;
        }
        self.read = 0;
        // The lock prefers waiting writers.
        self.guard = None;
        self.guard = Some(self.progress.reading());
        let before = std::mem::replace(&mut self.applied, self.progress.applied());
        before != self.applied
    }

    /// Releases the lock; returns the number of the last visible batch.
    pub(crate) fn end(self) -> u64 {
        self.applied
    }
}
