//! Counters and gauges that the node's threads share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ostraca_store::StoreError;
use tokio::sync::watch;

use crate::failing::FailingEntities;

/// Shown by `status`. Counters only rise; gauges hold the state at each worker's last update.
#[derive(Debug, Default)]
pub(crate) struct Stats {
    pub(crate) turns: AtomicU64,
    pub(crate) commits: AtomicU64,
    pub(crate) failed_turns: AtomicU64,
    pub(crate) activations: AtomicU64,
    pub(crate) not_run: AtomicU64,
    pub(crate) unknown: AtomicU64,
    /// Contained panics of the host's own code.
    pub(crate) panics: AtomicU64,
    /// Control messages dropped because the inbox was full.
    pub(crate) control_messages_dropped: AtomicU64,
    /// Control messages ignored because this release does not understand them.
    pub(crate) control_messages_ignored: AtomicU64,
    /// Milliseconds of the node's clock at the last successful renewal.
    pub(crate) last_renewal_ms: AtomicU64,
    /// Entities whose last turn failed.
    pub(crate) failing_entities: FailingEntities,
    /// While another node's store must not be used (R5), the reason.
    pub(crate) store_refused: watch::Sender<Option<Arc<str>>>,
    /// Duration of that lease in milliseconds; 0 before the first.
    pub(crate) lease_ms: AtomicU64,
}

impl Stats {
    pub(crate) fn count(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Records from a call's result whether another node's store is refused.
    pub(crate) fn record_store_result<T>(&self, answer: &Result<T, StoreError>) {
        let refused = match answer {
            Ok(_) => None,
            Err(StoreError::Stopped(why)) => Some(why),
            // Other errors tell nothing about the store's identity.
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

/// One worker's state at its last update.
#[derive(Debug, Default)]
pub(crate) struct WorkerGauges {
    pub(crate) serving: AtomicU64,
    pub(crate) shards: AtomicU64,
    pub(crate) live: AtomicU64,
    pub(crate) entities: AtomicU64,
    pub(crate) queued: AtomicU64,
}
