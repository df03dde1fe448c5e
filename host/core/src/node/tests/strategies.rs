//! A custom strategy may propose anything: invalid moves are not made, and are reported once.

use super::cluster::{Cluster, SHARDS};
use crate::assign::{AllocationStrategy, AllocationView, Average, InvalidMove, Move};
use crate::ids::ShardId;
use crate::node::Notice;

/// Proposes each kind of invalid move a thousand times, before and after valid ones.
#[derive(Debug)]
struct Reckless;

fn wrong(view: &AllocationView) -> impl Iterator<Item = Move> {
    let hosts = view.hosts.len();
    let nowhere = (1..=SHARDS).map(move |shard| Move { shard: ShardId(shard), to: hosts });
    let unknown = [0, SHARDS + 1, u32::MAX].map(|shard| Move { shard: ShardId(shard), to: 0 });
    let busy = (1..).zip(&view.shards).filter(|(_, place)| place.hand_off_in_progress);
    let busy = busy.map(|(shard, _)| Move { shard: ShardId(shard), to: 0 });
    let owned = (1..).zip(&view.shards).filter(|(_, place)| !place.hand_off_in_progress);
    let owned =
        owned.filter_map(|(shard, place)| Some(Move { shard: ShardId(shard), to: place.owner? }));
    let all: Vec<_> = nowhere.chain(unknown).chain(busy).chain(owned).collect();
    (0..1_000).flat_map(move |_| all.clone())
}

impl AllocationStrategy for Reckless {
    fn name(&self) -> &'static str {
        "reckless"
    }

    fn allocate(&self, view: &AllocationView) -> Vec<Move> {
        let right = Average.allocate(view);
        wrong(view).chain(right.clone()).chain(right).collect()
    }

    fn rebalance(&self, view: &AllocationView, _: usize) -> Vec<Move> {
        let right = Average.rebalance(view, usize::MAX);
        wrong(view).chain(right.clone()).chain(right).collect()
    }
}

fn noted(cluster: &mut Cluster) -> Vec<InvalidMove> {
    let noted = cluster.node("a").notices.iter().filter_map(|notice| match notice {
        Notice::MovesRejected { strategy, reason: why, .. } => {
            assert_eq!(strategy, "reckless");
            Some(*why)
        }
        _ => None,
    });
    noted.collect()
}

#[test]
fn moves_that_a_strategy_must_not_propose_are_not_made() {
    let mut cluster = Cluster::new();
    cluster.strategy = || Box::new(Reckless);
    cluster.settings.max_rebalance_hand_offs = 2;
    cluster.start("a");
    cluster.run(3_000);
    assert_eq!(cluster.spread().into_values().collect::<Vec<_>>(), [SHARDS as usize]);
    cluster.node("a").stuck = true;
    cluster.start("b");
    cluster.run(3_000);
    assert_eq!(cluster.moving(), 2, "the limit holds, and no second hand-off of a shard begins");
    cluster.unstick("a");
    cluster.run(5_000);
    assert_eq!(cluster.spread().into_values().collect::<Vec<_>>(), [6, 6]);

    cluster.node("b").paused = true;
    cluster.run(8_000);
    assert_eq!(cluster.spread().into_values().collect::<Vec<_>>(), [SHARDS as usize]);

    let mut noted = noted(&mut cluster);
    noted.sort_unstable();
    let kinds = [
        InvalidMove::UnknownShard,
        InvalidMove::UnknownHost,
        InvalidMove::DuplicateShard,
        InvalidMove::HandOffInProgress,
        InvalidMove::NotRequested,
        InvalidMove::SameOwner,
        InvalidMove::LimitExceeded,
    ];
    assert_eq!(noted, kinds, "each kind is reported once");
}
