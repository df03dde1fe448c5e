//! The strategy that spreads measured load instead of counting shards (section "heavy and light": A4).
//!
//! Confusing at first: loads are measured, so they are never quite what they were. Nothing moves while every host is
//! within a tolerance of the average, and a host that gets a shard must still have clearly less than the one that gives
//! it had. So small changes move nothing, and two hosts never pass a shard to and fro.
//!
//! It comes to rest under any constant load. The busiest host that can improve gives a shard away, and both hosts have
//! less than it had afterwards: sorted from the highest to the lowest, the hosts' loads become smaller with each move.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::ratio::Ratio;
use super::{AllocationStrategy, AllocationView, BuiltinStrategy, Move};
use crate::ids::ShardId;

/// Hosts have about the same load in proportion to their weights, as far as shards can be divided: the shard is the
/// smallest unit of movement (A4). Shards without a measured load count as idle, and are spread evenly.
///
/// Nothing is balanced before every host has said what the loads of its shards are. The time to compute a plan is
/// proportional to the shards, and to the hosts for each move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeasuredLoad {
    tolerance: u32,
}

impl MeasuredLoad {
    /// By how many percent of the average a host's load may differ from it. The default is 20; 0 counts as 1.
    #[must_use]
    pub const fn new(tolerance: u32) -> Self {
        Self { tolerance }
    }

    /// By how many percent of the average a host's load may differ from it.
    #[must_use]
    pub const fn tolerance(self) -> u32 {
        self.tolerance
    }
}

impl Default for MeasuredLoad {
    fn default() -> Self {
        Self::new(20)
    }
}

/// The load of a shard. An idle one has some too, so that idle shards are spread as well.
fn cost(view: &AllocationView, shard: ShardId) -> u64 {
    let load = view.shards.get(shard.0 as usize - 1).map_or(0, |place| place.load);
    u64::from(load) + 1
}

/// Each host's load.
fn loads(view: &AllocationView) -> Vec<u64> {
    let mut loads = vec![0; view.hosts.len()];
    for (shard, owner, _) in view.each() {
        if let Some(owner) = owner {
            loads[owner] += cost(view, shard);
        }
    }
    loads
}

/// Gives the unassigned shards with the highest load first, each to the host with the least load then. Also returns
/// each host's load afterwards.
fn allocate(view: &AllocationView) -> (Vec<Move>, Vec<u64>) {
    let mut loads = loads(view);
    let mut shards: Vec<_> = view.unassigned().collect();
    shards.sort_by_key(|shard| Reverse(cost(view, *shard)));
    let receivers: Vec<_> = view.receivers().collect();
    let mut moves = Vec::new();
    for shard in shards {
        let cost = cost(view, shard);
        let least = receivers.iter().min_by_key(|host| view.ratio(**host, loads[**host] + cost));
        let Some(to) = least.copied() else { break };
        loads[to] += cost;
        moves.push(Move { shard, to });
    }
    (moves, loads)
}

impl AllocationStrategy for MeasuredLoad {
    fn name(&self) -> &'static str {
        BuiltinStrategy::Load.name()
    }

    fn allocate(&self, view: &AllocationView) -> Vec<Move> {
        allocate(view).0
    }

    fn rebalance(&self, view: &AllocationView, limit: usize) -> Vec<Move> {
        let mut moves = Vec::new();
        if view.hosts.is_empty() || !view.one_version() || !view.measured {
            return moves; // S16.2
        }
        // Unassigned shards come first (S16.3): the loads already include them.
        let (_, mut loads) = allocate(view);
        let mut shards = vec![BTreeSet::new(); view.hosts.len()];
        for (shard, owner) in view.movable() {
            shards[owner].insert((cost(view, shard), shard));
        }
        // A paused host neither gives nor gets shards, so its own do not count.
        let hosts: Vec<_> = view.receivers().collect();
        let weights: u64 = hosts.iter().map(|host| view.weight(*host)).sum();
        let all: u64 = hosts.iter().map(|host| loads[*host]).sum();
        let percent = u64::from(self.tolerance.max(1));
        let average = |of: u64| Ratio::new(all.saturating_mul(of), weights.saturating_mul(100));
        let (low, high) = (average(100 - percent.min(100)), average(100 + percent));
        // Hosts that cannot improve anything: what they could give is too much for the host with the least load.
        let mut stuck = BTreeSet::new();
        while moves.len() < limit {
            let of = |host: &usize| view.ratio(*host, loads[*host]);
            if hosts.iter().all(|host| (low..=high).contains(&of(host))) {
                break;
            }
            // Of hosts with equally little, the heaviest has less than others after a move.
            let rank = |host: &usize| (of(host), Reverse(view.weight(*host)), *host);
            let least = hosts.iter().copied().min_by_key(rank);
            let most = hosts.iter().copied().filter(|host| !stuck.contains(host));
            let most = most.max_by_key(|host| (of(host), Reverse(*host)));
            let (Some(from), Some(to)) = (most, least.filter(|to| Some(*to) != most)) else {
                break;
            };
            let Some(found) = best_move(view, &loads, from, to, &shards[from], percent) else {
                stuck.insert(from);
                continue;
            };
            shards[from].remove(&found);
            let (cost, shard) = found;
            loads[from] -= cost;
            loads[to] += cost;
            moves.push(Move { shard, to });
        }
        moves
    }
}

/// The shard of a host with which the busier of the two has the least load after the move. The target must then have less
/// than the host has now, by half of the tolerated percentage.
fn best_move(
    view: &AllocationView,
    loads: &[u64],
    from: usize,
    to: usize,
    shards: &BTreeSet<(u64, ShardId)>,
    percent: u64,
) -> Option<(u64, ShardId)> {
    let after = |cost: u64| {
        view.ratio(from, loads[from] - cost).max(view.ratio(to, loads[to].saturating_add(cost)))
    };
    let (heavy, light) = (u128::from(view.weight(from)), u128::from(view.weight(to)));
    let (has, gets) = (u128::from(loads[from]), u128::from(loads[to]));
    // What the target may have: `has * (1 - percent / 200)`, in proportion to the weights.
    let damped = has * u128::from(200 - percent.min(199)) * light / (heavy * 200);
    let most = u64::try_from(damped.checked_sub(gets)?).unwrap_or(u64::MAX);
    // With this cost, both would have the same: the best shard is the next one above it or below it that fits.
    let even = (has * light).saturating_sub(gets * heavy).div_ceil(heavy + light);
    let even = u64::try_from(even).unwrap_or(u64::MAX);
    let above = shards.range((even, ShardId(0))..).next().filter(|(cost, _)| *cost <= most);
    let below = shards.range(..(even.min(most.saturating_add(1)), ShardId(0))).next_back();
    above.into_iter().chain(below).copied().min_by_key(|(cost, shard)| (after(*cost), *shard))
}
