//! Shards that their owner does not serve in time (K14).
//!
//! A node reports each shard that it holds, and whether it serves it. Between the two, the shard's claim must be granted.
//! If that takes longer than `shard_start_timeout`, the shard is handed off to another host of its pool, if there is one
//! that was not late itself. The host that was late keeps what it serves, but gets no other shards for a while:
//! balancing would give it the shard back. Then it gets one shard on trial, and no more before it serves that.
//!
//! Confusing at first: the store may be slow for everybody, and then no move helps. So the time doubles with each move of
//! the same shard, until it is served, and the pause of a host doubles each time that it is late in a row. Where all hosts
//! were late, nothing moves. A shard whose state is being copied to another database is late by design (R26): each move would
//! begin the copy anew. The manager counts in memory: its successor starts again.

use std::collections::btree_map::Entry;

use super::hand_offs::HandOffReason;
use super::{
    Action, BTreeMap, BTreeSet, Context, Epoch, Manager, Member, Mutation, NodeReport, Notice,
    ObservedCluster, ShardId, Term,
};
use crate::assign::Ratio;
#[cfg(any(test, feature = "testing"))]
use crate::node::Canonicalizer;
use crate::pools::Pool;

/// A time is doubled at most this many times.
const DOUBLINGS: u32 = 5;
/// How long a host gets no other shards after it was late for the first time, as a multiple of the timeout.
const PAUSE: u64 = 3;

/// The shards that are not served yet, and the hosts that were late.
#[derive(Clone, Debug, Default)]
#[cfg_attr(any(test, feature = "testing"), derive(Hash))]
pub(super) struct LateStarts {
    shards: BTreeMap<ShardId, Starting>,
    hosts: BTreeMap<Member, LateHost>,
    /// Shards that their owners stop: they were served in this epoch, so they are not late starts.
    stopping: BTreeMap<ShardId, Epoch>,
    /// When to look again: no deadline passes in between that matters.
    next_check_at: u64,
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
    /// Until when it gets no other shards.
    until: u64,
    /// Until when it is remembered that it was late, if it gets no shard on trial.
    remembered_until: u64,
    /// How often it was late since it last served a shard that it had been given.
    times: u32,
    /// The shard that it was given after its pause.
    trial: Option<ShardId>,
}

impl LateStarts {
    /// The hosts that were late and have not shown since that they can serve a shard: they get none that others can have,
    /// apart from one on trial.
    pub(super) fn hosts(&self) -> BTreeSet<Member> {
        self.hosts.keys().cloned().collect()
    }

    fn is_late(&self, member: &Member) -> bool {
        self.hosts.contains_key(member)
    }

    /// Whether a host may get a shard on trial now.
    fn may_be_tried(&self, member: &Member, now: u64) -> bool {
        self.hosts.get(member).is_some_and(|host| now >= host.until && host.trial.is_none())
    }

    /// Whether a host gets no shards now.
    pub(super) fn is_paused(&self, member: &Member, now: u64) -> bool {
        self.is_late(member) && !self.may_be_tried(member, now)
    }

    /// A shard begins to move to a host.
    pub(super) fn on_move(&mut self, member: &Member, shard: ShardId) {
        if let Some(host) = self.hosts.get_mut(member) {
            host.trial = Some(shard);
        }
    }

    /// Treats every shard as having just been given to its owner.
    pub(super) fn restart(&mut self, context: &Context) {
        for starting in self.shards.values_mut() {
            let earliest = context.mono() + timeout(context, starting.moves);
            starting.deadline = starting.deadline.max(earliest);
        }
    }

    fn host_was_late(&mut self, context: &Context, member: Member) {
        let now = context.mono();
        let new = LateHost { until: now, remembered_until: now, times: 0, trial: None };
        let host = self.hosts.entry(member).or_insert(new);
        // Its other shards, which are late at the same time, say nothing new.
        if now >= host.until {
            let pause = PAUSE * timeout(context, host.times);
            host.until = now + pause;
            host.remembered_until = now + 2 * pause;
            host.times += 1;
            host.trial = None;
        }
    }

    /// A host has reported what it holds. What it served before and does not serve now, it stops.
    pub(super) fn on_report(&mut self, old: Option<&NodeReport>, new: &NodeReport) {
        let old = old.filter(|old| old.incarnation == new.incarnation);
        for held in &new.shards {
            let key = (held.shard, held.epoch);
            let before = old.and_then(|old| {
                let at = old.shards.binary_search_by_key(&key, |it| (it.shard, it.epoch)).ok()?;
                old.shards.get(at)
            });
            if !held.serving && before.is_some_and(|before| before.serving) {
                self.stopping.insert(held.shard, held.epoch);
            }
        }
    }

    #[cfg(any(test, feature = "testing"))]
    pub(super) fn canonicalize(&mut self, to: &dyn Canonicalizer) {
        self.next_check_at = to.map_deadline(self.next_check_at);
        self.shards.retain(|_, starting| !to.never(starting.deadline));
        // Where no start is ever late, the recorded stops decide nothing.
        if self.shards.is_empty() && self.hosts.is_empty() {
            self.stopping.clear();
        }
        for starting in self.shards.values_mut() {
            starting.deadline = to.map_deadline(starting.deadline);
        }
        for host in self.hosts.values_mut() {
            host.until = to.map_deadline(host.until);
            host.remembered_until = to.map_deadline(host.remembered_until);
        }
    }
}

/// How long the owner of a shard may take that has moved this often for being late.
fn timeout(context: &Context, moves: u32) -> u64 {
    context.settings.shard_start_timeout.saturating_mul(1 << moves.min(DOUBLINGS))
}

/// The hosts of a pool that can take late shards (S16.5), each with the number of its shards and its weight.
type Hosts = BTreeMap<Member, (u64, u32)>;

/// What became of a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trial {
    Runs,
    /// The host serves the shard.
    Passed,
    /// The shard did not get to the host, or has left it.
    Ended,
}

impl Term {
    fn trial(&self, host: &Member, shard: ShardId) -> Trial {
        let Some((row, _)) = self.stable_assignment(shard) else { return Trial::Runs };
        match row.owner.as_ref() == Some(host) {
            true if self.is_served_by_owner(shard) => Trial::Passed,
            true => Trial::Runs,
            false if self.hand_offs.contains_key(&shard) || row.hand_off.is_some() => Trial::Runs,
            false => Trial::Ended,
        }
    }

    /// The shards that their owners hold and do not serve, as far as reports and rows agree. Only of owners that report:
    /// what another one serves is not known.
    fn starting_shards(&self, observed: &ObservedCluster) -> Vec<(Member, ShardId, Epoch)> {
        let mut found = Vec::new();
        for (node, report) in &self.reports {
            let from = Member { node: node.clone(), incarnation: report.incarnation };
            if observed.is_unresponsive(node) || !observed.alive(&from) {
                continue;
            }
            for held in report.shards.iter().filter(|held| !held.serving) {
                let Some((row, _)) = self.stable_assignment(held.shard) else { continue };
                let moves = row.hand_off.is_some() || self.hand_offs.contains_key(&held.shard);
                if row.owner.as_ref() == Some(&from) && row.epoch == held.epoch && !moves {
                    found.push((from.clone(), held.shard, held.epoch));
                }
            }
        }
        found
    }

    fn hosts_for_late_shards(
        &self,
        observed: &ObservedCluster,
        pool: &Pool,
        late: &BTreeSet<Member>,
    ) -> Hosts {
        let able = observed.newest_hosts(pool).filter(|(member, _)| {
            !late.contains(member) && !observed.is_unresponsive(&member.node)
        });
        let mut hosts: Hosts = able.map(|(member, row)| (member, (0, row.weight()))).collect();
        for (_, row, _) in self.stable_assignments() {
            if let Some((count, _)) = row.owner.as_ref().and_then(|owner| hosts.get_mut(owner)) {
                *count += 1;
            }
        }
        hosts
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
        let now = context.mono();
        if now < term.late_starts.next_check_at {
            return;
        }
        let mut late = std::mem::take(&mut term.late_starts);
        late.next_check_at = now + context.settings.tick_interval();
        late.hosts.retain(|member, host| {
            let trial = host.trial.map(|shard| term.trial(member, shard));
            if trial == Some(Trial::Ended) {
                host.trial = None;
            }
            let is_past = host.trial.is_none() && now >= host.remembered_until;
            observed.alive(member) && trial != Some(Trial::Passed) && !is_past
        });
        late.stopping.retain(|shard, epoch| {
            term.stable_assignment(*shard).is_none_or(|(row, _)| row.epoch == *epoch)
        });
        let is_copied = |shard: ShardId| {
            self.moving_state.is_some_and(|(first, last)| (first..=last).contains(&shard))
        };
        let mut starting = term.starting_shards(observed);
        starting.retain(|(_, shard, epoch)| {
            !is_copied(*shard)
                && !term.relocations.concern(*shard)
                && late.stopping.get(shard) != Some(epoch)
        });
        let known: BTreeSet<_> = starting.iter().map(|(_, shard, _)| *shard).collect();
        late.shards.retain(|shard, _| {
            known.contains(shard) || (!is_copied(*shard) && !term.is_served_by_owner(*shard))
        });
        let mut hosts: BTreeMap<ShardId, Hosts> = BTreeMap::new();
        for (owner, shard, epoch) in starting {
            let new = Starting { epoch, deadline: now + timeout(context, 0), moves: 0 };
            let starting = late.shards.entry(shard).or_insert(new);
            if starting.epoch != epoch {
                let deadline = now + timeout(context, starting.moves);
                *starting = Starting { epoch, deadline, ..*starting };
            }
            let Some(pool) = context.identity.pools.of(shard).filter(|_| now >= starting.deadline)
            else {
                continue;
            };
            let (pool, moves) = (pool.clone(), starting.moves);
            let hosts = match hosts.entry(pool.first) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(place) => {
                    let Some(term) = &self.term else { break };
                    place.insert(term.hosts_for_late_shards(observed, &pool, &late.hosts()))
                }
            };
            if self.move_late_shard(context, observed, &owner, shard, hosts) {
                // If the owner does not stop it in time, the hand-off is abandoned, and the shard stays.
                let deadline =
                    now + context.settings.hand_off_timeout + timeout(context, moves + 1);
                late.shards.insert(shard, Starting { epoch, deadline, moves: moves + 1 });
                hosts.remove(&owner);
                late.host_was_late(context, owner);
            }
        }
        if let Some(term) = &mut self.term {
            term.late_starts = late;
        }
    }

    /// Returns whether a late shard is being handed off. It stays where it is if no other host can have it, or if too
    /// many move already.
    fn move_late_shard(
        &mut self,
        context: &mut Context,
        observed: &ObservedCluster,
        owner: &Member,
        shard: ShardId,
        hosts: &mut Hosts,
    ) -> bool {
        let Some(term) = &self.term else { return false };
        let Some((row, _)) = term.stable_assignment(shard) else { return false };
        let moves = row.hand_off.is_some() || term.hand_offs.contains_key(&shard);
        let room = context.settings.max_rebalance_hand_offs;
        if moves
            || term.count(HandOffReason::LateStart) >= room
            || context.has_mutation(Mutation::IgnoreLateStarts)
        {
            return false;
        }
        let others = hosts.iter_mut().filter(|(host, _)| *host != owner);
        let least =
            others.min_by_key(|(_, (count, weight))| Ratio::new(*count + 1, (*weight).into()));
        let Some((target, (count, _))) = least else { return false };
        *count += 1;
        let (row, target) = (row.clone(), target.node.clone());
        let (owner, to) = (owner.clone(), target.clone());
        context.push(Action::Notify(Notice::ShardStartedLate { shard, owner, target: to }));
        self.begin_hand_off(context, observed, shard, &row, target, HandOffReason::LateStart);
        true
    }
}
