//! The state that the manager keeps for one term.

use super::escalations::Escalations;
use super::late_starts::LateStarts;
use super::loads::Loads;
use super::relocations::Relocations;
use super::{
    BTreeMap, BTreeSet, Epoch, HandOffWorker, ManagedChunk, Member, NodeId, NodeReport, OwnerIndex,
    ReportedShard, ShardId, chunk_count, chunk_of,
};
use crate::assign::InvalidMove;
use crate::ids::Incarnation;
use crate::pools::Pools;

#[derive(Clone, Debug)]
#[cfg_attr(any(test, feature = "testing"), derive(Hash))]
pub(super) struct Term {
    pub(super) number: u64,
    /// The shards about which no manager decides (E5), as ranges: the first and the last shard of each.
    pub(super) stateless: Vec<(ShardId, ShardId)>,
    /// When this node stops being the manager, if no other host reports in this term.
    pub(super) step_down_at: u64,
    pub(super) chunks: Vec<ManagedChunk>,
    pub(super) owner_index: OwnerIndex,
    /// Chunks that [`Manager::assign_unowned_shards`](super::Manager::assign_unowned_shards) has not examined since
    /// they changed.
    pub(super) dirty_chunks: DirtyChunks,
    pub(super) hand_offs: BTreeMap<ShardId, HandOffWorker>,
    /// The number of hand-offs started in this term.
    pub(super) hand_offs_started: u64,
    /// Shards that their owners stopped, with the epoch.
    pub(super) stopped_epochs: BTreeMap<ShardId, Epoch>,
    /// The last report of each node.
    pub(super) reports: BTreeMap<NodeId, NodeReport>,
    /// The highest report number received from each node, and the incarnation that sent it.
    last_report_numbers: BTreeMap<NodeId, (Incarnation, u64)>,
    /// The time until which each observed node counts as responsive: measured from its last report, or from when it
    /// was first seen.
    pub(super) responsive_until: BTreeMap<NodeId, u64>,
    /// When to balance next.
    pub(super) next_rebalance_at: u64,
    /// When to decide again without a known change, because deadlines pass.
    pub(super) next_decision_at: u64,
    /// Hosts at the last decision: a change triggers balancing (S13).
    pub(super) last_eligible_hosts: BTreeSet<Member>,
    /// Nodes that others could not reach, and the time until which that is believed (S12).
    pub(super) unreachable: BTreeMap<NodeId, u64>,
    /// Escalations that this manager has considered.
    pub(super) escalations: Escalations,
    /// Shards that this manager relocates, or has tried to.
    pub(super) relocations: Relocations,
    /// Shards that are not served yet, and hosts that were late.
    pub(super) late_starts: LateStarts,
    /// The load of each shard, as its owner last measured it.
    pub(super) loads: Loads,
    /// How many hosts there were when the first allocation of a pool was last reported to wait for more, by the pool's
    /// first shard (K27).
    pub(super) waits_with_hosts: BTreeMap<ShardId, usize>,
    /// Kinds of invalid moves that were already reported.
    pub(super) notified_rejected_moves: BTreeSet<InvalidMove>,
    /// The strategies whose panics were reported.
    pub(super) notified_panics: BTreeSet<String>,
}

impl Term {
    pub(super) fn new(number: u64, shards: u32, now: u64, step_down_at: u64) -> Self {
        let mut dirty_chunks = DirtyChunks::default();
        dirty_chunks.add_all(shards);
        Self {
            number,
            stateless: Vec::new(),
            step_down_at,
            dirty_chunks,
            chunks: (0..chunk_count(shards)).map(|_| ManagedChunk::default()).collect(),
            owner_index: OwnerIndex::default(),
            hand_offs: BTreeMap::new(),
            hand_offs_started: 0,
            stopped_epochs: BTreeMap::new(),
            reports: BTreeMap::new(),
            last_report_numbers: BTreeMap::new(),
            responsive_until: BTreeMap::new(),
            next_rebalance_at: now,
            next_decision_at: 0,
            last_eligible_hosts: BTreeSet::new(),
            unreachable: BTreeMap::new(),
            escalations: Escalations::default(),
            relocations: Relocations::default(),
            late_starts: LateStarts::default(),
            loads: Loads::default(),
            waits_with_hosts: BTreeMap::new(),
            notified_rejected_moves: BTreeSet::new(),
            notified_panics: BTreeSet::new(),
        }
    }

    /// Learns which pools have no manager.
    pub(super) fn set_pools(&mut self, pools: &Pools) {
        self.stateless = pools.stateless().map(|pool| (pool.first, pool.last())).collect();
    }

    /// Whether the manager decides about a shard.
    pub(super) fn manages(&self, shard: ShardId) -> bool {
        !self.stateless.iter().any(|(first, last)| (*first..=*last).contains(&shard))
    }

    /// Whether every row bears this term (R10).
    pub(super) fn is_sealed(&self) -> bool {
        self.chunks.iter().all(|chunk| chunk.sealed)
    }

    /// Records a report's number, and returns whether the report counts. A report that arrives after a later one
    /// from the same node is outdated: for example, it may say that the `EntityStore` responds, although the host has
    /// since released its shards (R9).
    pub(super) fn accept_report_number(&mut self, from: &Member, number: Option<u64>) -> bool {
        let Some(number) = number else { return true };
        let newest = (from.incarnation, number);
        let last = self.last_report_numbers.entry(from.node.clone()).or_insert(newest);
        let overtaken = match last.0 == from.incarnation {
            true => number < last.1,
            false => from.incarnation.counter < last.0.counter,
        };
        if !overtaken {
            *last = newest;
        }
        !overtaken
    }
}

/// Chunks in which a shard may need an owner, or a worker for its hand-off. A chunk is added whenever something that
/// this depends on changes: its row, a write of it, a node's status, a report, a shard that stopped, or a hand-off
/// that ended. A decision examines no other chunks, since there may be a thousand of them, and each written row
/// causes a decision.
#[derive(Clone, Debug, Default)]
pub(super) struct DirtyChunks(BTreeSet<u32>);

impl DirtyChunks {
    pub(super) fn add(&mut self, chunk: u32) {
        self.0.insert(chunk);
    }

    pub(super) fn add_chunk_of(&mut self, shard: ShardId) {
        self.0.insert(chunk_of(shard));
    }

    pub(super) fn add_all(&mut self, shards: u32) {
        self.0 = (0..chunk_count(shards)).collect();
    }

    pub(super) fn set(&mut self, chunks: BTreeSet<u32>) {
        self.0 = chunks;
    }

    pub(super) fn take(&mut self) -> BTreeSet<u32> {
        std::mem::take(&mut self.0)
    }

    /// Adds the chunks in which two reports of one node differ. Without an earlier report, anything may have
    /// changed.
    pub(super) fn add_changed(&mut self, old: Option<&NodeReport>, new: &NodeReport, shards: u32) {
        let Some(old) = old.filter(|old| old.incarnation == new.incarnation) else {
            return self.add_all(shards);
        };
        for (one, other) in [(old, new), (new, old)] {
            let applied = one
                .applied_chunks
                .iter()
                .filter(|applied| other.applied_chunks.binary_search(applied).is_err());
            self.0.extend(applied.map(|(chunk, _)| *chunk));
            let key = |held: &ReportedShard| (held.shard, held.epoch);
            let held = one
                .shards
                .iter()
                .filter(|held| other.shards.binary_search_by_key(&key(held), key).is_err());
            self.0.extend(held.map(|held| chunk_of(held.shard)));
            let refused = one
                .refused_claims
                .iter()
                .filter(|refused| other.refused_claims.binary_search(refused).is_err());
            self.0.extend(refused.map(|(shard, ..)| chunk_of(*shard)));
        }
    }
}

/// The set only says what to examine; examining too much changes nothing.
#[cfg(any(test, feature = "testing"))]
impl std::hash::Hash for DirtyChunks {
    fn hash<H: std::hash::Hasher>(&self, _: &mut H) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::shard_at;

    fn incarnation(counter: u64) -> Incarnation {
        Incarnation { counter, nonce: counter }
    }

    #[test]
    fn a_report_counts_unless_a_later_one_has_arrived() {
        let mut term = Term::new(1, 4, 0, 0);
        let mut newest = |counter, number| {
            term.accept_report_number(
                &Member { node: "b".into(), incarnation: incarnation(counter) },
                number,
            )
        };
        assert!(newest(2, Some(5)), "the first");
        assert!(newest(2, Some(5)), "a copy of it");
        assert!(newest(2, Some(7)));
        assert!(!newest(2, Some(6)), "overtaken");
        assert!(!newest(1, Some(9)), "from a former incarnation");
        assert!(newest(3, Some(1)), "a new incarnation starts its own count");
        assert!(newest(1, None), "from a release that does not number reports");
        let other = Incarnation { nonce: 99, ..incarnation(3) };
        let other = Member { node: "b".into(), incarnation: other };
        assert!(
            term.accept_report_number(&other, Some(1)),
            "two processes may get the same counter"
        );
    }

    #[test]
    fn chunks_that_differ_between_two_reports_become_dirty() {
        let shard = |chunk| shard_at(chunk, 3);
        let held = |chunk, epoch| ReportedShard {
            shard: shard(chunk),
            epoch: Epoch(epoch),
            serving: true,
        };
        let old = NodeReport {
            incarnation: incarnation(1),
            applied_chunks: vec![(0, 1), (1, 1), (2, 1)],
            shards: vec![held(0, 1), held(3, 1)],
            refused_claims: vec![(shard(0), Epoch(1), Epoch(1))],
            ..NodeReport::default()
        };
        let changed = |old: Option<&NodeReport>, new: &NodeReport| {
            let mut dirty = DirtyChunks::default();
            dirty.add_changed(old, new, 10 * crate::rows::SHARDS_PER_CHUNK);
            dirty.0.into_iter().collect::<Vec<_>>()
        };
        let all: Vec<_> = (0..10).collect();
        assert_eq!(changed(Some(&old), &old), []);
        let new = NodeReport {
            applied_chunks: vec![(0, 1), (1, 2), (2, 1)],
            shards: vec![held(0, 1), held(3, 2)],
            refused_claims: vec![(shard(0), Epoch(1), Epoch(1)), (shard(5), Epoch(1), Epoch(2))],
            ..old.clone()
        };
        assert_eq!(changed(Some(&old), &new), [1, 3, 5]);
        assert_eq!(changed(Some(&new), &old), [1, 3, 5], "what is missing counts too");
        assert_eq!(changed(None, &new), all);
        assert_eq!(
            changed(Some(&old), &NodeReport { incarnation: incarnation(2), ..old.clone() }),
            all
        );
    }
}
