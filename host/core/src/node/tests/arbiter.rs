//! Partitions in which all members reach the store: keep-alives and the arbiter's lease (E12, E13).

use super::cluster::Cluster;
use crate::extensions::Extensions;
use crate::ids::{Incarnation, NodeId};
use crate::node::{Action, ControlMessage, Event, Mutation, Notice};
use crate::rows::{ArbiterRow, Member, NodeStatus, Roles, Row, RowKey};

/// Longer than it takes to end a partition: failures, the wait of either side, the flag, the stop.
const ENDED: u64 = 40_000;

/// Nodes without an embedded store: the one that has it never loses.
const ROLES: Roles = Roles { store: false, ..Roles::ALL };

fn settings(cluster: &mut Cluster) {
    cluster.settings.keep_alive_interval = Some(1_000);
    cluster.settings.arbiter = true;
}

fn start(cluster: &mut Cluster, nodes: &[&str]) {
    for node in nodes {
        cluster.start_with(node, ROLES, 1);
        cluster.run(200);
    }
    cluster.run(5_000);
}

fn of(nodes: &[&str]) -> Cluster {
    let mut cluster = Cluster::new();
    settings(&mut cluster);
    start(&mut cluster, nodes);
    cluster
}

/// Cuts every message between the two sides.
fn cut(cluster: &mut Cluster, one: &[&str], other: &[&str]) {
    for (a, b) in one.iter().flat_map(|a| other.iter().map(move |b| (*a, *b))) {
        cluster.cut_from_manager.insert((a.into(), b.into()));
        cluster.cut_from_manager.insert((b.into(), a.into()));
    }
}

fn member(cluster: &mut Cluster, name: &str) -> Member {
    cluster.node(name).machine.member().expect("registered")
}

fn lost(cluster: &Cluster) -> Vec<String> {
    let lost = cluster.nodes.iter().filter(|(_, node)| node.lost);
    lost.map(|(name, _)| name.to_string()).collect()
}

fn arbitration(cluster: &Cluster) -> Option<(u64, String)> {
    match &cluster.rows.get(&RowKey::Arbiter)?.0 {
        Row::Arbiter(row) => Some((row.number, row.winner.node.to_string())),
        _ => None,
    }
}

/// How many keep-alives `of` has left unanswered, according to `by`.
fn failures(cluster: &mut Cluster, by: &str, of: &str) -> u64 {
    let counts = cluster.node(by).machine.unanswered_keep_alives();
    counts.filter(|(member, ..)| *member.node.0 == *of).map(|(_, count, _)| count).sum()
}

/// The time until the first arbitration.
fn time_to_arbitration(cluster: &mut Cluster) -> u64 {
    let from = cluster.now;
    while arbitration(cluster).is_none() && cluster.now < from + ENDED {
        cluster.run(10);
    }
    cluster.now - from
}

/// A row that a former arbitration may have left.
fn write_row(cluster: &mut Cluster, number: u64, winner: Member, unreachable: Vec<Member>) {
    let row =
        Row::Arbiter(ArbiterRow { number, winner, unreachable, extensions: Extensions::default() });
    cluster.revision += 1;
    cluster.rows.insert(RowKey::Arbiter, (row.clone(), cluster.revision));
    let value = Some((row, cluster.revision));
    for name in cluster.nodes.keys().cloned().collect::<Vec<_>>() {
        let event = Event::RowObserved { key: RowKey::Arbiter, value: value.clone() };
        cluster.handle(&name.0, event);
    }
}

#[test]
fn e12_an_answer_resets_the_count() {
    let mut cluster = of(&["a", "b", "c"]);
    assert_eq!(cluster.node("a").machine.unanswered_keep_alives().count(), 0);
    cut(&mut cluster, &["a"], &["b"]);
    cluster.run(4_500);
    assert!((3..=4).contains(&failures(&mut cluster, "a", "b")));
    assert_eq!(failures(&mut cluster, "a", "c"), 0);
    cluster.cut_from_manager.clear();
    cluster.run(1_500);
    assert_eq!(failures(&mut cluster, "a", "b"), 0);
}

#[test]
fn e12_only_the_incarnation_that_is_meant_answers() {
    let mut cluster = of(&["a", "b"]);
    let (a, b) = (member(&mut cluster, "a"), member(&mut cluster, "b"));
    cluster.sent_messages.clear();
    let other = Incarnation { counter: b.incarnation.counter + 1, ..b.incarnation };
    for to in [other, b.incarnation] {
        let message = ControlMessage::KeepAlive { to, number: 99 };
        cluster.handle("b", Event::Received { from: a.clone(), message });
    }
    let acks = cluster.sent_messages.iter().filter(|(_, _, message)| {
        matches!(message, ControlMessage::KeepAliveAck { number: 99, .. })
    });
    assert_eq!(acks.count(), 1);
}

#[test]
fn e12_an_ack_of_another_incarnation_does_not_count() {
    let mut cluster = of(&["a", "b"]);
    cut(&mut cluster, &["a"], &["b"]);
    cluster.run(4_500);
    let (a, b) = (member(&mut cluster, "a"), member(&mut cluster, "b"));
    let before = failures(&mut cluster, "a", "b");
    let ack = |to| ControlMessage::KeepAliveAck { to, number: 9 };
    let former = Incarnation { nonce: b.incarnation.nonce + 1, ..b.incarnation };
    let from = Member { incarnation: former, ..b.clone() };
    cluster.handle("a", Event::Received { from, message: ack(a.incarnation) });
    cluster.handle("a", Event::Received { from: b.clone(), message: ack(former) });
    assert_eq!(failures(&mut cluster, "a", "b"), before);
    cluster.handle("a", Event::Received { from: b, message: ack(a.incarnation) });
    assert!(failures(&mut cluster, "a", "b") < before);
}

#[test]
fn e12_a_member_without_renewals_does_not_count() {
    let mut cluster = of(&["a", "b", "c"]);
    cluster.node("c").dead = true;
    cluster.run(3_000);
    assert!(failures(&mut cluster, "a", "c") < 3, "R8: its lease ends it");
    cluster.run(ENDED);
    assert_eq!(arbitration(&cluster), None);
    assert_eq!(cluster.status("c"), Some(NodeStatus::Dead));
}

#[test]
fn e13_the_larger_side_goes_on() {
    // The lone node is the oldest and the manager.
    let mut cluster = of(&["a", "b", "c"]);
    cut(&mut cluster, &["a"], &["b", "c"]);
    cluster.run(ENDED);
    assert_eq!(lost(&cluster), ["a"]);
    assert!(cluster.node("a").left && cluster.node("a").owns.is_empty());
    assert_eq!(cluster.status("a"), Some(NodeStatus::Left));
    assert_eq!(arbitration(&cluster), Some((1, "b".into())));
    assert_eq!(cluster.spread().into_values().collect::<Vec<_>>(), [6, 6], "served elsewhere");
}

#[test]
fn e13_an_even_split_is_decided_for_the_older_side() {
    let mut cluster = of(&["a", "b", "c", "d"]);
    cut(&mut cluster, &["a", "d"], &["b", "c"]);
    cluster.run(ENDED);
    assert_eq!(lost(&cluster), ["b", "c"]);
    assert_eq!(arbitration(&cluster), Some((1, "a".into())));
}

#[test]
fn e13_the_wait_is_longer_the_fewer_are_reached() {
    let mut waits = Vec::new();
    for alone in [&["e"][..], &["d", "e"]] {
        let mut cluster = of(&["a", "b", "c", "d", "e"]);
        let others: Vec<_> =
            ["a", "b", "c", "d", "e"].into_iter().filter(|node| !alone.contains(node)).collect();
        cut(&mut cluster, &others, alone);
        waits.push(time_to_arbitration(&mut cluster));
    }
    let (failures, timeout) = (6_000, 5_000);
    for (wait, reached) in waits.into_iter().zip([4, 3]) {
        let least = failures + timeout * 5 / reached;
        assert!((least - 1_000..least + 1_000).contains(&wait), "{wait}, not {least}");
    }
}

#[test]
fn e13_a_loser_starts_nothing_and_ends() {
    let mut cluster = of(&["a", "b", "c"]);
    cut(&mut cluster, &["a"], &["b", "c"]);
    // A shard that does not stop delays the end of the incarnation, but not the suspension.
    cluster.node("a").stuck = true;
    while !cluster.node("a").lost {
        cluster.run(10);
    }
    assert!(cluster.node("a").suspended);
    assert_eq!(cluster.status("a"), Some(NodeStatus::Live));
    cluster.run(10_000);
    assert!(cluster.node("a").suspended, "it renews, but does not resume");
    assert!(!cluster.node("a").left);
    cluster.unstick("a");
    cluster.run(2_000);
    assert!(cluster.node("a").left);
    assert_eq!(cluster.incarnation("a"), 1, "it does not register again");
}

#[test]
fn e13_a_loser_without_the_store_stays_suspended() {
    let mut cluster = of(&["a", "b", "c"]);
    cut(&mut cluster, &["a"], &["b", "c"]);
    cluster.node("a").stuck = true;
    while !cluster.node("a").lost {
        cluster.run(10);
    }
    cluster.node("a").cut = true;
    cluster.unstick("a");
    cluster.run(10_000);
    assert!(cluster.node("a").suspended && !cluster.node("a").left);
    assert_eq!(cluster.status("a"), Some(NodeStatus::Dead), "its lease lapsed");
    cluster.node("a").cut = false;
    cluster.run(10_000);
    assert_eq!(cluster.incarnation("a"), 1, "it does not register again");
}

#[test]
fn e13_contact_before_the_timeout_prevents_arbitration() {
    let mut cluster = of(&["a", "b", "c"]);
    cut(&mut cluster, &["a"], &["b", "c"]);
    cluster.run(9_000);
    assert!(failures(&mut cluster, "b", "a") >= 5);
    cluster.cut_from_manager.clear();
    cluster.run(ENDED);
    assert_eq!((arbitration(&cluster), lost(&cluster)), (None, Vec::new()));
}

#[test]
fn e13_a_member_with_the_flag_stays() {
    let mut cluster = of(&["a", "b", "c"]);
    cut(&mut cluster, &["a"], &["b", "c"]);
    time_to_arbitration(&mut cluster);
    // The row names the member, and then the winner reaches it after all.
    cluster.cut_from_manager.clear();
    cluster.run(ENDED);
    assert_eq!((arbitration(&cluster), lost(&cluster)), (Some((1, "b".into())), Vec::new()));
    // The settled row does not end it later.
    cluster.handle("a", Event::WatchLost);
    cluster.run(ENDED);
    assert_eq!(lost(&cluster), Vec::<String>::new());
}

#[test]
fn e13_flags_are_repeated_and_end() {
    let mut cluster = of(&["a", "b", "c"]);
    cut(&mut cluster, &["a"], &["b", "c"]);
    time_to_arbitration(&mut cluster);
    cluster.cut_from_manager.clear();
    let flags = |cluster: &mut Cluster, to: &str| {
        let sent = std::mem::take(&mut cluster.sent_messages);
        let flags = sent.into_iter().filter(|(from, receiver, message)| {
            let is_flag = matches!(message, ControlMessage::ArbiterFlag { number: 1 });
            assert!(!is_flag || *from == NodeId::from("b"), "nobody relays: {from}");
            is_flag && *receiver == NodeId::from(to)
        });
        flags.count()
    };
    cluster.run(6_000);
    assert!(flags(&mut cluster, "a") >= 3);
    cluster.run(ENDED);
    flags(&mut cluster, "a");
    cluster.run(ENDED);
    assert_eq!(flags(&mut cluster, "a"), 0);
}

#[test]
fn e13_a_flag_counts_only_from_its_winner() {
    let mut cluster = of(&["a", "b", "c"]);
    cut(&mut cluster, &["a"], &["b"]);
    let (a, c) = (member(&mut cluster, "a"), member(&mut cluster, "c"));
    time_to_arbitration(&mut cluster);
    assert_eq!(arbitration(&cluster), Some((1, "a".into())), "the older one");
    for from in [c, Member { incarnation: Incarnation { counter: 9, nonce: 9 }, ..a.clone() }] {
        let message = ControlMessage::ArbiterFlag { number: 1 };
        cluster.handle("b", Event::Received { from, message });
    }
    let message = ControlMessage::ArbiterFlag { number: 0 };
    cluster.handle("b", Event::Received { from: a, message });
    cluster.run(ENDED);
    assert_eq!(lost(&cluster), ["b"]);
}

#[test]
fn e13_a_member_that_joins_later_does_not_lose() {
    let mut cluster = of(&["a", "b", "c"]);
    cut(&mut cluster, &["a"], &["b", "c"]);
    cut(&mut cluster, &["d"], &["b", "c"]);
    time_to_arbitration(&mut cluster);
    cluster.start_with("d", ROLES, 1);
    cluster.run(5_000);
    assert_eq!(lost(&cluster), ["a"]);
    cluster.cut_from_manager.clear();
    cluster.run(ENDED);
    assert_eq!(lost(&cluster), ["a"]);
}

#[test]
fn e13_a_stale_row_ends_no_later_incarnation() {
    let mut cluster = of(&["a", "b"]);
    let (a, b) = (member(&mut cluster, "a"), member(&mut cluster, "b"));
    let former = Incarnation { nonce: a.incarnation.nonce + 1, ..a.incarnation };
    write_row(&mut cluster, 5, b.clone(), vec![Member { incarnation: former, ..a.clone() }]);
    cluster.run(ENDED);
    assert_eq!(lost(&cluster), Vec::<String>::new());
    // The next arbitration has the next number.
    cut(&mut cluster, &["a"], &["b"]);
    cluster.run(ENDED);
    assert_eq!((arbitration(&cluster), lost(&cluster)), (Some((6, "a".into())), vec!["b".into()]));
}

#[test]
fn e13_a_winner_that_ends_makes_nobody_lose() {
    let mut cluster = of(&["a", "b"]);
    cut(&mut cluster, &["a"], &["b"]);
    time_to_arbitration(&mut cluster);
    cluster.node("a").dead = true;
    cluster.run(ENDED);
    assert_eq!((lost(&cluster), cluster.status("a")), (Vec::new(), Some(NodeStatus::Dead)));
    assert_eq!(cluster.spread().into_values().collect::<Vec<_>>(), [12]);
}

#[test]
fn e13_a_lost_answer_to_the_write_decides_nothing_twice() {
    let mut cluster = of(&["a", "b", "c"]);
    cut(&mut cluster, &["a"], &["b", "c"]);
    for node in ["a", "b", "c"] {
        cluster.node(node).unanswered = true;
    }
    cluster.run(ENDED);
    assert_eq!((arbitration(&cluster), lost(&cluster)), (Some((1, "b".into())), vec!["a".into()]));
}

#[test]
fn e13_a_node_that_slept_waits_for_the_flag_anew() {
    let mut cluster = of(&["a", "b", "c"]);
    cut(&mut cluster, &["a"], &["b", "c"]);
    time_to_arbitration(&mut cluster);
    cluster.run(500);
    cluster.node("a").paused = true;
    cluster.run(2_800);
    cluster.node("a").paused = false;
    // The flags that it missed while it slept prove nothing.
    cluster.cut_from_manager.clear();
    cluster.run(ENDED);
    assert_eq!(lost(&cluster), Vec::<String>::new());
}

#[test]
fn e13_no_lease_is_taken_while_a_member_is_silent() {
    let split = || {
        let mut cluster = of(&["a", "b", "c", "d"]);
        cut(&mut cluster, &["a", "b"], &["c", "d"]);
        cluster
    };
    let due = time_to_arbitration(&mut split());
    let mut cluster = split();
    cluster.run(due - 2_000);
    // Nobody can know on which side it is, or whether it has ended. It is silent for less than its lease and the margin.
    cluster.node("d").cut = true;
    cluster.run(2_700);
    assert_eq!(arbitration(&cluster), None);
    cluster.node("d").cut = false;
    cluster.run(ENDED);
    assert_eq!(lost(&cluster), ["c", "d"]);
}

#[test]
fn e13_the_node_of_the_store_never_loses() {
    let mut cluster = Cluster::new();
    settings(&mut cluster);
    start(&mut cluster, &["b", "c"]);
    cluster.start_with("a", Roles::ALL, 1);
    cluster.run(5_000);
    cut(&mut cluster, &["a"], &["b", "c"]);
    cluster.run(ENDED);
    assert_eq!(lost(&cluster), ["b", "c"]);
    assert_eq!(arbitration(&cluster), Some((1, "a".into())));
}

#[test]
fn e13_a_member_without_the_arbiter_takes_no_part() {
    let mut cluster = Cluster::new();
    settings(&mut cluster);
    start(&mut cluster, &["a", "b"]);
    cluster.settings.arbiter = false;
    start(&mut cluster, &["c"]);
    cluster.settings.keep_alive_interval = None;
    start(&mut cluster, &["d"]);
    cut(&mut cluster, &["a", "b"], &["c", "d"]);
    cluster.run(ENDED);
    assert!(failures(&mut cluster, "a", "c") >= 5, "E12: it is counted");
    assert_eq!(failures(&mut cluster, "a", "d"), 0, "E12: it would not answer");
    assert_eq!((arbitration(&cluster), lost(&cluster)), (None, Vec::new()));
}

#[test]
fn e13_everyone_sees_the_decision() {
    let mut cluster = of(&["a", "b", "c"]);
    cut(&mut cluster, &["a"], &["b", "c"]);
    cluster.run(ENDED);
    for (name, node) in &cluster.nodes {
        let decided = |it: &&Notice| matches!(it, Notice::ArbitrationDecided { number: 1, .. });
        assert_eq!(node.notices.iter().filter(decided).count(), 1, "{name}");
    }
    let lost = |it: &Notice| matches!(it, Notice::ArbitrationLost { number: 1, .. });
    assert!(cluster.node("a").notices.iter().any(lost));
}

#[test]
fn e13_without_keep_alives_nothing_is_sent() {
    let mut cluster = Cluster::of(&["a", "b"]);
    cluster.run(5_000);
    let is_new = |message: &ControlMessage| matches!(message, ControlMessage::KeepAlive { .. });
    assert!(!cluster.sent_messages.iter().any(|(_, _, message)| is_new(message)));
    let sends = |action: &Action| matches!(action, Action::Send { .. });
    assert!(!std::iter::from_fn(|| cluster.node("a").machine.poll()).any(|it| sends(&it)));
}

#[test]
fn e13_a_loser_that_ignores_it_goes_on() {
    let mut cluster = Cluster::new();
    settings(&mut cluster);
    cluster.settings.mutations.push(Mutation::IgnoreLostArbitration);
    start(&mut cluster, &["a", "b", "c"]);
    cut(&mut cluster, &["a"], &["b", "c"]);
    cluster.run(ENDED);
    assert!(arbitration(&cluster).is_some() && lost(&cluster).is_empty());
    assert_eq!(cluster.status("a"), Some(NodeStatus::Live));
}
