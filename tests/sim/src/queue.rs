//! Scheduled events, ordered by time. Events with the same time keep the order in which they were scheduled.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Pending events.
pub(crate) struct Queue<T> {
    heap: BinaryHeap<Reverse<Timed<T>>>,
    order: u64,
}

impl<T> Queue<T> {
    pub(crate) fn new() -> Self {
        Self { heap: BinaryHeap::new(), order: 0 }
    }

    pub(crate) fn put(&mut self, when: u64, happening: T) {
        self.order += 1;
        self.heap.push(Reverse(Timed { at: (when, self.order), event: happening }));
    }

    /// Removes the next event, and returns it with its time.
    pub(crate) fn take(&mut self) -> Option<(u64, T)> {
        self.heap.pop().map(|Reverse(Timed { at, event: happening })| (at.0, happening))
    }
}

/// An event that is compared only by its position.
struct Timed<T> {
    at: (u64, u64),
    event: T,
}

impl<T> PartialEq for Timed<T> {
    fn eq(&self, other: &Self) -> bool {
        self.at == other.at
    }
}

impl<T> Eq for Timed<T> {}

impl<T> PartialOrd for Timed<T> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Timed<T> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.at.cmp(&other.at)
    }
}
