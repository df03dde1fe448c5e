//! The default strategy (S16): every host gets the average number of shards, with the fewest moves.
//!
//! S16 leaves two points open, and its most literal reading breaks this project's guarantees. Decision 0010
//! explains the reading chosen here:
//! - The average is a fraction, but the number of shards is an integer. A host's excess (S16.2) is rounded *up*: it
//!   may give away every shard that it has beyond the average rounded down. If it were rounded down, counts of 4, 4,
//!   4 and 1 would stay as they are. S16.7 keeps a host from giving away too many.
//! - "Then shards on the pods with most shards" (S16.3) is evaluated before each pick, not once at the start. If it
//!   were evaluated once, one host after another would drop to the average rounded down, and some would be filled up
//!   again: a tenth host that joins nine with 11 shards each would cause 13 moves, where 9 suffice.
//!
//! So each move goes from the host with the most shards to the one with the fewest, while they differ by at least
//! two. No plan has fewer moves. A host that gave a shard away never gets one, in this round or a later one, so
//! no shard moves twice. A plan that is cut off at a limit and continued is as good as an uninterrupted one.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::random::SplitMix64;
use super::{AllocationStrategy, AllocationView, BuiltinStrategy, Move};

/// S16, the default: all hosts within one shard of each other, with as few moves as possible.
///
/// A joining host causes at most `ceil(shards / hosts)` moves, where `hosts` includes it. A leaving host causes
/// only the moves of its own shards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Average;

impl AllocationStrategy for Average {
    fn name(&self) -> &'static str {
        BuiltinStrategy::Average.name()
    }

    fn allocate(&self, view: &AllocationView) -> Vec<Move> {
        allocate_to_emptiest(view).0
    }

    fn rebalance(&self, view: &AllocationView, limit: usize) -> Vec<Move> {
        level(view, 1, limit)
    }
}

/// Gives every unassigned shard to the host that has the fewest at that point (K22, S16.5). Also returns each
/// host's count afterwards.
pub(super) fn allocate_to_emptiest(view: &AllocationView) -> (Vec<Move>, Vec<usize>) {
    let mut counts = view.counts();
    let mut fewest: BinaryHeap<_> =
        view.latest().map(|host| Reverse((counts[host], host))).collect();
    let mut moves = Vec::new();
    for shard in view.unassigned() {
        let Some(mut top) = fewest.peek_mut() else { break };
        let Reverse((count, to)) = &mut *top;
        *count += 1;
        counts[*to] = *count;
        moves.push(Move { shard, to: *to });
    }
    (moves, counts)
}

/// Moves shards from the host with the most to the one with the fewest, while they differ by more than `gap`, which
/// must be at least one.
pub(super) fn level(view: &AllocationView, gap: usize, limit: usize) -> Vec<Move> {
    let mut moves = Vec::new();
    if view.hosts.is_empty() || !view.one_version() {
        return moves; // S16.2
    }
    // Unassigned shards come first (S16.3): the counts already include them.
    let (_, counts) = allocate_to_emptiest(view);
    // S16.1: the average includes all shards, since a shard whose hand-off has no target yet will soon count
    // somewhere.
    let average = view.shards.len() / view.hosts.len();
    let mut excess = vec![Vec::new(); view.hosts.len()];
    for (shard, owner) in view.movable() {
        excess[owner].push(shard);
    }

    // Hosts above the average only give away shards, and the others only get them. While two hosts differ by more than
    // one, the host with the most is above the average and the host with the fewest is not, so this misses no move.
    let mut most = BinaryHeap::new();
    let mut fewest = BinaryHeap::new();
    for (host, count) in counts.into_iter().enumerate() {
        if count > average {
            most.push((count, Reverse(host)));
        } else {
            fewest.push(Reverse((count, host)));
        }
    }

    let mut random = SplitMix64(view.seed);
    while moves.len() < limit
        && let Some((count, Reverse(from))) = most.pop()
        && let Some(mut top) = fewest.peek_mut()
    {
        let Reverse((least, to)) = &mut *top;
        // S16.7. S16.6 is the same with a difference of zero. No other two hosts differ by more than these two.
        if count.saturating_sub(*least) <= gap {
            break;
        }
        // The host has no more shards that can be moved: skip it for now (A5).
        let Some(shard) = random.take(&mut excess[from]) else { continue };
        // S16.8: from now on the shard counts toward its new owner.
        moves.push(Move { shard, to: *to });
        *least += 1;
        most.push((count - 1, Reverse(from)));
    }
    moves
}
