//! A custom strategy may propose anything: invalid moves are not made, and are reported once.

use super::cluster::{Cluster, SHARDS};
use crate::assign::{AllocationStrategy, AllocationView, Average, InvalidMove, Move};
use crate::ids::ShardId;
use crate::node::Notice;
use crate::rows::Roles;

const HOSTS: Roles = Roles { store: false, manager: false, host: true, gateway: false };

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

/// Answers only if there are hosts, and panics when it is asked to balance them.
#[derive(Debug)]
struct Panics;

impl AllocationStrategy for Panics {
    fn name(&self) -> &'static str {
        "panics"
    }

    fn allocate(&self, view: &AllocationView) -> Vec<Move> {
        assert!(view.hosts[0].node != "b".into(), "it does not know this host");
        Average.allocate(view)
    }

    fn rebalance(&self, view: &AllocationView, _: usize) -> Vec<Move> {
        assert_eq!(view.hosts.len(), 1);
        Vec::new()
    }
}

#[test]
fn a3_a_strategy_that_panics_never_fails_the_manager() {
    let mut cluster = Cluster::new();
    cluster.strategy = || Box::new(Panics);
    let manages = Roles { host: false, ..Roles::ALL };
    for node in ["m", "n"] {
        cluster.start_with(node, manages, 1);
    }
    cluster.start_with("a", HOSTS, 1);
    cluster.run(3_000);
    assert_eq!(cluster.spread()["a"], SHARDS as usize, "A2: it is asked when there is a host");
    cluster.start_with("b", HOSTS, 1);
    cluster.run(10_000);
    assert_eq!(cluster.spread()["a"], SHARDS as usize, "nothing is balanced");
    // All hosts end, one after the other.
    cluster.node("a").dead = true;
    cluster.run(10_000);
    assert_eq!(cluster.spread()["b"], SHARDS as usize, "the default strategy chooses");
    cluster.node("b").dead = true;
    cluster.run(10_000);
    cluster.start_with("c", HOSTS, 1);
    cluster.run(5_000);
    assert_eq!(cluster.spread()["c"], SHARDS as usize);
    let noted = |name: &str, cluster: &mut Cluster| {
        let panicked = Notice::StrategyPanicked { strategy: "panics".into() };
        cluster.node(name).notices.iter().filter(|it| **it == panicked).count()
    };
    assert_eq!(noted("m", &mut cluster), 1, "once a term");
    assert!(cluster.node("m").machine.member().is_some(), "the manager goes on");
}

#[test]
fn s16_the_oldest_of_equally_full_hosts_gives_first() {
    let mut cluster = Cluster::new();
    cluster.settings.max_rebalance_hand_offs = 1;
    for node in ["z", "a"] {
        cluster.start(node);
        cluster.run(4_000);
    }
    assert_eq!(cluster.spread().into_values().collect::<Vec<_>>(), [6, 6]);
    cluster.node("z").notices.clear();
    cluster.start("m");
    cluster.run(2_000);
    let first = cluster.node("z").notices.iter().find_map(|notice| match notice {
        Notice::HandOffStarted { from, .. } => Some(from.node.clone()),
        _ => None,
    });
    assert_eq!(first, Some("z".into()), "S16.3: its name comes last, but it is the oldest");
}
