//! Shards that are handed off because their state is in another database than the one that the map names (R26).

use std::collections::{BTreeMap, BTreeSet};

use super::cluster::{Cluster, SHARDS};
use crate::ids::{Epoch, Incarnation, ShardId};
use crate::node::{ControlMessage, Event, HandOff, Mutation, NodeReport};
use crate::pools::Pools;
use crate::rows::{Assignment, HandOffId, Roles, Row, RowKey, SHARDS_PER_CHUNK, index_in_chunk};

fn assignment(cluster: &Cluster, shard: ShardId) -> &Assignment {
    match &cluster.rows[&RowKey::for_shard(shard)].0 {
        Row::Assignments(row) => &row.assignments[index_in_chunk(shard)],
        _ => unreachable!("a row of shards"),
    }
}

/// The node and the epoch that a shard's row names.
fn owner(cluster: &Cluster, shard: ShardId) -> (String, Epoch) {
    let row = assignment(cluster, shard);
    (row.owner.as_ref().expect("an owner").node.to_string(), row.epoch)
}

/// The shards that rows assign to a node, with their epochs.
fn shards_of(cluster: &Cluster, node: &str) -> Vec<(ShardId, Epoch)> {
    let all = (1..=cluster.pools.shard_count())
        .map(|number| (ShardId(number), owner(cluster, ShardId(number))));
    all.filter(|(_, (of, _))| of == node).map(|(shard, (_, epoch))| (shard, epoch)).collect()
}

/// A node finds that the state of these shards is elsewhere.
fn misplaced(cluster: &mut Cluster, node: &str, shards: &[(ShardId, Epoch)]) {
    cluster.handle(node, Event::MisplacedShards(shards.to_vec()));
}

/// Every node finds that those of its shards are misplaced that still have their former epoch.
fn find_misplaced(cluster: &mut Cluster, former: &BTreeMap<ShardId, Epoch>) {
    for node in cluster.nodes.keys().map(ToString::to_string).collect::<Vec<_>>() {
        let held = shards_of(cluster, &node);
        let shards: Vec<_> = held.into_iter().filter(|(of, at)| former[of] == *at).collect();
        misplaced(cluster, &node, &shards);
    }
}

/// The shards whose epoch has risen, with the number of epochs.
fn raised(cluster: &Cluster, former: &BTreeMap<ShardId, Epoch>) -> Vec<(ShardId, u64)> {
    let rise = |(shard, epoch): (ShardId, Epoch)| (shard, epoch.0 - former[&shard].0);
    cluster.epochs().into_iter().map(rise).filter(|(_, by)| *by > 0).collect()
}

/// The shards whose hand-off is written in their rows.
fn moving(cluster: &Cluster) -> Vec<ShardId> {
    let all = (1..=cluster.pools.shard_count()).map(ShardId);
    all.filter(|shard| assignment(cluster, *shard).hand_off.is_some()).collect()
}

/// The hand-offs of a shard that were announced.
fn announced(cluster: &Cluster, shard: ShardId) -> BTreeSet<HandOffId> {
    let ids = cluster.sent_messages.iter().filter_map(|(_, _, message)| match message {
        ControlMessage::BeginHandOff { hand_off, .. } if hand_off.shard == shard => {
            Some(hand_off.id)
        }
        _ => None,
    });
    ids.collect()
}

fn limited(nodes: &[&str], limit: usize) -> Cluster {
    let mut cluster = Cluster::new();
    cluster.settings.max_relocations = limit;
    for node in nodes {
        cluster.start(node);
        cluster.run(200);
    }
    cluster.run(10_000);
    cluster
}

#[test]
fn r26_a_misplaced_shard_returns_to_its_owner_in_the_next_epoch() {
    let mut cluster = Cluster::of(&["a", "b", "c"]);
    assert_eq!(cluster.manager().0, "a");
    // The owner is the manager, and another node.
    for node in ["a", "c"] {
        let (former, spread) = (cluster.epochs(), cluster.spread());
        let (shard, epoch) = shards_of(&cluster, node)[0];
        cluster.node("b").held_back.clear();
        misplaced(&mut cluster, node, &[(shard, epoch)]);
        cluster.run(1_000);
        assert_eq!(raised(&cluster, &former), [(shard, 1)]);
        assert_eq!(cluster.spread(), spread, "each node serves what it served before");
        assert_eq!(cluster.node("b").held_back, [shard], "K24: others buffer messages");
        let epochs = cluster.epochs();
        assert_eq!(cluster.node("b").routes, epochs, "the route ends that");
        // The driver did not name the new epoch: the owner's former statement is void.
        cluster.run(30_000);
        assert_eq!(raised(&cluster, &former), [(shard, 1)]);
    }
}

#[test]
fn r26_only_the_held_epoch_of_a_shard_counts() {
    let mut cluster = Cluster::of(&["a", "b"]);
    let former = cluster.epochs();
    let of_b = shards_of(&cluster, "b");
    let (shard, epoch) = of_b[0];
    let (foreign, at) = shards_of(&cluster, "a")[0];
    let wrong = [(shard, Epoch(epoch.0 - 1)), (shard, Epoch(epoch.0 + 1)), (foreign, at)];
    misplaced(&mut cluster, "b", &wrong);
    cluster.run(5_000);
    assert_eq!(raised(&cluster, &former), []);
    // A report that is older than the row counts for nothing either.
    misplaced(&mut cluster, "b", &[(shard, epoch)]);
    cluster.run(30);
    let is_late = |message: &ControlMessage| match message {
        ControlMessage::Report(report) => report.misplaced() == [(shard, epoch)],
        _ => false,
    };
    let mut late = cluster.sent_messages.iter().map(|(.., message)| message.clone());
    let mut late = late.find(is_late).expect("the report");
    cluster.run(5_000);
    assert_eq!(raised(&cluster, &former), [(shard, 1)]);
    if let ControlMessage::Report(report) = &mut late {
        report.take_number();
    }
    let from = cluster.node("b").machine.member().expect("registered");
    cluster.handle("a", Event::Received { from, message: late });
    cluster.run(500);
    assert_eq!(raised(&cluster, &former), [(shard, 1)]);
}

#[test]
fn r26_a_whole_set_replaces_the_former_one() {
    let mut cluster = Cluster::of(&["a", "b"]);
    let former = cluster.epochs();
    let of_b = shards_of(&cluster, "b");
    misplaced(&mut cluster, "b", &of_b[..2]);
    misplaced(&mut cluster, "b", &of_b[1..2]);
    cluster.run(5_000);
    assert_eq!(raised(&cluster, &former), [(of_b[1].0, 1)]);
}

#[test]
fn r26_hand_offs_of_relocations_are_limited() {
    let mut cluster = limited(&["a", "b"], 2);
    let former = cluster.epochs();
    cluster.node("a").stuck = true;
    cluster.node("b").stuck = true;
    find_misplaced(&mut cluster, &former);
    cluster.run(3_000);
    assert_eq!(cluster.moving(), 2);
    cluster.unstick("a");
    cluster.unstick("b");
    for _ in 0..100 {
        assert!(cluster.moving() <= 2);
        find_misplaced(&mut cluster, &former);
        cluster.run(100);
    }
    assert_eq!(raised(&cluster, &former).len(), SHARDS as usize);
    assert!(raised(&cluster, &former).iter().all(|(_, by)| *by == 1));
}

#[test]
fn r26_a_relocation_lasts_until_its_shard_is_served() {
    let mut cluster = limited(&["a", "b"], 2);
    let former = cluster.epochs();
    for node in ["a", "b"] {
        cluster.node(node).claims_slowly = true;
    }
    for _ in 0..60 {
        find_misplaced(&mut cluster, &former);
        cluster.run(100);
    }
    let claimed = |cluster: &mut Cluster| ["a", "b"].map(|node| cluster.node(node).claims.len());
    assert_eq!(claimed(&mut cluster).iter().sum::<usize>(), 2, "each is served by nobody");
    assert_eq!(cluster.moving(), 0);
    // A shard that is being claimed is not handed off again: its claim moves the state.
    for node in ["a", "b"] {
        let claims = cluster.node(node).claims.clone();
        let claims = claims.into_iter().map(|(shard, epoch, _)| (shard, epoch));
        let claims: Vec<_> = claims.collect();
        misplaced(&mut cluster, node, &claims);
    }
    cluster.run(5_000);
    assert!(raised(&cluster, &former).iter().all(|(_, by)| *by == 1));
    for _ in 0..100 {
        cluster.grant_claims("a");
        cluster.grant_claims("b");
        find_misplaced(&mut cluster, &former);
        cluster.run(100);
    }
    assert_eq!(raised(&cluster, &former).len(), SHARDS as usize);
    cluster.spread();
}

#[test]
fn r26_a_misplaced_shard_counts_only_once_it_is_served() {
    let mut cluster = Cluster::of(&["a", "b"]);
    cluster.node("a").claims_slowly = true;
    cluster.node("b").dead = true;
    cluster.run(8_000);
    let claims = cluster.node("a").claims.clone();
    let claims: Vec<_> = claims.into_iter().map(|(shard, epoch, _)| (shard, epoch)).collect();
    assert_eq!(claims.len(), 6, "after the death of their owner");
    let former = cluster.epochs();
    misplaced(&mut cluster, "a", &claims[..1]);
    cluster.run(3_000);
    assert_eq!((raised(&cluster, &former), cluster.moving()), (vec![], 0));
    cluster.grant_claims("a");
    cluster.run(1_000);
    assert_eq!(raised(&cluster, &former), [(claims[0].0, 1)]);
}

#[test]
fn r26_an_owner_that_does_not_report_delays_no_other_shard() {
    let mut cluster = limited(&["a", "b", "c"], 1);
    let former = cluster.epochs();
    let (of_b, of_c) = (shards_of(&cluster, "b"), shards_of(&cluster, "c"));
    cluster.node("b").claims_slowly = true;
    misplaced(&mut cluster, "b", &of_b[..1]);
    cluster.run(1_000);
    assert_eq!(cluster.node("b").claims.len(), 1);
    // That it serves the shard does not reach the manager.
    cluster.cut_from_manager.insert(("b".into(), "a".into()));
    cluster.grant_claims("b");
    misplaced(&mut cluster, "c", &of_c[..1]);
    cluster.run(3_000);
    assert_eq!(raised(&cluster, &former), [(of_b[0].0, 1)]);
    cluster.run(6_000);
    let raised: BTreeMap<_, _> = raised(&cluster, &former).into_iter().collect();
    assert_eq!(raised.get(&of_c[0].0), Some(&1), "{raised:?}");
}

#[test]
fn r26_a_shard_whose_owner_drains_is_relocated_to_another_host() {
    let mut cluster = Cluster::new();
    // The drain itself moves no shard.
    cluster.settings.max_drain_hand_offs = 0;
    for node in ["a", "b", "c"] {
        cluster.start(node);
    }
    cluster.run(10_000);
    cluster.handle("a", Event::Drain { node: "c".into(), draining: true });
    cluster.run(2_000);
    let former = cluster.epochs();
    let of_c = shards_of(&cluster, "c");
    assert_eq!(of_c.len(), 4);
    cluster.node("c").stuck = true;
    misplaced(&mut cluster, "c", &of_c[..1]);
    cluster.run(2_000);
    let intent = assignment(&cluster, of_c[0].0).hand_off.clone().expect("an intent");
    assert_ne!(intent.target, Some("c".into()));
    cluster.unstick("c");
    cluster.run(2_000);
    assert_eq!(raised(&cluster, &former), [(of_c[0].0, 1)]);
    assert_ne!(owner(&cluster, of_c[0].0).0, "c");
    assert_eq!(cluster.spread()["c"], 3);
}

#[test]
fn r26_a_misplaced_shard_without_another_host_stays() {
    let mut cluster = Cluster::of(&["a"]);
    cluster.handle("a", Event::Drain { node: "a".into(), draining: true });
    cluster.run(2_000);
    let former = cluster.epochs();
    let of_a = shards_of(&cluster, "a");
    misplaced(&mut cluster, "a", &of_a[..1]);
    cluster.run(5_000);
    assert_eq!((raised(&cluster, &former), cluster.moving()), (vec![], 0));
}

#[test]
fn r26_a_new_manager_relocates_from_reports() {
    let mut cluster = Cluster::of(&["a", "b", "c"]);
    let former = cluster.epochs();
    let of_c = shards_of(&cluster, "c");
    cluster.node("a").paused = true;
    misplaced(&mut cluster, "c", &of_c[..2]);
    cluster.run(15_000);
    assert_eq!(cluster.manager().0, "b");
    let raised: BTreeMap<_, _> = raised(&cluster, &former).into_iter().collect();
    assert!(of_c[..2].iter().all(|(shard, _)| raised.get(shard) == Some(&1)), "{raised:?}");
    assert!(of_c[2..].iter().all(|(shard, _)| !raised.contains_key(shard)), "{raised:?}");
    assert!(of_c[..2].iter().all(|(shard, _)| owner(&cluster, *shard).0 == "c"));
}

#[test]
fn r26_a_new_manager_continues_a_relocation() {
    let mut cluster = Cluster::of(&["a", "b", "c"]);
    let (shard, epoch) = shards_of(&cluster, "c")[0];
    cluster.node("c").stuck = true;
    misplaced(&mut cluster, "c", &[(shard, epoch)]);
    cluster.run(1_000);
    assert_eq!(cluster.moving(), 1);
    cluster.node("a").dead = true;
    cluster.sent_messages.clear();
    cluster.run(8_000);
    assert_eq!(cluster.manager(), ("b".into(), 2));
    let asked = cluster.sent_messages.iter().filter_map(|(_, to, message)| match message {
        ControlMessage::HandOff(HandOff { shard: of, id, .. }) if *of == shard => {
            Some((to.to_string(), id.term))
        }
        _ => None,
    });
    assert_eq!(asked.collect::<BTreeSet<_>>(), BTreeSet::from([("c".into(), 1)]));
    cluster.unstick("c");
    cluster.run(3_000);
    assert_eq!(owner(&cluster, shard), ("c".into(), Epoch(epoch.0 + 1)));
    assert_eq!(cluster.spread().into_values().sum::<usize>(), SHARDS as usize);
}

#[test]
fn r26_a_shard_that_is_handed_off_anyway_counts_once() {
    let mut cluster = limited(&["a", "b", "c"], 1);
    let former = cluster.epochs();
    let (of_b, of_c) = (shards_of(&cluster, "b"), shards_of(&cluster, "c"));
    // `c` is not asked to stop its shards, and reports them until then.
    cluster.cut_from_manager.insert(("a".into(), "c".into()));
    cluster.sent_messages.clear();
    cluster.handle("a", Event::Drain { node: "c".into(), draining: true });
    misplaced(&mut cluster, "c", &of_c);
    cluster.run(1_000);
    assert_eq!(cluster.moving(), 4);
    misplaced(&mut cluster, "b", &of_b[..1]);
    cluster.run(2_000);
    assert_eq!(raised(&cluster, &former), [(of_b[0].0, 1)], "the drain takes up no room");
    cluster.cut_from_manager.clear();
    cluster.run(5_000);
    assert!(raised(&cluster, &former).iter().all(|(_, by)| *by == 1));
    assert!(of_c.iter().all(|(shard, _)| announced(&cluster, *shard).len() == 1));
    assert_eq!(cluster.spread().get("c"), None);
}

#[test]
fn r26_an_abandoned_relocation_is_retried_after_a_pause() {
    let mut cluster = Cluster::new();
    cluster.settings.hand_off_timeout = 500;
    for node in ["a", "b"] {
        cluster.start(node);
    }
    cluster.run(15_000);
    let former = cluster.epochs();
    let (shard, epoch) = shards_of(&cluster, "b")[0];
    cluster.lose = |message| matches!(message, ControlMessage::HandOff(_));
    cluster.sent_messages.clear();
    misplaced(&mut cluster, "b", &[(shard, epoch)]);
    cluster.run(10_000);
    let attempts = announced(&cluster, shard).len();
    assert!((3..=4).contains(&attempts), "{attempts} attempts of half a second, 2 seconds apart");
    assert_eq!(raised(&cluster, &former), []);
    cluster.lose = |_| false;
    cluster.run(3_000);
    assert_eq!(raised(&cluster, &former), [(shard, 1)]);
}

#[test]
fn r26_a_shard_that_stays_misplaced_is_handed_off_after_a_pause() {
    let mut cluster = Cluster::of(&["a", "b"]);
    let former = cluster.epochs();
    let (shard, _) = shards_of(&cluster, "b")[0];
    // The owner does not know the map, so it claims the shard where it was.
    for _ in 0..1_000 {
        let (_, epoch) = owner(&cluster, shard);
        misplaced(&mut cluster, "b", &[(shard, epoch)]);
        cluster.run(10);
    }
    let times = raised(&cluster, &former)[0].1;
    assert!((4..=6).contains(&times), "{times} hand-offs in 10 seconds, 2 seconds apart");
}

#[test]
fn r12_balancing_limits_do_not_delay_relocations() {
    let mut cluster = Cluster::of(&["a", "b"]);
    cluster.start_with("c", Roles::ALL, 2);
    cluster.run(1_000);
    let former = cluster.epochs();
    let (shard, epoch) = shards_of(&cluster, "b")[0];
    cluster.handle("c", Event::NodeUnreachable { node: "a".into() });
    misplaced(&mut cluster, "b", &[(shard, epoch)]);
    cluster.run(500);
    assert_eq!(raised(&cluster, &former), [(shard, 1)]);
}

#[test]
fn r26_ignoring_misplaced_shards_leaves_them_in_place() {
    let mut cluster = Cluster::mutated(&["a", "b"], Mutation::IgnoreMisplacedShards);
    let former = cluster.epochs();
    let of_b = shards_of(&cluster, "b");
    misplaced(&mut cluster, "b", &of_b);
    cluster.run(5_000);
    assert_eq!(raised(&cluster, &former), []);
}

#[test]
fn a_report_names_the_lowest_misplaced_shards_that_fit() {
    let all: Vec<_> = (1..=1_000).map(|number| (ShardId(number), Epoch(u64::MAX))).collect();
    let mut report = NodeReport::default();
    report.set_misplaced(&[]);
    assert!(report.extensions.is_empty());
    report.set_misplaced(&all);
    assert_eq!(report.misplaced(), all[..NodeReport::MAX_MISPLACED]);

    // Little space is left in the block, and then none.
    let incarnation = Incarnation { counter: 1, nonce: 1 };
    for (bytes, named) in [(62_000, 256), (63_000, 128), (64_500, 64), (65_400, 8), (65_531, 0)] {
        let mut report = NodeReport { incarnation, ..NodeReport::default() };
        report.set_unrunnable_types(&["t".repeat(bytes)]).expect("it fits");
        report.set_misplaced(&all);
        assert_eq!(report.misplaced(), all[..named], "beside {bytes} bytes");
        assert_eq!(report.unrunnable_types().len(), 1);
    }
}

#[test]
fn misplaced_shards_that_did_not_fit_follow_in_later_reports() {
    let mut cluster = Cluster::new();
    cluster.pools = Pools::one(10 * SHARDS_PER_CHUNK);
    cluster.settings.max_relocations = 1_000;
    cluster.start("a");
    cluster.run(5_000);
    let former = cluster.epochs();
    cluster.node("a").stuck = true;
    find_misplaced(&mut cluster, &former);
    // The next report names others, because these are stopping.
    for _ in 0..100 {
        if cluster.moving() == 0 {
            cluster.run(10);
        }
    }
    let first: Vec<_> = (1..=NodeReport::MAX_MISPLACED as u32).map(ShardId).collect();
    assert_eq!(moving(&cluster), first);
    cluster.unstick("a");
    cluster.run(2_000);
    assert_eq!(raised(&cluster, &former).len(), former.len());
}
