//! Keeps batches from being applied during a read, and bounds how much is read at a time.

use std::sync::RwLockReadGuard;

use crate::progress::Progress;

/// Bytes read, plus [`RECORD`] for each record, after which a waiting batch is let in.
const LONG: usize = 1 << 20;

/// What a record counts in addition to its bytes, for finding and decoding it.
const RECORD: usize = 4 << 10;

/// A read lock on what is applied. It sees no batch in part.
pub(crate) struct ReadGuard<'a> {
    progress: &'a Progress,
    guard: Option<RwLockReadGuard<'a, ()>>,
    /// The number of the last batch that is visible.
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

    /// Lets a waiting batch in, if much was read since the last time; returns whether one was applied.
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

    /// Releases the lock; returns the number of the last batch that was visible.
    pub(crate) fn end(self) -> u64 {
        self.applied
    }
}
