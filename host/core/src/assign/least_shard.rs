//! The strategy that tolerates small differences (K22, K23).

use std::num::{NonZeroU32, NonZeroUsize};

use super::average::{allocate_to_emptiest, level};
use super::{AllocationStrategy, AllocationView, BuiltinStrategy, Move};

/// A shard without an owner goes to the host with the fewest shards. Shards move from the host with the most only while
/// it exceeds the host with the fewest by more than a threshold, and only a few at the same time (K22, K23, K40).
///
/// Hosts may differ by as much as the threshold. Use it where moves are expensive: many entities per shard, or long
/// recoveries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct LeastShard {
    threshold: NonZeroU32,
    limit: NonZeroUsize,
}

impl LeastShard {
    /// The number of shards by which two hosts may differ before a shard is moved (`rebalance-threshold`), and the
    /// number of moves that may be in progress at the same time (`max-simultaneous-rebalance`), whatever their cause.
    /// The defaults are 10 and 3.
    ///
    /// A threshold of 0 would move a shard back and forth forever, and a limit of 0 would move none.
    #[must_use]
    pub const fn new(threshold: NonZeroU32, limit: NonZeroUsize) -> Self {
        Self { threshold, limit }
    }

    /// The number of shards by which two hosts may differ.
    #[must_use]
    pub const fn threshold(self) -> NonZeroU32 {
        self.threshold
    }

    /// The number of shards that may be moving at the same time.
    #[must_use]
    pub const fn limit(self) -> NonZeroUsize {
        self.limit
    }
}

impl Default for LeastShard {
    fn default() -> Self {
        // `MIN` is 1, so these are 10 and 3.
        Self::new(NonZeroU32::MIN.saturating_add(9), NonZeroUsize::MIN.saturating_add(2))
    }
}

impl AllocationStrategy for LeastShard {
    fn name(&self) -> &'static str {
        BuiltinStrategy::LeastShard.name()
    }

    fn allocate(&self, view: &AllocationView) -> Vec<Move> {
        allocate_to_emptiest(view).0
    }

    fn rebalance(&self, view: &AllocationView, limit: usize) -> Vec<Move> {
        let under_way = view.shards.iter().filter(|place| place.hand_off_in_progress).count();
        let gap = usize::try_from(self.threshold.get()).unwrap_or(usize::MAX);
        level(view, gap, limit.min(self.limit.get().saturating_sub(under_way)))
    }
}
