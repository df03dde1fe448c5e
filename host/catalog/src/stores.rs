//! The row that says which stores have the state of which shards, as a map.

use ostraca_core::extensions::Extensible;
use ostraca_store_ranges::{RangeMove, ShardMap};

use crate::error::Error;
use crate::rows::{StoreRange, StoresRow};

/// The field with the version of the map and the move in progress: first shard, last shard, id of the store that gets
/// them. Absent: version 0, and none. The number is odd, since who does not know it would use the wrong store.
const MOVE: u32 = 1;

/// The field's value.
type Field = (u64, Option<(u32, u32, u128)>);

impl Extensible for StoresRow {
    const NAME: &'static str = "StoresRow";
    const FIELDS: &'static [u32] = &[MOVE];
}

impl StoresRow {
    /// The map.
    ///
    /// # Errors
    /// [`Error::InvalidRow`] if its field cannot be decoded.
    pub fn map(&self) -> Result<ShardMap, Error> {
        let failed = |error| Error::InvalidRow(format!("the move of a range of shards: {error}"));
        let (version, moving) =
            self.extensions.get::<Field>(MOVE).map_err(failed)?.unwrap_or_default();
        let ranges = self.ranges.iter().map(|range| (range.first_shard, range.store_id)).collect();
        let moving = moving.map(|(first, last, to)| RangeMove { first, last, to });
        Ok(ShardMap { version, ranges, moving })
    }

    /// The row with another map.
    ///
    /// # Errors
    /// [`Error::InvalidRow`] if it cannot be encoded.
    pub fn with_map(&self, map: &ShardMap) -> Result<Self, Error> {
        let failed = |error| Error::InvalidRow(format!("the move of a range of shards: {error}"));
        let mut row = self.clone();
        let range = |(first_shard, store_id): &(u32, u128)| StoreRange {
            first_shard: *first_shard,
            store_id: *store_id,
        };
        row.ranges = map.ranges.iter().map(range).collect();
        let moving = map.moving.map(|moving| (moving.first, moving.last, moving.to));
        let field: Field = (map.version, moving);
        row.extensions.set(MOVE, &field).map_err(failed)?;
        Ok(row)
    }
}
