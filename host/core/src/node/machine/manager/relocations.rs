//! Shards whose state is in another database than the one that the map of shards to databases names (R26).
//!
//! The state moves only inside a hand-off: the claim of the shard's next owner moves it. So the owner reports such a
//! shard with its epoch, and the manager hands the shard off, usually to its present owner.
//!
//! Confusing at first: a relocation does not end with its hand-off. The new owner copies the state while it claims the
//! shard, which may take much longer, and nobody serves the shard until then. So a shard counts as being relocated
//! until its owner reports that it serves it. The manager counts in memory: its successor starts again from reports.

use super::hand_offs::HandOffReason;
use super::{
    Assignment, BTreeMap, Context, Epoch, Manager, Member, Mutation, NodeId, ObservedCluster,
    ShardId, Term,
};
#[cfg(any(test, feature = "testing"))]
use crate::node::Canonicalizer;
use crate::pools::Pool;

/// The shards that a manager relocates, or has relocated a moment ago.
#[derive(Clone, Debug, Default)]
#[cfg_attr(any(test, feature = "testing"), derive(Hash))]
pub(super) struct Relocations(BTreeMap<ShardId, Progress>);

#[derive(Clone, Copy, Debug)]
#[cfg_attr(any(test, feature = "testing"), derive(Hash))]
enum Progress {
    /// It is being handed off, or its owner does not serve it yet.
    Relocating,
    /// It is served. If it is still misplaced, because the hand-off was abandoned or its owner does not know the map
    /// yet, it is not relocated again before this time.
    Served { retry_at: u64 },
}

impl Relocations {
    /// Whether the manager relocates this shard.
    pub(super) fn concern(&self, shard: ShardId) -> bool {
        matches!(self.0.get(&shard), Some(Progress::Relocating))
    }

    #[cfg(any(test, feature = "testing"))]
    pub(super) fn canonicalize(&mut self, to: &dyn Canonicalizer) {
        for progress in self.0.values_mut() {
            if let Progress::Served { retry_at } = progress {
                *retry_at = to.map_deadline(*retry_at);
            }
        }
    }
}

impl Term {
    /// Whether a shard's owner serves it, according to the owner's report.
    pub(super) fn is_served_by_owner(&self, shard: ShardId) -> bool {
        self.stable_assignment(shard).is_some_and(|(row, _)| {
            let owner = row.owner.as_ref();
            owner.is_some_and(|owner| self.is_served(shard, row.epoch, owner))
        })
    }

    /// Whether a shard is being handed off or is not served yet, as far as reports show. Other shards do not wait for
    /// an owner that does not report.
    fn is_relocating(&self, observed: &ObservedCluster, shard: ShardId) -> bool {
        if self.hand_offs.contains_key(&shard) {
            return true;
        }
        let Some((row, _)) = self.stable_assignment(shard) else { return true };
        let Some(owner) = &row.owner else { return true };
        !observed.is_unresponsive(&owner.node) && !self.is_served(shard, row.epoch, owner)
    }

    fn is_served(&self, shard: ShardId, epoch: Epoch, owner: &Member) -> bool {
        let of_owner = self.reports.get(&owner.node);
        let Some(report) = of_owner.filter(|report| report.incarnation == owner.incarnation) else {
            return false;
        };
        let held = report.shards.binary_search_by_key(&(shard, epoch), |it| (it.shard, it.epoch));
        held.is_ok_and(|at| report.shards[at].serving)
    }

    /// The next misplaced shards, in order of their owners. Skips those that are being handed off anyway, and those
    /// that were relocated a moment ago.
    fn misplaced_shards(&self, limit: usize) -> Vec<(ShardId, Assignment)> {
        let reported = self.reports.iter().flat_map(|(node, report)| {
            let from = Member { node: node.clone(), incarnation: report.incarnation };
            report.misplaced().into_iter().map(move |(shard, epoch)| (from.clone(), shard, epoch))
        });
        let candidates = reported.filter_map(|(from, shard, epoch)| {
            // Otherwise the row is being written, or the report is older than the row or newer.
            let (row, _) = self.stable_assignment(shard)?;
            let counts = row.owner.as_ref() == Some(&from) && row.epoch == epoch;
            let moves = row.hand_off.is_some() || self.hand_offs.contains_key(&shard);
            let waits = self.relocations.0.contains_key(&shard);
            (counts && !moves && !waits).then(|| (shard, row.clone()))
        });
        candidates.take(limit).collect()
    }
}

impl Manager {
    /// Hands off shards whose owners report that they are misplaced, a limited number of them concurrently.
    pub(in super::super) fn relocate(&mut self, context: &mut Context, observed: &ObservedCluster) {
        self.update_relocations(context, observed);
        let Some(term) = &self.term else { return };
        let counts = |it: &&Progress| matches!(it, Progress::Relocating);
        let in_progress = term.relocations.0.values().filter(counts).count();
        let room = context.settings.max_relocations.saturating_sub(in_progress);
        if room == 0 || context.has_mutation(Mutation::IgnoreMisplacedShards) {
            return;
        }
        for (shard, row) in term.misplaced_shards(room) {
            let Some(pool) = context.identity.pools.of(shard) else { continue };
            let Some(target) = self.relocation_target(observed, pool, &row) else { continue };
            if let Some(term) = &mut self.term {
                term.relocations.0.insert(shard, Progress::Relocating);
            }
            let reason = HandOffReason::Relocation;
            self.begin_hand_off(context, observed, shard, &row, target, reason);
        }
    }

    /// Records which shards are served again, and forgets those whose pause is over.
    fn update_relocations(&mut self, context: &Context, observed: &ObservedCluster) {
        let Some(term) = &mut self.term else { return };
        let retry_at = context.mono() + context.settings.rebalance_retry_interval;
        let mut relocations = std::mem::take(&mut term.relocations);
        relocations.0.retain(|shard, progress| match progress {
            Progress::Served { retry_at } => context.mono() < *retry_at,
            Progress::Relocating => {
                if !term.is_relocating(observed, *shard) {
                    *progress = Progress::Served { retry_at };
                }
                true
            }
        });
        term.relocations = relocations;
    }

    /// The present owner, or another host if the owner may get no shards.
    fn relocation_target(
        &self,
        observed: &ObservedCluster,
        pool: &Pool,
        row: &Assignment,
    ) -> Option<NodeId> {
        let owner = row.owner.as_ref()?;
        match observed.eligible_hosts(pool).any(|(host, _)| host == *owner) {
            true => Some(owner.node.clone()),
            false => self.least_loaded_other_host(observed, pool, owner),
        }
    }
}
