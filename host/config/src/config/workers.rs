//! What each worker of a node gets: all of them share the node's instances evenly.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use ostraca_core::shard::SlotLimits;

use super::{Config, pool_limits};

/// Settings of a node's workers.
#[derive(Clone, Debug)]
pub struct WorkerSettings {
    /// Number of workers: 0 on a node that hosts no pool.
    pub count: usize,
    /// Settings of the machines of their shards.
    pub shard: ostraca_core::shard::Settings,
    /// Limits of the live instances of one worker.
    pub instance_limits: SlotLimits,
    /// Further limits of those of single pools, by the pool's name.
    pub pool_instance_limits: BTreeMap<Arc<str>, SlotLimits>,
    /// A directory in which events and actions are recorded.
    pub recording_dir: Option<PathBuf>,
}

impl Config {
    /// Settings of the workers on a machine with this many processors, which share `total_instances` instances.
    #[must_use]
    pub fn worker_settings(&self, processors: usize, total_instances: usize) -> WorkerSettings {
        let count = match (self.is_host(), self.workers) {
            (false, _) => 0,
            (true, 0) => processors.max(1),
            (true, set) => set,
        };
        let sharing = count.max(1);
        let all = SlotLimits { instances: total_instances, memory: self.max_live_memory() };
        WorkerSettings {
            count,
            shard: self.shard_settings(),
            instance_limits: all.share(sharing),
            pool_instance_limits: pool_limits::shares(&self.file.guests.pools, all, sharing),
            recording_dir: self.recording_dir.clone(),
        }
    }
}
