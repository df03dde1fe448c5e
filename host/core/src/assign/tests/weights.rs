//! Hosts with different weights get shards in proportion to them.

use super::super::random::SplitMix64;
use super::{
    ALL, AllocationStrategy, Average, LeastShard, MeasuredLoad, Ranges, Rendezvous, settle, spread,
    view,
};

#[test]
fn average_gives_shards_in_proportion_to_weights() {
    let mut view = view(&[0, 0, 0], 60);
    for (host, weight) in view.hosts.iter_mut().zip([1, 2, 3]) {
        host.weight = weight;
    }
    assert_eq!(settle(&Average, &mut view, ALL), [], "all are placed at once");
    assert_eq!(view.counts(), [10, 20, 30]);
    // A node that becomes heavier gets its share from both others.
    view.hosts[0].weight = 5;
    assert_eq!(settle(&Average, &mut view, 7).len(), 20);
    assert_eq!(view.counts(), [30, 12, 18]);
}

#[test]
fn weights_that_are_equal_change_nothing() {
    for counts in [[9, 4, 5, 2], [11, 11, 0, 3]] {
        let (mut light, mut heavy) = (view(&counts, 3), view(&counts, 3));
        heavy.hosts.iter_mut().for_each(|host| host.weight = 7);
        for strategy in [&Average as &dyn AllocationStrategy, &Ranges, &Rendezvous] {
            assert_eq!(
                settle(strategy, &mut light, ALL),
                settle(strategy, &mut heavy, ALL),
                "{strategy:?}"
            );
        }
    }
}

#[test]
fn no_move_would_make_weighted_hosts_more_even() {
    for seed in 0..500 {
        let random = &mut SplitMix64(seed);
        let counts: Vec<_> = (0..1 + random.below(8)).map(|_| random.below(50)).collect();
        let mut view = view(&counts, random.below(9));
        for host in &mut view.hosts {
            host.weight = 1 + random.below(5) as u32;
        }
        let moves = settle(&Average, &mut view, 1 + random.below(20));
        let mut moved: Vec<_> = moves.iter().map(|step| step.shard).collect();
        moved.sort_unstable();
        moved.dedup();
        assert_eq!(moved.len(), moves.len(), "seed {seed}: a shard moved twice");
        let counts = view.counts();
        for (from, has) in counts.iter().enumerate() {
            for (to, other) in counts.iter().enumerate() {
                let (heavy, light) = (view.weight(from), view.weight(to));
                let gains = *has as u64 * light > (*other as u64 + 1) * heavy;
                assert!(!gains, "seed {seed}: {counts:?}, {from} to {to}");
            }
        }
    }
}

#[test]
fn least_shard_tolerates_its_threshold_beyond_the_weights() {
    let mut view = view(&[20, 60], 0);
    view.hosts[1].weight = 3;
    assert_eq!(LeastShard::default().rebalance(&view, ALL), []);
    view.hosts[1].weight = 1;
    assert_eq!(LeastShard::default().rebalance(&view, ALL).len(), 3);
}

#[test]
fn ranges_are_as_wide_as_the_weights() {
    let mut view = view(&[0, 0, 0], 100);
    view.hosts[1].weight = 3;
    settle(&Ranges, &mut view, ALL);
    assert_eq!(view.counts(), [20, 60, 20]);
    let owners: Vec<_> = view.shards.iter().map(|place| place.owner).collect();
    assert!(owners.is_sorted(), "contiguous");
}

#[test]
fn rendezvous_prefers_hosts_by_their_weights() {
    let mut view = view(&[0; 4], 4_000);
    view.hosts[2].weight = 5;
    settle(&Rendezvous, &mut view, ALL);
    let counts = view.counts();
    assert!((2_350..2_650).contains(&counts[2]), "{counts:?}");
    assert!(spread(&[counts[0], counts[1], counts[3]]) < 120, "{counts:?}");
    // A weight that rises only draws shards to its host.
    view.hosts[2].weight = 6;
    let moves = settle(&Rendezvous, &mut view, ALL);
    assert!((50..300).contains(&moves.len()), "{}", moves.len());
    assert!(moves.iter().all(|step| step.to == 2));
}

#[test]
fn k14_a_paused_host_keeps_its_shards_and_gets_none() {
    for strategy in [&Average as &dyn AllocationStrategy, &MeasuredLoad::default()] {
        let mut view = view(&[1, 6, 12], 4);
        view.hosts[0].paused = true;
        settle(strategy, &mut view, ALL);
        let counts = view.counts();
        assert_eq!(counts[0], 1, "{strategy:?}");
        assert!(counts[1] >= 10 && counts[2] >= 10, "{strategy:?}: {counts:?}");
        view.hosts.iter_mut().for_each(|host| host.paused = true);
        view.shards[0].owner = None;
        assert_eq!(strategy.allocate(&view).len(), 1, "{strategy:?}: all are paused");
    }
}

#[test]
fn hosts_are_level_beside_one_with_pinned_shards() {
    let mut view = view(&[60, 40, 0], 0);
    view.shards[..60].iter_mut().for_each(|place| place.pinned = true);
    settle(&Average, &mut view, ALL);
    assert_eq!(view.counts(), [60, 20, 20]);
    for strategy in [&Ranges as &dyn AllocationStrategy, &Rendezvous] {
        // What a paused host should have does not keep others from moving.
        let mut view = view.clone();
        view.hosts[0].paused = true;
        let moves = strategy.rebalance(&view, 3);
        assert!(moves.len() == 3 && moves.iter().all(|step| step.to != 0), "{strategy:?}");
    }
}
