//! Requests without a response on a stream: their limits, and what is known about them when the stream breaks.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::error::Error;

/// Limits on unanswered requests, each with what it limits and the name of its setting.
#[derive(Clone, Copy, Debug)]
pub(super) struct PendingLimits {
    pub(super) count: (u32, &'static str, &'static str),
    pub(super) bytes: (u64, &'static str, &'static str),
}

/// The unanswered requests of a stream. `I` is sent, and `W` waits for the response.
pub(super) struct PendingRequests<I, W> {
    state: Mutex<State<I, W>>,
    queued: Notify,
    ended: CancellationToken,
    limits: PendingLimits,
}

struct State<I, W> {
    /// Not handed to the stream yet; each also has an entry in `waiting`.
    queue: VecDeque<(u64, I)>,
    waiting: HashMap<u64, (W, u64)>,
    /// Total size of all requests in `waiting`.
    bytes: u64,
    lost: Option<String>,
}

/// The requests that had no response when the stream broke.
pub(super) struct Unanswered<W> {
    /// Never handed to the stream.
    pub(super) not_sent: Vec<(u64, W)>,
    /// May have arrived.
    pub(super) in_doubt: Vec<(u64, W)>,
}

/// Queues several requests under one lock.
pub(super) struct QueueGuard<'a, I, W> {
    state: MutexGuard<'a, State<I, W>>,
    limits: &'a PendingLimits,
}

impl<I, W> PendingRequests<I, W> {
    pub(super) fn new(most: PendingLimits) -> Self {
        let state = State { queue: VecDeque::new(), waiting: HashMap::new(), bytes: 0, lost: None };
        Self {
            state: Mutex::new(state),
            queued: Notify::new(),
            ended: CancellationToken::new(),
            limits: most,
        }
    }

    fn state(&self) -> MutexGuard<'_, State<I, W>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues what `work` puts, and wakes the stream's task.
    pub(super) fn queue<T>(&self, work: impl FnOnce(&mut QueueGuard<'_, I, W>) -> T) -> T {
        let mut queueing = QueueGuard { state: self.state(), limits: &self.limits };
        let done = work(&mut queueing);
        drop(queueing);
        self.queued.notify_one();
        done
    }

    /// Waits until something is queued. Only the stream's task waits here.
    pub(super) async fn queued(&self) {
        self.queued.notified().await;
    }

    /// Passes queued requests to `put`, in order, until it returns `false` because it has enough.
    pub(super) fn send(&self, mut put: impl FnMut(u64, I) -> bool) {
        let mut state = self.state();
        while let Some((tag, item)) = state.queue.pop_front() {
            if !put(tag, item) {
                return;
            }
        }
    }

    /// Passes each response to `give` with its waiter, in order. Stops at a tag without a waiter, and returns that tag.
    pub(super) fn complete<A>(
        &self,
        responses: impl Iterator<Item = (u64, A)>,
        mut give: impl FnMut(u64, W, A),
    ) -> Result<(), u64> {
        let mut state = self.state();
        for (tag, answer) in responses {
            let Some((waiting, bytes)) = state.waiting.remove(&tag) else { return Err(tag) };
            state.bytes -= bytes;
            give(tag, waiting, answer);
        }
        Ok(())
    }

    /// Ends all requests. Only the first reason is kept; a second call returns no requests.
    pub(super) fn lose(&self, why: &str) -> Unanswered<W> {
        let (queue, mut waiting) = {
            let mut state = self.state();
            state.lost.get_or_insert_with(|| why.to_owned());
            (std::mem::take(&mut state.queue), std::mem::take(&mut state.waiting))
        };
        let queued = queue.into_iter().filter_map(|(tag, _)| Some((tag, waiting.remove(&tag)?.0)));
        let not_sent = queued.collect();
        let mut in_doubt: Vec<_> = waiting.into_iter().map(|(tag, (who, _))| (tag, who)).collect();
        in_doubt.sort_unstable_by_key(|(tag, _)| *tag);
        Unanswered { not_sent, in_doubt }
    }

    /// Signals that all waiters have been notified.
    pub(super) fn end(&self) {
        self.ended.cancel();
    }

    pub(super) fn ended(&self) -> &CancellationToken {
        &self.ended
    }

    /// Number of unanswered requests.
    pub(super) fn len(&self) -> usize {
        self.state().waiting.len()
    }
}

impl<I, W> QueueGuard<'_, I, W> {
    /// Whether one more request of this size fits the limits.
    pub(super) fn check(&self, tag: u64, bytes: u64) -> Result<(), Error> {
        let state = &*self.state;
        if let Some(why) = &state.lost {
            return Err(Error::NotSent(why.clone()));
        }
        let (count, what, setting) = self.limits.count;
        if state.waiting.len() >= count as usize {
            return Err(Error::Overloaded { what, limit: count.into(), setting });
        }
        // A single request may be larger than the whole limit.
        let (limit, what, setting) = self.limits.bytes;
        if state.bytes > 0 && state.bytes.saturating_add(bytes) > limit {
            return Err(Error::Overloaded { what, limit, setting });
        }
        if state.waiting.contains_key(&tag) {
            return Err(Error::NotSent(format!("tag {tag} is already in use")));
        }
        Ok(())
    }

    /// Queues a request that [`QueueGuard::check`] has accepted.
    pub(super) fn put(&mut self, tag: u64, bytes: u64, item: I, waiting: W) {
        self.state.bytes += bytes;
        self.state.waiting.insert(tag, (waiting, bytes));
        self.state.queue.push_back((tag, item));
    }
}
