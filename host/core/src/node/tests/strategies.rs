//! A strategy that an application brings may propose anything: what must not be done is not done, and said once.

use super::cluster::{Cluster, SHARDS};
use crate::assign::{AllocationStrategy, Average, Misproposal, Move, View};
use crate::ids::ShardId;
use crate::node::Notice;

/// Proposes what no strategy may, a thousand times each, before and after what is right.
#[derive(Debug)]
struct Reckless;

fn wrong(view: &View) -> impl Iterator<Item = Move> {
    let hosts = view.hosts.len();
    let nowhere = (1..=SHARDS).map(move |shard| Move { shard: ShardId(shard), to: hosts });
    let unknown = [0, SHARDS + 1, u32::MAX].map(|shard| Move { shard: ShardId(shard), to: 0 });
    let busy = (1..).zip(&view.shards).filter(|(_, place)| place.busy);
    let busy = busy.map(|(shard, _)| Move { shard: ShardId(shard), to: 0 });
    let owned = (1..).zip(&view.shards).filter(|(_, place)| !place.busy);
    let owned =
        owned.filter_map(|(shard, place)| Some(Move { shard: ShardId(shard), to: place.owner? }));
    let all: Vec<_> = nowhere.chain(unknown).chain(busy).chain(owned).collect();
    (0..1_000).flat_map(move |_| all.clone())
}

impl AllocationStrategy for Reckless {
    fn name(&self) -> &'static str {
        "reckless"
    }

    fn place(&self, view: &View) -> Vec<Move> {
        let right = Average.place(view);
        wrong(view).chain(right.clone()).chain(right).collect()
    }

    fn rebalance(&self, view: &View, _: usize) -> Vec<Move> {
        let right = Average.rebalance(view, usize::MAX);
        wrong(view).chain(right.clone()).chain(right).collect()
    }
}

fn noted(cluster: &mut Cluster) -> Vec<Misproposal> {
    let noted = cluster.node("a").notices.iter().filter_map(|notice| match notice {
        Notice::Misproposed { strategy, why, .. } => {
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
    cluster.settings.rebalance_parallel = 2;
    cluster.start("a");
    cluster.run(3_000);
    assert_eq!(cluster.spread().into_values().collect::<Vec<_>>(), [SHARDS as usize]);
    cluster.node("a").stuck = true;
    cluster.start("b");
    cluster.run(3_000);
    assert_eq!(cluster.moving(), 2, "the limit holds, and no busy shard is begun again");
    cluster.unstick("a");
    cluster.run(5_000);
    assert_eq!(cluster.spread().into_values().collect::<Vec<_>>(), [6, 6]);

    cluster.node("b").paused = true;
    cluster.run(8_000);
    assert_eq!(cluster.spread().into_values().collect::<Vec<_>>(), [SHARDS as usize]);

    let mut noted = noted(&mut cluster);
    noted.sort_unstable();
    let kinds = [
        Misproposal::UnknownShard,
        Misproposal::UnknownHost,
        Misproposal::Twice,
        Misproposal::Busy,
        Misproposal::NotAsked,
        Misproposal::SameOwner,
        Misproposal::BeyondLimit,
    ];
    assert_eq!(noted, kinds, "each once");
}
