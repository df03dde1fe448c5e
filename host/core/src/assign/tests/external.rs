//! A pool that an outside program places (E9).

use super::{ALL, AllocationStrategy, Average, External, settle, view};
use crate::assign::Move;
use crate::ids::ShardId;

#[test]
fn e9_shards_go_where_the_program_wants_them() {
    let mut view = view(&[6, 0, 0], 3);
    for (place, wanted) in view.shards.iter_mut().zip([0, 1, 1, 1, 2, 0, 2, 2, 2]) {
        place.wanted = Some(wanted);
    }
    settle(&External, &mut view, 2);
    assert_eq!(view.counts(), [2, 3, 4]);
    assert!(view.shards.iter().all(|place| place.owner == place.wanted));
}

#[test]
fn e9_shards_that_it_does_not_name_are_placed_and_then_stay() {
    let mut view = view(&[5, 0, 0], 4);
    view.shards[0].wanted = Some(1);
    // Of the four without an owner, it names one.
    view.shards[5].wanted = Some(0);
    let moves = External.allocate(&view);
    let mut to: Vec<_> = moves.iter().map(|step| (step.shard.0, step.to)).collect();
    to.sort_unstable();
    assert_eq!(to, [(6, 0), (7, 1), (8, 2), (9, 1)]);
    assert_eq!(External.rebalance(&view, ALL), [Move { shard: ShardId(1), to: 1 }]);
}

#[test]
fn e9_a_host_that_is_gone_or_old_is_not_wanted() {
    let mut view = view(&[3, 3], 2);
    view.shards.iter_mut().for_each(|place| place.wanted = Some(2));
    assert_eq!(External.allocate(&view).len(), 2, "placed all the same");
    assert_eq!(External.rebalance(&view, ALL), []);
    view.shards.iter_mut().for_each(|place| place.wanted = Some(0));
    view.hosts[1].version = 2;
    assert!(External.allocate(&view).iter().all(|step| step.to == 1), "S16.5");
    assert_eq!(External.rebalance(&view, ALL), [], "S16.2");
}

#[test]
fn e9_without_any_wish_everything_is_as_with_average() {
    let view = view(&[9, 0, 2], 4);
    assert_eq!(External.allocate(&view), Average.allocate(&view));
    assert_eq!(External.rebalance(&view, ALL), Average.rebalance(&view, ALL));
}
