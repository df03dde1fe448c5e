//! The one thread that writes: it evaluates a batch of calls, applies it, syncs once, and answers all of the calls.
//!
//! Calls are queued while it syncs, and become the next batch. An error while applying, flushing or syncing leaves
//! the batch's outcome unknown and stops the store until it is opened again (R3): what sled shows after that may
//! not be on disk.

use std::fs::File;
use std::sync::Arc;
use std::time::Instant;

use futures::channel::oneshot::Sender;
use ostraca_core::records::{ClaimOutcome, CommitOutcome, CommitRefusal};
use ostraca_store::change_history::ChangeHistory;
use ostraca_store::{CompareAndSetError, ShardMoveError, StoreError};

use crate::batch_builder::{BatchBuilder, PreparedBatch};
use crate::changed_keys::ChangedKeys;
use crate::disk::Disk;
use crate::disk_space::DiskSpaceMonitor;
use crate::options::BatchObserver;
use crate::progress::Progress;
use crate::read_queue::ReadQueue;
use crate::shard_op::ShardOp;
use crate::write_op::{ReplySlot, WriteOp};
use crate::write_queue::WriteQueue;

pub(crate) struct Committer {
    pub(crate) queue: Arc<WriteQueue>,
    pub(crate) progress: Arc<Progress>,
    pub(crate) changes: ChangeHistory,
    pub(crate) batch_builder: BatchBuilder,
    pub(crate) db: sled::Db,
    pub(crate) data: File,
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) space: Arc<DiskSpaceMonitor>,
    pub(crate) reads: Arc<ReadQueue>,
    pub(crate) changed: Arc<ChangedKeys>,
    pub(crate) on_batch: Option<BatchObserver>,
}

/// The outcome of one part of a call, and where to deliver it.
enum Completion {
    Commit(CommitOutcome, ReplySlot<CommitOutcome>),
    Claim(ClaimOutcome, ReplySlot<ClaimOutcome>),
    Cas(Result<u64, CompareAndSetError>, Sender<Result<u64, CompareAndSetError>>),
    MoveShard(Result<bool, ShardMoveError>, Sender<Result<bool, ShardMoveError>>),
}

impl Committer {
    /// Runs until the queue is closed and empty.
    pub(crate) fn run(mut self) {
        let _end = End {
            queue: self.queue.clone(),
            progress: self.progress.clone(),
            changes: self.changes.clone(),
            reads: self.reads.clone(),
        };
        let (mut works, mut completions) = (Vec::new(), Vec::new());
        let mut batch = 0;
        while let Some(records) = self.queue.take(&mut works) {
            batch += 1;
            if let Some(why) = self.progress.stop_reason() {
                let error = StoreError::Stopped(why.into());
                works.drain(..).for_each(|work| work.refuse(&error));
                self.reads.push(self.queue.applied());
                continue;
            }
            self.space.check();
            let low = self.progress.low_disk_reason();
            completions.extend(works.drain(..).map(|work| self.prepare(work, low.as_deref())));
            match self.write(batch, completions.len()) {
                Ok(()) => {
                    completions.drain(..).for_each(Completion::give);
                    free(records);
                }
                Err(why) => {
                    self.progress.stop(&why);
                    self.changes.close();
                    completions.drain(..).for_each(|answer| answer.fail(&why));
                    // These reads now fail: the store has stopped.
                    self.reads.push(self.queue.applied());
                }
            }
        }
    }

    fn prepare(&mut self, work: WriteOp, low: Option<&str>) -> Completion {
        match (work, low) {
            (WriteOp::Commit(_, to), Some(why)) => Completion::Commit(
                CommitOutcome::Refused(CommitRefusal::LimitReached(why.into())),
                to,
            ),
            (WriteOp::Commit(commit, to), None) => {
                Completion::Commit(self.batch_builder.commit(*commit), to)
            }
            (WriteOp::Claim(claim, to), _) => {
                Completion::Claim(self.batch_builder.claim(*claim), to)
            }
            (WriteOp::CompareAndSet(cas, to), _) => {
                Completion::Cas(self.batch_builder.compare_and_set(cas), to)
            }
            (WriteOp::MoveShard(step, to), Some(why)) if matches!(*step, ShardOp::Write { .. }) => {
                Completion::MoveShard(Err(StoreError::Unavailable(why.into()).into()), to)
            }
            (WriteOp::MoveShard(step, to), _) => {
                Completion::MoveShard(self.batch_builder.move_shard(*step), to)
            }
        }
    }

    fn write(&mut self, number: u64, calls: usize) -> Result<(), String> {
        let prepared = self.batch_builder.finish().map_err(|error| error.to_string())?;
        let Some(PreparedBatch { batch, events, sequence, changed_keys }) = prepared else {
            self.progress.set_applied(number, 0);
            self.progress.set_durable(number, self.progress.sequence());
            self.reads.push(self.queue.applied());
            return Ok(());
        };
        let applying = self.progress.applying();
        let applied = self.db.apply_batch(batch);
        self.progress.set_applied(number, events.len());
        self.changed.add(changed_keys);
        drop(applying);
        applied.map_err(|error| format!("write failed: {error}"))?;
        self.reads.push(self.queue.applied());
        let began = Instant::now();
        self.db.flush().map_err(|error| format!("flush failed: {error}"))?;
        self.disk.sync(&self.data).map_err(|error| format!("sync failed: {error}"))?;
        if let Some(BatchObserver(observe)) = &self.on_batch {
            observe(calls, began.elapsed());
        }
        self.progress.set_durable(number, sequence);
        if !events.is_empty() {
            self.changes.publish(events);
        }
        Ok(())
    }
}

/// Frees memory that sled has replaced. sled leaves this to `crossbeam-epoch`, which frees a few objects per hundred
/// uses of the tree. A batch of many records is one use, so the replaced memory, a few kilobytes per record, would
/// accumulate.
fn free(records: usize) {
    for _ in 0..flushes(records) {
        crossbeam_epoch::pin().flush();
    }
}

/// One flush frees about 500 objects, and writing a record replaces a few.
const RECORDS_A_FLUSH: usize = 64;

/// The number of flushes that free what writing this many records has replaced.
fn flushes(records: usize) -> usize {
    1 + records / RECORDS_A_FLUSH
}

impl Completion {
    /// Delivers the outcome. It is not an error if the caller no longer waits for it.
    fn give(self) {
        match self {
            Self::Commit(outcome, to) => to.give(outcome),
            Self::Claim(outcome, to) => to.give(outcome),
            Self::Cas(outcome, to) => drop(to.send(outcome)),
            Self::MoveShard(outcome, to) => drop(to.send(outcome)),
        }
    }

    /// Reports that the write failed and may or may not have taken effect.
    fn fail(self, why: &str) {
        match self {
            Self::Commit(_, to) => to.give(CommitOutcome::Unknown(why.into())),
            Self::Claim(_, to) => to.give(ClaimOutcome::Failed(why.into())),
            Self::Cas(_, to) => {
                drop(to.send(Err(CompareAndSetError::Store(StoreError::Stopped(why.into())))));
            }
            Self::MoveShard(_, to) => drop(to.send(Err(StoreError::Stopped(why.into()).into()))),
        }
    }
}

/// Releases everything that waits for the committer, however the committer ends.
struct End {
    queue: Arc<WriteQueue>,
    progress: Arc<Progress>,
    changes: ChangeHistory,
    reads: Arc<ReadQueue>,
}

impl Drop for End {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.progress.stop("committer thread panicked");
        }
        self.queue.abandon();
        self.changes.close();
        self.reads.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flushes_grow_with_the_records_of_a_batch() {
        assert_eq!([0, 63, 64, 2_048, 2_111].map(flushes), [1, 1, 2, 33, 33]);
    }
}
