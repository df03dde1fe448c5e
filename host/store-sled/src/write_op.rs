//! Write calls, split into the parts that the committer evaluates, and how their callers get the outcomes.

use std::sync::{Arc, Mutex, PoisonError};

use futures::channel::oneshot::{Receiver, Sender, channel};
use ostraca_core::ids::ShardPath;
use ostraca_core::records::{Claim, ClaimOutcome, Commit, CommitOutcome, CommitRefusal};
use ostraca_store::entity::commit_bytes;
use ostraca_store::transfer::Item;
use ostraca_store::{CompareAndSet, CompareAndSetError, ShardMoveError, StoreError};

use crate::records::INLINE_BYTES;
use crate::shard_op::ShardOp;

/// One part of a write call.
pub(crate) enum WriteOp {
    Commit(Box<Commit>, ReplySlot<CommitOutcome>),
    Claim(Box<Claim>, ReplySlot<ClaimOutcome>),
    CompareAndSet(CompareAndSet, Sender<Result<u64, CompareAndSetError>>),
    MoveShard(Box<ShardOp>, Sender<Result<bool, ShardMoveError>>),
}

/// The resources that a part uses, counted against the limits of queue and batch.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Size {
    pub(crate) commits: usize,
    pub(crate) bytes: usize,
    /// Approximate number of sled records that the part writes.
    pub(crate) records: usize,
}

impl WriteOp {
    pub(crate) fn size(&self) -> Size {
        match self {
            Self::Commit(commit, _) => {
                let fragments = |write: &ostraca_core::records::RecordWrite| {
                    1 + write.value.as_ref().map_or(0, bytes::Bytes::len) / INLINE_BYTES
                };
                let records = 1 + commit.writes.iter().map(fragments).sum::<usize>();
                Size { commits: 1, bytes: commit_bytes(commit), records }
            }
            Self::MoveShard(step, _) => match &**step {
                ShardOp::Write { items, .. } => {
                    let bytes = items.iter().map(Item::bytes).sum::<usize>();
                    let records = 1 + items.len() + bytes / INLINE_BYTES;
                    Size { commits: 0, bytes, records }
                }
                ShardOp::Remove { .. } => Size { commits: 0, bytes: 0, records: 1_000 },
                ShardOp::Finish { .. } => Size { commits: 0, bytes: 0, records: 1 },
            },
            Self::Claim(..) | Self::CompareAndSet(..) => Size { commits: 0, bytes: 0, records: 1 },
        }
    }

    /// The shard whose order the part follows; `None` for a row, which follows the order of rows.
    pub(crate) fn ordering_key(&self) -> Option<&ShardPath> {
        match self {
            Self::Commit(commit, _) => Some(&commit.claim.shard),
            Self::Claim(claim, _) => Some(&claim.shard),
            Self::MoveShard(step, _) => Some(&step.expected().shard),
            Self::CompareAndSet(..) => None,
        }
    }

    /// Tells the caller that this part has not been and will not be written.
    pub(crate) fn refuse(self, error: &StoreError) {
        match self {
            Self::Commit(_, to) => {
                to.give(CommitOutcome::Refused(CommitRefusal::LimitReached(error.to_string())));
            }
            Self::Claim(_, to) => to.give(ClaimOutcome::Failed(error.to_string())),
            Self::CompareAndSet(_, to) => {
                drop(to.send(Err(CompareAndSetError::Store(error.clone()))))
            }
            Self::MoveShard(_, to) => drop(to.send(Err(error.clone().into()))),
        }
    }
}

/// A call with several parts, which is answered when all of them have an outcome.
struct PendingCall<T> {
    results: Vec<Option<T>>,
    left: usize,
    to: Option<Sender<Vec<T>>>,
}

/// Receives a part's outcome. If a call's slots are dropped before all of them are filled, its caller gets an error.
pub(crate) struct ReplySlot<T> {
    call: Arc<Mutex<PendingCall<T>>>,
    place: usize,
}

/// The slots for a call with `count` parts, and the receiver of their outcomes.
pub(crate) fn slots<T>(count: usize) -> (impl Iterator<Item = ReplySlot<T>>, Receiver<Vec<T>>) {
    let (to, answer) = channel();
    let results = std::iter::repeat_with(|| None).take(count).collect();
    let mut call = PendingCall { results, left: count, to: Some(to) };
    if count == 0 {
        call.finish();
    }
    let call = Arc::new(Mutex::new(call));
    ((0..count).map(move |place| ReplySlot { call: call.clone(), place }), answer)
}

impl<T> ReplySlot<T> {
    /// Delivers the part's outcome. It is not an error if the caller no longer waits for it.
    pub(crate) fn give(self, answer: T) {
        let mut call = self.call.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(place) = call.results.get_mut(self.place) {
            *place = Some(answer);
            call.left -= 1;
        }
        if call.left == 0 {
            call.finish();
        }
    }
}

impl<T> PendingCall<T> {
    fn finish(&mut self) {
        if let Some(to) = self.to.take() {
            drop(to.send(self.results.drain(..).flatten().collect()));
        }
    }
}
