//! Shards that their owner does not serve in time (K14).
//!
//! A node reports each shard that it holds, and whether it serves it. Between the two, the shard's claim must be granted.
//! If that takes longer than `shard_start_timeout`, the shard is handed off to another host of its pool, if there is one.
//! The host that was late gets no shard that others can own for a while: balancing would give it the shard back.
//!
//! Confusing at first: the store may be slow for everybody, and then no move helps. So the time doubles with each move of
//! the same shard, until it is served, and the pause of a host doubles each time that it is late. The manager counts in
//! memory: its successor starts again.

use super::hand_offs::HandOffReason;
use super::{
    Action, BTreeMap, BTreeSet, Context, Epoch, Manager, Member, Mutation, NodeId, Notice,
    ObservedCluster, ShardId, Term,
};
#[cfg(any(test, feature = "testing"))]
use crate::node::Canonicalizer;

/// A time is doubled at most this many times.
const DOUBLINGS: u32 = 5;
/// How long a host gets no other shards after it was late for the first time, as a multiple of the timeout.
const PAUSE: u64 = 3;

/// The shards that are not served yet, and the hosts that were late.
#[derive(Clone, Debug, Default)]
#[cfg_attr(any(test, feature = "testing"), derive(Hash))]
pub(super) struct LateStarts {
    shards: BTreeMap<ShardId, Starting>,
    hosts: BTreeMap<NodeId, LateHost>,
}

#[derive(Clone, Copy, Debug)]
#[cfg_attr(any(test, feature = "testing"), derive(Hash))]
struct Starting {
    epoch: Epoch,
    /// When it is late.
    deadline: u64,
    /// How often it has moved for being late.
    moves: u32,
}

#[derive(Clone, Copy, Debug)]
#[cfg_attr(any(test, feature = "testing"), derive(Hash))]
struct LateHost {
    until: u64,
    times: u32,
}

impl LateStarts {
    /// The hosts that get no shards that others can own.
    pub(super) fn late_hosts(&self, now: u64) -> BTreeSet<NodeId> {
        let late = self.hosts.iter().filter(|(_, host)| now < host.until);
        late.map(|(node, _)| node.clone()).collect()
    }

    fn host_was_late(&mut self, node: NodeId, now: u64, timeout: u64) {
        let host = self.hosts.entry(node).or_insert(LateHost { until: now, times: 0 });
        // Its other shards, which are late at the same time, say nothing new.
        if now >= host.until {
            host.until = now + ((PAUSE * timeout) << host.times.min(DOUBLINGS));
            host.times += 1;
        }
    }

    #[cfg(any(test, feature = "testing"))]
    pub(super) fn canonicalize(&mut self, to: &dyn Canonicalizer) {
        for starting in self.shards.values_mut() {
            starting.deadline = to.map_deadline(starting.deadline);
        }
        for host in self.hosts.values_mut() {
            host.until = to.map_deadline(host.until);
        }
    }
}

impl Term {
    /// The shards that their owners hold and do not serve, as far as reports and rows agree: owner, shard, epoch.
    fn starting_shards(&self) -> Vec<(Member, ShardId, Epoch)> {
        let mut found = Vec::new();
        for (node, report) in &self.reports {
            let from = Member { node: node.clone(), incarnation: report.incarnation };
            for held in report.shards.iter().filter(|held| !held.serving) {
                let Some((row, _)) = self.stable_assignment(held.shard) else { continue };
                if row.owner.as_ref() == Some(&from) && row.epoch == held.epoch {
                    found.push((from.clone(), held.shard, held.epoch));
                }
            }
        }
        found
    }
}

impl Manager {
    /// Hands off shards that their owners have not served for too long.
    pub(in super::super) fn move_late_shards(
        &mut self,
        context: &mut Context,
        observed: &ObservedCluster,
    ) {
        let Some(term) = &mut self.term else { return };
        let mut late = std::mem::take(&mut term.late_starts);
        let starting = term.starting_shards();
        let known: BTreeSet<_> = starting.iter().map(|(_, shard, _)| *shard).collect();
        late.shards.retain(|shard, _| known.contains(shard) || !term.is_served_by_owner(*shard));
        let timeout = context.settings.shard_start_timeout;
        for (owner, shard, epoch) in starting {
            let new = Starting { epoch, deadline: context.mono() + timeout, moves: 0 };
            let starting = late.shards.entry(shard).or_insert(new);
            if starting.epoch != epoch {
                let longer = timeout << starting.moves.min(DOUBLINGS);
                *starting = Starting { epoch, deadline: context.mono() + longer, ..*starting };
            }
            let is_late = context.mono() >= starting.deadline;
            if is_late && self.move_late_shard(context, observed, &owner, shard) {
                starting.moves += 1;
                late.host_was_late(owner.node, context.mono(), timeout);
            }
        }
        if let Some(term) = &mut self.term {
            term.late_starts = late;
        }
    }

    /// Returns whether a late shard is being handed off. It stays where it is if no other host can have it, if too many
    /// move already, or if its data is being moved: its next owner would only continue that (R26).
    fn move_late_shard(
        &mut self,
        context: &mut Context,
        observed: &ObservedCluster,
        owner: &Member,
        shard: ShardId,
    ) -> bool {
        let Some(term) = &self.term else { return false };
        let Some((row, _)) = term.stable_assignment(shard) else { return false };
        let moves = row.hand_off.is_some() || term.hand_offs.contains_key(&shard);
        let room = context.settings.max_rebalance_hand_offs;
        if moves
            || term.relocations.concern(shard)
            || term.count(HandOffReason::LateStart) >= room
            || context.has_mutation(Mutation::IgnoreLateStarts)
        {
            return false;
        }
        let row = row.clone();
        let target = context.identity.pools.of(shard);
        let target = target.and_then(|pool| self.least_loaded_other_host(observed, pool, owner));
        let Some(target) = target else { return false };
        let (owner, to) = (owner.clone(), target.clone());
        context.push(Action::Notify(Notice::ShardStartedLate { shard, owner, target: to }));
        self.begin_hand_off(context, observed, shard, &row, target, HandOffReason::LateStart);
        true
    }
}
