//! Registration, lapse, recovery and death (R7 to R9).

use super::cluster::Cluster;
use crate::ids::NodeId;
use crate::message::Now;
use crate::node::{Action, ControlMessage, Event, LeaseSettings, Mutation, Notice};
use crate::rows::{NodeStatus, Roles, Row, RowKey};

fn renewals(cluster: &Cluster, node: &str) -> (u64, u64) {
    match &cluster.rows[&RowKey::Node(node.into())].0 {
        Row::Node(row) => (row.incarnation.counter, row.renewals),
        _ => unreachable!("a node's row"),
    }
}

#[test]
fn a_registration_over_a_live_lease_waits_for_its_lapse() {
    let mut cluster = Cluster::of(&["a", "b"]);
    cluster.node("b").dead = true;
    cluster.start("b");
    cluster.run(2_000);
    assert_eq!(renewals(&cluster, "b").0, 1, "R7: the old lease is still valid");
    cluster.run(6_000);
    assert_eq!(renewals(&cluster, "b").0, 2);
    assert_eq!(cluster.spread().into_values().collect::<Vec<_>>(), [6, 6]);
}

#[test]
fn r7_a_registration_waits_for_the_whole_lease_and_the_margin() {
    // Without a manager, no node ends the former incarnation before its lease has lapsed.
    let host = Roles { host: true, ..Roles::default() };
    let mut cluster = Cluster::new();
    cluster.start_with("b", host, 1);
    cluster.run(5_000);
    cluster.node("b").dead = true;
    let (lease, margin) = (cluster.settings.lease, cluster.settings.lease_margin);
    cluster.start_with("b", host, 1);
    // A node that has just started treats the lease as just renewed (R8).
    cluster.run(lease + margin - 100);
    assert_eq!(renewals(&cluster, "b").0, 1, "R7: the old lease may still be valid");
    cluster.run(1_000);
    assert_eq!(renewals(&cluster, "b").0, 2);
}

#[test]
fn a_node_with_an_embedded_store_registers_at_once() {
    let mut cluster = Cluster::new();
    cluster.settings.embedded_store = true;
    cluster.start("a");
    cluster.run(2_000);
    cluster.start("a");
    cluster.run(100);
    assert_eq!(
        renewals(&cluster, "a").0,
        2,
        "R7: the open store proves that no former incarnation runs"
    );
}

#[test]
fn a_second_process_of_a_live_node_owns_nothing() {
    let mut cluster = Cluster::of(&["a", "b"]);
    let first = cluster.nodes.remove(&"b".into()).expect("b");
    cluster.start("b");
    let copy = cluster.nodes.remove(&"b".into()).expect("the copy");
    cluster.nodes.insert("b".into(), first);
    // The copy receives no messages, and reads the rows repeatedly.
    let mut machine = copy.machine;
    for _ in 0..800 {
        cluster.run(10);
        let now = cluster.now();
        for (key, value) in &cluster.rows {
            machine
                .handle(now, Event::RowObserved { key: key.clone(), value: Some(value.clone()) });
        }
    }
    assert_eq!(machine.member(), None);
    assert_eq!(renewals(&cluster, "b").0, 1);
    let in_use = std::iter::from_fn(|| machine.poll()).filter(
        |action| matches!(action, Action::Notify(Notice::NodeNameInUse(of)) if *of.node.0 == *"b"),
    );
    assert_eq!(in_use.count(), 2, "once per lease, in 8 s");
}

#[test]
fn a_late_renewal_of_a_dead_process_is_no_name_conflict() {
    let mut cluster = Cluster::of(&["a", "b"]);
    cluster.node("b").dead = true;
    cluster.start("b");
    cluster.run(100);
    // Its last renewal was in flight.
    let key = RowKey::Node("b".into());
    if let Some((Row::Node(row), revision)) = cluster.rows.get_mut(&key) {
        cluster.revision += 1;
        (row.renewals, *revision) = (row.renewals + 1, cluster.revision);
    }
    let late = cluster.rows[&key].clone();
    cluster.handle("b", Event::RowObserved { key, value: Some(late) });
    cluster.run(8_000);
    assert_eq!(renewals(&cluster, "b").0, 2);
    assert!(!cluster.node("b").notices.iter().any(|it| matches!(it, Notice::NodeNameInUse(_))));
}

#[test]
fn a_suspended_node_does_not_wake_for_a_report() {
    let mut cluster = Cluster::of(&["a", "b"]);
    cluster.lapse("b");
    let (&shard, &(epoch, _)) = cluster.node("b").owns.first_key_value().expect("a shard");
    cluster.handle("b", Event::ShardServing { shard, epoch });
    cluster.run(100);
    let now = cluster.now;
    let machine = &mut cluster.node("b").machine;
    machine.handle(Now { mono: now, cluster_time: now, utc: 0 }, Event::Tick);
    assert!(machine.is_suspended());
    assert!(machine.next_wake().is_some_and(|wake| wake > now + 10), "{:?}", machine.next_wake());
}

#[test]
fn a_node_that_cannot_renew_suspends_before_mark_dead() {
    let mut cluster = Cluster::of(&["a", "b"]);
    cluster.node("b").cut = true;
    cluster.run(2_200);
    assert!(!cluster.node("b").suspended);
    cluster.lapse("b");
    assert_eq!(cluster.status("b"), Some(NodeStatus::Live), "R8: the observer adds a margin");
    cluster.run(2_000);
    assert_eq!(cluster.status("b"), Some(NodeStatus::Dead));
}

#[test]
fn after_a_short_cut_a_node_resumes_its_incarnation() {
    let mut cluster = Cluster::of(&["a", "b"]);
    cluster.lapse("b");
    cluster.node("b").cut = false;
    cluster.run(1_000);
    assert!(!cluster.node("b").suspended);
    assert_eq!(renewals(&cluster, "b").0, 1);
    assert_eq!(cluster.spread().into_values().collect::<Vec<_>>(), [6, 6]);
}

#[test]
fn after_a_lapse_a_shard_claimed_by_another_is_not_served() {
    let mut cluster = Cluster::of(&["a", "b"]);
    cluster.lapse("b");
    let thief = cluster.node("a").machine.member().expect("registered");
    let (shard, (epoch, _)) =
        cluster.node("b").owns.iter().next().map(|(s, o)| (*s, o.clone())).expect("a shard");
    cluster.claims.insert(shard, (crate::ids::Epoch(epoch.0 + 1), thief));
    cluster.node("b").cut = false;
    cluster.run(1_000);
    assert!(cluster.node("b").owns.get(&shard).is_none_or(|(at, _)| *at > epoch));
    cluster.run(3_000);
    cluster.spread();
}

#[test]
fn a_node_marked_dead_registers_a_new_incarnation() {
    let mut cluster = Cluster::of(&["a", "b"]);
    cluster.node("b").paused = true;
    cluster.run(8_000);
    assert_eq!(cluster.status("b"), Some(NodeStatus::Dead));
    cluster.node("b").paused = false;
    cluster.run(6_000);
    assert_eq!(renewals(&cluster, "b").0, 2, "R7: the dead incarnation cannot renew");
    assert_eq!(cluster.spread().into_values().collect::<Vec<_>>(), [6, 6]);
}

#[test]
fn a_forgotten_node_that_wakes_gets_a_higher_incarnation() {
    let mut cluster = Cluster::of(&["a", "b"]);
    cluster.node("b").paused = true;
    cluster.run(8_000);
    // An operator forgets the node, which does not know of its own death yet.
    let key = RowKey::Node("b".into());
    if let Some((Row::Node(row), revision)) = cluster.rows.get_mut(&key) {
        assert_eq!(row.status, NodeStatus::Dead);
        cluster.revision += 1;
        (row.status, *revision) = (NodeStatus::Left, cluster.revision);
    }
    cluster.node("b").paused = false;
    cluster.run(6_000);
    assert!(!cluster.node("b").left, "it has not left");
    assert_eq!(renewals(&cluster, "b").0, 2, "R7");
    assert_eq!(cluster.spread().into_values().collect::<Vec<_>>(), [6, 6]);
}

#[test]
fn a_manager_that_slept_counts_leases_as_just_renewed() {
    let asleep = |mut cluster: Cluster| {
        // Both sleep; the observer wakes first, with the changes that it missed still in transit.
        cluster.node("a").paused = true;
        cluster.node("b").paused = true;
        cluster.run(5_000);
        cluster.node("a").paused = false;
        cluster.run(200);
        cluster
    };
    let cluster = asleep(Cluster::of(&["a", "b"]));
    assert_eq!(cluster.status("b"), Some(NodeStatus::Live), "R8");
    let cluster = asleep(Cluster::mutated(&["a", "b"], Mutation::TrustStaleObservations));
    assert_eq!(cluster.status("b"), Some(NodeStatus::Dead), "the mutation takes effect");
}

#[test]
fn a_node_without_its_entity_store_releases_its_shards() {
    let mut cluster = Cluster::of(&["a", "b"]);
    // Its rows are written, but the `EntityStore` does not respond.
    for _ in 0..50 {
        cluster.now += 100;
        for node in ["a", "b"] {
            if node == "a" {
                let sent = cluster.now;
                cluster.handle("a", Event::StoreResponded { sent_at: sent });
            }
            cluster.handle(node, Event::Tick);
        }
    }
    assert!(cluster.node("b").owns.is_empty(), "R9");
    assert_eq!(cluster.spread().into_iter().collect::<Vec<_>>(), [("a".into(), 12)]);
    cluster.run(15_000);
    assert_eq!(cluster.spread().into_values().collect::<Vec<_>>(), [6, 6]);
}

/// Advances the time; the store responds to `c` only while `c` has no shards.
fn answer_c_without_shards(cluster: &mut Cluster, millis: u64) {
    for _ in 0..millis / 100 {
        cluster.now += 100;
        for node in ["a", "b", "c"] {
            if node != "c" || cluster.node("c").owns.is_empty() {
                let sent = cluster.now;
                cluster.handle(node, Event::StoreResponded { sent_at: sent });
            }
            cluster.handle(node, Event::Tick);
        }
    }
}

/// The probation of `c` each time it released its shards.
fn probations_of_c(cluster: &mut Cluster) -> Vec<u64> {
    let noted = cluster.node("c").notices.iter().filter_map(|notice| match notice {
        Notice::ShardsReleased { probation, .. } => Some(*probation),
        _ => None,
    });
    noted.collect()
}

#[test]
fn r9_probation_doubles_each_time_shards_are_released() {
    let mut cluster = Cluster::of(&["a", "b", "c"]);
    answer_c_without_shards(&mut cluster, 400_000);
    let lease = cluster.settings.lease;
    let spans = [4, 8, 16, 32, 64, 64].map(|leases| lease * leases);
    assert_eq!(probations_of_c(&mut cluster), spans);

    // A node that held its shards for long enough starts again with the shortest probation.
    cluster.run(lease * 64 * 2);
    assert_eq!(cluster.spread().into_values().collect::<Vec<_>>(), [4, 4, 4]);
    answer_c_without_shards(&mut cluster, 10_000);
    assert_eq!(probations_of_c(&mut cluster).last(), Some(&(lease * 4)));

    let mut cluster = Cluster::mutated(&["a", "b", "c"], Mutation::ConstantProbation);
    answer_c_without_shards(&mut cluster, 400_000);
    assert!(probations_of_c(&mut cluster).len() > 15, "the mutation takes effect");
}

#[test]
fn r9_probation_doubles_however_late_shards_return() {
    let mut cluster = Cluster::of(&["a", "b", "c"]);
    let lease = cluster.settings.lease;
    // Balancing waits for an unreachable member until long after the first probation.
    for step in 0..lease * 30 / 100 {
        if step * 100 < lease * 15 {
            cluster.handle("b", Event::NodeUnreachable { node: "c".into() });
        }
        answer_c_without_shards(&mut cluster, 100);
    }
    assert_eq!(probations_of_c(&mut cluster)[..2], [lease * 4, lease * 8]);
}

#[test]
fn r9_a_late_report_does_not_end_a_probation() {
    let mut cluster = Cluster::of(&["a", "b", "c"]);
    cluster.sent_messages.clear();
    cluster.run(1_000);
    let of_c = |sent: &(NodeId, NodeId, ControlMessage)| {
        (sent.0 == NodeId::from("c") && matches!(sent.2, ControlMessage::Report(_)))
            .then(|| sent.2.clone())
    };
    let late = cluster.sent_messages.iter().rev().find_map(of_c).expect("c reports");
    // The store responds to `c` again as soon as `c` has released its shards.
    answer_c_without_shards(&mut cluster, 6_000);
    assert!(cluster.node("c").owns.is_empty(), "R9");
    let epochs = cluster.epochs();
    let from = cluster.node("c").machine.member().expect("registered");
    cluster.handle("a", Event::Received { from, message: late });
    cluster.run(cluster.settings.renew_interval / 2);
    assert_eq!((cluster.moving(), cluster.epochs()), (0, epochs), "the later report counts");
}

#[test]
fn a_lapse_and_a_recovery_emit_notices() {
    let mut cluster = Cluster::of(&["a", "b"]);
    cluster.lapse("b");
    cluster.node("b").cut = false;
    cluster.run(1_000);
    let notices = &cluster.node("b").notices;
    assert!(notices.contains(&Notice::LeaseLapsed) && notices.contains(&Notice::LeaseRecovered));
}

#[test]
fn a_host_that_released_shards_gets_none_during_probation() {
    let mut cluster = Cluster::of(&["a", "b", "c"]);
    let before = cluster.epochs();
    // The `EntityStore` no longer responds to `c`; its renewals continue, but late.
    for _ in 0..40 {
        cluster.now += 100;
        for node in ["a", "b", "c"] {
            if node != "c" {
                let sent = cluster.now;
                cluster.handle(node, Event::StoreResponded { sent_at: sent });
            }
            cluster.handle(node, Event::Tick);
        }
    }
    let after = cluster.epochs();
    let most = after.iter().map(|(shard, at)| at.0 - before[shard].0).max();
    assert_eq!(most, Some(1), "each of its shards moved once and did not return");
    assert!(cluster.node("c").owns.is_empty());
    cluster.run(5_000);
    assert!(cluster.node("c").owns.is_empty(), "it is on probation for four leases");
    cluster.run(10_000);
    assert_eq!(cluster.spread().into_values().collect::<Vec<_>>(), [4, 4, 4]);
}

/// Delivers changed cluster settings to a node, as if from their row.
fn agree(cluster: &mut Cluster, node: &str, revision: u64, lease: u64) {
    let (margin, renew) = (600, 750.min(lease / 4));
    let agreed = LeaseSettings {
        revision,
        lease,
        lease_margin: margin,
        renew_interval: renew,
        manager_silence_timeout: lease * 2,
    };
    cluster.handle(node, Event::LeaseSettingsChanged(agreed));
}

fn declared(cluster: &Cluster, node: &str) -> (u64, u64) {
    match &cluster.rows[&RowKey::Node(node.into())].0 {
        Row::Node(row) => (row.lease, row.settings_revision),
        _ => unreachable!("a node's row"),
    }
}

#[test]
fn r8_a_longer_lease_is_relied_on_after_its_row_says_so() {
    let mut cluster = Cluster::of(&["a", "b"]);
    cluster.node("b").cut = true;
    agree(&mut cluster, "b", 1, 10_000);
    cluster.run(3_010);
    assert!(cluster.node("b").suspended, "the row shows 3 s, which the observer uses");
    assert_eq!(declared(&cluster, "b"), (3_000, 0));

    let mut cluster = Cluster::of(&["a", "b"]);
    agree(&mut cluster, "b", 1, 10_000);
    cluster.run(1_000);
    assert_eq!(declared(&cluster, "b"), (10_000, 1));
    cluster.node("b").cut = true;
    cluster.run(8_000);
    assert!(!cluster.node("b").suspended);
    // The observer knows of no change, and uses the row.
    assert_eq!(cluster.status("b"), Some(NodeStatus::Live));
    cluster.run(4_000);
    assert!(cluster.node("b").suspended);
    assert_eq!(cluster.status("b"), Some(NodeStatus::Dead));
}

#[test]
fn r8_a_shorter_lease_is_relied_on_before_its_row_says_so() {
    let mut cluster = Cluster::of(&["a", "b"]);
    agree(&mut cluster, "b", 1, 10_000);
    cluster.run(2_000);
    agree(&mut cluster, "b", 2, 1_000);
    cluster.run(9_000);
    assert_eq!(declared(&cluster, "b"), (10_000, 1), "a shard may still rely on the lease of 10 s");
    cluster.node("b").cut = true;
    cluster.run(1_100);
    assert!(cluster.node("b").suspended, "the node relies on a lease of 1 s");
    assert_eq!(cluster.status("b"), Some(NodeStatus::Live), "the observer still waits");
    cluster.node("b").cut = false;
    cluster.run(2_000);
    assert_eq!(declared(&cluster, "b"), (1_000, 2));
    assert!(!cluster.node("b").suspended);
}

#[test]
fn lease_settings_older_than_those_known_change_nothing() {
    let mut cluster = Cluster::of(&["a"]);
    agree(&mut cluster, "a", 2, 5_000);
    agree(&mut cluster, "a", 1, 1_000);
    cluster.run(2_000);
    assert_eq!(declared(&cluster, "a"), (5_000, 2));
}

#[test]
fn a_row_has_the_wall_clock_time_of_its_registration() {
    let registered = |cluster: &Cluster| match &cluster.rows[&RowKey::Node("a".into())].0 {
        Row::Node(row) => row.registered_unix_ms(),
        _ => unreachable!("a node's row"),
    };
    let mut cluster = Cluster::of(&["a"]);
    assert_eq!(registered(&cluster), None, "no wall-clock time was set");
    cluster.node("a").dead = true;
    cluster.start("a");
    cluster.node("a").machine.set_unix_ms(1_700_000_000_000);
    cluster.run(10_000);
    assert_eq!(cluster.incarnation("a"), 2);
    assert_eq!(registered(&cluster), Some(1_700_000_000_000));
}

#[test]
fn r7_each_incarnation_has_its_own_nonce() {
    let mut cluster = Cluster::of(&["a", "b"]);
    let nonce = |cluster: &mut Cluster, node: &str| {
        cluster.node(node).machine.member().expect("registered").incarnation
    };
    let (one, other) = (nonce(&mut cluster, "a"), nonce(&mut cluster, "b"));
    assert_ne!(one.nonce, other.nonce);
    cluster.node("a").paused = true;
    cluster.run(8_000);
    cluster.node("a").paused = false;
    cluster.run(8_000);
    let next = nonce(&mut cluster, "a");
    assert_eq!(
        (next.counter, next.nonce == one.nonce),
        (2, false),
        "a new nonce from the same process"
    );
}

#[test]
fn r8_a_drain_mark_does_not_delay_mark_dead() {
    let dies_after = |marked: bool| {
        let mut cluster = Cluster::of(&["a", "b"]);
        cluster.node("b").dead = true;
        cluster.run(2_500);
        if marked {
            cluster.handle("a", Event::Drain { node: "b".into(), draining: true });
        }
        let mut after = 2_500;
        while cluster.status("b") == Some(NodeStatus::Live) && after < 20_000 {
            cluster.run(10);
            after += 10;
        }
        after
    };
    assert_eq!(dies_after(true), dies_after(false));
}
