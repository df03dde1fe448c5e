//! What the manager decides, from sealed rows and nothing else.

use super::handoffs::Why;
use super::*;
use crate::assign::{self, Asked, Move};

/// What there is to decide.
#[derive(Debug, Default)]
struct Found {
    /// Where.
    chunks: BTreeSet<u32>,
    /// Shards that need a new owner, and the epoch that it must go above.
    needs: BTreeMap<ShardId, Epoch>,
    /// Hand-offs that nobody sees to.
    orphans: Vec<(ShardId, ShardRow)>,
    /// Owners of which nothing is known.
    strange: BTreeSet<NodeId>,
}

impl Manager {
    /// A shard's row and its revision, unless a change of it is under way.
    pub(super) fn settled(&self, shard: ShardId) -> Option<(&ShardRow, u64)> {
        let chunk = self.chunks.get(chunk_of(shard) as usize)?;
        let place = place_of(shard);
        if chunk.busy() || chunk.want.contains_key(&place) {
            return None;
        }
        let (row, revision) = chunk.base.as_ref()?;
        Some((row.shards.get(place)?, *revision))
    }

    pub(super) fn want(&mut self, shard: ShardId, row: ShardRow) {
        if let Some(chunk) = self.chunks.get_mut(chunk_of(shard) as usize) {
            chunk.want.insert(place_of(shard), row);
            self.owners.chunk_changed(chunk_of(shard));
        }
    }

    /// Every shard's row, and its row's revision, of which no change is under way.
    fn all_settled(&self) -> impl Iterator<Item = (ShardId, &ShardRow, u64)> {
        (0..self.chunks.len() as u32).flat_map(|number| self.settled_of(number))
    }

    /// The same of one chunk.
    fn settled_of(&self, number: u32) -> impl Iterator<Item = (ShardId, &ShardRow, u64)> {
        let chunk = self.chunks.get(number as usize).filter(|chunk| !chunk.busy());
        chunk.into_iter().flat_map(move |chunk| {
            let rows = chunk.base.iter().flat_map(|(base, revision)| {
                base.shards.iter().enumerate().map(|(place, row)| (place, row, *revision))
            });
            rows.filter(|(place, ..)| !chunk.want.contains_key(place))
                .map(move |(place, row, revision)| (shard_at(number, place), row, revision))
        })
    }

    fn count(&self, why: Why) -> usize {
        self.handoffs.values().filter(|hand_off| hand_off.why == why).count()
    }
}

impl Machine {
    pub(super) fn decide(&mut self, now: Now) {
        self.listen(now);
        self.bury(now);
        self.drive_hand_offs(now);
        self.place(now);
        self.drain(now);
        self.balance(now);
        self.step_down(now);
    }

    /// Marks lives whose lease lapsed as dead, each on the very row that it would renew (R7, R8).
    fn bury(&mut self, now: Now) {
        if now.mono < self.again_at {
            return;
        }
        let lapsed: Vec<_> = self
            .view
            .all_live()
            .filter(|(node, _)| {
                **node != self.identity.node
                    && self.view.lapsed(node, now.mono, self.settings.margin)
            })
            .map(|(node, _)| node.clone())
            .collect();
        for node in lapsed {
            let purpose = Purpose::Death(node.clone());
            if self.writes.values().any(|under_way| *under_way == purpose) {
                continue;
            }
            let Some((row, revision)) = self.view.nodes.get(&node).cloned() else { continue };
            let row = NodeRow { standing: Standing::Dead, ..row };
            self.write(purpose, Key::Node(node), Some(revision), Row::Node(row));
        }
    }

    /// Why a shard needs a new owner: the epoch that it must go above.
    fn above(&self, now: Now, shard: ShardId, row: &ShardRow, revision: u64) -> Option<Epoch> {
        let manager = self.manager.as_ref()?;
        let Some(owner) = &row.owner else { return Some(row.epoch) };
        let over = self.view.over(owner) == Some(true);
        if manager.stopped.get(&shard) == Some(&row.epoch) || over {
            return Some(row.epoch);
        }
        if self.off(Mutation::AssignWithoutDeath)
            && owner.node != self.identity.node
            && self.view.still(&owner.node, now.mono, self.settings.lease / 2)
        {
            return Some(row.epoch);
        }
        let report = manager.reports.get(&owner.node)?;
        if report.incarnation != owner.incarnation {
            return None;
        }
        let refused = report.refused.partition_point(|(of, at, _)| (*of, *at) < (shard, row.epoch));
        if let Some((of, at, standing)) = report.refused.get(refused)
            && (*of, *at) == (shard, row.epoch)
        {
            return Some(row.epoch.max(*standing));
        }
        let held = (shard, row.epoch);
        if report.held.binary_search_by_key(&held, |held| (held.shard, held.epoch)).is_ok() {
            return None;
        }
        // R11: silence counts only from an owner that had seen its assignment.
        let chunk = chunk_of(shard);
        let after = report.seen.partition_point(|(of, _)| *of <= chunk);
        let saw = report.seen[..after].last().is_some_and(|seen| *seen >= (chunk, revision));
        (saw && !self.off(Mutation::TrustSilence)).then_some(row.epoch)
    }

    /// Gives every shard that needs one a new owner, and finds hand-offs that nobody sees to.
    pub(super) fn place(&mut self, now: Now) {
        let by_time = self.off(Mutation::AssignWithoutDeath);
        let shards = self.identity.shards;
        let Some(manager) = &mut self.manager else { return };
        if by_time {
            manager.undecided.add_all(shards);
        }
        let undecided = std::mem::take(&mut manager.undecided);
        let mut found = Found::default();
        for number in &undecided.0 {
            self.look_into(now, *number, &mut found);
        }
        #[cfg(debug_assertions)]
        if shards <= 16 * crate::rows::CHUNK {
            let decided = (0..chunks(shards)).filter(|number| !undecided.0.contains(number));
            let mut missed = Found::default();
            decided.for_each(|number| self.look_into(now, number, &mut missed));
            assert!(missed.chunks.is_empty(), "nobody would have looked at them: {missed:?}");
        }
        let Found { chunks, needs, orphans, strange } = found;
        if let Some(manager) = &mut self.manager {
            manager.undecided = Undecided(chunks);
        }
        #[cfg(test)]
        {
            self.looks += undecided.0.len();
        }
        self.look_for(now, strange);
        for (shard, row) in orphans {
            self.adopt_hand_off(now, shard, &row);
        }
        if needs.is_empty() {
            return;
        }
        let seed = self.draw();
        let without: Vec<_> = needs.keys().copied().collect();
        let Some(plan) = self.plan(&without, seed) else { return };
        let moves = self.placements(&plan);
        let preferred = |shard: &ShardId| {
            let to = self.manager.as_ref()?.handoffs.get(shard)?.to.as_ref()?;
            plan.index(to)
        };
        let mut placed = Vec::new();
        for (shard, above) in needs {
            let to = preferred(&shard).or_else(|| moves.get(&shard).copied());
            let Some(member) = to.and_then(|to| plan.members.get(to)) else { continue };
            let epoch = if self.off(Mutation::SameEpoch) { above } else { Epoch(above.0 + 1) };
            let before = self.view.shard(shard);
            let extensions = before.map(|row| row.extensions.clone()).unwrap_or_default();
            let owner = Some(member.clone());
            placed.push((shard, ShardRow { epoch, owner, moving: None, extensions }));
        }
        let Some(manager) = &mut self.manager else { return };
        for (shard, row) in placed {
            manager.stopped.remove(&shard);
            manager.want(shard, row);
        }
    }

    /// Finds what there is to decide in a chunk. One that is being written is looked at when that is done.
    fn look_into(&self, now: Now, number: u32, found: &mut Found) {
        let Some(manager) = &self.manager else { return };
        for (shard, row, revision) in manager.settled_of(number) {
            let stranger = row.owner.as_ref().filter(|owner| self.view.over(owner).is_none());
            let above = self.above(now, shard, row, revision);
            let orphan = row.moving.is_some() && !manager.handoffs.contains_key(&shard);
            if stranger.is_some() || above.is_some() || orphan {
                found.chunks.insert(number);
            }
            found.strange.extend(stranger.map(|owner| owner.node.clone()));
            if let Some(above) = above {
                found.needs.insert(shard, above);
            } else if orphan {
                found.orphans.push((shard, row.clone()));
            }
        }
    }

    /// Which host the strategy gives each of a plan's shards without an owner.
    fn placements(&mut self, plan: &plan::Plan) -> BTreeMap<ShardId, usize> {
        let moves = self.strategy.place(&plan.view);
        let moves = self.checked(plan, moves, Asked::Place);
        moves.into_iter().map(|step| (step.shard, step.to)).collect()
    }

    /// Those of the strategy's moves that can be made. Each kind of wrong one is noted once a term.
    fn checked(&mut self, plan: &plan::Plan, proposed: Vec<Move>, asked: Asked) -> Vec<Move> {
        let (moves, wrong) = assign::checked(&plan.view, proposed, asked);
        let Some(manager) = &mut self.manager else { return moves };
        for (why, moves) in wrong {
            if manager.misproposals.insert(why) {
                let strategy = self.strategy.name().to_owned();
                self.actions.push_back(Action::Note(Notice::Misproposed { strategy, moves, why }));
            }
        }
        moves
    }

    /// A plan in which these shards have no owner; other hand-offs under way count where they go.
    fn plan(&mut self, without: &[ShardId], seed: u64) -> Option<plan::Plan> {
        let manager = self.manager.as_mut()?;
        let members = plan::members(&self.view);
        let owners = manager.owners.among(&members, &manager.chunks, self.identity.shards);
        #[cfg(debug_assertions)]
        if owners.len() <= 16 * crate::rows::CHUNK as usize {
            let mut anew = owners::Owners::default();
            let anew = anew.among(&members, &manager.chunks, self.identity.shards);
            assert_eq!(owners, anew, "a chunk changed, and the plan was not told");
        }
        let moving = manager.handoffs.iter().map(|(shard, it)| (*shard, it.to.as_ref()));
        Some(plan::of(&self.view, &members, owners, moving, without, seed))
    }

    /// Hosts whose shards are to go elsewhere: they drain, or cannot run a deployed type that another host can (R24).
    fn to_empty(&self) -> BTreeSet<NodeId> {
        let draining = self.view.all_live().filter(|(_, row)| row.is_emptied());
        let draining = draining.map(|(node, _)| node.clone());
        let mut nodes: BTreeSet<_> = draining.collect();
        if !self.view.unfit.is_empty() && !self.off(Mutation::KeepUnfit) {
            let able: BTreeSet<_> = self.view.hosts().map(|(member, _)| member).collect();
            let unfit = self.view.unfit.keys().filter(|member| !able.contains(member));
            nodes.extend(unfit.map(|member| member.node.clone()));
        }
        nodes
    }

    /// Hands off the shards of nodes that drain, so many at once (R12, K35).
    fn drain(&mut self, now: Now) {
        let Some(manager) = &self.manager else { return };
        let room = self.settings.drain_parallel.saturating_sub(manager.count(Why::Drain));
        let draining = self.to_empty();
        if room == 0 || draining.is_empty() {
            return;
        }
        let leaving: Vec<_> = manager
            .all_settled()
            .filter(|(shard, row, _)| {
                row.owner.as_ref().is_some_and(|owner| draining.contains(&owner.node))
                    && row.moving.is_none()
                    && !manager.handoffs.contains_key(shard)
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
        let to = self.placements(&plan);
        for (shard, row) in leaving {
            // Without anybody to take it, it stays.
            let Some(target) = to.get(&shard).and_then(|to| plan.members.get(*to)) else {
                continue;
            };
            let target = target.node.clone();
            self.begin_hand_off(now, shard, &row, Some(target), Why::Drain);
        }
    }

    /// Balances: when hosts came or went, when asked, and at each interval (S13). Not while a member cannot be
    /// reached, or none is heard, or versions are mixed: the strategy sees to that (R12, S16.2).
    fn balance(&mut self, now: Now) {
        let hosts: BTreeSet<_> = self.view.hosts().map(|(member, _)| member).collect();
        let away = self
            .view
            .all_live()
            .any(|(node, _)| self.view.still(node, now.mono, self.settings.lease))
            || hosts.iter().all(|member| self.view.silent.contains(&member.node));
        let parallel = self.settings.rebalance_parallel;
        let Some(manager) = &mut self.manager else { return };
        if manager.hosts != hosts {
            manager.hosts = hosts;
            manager.balance_at = now.mono;
        }
        manager.unreachable.retain(|_, until| *until > now.mono);
        if now.mono < manager.balance_at {
            return;
        }
        let room = parallel.saturating_sub(manager.count(Why::Balance));
        let unsettled = manager.chunks.iter().any(|chunk| chunk.busy() || !chunk.want.is_empty());
        if away || !manager.unreachable.is_empty() {
            manager.balance_at = now.mono + self.settings.rebalance_retry;
            return;
        }
        if room == 0 || unsettled {
            return;
        }
        let seed = self.draw();
        let Some(plan) = self.plan(&[], seed) else { return };
        let steps = self.strategy.rebalance(&plan.view, room);
        let steps = self.checked(&plan, steps, Asked::Rebalance(room));
        if steps.is_empty() {
            let soon = self.settings.renew / 4;
            if let Some(manager) = &mut self.manager {
                let wait = match manager.handoffs.is_empty() {
                    true => self.settings.rebalance_interval,
                    false => soon,
                };
                manager.balance_at = now.mono + wait;
            }
            return;
        }
        for step in steps {
            let Some(target) = plan.members.get(step.to).map(|member| member.node.clone()) else {
                continue;
            };
            let settled = self.manager.as_ref().and_then(|manager| manager.settled(step.shard));
            let Some(row) = settled.map(|(row, _)| row.clone()) else { continue };
            self.begin_hand_off(now, step.shard, &row, Some(target), Why::Balance);
        }
    }
}
