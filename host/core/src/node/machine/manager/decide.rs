//! What the manager decides, from sealed rows and nothing else.

use super::hand_offs::HandOffReason;
use super::*;
use crate::assign::{self, Move, MoveKind};

/// What there is to decide.
#[derive(Debug, Default)]
struct Findings {
    /// Where.
    chunks: BTreeSet<u32>,
    /// Shards that need a new owner, and the epoch that it must go above.
    needs: BTreeMap<ShardId, Epoch>,
    /// Hand-offs that nobody sees to.
    orphaned_hand_offs: Vec<(ShardId, Assignment)>,
    /// Owners of which nothing is known.
    unknown_owners: BTreeSet<NodeId>,
}

impl Manager {
    /// A shard's row and its revision, unless a change of it is under way.
    pub(super) fn stable_assignment(&self, shard: ShardId) -> Option<(&Assignment, u64)> {
        let chunk = self.chunks.get(chunk_of(shard) as usize)?;
        let place = index_in_chunk(shard);
        if chunk.busy() || chunk.pending.contains_key(&place) {
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

    /// Every shard's row, and its row's revision, of which no change is under way.
    fn stable_assignments(&self) -> impl Iterator<Item = (ShardId, &Assignment, u64)> {
        (0..self.chunks.len() as u32).flat_map(|number| self.stable_assignments_in(number))
    }

    /// The same of one chunk.
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
        })
    }

    fn count(&self, why: HandOffReason) -> usize {
        self.hand_offs.values().filter(|hand_off| hand_off.reason == why).count()
    }
}

impl Machine {
    pub(super) fn decide(&mut self, now: Now) {
        self.update_unresponsive_hosts(now);
        self.mark_dead(now);
        self.drive_hand_offs(now);
        self.assign_unowned_shards(now);
        self.drain(now);
        self.rebalance(now);
        self.step_down(now);
    }

    /// Marks lives whose lease lapsed as dead, each on the very row that it would renew (R7, R8).
    fn mark_dead(&mut self, now: Now) {
        if now.mono < self.write_retry_at {
            return;
        }
        let lapsed: Vec<_> = self
            .view
            .all_live()
            .filter(|(node, _)| {
                **node != self.identity.node
                    && self.view.lapsed(node, now.mono, self.settings.lease_margin)
            })
            .map(|(node, _)| node.clone())
            .collect();
        for node in lapsed {
            let purpose = WritePurpose::MarkDead(node.clone());
            if self.pending_writes.values().any(|under_way| *under_way == purpose) {
                continue;
            }
            let Some((row, revision)) = self.view.nodes.get(&node).cloned() else { continue };
            let row = NodeRow { status: NodeStatus::Dead, ..row };
            self.write(purpose, RowKey::Node(node), Some(revision), Row::Node(row));
        }
    }

    /// Why a shard needs a new owner: the epoch that it must go above.
    fn needs_owner_above(
        &self,
        now: Now,
        shard: ShardId,
        row: &Assignment,
        revision: u64,
    ) -> Option<Epoch> {
        let manager = self.manager.as_ref()?;
        let Some(owner) = &row.owner else { return Some(row.epoch) };
        let over = self.view.has_ended(owner) == Some(true);
        if manager.stopped_epochs.get(&shard) == Some(&row.epoch) || over {
            return Some(row.epoch);
        }
        if self.has_mutation(Mutation::AssignWithoutDeath)
            && owner.node != self.identity.node
            && self.view.lease_unchanged_for(&owner.node, now.mono, self.settings.lease / 2)
        {
            return Some(row.epoch);
        }
        let report = manager.reports.get(&owner.node)?;
        if report.incarnation != owner.incarnation {
            return None;
        }
        let refused =
            report.refused_claims.partition_point(|(of, at, _)| (*of, *at) < (shard, row.epoch));
        if let Some((of, at, standing)) = report.refused_claims.get(refused)
            && (*of, *at) == (shard, row.epoch)
        {
            return Some(row.epoch.max(*standing));
        }
        let held = (shard, row.epoch);
        if report.shards.binary_search_by_key(&held, |held| (held.shard, held.epoch)).is_ok() {
            return None;
        }
        // R11: silence counts only from an owner that had seen its assignment.
        let chunk = chunk_of(shard);
        let after = report.applied_chunks.partition_point(|(of, _)| *of <= chunk);
        let saw =
            report.applied_chunks[..after].last().is_some_and(|seen| *seen >= (chunk, revision));
        (saw && !self.has_mutation(Mutation::KeepUnreportedAssignments)).then_some(row.epoch)
    }

    /// Gives every shard that needs one a new owner, and finds hand-offs that nobody sees to.
    pub(super) fn assign_unowned_shards(&mut self, now: Now) {
        let by_time = self.has_mutation(Mutation::AssignWithoutDeath);
        let shards = self.identity.shard_count;
        let Some(manager) = &mut self.manager else { return };
        if by_time {
            manager.dirty_chunks.add_all(shards);
        }
        let undecided = std::mem::take(&mut manager.dirty_chunks);
        let mut found = Findings::default();
        for number in &undecided.0 {
            self.examine_chunk(now, *number, &mut found);
        }
        #[cfg(debug_assertions)]
        if shards <= 16 * crate::rows::SHARDS_PER_CHUNK {
            let decided = (0..chunk_count(shards)).filter(|number| !undecided.0.contains(number));
            let mut missed = Findings::default();
            decided.for_each(|number| self.examine_chunk(now, number, &mut missed));
            assert!(missed.chunks.is_empty(), "nobody would have looked at them: {missed:?}");
        }
        let Findings { chunks, needs, orphaned_hand_offs: orphans, unknown_owners: strange } =
            found;
        if let Some(manager) = &mut self.manager {
            manager.dirty_chunks = DirtyChunks(chunks);
        }
        #[cfg(test)]
        {
            self.visits += undecided.0.len();
        }
        self.read_missing_rows(now, strange);
        for (shard, row) in orphans {
            self.take_over_hand_off(now, shard, &row);
        }
        if needs.is_empty() {
            return;
        }
        let seed = self.draw();
        let without: Vec<_> = needs.keys().copied().collect();
        let Some(plan) = self.plan(&without, seed) else { return };
        let moves = self.allocate(&plan);
        let preferred = |shard: &ShardId| {
            let to = self.manager.as_ref()?.hand_offs.get(shard)?.target.as_ref()?;
            plan.index(to)
        };
        let mut placed = Vec::new();
        for (shard, above) in needs {
            let to = preferred(&shard).or_else(|| moves.get(&shard).copied());
            let Some(member) = to.and_then(|to| plan.members.get(to)) else { continue };
            let epoch =
                if self.has_mutation(Mutation::ReuseEpoch) { above } else { Epoch(above.0 + 1) };
            let before = self.view.assignment(shard);
            let extensions = before.map(|row| row.extensions.clone()).unwrap_or_default();
            let owner = Some(member.clone());
            placed.push((shard, Assignment { epoch, owner, hand_off: None, extensions }));
        }
        let Some(manager) = &mut self.manager else { return };
        for (shard, row) in placed {
            manager.stopped_epochs.remove(&shard);
            manager.set_assignment(shard, row);
        }
    }

    /// Finds what there is to decide in a chunk. One that is being written is looked at when that is done.
    fn examine_chunk(&self, now: Now, number: u32, found: &mut Findings) {
        let Some(manager) = &self.manager else { return };
        for (shard, row, revision) in manager.stable_assignments_in(number) {
            let stranger = row.owner.as_ref().filter(|owner| self.view.has_ended(owner).is_none());
            let above = self.needs_owner_above(now, shard, row, revision);
            let orphan = row.hand_off.is_some() && !manager.hand_offs.contains_key(&shard);
            if stranger.is_some() || above.is_some() || orphan {
                found.chunks.insert(number);
            }
            found.unknown_owners.extend(stranger.map(|owner| owner.node.clone()));
            if let Some(above) = above {
                found.needs.insert(shard, above);
            } else if orphan {
                found.orphaned_hand_offs.push((shard, row.clone()));
            }
        }
    }

    /// Which host the strategy gives each of a plan's shards without an owner.
    fn allocate(&mut self, plan: &plan::AllocationPlan) -> BTreeMap<ShardId, usize> {
        let moves = self.strategy.allocate(&plan.view);
        let moves = self.validate_moves(plan, moves, MoveKind::Allocate);
        moves.into_iter().map(|step| (step.shard, step.to)).collect()
    }

    /// Those of the strategy's moves that can be made. Each kind of wrong one is noted once a term.
    fn validate_moves(
        &mut self,
        plan: &plan::AllocationPlan,
        proposed: Vec<Move>,
        asked: MoveKind,
    ) -> Vec<Move> {
        let (moves, wrong) = assign::filter_valid_moves(&plan.view, proposed, asked);
        let Some(manager) = &mut self.manager else { return moves };
        for (why, moves) in wrong {
            if manager.notified_rejected_moves.insert(why) {
                let strategy = self.strategy.name().to_owned();
                self.actions.push_back(Action::Notify(Notice::MovesRejected {
                    strategy,
                    moves,
                    reason: why,
                }));
            }
        }
        moves
    }

    /// A plan in which these shards have no owner; other hand-offs under way count where they go.
    fn plan(&mut self, without: &[ShardId], seed: u64) -> Option<plan::AllocationPlan> {
        let manager = self.manager.as_mut()?;
        let members = plan::members(&self.view);
        let owners =
            manager.owner_index.refresh(&members, &manager.chunks, self.identity.shard_count);
        #[cfg(debug_assertions)]
        if owners.len() <= 16 * crate::rows::SHARDS_PER_CHUNK as usize {
            let mut anew = owners::OwnerIndex::default();
            let anew = anew.refresh(&members, &manager.chunks, self.identity.shard_count);
            assert_eq!(owners, anew, "a chunk changed, and the plan was not told");
        }
        let moving = manager.hand_offs.iter().map(|(shard, it)| (*shard, it.target.as_ref()));
        Some(plan::of(&self.view, &members, owners, moving, without, seed))
    }

    /// Hosts whose shards are to go elsewhere: they drain, or cannot run a deployed type that another host can (R24).
    fn hosts_to_evacuate(&self) -> BTreeSet<NodeId> {
        let draining = self.view.all_live().filter(|(_, row)| row.is_draining_or_leaving());
        let draining = draining.map(|(node, _)| node.clone());
        let mut nodes: BTreeSet<_> = draining.collect();
        if !self.view.unrunnable_types.is_empty()
            && !self.has_mutation(Mutation::IgnoreUnrunnableTypes)
        {
            let able: BTreeSet<_> = self.view.eligible_hosts().map(|(member, _)| member).collect();
            let unfit = self.view.unrunnable_types.keys().filter(|member| !able.contains(member));
            nodes.extend(unfit.map(|member| member.node.clone()));
        }
        nodes
    }

    /// Hands off the shards of nodes that drain, so many at once (R12, K35).
    fn drain(&mut self, now: Now) {
        let Some(manager) = &self.manager else { return };
        let room =
            self.settings.max_drain_hand_offs.saturating_sub(manager.count(HandOffReason::Drain));
        let draining = self.hosts_to_evacuate();
        if room == 0 || draining.is_empty() {
            return;
        }
        let leaving: Vec<_> = manager
            .stable_assignments()
            .filter(|(shard, row, _)| {
                row.owner.as_ref().is_some_and(|owner| draining.contains(&owner.node))
                    && row.hand_off.is_none()
                    && !manager.hand_offs.contains_key(shard)
            })
            .take(room)
            .map(|(shard, row, _)| (shard, row.clone()))
            .collect();
        if leaving.is_empty() {
            return;
        }
        let seed = self.draw();
        let without: Vec<_> = leaving.iter().map(|(shard, _)| *shard).collect();
        let Some(plan) = self.plan(&without, seed) else { return };
        let to = self.allocate(&plan);
        for (shard, row) in leaving {
            // Without anybody to take it, it stays.
            let Some(target) = to.get(&shard).and_then(|to| plan.members.get(*to)) else {
                continue;
            };
            let target = target.node.clone();
            self.begin_hand_off(now, shard, &row, Some(target), HandOffReason::Drain);
        }
    }

    /// Balances: when hosts came or went, when asked, and at each interval (S13). Not while a member cannot be
    /// reached, or none is heard, or versions are mixed: the strategy sees to that (R12, S16.2).
    fn rebalance(&mut self, now: Now) {
        let hosts: BTreeSet<_> = self.view.eligible_hosts().map(|(member, _)| member).collect();
        let away =
            self.view.all_live().any(|(node, _)| {
                self.view.lease_unchanged_for(node, now.mono, self.settings.lease)
            }) || hosts.iter().all(|member| self.view.unresponsive.contains(&member.node));
        let parallel = self.settings.max_rebalance_hand_offs;
        let Some(manager) = &mut self.manager else { return };
        if manager.last_eligible_hosts != hosts {
            manager.last_eligible_hosts = hosts;
            manager.next_rebalance_at = now.mono;
        }
        manager.unreachable.retain(|_, until| *until > now.mono);
        if now.mono < manager.next_rebalance_at {
            return;
        }
        let room = parallel.saturating_sub(manager.count(HandOffReason::Rebalance));
        let unsettled =
            manager.chunks.iter().any(|chunk| chunk.busy() || !chunk.pending.is_empty());
        if away || !manager.unreachable.is_empty() {
            manager.next_rebalance_at = now.mono + self.settings.rebalance_retry_interval;
            return;
        }
        if room == 0 || unsettled {
            return;
        }
        let seed = self.draw();
        let Some(plan) = self.plan(&[], seed) else { return };
        let steps = self.strategy.rebalance(&plan.view, room);
        let steps = self.validate_moves(&plan, steps, MoveKind::Rebalance(room));
        if steps.is_empty() {
            let soon = self.settings.renew_interval / 4;
            if let Some(manager) = &mut self.manager {
                let wait = match manager.hand_offs.is_empty() {
                    true => self.settings.rebalance_interval,
                    false => soon,
                };
                manager.next_rebalance_at = now.mono + wait;
            }
            return;
        }
        for step in steps {
            let Some(target) = plan.members.get(step.to).map(|member| member.node.clone()) else {
                continue;
            };
            let settled =
                self.manager.as_ref().and_then(|manager| manager.stable_assignment(step.shard));
            let Some(row) = settled.map(|(row, _)| row.clone()) else { continue };
            self.begin_hand_off(now, step.shard, &row, Some(target), HandOffReason::Rebalance);
        }
    }
}
