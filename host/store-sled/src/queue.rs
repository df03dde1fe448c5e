//! What waits for the committer, bounded, and how callers learn what became of it.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use futures::channel::oneshot::Sender;
use ostraca_sharding::records::{Claim, ClaimOutcome, Commit, CommitOutcome, RecordKey};
use ostraca_store::{Cas, Conflict};

use crate::Options;

/// One call that writes.
pub(crate) enum Work {
    Commit(Vec<Commit>, Sender<Vec<CommitOutcome>>),
    Claim(Vec<Claim>, Sender<Vec<ClaimOutcome>>),
    Cas(Cas, Sender<Result<u64, Conflict>>),
}

impl Work {
    /// Commits and bytes, as the bounds count them.
    fn size(&self) -> (usize, usize) {
        match self {
            Self::Commit(turns, _) => (turns.len(), turns.iter().map(commit_bytes).sum()),
            Self::Claim(..) | Self::Cas(..) => (0, 0),
        }
    }
}

fn commit_bytes(commit: &Commit) -> usize {
    let replies = commit.head.lanes.iter().flat_map(|lane| &lane.replies);
    let writes = commit.writes.iter().map(|write| {
        let key = if let RecordKey::State(key) = &write.key { key.len() } else { 16 };
        64 + key + write.value.as_ref().map_or(0, bytes::Bytes::len)
    });
    256 + writes.sum::<usize>() + replies.map(|reply| 64 + reply.answer.len()).sum::<usize>()
}

/// The queue. Each call gets a ticket, counted up; `queued` is the last one given.
pub(crate) struct Queue {
    waiting: Mutex<Waiting>,
    arrived: Condvar,
    queued: AtomicU64,
    max_commits: usize,
    max_bytes: usize,
    max_rows: usize,
    batch_commits: usize,
    batch_bytes: usize,
}

#[derive(Default)]
struct Waiting {
    works: VecDeque<(Work, usize, usize)>,
    commits: usize,
    bytes: usize,
    rows: usize,
    closed: bool,
}

impl Queue {
    pub(crate) fn new(options: &Options) -> Self {
        Self {
            waiting: Mutex::default(),
            arrived: Condvar::new(),
            queued: AtomicU64::new(0),
            max_commits: options.queue_commits,
            max_bytes: options.queue_bytes,
            max_rows: options.queue_rows,
            batch_commits: options.batch_commits,
            batch_bytes: options.batch_bytes,
        }
    }

    /// Queues a call; gives it back with the reason if it may not wait.
    pub(crate) fn push(&self, work: Work) -> Result<(), (Work, String)> {
        let (commits, bytes) = work.size();
        let rows = usize::from(!matches!(work, Work::Commit(..)));
        let mut waiting = self.lock();
        let full = if waiting.closed {
            Some("it is closed".into())
        } else if waiting.commits + commits > self.max_commits {
            Some(format!("more commits wait than queue_commits ({})", self.max_commits))
        } else if waiting.bytes + bytes > self.max_bytes {
            Some(format!("more bytes wait than queue_bytes ({})", self.max_bytes))
        } else if waiting.rows + rows > self.max_rows {
            Some(format!("more claims and rows wait than queue_rows ({})", self.max_rows))
        } else {
            None
        };
        if let Some(why) = full {
            return Err((work, why));
        }
        waiting.commits += commits;
        waiting.bytes += bytes;
        waiting.rows += rows;
        waiting.works.push_back((work, commits, bytes));
        self.queued.fetch_add(1, Ordering::Release);
        drop(waiting);
        self.arrived.notify_one();
        Ok(())
    }

    /// The ticket of the last call that was queued.
    pub(crate) fn queued(&self) -> u64 {
        self.queued.load(Ordering::Acquire)
    }

    /// Waits for calls and takes a batch of them into `batch`; false once the queue is closed and empty.
    pub(crate) fn take(&self, batch: &mut Vec<Work>) -> bool {
        let waiting = self.lock();
        let idle = |waiting: &mut Waiting| waiting.works.is_empty() && !waiting.closed;
        let waited = self.arrived.wait_while(waiting, idle);
        let mut waiting = waited.unwrap_or_else(PoisonError::into_inner);
        let (mut all_commits, mut all_bytes) = (0, 0);
        while let Some((work, commits, bytes)) = waiting.works.pop_front() {
            waiting.commits -= commits;
            waiting.bytes -= bytes;
            waiting.rows -= usize::from(!matches!(work, Work::Commit(..)));
            all_commits += commits.max(1);
            all_bytes += bytes;
            batch.push(work);
            if all_commits >= self.batch_commits || all_bytes >= self.batch_bytes {
                break;
            }
        }
        !batch.is_empty()
    }

    /// Takes no more calls; those that wait are still served.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.arrived.notify_all();
    }

    /// Takes no more calls and drops those that wait, which their callers learn.
    pub(crate) fn abandon(&self) {
        let mut waiting = self.lock();
        waiting.closed = true;
        waiting.works.clear();
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
