//! Which store has which shards.

use ostraca_core::ids::ShardId;

/// Which store has the state of which shards of a pool, and the move that is in progress.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardMap {
    /// Raised by each move that begins; a map with a lower one is older.
    pub version: u64,
    /// The first shard of each range, and the store's id, in ascending order. The first range begins at 0 or 1.
    pub ranges: Vec<(u32, u128)>,
    /// The move in progress.
    pub moving: Option<RangeMove>,
}

/// A range of shards that moves to another store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RangeMove {
    /// The first shard.
    pub first: u32,
    /// The last shard.
    pub last: u32,
    /// The id of the store that gets them.
    pub to: u128,
}

/// Where a shard is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The store that has it, or had it before the move.
    pub store: u128,
    /// The store that gets it, if it is to be moved.
    pub moves_to: Option<u128>,
}

impl Place {
    /// Whether the shard can be in this store.
    #[must_use]
    pub fn names(self, store: u128) -> bool {
        self.store == store || self.moves_to == Some(store)
    }
}

impl ShardMap {
    /// Where a shard is; `None` if the map does not say.
    #[must_use]
    pub fn place(&self, shard: ShardId) -> Option<Place> {
        let behind = self.ranges.partition_point(|(first, _)| *first <= shard.0);
        let (_, store) = *self.ranges.get(behind.checked_sub(1)?)?;
        let moving = self.moving.filter(|moving| (moving.first..=moving.last).contains(&shard.0));
        let moves_to = moving.map(|moving| moving.to).filter(|to| *to != store);
        Some(Place { store, moves_to })
    }

    /// The ids of the stores that have shards or get some. One can be named several times.
    pub fn stores(&self) -> impl Iterator<Item = u128> + '_ {
        let moving = self.moving.iter().map(|moving| moving.to);
        self.ranges.iter().map(|(_, store)| *store).chain(moving)
    }

    /// The ranges when the move in progress has ended.
    #[must_use]
    pub fn ranges_after(&self) -> Vec<(u32, u128)> {
        let Some(RangeMove { first, last, to }) = self.moving else { return self.ranges.clone() };
        // Shards are numbered from 1, so nothing is before shard 1.
        let first = if first == 1 { 0 } else { first };
        let behind = self.place(ShardId(last.saturating_add(1))).map(|place| place.store);
        let mut ranges: Vec<_> =
            self.ranges.iter().copied().filter(|(at, _)| *at < first || *at > last).collect();
        ranges.push((first, to));
        if let (Some(store), Some(next)) = (behind, last.checked_add(1))
            && !ranges.iter().any(|(at, _)| *at == next)
        {
            ranges.push((next, store));
        }
        ranges.sort_unstable();
        ranges.dedup_by_key(|(_, store)| *store);
        ranges
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(ranges: &[(u32, u128)], moving: Option<(u32, u32, u128)>) -> ShardMap {
        let moving = moving.map(|(first, last, to)| RangeMove { first, last, to });
        ShardMap { version: 1, ranges: ranges.to_vec(), moving }
    }

    #[test]
    fn a_shard_is_in_the_range_that_begins_at_or_before_it() {
        let map = map(&[(0, 1), (10, 2), (20, 1)], Some((5, 12, 2)));
        let place = |shard| map.place(ShardId(shard)).expect("a place");
        let at = |store, moves_to| Place { store, moves_to };
        assert_eq!([place(1), place(4)], [at(1, None); 2]);
        assert_eq!([place(5), place(9)], [at(1, Some(2)); 2]);
        assert_eq!([place(10), place(12), place(19)], [at(2, None); 3], "it is there already");
        assert_eq!([place(20), place(u32::MAX)], [at(1, None); 2]);
        assert_eq!(super::ShardMap { ranges: vec![], ..map }.place(ShardId(1)), None);
    }

    fn wanted(place: Place) -> u128 {
        place.moves_to.unwrap_or(place.store)
    }

    #[test]
    fn every_shard_is_after_a_move_where_it_was_to_go() {
        for ranges in [&[(0, 1)][..], &[(0, 1), (10, 2)], &[(0, 1), (3, 2), (4, 3), (9, 1)]] {
            for (first, last) in [(1, 1), (1, 30), (3, 3), (4, 9), (2, 10), (30, u32::MAX)] {
                for to in [1, 2, 9] {
                    let before = map(ranges, Some((first, last, to)));
                    let after = map(&before.ranges_after(), None);
                    for shard in (1..40).chain([u32::MAX]).map(ShardId) {
                        let goes_to = before.place(shard).map(wanted);
                        assert_eq!(after.place(shard).map(wanted), goes_to, "{before:?}");
                    }
                    assert!(after.ranges.windows(2).all(|two| two[0].1 != two[1].1), "{after:?}");
                    assert_eq!(after.ranges[0].0, 0, "{after:?}");
                }
            }
        }
    }
}
