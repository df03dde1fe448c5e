//! Placement by measured load (A4).

use super::super::random::SplitMix64;
use super::{ALL, AllocationStrategy, AllocationView, given, settle, view};
use crate::assign::{MeasuredLoad, Move};
use crate::ids::ShardId;

const STRATEGY: MeasuredLoad = MeasuredLoad::new(20);

/// Each host's load, and 1 for each of its shards.
fn loads(view: &AllocationView) -> Vec<u64> {
    let mut loads = vec![0; view.hosts.len()];
    for place in &view.shards {
        if let Some(owner) = place.owner {
            loads[owner] += u64::from(place.load) + 1;
        }
    }
    loads
}

#[test]
fn a4_shards_move_from_heavier_to_lighter_hosts() {
    // The counts are equal, the loads are not.
    let mut view = view(&[10, 10, 10], 0);
    for place in &mut view.shards[..10] {
        place.load = 99;
    }
    let moves = STRATEGY.rebalance(&view, ALL);
    assert_eq!(given(&view, &moves).iter().filter(|count| **count > 0).count(), 1);
    settle(&STRATEGY, &mut view, ALL);
    assert!(loads(&view).iter().all(|load| (270..=410).contains(load)), "{:?}", loads(&view));
}

#[test]
fn a4_a_host_without_load_gets_its_share() {
    // No host has 20 % more than the average, but one has far less.
    let mut counts = vec![10; 9];
    counts.push(0);
    let mut view = view(&counts, 0);
    view.shards.iter_mut().for_each(|place| place.load = 9);
    settle(&STRATEGY, &mut view, ALL);
    assert!(loads(&view).iter().all(|load| (70..=110).contains(load)), "{:?}", loads(&view));
}

#[test]
fn a4_small_differences_move_nothing() {
    let mut view = view(&[10, 10], 0);
    for (number, place) in view.shards.iter_mut().enumerate() {
        place.load = if number < 10 { 110 } else { 90 };
    }
    assert_eq!(STRATEGY.rebalance(&view, ALL), []);
    assert_ne!(MeasuredLoad::new(5).rebalance(&view, ALL), []);
}

#[test]
fn a4_one_hot_shard_is_left_alone_and_the_others_leave_it() {
    let mut view = view(&[5, 5], 0);
    view.shards.iter_mut().for_each(|place| place.load = 10);
    view.shards[0].load = 1_000;
    settle(&STRATEGY, &mut view, ALL);
    assert_eq!(view.shards[0].owner, Some(0));
    assert_eq!(view.counts()[0], 1, "{:?}", loads(&view));
}

#[test]
fn a4_a_lighter_shard_moves_if_the_best_is_too_much() {
    // The third host would give its shard with the load 3, but then the last one had not clearly less than it has now.
    let mut view = view(&[2, 2, 3, 1, 4], 0);
    let loads = [208, 80, 274, 6, 310, 0, 3, 375, 11, 247, 11, 8];
    view.shards.iter_mut().zip(loads).for_each(|(place, load)| place.load = load);
    let moves = STRATEGY.rebalance(&view, ALL);
    assert_eq!(moves, [Move { shard: ShardId(6), to: 4 }]);
}

#[test]
fn a4_of_idle_hosts_the_heaviest_gets_the_shard() {
    // A host of weight 1 would have as much afterwards as the one that gives the shard.
    let mut view = view(&[1, 0, 0], 0);
    view.shards[0].load = 9;
    view.hosts[2].weight = 3;
    assert_eq!(STRATEGY.rebalance(&view, ALL), [Move { shard: ShardId(1), to: 2 }]);
}

#[test]
fn a4_unowned_shards_go_where_the_load_is_least() {
    let mut view = view(&[1, 8], 3);
    view.shards[0].load = 500;
    view.shards[9].load = 100;
    let moves = STRATEGY.allocate(&view);
    assert!(moves.iter().all(|step| step.to == 1), "{moves:?}");
}

/// The loads of shards never change here, whatever else happens: hosts of any weight, any counts, any limit.
#[test]
fn a4_it_comes_to_rest_under_any_constant_load() {
    for seed in 0..2_000 {
        let random = &mut SplitMix64(seed);
        let counts: Vec<_> = (0..1 + random.below(8)).map(|_| random.below(40)).collect();
        let mut view = view(&counts, random.below(9));
        for host in &mut view.hosts {
            host.weight = 1 + random.below(3) as u32;
        }
        let most = [1, 10, 1_000, u32::MAX as usize][random.below(4)];
        for place in &mut view.shards {
            place.load = if random.below(3) == 0 { random.below(most) as u32 } else { 0 };
        }
        let strategy = MeasuredLoad::new(random.below(60) as u32);
        // Panics if it does not.
        settle(&strategy, &mut view, 1 + random.below(9));
        if most == 1 && counts.len() > 1 && strategy.tolerance() <= 50 {
            // Equal loads are spread as evenly as their number and the tolerance allow.
            let weights: u64 = (0..view.hosts.len()).map(|host| view.weight(host)).sum();
            for (host, load) in loads(&view).into_iter().enumerate() {
                let fair = view.shards.len() as f64 * view.weight(host) as f64 / weights as f64;
                let bound = fair * (1.0 + f64::from(strategy.tolerance()) / 100.0) + 2.0;
                assert!(load as f64 <= bound, "seed {seed}: {:?} {strategy:?}", loads(&view));
            }
        }
    }
}

#[test]
fn a4_loads_that_change_a_little_keep_shards_in_place() {
    let random = &mut SplitMix64(5);
    let mut view = view(&[40, 0, 0, 0], 0);
    view.shards.iter_mut().for_each(|place| place.load = 100 + random.below(900) as u32);
    settle(&STRATEGY, &mut view, 8);
    // Measurements that are off by up to 4 % of what they were.
    for _ in 0..200 {
        let mut noisy = view.clone();
        for place in &mut noisy.shards {
            place.load = place.load * (98 + random.below(5) as u32) / 100;
        }
        let moves = STRATEGY.rebalance(&noisy, ALL);
        assert_eq!(moves, [], "{:?}", loads(&noisy));
    }
}

#[test]
fn a4_nothing_moves_before_every_host_has_been_measured() {
    let mut view = view(&[10, 90], 0);
    view.measured = false;
    assert_eq!(STRATEGY.rebalance(&view, ALL), []);
    view.measured = true;
    assert_ne!(STRATEGY.rebalance(&view, ALL), []);
}

/// A plan of many moves must not take long: it is made on the thread that renews the lease.
#[test]
fn a4_a_large_plan_visits_each_shard_a_few_times() {
    let mut view = view(&[33_000, 32_000, 0], 0);
    for (number, place) in view.shards.iter_mut().enumerate() {
        place.load = (number % 97) as u32;
    }
    let moves = STRATEGY.rebalance(&view, 4_096);
    assert_eq!(moves.len(), 4_096);
}
