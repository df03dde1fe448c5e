//! Random joins, leaves, drains, hand-offs in progress and versions, derived from seeds.

use std::collections::BTreeSet;

use super::super::random::SplitMix64;
use super::{
    ALL, AllocationStrategy, AllocationView, Average, BuiltinStrategy, carry_out, host, settle,
    spread, view,
};
use crate::ids::ShardId;

impl SplitMix64 {
    pub(super) fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }
}

/// A host leaves: its shards need owners, and the others keep theirs.
fn leave(view: &mut AllocationView, gone: usize) {
    view.hosts.remove(gone);
    for place in &mut view.shards {
        place.owner = match place.owner {
            Some(owner) if owner == gone => None,
            Some(owner) if owner > gone => Some(owner - 1),
            owner => owner,
        };
    }
}

#[test]
fn average_stays_within_one_and_a_join_moves_only_its_share() {
    for seed in 0..300 {
        let random = &mut SplitMix64(seed);
        let mut view = view(&vec![0; 1 + random.below(12)], 1 + random.below(300));
        let mut names = view.hosts.len();
        settle(&Average, &mut view, ALL);
        for _ in 0..20 {
            let limit = 1 + random.below(40);
            if view.hosts.len() == 1 || random.below(2) == 0 {
                view.hosts.insert(0, host(names));
                names += 1;
                view.shards.iter_mut().for_each(|place| place.owner = place.owner.map(|o| o + 1));
                let moves = settle(&Average, &mut view, limit);
                assert!(moves.len() <= view.shards.len().div_ceil(view.hosts.len()), "seed {seed}");
                assert!(
                    moves.iter().all(|found| found.to == 0),
                    "seed {seed}: shards move only to the new host"
                );
            } else {
                let gone = random.below(view.hosts.len());
                leave(&mut view, gone);
                let moves = settle(&Average, &mut view, limit);
                assert_eq!(moves, [], "seed {seed}: only the shards of the removed host move");
            }
            assert!(spread(&view.counts()) <= 1, "seed {seed}: {:?}", view.counts());
        }
    }
}

/// Hand-offs take a while here, and the next round is requested in the meantime.
#[test]
fn average_balances_any_view_with_the_fewest_moves() {
    for seed in 0..300 {
        let random = &mut SplitMix64(seed);
        let counts: Vec<_> = (0..1 + random.below(10)).map(|_| random.below(60)).collect();
        let mut view = view(&counts, 0);
        let (hosts, shards) = (counts.len(), view.shards.len());
        let above: usize = counts.iter().map(|n| n.saturating_sub(shards.div_ceil(hosts))).sum();
        let below: usize = counts.iter().map(|n| (shards / hosts).saturating_sub(*n)).sum();
        let mut moved = BTreeSet::new();
        loop {
            view.seed = random.next();
            let moves = Average.rebalance(&view, 1 + random.below(20));
            carry_out(&mut view, &moves, true);
            for found in &moves {
                assert!(moved.insert(found.shard), "seed {seed}: {} moves again", found.shard);
            }
            if moves.is_empty() && view.shards.iter().all(|place| !place.hand_off_in_progress) {
                break;
            }
            for place in &mut view.shards {
                place.hand_off_in_progress &= random.below(3) > 0;
            }
        }
        assert!(spread(&view.counts()) <= 1, "seed {seed}: {:?}", view.counts());
        assert_eq!(moved.len(), above.max(below), "seed {seed}: {counts:?}");
    }
}

/// Includes views that no manager should ever produce: owners out of range, hand-offs without a target.
fn any(random: &mut SplitMix64) -> AllocationView {
    let mut view = view(&vec![0; random.below(9)], random.below(120));
    let versions = 1 + random.below(2) as u64;
    for host in &mut view.hosts {
        host.version = 1 + random.next() % versions;
        host.weight = random.below(4) as u32;
    }
    for place in &mut view.shards {
        place.owner = (random.below(4) > 0).then(|| random.below(view.hosts.len() + 2));
        place.hand_off_in_progress = random.below(5) == 0;
        place.pinned = random.below(9) == 0;
        place.wanted = (random.below(3) == 0).then(|| random.below(view.hosts.len() + 2));
        place.load = if random.below(2) == 0 { 0 } else { random.below(1_000) as u32 };
    }
    AllocationView { seed: random.next(), ..view }
}

#[test]
fn every_strategy_places_all_shards_and_converges() {
    for seed in 0..1_500 {
        let random = &mut SplitMix64(seed);
        let before = any(random);
        let latest = before.hosts.iter().map(|host| host.version).max();
        for strategy in BuiltinStrategy::ALL.map(BuiltinStrategy::build) {
            let mut view = before.clone();
            let moves = strategy.allocate(&view);
            assert_eq!(moves, strategy.allocate(&view), "seed {seed}, {strategy:?}: deterministic");
            let placed: BTreeSet<ShardId> = moves.iter().map(|found| found.shard).collect();
            assert!(moves.iter().all(|found| Some(view.hosts[found.to].version) == latest));
            carry_out(&mut view, &moves, false);
            if !view.hosts.is_empty() {
                assert_eq!(view.unassigned().count(), 0, "seed {seed}, {strategy:?}");
            }

            let limit = random.below(30);
            let moves = strategy.rebalance(&view, limit);
            assert_eq!(moves, strategy.rebalance(&view, limit), "seed {seed}, {strategy:?}");
            assert!(moves.len() <= limit && (moves.is_empty() || before.one_version()));
            // Called before the placement, it moves only shards that have an owner.
            let early = strategy.rebalance(&before, limit);
            carry_out(&mut before.clone(), &early, false);
            assert!(early.iter().all(|found| !placed.contains(&found.shard)), "seed {seed}");
            settle(strategy.as_ref(), &mut view, limit.max(1));

            for (old, new) in before.shards.iter().zip(&view.shards) {
                let stays = old.hand_off_in_progress || old.pinned;
                assert!(!stays || old == new, "seed {seed}, {strategy:?}");
            }
        }
    }
}
