//! The recent changes of rows, and watches over them, for backends within one process.
//!
//! Watches pull: the history is bounded, a watch remembers only how far it has read, and a watch that falls behind the
//! history gets [`RowEvent::ResyncRequired`]. So a slow watcher costs nothing. Changes of several rows can have the same
//! revision.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use futures::FutureExt;
use futures::future::BoxFuture;

use crate::{RowEvent, Watch};

/// A bounded history of changes. Clones share the same history.
#[derive(Clone)]
pub struct ChangeHistory(Arc<Mutex<History>>);

struct History {
    events: VecDeque<RowEvent>,
    /// How many changes have been dropped: the position of the first one in `events`.
    dropped: u64,
    /// Changes up to this revision are not, or are no longer, in the history.
    compacted_revision: u64,
    max_events: usize,
    bytes: usize,
    max_bytes: usize,
    closed: bool,
    wakers: HashMap<u64, Waker>,
    next_watch: u64,
}

impl fmt::Debug for ChangeHistory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChangeHistory").finish_non_exhaustive()
    }
}

impl ChangeHistory {
    /// Creates a history of the changes after `revision`, bounded in events and bytes.
    #[must_use]
    pub fn new(revision: u64, max_events: usize, max_bytes: usize) -> Self {
        Self(Arc::new(Mutex::new(History {
            events: VecDeque::new(),
            dropped: 0,
            compacted_revision: revision,
            max_events,
            bytes: 0,
            max_bytes,
            closed: false,
            wakers: HashMap::new(),
            next_watch: 0,
        })))
    }

    /// Adds durable changes, in order of revision.
    pub fn publish(&self, events: impl IntoIterator<Item = RowEvent>) {
        let mut history = self.lock();
        for event in events {
            history.bytes += size(&event);
            history.events.push_back(event);
        }
        while history.events.len() > history.max_events || history.bytes > history.max_bytes {
            let Some(event) = history.events.pop_front() else { break };
            history.bytes -= size(&event);
            history.dropped += 1;
            history.compacted_revision = event
                .key_and_revision()
                .map_or(history.compacted_revision, |(_, revision)| revision);
        }
        history.wake();
    }

    /// Drops all changes, since some up to `revision` are missing: watches from before it must resync.
    pub fn forget(&self, revision: u64) {
        let mut history = self.lock();
        // The missing ones count as one.
        history.dropped += history.events.len() as u64 + 1;
        history.events.clear();
        history.bytes = 0;
        history.compacted_revision = history.compacted_revision.max(revision);
        history.wake();
    }

    /// Ends every watch with [`RowEvent::ResyncRequired`]: no more changes will be published.
    pub fn close(&self) {
        let mut history = self.lock();
        history.closed = true;
        history.wake();
    }

    /// Watches rows whose keys start with `prefix` for changes after `revision`.
    #[must_use]
    pub fn watch(&self, prefix: &str, revision: u64) -> Box<dyn Watch> {
        let mut history = self.lock();
        history.next_watch += 1;
        let id = history.next_watch;
        drop(history);
        Box::new(Watcher {
            changes: self.clone(),
            id,
            prefix: prefix.into(),
            seen: Seen::Revision(revision),
            resync_required: false,
        })
    }

    fn lock(&self) -> MutexGuard<'_, History> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl History {
    fn wake(&mut self) {
        for (_, waker) in self.wakers.drain() {
            waker.wake();
        }
    }
}

fn size(event: &RowEvent) -> usize {
    match event {
        RowEvent::Set(row) => 64 + row.key.len() + row.value.len(),
        RowEvent::Deleted { key, .. } => 64 + key.len(),
        RowEvent::ResyncRequired => 64,
    }
}

struct Watcher {
    changes: ChangeHistory,
    id: u64,
    prefix: String,
    seen: Seen,
    resync_required: bool,
}

/// How far a watch has read.
enum Seen {
    /// Up to this revision.
    Revision(u64),
    /// Up to this position: the number of changes before the next one.
    Position(u64),
}

impl History {
    /// The place in `events` where a watch goes on; `None` if it missed changes.
    fn place(&self, seen: &Seen) -> Option<usize> {
        match *seen {
            Seen::Position(next) => usize::try_from(next.checked_sub(self.dropped)?).ok(),
            Seen::Revision(seen) if seen < self.compacted_revision => None,
            Seen::Revision(seen) => Some(self.events.partition_point(|event| {
                event.key_and_revision().is_some_and(|(_, revision)| revision <= seen)
            })),
        }
    }
}

impl Watcher {
    fn poll(&mut self, context: &Context<'_>) -> Poll<RowEvent> {
        let mut history = self.changes.0.lock().unwrap_or_else(PoisonError::into_inner);
        let place = history.place(&self.seen).filter(|_| !self.resync_required && !history.closed);
        let Some(place) = place else {
            self.resync_required = true;
            return Poll::Ready(RowEvent::ResyncRequired);
        };
        for (event, next) in history.events.range(place..).zip(history.dropped + place as u64 + 1..)
        {
            let Some((key, _)) = event.key_and_revision() else { continue };
            self.seen = Seen::Position(next);
            if key.starts_with(&self.prefix) {
                return Poll::Ready(event.clone());
            }
        }
        history.wakers.insert(self.id, context.waker().clone());
        Poll::Pending
    }
}

impl Watch for Watcher {
    fn next(&mut self) -> BoxFuture<'_, RowEvent> {
        std::future::poll_fn(|context| self.poll(context)).boxed()
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.changes.lock().wakers.remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use futures::executor::block_on;

    use super::*;
    use crate::StoredRow;

    fn set(key: &str, revision: u64) -> RowEvent {
        RowEvent::Set(StoredRow { key: key.into(), revision, value: "v".into() })
    }

    #[test]
    fn each_row_of_one_revision_is_delivered() {
        let history = ChangeHistory::new(0, 3, 1 << 20);
        let mut all = history.watch("", 0);
        history.publish([set("a", 1), set("b", 1)]);
        assert_eq!(block_on(all.next()), set("a", 1));
        let mut later = history.watch("", 1);
        history.publish([set("c", 2), set("d", 2)]);
        assert_eq!(block_on(all.next()), set("b", 1), "the history begins within its revision");
        assert_eq!(block_on(all.next()), set("c", 2));
        assert_eq!([block_on(later.next()), block_on(later.next())], [set("c", 2), set("d", 2)]);
        assert_eq!(block_on(history.watch("", 0).next()), RowEvent::ResyncRequired);
    }

    #[test]
    fn a_watch_that_missed_changes_must_resync() {
        let history = ChangeHistory::new(0, 2, 1 << 20);
        let (mut slow, mut current) = (history.watch("", 0), history.watch("", 0));
        history.publish([set("a", 1)]);
        assert_eq!([block_on(slow.next()), block_on(current.next())], [set("a", 1), set("a", 1)]);
        history.publish([set("b", 2), set("c", 2)]);
        assert_eq!(block_on(current.next()), set("b", 2));
        history.publish([set("d", 3)]);
        assert_eq!(block_on(slow.next()), RowEvent::ResyncRequired);
        assert_eq!(
            [block_on(current.next()), block_on(current.next())],
            [set("c", 2), set("d", 3)]
        );
        history.forget(5);
        assert_eq!(block_on(current.next()), RowEvent::ResyncRequired);
        let mut fresh = history.watch("", 5);
        history.publish([set("e", 6)]);
        assert_eq!(block_on(fresh.next()), set("e", 6));
    }
}
