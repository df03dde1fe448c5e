//! Strategies in which the hosts' names alone determine each shard's preferred host.
//!
//! Two managers make the same decisions without exchanging messages, and shards need not be counted. The price is more
//! moves ([`Ranges`]) or less balance ([`Rendezvous`]).

use super::random::mix;
use super::ratio::Ratio;
use super::{AllocationStrategy, AllocationView, BuiltinStrategy, Move};
use crate::ids::ShardId;

/// Contiguous ranges of shards, one for each host, in the order of the nodes' names (E5).
///
/// The ranges differ by at most one shard, or are in proportion to the hosts' weights. But adding a node moves about half of all shards, because every range
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
/// 50 and some with 80. A host's weight makes it preferred proportionally more often. The time to compute a plan is
/// proportional to shards times hosts.
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
            let home = home(shard).filter(|to| *to != owner && !view.hosts[*to].paused);
            home.map(|to| Move { shard, to })
        })
        .take(limit)
        .collect()
}

fn ranges(view: &AllocationView) -> impl Fn(ShardId) -> Option<usize> {
    let mut hosts: Vec<usize> = view.latest().collect();
    hosts.sort_unstable_by_key(|host| &view.hosts[*host].node);
    // The sum of the weights up to and including each host.
    let ends: Vec<u64> = hosts
        .iter()
        .scan(0, |sum, host| {
            *sum += view.weight(*host);
            Some(*sum)
        })
        .collect();
    let all = u128::from(ends.last().copied().unwrap_or(0));
    let shards = view.shards.len() as u128;
    move |shard| {
        let position = u128::from(shard.0.saturating_sub(1)) * all / shards.max(1);
        let range = ends.partition_point(|end| u128::from(*end) <= position);
        hosts.get(range).copied()
    }
}

fn rendezvous(view: &AllocationView) -> impl Fn(ShardId) -> Option<usize> {
    // Hash each name once per plan, not once per shard: 1,000 hosts times 4,096 shards would be expensive.
    let hosts: Vec<(u64, u64, usize)> = view
        .latest()
        .map(|host| {
            let name = blake3::hash(view.hosts[host].node.0.as_bytes());
            let first = name.as_bytes().first_chunk().copied().unwrap_or_default();
            (u64::from_le_bytes(first), view.weight(host), host)
        })
        .collect();
    let of_one_weight = hosts.windows(2).all(|pair| pair[0].1 == pair[1].1);
    move |shard| {
        let key = mix(u64::from(shard.0));
        let drawn = |name: u64| mix(name ^ key);
        let found = match of_one_weight {
            true => hosts.iter().max_by_key(|(name, ..)| drawn(*name)),
            // The weighted form of the method: the highest `weight / -log(x)`, where x is uniform between 0 and 1.
            false => hosts.iter().min_by_key(|(name, weight, _)| {
                (Ratio::new(minus_log2(drawn(*name)), *weight), std::cmp::Reverse(drawn(*name)))
            }),
        };
        found.map(|(.., host)| *host)
    }
}

/// Binary digits of [`minus_log2`] behind the point.
const LOG_DIGITS: u32 = 24;

/// `-log2(value / 2^64)`, rounded up, in units of `2^-24`. In integers, so that every machine gets the same result.
fn minus_log2(value: u64) -> u64 {
    let value = value.max(1);
    let zeros = value.leading_zeros();
    // Between 1 and 2, with 63 digits behind the point.
    let mut rest = value << zeros;
    let mut log = u64::from(63 - zeros);
    for _ in 0..LOG_DIGITS {
        // Squaring doubles the logarithm: its next digit is 1 if the square is 2 or more.
        let square = u128::from(rest) * u128::from(rest);
        let digit = square >> 127;
        log = log << 1 | digit as u64;
        rest = (square >> (63 + digit)) as u64;
    }
    (64 << LOG_DIGITS) - log
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logarithms_are_exact_to_their_last_digit() {
        for value in [1, 2, 3, 1_000, 1 << 32, u64::MAX / 3, u64::MAX - 1, u64::MAX] {
            let exact = (64.0 - (value as f64).log2()) * f64::from(1 << LOG_DIGITS);
            let off = (minus_log2(value) as f64 - exact).abs();
            assert!(off <= 1.0, "{value}: off by {off}");
        }
        assert_eq!(minus_log2(0), minus_log2(1));
    }
}
