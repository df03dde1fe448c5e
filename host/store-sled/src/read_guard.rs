//! What keeps batches from being applied while somebody reads, and for how much reading at a time.

use std::sync::RwLockReadGuard;

use crate::progress::Progress;

/// Bytes read, [`RECORD`] added for each record, after which a waiting batch is let in.
const LONG: usize = 1 << 20;

/// What a record takes beside its bytes: finding and decoding it.
const RECORD: usize = 4 << 10;

/// A hold on what is applied. It sees no batch in part.
pub(crate) struct ReadGuard<'a> {
    progress: &'a Progress,
    guard: Option<RwLockReadGuard<'a, ()>>,
    /// The last batch that is visible.
    applied: u64,
    read: usize,
}

impl<'a> ReadGuard<'a> {
    pub(crate) fn new(progress: &'a Progress) -> Self {
        let guard = Some(progress.reading());
        Self { progress, guard, applied: progress.applied(), read: 0 }
    }

    /// A record of so many bytes was read.
    pub(crate) fn count(&mut self, bytes: usize) {
        self.read += RECORD + bytes;
    }

    /// Lets a waiting batch in, if much was read since the last time; whether one was applied.
    pub(crate) fn pause(&mut self) -> bool {
        if self.read < LONG {
            return false;
        }
        self.read = 0;
        // The lock prefers who waits to write.
        self.guard = None;
        self.guard = Some(self.progress.reading());
        let before = std::mem::replace(&mut self.applied, self.progress.applied());
        before != self.applied
    }

    /// Ends the hold; gives the last batch that was visible.
    pub(crate) fn end(self) -> u64 {
        self.applied
    }
}
