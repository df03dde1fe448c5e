//! Counts that the threads of a node share.

use std::sync::atomic::{AtomicU64, Ordering};

/// What `status` shows. Counters only rise; the others are the state as of the last look of each worker.
#[derive(Debug, Default)]
pub(crate) struct Stats {
    pub(crate) turns: AtomicU64,
    pub(crate) commits: AtomicU64,
    pub(crate) failures: AtomicU64,
    pub(crate) activations: AtomicU64,
    pub(crate) not_run: AtomicU64,
    pub(crate) unknown: AtomicU64,
    /// What other nodes said and found no room.
    pub(crate) words_lost: AtomicU64,
    /// What other nodes said and this release does not understand.
    pub(crate) words_ignored: AtomicU64,
    /// Milliseconds of the node's clock at the last successful renewal.
    pub(crate) renewed: AtomicU64,
}

impl Stats {
    pub(crate) fn count(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn get(counter: &AtomicU64) -> u64 {
        counter.load(Ordering::Relaxed)
    }
}

/// One worker's state, as of its last look.
#[derive(Debug, Default)]
pub(crate) struct Gauges {
    pub(crate) serving: AtomicU64,
    pub(crate) shards: AtomicU64,
    pub(crate) live: AtomicU64,
    pub(crate) entities: AtomicU64,
    pub(crate) queued: AtomicU64,
}
