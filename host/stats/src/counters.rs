//! Counters and gauges that the node's threads share.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ostraca_store::StoreError;
use tokio::sync::watch;

use crate::failing::FailingEntities;
use crate::{Histogram, HotEntity, HttpStats, Methods, ShardPauses};

/// Shown by `status`. Counters only rise; gauges hold the state at each worker's last update.
#[derive(Debug)]
pub struct Stats {
    /// Guest turns started for a message.
    pub turns: AtomicU64,
    /// Commits sent to the store.
    pub commits: AtomicU64,
    /// Turns that failed.
    pub failed_turns: AtomicU64,
    /// Stopped entities that were forgotten, because a shard had too many.
    pub stopped_forgotten: AtomicU64,
    /// Instances that were started.
    pub activations: AtomicU64,
    /// Migrations of entities that were started.
    pub migrations: AtomicU64,
    /// Migrations that the guest refused, or in which it failed: the entity stays on an earlier revision.
    pub failed_migrations: AtomicU64,
    /// Messages answered as not run, by this node's workers.
    pub not_run: AtomicU64,
    /// Messages answered with an unknown outcome, by this node's workers.
    pub unknown: AtomicU64,
    /// Contained panics of the host's own code.
    pub panics: AtomicU64,
    /// Control messages dropped because the inbox was full.
    pub control_messages_dropped: AtomicU64,
    /// Control messages ignored because this release does not understand them.
    pub control_messages_ignored: AtomicU64,
    /// Time of the last successful renewal on the node's clock, in milliseconds.
    pub last_renewal_ms: AtomicU64,
    /// Entities whose last turn failed.
    pub failing_entities: FailingEntities,
    /// Why another node's store must not be used (R5); `None` while it may be used.
    pub store_refused: watch::Sender<Option<Arc<str>>>,
    /// Duration of the lease in milliseconds; 0 before the first renewal.
    pub lease_ms: AtomicU64,
    /// How much of the lease was left each time it was renewed.
    pub lease_slack: Histogram,
    /// Rates, errors and durations of each method.
    pub methods: Methods,
    /// The number of calls in a batch of this node's store.
    pub store_batches: Histogram,
    /// How long this node's store took to sync a batch.
    pub store_syncs: Histogram,
    /// Responses of the HTTP gateway.
    pub http: HttpStats,
    /// How long shards moved or had no live owner, according to this node's routes.
    pub shard_pauses: ShardPauses,
}

impl Default for Stats {
    fn default() -> Self {
        Self::new(Methods::MAX)
    }
}

impl Stats {
    /// Nothing has happened yet. `max_methods` bounds [`Stats::methods`].
    #[must_use]
    pub fn new(max_methods: usize) -> Self {
        Self {
            turns: AtomicU64::default(),
            commits: AtomicU64::default(),
            failed_turns: AtomicU64::default(),
            stopped_forgotten: AtomicU64::default(),
            activations: AtomicU64::default(),
            migrations: AtomicU64::default(),
            failed_migrations: AtomicU64::default(),
            not_run: AtomicU64::default(),
            unknown: AtomicU64::default(),
            panics: AtomicU64::default(),
            control_messages_dropped: AtomicU64::default(),
            control_messages_ignored: AtomicU64::default(),
            last_renewal_ms: AtomicU64::default(),
            failing_entities: FailingEntities::default(),
            store_refused: watch::Sender::default(),
            lease_ms: AtomicU64::default(),
            lease_slack: Histogram::of_durations(),
            methods: Methods::new(max_methods),
            store_batches: Histogram::of_sizes(),
            store_syncs: Histogram::of_durations(),
            http: HttpStats::default(),
            shard_pauses: ShardPauses::default(),
        }
    }

    /// Adds one to a counter.
    pub fn count(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Records from a call's result whether another node's store is refused.
    pub fn record_store_result<T>(&self, answer: &Result<T, StoreError>) {
        let refused = match answer {
            Ok(_) => None,
            Err(StoreError::Stopped(why)) => Some(why),
            // Other errors say nothing about the store's identity.
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

    /// Records that the lease was renewed at `now`, for `lease` milliseconds from when the request was `sent`.
    pub fn lease_renewed(&self, sent: u64, lease: u64, now: u64) {
        let before = self.last_renewal_ms.swap(sent, Ordering::Relaxed);
        let former = self.lease_ms.swap(lease, Ordering::Relaxed);
        // A node registers without having had a lease.
        if before > 0 {
            let left = before.saturating_add(former).saturating_sub(now);
            self.lease_slack.observe(Duration::from_millis(left));
        }
    }

    /// The value of a counter or a gauge.
    #[must_use]
    pub fn get(counter: &AtomicU64) -> u64 {
        counter.load(Ordering::Relaxed)
    }
}

/// One worker's state at its last update, and what it counts without disturbing others.
#[derive(Debug)]
pub struct WorkerGauges {
    /// Shards that it serves.
    pub serving: AtomicU64,
    /// Shards that it holds.
    pub shards: AtomicU64,
    /// Instance slots that its entities hold.
    pub live: AtomicU64,
    /// Bytes of the instances that hold these slots.
    pub live_bytes: AtomicU64,
    /// Entities in memory.
    pub entities: AtomicU64,
    /// Messages waiting for a turn.
    pub queued: AtomicU64,
    /// The hottest entities of the last two seconds.
    pub hottest: Mutex<Vec<HotEntity>>,
    /// The number of commits that it sent to the store together.
    pub commit_batches: Histogram,
    /// The number of lanes that an entity had at a commit.
    pub entity_lanes: Histogram,
    /// How long the store took to answer a batch of commits.
    pub commit_durations: Histogram,
}

impl Default for WorkerGauges {
    fn default() -> Self {
        Self {
            serving: AtomicU64::default(),
            shards: AtomicU64::default(),
            live: AtomicU64::default(),
            live_bytes: AtomicU64::default(),
            entities: AtomicU64::default(),
            queued: AtomicU64::default(),
            hottest: Mutex::default(),
            commit_batches: Histogram::of_sizes(),
            entity_lanes: Histogram::of_sizes(),
            commit_durations: Histogram::of_durations(),
        }
    }
}
