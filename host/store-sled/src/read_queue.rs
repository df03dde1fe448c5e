//! Reads that wait: first for the writes queued before them (parked in the
//! [`WriteQueue`](crate::write_queue::WriteQueue)), then for a reader thread. Reads of rows have priority, as do
//! row changes.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use futures::channel::oneshot::Sender;
use ostraca_core::ids::{Entity, ShardPath};
use ostraca_core::records::{Claim, LoadedEntity};
use ostraca_store::transfer::ItemPage;
use ostraca_store::{Page, Scan, StoreError, StoredRow};

pub(crate) type RowList = (Vec<StoredRow>, u64);

/// One read, with the channel for its result.
pub(crate) enum ReadOp {
    Claims(Vec<ShardPath>, Sender<Result<Vec<Option<Claim>>, StoreError>>),
    Load(Vec<(ShardPath, Entity)>, Sender<Vec<Result<LoadedEntity, StoreError>>>),
    Scan(Scan, Sender<Result<Page, StoreError>>),
    /// A page of a shard's contents behind a cursor.
    Contents(ShardPath, Option<Bytes>, Sender<Result<ItemPage, StoreError>>),
    Get(String, Sender<Result<Option<StoredRow>, StoreError>>),
    List(String, Sender<Result<RowList, StoreError>>),
    /// Panics when it is served, for a test.
    #[cfg(test)]
    Panic(Sender<()>),
}

impl ReadOp {
    fn is_of_rows(&self) -> bool {
        matches!(self, Self::Get(..) | Self::List(..))
    }

    /// Calls `with` with the writes that the read must wait for.
    pub(crate) fn after<T>(&self, with: impl FnOnce(ReadDependency<'_, '_>) -> T) -> T {
        match self {
            Self::Claims(shards, _) => with(ReadDependency::Shards(&mut shards.iter())),
            Self::Load(entities, _) => {
                with(ReadDependency::Shards(&mut entities.iter().map(|(shard, _)| shard)))
            }
            Self::Contents(shard, ..) => with(ReadDependency::Shards(&mut std::iter::once(shard))),
            Self::Scan(scan, _) => with(ReadDependency::Shards(&mut std::iter::once(&scan.shard))),
            Self::Get(..) | Self::List(..) => with(ReadDependency::Rows),
            #[cfg(test)]
            Self::Panic(_) => with(ReadDependency::Rows),
        }
    }
}

/// The writes that a read must wait for.
pub(crate) enum ReadDependency<'a, 'b> {
    Rows,
    Shards(&'a mut dyn Iterator<Item = &'b ShardPath>),
}

/// A read that waits for writes.
#[derive(Default)]
pub(crate) struct ParkedRead {
    left: AtomicUsize,
    read: Mutex<Option<ReadOp>>,
}

impl ParkedRead {
    /// Adds one more write to wait for.
    pub(crate) fn wait(&self) {
        self.left.fetch_add(1, Ordering::Relaxed);
    }

    /// Parks the read if it must wait for any writes; otherwise returns it.
    pub(crate) fn keep(&self, read: ReadOp) -> Option<ReadOp> {
        if self.left.load(Ordering::Relaxed) == 0 {
            return Some(read);
        }
        *self.read.lock().unwrap_or_else(PoisonError::into_inner) = Some(read);
        None
    }

    /// Ends one wait; returns the read after the last one.
    pub(crate) fn release(&self) -> Option<ReadOp> {
        if self.left.fetch_sub(1, Ordering::AcqRel) > 1 {
            return None;
        }
        self.read.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Reads waiting for a reader thread, and the number of all waiting reads.
pub(crate) struct ReadQueue {
    state: Mutex<ReadQueueState>,
    arrived: Condvar,
    max: usize,
}

#[derive(Default)]
struct ReadQueueState {
    rows: VecDeque<ReadOp>,
    entities: VecDeque<ReadOp>,
    /// Includes parked reads.
    count: usize,
    closed: bool,
}

impl ReadQueue {
    pub(crate) fn new(max: usize) -> Self {
        Self { state: Mutex::default(), arrived: Condvar::new(), max: max.max(1) }
    }

    /// Counts another read; `false` if the queue is full or closed.
    pub(crate) fn enter(&self) -> bool {
        let mut waiting = self.lock();
        let capacity = waiting.count < self.max && !waiting.closed;
        waiting.count += usize::from(capacity);
        capacity
    }

    /// Passes reads that were already counted to the reader threads.
    pub(crate) fn push(&self, reads: impl IntoIterator<Item = ReadOp>) {
        let mut waiting = self.lock();
        let before = waiting.rows.len() + waiting.entities.len();
        for read in reads {
            match read.is_of_rows() {
                true => waiting.rows.push_back(read),
                false => waiting.entities.push_back(read),
            }
        }
        let more = waiting.rows.len() + waiting.entities.len() - before;
        drop(waiting);
        match more {
            0 => {}
            1 => self.arrived.notify_one(),
            _ => self.arrived.notify_all(),
        }
    }

    /// Waits for reads and takes up to `most`; `false` once the queue is closed and empty.
    pub(crate) fn take(&self, most: usize, into: &mut Vec<ReadOp>) -> bool {
        let idle = |waiting: &mut ReadQueueState| {
            waiting.rows.is_empty() && waiting.entities.is_empty() && !waiting.closed
        };
        let waited = self.arrived.wait_while(self.lock(), idle);
        let mut waiting = waited.unwrap_or_else(PoisonError::into_inner);
        while into.len() < most
            && let Some(read) = waiting.rows.pop_front().or_else(|| waiting.entities.pop_front())
        {
            into.push(read);
        }
        waiting.count = waiting.count.saturating_sub(into.len());
        !into.is_empty()
    }

    /// Accepts no more reads; waiting reads are still served.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.arrived.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, ReadQueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
