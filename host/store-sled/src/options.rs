//! The settings of a sled store.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ostraca_core::ids::ClusterId;

/// Settings, each with a default.
#[derive(Clone, Debug)]
pub struct Options {
    /// The cluster that the store must belong to. Default: any.
    pub cluster: Option<ClusterId>,
    /// The path of the witness, ideally on a different disk from the store (R5). Default: none, so nothing is checked.
    pub witness: Option<PathBuf>,
    /// Size of sled's page cache in bytes. Default 128 MiB; actual use is up to twice that.
    pub cache_bytes: u64,
    /// Interval of sled's own flush, which also collects its garbage; zero counts as 1 ms. Commits sync independently.
    /// Default 500 ms.
    pub flush_interval: Duration,
    /// Maximum number of commits waiting for the committer; further ones are refused. Default 65,536.
    pub queue_commits: usize,
    /// Maximum size in bytes of all commits waiting for the committer; further ones are refused. Default 64 MiB.
    pub queue_bytes: usize,
    /// Maximum number of claims and compare-and-sets waiting for the committer, counted separately from commits;
    /// further ones are refused. Default 16,384.
    pub queue_metadata_ops: usize,
    /// Maximum number of reads waiting for earlier writes or a reader thread; further ones are refused. Default 65,536.
    pub queue_reads: usize,
    /// Number of commits and claims in one batch at which no further call joins it. Row changes have a separate limit
    /// of the same size. Default 1,024.
    pub batch_commits: usize,
    /// Bytes in one batch at which no further call joins it. Default 8 MiB.
    pub batch_bytes: usize,
    /// Number of records in one batch beyond which no further call joins it: everything else waits while a batch is
    /// written. A turn writes one record, plus one for each key and each 4 KiB. Default 2,048.
    pub batch_records: usize,
    /// Number of heads whose versions the committer caches, about 200 bytes each. Default 16,384.
    pub head_cache: usize,
    /// Number of reader threads. Default 2.
    pub readers: usize,
    /// Free disk space in bytes below which commits and new blobs are refused; leases and claims still work. Default
    /// 256 MiB.
    pub low_water_bytes: u64,
    /// Minimum interval between checks of the free disk space, which writes trigger. Default 1 s.
    pub low_water_check_interval: Duration,
    /// Maximum number of row changes that are kept for watches. Default 8,192.
    pub watch_history_changes: usize,
    /// Maximum size in bytes of the row changes that are kept for watches. Default 16 MiB.
    pub watch_history_bytes: usize,
    /// Maximum number of records that change while a backup reads the store; beyond it, the backup fails. Default
    /// 1,000,000, up to 1 KiB each.
    pub backup_changes: usize,
    /// Is told of each batch that was written and synced. Default: none.
    pub on_batch: Option<BatchObserver>,
}

/// Is called with the number of calls in a batch that was written, and how long their sync took. It runs on the
/// committer's thread, so it must not block.
#[derive(Clone)]
pub struct BatchObserver(pub Arc<dyn Fn(usize, Duration) + Send + Sync>);

impl std::fmt::Debug for BatchObserver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("BatchObserver(..)")
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            cluster: None,
            witness: None,
            cache_bytes: 128 << 20,
            flush_interval: Duration::from_millis(500),
            queue_commits: 65_536,
            queue_bytes: 64 << 20,
            queue_metadata_ops: 16_384,
            queue_reads: 65_536,
            batch_commits: 1024,
            batch_bytes: 8 << 20,
            batch_records: 2048,
            head_cache: 16_384,
            readers: 2,
            low_water_bytes: 256 << 20,
            low_water_check_interval: Duration::from_secs(1),
            watch_history_changes: 8192,
            watch_history_bytes: 16 << 20,
            backup_changes: 1_000_000,
            on_batch: None,
        }
    }
}
