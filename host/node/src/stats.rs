//! Counts that the threads of a node share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ostraca_store::StoreError;
use tokio::sync::watch;

use crate::failing::FailingEntities;

/// What `status` shows. Counters only rise; the others are the state as of the last look of each worker.
#[derive(Debug, Default)]
pub(crate) struct Stats {
    pub(crate) turns: AtomicU64,
    pub(crate) commits: AtomicU64,
    pub(crate) failed_turns: AtomicU64,
    pub(crate) activations: AtomicU64,
    pub(crate) not_run: AtomicU64,
    pub(crate) unknown: AtomicU64,
    /// Panics of the host's own code that were contained.
    pub(crate) panics: AtomicU64,
    /// What other nodes said and found no room.
    pub(crate) control_messages_dropped: AtomicU64,
    /// What other nodes said and this release does not understand.
    pub(crate) control_messages_ignored: AtomicU64,
    /// Milliseconds of the node's clock at the last successful renewal.
    pub(crate) last_renewal_ms: AtomicU64,
    /// Entities that fail.
    pub(crate) failing_entities: FailingEntities,
    /// Why another node's store must not be used, while that is so (R5).
    pub(crate) store_refused: watch::Sender<Option<Arc<str>>>,
    /// The lease that it holds for, in milliseconds; 0 before the first.
    pub(crate) lease_ms: AtomicU64,
}

impl Stats {
    pub(crate) fn count(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes whether another node's store is refused, by what came of a call to it.
    pub(crate) fn record_store_result<T>(&self, answer: &Result<T, StoreError>) {
        let refused = match answer {
            Ok(_) => None,
            Err(StoreError::Stopped(why)) => Some(why),
            // It says nothing of who the store is.
            Err(_) => return,
        };
        self.store_refused.send_if_modified(|known| {
            let news = known.as_deref() != refused.map(String::as_str);
            if news {
                *known = refused.map(|why| why.as_str().into());
            }
            news
        });
    }

    pub(crate) fn get(counter: &AtomicU64) -> u64 {
        counter.load(Ordering::Relaxed)
    }
}

/// One worker's state, as of its last look.
#[derive(Debug, Default)]
pub(crate) struct WorkerGauges {
    pub(crate) serving: AtomicU64,
    pub(crate) shards: AtomicU64,
    pub(crate) live: AtomicU64,
    pub(crate) entities: AtomicU64,
    pub(crate) queued: AtomicU64,
}
