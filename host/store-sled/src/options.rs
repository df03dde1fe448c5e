//! The settings of a sled store.

use std::path::PathBuf;
use std::time::Duration;

use ostraca_core::ids::ClusterId;

/// Settings, each with a default.
#[derive(Clone, Debug)]
pub struct Options {
    /// Refuse to open a store of another cluster than this. Default: any.
    pub cluster: Option<ClusterId>,
    /// Where the witness is kept, best on another disk than the store (R5). Default: none, nothing is checked.
    pub witness: Option<PathBuf>,
    /// Bytes of sled's page cache. Default 128 MiB; real use is up to twice that.
    pub cache_bytes: u64,
    /// How often sled itself flushes, which is also when it collects garbage; must not be zero. Default 500 ms.
    pub flush_interval: Duration,
    /// Commits that may wait for the committer; more are refused. Default 65,536.
    pub queue_commits: usize,
    /// Bytes of commits that may wait for the committer; more are refused. Default 64 MiB.
    pub queue_bytes: usize,
    /// Calls of claim and compare-and-set that may wait, apart from commits. Default 16,384.
    pub queue_metadata_ops: usize,
    /// Reads that may wait for a reader thread. Default 65,536.
    pub queue_reads: usize,
    /// Commits in one batch, beyond which no further call joins it. Default 1,024.
    pub batch_commits: usize,
    /// Bytes in one batch, beyond which no further call joins it. Default 8 MiB.
    pub batch_bytes: usize,
    /// Records in one batch, beyond which no further call joins it: what a batch that is written makes all others
    /// wait. A turn writes one and one for each key and each 4 KiB. Default 2,048.
    pub batch_records: usize,
    /// Versions of heads that the committer remembers, about 200 bytes each. Default 16,384.
    pub head_cache: usize,
    /// Reader threads. Default 2.
    pub readers: usize,
    /// Free bytes of disk below which commits are refused; leases and claims go on. Default 256 MiB.
    pub low_water_bytes: u64,
    /// How often the free disk is looked at, while there are commits. Default 1 s.
    pub low_water_check_interval: Duration,
    /// Changes of rows that are kept for watches. Default 8,192.
    pub watch_history_changes: usize,
    /// Bytes of changes that are kept for watches. Default 16 MiB.
    pub watch_history_bytes: usize,
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
        }
    }
}
