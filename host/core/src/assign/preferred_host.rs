//! Strategies in which the hosts' names alone determine each shard's preferred host.
//!
//! Two managers make the same decisions without exchanging messages, and shards need not be counted. The price is more
//! moves ([`Ranges`]) or less balance ([`Rendezvous`]).

use super::random::mix;
use super::{AllocationStrategy, AllocationView, BuiltinStrategy, Move};
use crate::ids::ShardId;

/// Contiguous ranges of shards, one for each host, in the order of the nodes' names (E5).
///
/// The ranges differ by at most one shard. But adding a node moves about half of all shards, because every range
/// shifts. Use it only for clusters whose size rarely changes, or whose shards are cheap to move.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ranges;

impl AllocationStrategy for Ranges {
    fn name(&self) -> &'static str {
        BuiltinStrategy::Ranges.name()
    }

    fn allocate(&self, view: &AllocationView) -> Vec<Move> {
        allocate_to_preferred(view, ranges(view))
    }

    fn rebalance(&self, view: &AllocationView, limit: usize) -> Vec<Move> {
        rebalance(view, limit, ranges(view))
    }
}

/// A shard's preferred host is the one whose name, hashed together with the shard's number, gives the highest
/// value.
///
/// Adding a node moves only the shards that it takes over, one in `hosts` on average; removing a node moves only that
/// node's shards. But counts vary randomly: with 1,024 shards on 16 hosts, 64 each on average, expect some hosts with
/// 50 and some with 80. The time to compute a plan is proportional to shards times hosts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rendezvous;

impl AllocationStrategy for Rendezvous {
    fn name(&self) -> &'static str {
        BuiltinStrategy::Rendezvous.name()
    }

    fn allocate(&self, view: &AllocationView) -> Vec<Move> {
        allocate_to_preferred(view, rendezvous(view))
    }

    fn rebalance(&self, view: &AllocationView, limit: usize) -> Vec<Move> {
        rebalance(view, limit, rendezvous(view))
    }
}

fn allocate_to_preferred(
    view: &AllocationView,
    preferred_host: impl Fn(ShardId) -> Option<usize>,
) -> Vec<Move> {
    view.unassigned().filter_map(|shard| Some(Move { shard, to: preferred_host(shard)? })).collect()
}

fn rebalance(
    view: &AllocationView,
    limit: usize,
    home: impl Fn(ShardId) -> Option<usize>,
) -> Vec<Move> {
    if !view.one_version() {
        return Vec::new(); // S16.2
    }
    view.movable()
        .filter_map(|(shard, owner)| {
            home(shard).filter(|to| *to != owner).map(|to| Move { shard, to })
        })
        .take(limit)
        .collect()
}

fn ranges(view: &AllocationView) -> impl Fn(ShardId) -> Option<usize> {
    let mut hosts: Vec<usize> = view.latest().collect();
    hosts.sort_unstable_by_key(|host| &view.hosts[*host].node);
    let shards = view.shards.len() as u128;
    move |shard| {
        let range = u128::from(shard.0.saturating_sub(1)) * hosts.len() as u128 / shards.max(1);
        hosts.get(usize::try_from(range).ok()?).copied()
    }
}

fn rendezvous(view: &AllocationView) -> impl Fn(ShardId) -> Option<usize> {
    // Hash each name once per plan, not once per shard: 1,000 hosts times 4,096 shards would be expensive.
    let hosts: Vec<(u64, usize)> = view
        .latest()
        .map(|host| {
            let name = blake3::hash(view.hosts[host].node.0.as_bytes());
            let first = name.as_bytes().first_chunk().copied().unwrap_or_default();
            (u64::from_le_bytes(first), host)
        })
        .collect();
    move |shard| {
        let key = mix(u64::from(shard.0));
        hosts.iter().max_by_key(|(name, _)| mix(name ^ key)).map(|(_, host)| *host)
    }
}
