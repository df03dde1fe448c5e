//! A lane: the commits and claims of some shards, in the order of the calls, over one connection.
//!
//! A shard always has the same lane. The lane sends what waits as one batch, and collects the next one meanwhile.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::channel::oneshot::Sender;
use ostraca_core::records::{Claim, ClaimOutcome, CommitOutcome, CommitRefusal};
use tokio::sync::{Notify, watch};

use crate::batch::{Batch, Prepared};
use crate::connector::Connector;
use crate::health::Health;
use crate::options::Options;

/// A call that waits for the lane.
pub(crate) enum Op {
    Claim(Claim, Sender<ClaimOutcome>),
    Commit(Box<Prepared>, Sender<CommitOutcome>),
}

/// The lane's waiting calls.
pub(crate) struct Lane {
    waiting: Mutex<Waiting>,
    wake: Notify,
    /// Number of calls that have ended.
    ended: watch::Sender<u64>,
    max_commits: usize,
    max_bytes: usize,
}

#[derive(Default)]
struct Waiting {
    ops: VecDeque<(Op, usize)>,
    bytes: usize,
    /// Number of calls that were ever accepted.
    accepted: u64,
    is_closed: bool,
}

impl Lane {
    /// `lanes` share the limits of the queue equally.
    pub(crate) fn new(options: &Options, lanes: usize) -> Arc<Self> {
        Arc::new(Self {
            waiting: Mutex::default(),
            wake: Notify::new(),
            ended: watch::Sender::new(0),
            max_commits: options.queue_commits.div_ceil(lanes),
            max_bytes: options.queue_bytes.div_ceil(lanes),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a call, unless the queue is full or closed.
    pub(crate) fn push(&self, op: Op) {
        let bytes = match &op {
            Op::Claim(..) => 0,
            Op::Commit(commit, _) => commit.bytes(),
        };
        let mut waiting = self.lock();
        let full = if waiting.is_closed {
            Some("the store is closed".to_owned())
        } else if waiting.ops.len() >= self.max_commits {
            Some(format!("{} commits wait for PostgreSQL (`queue-commits`)", self.max_commits))
        } else if waiting.bytes + bytes > self.max_bytes && !waiting.ops.is_empty() {
            Some(format!("{} bytes wait for PostgreSQL (`queue-bytes`)", waiting.bytes))
        } else {
            None
        };
        if let Some(why) = full {
            drop(waiting);
            return refuse(op, &why);
        }
        waiting.bytes += bytes;
        waiting.accepted += 1;
        waiting.ops.push_back((op, bytes));
        drop(waiting);
        self.wake.notify_one();
    }

    /// The number of calls accepted so far, for [`Self::wait_for`].
    pub(crate) fn accepted(&self) -> u64 {
        self.lock().accepted
    }

    /// Waits until this many calls have ended, or the lane has.
    pub(crate) async fn wait_for(&self, accepted: u64) {
        drop(self.ended.subscribe().wait_for(|ended| *ended >= accepted).await);
    }

    /// Lets the lane end once it has served what waits.
    pub(crate) fn close(&self) {
        self.lock().is_closed = true;
        self.wake.notify_one();
    }

    /// The next claim, or as many commits as one batch may hold; `None` once the lane is closed and empty.
    async fn next(&self, options: &Options) -> Option<Vec<Op>> {
        loop {
            {
                let mut waiting = self.lock();
                let (mut taken, mut bytes) = (Vec::new(), 0);
                while let Some((op, size)) = waiting.ops.front() {
                    let is_claim = matches!(op, Op::Claim(..));
                    let is_full = taken.len() >= options.batch_commits.max(1)
                        || bytes + size > options.batch_bytes
                        || is_claim;
                    if is_full && !taken.is_empty() {
                        break;
                    }
                    bytes += size;
                    taken.extend(waiting.ops.pop_front().map(|(op, _)| op));
                    if is_claim {
                        break;
                    }
                }
                waiting.bytes -= bytes;
                if !taken.is_empty() {
                    return Some(taken);
                }
                if waiting.is_closed {
                    return None;
                }
            }
            self.wake.notified().await;
        }
    }

    /// Serves the calls until the lane is closed. `opening` is the number of the store's opening.
    pub(crate) async fn run(self: Arc<Self>, options: Arc<Options>, opening: i64, health: Health) {
        let _ending = Ending(&self);
        let mut connector = Connector::new(options.clone(), opening, health);
        while let Some(ops) = self.next(&options).await {
            let count = ops.len() as u64;
            serve(&mut connector, &options, ops).await;
            self.ended.send_modify(|ended| *ended += count);
        }
    }
}

/// Ends a lane, also if serving it has panicked: nothing waits for it any longer.
struct Ending<'a>(&'a Lane);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        let mut waiting = self.0.lock();
        waiting.is_closed = true;
        let left = std::mem::take(&mut waiting.ops);
        drop(waiting);
        left.into_iter().for_each(|(op, _)| refuse(op, "the store is closed"));
        self.0.ended.send_replace(u64::MAX);
    }
}

fn refuse(op: Op, why: &str) {
    match op {
        Op::Claim(_, to) => drop(to.send(ClaimOutcome::Failed(why.into()))),
        Op::Commit(_, to) => {
            let refusal = CommitRefusal::LimitReached(why.into());
            drop(to.send(CommitOutcome::Refused(refusal)));
        }
    }
}

async fn serve(connector: &mut Connector, options: &Options, ops: Vec<Op>) {
    let health = connector.health.clone();
    let writer = match connector.writer().await {
        Ok(writer) => writer,
        Err(error) => {
            let why = error.to_string();
            return ops.into_iter().for_each(|op| refuse(op, &why));
        }
    };
    let before = writer.row().batches;
    let (mut commits, mut waiters) = (Vec::new(), Vec::new());
    for op in ops {
        match op {
            Op::Claim(claim, to) => drop(to.send(writer.claim(options, &claim).await)),
            Op::Commit(commit, to) => {
                commits.push(*commit);
                waiters.push(to);
            }
        }
    }
    let mut outcomes = Vec::new();
    if !commits.is_empty() {
        outcomes = writer.commit(options, &health, &Batch::new(commits)).await;
    }
    // Only what is known to be durable: a witness must never be ahead of the database.
    health.count(writer.row().batches - before);
    for (to, outcome) in waiters.into_iter().zip(outcomes) {
        drop(to.send(outcome));
    }
}
