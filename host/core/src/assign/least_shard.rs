//! The strategy that leaves small differences alone (K22, K23).

use std::num::{NonZeroU32, NonZeroUsize};

use super::average::{allocate_to_emptiest, level};
use super::{AllocationStrategy, AllocationView, BuiltinStrategy, Move};

/// A shard without an owner goes to the host with fewest; shards move from the host with most, only while
/// it has more than a threshold more than the one with fewest, and only few at once (K22, K23, K40).
///
/// Hosts may differ by as much as the threshold. Use it where moves are expensive: many entities per shard,
/// long recoveries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeastShard {
    threshold: NonZeroU32,
    limit: NonZeroUsize,
}

impl LeastShard {
    /// By how many shards two hosts may differ before any is moved (`rebalance-threshold`), and how many
    /// may be in progress at once (`max-simultaneous-rebalance`), whatever their cause. Defaults 10 and 3.
    ///
    /// A threshold of 0 would move a shard back and forth forever, and a limit of 0 would move none.
    #[must_use]
    pub const fn new(threshold: NonZeroU32, limit: NonZeroUsize) -> Self {
        Self { threshold, limit }
    }

    /// By how many shards two hosts may differ.
    #[must_use]
    pub const fn threshold(self) -> NonZeroU32 {
        self.threshold
    }

    /// How many shards may be moving at once.
    #[must_use]
    pub const fn limit(self) -> NonZeroUsize {
        self.limit
    }
}

impl Default for LeastShard {
    fn default() -> Self {
        // One plus an offset.
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
