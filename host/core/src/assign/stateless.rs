//! The strategy of pools without a manager: each host computes its own range of shards (E3, E5).

use std::ops::Range;

use super::{AllocationStrategy, AllocationView, BuiltinStrategy, Move, Ranges};

/// The hosts divide the pool's shards into contiguous ranges of equal width, in the order of the numbers that they have
/// taken (E3, E5). No manager is needed, and none is asked: each host computes its own range with
/// [`contiguous_range`].
///
/// The price is the same as that of [`Ranges`]: one host more moves half of all shards. Weights, versions and loads do
/// not count.
///
/// As an [`AllocationStrategy`], which no manager uses for such a pool, it does what [`Ranges`] does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stateless;

impl AllocationStrategy for Stateless {
    fn name(&self) -> &'static str {
        BuiltinStrategy::Stateless.name()
    }

    fn allocate(&self, view: &AllocationView) -> Vec<Move> {
        Ranges.allocate(view)
    }

    fn rebalance(&self, view: &AllocationView, limit: usize) -> Vec<Move> {
        Ranges.rebalance(view, limit)
    }
}

/// The shards of the host at `place` among `hosts`, both counted from 0, of a pool with this many shards. The ranges of
/// all hosts are disjoint, contiguous in the order of their places, contain every shard, and differ by at most one shard.
#[must_use]
pub fn contiguous_range(place: usize, hosts: usize, shards: u32) -> Range<u32> {
    if place >= hosts {
        return 0..0;
    }
    // No product exceeds 64 bits by far: both factors have 32 bits.
    let start = |place: usize| {
        let exact = place as u128 * u128::from(shards) / hosts as u128;
        u32::try_from(exact).unwrap_or(shards)
    };
    start(place)..start(place + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn e3_ranges_are_even_contiguous_and_complete() {
        for shards in [0, 1, 7, 12, 64, 1_024, 4_096] {
            for hosts in 1..=70 {
                let ranges: Vec<_> =
                    (0..hosts).map(|place| contiguous_range(place, hosts, shards)).collect();
                assert_eq!(ranges[0].start, 0);
                assert_eq!(ranges[hosts - 1].end, shards);
                assert!(ranges.windows(2).all(|pair| pair[0].end == pair[1].start));
                let widths = ranges.iter().map(|range| range.end - range.start);
                let (least, most) = (widths.clone().min().unwrap(), widths.max().unwrap());
                assert!(most - least <= 1, "{hosts} hosts, {shards} shards");
            }
        }
        assert_eq!(contiguous_range(0, 0, 5), 0..0);
        assert_eq!(contiguous_range(3, 3, 5), 0..0, "it has no place");
        let all = contiguous_range(0, 1, u32::MAX);
        assert_eq!(all, 0..u32::MAX);
    }

    #[test]
    fn e5_one_host_more_moves_half_of_all_shards() {
        let shards = 1_024;
        let owner = |hosts: usize, shard: u32| {
            (0..hosts).position(|place| contiguous_range(place, hosts, shards).contains(&shard))
        };
        for hosts in [2, 3, 5, 16, 31] {
            let moved = (0..shards).filter(|at| owner(hosts, *at) != owner(hosts + 1, *at)).count();
            let share = moved as f64 / f64::from(shards);
            assert!((0.45..0.55).contains(&share), "{hosts} hosts: {share}");
        }
    }
}
