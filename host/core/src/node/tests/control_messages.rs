//! Tests of which control messages count, and that rows decide (R11, R13, S3, S4, A8, A9).

use super::cluster::{Cluster, SHARDS};
use crate::assign::BuiltinStrategy;
use crate::ids::{Epoch, Incarnation, ShardId};
use crate::node::{Action, ControlMessage, Event, HandOff, Machine, Mutation, NodeIdentity};
use crate::pools::Pools;
use crate::rows::{Assignment, HandOffId, Member, Roles, Row, RowKey};

fn drain(cluster: &mut Cluster, node: &str) {
    cluster.sent_messages.clear();
    cluster.handle("a", Event::Drain { node: node.into(), draining: true });
}

fn row(cluster: &Cluster, shard: ShardId) -> Assignment {
    match &cluster.rows[&RowKey::Assignments(0)].0 {
        Row::Assignments(row) => row.assignments[shard.0 as usize - 1].clone(),
        _ => unreachable!("a row of shards"),
    }
}

fn member(cluster: &mut Cluster, node: &str) -> Member {
    cluster.node(node).machine.member().expect("registered")
}

/// Starts a hand-off whose owner, `c`, does not stop the shard.
fn under_way(cluster: &mut Cluster) -> HandOff {
    cluster.node("c").stuck = true;
    drain(cluster, "c");
    cluster.run(1_500);
    let hand_off = cluster.sent_messages.iter().find_map(|(_, _, message)| match message {
        ControlMessage::HandOff(hand_off) => Some(*hand_off),
        _ => None,
    });
    hand_off.expect("the hand-off message")
}

fn stopped(cluster: &mut Cluster, wrong: usize) -> (Assignment, Assignment) {
    let hand_off = under_way(cluster);
    let HandOff { term, shard, epoch, id, .. } = hand_off;
    let before = row(cluster, shard);
    let stopped = match wrong {
        0 => HandOff { term: term + 1, ..hand_off },
        1 => HandOff { epoch: Epoch(epoch.0 - 1), ..hand_off },
        2 => HandOff { incarnation: Incarnation::default(), ..hand_off },
        3 => HandOff { id: HandOffId { number: id.number + 100, ..id }, ..hand_off },
        _ => hand_off,
    };
    let message = ControlMessage::ShardStopped(stopped);
    let from = member(cluster, "c");
    cluster.handle("a", Event::Received { from, message });
    cluster.run(500);
    (before, row(cluster, shard))
}

#[test]
fn r11_shard_stopped_counts_only_if_all_its_ids_match() {
    for wrong in 0..4 {
        let (before, after) = stopped(&mut Cluster::of(&["a", "b", "c"]), wrong);
        assert_eq!(before, after, "part {wrong} belongs to another hand-off");
    }
    let (before, after) = stopped(&mut Cluster::of(&["a", "b", "c"]), 4);
    assert_eq!(after.epoch, Epoch(before.epoch.0 + 1), "A16: a matching message moves the shard");
    let mut careless = Cluster::mutated(&["a", "b", "c"], Mutation::SkipHandOffMatching);
    let (before, after) = stopped(&mut careless, 3);
    assert_ne!(before, after, "the mutation takes effect");
}

#[test]
fn r11_a_hand_off_of_an_old_term_or_incarnation_is_ignored() {
    let mut cluster = Cluster::of(&["a", "b"]);
    cluster.node("a").dead = true;
    cluster.run(8_000);
    assert_eq!(cluster.manager(), ("b".into(), 2));
    let me = member(&mut cluster, "b");
    let shard = ShardId(1);
    let epoch = row(&cluster, shard).epoch;
    let id = HandOffId { term: 1, number: 9 };
    let from = Member { node: "a".into(), ..me.clone() };
    for (term, incarnation) in [(1, me.incarnation), (2, Incarnation::default())] {
        let message = ControlMessage::HandOff(HandOff { term, shard, epoch, incarnation, id });
        cluster.handle("b", Event::Received { from: from.clone(), message });
    }
    assert!(cluster.node("b").owns.contains_key(&shard));
}

#[test]
fn a8_every_node_acknowledges_even_unknown_shards() {
    let mut cluster = Cluster::of(&["a", "b", "c"]);
    cluster.start_with("g", Roles { gateway: true, ..Roles::default() }, 1);
    cluster.run(2_000);
    drain(&mut cluster, "c");
    cluster.run(3_000);
    for node in ["b", "c", "g"] {
        let acks = cluster.sent_messages.iter().filter(|(from, to, message)| {
            (&*from.0, &*to.0) == (node, "a")
                && matches!(message, ControlMessage::BeginHandOffAck { .. })
        });
        assert_eq!(acks.count(), 4, "{node} acknowledges each shard of c");
    }
}

#[test]
fn a9_hand_off_is_sent_after_all_acks_or_at_the_deadline() {
    let hand_off_sent = |cluster: &Cluster| {
        cluster
            .sent_messages
            .iter()
            .any(|(_, _, message)| matches!(message, ControlMessage::HandOff(_)))
    };
    let mut cluster = Cluster::of(&["a", "b", "c"]);
    drain(&mut cluster, "c");
    cluster.run(600);
    assert!(hand_off_sent(&cluster), "all have acknowledged");
    let mut cluster = Cluster::of(&["a", "b", "c"]);
    cluster.lose = |message| matches!(message, ControlMessage::BeginHandOffAck { .. });
    drain(&mut cluster, "c");
    cluster.run(800);
    assert!(!hand_off_sent(&cluster), "a node may still be sending to the owner");
    cluster.run(1_000);
    assert!(hand_off_sent(&cluster), "R12: the deadline passed");
}

#[test]
fn s3_the_watch_delivers_rows_whose_announcement_is_lost() {
    let mut cluster = Cluster::of(&["a", "b"]);
    cluster.lose = |message| matches!(message, ControlMessage::RowUpdate { .. });
    cluster.start("c");
    cluster.run(5_000);
    assert_eq!(cluster.spread().into_values().collect::<Vec<_>>(), [4, 4, 4]);
}

#[test]
fn s4_the_manager_announces_its_rows_to_every_node() {
    let mut cluster = Cluster::of(&["a", "b", "c"]);
    cluster.start_with("g", Roles { gateway: true, ..Roles::default() }, 1);
    cluster.run(2_000);
    // Its watch delivers nothing from now on: the node learns rows from messages only.
    cluster.unwatched.insert("g".into());
    let before = cluster.epochs();
    assert_eq!(cluster.node("g").routes, before);
    drain(&mut cluster, "c");
    cluster.run(5_000);
    let after = cluster.epochs();
    assert_ne!(after, before);
    assert_eq!(cluster.node("g").routes, after);
}

#[test]
fn a_leaving_node_adopts_no_shard() {
    for leaves in [false, true] {
        let mut cluster = Cluster::of(&["a", "b", "c"]);
        // Its own shards take a long time to stop, so it does not leave immediately.
        cluster.node("c").stuck = true;
        if leaves {
            cluster.handle("c", Event::Leave);
        }
        let (me, now) = (member(&mut cluster, "c"), cluster.now());
        let key = RowKey::Assignments(0);
        let (row, revision) = cluster.rows[&key].clone();
        let Row::Assignments(mut row) = row else { unreachable!("a row of shards") };
        let others = |row: &Assignment| row.owner.as_ref() != Some(&me);
        let place = row.assignments.iter().position(others).expect("a shard of another node");
        row.assignments[place].epoch.0 += 1;
        row.assignments[place].owner = Some(me.clone());
        let machine = &mut cluster.node("c").machine;
        let value = Some((Row::Assignments(row), revision + 1));
        machine.handle(now, Event::RowObserved { key, value });
        let actions: Vec<_> = std::iter::from_fn(|| machine.poll()).collect();
        let adopts = actions.iter().any(|action| matches!(action, Action::StartShard { .. }));
        assert_eq!(adopts, !leaves, "{actions:?}");
    }
}

#[test]
fn s4_an_announced_row_moves_routes_early_and_never_back() {
    let mut cluster = Cluster::of(&["a", "b"]);
    let (from, now) = (member(&mut cluster, "a"), cluster.now());
    let key = RowKey::Assignments(0);
    let (old, at) = cluster.rows[&key].clone();
    let Row::Assignments(mut new) = old.clone() else { unreachable!("a row of shards") };
    new.assignments[0].epoch.0 += 1;
    new.assignments[0].owner = Some(from.clone());
    let mut tell = |row: Row, revision: u64| {
        let message = ControlMessage::RowUpdate { key: key.clone(), row, revision };
        let machine = &mut cluster.node("b").machine;
        machine.handle(now, Event::Received { from: from.clone(), message });
        let mut routes = Vec::new();
        while let Some(action) = machine.poll() {
            if let Action::UpdateRoute { shard, epoch, .. } = action {
                routes.push((shard, epoch));
            }
        }
        routes
    };
    let epoch = new.assignments[0].epoch;
    assert_eq!(tell(Row::Assignments(new), at + 1), [(ShardId(1), epoch)]);
    assert_eq!(
        tell(old, at),
        [],
        "R13: a message that is older than the known row changes nothing"
    );
}

#[test]
fn r13_cached_rows_give_routes_but_no_ownership() {
    let cluster = Cluster::of(&["a", "b"]);
    let now = cluster.now();
    let identity = NodeIdentity {
        node: "b".into(),
        roles: Roles::ALL,
        version: 1,
        addresses: Vec::new(),
        pool_roles: Vec::new(),
        weight: 1,
        pools: Pools::one(SHARDS),
        seed: 7,
    };
    let settings = cluster.settings.clone();
    let mut machine = Machine::new(settings, identity, BuiltinStrategy::Average.build());
    let rows = cluster.rows.iter().map(|(key, (row, at))| (key.clone(), row.clone(), *at));
    machine.handle(now, Event::CachedRows(rows.collect()));
    let mut routes = 0;
    while let Some(action) = machine.poll() {
        assert!(!matches!(action, Action::StartShard { .. }), "{action:?}");
        routes += usize::from(matches!(action, Action::UpdateRoute { owner: Some(_), .. }));
    }
    assert_eq!(routes, SHARDS as usize, "S8: it can route before the store responds");
    // The store does not respond, so the node owns nothing.
    machine.handle(now, Event::RowsListed(None));
    assert_eq!(machine.held_shards().count(), 0);
}
