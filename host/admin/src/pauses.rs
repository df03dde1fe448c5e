//! The latest pauses of shards, for the console.

use ostraca_wire::proto;

use super::AdminService;

impl AdminService {
    /// What this node has seen.
    pub(super) fn pauses(&self) -> proto::Pauses {
        let latest = self.status.stats.shard_pauses.latest().into_iter();
        let pauses = latest.map(|pause| proto::ShardPause {
            shard: pause.shard,
            unix_ms: pause.ended_unix_ms,
            duration_us: u64::try_from(pause.duration.as_micros()).unwrap_or(u64::MAX),
            fail_over: pause.fail_over,
        });
        proto::Pauses { pauses: pauses.collect() }
    }
}
