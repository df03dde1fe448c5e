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
//!
//! With weights, a host's count is divided by its weight. A shard moves from the host with the highest quotient to the
//! one whose quotient would be the lowest after the move, while that is lower than the first one. The highest quotient
//! never rises, so the above holds here too.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::random::SplitMix64;
use super::ratio::Ratio;
use super::{AllocationStrategy, AllocationView, BuiltinStrategy, Move};

/// S16, the default: all hosts within one shard of each other, with as few moves as possible. Hosts with weights get
/// shards in proportion to them.
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

/// Gives every unassigned shard to the host that has the fewest at that point, in relation to its weight (K22, S16.5).
/// Also returns each host's count afterwards.
pub(super) fn allocate_to_emptiest(view: &AllocationView) -> (Vec<Move>, Vec<usize>) {
    let mut counts = view.counts();
    let with_one_more =
        |count: usize, host: usize| Reverse((view.ratio(host, count as u64 + 1), host));
    let mut fewest: BinaryHeap<_> =
        view.receivers().map(|host| with_one_more(counts[host], host)).collect();
    let mut moves = Vec::new();
    for shard in view.unassigned() {
        let Some(mut top) = fewest.peek_mut() else { break };
        let Reverse((_, to)) = *top;
        counts[to] += 1;
        *top = with_one_more(counts[to], to);
        moves.push(Move { shard, to });
    }
    (moves, counts)
}

/// The average of these hosts, in relation to their weights. It includes all shards that no other host has, since a shard
/// whose hand-off has no target yet will soon count somewhere (S16.1). A host to which more than that is pinned is left
/// out: what it has above the others says nothing about them.
fn average_without_pinned(view: &AllocationView, counts: &[usize], hosts: &[usize]) -> Ratio {
    let mut pinned = vec![0_u64; view.hosts.len()];
    for place in view.shards.iter().filter(|place| place.pinned) {
        if let Some(count) = place.owner.and_then(|owner| pinned.get_mut(owner)) {
            *count += 1;
        }
    }
    let unplaced = view.shards.len().saturating_sub(counts.iter().sum());
    let mut hosts = hosts.to_vec();
    loop {
        let all = hosts.iter().map(|host| counts[*host]).sum::<usize>() + unplaced;
        let weights = hosts.iter().map(|host| view.weight(*host)).sum();
        let average = Ratio::new(all as u64, weights);
        let before = hosts.len();
        hosts.retain(|host| view.ratio(*host, pinned[*host]) <= average);
        if hosts.len() == before || hosts.is_empty() {
            return average;
        }
    }
}

/// Moves shards from the host with the most to the one with the fewest, in relation to their weights, while the former
/// has more than the latter would have with `gap` more shards. `gap` must be at least one. Without weights: while they
/// differ by more than `gap`.
pub(super) fn level(view: &AllocationView, gap: usize, limit: usize) -> Vec<Move> {
    let mut moves = Vec::new();
    if view.hosts.is_empty() || !view.one_version() {
        return moves; // S16.2
    }
    // Unassigned shards come first (S16.3): the counts already include them.
    let (_, mut counts) = allocate_to_emptiest(view);
    // A paused host neither gives nor gets shards, so its own do not count.
    let receivers: Vec<_> = view.receivers().collect();
    let mut excess = vec![Vec::new(); view.hosts.len()];
    for (shard, owner) in view.movable() {
        excess[owner].push(shard);
    }

    // Only hosts above the average give shards away: the host with the most is above it, unless all have the same. Each
    // step lowers the highest ratio of the two, and no host that gave a shard away gets one: see the module's header.
    let mut most = BinaryHeap::new();
    let mut fewest = BinaryHeap::new();
    let ratio = |count: usize, host: usize| view.ratio(host, count as u64);
    let average = average_without_pinned(view, &counts, &receivers);
    for host in receivers {
        let count = counts[host];
        if ratio(count, host) > average {
            most.push((ratio(count, host), Reverse(host)));
        }
        fewest.push(Reverse((ratio(count + gap, host), host)));
    }

    let mut random = SplitMix64(view.seed);
    while moves.len() < limit
        && let Some((count, Reverse(from))) = most.pop()
        && let Some(mut top) = fewest.peek_mut()
    {
        let Reverse((least, to)) = *top;
        // S16.7. S16.6 is the same with a difference of zero. No other two hosts differ by more than these two.
        if count <= least {
            break;
        }
        // The host has no more shards that can be moved: skip it for now (A5).
        let Some(shard) = random.take(&mut excess[from]) else { continue };
        // S16.8: from now on the shard counts toward its new owner.
        moves.push(Move { shard, to });
        counts[to] += 1;
        *top = Reverse((ratio(counts[to] + gap, to), to));
        counts[from] -= 1;
        most.push((ratio(counts[from], from), Reverse(from)));
    }
    moves
}
