//! Shards of closed pools, whose entities are being copied to another pool or have been: nobody may own them (R23).
//!
//! An owner gives such a shard up in a hand-off, as for any other reason, and then the shard's row names no owner. Its
//! epoch stays, so the next owner, once the pool is open again, gets a higher one.

use super::hand_offs::HandOffReason;
use super::{Assignment, BTreeMap, Context, Epoch, Manager, ObservedCluster, ShardId};

impl Manager {
    /// Hands off shards of closed pools, a limited number of them concurrently.
    pub(super) fn hand_off_closing(
        &mut self,
        context: &mut Context,
        observed: &ObservedCluster,
        closing: &[ShardId],
    ) {
        let Some(term) = &self.term else { return };
        let in_progress = term.count(HandOffReason::PoolClosed);
        let room = context.settings.max_drain_hand_offs.saturating_sub(in_progress);
        for shard in closing.iter().take(room) {
            let stable = self.term.as_ref().and_then(|term| term.stable_assignment(*shard));
            let Some(row) = stable.map(|(row, _)| row.clone()) else { continue };
            self.begin_hand_off(context, observed, *shard, &row, None, HandOffReason::PoolClosed);
        }
    }

    /// Removes the owners of shards of a closed pool, which have stopped them or have ended.
    pub(super) fn remove_owners(
        &mut self,
        observed: &ObservedCluster,
        stopped: BTreeMap<ShardId, Epoch>,
    ) {
        let Some(term) = &mut self.term else { return };
        for (shard, epoch) in stopped {
            let before = observed.assignment(shard);
            let extensions = before.map(|row| row.extensions.clone()).unwrap_or_default();
            term.stopped_epochs.remove(&shard);
            term.set_assignment(
                shard,
                Assignment { epoch, owner: None, hand_off: None, extensions },
            );
        }
    }
}
