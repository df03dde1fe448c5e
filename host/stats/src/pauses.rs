//! How long shards pause.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::Histogram;

/// How many pauses are kept.
const KEPT: usize = 1_024;

/// How long shards moved or had no live owner, according to this node's routes.
#[derive(Debug)]
pub struct ShardPauses {
    /// All durations since the node started.
    pub durations: Histogram,
    latest: Mutex<VecDeque<ShardPause>>,
}

/// One pause of a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardPause {
    /// The shard.
    pub shard: u32,
    /// When it ended, in milliseconds since 1970.
    pub ended_unix_ms: u64,
    /// How long it lasted.
    pub duration: Duration,
    /// Whether the shard's owner had died or left without a hand-off.
    pub fail_over: bool,
}

impl Default for ShardPauses {
    fn default() -> Self {
        Self { durations: Histogram::of_durations(), latest: Mutex::default() }
    }
}

impl ShardPauses {
    /// Records a pause that has just ended.
    pub fn record(&self, shard: u32, duration: Duration, fail_over: bool) {
        self.durations.observe(duration);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let ended_unix_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
        let mut latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        if latest.len() >= KEPT {
            latest.pop_front();
        }
        latest.push_back(ShardPause { shard, ended_unix_ms, duration, fail_over });
    }

    /// The last 1,024 pauses, oldest first.
    #[must_use]
    pub fn latest(&self) -> Vec<ShardPause> {
        self.latest.lock().unwrap_or_else(PoisonError::into_inner).iter().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_latest_pauses_are_kept() {
        let pauses = ShardPauses::default();
        for shard in 1..=1_500 {
            pauses.record(shard, Duration::from_millis(1), false);
        }
        let shards: Vec<_> = pauses.latest().iter().map(|pause| pause.shard).collect();
        assert_eq!((shards.len(), shards[0], shards[1_023]), (1_024, 477, 1_500));
        assert_eq!(pauses.durations.distribution().count, 1_500);
    }
}
