//! Leadership and balancing.

use std::sync::atomic::{AtomicBool, Ordering};

use super::cluster::{Cluster, SHARDS};
use crate::assign::{AllocationStrategy, AllocationView, Average, Move};
use crate::node::{Action, ControlMessage, Event, Notice};
use crate::rows::{AssignmentsRow, ManagerRow, NodeStatus, Roles, Row, RowKey};

fn counts(cluster: &Cluster) -> Vec<usize> {
    cluster.spread().into_values().collect()
}

#[test]
fn the_first_host_gets_all_shards_and_each_join_balances() {
    let mut cluster = Cluster::of(&["a"]);
    assert_eq!(counts(&cluster), [SHARDS as usize]);
    for (node, spread) in [("b", vec![6, 6]), ("c", vec![4, 4, 4]), ("d", vec![3, 3, 3, 3])] {
        let before = cluster.epochs();
        cluster.start(node);
        cluster.run(5_000);
        assert_eq!(counts(&cluster), spread);
        let moved = cluster.epochs().iter().filter(|(shard, at)| before[shard] != **at).count();
        assert!(moved <= (SHARDS as usize).div_ceil(spread.len()), "{moved} moves at a join");
    }
}

#[test]
fn the_oldest_candidate_replaces_a_dead_manager_and_seals() {
    let mut cluster = Cluster::of(&["a", "b", "c"]);
    assert_eq!(cluster.manager(), ("a".into(), 1));
    cluster.node("a").dead = true;
    cluster.run(8_000);
    assert_eq!(cluster.manager(), ("b".into(), 2));
    assert_eq!(cluster.status("a"), Some(NodeStatus::Dead));
    assert_eq!(counts(&cluster), [6, 6]);
    for (key, (row, _)) in &cluster.rows {
        if let (RowKey::Assignments(_), Row::Assignments(row)) = (key, row) {
            assert_eq!(row.term, 2);
        }
    }
}

#[test]
fn a_deposed_manager_that_wakes_decides_nothing() {
    let mut cluster = Cluster::of(&["a", "b", "c"]);
    // It has pending decisions: hand-offs that it started and that no owner completes.
    cluster.node("c").stuck = true;
    cluster.handle("a", Event::Drain { node: "c".into(), draining: true });
    cluster.run(1_500);
    assert_eq!(cluster.moving(), 4);
    cluster.node("a").paused = true;
    cluster.run(8_000);
    assert_eq!(cluster.manager(), ("b".into(), 2));
    cluster.wrote.clear();
    cluster.node("a").paused = false;
    cluster.run(8_000);
    assert_eq!(cluster.manager(), ("b".into(), 2));
    assert_eq!(cluster.node("a").machine.managing_term(), None);
    let (own, mut wrote) = (RowKey::Node("a".into()), cluster.wrote.iter());
    let foreign = wrote.find(|(by, key)| &*by.0 == "a" && *key != own);
    assert_eq!(foreign, None, "R10: it writes its own row, and no other");
    cluster.unstick("c");
    cluster.handle("b", Event::Drain { node: "c".into(), draining: false });
    cluster.run(8_000);
    assert_eq!(counts(&cluster), [4, 4, 4]);
    for (row, _) in cluster.rows.values() {
        let Row::Assignments(row) = row else { continue };
        assert_eq!(row.term, 2);
    }
}

#[test]
fn shards_need_the_host_role_and_managing_the_manager_role() {
    let mut cluster = Cluster::new();
    cluster.start_with("g", Roles { gateway: true, ..Roles::default() }, 1);
    cluster.start_with("h", Roles { host: true, ..Roles::default() }, 1);
    cluster.run(3_000);
    assert!(!cluster.rows.contains_key(&RowKey::Manager));
    cluster.start_with("m", Roles { manager: true, ..Roles::default() }, 1);
    cluster.run(3_000);
    assert_eq!(cluster.manager().0, "m");
    assert_eq!(cluster.spread().into_iter().collect::<Vec<_>>(), [("h".into(), 12)]);
}

#[test]
fn mixed_versions_stop_balancing_and_fail_over_to_the_latest() {
    let mut cluster = Cluster::of(&["a", "b"]);
    cluster.start_with("c", Roles::ALL, 2);
    cluster.run(15_000);
    assert_eq!(cluster.spread().get("c"), None, "S16.2: no balancing while versions differ");
    cluster.node("a").dead = true;
    cluster.run(8_000);
    assert_eq!(cluster.spread()["c"], 6, "S16.5: fail-over prefers the latest version");
}

#[test]
fn a_rebalance_is_done_when_any_node_asks_for_it() {
    for requester in ["a", "b"] {
        ALLOWED.store(false, Ordering::Relaxed);
        let mut cluster = Cluster::new();
        cluster.settings.rebalance_interval = 3_600_000;
        cluster.strategy = || Box::new(WhenAllowed);
        cluster.start("a");
        cluster.run(1_000);
        cluster.start("b");
        cluster.run(5_000);
        ALLOWED.store(true, Ordering::Relaxed);
        cluster.run(60_000);
        assert_eq!(counts(&cluster), [SHARDS as usize], "the interval has not passed");
        cluster.handle(requester, Event::Rebalance);
        cluster.run(5_000);
        assert_eq!(counts(&cluster), [6, 6], "{requester} requested it");
    }
}

/// Proposes no moves until allowed.
#[derive(Debug)]
struct WhenAllowed;

static ALLOWED: AtomicBool = AtomicBool::new(false);

impl AllocationStrategy for WhenAllowed {
    fn allocate(&self, view: &AllocationView) -> Vec<Move> {
        Average.allocate(view)
    }

    fn rebalance(&self, view: &AllocationView, limit: usize) -> Vec<Move> {
        match ALLOWED.load(Ordering::Relaxed) {
            true => Average.rebalance(view, limit),
            false => Vec::new(),
        }
    }
}

#[test]
fn every_node_emits_notices_of_joins_leaves_and_managers() {
    let mut cluster = Cluster::of(&["a", "b"]);
    cluster.handle("b", Event::Leave);
    cluster.run(3_000);
    let notices = &cluster.node("a").notices;
    assert!(notices.iter().any(|n| matches!(n, Notice::NodeJoined(m) if &*m.node.0 == "b")));
    assert!(
        notices
            .iter()
            .any(|n| matches!(n, Notice::NodeGone { member, left_gracefully: true } if &*member.node.0 == "b"))
    );
    assert!(notices.iter().any(|n| matches!(n, Notice::ManagerChanged { term: 1, .. })));
}

/// Seed 41435 of the simulator: the answer to the write that elected term 2's manager arrived after the rows had been
/// sealed in term 3.
#[test]
fn r10_a_manager_elected_late_seals_no_row_of_a_later_term() {
    let sealed_by_b_after = |term: u64| {
        let mut cluster = Cluster::of(&["a", "b"]);
        let now = cluster.now();
        let (row, revision) = cluster.rows[&RowKey::Assignments(0)].clone();
        let Row::Assignments(row) = row else { panic!("a row of shards") };
        let a = cluster.node("a").machine.member().expect("registered");
        let b = &mut cluster.node("b").machine;
        let holder = b.member().expect("registered");
        let row = Row::Assignments(AssignmentsRow { term, ..row });
        let message =
            ControlMessage::RowUpdate { key: RowKey::Assignments(0), row, revision: revision + 10 };
        b.handle(now, Event::Received { from: a.clone(), message });
        let second = Row::Manager(ManagerRow { term: 2, holder, extensions: Default::default() });
        b.handle(
            now,
            Event::RowObserved { key: RowKey::Manager, value: Some((second, revision + 5)) },
        );
        let actions: Vec<_> = std::iter::from_fn(|| b.poll()).collect();
        let seals = |action: &Action| {
            matches!(action, Action::WriteRow { key: RowKey::Assignments(_), .. })
        };
        let sealed = actions.iter().any(seals);
        assert!(
            sealed || actions.contains(&Action::ReadRow(RowKey::Manager)),
            "it reads the manager's row"
        );
        let third = Row::Manager(ManagerRow { term: 3, holder: a, extensions: Default::default() });
        b.handle(
            now,
            Event::RowObserved { key: RowKey::Manager, value: Some((third, revision + 11)) },
        );
        assert_eq!(b.managing_term(), None);
        sealed
    };
    assert!(sealed_by_b_after(1), "rows of an earlier term are sealed");
    assert!(!sealed_by_b_after(3));
}

#[test]
fn the_first_candidate_campaigns_at_once() {
    let mut cluster = Cluster::new();
    cluster.start("a");
    assert!(cluster.rows.contains_key(&RowKey::Manager), "no time has passed");
    cluster.run(1_000);
    assert_eq!(cluster.node("a").machine.managing_term(), Some(1));
}

#[test]
fn k21_only_candidates_campaign_in_order_of_age() {
    let mut cluster = Cluster::new();
    cluster.settings.campaign_stagger = 60_000;
    let host = Roles { host: true, ..Roles::default() };
    cluster.start_with("h", host, 1);
    cluster.run(200);
    for node in ["a", "z", "b", "c", "d", "e"] {
        cluster.start(node);
        cluster.run(200);
    }
    cluster.run(3_000);
    assert_eq!(cluster.manager().0, "a");
    cluster.node("a").dead = true;
    cluster.run(8_000);
    assert_eq!(cluster.manager().0, "z", "the oldest; h is not a candidate");
}

#[test]
fn a_leaving_node_does_not_campaign() {
    let mut cluster = Cluster::of(&["a", "b", "c"]);
    cluster.node("b").stuck = true;
    cluster.handle("b", Event::Leave);
    cluster.run(1_000);
    cluster.node("a").dead = true;
    cluster.run(8_000);
    assert_eq!(cluster.manager().0, "c");
}

#[test]
fn a_candidate_whose_write_failed_campaigns_again() {
    let mut cluster = Cluster::of(&["a", "b"]);
    cluster.node("a").dead = true;
    cluster.run(2_800);
    assert_eq!(cluster.manager().0, "a");
    cluster.node("b").cut = true;
    cluster.run(1_400);
    assert_eq!(cluster.manager().0, "a", "its campaign failed");
    cluster.node("b").cut = false;
    cluster.run(3_000);
    assert_eq!(cluster.manager().0, "b");
}

#[test]
fn a_manager_at_rest_sleeps_until_there_is_work() {
    let mut cluster = Cluster::of(&["a"]);
    cluster.run(15_000);
    for _ in 0..200 {
        cluster.run(10);
        let wake = cluster.node("a").machine.next_wake().expect("it renews");
        assert!(wake > cluster.now + 1, "otherwise it would busy-loop");
    }
    let (shard, (epoch, _)) = cluster.node("a").owns.pop_first().expect("a shard");
    cluster.handle("a", Event::ShardLost { shard, epoch, current_epoch: None });
    cluster.run(cluster.settings.report_delay);
    assert_eq!(cluster.node("a").machine.next_wake(), Some(cluster.now + 1));
}
