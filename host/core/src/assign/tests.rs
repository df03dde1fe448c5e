//! Tests of each strategy, rule by rule; `tests/histories.rs` tests the same rules with random histories.

mod external;
mod histories;
mod load;
mod weights;

use std::collections::BTreeSet;
use std::num::{NonZeroU32, NonZeroUsize};

use super::{
    AllocationStrategy, AllocationView, Average, BuiltinStrategy, External, Host, LeastShard,
    MeasuredLoad, Move, Ranges, Rendezvous, ShardPlacement, StrategySettings,
};
use crate::ids::ShardId;

const ALL: usize = usize::MAX;

/// Hosts of the same version with these numbers of shards, and `unassigned` more shards that need an owner.
fn view(counts: &[usize], unassigned: usize) -> AllocationView {
    let hosts = (0..counts.len()).map(host).collect();
    let owned = counts
        .iter()
        .enumerate()
        .flat_map(|(owner, count)| std::iter::repeat_n(ShardPlacement::owned_by(owner), *count));
    let shards = owned.chain(std::iter::repeat_n(ShardPlacement::default(), unassigned)).collect();
    AllocationView { hosts, shards, seed: 1, measured: true }
}

fn host(number: usize) -> Host {
    Host::new(format!("node-{number:03}").as_str().into(), 1)
}

fn place_of(view: &AllocationView, shard: ShardId) -> ShardPlacement {
    view.shards[shard.0 as usize - 1]
}

/// Applies the moves, after checking that they are valid.
fn carry_out(view: &mut AllocationView, moves: &[Move], busy: bool) {
    let mut seen = BTreeSet::new();
    for Move { shard, to } in moves {
        assert!(seen.insert(*shard), "{shard} twice in one result");
        assert!(*to < view.hosts.len(), "{shard} to a host that does not exist");
        let place = &mut view.shards[shard.0 as usize - 1];
        assert!(!place.hand_off_in_progress, "{shard} is being moved");
        assert_ne!(place.owner, Some(*to), "{shard} to its current owner");
        *place = ShardPlacement { owner: Some(*to), hand_off_in_progress: busy, ..*place };
    }
}

/// Allocates, then rebalances until nothing moves. Returns all moves of shards that had an owner.
fn settle(strategy: &dyn AllocationStrategy, view: &mut AllocationView, limit: usize) -> Vec<Move> {
    let placed = strategy.allocate(view);
    carry_out(view, &placed, false);
    let mut all = Vec::new();
    for _ in 0..=view.shards.len() {
        view.seed += 1;
        let moves = strategy.rebalance(view, limit);
        assert!(moves.len() <= limit);
        if moves.is_empty() {
            return all;
        }
        carry_out(view, &moves, false);
        all.extend(moves);
    }
    panic!("{strategy:?} does not converge");
}

/// How many shards each host gives away.
fn given(view: &AllocationView, moves: &[Move]) -> Vec<usize> {
    let mut given = vec![0; view.hosts.len()];
    for found in moves {
        given[place_of(view, found.shard).owner.expect("an owner")] += 1;
    }
    given
}

fn spread(counts: &[usize]) -> usize {
    counts.iter().max().unwrap_or(&0) - counts.iter().min().unwrap_or(&0)
}

#[test]
fn s13_the_first_host_gets_all_shards() {
    let moves = Average.allocate(&view(&[0], 10));
    assert_eq!(moves, (1..=10).map(|n| Move { shard: ShardId(n), to: 0 }).collect::<Vec<_>>());
    assert_eq!(Average.allocate(&view(&[], 10)), [], "without hosts nothing is allocated");
    assert_eq!(Average.rebalance(&view(&[], 10), ALL), []);
}

#[test]
fn s16_1_the_average_includes_shards_without_an_owner() {
    // Two more shards will be added: the average is 5, not 4.
    let mut view = view(&[5, 3], 2);
    view.shards[8].hand_off_in_progress = true;
    view.shards[9].hand_off_in_progress = true;
    assert_eq!(Average.rebalance(&view, ALL), []);
}

#[test]
fn s16_2_only_hosts_above_the_average_give_their_excess() {
    let view = view(&[9, 4, 5, 2], 0);
    assert_eq!(given(&view, &Average.rebalance(&view, ALL)), [4, 0, 0, 0]);
}

#[test]
fn s16_2_the_excess_is_rounded_up() {
    let mut view = view(&[4, 4, 4, 1], 0);
    assert_eq!(settle(&Average, &mut view, ALL).len(), 2);
    assert_eq!(view.counts(), [3, 3, 4, 3]);
}

#[test]
fn s16_2_the_moved_shards_are_chosen_by_the_seed() {
    let shards = |seed| {
        let view = AllocationView { seed, ..view(&[20, 0], 0) };
        Average.rebalance(&view, 5).iter().map(|found| found.shard).collect::<BTreeSet<_>>()
    };
    assert_eq!(shards(7), shards(7));
    assert!((0..20).map(shards).collect::<BTreeSet<_>>().len() > 15);
    assert_eq!(
        (0..50).flat_map(shards).collect::<BTreeSet<_>>().len(),
        20,
        "any of them may be chosen"
    );
}

#[test]
fn s16_2_no_shard_leaves_its_owner_while_versions_differ() {
    for strategy in BuiltinStrategy::ALL.map(BuiltinStrategy::build) {
        let mut view = view(&[90, 0, 0], 0);
        view.hosts[1].version = 2;
        assert_eq!(strategy.rebalance(&view, ALL), [], "{strategy:?}");
        view.hosts.iter_mut().for_each(|host| host.version = 2);
        assert_ne!(strategy.rebalance(&view, ALL), [], "{strategy:?}");
    }
}

#[test]
fn s16_3_unassigned_shards_come_first() {
    // The three unassigned shards balance the hosts: nothing else needs to move.
    let mut view = view(&[4, 3, 0], 3);
    assert_eq!(Average.rebalance(&view, ALL), []);
    assert_eq!(settle(&Average, &mut view, ALL), []);
    assert_eq!(view.counts(), [4, 3, 3]);
}

#[test]
fn s16_3_the_fullest_host_gives_and_the_oldest_on_a_tie() {
    for (counts, gives) in [([4, 7, 5, 0], 1), ([5, 6, 6, 0], 1), ([6, 6, 6, 0], 0)] {
        let view = view(&counts, 0);
        let mut expected = [0; 4];
        expected[gives] = 1;
        assert_eq!(given(&view, &Average.rebalance(&view, 1)), expected, "{counts:?}");
    }
}

#[test]
fn s16_3_the_fullest_host_is_recomputed_before_each_pick() {
    // If each host were reduced to the average in turn, nine hosts would give 13 shards here.
    let mut counts = vec![11; 9];
    counts.push(0);
    let mut view = view(&counts, 0);
    assert_eq!(given(&view, &Average.rebalance(&view, ALL)), [1, 1, 1, 1, 1, 1, 1, 1, 1, 0]);
    assert_eq!(settle(&Average, &mut view, ALL).len(), 9);
}

#[test]
fn s16_4_every_shard_is_considered() {
    let mut both = view(&[8, 0, 0], 3);
    assert_eq!(Average.allocate(&both).len(), 3);
    settle(&Average, &mut both, ALL);
    assert_eq!(both.counts(), [4, 4, 3]);
    // The most loaded host has no movable shard: the next one gives up shards.
    let mut view = view(&[8, 5, 0], 0);
    view.shards[..8].iter_mut().for_each(|place| place.hand_off_in_progress = true);
    assert_eq!(given(&view, &Average.rebalance(&view, ALL)), [0, 2, 0]);
}

#[test]
fn s16_5_a_shard_goes_to_the_host_with_fewest() {
    for strategy in [&Average as &dyn AllocationStrategy, &LeastShard::default()] {
        let to: Vec<_> =
            strategy.allocate(&view(&[3, 1, 2], 4)).iter().map(|found| found.to).collect();
        assert_eq!(to, [1, 1, 2, 0], "{strategy:?}");
    }
    assert!(Average.rebalance(&view(&[9, 5, 1, 4], 0), 3).iter().all(|found| found.to == 2));
}

#[test]
fn s16_5_only_hosts_of_the_latest_version_are_given_shards() {
    for strategy in BuiltinStrategy::ALL.map(BuiltinStrategy::build) {
        let mut view = view(&[0, 30, 0, 40], 20);
        view.hosts[1].version = 3;
        view.hosts[2].version = 2;
        view.hosts[3].version = 3;
        let moves = strategy.allocate(&view);
        assert_eq!(moves.len(), 20, "{strategy:?}");
        assert!(moves.iter().all(|found| [1, 3].contains(&found.to)), "{strategy:?}");
    }
}

#[test]
fn s16_6_and_s16_7_a_difference_of_one_moves_nothing() {
    assert_eq!(Average.rebalance(&view(&[4, 3, 3], 0), ALL), []);
    assert_eq!(Average.rebalance(&view(&[3, 3], 0), ALL), [], "equal counts");
    assert_eq!(Average.rebalance(&view(&[5, 3], 0), ALL).len(), 1);
}

#[test]
fn s16_8_each_decision_counts_the_moves_already_decided() {
    let moves = Average.rebalance(&view(&[6, 6, 0, 0], 0), ALL);
    let view = view(&[6, 6, 0, 0], 0);
    assert_eq!(given(&view, &moves), [3, 3, 0, 0]);
    assert_eq!(moves.iter().filter(|found| found.to == 2).count(), 3);
    assert_eq!(moves.len(), 6);
}

#[test]
fn a5_a_moving_shard_counts_at_its_target_and_is_not_moved() {
    for strategy in BuiltinStrategy::ALL.map(BuiltinStrategy::build) {
        let mut view = view(&[0, 0, 50], 5);
        view.shards.iter_mut().for_each(|place| place.hand_off_in_progress = true);
        assert_eq!(strategy.rebalance(&view, ALL), [], "{strategy:?}");
        assert_eq!(strategy.allocate(&view), [], "{strategy:?}");
    }
    let mut view = view(&[3, 3], 0);
    view.shards[0].hand_off_in_progress = true;
    assert_eq!(Average.rebalance(&view, ALL), []);
}

#[test]
fn an_owner_that_is_not_a_host_counts_as_no_owner() {
    let mut view = view(&[2, 2], 0);
    view.shards[1].owner = Some(2);
    assert_eq!(Average.allocate(&view), [Move { shard: ShardId(2), to: 0 }]);
    assert_eq!(Average.rebalance(&view, ALL), []);
}

#[test]
fn k23_least_shard_respects_its_threshold_and_limit() {
    let strategy = LeastShard::default();
    assert_eq!(strategy.rebalance(&view(&[20, 10], 0), ALL), []);
    assert_eq!(strategy.rebalance(&view(&[21, 10], 0), ALL).len(), 1);
    assert_eq!(strategy.rebalance(&view(&[90, 10], 0), ALL).len(), 3);
    assert_eq!(strategy.rebalance(&view(&[90, 10], 0), 2).len(), 2);
    let mut under_way = view(&[90, 10], 0);
    under_way.shards[99].hand_off_in_progress = true;
    assert_eq!(strategy.rebalance(&under_way, ALL).len(), 2);
    let mut apart = view(&[90, 10, 30], 0);
    settle(&strategy, &mut apart, ALL);
    assert_eq!(spread(&apart.counts()), 10);
}

#[test]
fn k40_least_shard_uses_its_configured_threshold_and_limit() {
    let few = LeastShard::new(NonZeroU32::MIN, NonZeroUsize::MIN);
    let strategy = BuiltinStrategy::LeastShard
        .build_with(&StrategySettings { least_shard: few, ..StrategySettings::default() });
    assert_eq!(strategy.rebalance(&view(&[20, 10], 0), ALL).len(), 1);
    let least = LeastShard::default();
    assert_eq!((least.threshold().get(), least.limit().get()), (10, 3));
}

#[test]
fn least_shard_with_threshold_one_is_as_even_as_average() {
    let strategy = LeastShard::new(NonZeroU32::MIN, NonZeroUsize::MAX);
    let mut view = view(&[17, 0, 3, 6], 0);
    settle(&strategy, &mut view, ALL);
    assert_eq!(spread(&view.counts()), 1);
}

#[test]
fn e5_ranges_are_contiguous_in_the_order_of_names_and_even() {
    let mut view = view(&[0, 0, 0], 11);
    view.hosts.reverse();
    let moves = Ranges.allocate(&view);
    assert!(moves.windows(2).all(|pair| pair[0].to >= pair[1].to));
    carry_out(&mut view, &moves, false);
    assert_eq!(view.counts(), [3, 4, 4]);
}

#[test]
fn a_join_moves_half_with_ranges_and_a_share_with_rendezvous() {
    let joined = |strategy: &dyn AllocationStrategy| {
        let mut view = view(&[0; 10], 1_000);
        settle(strategy, &mut view, ALL);
        view.hosts.push(host(10));
        settle(strategy, &mut view, ALL)
    };
    assert!((400..600).contains(&joined(&Ranges).len()));
    let moves = joined(&Rendezvous);
    assert!((50..150).contains(&moves.len()), "{}", moves.len());
    assert!(moves.iter().all(|found| found.to == 10));
}

#[test]
fn rendezvous_is_even_and_independent_of_the_host_order() {
    let mut first = view(&[0; 16], 1_024);
    settle(&Rendezvous, &mut first, ALL);
    assert!(first.counts().iter().all(|count| (40..90).contains(count)), "{:?}", first.counts());
    let mut second = view(&[0; 16], 1_024);
    second.hosts.reverse();
    settle(&Rendezvous, &mut second, ALL);
    second.shards.iter_mut().for_each(|place| place.owner = place.owner.map(|owner| 15 - owner));
    assert_eq!(first.shards, second.shards);
}

#[test]
fn strategies_have_names_and_an_unknown_name_lists_them() {
    for strategy in BuiltinStrategy::ALL {
        assert_eq!(BuiltinStrategy::from_name(strategy.name()), Ok(strategy));
        assert_eq!(strategy.build().name(), strategy.name());
    }
    let error = BuiltinStrategy::from_name("avarage").expect_err("not a strategy").to_string();
    assert_eq!(
        error,
        "`avarage` is not an allocation strategy; use one of `average`, `least-shard`, `ranges`, `rendezvous`, `load`, `external`, `stateless`"
    );
}

#[test]
fn an_unnamed_strategy_is_named_after_its_type() {
    #[derive(Debug)]
    struct Own;
    impl AllocationStrategy for Own {
        fn allocate(&self, _: &AllocationView) -> Vec<Move> {
            Vec::new()
        }
        fn rebalance(&self, _: &AllocationView, _: usize) -> Vec<Move> {
            Vec::new()
        }
    }
    assert_eq!(Own.name(), std::any::type_name::<Own>());
    assert!(Own.name().ends_with("::Own"), "{}", Own.name());
}

#[test]
fn rendezvous_gives_each_shard_the_same_host_in_every_release() {
    let mut view = view(&[0; 8], 24);
    let moves = Rendezvous.allocate(&view);
    carry_out(&mut view, &moves, false);
    let owners: Vec<_> = view.shards.iter().filter_map(|place| place.owner).collect();
    assert_eq!(owners, [4, 3, 3, 0, 3, 0, 0, 4, 6, 1, 4, 0, 0, 1, 5, 0, 6, 3, 5, 1, 1, 1, 2, 3]);
}
