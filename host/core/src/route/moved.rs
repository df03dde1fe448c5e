//! Messages whose entities belong to another shard now, because their pool was copied to another one (M1, R23).

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use super::table::index_of;
use super::{Action, Router};
use crate::ids::ShardId;

impl<T: Clone> Router<T> {
    /// Moves the buffered messages of these shards to those that `place` names, where they are in their order of arrival
    /// too. How long they have waited still counts. A message in flight returns to the shard for which it was sent, and is
    /// refused there at its buffer timeout.
    pub fn move_buffered(
        &mut self,
        now: u64,
        shards: RangeInclusive<ShardId>,
        place: impl Fn(&T) -> ShardId,
        out: &mut Vec<Action<T>>,
    ) {
        let mut touched = BTreeSet::new();
        for number in shards.start().0..=shards.end().0 {
            let Some(from) = index_of(ShardId(number), self.routes.len()) else { return };
            let buffered = self.routes[from].buffered.iter();
            let moves: Vec<_> = buffered
                .filter_map(|(arrival, held)| {
                    let to = index_of(place(&held.message.item), self.routes.len())?;
                    (to != from).then_some((*arrival, to))
                })
                .collect();
            for (arrival, to) in moves {
                if let Some(message) = self.unbuffer(now, from, arrival) {
                    self.buffer(now, to, arrival, message);
                    touched.extend([from, to]);
                }
            }
        }
        for index in touched {
            self.flush_shard(now, index, out);
        }
        self.pump(now, out);
    }
}
