//! Health checks: what is known of a process hastens a death, and nothing delays one (S7, S12, R9).

use super::cluster::Cluster;
use crate::ids::Incarnation;
use crate::node::{Action, Event};
use crate::rows::{HostProcess, Member, NodeRow, NodeStatus, Row, RowKey};

const INTERVAL: u64 = 100;

fn checked(nodes: &[&str]) -> Cluster {
    let mut cluster = Cluster::new();
    cluster.settings.health_check_interval = Some(INTERVAL);
    for node in nodes {
        cluster.start(node);
        cluster.run(200);
    }
    cluster.run(5_000);
    cluster
}

fn row<'a>(cluster: &'a Cluster, name: &str) -> &'a NodeRow {
    let Row::Node(row) = &cluster.rows[&RowKey::Node(name.into())].0 else { panic!("a node") };
    row
}

/// The current incarnation, according to the node's row.
fn member(cluster: &Cluster, name: &str) -> Member {
    Member { node: name.into(), incarnation: row(cluster, name).incarnation }
}

#[test]
fn s7_a_process_known_to_have_ended_is_replaced_early() {
    let mut cluster = checked(&["a", "b", "c"]);
    cluster.node("c").dead = true;
    cluster.finds_ended = true;
    let lease = cluster.settings.lease;
    cluster.run(lease * 3 / 4);
    assert_eq!(cluster.status("c"), Some(NodeStatus::Dead));
    assert_eq!(cluster.spread().into_values().collect::<Vec<_>>(), [6, 6], "and assigned anew");
}

#[test]
fn s7_a_manager_known_to_have_ended_is_replaced_early() {
    let mut cluster = checked(&["a", "b", "c"]);
    let (manager, term) = cluster.manager();
    cluster.node(&manager).dead = true;
    cluster.finds_ended = true;
    let lease = cluster.settings.lease;
    cluster.run(lease * 3 / 4);
    let (next, after) = cluster.manager();
    assert!(next != manager && after > term, "{next} in term {after}");
    assert_eq!(cluster.status(&manager), Some(NodeStatus::Dead));
}

#[test]
fn s7_a_check_that_proves_nothing_delays_no_death() {
    let mut cluster = checked(&["a", "b", "c"]);
    cluster.node("c").dead = true;
    let (lease, margin) = (cluster.settings.lease, cluster.settings.lease_margin);
    cluster.run(lease + margin - 800);
    assert!(!cluster.checks.is_empty(), "it was checked");
    assert_eq!(cluster.status("c"), Some(NodeStatus::Live), "R8: its lease may be valid");
    cluster.run(1_600);
    assert_eq!(cluster.status("c"), Some(NodeStatus::Dead));
}

#[test]
fn s7_a_silent_node_is_checked_again_and_again() {
    let mut cluster = checked(&["a", "b"]);
    assert!(cluster.checks.is_empty(), "whoever renews is not checked");
    let paused = member(&cluster, "b");
    cluster.node("b").paused = true;
    let mut times = Vec::new();
    for _ in 0..cluster.settings.lease / 10 {
        cluster.run(10);
        times.resize(cluster.checks.len(), cluster.now);
    }
    assert!(times.len() > 1, "checks at {times:?}");
    assert!(times.windows(2).all(|pair| pair[1] >= pair[0] + INTERVAL), "checks at {times:?}");
    assert!(cluster.checks.iter().all(|(by, of)| &*by.0 == "a" && *of == paused));
}

#[test]
fn s12_an_unreachable_node_is_checked_at_once() {
    let mut cluster = checked(&["a", "b", "c"]);
    for _ in 0..3 {
        cluster.handle("b", Event::NodeUnreachable { node: "c".into() });
        cluster.run(1);
    }
    let c = member(&cluster, "c");
    assert_eq!(cluster.checks, [("a".into(), c)], "by the manager, and once in an interval");
    assert_eq!(cluster.status("c"), Some(NodeStatus::Live));
}

#[test]
fn r9_the_end_of_another_incarnation_changes_nothing() {
    let mut cluster = checked(&["a", "b"]);
    let current = member(&cluster, "b").incarnation;
    for other in [
        Incarnation { counter: current.counter - 1, ..current },
        Incarnation { counter: current.counter + 1, ..current },
        Incarnation { nonce: current.nonce + 1, ..current },
    ] {
        let member = Member { node: "b".into(), incarnation: other };
        cluster.handle("a", Event::ProcessEnded { member });
        cluster.run(500);
        assert_eq!(cluster.status("b"), Some(NodeStatus::Live), "{other:?}");
    }
    let member = Member { node: "b".into(), incarnation: current };
    cluster.handle("a", Event::ProcessEnded { member });
    cluster.run(50);
    let next = cluster.incarnation("b");
    assert!(next > current.counter, "it had to register again");
    cluster.run(2_000);
    assert_eq!(cluster.incarnation("b"), next, "and stays");
}

#[test]
fn s7_a_registration_says_how_its_process_is_found() {
    let mut cluster = checked(&["a", "b"]);
    assert_eq!(row(&cluster, "b").host_process(), None);
    let (host, boot_id) = ("h".to_owned(), "i".to_owned());
    let process = HostProcess { host, boot_id, pid_namespace: 1, pid: 2, start_ticks: 3 };
    cluster.node("b").machine.set_host_process(process.clone());
    let member = member(&cluster, "b");
    cluster.handle("a", Event::ProcessEnded { member: member.clone() });
    cluster.run(5_000);
    let row = row(&cluster, "b");
    assert!(row.incarnation.counter > member.incarnation.counter && row.renewals > 0, "{row:?}");
    assert_eq!(row.host_process(), Some(process));
}

#[test]
fn without_a_health_check_no_process_is_checked() {
    let mut cluster = Cluster::of(&["a", "b", "c"]);
    cluster.node("c").dead = true;
    cluster.finds_ended = true;
    cluster.handle("b", Event::NodeUnreachable { node: "c".into() });
    cluster.run(2_000);
    assert_eq!((cluster.checks.len(), cluster.status("c")), (0, Some(NodeStatus::Live)));
    let checks = |action: &Action| matches!(action, Action::CheckProcess { .. });
    assert!(!std::iter::from_fn(|| cluster.node("a").machine.poll()).any(|it| checks(&it)));
}
