//! Messages to the manager are lost while both sides renew their leases: rows replace the messages (R11, S12).

use super::cluster::{Cluster, SHARDS};
use crate::node::{ControlMessage, Event, Mutation};
use crate::rows::{Assignment, NodeStatus, Roles, Row, RowKey, shard_at};

/// Longer than a node and the manager wait for each other's messages.
const LONG: u64 = 9_000;

const HOST: Roles = Roles { store: false, manager: false, host: true, gateway: false };

fn drop_messages(cluster: &mut Cluster, from: &str, to: &str) {
    cluster.cut_from_manager.insert((from.into(), to.into()));
}

fn drop_all_messages(cluster: &mut Cluster, nodes: &[&str]) {
    for (from, to) in nodes.iter().flat_map(|from| nodes.iter().map(move |to| (*from, *to))) {
        if from != to {
            drop_messages(cluster, from, to);
        }
    }
}

fn silent_terms(cluster: &Cluster) -> (u64, u32) {
    let Row::Manager(row) = &cluster.rows[&RowKey::Manager].0 else { panic!("a manager's row") };
    (row.term, row.consecutive_step_downs())
}

fn drain(cluster: &mut Cluster, node: &str) {
    cluster.handle("a", Event::Drain { node: node.into(), draining: true });
}

fn has(cluster: &Cluster, node: &str) -> usize {
    cluster.spread().get(node).copied().unwrap_or(0)
}

/// Shards that rows assign to an incarnation that does not hold them.
fn unserved(cluster: &Cluster) -> usize {
    let rows = cluster.rows.iter().filter_map(|(key, (row, _))| match (key, row) {
        (RowKey::Assignments(chunk), Row::Assignments(row)) => Some((chunk, row)),
        _ => None,
    });
    let shards = rows.flat_map(|(chunk, row)| {
        row.assignments.iter().enumerate().map(|(place, row)| (shard_at(*chunk, place), row))
    });
    let has = |shard, row: &Assignment| {
        let owner = row.owner.clone().expect("an owner");
        cluster.nodes[&owner.node].owns.get(&shard) == Some(&(row.epoch, owner))
    };
    shards.filter(|(shard, row)| !has(*shard, row)).count()
}

/// `a` is the manager; `c` was asked to hand its shards off and stopped them, but `a` does not learn of it.
fn unreported_stops(mut cluster: Cluster) -> Cluster {
    drop_messages(&mut cluster, "c", "a");
    drain(&mut cluster, "c");
    cluster.run(3_000);
    assert!(cluster.node("c").owns.is_empty());
    assert_eq!(cluster.moving(), 4, "no node learned that the shards stopped");
    cluster
}

fn unreported_balancing_stops(mut cluster: Cluster) -> Cluster {
    cluster.start_with("b", HOST, 1);
    cluster.run(5_000);
    drop_messages(&mut cluster, "b", "a");
    cluster.start_with("d", HOST, 1);
    cluster.run(3_000);
    assert!(cluster.moving() > 0, "the shards that `b` stopped are waiting");
    cluster
}

#[test]
fn r11_manager_silence_ends_an_incarnation_and_frees_shards() {
    let mut cluster = unreported_balancing_stops(Cluster::of(&["a"]));
    assert_eq!(cluster.incarnation("b"), 1);
    cluster.run(LONG);
    assert_eq!(cluster.incarnation("b"), 2, "its row shows what its messages could not");
    cluster.spread();
    let mut stays = Cluster::of(&["a"]);
    stays.settings.mutations.push(Mutation::IgnoreManagerSilence);
    let mut stays = unreported_balancing_stops(stays);
    stays.run(10 * LONG);
    assert_eq!(stays.incarnation("b"), 1);
    assert!(unserved(&stays) > 0, "the mutation takes effect: the shards remain unserved");
}

#[test]
fn s12_a_host_in_manager_silence_is_given_no_shards() {
    let mut cluster = unreported_balancing_stops(Cluster::of(&["a"]));
    cluster.run(LONG);
    assert_eq!(has(&cluster, "b"), 0, "it could not report that it stopped them");
    cluster.run(10 * LONG);
    assert_eq!((has(&cluster, "b"), cluster.incarnation("b")), (0, 2));
    cluster.cut_from_manager.clear();
    cluster.run(3_000);
    assert_eq!(has(&cluster, "b"), 4);
}

#[test]
fn a_drain_in_manager_silence_outlives_the_incarnation() {
    let mut cluster = unreported_stops(Cluster::of(&["a", "b", "c"]));
    cluster.run(LONG);
    assert_eq!(cluster.incarnation("c"), 2);
    assert_eq!(has(&cluster, "c"), 0);
    let draining = match &cluster.rows[&RowKey::Node("c".into())].0 {
        Row::Node(row) => row.draining,
        _ => false,
    };
    assert!(draining, "R12: the operator's drain mark remains");
}

#[test]
fn an_owner_that_misses_its_hand_off_sees_it_in_the_row() {
    let mut cluster = Cluster::of(&["a", "b", "c"]);
    drop_messages(&mut cluster, "a", "c");
    drop_messages(&mut cluster, "c", "a");
    drain(&mut cluster, "c");
    cluster.run(2_000);
    assert_eq!(
        cluster.node("c").owns.len(),
        4,
        "it still holds them, but their messages are buffered"
    );
    cluster.run(LONG);
    assert_eq!(has(&cluster, "c"), 0);
    assert_eq!(cluster.incarnation("c"), 2);
}

#[test]
fn a_claim_refused_in_manager_silence_is_reassigned() {
    let mut cluster = Cluster::of(&["a", "b", "c"]);
    drop_messages(&mut cluster, "c", "a");
    let (&shard, &(epoch, _)) = cluster.node("c").owns.first_key_value().expect("a shard");
    cluster.node("c").owns.remove(&shard);
    cluster.handle("c", Event::ShardLost { shard, epoch, current_epoch: Some(epoch) });
    cluster.run(LONG);
    assert_eq!(cluster.incarnation("c"), 2);
    assert_eq!(cluster.spread().values().sum::<usize>(), SHARDS as usize);
}

#[test]
fn a_node_leaves_in_manager_silence_without_hand_offs() {
    let mut cluster = Cluster::of(&["a", "b", "c"]);
    drop_messages(&mut cluster, "c", "a");
    cluster.handle("c", Event::Leave);
    cluster.run(LONG);
    assert!(cluster.node("c").left);
    assert_eq!(cluster.status("c"), Some(NodeStatus::Left));
    assert_eq!(cluster.spread().into_values().collect::<Vec<_>>(), [6, 6]);
}

#[test]
fn manager_silence_without_pending_work_is_harmless() {
    let mut cluster = Cluster::of(&["a", "b", "c"]);
    drop_messages(&mut cluster, "c", "a");
    drop_messages(&mut cluster, "a", "c");
    cluster.run(10 * LONG);
    assert_eq!((has(&cluster, "c"), cluster.incarnation("c")), (4, 1));
}

#[test]
fn the_lack_of_a_manager_ends_no_incarnation() {
    let mut cluster = Cluster::new();
    cluster.start("a");
    cluster.run(3_000);
    for node in ["b", "c"] {
        cluster.start_with(node, HOST, 1);
    }
    cluster.run(5_000);
    let mut cluster = unreported_stops(cluster);
    cluster.node("a").dead = true;
    cluster.run(10 * LONG);
    assert_eq!(cluster.incarnation("c"), 1, "no node could take the action that `c` waits for");
}

/// Reports are lost, and the `EntityStore` responds only to these nodes.
fn without_entities(answered: &[&str]) -> Cluster {
    let mut cluster = Cluster::of(&["a", "b", "c"]);
    cluster.lose = |message| matches!(message, ControlMessage::Report(_));
    for _ in 0..300 {
        cluster.now += 100;
        for node in ["a", "b", "c"] {
            if answered.contains(&node) {
                let sent = cluster.now;
                cluster.handle(node, Event::StoreResponded { sent_at: sent });
            }
            cluster.handle(node, Event::Tick);
        }
    }
    cluster
}

#[test]
fn shards_released_without_store_in_silence_are_reassigned() {
    let mut cluster = without_entities(&["a", "b"]);
    assert!(cluster.node("c").owns.is_empty(), "R9");
    assert_eq!((cluster.incarnation("c"), has(&cluster, "c")), (2, 0));
}

#[test]
fn an_entity_store_outage_ends_no_incarnation() {
    let mut cluster = without_entities(&[]);
    assert!(["a", "b", "c"].iter().all(|node| cluster.node(node).owns.is_empty()), "R9");
    assert_eq!(["a", "b", "c"].map(|node| cluster.incarnation(node)), [1, 1, 1]);
    cluster.run(2 * LONG);
    assert_eq!(unserved(&cluster), 0);
}

#[test]
fn the_only_candidate_takes_shards_that_need_an_owner() {
    let mut cluster = Cluster::of(&["a"]);
    for node in ["b", "c"] {
        cluster.start_with(node, HOST, 1);
    }
    cluster.run(5_000);
    for node in ["b", "c", "d"] {
        drop_messages(&mut cluster, node, "a");
    }
    cluster.run(LONG);
    cluster.start_with("d", HOST, 1);
    cluster.run(5 * LONG);
    assert_eq!(cluster.manager(), ("a".into(), 1));
    let before = cluster.epochs();
    cluster.run(5 * LONG);
    assert_eq!(cluster.epochs(), before, "it converges");
    assert_eq!(cluster.spread().values().sum::<usize>(), SHARDS as usize);
    let incarnations = ["b", "c", "d"].map(|node| cluster.incarnation(node));
    assert!(incarnations.iter().all(|counter| *counter <= 2), "{incarnations:?}");
}

/// `a` is the manager and receives messages from a gateway but not from hosts; the others receive each other's
/// messages.
fn manager_without_reports(mut cluster: Cluster) -> Cluster {
    cluster.start_with("g", Roles { gateway: true, ..Roles::default() }, 1);
    assert_eq!(cluster.manager(), ("a".into(), 1));
    for node in ["b", "c"] {
        drop_messages(&mut cluster, node, "a");
    }
    drain(&mut cluster, "c");
    cluster
}

#[test]
fn a_manager_that_receives_no_reports_steps_down() {
    let mut cluster = manager_without_reports(Cluster::of(&["a", "b", "c"]));
    cluster.run(LONG);
    assert_eq!(cluster.manager(), ("b".into(), 2));
    assert_eq!(cluster.node("a").machine.managing_term(), None);
    cluster.run(LONG);
    assert_eq!(
        (has(&cluster, "c"), unserved(&cluster)),
        (0, 0),
        "`b` learned which shards `c` stopped"
    );
    cluster.run(10 * LONG);
    assert_eq!(cluster.manager(), ("b".into(), 2), "a manager with reports keeps the leadership");
    let mut stays = Cluster::mutated(&["a", "b", "c"], Mutation::NeverStepDown);
    stays = manager_without_reports(stays);
    stays.run(10 * LONG);
    assert_eq!(stays.manager(), ("a".into(), 1), "the mutation takes effect");
}

#[test]
fn a_manager_that_receives_one_hosts_reports_stays() {
    let mut cluster = Cluster::of(&["a", "b", "c", "d"]);
    for node in ["b", "c"] {
        drop_messages(&mut cluster, node, "a");
    }
    cluster.run(10 * LONG);
    assert_eq!(cluster.manager(), ("a".into(), 1));
}

#[test]
fn leadership_passes_to_no_draining_or_ineligible_node() {
    let mut cluster = Cluster::of(&["a", "b"]);
    cluster.start_with("c", HOST, 1);
    cluster.start("d");
    cluster.run(5_000);
    cluster.handle("a", Event::Drain { node: "b".into(), draining: true });
    cluster.run(5_000);
    for node in ["b", "c", "d"] {
        drop_messages(&mut cluster, node, "a");
    }
    cluster.run(LONG);
    assert_eq!(cluster.manager(), ("d".into(), 2));
}

#[test]
fn without_reports_leadership_rotates_with_growing_delays() {
    let nodes = ["a", "b", "c"];
    let mut cluster = Cluster::of(&nodes);
    drop_all_messages(&mut cluster, &nodes);
    // The waits are 6, 12, 24, 48 and 96 s.
    let mut seen = Vec::new();
    for _ in 0..200 {
        cluster.run(1_000);
        seen.push(cluster.manager());
    }
    seen.dedup();
    let round = [("a", 1), ("b", 2), ("c", 3), ("a", 4), ("b", 5), ("c", 6)];
    assert_eq!(seen, round.map(|(node, term)| (node.into(), term)));
    assert_eq!(unserved(&cluster), 0);
    cluster.cut_from_manager.clear();
    cluster.run(30 * LONG);
    assert_eq!(cluster.manager(), ("c".into(), 6));
    assert_eq!(silent_terms(&cluster).1, 5);
}

#[test]
fn a_dead_managers_successor_starts_with_the_shortest_delay() {
    let nodes = ["a", "b", "c"];
    let mut cluster = Cluster::of(&nodes);
    drop_all_messages(&mut cluster, &nodes);
    cluster.run(2 * LONG);
    let (manager, term) = cluster.manager();
    assert!(term > 1);
    cluster.cut_from_manager.clear();
    cluster.node(&manager).dead = true;
    cluster.run(LONG);
    assert_eq!(silent_terms(&cluster), (term + 1, 0));
}

#[test]
fn a_manager_that_receives_no_reports_balances_nothing() {
    let mut cluster = Cluster::new();
    cluster.start_with("a", Roles { host: false, ..Roles::ALL }, 1);
    for node in ["b", "c"] {
        cluster.start_with(node, HOST, 1);
        cluster.run(200);
    }
    cluster.run(5_000);
    for node in ["b", "c", "d"] {
        drop_messages(&mut cluster, node, "a");
    }
    cluster.run(LONG);
    cluster.start_with("d", HOST, 1);
    cluster.run(5 * LONG);
    assert_eq!(cluster.spread().into_values().collect::<Vec<_>>(), [6, 6]);
    assert_eq!(["b", "c", "d"].map(|node| cluster.incarnation(node)), [1, 1, 1]);
    cluster.cut_from_manager.clear();
    cluster.run(3_000);
    assert_eq!(cluster.spread().into_values().collect::<Vec<_>>(), [4, 4, 4]);
}

#[test]
fn a_manager_with_reports_resets_the_silent_terms() {
    let silent = |cluster: &Cluster| match &cluster.rows[&RowKey::Manager].0 {
        Row::Manager(row) => (row.holder.node.to_string(), row.consecutive_step_downs()),
        row => panic!("{row:?}"),
    };
    let mut cluster = Cluster::of(&["a", "b"]);
    drop_messages(&mut cluster, "b", "a");
    while cluster.manager().0 == "a" {
        cluster.run(100);
    }
    assert_eq!(silent(&cluster), ("b".into(), 1));
    cluster.cut_from_manager.clear();
    cluster.run(2_000);
    drop_messages(&mut cluster, "a", "b");
    while cluster.manager().0 == "b" {
        cluster.run(100);
    }
    assert_eq!(silent(&cluster), ("a".into(), 1));
}
