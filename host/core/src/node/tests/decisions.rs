//! When a manager decides: at which event, at which time, and what delays it.

use super::alone::{Alone, HOST, host_row, key, leader, member, own, reported, row, sealed};
use crate::extensions::Extensions;
use crate::ids::{Epoch, ShardId};
use crate::node::{Action, ControlMessage, Event, NodeReport, Settings, WriteError};
use crate::rows::{
    Assignment, AssignmentsRow, HandOffId, HandOffIntent, NodeRow, NodeStatus, Roles, Row, RowKey,
};

const MANAGER: Roles = Roles { store: false, manager: true, host: false, gateway: false };
const GATEWAY: Roles = Roles { store: false, manager: false, host: false, gateway: true };

/// A node's row after this number of renewals.
fn renewed(roles: Roles, renewals: u64) -> Row {
    match row(1, roles) {
        Row::Node(row) => Row::Node(NodeRow { renewals, ..row }),
        row => row,
    }
}

/// Whether an intent is being written.
fn moves(alone: &Alone) -> bool {
    let intent = |row: &AssignmentsRow| row.assignments.iter().any(|it| it.hand_off.is_some());
    alone.writes.iter().any(|(_, row)| matches!(row, Row::Assignments(row) if intent(row)))
}

/// A manager without the host role, in an otherwise empty cluster.
fn manager() -> Alone {
    let mut alone = Alone::new(MANAGER, Settings::default());
    alone.handle(Event::RowsListed(Some(Vec::new())));
    alone.all_done();
    assert_eq!(alone.machine.managing_term(), Some(1));
    alone
}

#[test]
fn a_manager_decides_when_its_clock_starts_at_zero() {
    let mut alone = Alone::new(Roles::ALL, Settings::default());
    alone.now = 0;
    alone.handle(Event::RowsListed(Some(Vec::new())));
    alone.all_done();
    assert_eq!(alone.machine.managing_term(), Some(1));
}

#[test]
fn a_renewal_does_not_wake_a_manager_that_lacks_rows() {
    let mut alone = sealed(4);
    alone.all_done();
    // The manager's report to itself is new, so it decides a moment later.
    alone.wait(20);
    alone.wait(1);
    alone.wait(800);
    alone.handle(Event::WatchLost);
    alone.done();
    assert_eq!(alone.machine.next_wake(), Some(alone.now + Settings::default().report_delay));
}

#[test]
fn a_row_of_the_own_term_is_rewritten_without_a_manager_read() {
    let retry = Settings::default().store_retry_interval;
    let mut alone = leader(4, Vec::new());
    // The outcome of the seal's write is unknown, so the row is read, and then read again.
    alone.written(Err(WriteError::Unknown));
    alone.wait(retry);
    // The first read shows that the row was not written. It is written again, and the watch delivers it before the
    // answer.
    alone.handle(Event::RowObserved { key: RowKey::Assignments(0), value: None });
    let row = alone.writes[0].1.clone();
    alone.learn(RowKey::Assignments(0), row);
    alone.written(Err(WriteError::Unknown));
    // The answer to the second read shows the earlier state.
    let actions = alone.handle(Event::RowObserved { key: RowKey::Assignments(0), value: None });
    assert_eq!(alone.writes.len(), 1);
    assert!(
        !actions.contains(&Action::ReadRow(RowKey::Manager)),
        "the node need not read the manager's row"
    );
}

/// A plan's owners are cached between plans, and a debug build compares them with freshly computed ones.
#[test]
fn a_plan_counts_no_owner_whose_write_is_unknown() {
    let mut alone = leader(100, Vec::new());
    alone.done();
    alone.done();
    // Both rows are being written with their first owners. The second write is answered first.
    let (first, _) = alone.writes.remove(0);
    alone.done();
    let refuse = |alone: &mut Alone, shard| {
        let me = alone.me();
        let refused = vec![(ShardId(shard), Epoch(1), Epoch(1))];
        let report = NodeReport {
            incarnation: me.incarnation,
            refused_claims: refused,
            ..NodeReport::default()
        };
        alone.handle(Event::Received { from: me, message: ControlMessage::Report(report.into()) });
        assert_eq!(alone.writes.len(), 1, "the refused shard is planned again");
    };
    refuse(&mut alone, 65);
    alone.done();
    alone.handle(Event::RowWritten { request_id: first, result: Err(WriteError::Unknown) });
    refuse(&mut alone, 66);
}

#[test]
fn r11_after_a_lapse_chunks_count_as_applied_once_relisted() {
    let mut alone = Alone::registered(HOST);
    alone.learn(key("m"), row(1, Roles::ALL));
    alone.manager(1, member("m", 1));
    // It owns no shard: there are no claims to read.
    alone.shards(&[(1, Some(member("b", 1)))]);
    let seen = alone.revision;
    assert_eq!(reported(&alone.wait(20)).expect("a report").applied_chunks, [(0, seen)]);
    alone.handle(Event::WatchLost);
    alone.wait(Settings::default().lease);
    assert!(alone.machine.is_suspended());
    assert!(alone.done().contains(&Action::Resume), "it resumes after a renewal");
    assert_eq!(reported(&alone.wait(20)).expect("a report").applied_chunks, []);
    alone.handle(Event::RowsListed(Some(Vec::new())));
    assert_eq!(reported(&alone.wait(20)).expect("a report").applied_chunks, [(0, seen)]);
}

#[test]
fn unassignable_shards_are_assigned_once_a_drain_is_undone() {
    let mut alone = manager();
    alone.learn(key("b"), Row::Node(NodeRow { draining: true, ..host_row() }));
    assert!(alone.writes.is_empty(), "no node can own them");
    alone.learn(key("b"), Row::Node(host_row()));
    let all =
        |row: &AssignmentsRow| row.assignments.iter().all(|it| it.owner == Some(member("b", 1)));
    assert!(alone.writes.iter().any(|(_, row)| matches!(row, Row::Assignments(row) if all(row))));
}

#[test]
fn an_unreachable_node_delays_balancing_for_one_lease() {
    let lease = Settings::default().lease;
    let mut alone = sealed(4);
    alone.all_done();
    alone.learn(key("g"), row(1, GATEWAY));
    let message = ControlMessage::NodeUnreachable { node: "g".into() };
    alone.handle(Event::Received { from: member("g", 1), message });
    let unreachable_at = alone.now;
    // Balancing is due, but is postponed again and again.
    alone.learn(key("b"), row(1, HOST));
    for renewals in 1..=lease / 100 {
        assert!(!moves(&alone));
        alone.all_done();
        alone.now += 100;
        // The store responds; otherwise the node would release its own shards.
        let sent = alone.now;
        alone.handle(Event::StoreResponded { sent_at: sent });
        alone.learn(key("b"), renewed(HOST, renewals));
        alone.learn(key("g"), renewed(GATEWAY, renewals));
    }
    assert_eq!(alone.now, unreachable_at + lease);
    assert!(!moves(&alone));
    alone.handle(Event::Rebalance);
    assert!(moves(&alone), "balancing is delayed no longer than the lease");
}

#[test]
fn nothing_is_balanced_while_a_row_is_being_written() {
    let mut alone = sealed(100);
    alone.all_done();
    alone.handle(Event::ShardLost { shard: ShardId(1), epoch: Epoch(1), current_epoch: None });
    // It reports to itself, and reassigns the shard.
    alone.wait(20);
    alone.wait(1);
    assert_eq!(alone.writes.len(), 1, "the first chunk");
    alone.learn(key("b"), row(1, HOST));
    assert!(!moves(&alone), "a row is being written");
    assert_eq!(alone.writes.len(), 1);
    alone.done();
    assert!(moves(&alone));
}

#[test]
fn a_hand_off_ends_when_its_owner_dies() {
    let id = HandOffId { term: 0, number: 1 };
    let moving = Some(HandOffIntent { id, target: Some("d".into()) });
    let owned = |node: &str, moving| Assignment {
        epoch: Epoch(3),
        owner: Some(member(node, 1)),
        hand_off: moving,
        ..Assignment::default()
    };
    // A shard that is being handed off counts toward its target: one for b, one for c, two for d. There is nothing to
    // balance.
    let shards = vec![owned("b", moving), owned("b", None), owned("c", None), owned("d", None)];
    let shards = AssignmentsRow { term: 0, assignments: shards, extensions: Extensions::default() };
    let nodes = (1..).zip(["b", "c", "d"]);
    let mut rows: Vec<_> = nodes.map(|(at, node)| (key(node), row(1, HOST), at)).collect();
    rows.push((RowKey::Assignments(0), Row::Assignments(shards), 4));
    let mut alone = Alone::new(MANAGER, Settings::default());
    alone.revision = 10;
    alone.handle(Event::RowsListed(Some(rows)));
    alone.all_done();
    assert_eq!(alone.machine.managing_term(), Some(1));
    alone.learn(key("b"), Row::Node(NodeRow { status: NodeStatus::Dead, ..host_row() }));
    let given = alone.writes.iter().find_map(|(_, row)| match row {
        Row::Assignments(row) => {
            Some(row.assignments[..2].iter().map(|it| it.owner.clone()).collect::<Vec<_>>())
        }
        _ => None,
    });
    // The strategy chooses the hosts: the shards do not both go to d, the target of the hand-off.
    assert_eq!(given, Some(vec![Some(member("c", 1)), Some(member("d", 1))]));
}

#[test]
fn a_manager_without_reports_steps_down_at_the_timeout() {
    let mut alone = manager();
    alone.learn(key("b"), row(1, HOST));
    alone.learn(key("c"), row(1, MANAGER));
    let given = |row: &Row| matches!(row, Row::Manager(row) if row.holder == member("c", 1));
    let gives_on = |alone: &Alone| alone.writes.iter().any(|(_, row)| given(row));
    for renewals in 1..=Settings::default().manager_silence_timeout / 100 {
        assert!(!gives_on(&alone));
        alone.all_done();
        alone.now += 100;
        alone.learn(key("b"), renewed(HOST, renewals));
        alone.learn(key("c"), renewed(MANAGER, renewals));
    }
    // It decides at exactly that time.
    alone.handle(Event::Rebalance);
    assert!(gives_on(&alone));
}

#[test]
fn a_node_marked_dead_is_fenced_before_peers_are_updated() {
    let mut alone = Alone::registered(HOST);
    let me = alone.me();
    alone.shards(&[(1, Some(me))]);
    let dead = NodeRow { status: NodeStatus::Dead, ..own(&alone) };
    let actions = alone.learn(key("me"), Row::Node(dead));
    let at =
        |wanted: &dyn Fn(&Action) -> bool| actions.iter().position(wanted).expect("the action");
    let fenced = at(&|it| *it == Action::Fenced);
    assert!(fenced < at(&|it| matches!(it, Action::UpdatePeer { alive: false, .. })));
}
