//! Deaths and new owners: decisions that the manager makes from sealed rows only.

use super::{
    Assignment, BTreeMap, BTreeSet, Context, Epoch, HandOffWorker, Manager, Mutation, NodeId,
    NodeRow, NodeStatus, ObservedCluster, Row, RowKey, ShardId, Term, WritePurpose, chunk_of,
    index_in_chunk, shard_at,
};
use crate::pools::Pool;
#[cfg(debug_assertions)]
use crate::rows::{SHARDS_PER_CHUNK, chunk_count};

/// Pending decisions.
#[derive(Debug, Default)]
struct Findings {
    /// The chunks with pending decisions.
    chunks: BTreeSet<u32>,
    /// Shards that need a new owner, each with the epoch that the new owner's epoch must exceed.
    needs: BTreeMap<ShardId, Epoch>,
    /// Hand-offs without a worker.
    orphaned_hand_offs: Vec<(ShardId, Assignment)>,
    /// Shards of closed pools that have an owner.
    closing: Vec<ShardId>,
    /// Owners whose row has not been observed.
    unknown_owners: BTreeSet<NodeId>,
}

impl Term {
    /// A shard's row and its revision, unless a change of it is pending.
    pub(super) fn stable_assignment(&self, shard: ShardId) -> Option<(&Assignment, u64)> {
        let chunk = self.chunks.get(chunk_of(shard) as usize)?;
        let place = index_in_chunk(shard);
        if !self.manages(shard) || chunk.busy() || chunk.pending.contains_key(&place) {
            return None;
        }
        let (row, revision) = chunk.stored.as_ref()?;
        Some((row.assignments.get(place)?, *revision))
    }

    pub(super) fn set_assignment(&mut self, shard: ShardId, row: Assignment) {
        if let Some(chunk) = self.chunks.get_mut(chunk_of(shard) as usize) {
            chunk.pending.insert(index_in_chunk(shard), row);
            self.owner_index.chunk_changed(chunk_of(shard));
        }
    }

    /// The row of every shard without a pending change, and the revision of its chunk.
    pub(super) fn stable_assignments(&self) -> impl Iterator<Item = (ShardId, &Assignment, u64)> {
        (0..self.chunks.len() as u32).flat_map(|number| self.stable_assignments_in(number))
    }

    /// As [`Self::stable_assignments`], for one chunk.
    fn stable_assignments_in(
        &self,
        number: u32,
    ) -> impl Iterator<Item = (ShardId, &Assignment, u64)> {
        let chunk = self.chunks.get(number as usize).filter(|chunk| !chunk.busy());
        chunk.into_iter().flat_map(move |chunk| {
            let rows = chunk.stored.iter().flat_map(|(base, revision)| {
                base.assignments.iter().enumerate().map(|(place, row)| (place, row, *revision))
            });
            rows.filter(|(place, ..)| !chunk.pending.contains_key(place))
                .map(move |(place, row, revision)| (shard_at(number, place), row, revision))
                .filter(|(shard, ..)| self.manages(*shard))
        })
    }

    /// If a shard needs a new owner, returns the epoch that the new owner's epoch must exceed.
    fn needs_owner_above(
        &self,
        context: &Context,
        observed: &ObservedCluster,
        shard: ShardId,
        row: &Assignment,
        revision: u64,
    ) -> Option<Epoch> {
        let Some(owner) = &row.owner else { return Some(row.epoch) };
        let has_ended = observed.has_ended(owner) == Some(true);
        if self.stopped_epochs.get(&shard) == Some(&row.epoch) || has_ended {
            return Some(row.epoch);
        }
        if context.has_mutation(Mutation::AssignWithoutDeath)
            && owner.node != context.identity.node
            && observed.lease_unchanged_for(&owner.node, context.mono(), context.settings.lease / 2)
        {
            return Some(row.epoch);
        }
        let report = self.reports.get(&owner.node)?;
        if report.incarnation != owner.incarnation {
            return None;
        }
        let refused =
            report.refused_claims.partition_point(|(of, at, _)| (*of, *at) < (shard, row.epoch));
        if let Some((of, at, current)) = report.refused_claims.get(refused)
            && (*of, *at) == (shard, row.epoch)
        {
            return Some(row.epoch.max(*current));
        }
        let held = (shard, row.epoch);
        if report.shards.binary_search_by_key(&held, |held| (held.shard, held.epoch)).is_ok() {
            return None;
        }
        // R11: a shard that is missing from the report counts only if the owner had seen its assignment.
        let chunk = chunk_of(shard);
        let after = report.applied_chunks.partition_point(|(of, _)| *of <= chunk);
        let saw =
            report.applied_chunks[..after].last().is_some_and(|seen| *seen >= (chunk, revision));
        (saw && !context.has_mutation(Mutation::KeepUnreportedAssignments)).then_some(row.epoch)
    }

    /// Finds the pending decisions of a chunk. A chunk that is being written is examined afterwards.
    fn examine_chunk(
        &self,
        context: &Context,
        observed: &ObservedCluster,
        number: u32,
        found: &mut Findings,
    ) {
        let closed: Vec<_> = context.identity.pools.closed().collect();
        for (shard, row, revision) in self.stable_assignments_in(number) {
            let is_closed = closed.iter().any(|pool| pool.contains(shard));
            if is_closed && row.owner.is_none() {
                continue;
            }
            let unknown = row.owner.as_ref().filter(|owner| observed.has_ended(owner).is_none());
            let above = self.needs_owner_above(context, observed, shard, row, revision);
            let is_moving = self.hand_offs.contains_key(&shard);
            let orphaned = row.hand_off.is_some() && !is_moving;
            let closes = is_closed && row.hand_off.is_none() && !is_moving;
            if unknown.is_some() || above.is_some() || orphaned || closes {
                found.chunks.insert(number);
            }
            found.unknown_owners.extend(unknown.map(|owner| owner.node.clone()));
            if let Some(above) = above {
                found.needs.insert(shard, above);
            } else if orphaned {
                found.orphaned_hand_offs.push((shard, row.clone()));
            } else if closes {
                found.closing.push(shard);
            }
        }
    }
}

impl Manager {
    /// Marks each incarnation whose lease has lapsed as dead, by writing the very row that the incarnation would renew
    /// (R7, R8).
    pub(in super::super) fn mark_dead(
        &mut self,
        context: &mut Context,
        observed: &ObservedCluster,
    ) {
        if context.mono() < self.write_retry_at {
            return;
        }
        for (node, row) in observed.all_live() {
            if *node == context.identity.node
                || !observed.lapsed(node, context.mono(), context.settings.lease_margin)
            {
                continue;
            }
            let purpose = WritePurpose::MarkDead(node.clone());
            if context.requests.any_write(|pending| *pending == purpose) {
                continue;
            }
            let revision = observed.node(node).map(|(_, revision)| *revision);
            let row = NodeRow { status: NodeStatus::Dead, ..row.clone() };
            context.write(purpose, RowKey::Node(node.clone()), revision, Row::Node(row));
        }
    }

    /// Gives a new owner to every shard that needs one, and finds hand-offs without a worker.
    pub(in super::super) fn assign_unowned_shards(
        &mut self,
        context: &mut Context,
        observed: &mut ObservedCluster,
    ) {
        let Some(term) = &mut self.term else { return };
        if context.has_mutation(Mutation::AssignWithoutDeath) {
            term.dirty_chunks.add_all(context.identity.pools.shard_count());
        }
        let dirty = term.dirty_chunks.take();
        let mut found = Findings::default();
        for number in &dirty {
            term.examine_chunk(context, observed, *number, &mut found);
        }
        #[cfg(debug_assertions)]
        assert_nothing_missed(term, context, observed, &dirty);
        let Findings { chunks, needs, orphaned_hand_offs, closing, unknown_owners } = found;
        term.dirty_chunks.set(chunks);
        #[cfg(test)]
        {
            context.visits += dirty.len();
        }
        observed.read_missing_rows(context, unknown_owners);
        for (shard, row) in orphaned_hand_offs {
            if let Some(worker) = HandOffWorker::taken_over(context, &row) {
                term.hand_offs.insert(shard, worker);
            }
        }
        for pool in context.identity.pools.clone().iter() {
            let needs: BTreeMap<_, _> =
                needs.range(pool.first..=pool.last()).map(|(shard, at)| (*shard, *at)).collect();
            match pool.is_closed() {
                _ if needs.is_empty() => {}
                true => self.remove_owners(observed, needs),
                false => self.assign(context, observed, pool, needs),
            }
        }
        self.hand_off_closing(context, observed, &closing);
    }

    /// Gives shards of a pool new owners, each in an epoch above the given one.
    fn assign(
        &mut self,
        context: &mut Context,
        observed: &ObservedCluster,
        pool: &Pool,
        needs: BTreeMap<ShardId, Epoch>,
    ) {
        let seed = context.draw();
        let without: Vec<_> = needs.keys().copied().collect();
        let Some(plan) = self.plan(context, observed, pool, &without, seed) else { return };
        if !self.has_enough_hosts(context, observed, pool) {
            return;
        }
        let moves = self.allocate(context, &plan);
        let Some(term) = &mut self.term else { return };
        for (shard, above) in needs {
            let target = term.hand_offs.get(&shard).and_then(|worker| worker.target.as_ref());
            let preferred = target.and_then(|target| plan.index(target));
            let to = preferred.or_else(|| moves.get(&shard).copied());
            let Some(member) = to.and_then(|to| plan.members.get(to)) else { continue };
            let epoch =
                if context.has_mutation(Mutation::ReuseEpoch) { above } else { Epoch(above.0 + 1) };
            let before = observed.assignment(shard);
            let extensions = before.map(|row| row.extensions.clone()).unwrap_or_default();
            let owner = Some(member.clone());
            term.stopped_epochs.remove(&shard);
            term.set_assignment(shard, Assignment { epoch, owner, hand_off: None, extensions });
        }
    }
}

/// Panics if a decision is pending in a chunk that is not marked: it would never be examined.
#[cfg(debug_assertions)]
fn assert_nothing_missed(
    term: &Term,
    context: &Context,
    observed: &ObservedCluster,
    dirty: &BTreeSet<u32>,
) {
    let shards = context.identity.pools.shard_count();
    if shards <= 16 * SHARDS_PER_CHUNK {
        let mut missed = Findings::default();
        for number in (0..chunk_count(shards)).filter(|number| !dirty.contains(number)) {
            term.examine_chunk(context, observed, number, &mut missed);
        }
        assert!(missed.chunks.is_empty(), "they would never be examined: {missed:?}");
    }
}
