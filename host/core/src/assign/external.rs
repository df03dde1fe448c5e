//! The strategy for a pool that an outside program places (E9).

use super::average::allocate_to_emptiest;
use super::{AllocationStrategy, AllocationView, Average, BuiltinStrategy, Move};

/// Every shard goes to the host that an outside program wants (E9): a program that follows the partitions of a message
/// queue, for example. A shard for which it names no host of the view is placed as by [`Average`], and then stays.
///
/// If it names no host for any shard, because it has not said anything yet or not for too long, everything is as with
/// [`Average`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct External;

/// The host at which a shard is wanted, if that host may be given shards.
fn wanted(view: &AllocationView) -> impl Fn(crate::ids::ShardId) -> Option<usize> {
    let latest: Vec<_> = view.latest().collect();
    move |shard| {
        let place = view.shards.get((shard.0 as usize).checked_sub(1)?)?;
        place.wanted.filter(|host| latest.binary_search(host).is_ok())
    }
}

impl AllocationStrategy for External {
    fn name(&self) -> &'static str {
        BuiltinStrategy::External.name()
    }

    fn allocate(&self, view: &AllocationView) -> Vec<Move> {
        let wanted = wanted(view);
        let named = view.unassigned().filter_map(|shard| Some(Move { shard, to: wanted(shard)? }));
        let mut moves: Vec<_> = named.collect();
        // The others go where there is most room after that.
        let mut rest = view.clone();
        for step in &moves {
            rest.shards[step.shard.0 as usize - 1].owner = Some(step.to);
        }
        moves.extend(allocate_to_emptiest(&rest).0);
        moves
    }

    fn rebalance(&self, view: &AllocationView, limit: usize) -> Vec<Move> {
        if view.shards.iter().all(|place| place.wanted.is_none()) {
            return Average.rebalance(view, limit);
        }
        if !view.one_version() {
            return Vec::new(); // S16.2
        }
        let wanted = wanted(view);
        let moves = view.movable().filter_map(|(shard, owner)| {
            let to = wanted(shard).filter(|to| *to != owner && !view.hosts[*to].paused);
            to.map(|to| Move { shard, to })
        });
        moves.take(limit).collect()
    }
}
