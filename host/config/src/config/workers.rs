//! What each worker of a node gets: all of them share the node's instances evenly.

use std::path::PathBuf;

use super::Config;

/// Settings of a node's workers.
#[derive(Clone, Debug)]
pub struct WorkerSettings {
    /// Number of workers: 0 on a node that hosts no pool.
    pub count: usize,
    /// Settings of the machines of their shards.
    pub shard: ostraca_core::shard::Settings,
    /// Maximum number of live instances of one worker, at least 1.
    pub max_instances: usize,
    /// Maximum memory of the live instances of one worker, in bytes.
    pub max_instance_memory: u64,
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
        WorkerSettings {
            count,
            shard: self.shard_settings(),
            max_instances: (total_instances / sharing).max(1),
            max_instance_memory: self.max_live_memory() / sharing as u64,
            recording_dir: self.recording_dir.clone(),
        }
    }
}
