//! Tests of what a manager seals and writes, and of which requests it serves.

use super::*;

#[test]
fn r10_an_unseen_manager_is_read_and_not_replaced() {
    let mut alone = candidate(member("x", 2));
    let read = Action::ReadRow(key("x"));
    let retry = Settings::default().store_retry_interval;
    // It was requested when the node registered.
    assert!(!alone.wait(retry - 1).contains(&read), "not again immediately");
    assert!(alone.wait(1).contains(&read));
    // A row of the previous incarnation proves nothing, nor does one with the same counter.
    alone.learn(key("x"), row(1, Roles::ALL));
    let mut other = row(2, Roles::ALL);
    if let Row::Node(row) = &mut other {
        row.incarnation.nonce = 9;
    }
    alone.learn(key("x"), other);
    alone.wait(retry);
    assert_eq!(alone.writes.iter().filter(|(_, row)| matches!(row, Row::Manager(_))).count(), 0);
    // A later incarnation: the former manager has ended.
    let actions = alone.learn(key("x"), row(3, Roles::ALL));
    assert_eq!(writes(&actions), [&RowKey::Manager]);
}

#[test]
fn no_rebalance_is_sent_to_a_former_incarnation() {
    let mut alone = Alone::registered(HOST);
    alone.manager(3, member("me", 9));
    let requests_rebalance = |actions: Vec<Action>| {
        actions.into_iter().any(|action| matches!(action, Action::Send { .. }))
    };
    assert!(!requests_rebalance(alone.handle(Event::Rebalance)));
    alone.manager(4, member("m", 1));
    assert!(requests_rebalance(alone.handle(Event::Rebalance)));
}

#[test]
fn a_machine_shows_its_rows_and_its_planned_moves() {
    let mut alone = Alone::registered(Roles { gateway: true, ..Roles::default() });
    for node in ["a", "b", "c"] {
        alone.learn(key(node), row(1, Roles::ALL));
    }
    alone.manager(1, member("a", 1));
    let owners = ["a", "c", "a", "c"].map(|node| (1, Some(member(node, 1))));
    alone.shards(&owners);
    let nodes: Vec<_> = alone.machine.nodes().map(|(node, _)| node.to_string()).collect();
    assert_eq!(nodes, ["a", "b", "c", "me"]);
    assert_eq!(alone.machine.manager_row().map(|row| row.term), Some(1));
    let chunks: Vec<_> = alone.machine.assignment_rows().map(|(at, _, rev)| (at, rev)).collect();
    assert_eq!(chunks, [(0, alone.revision)]);
    let moves = alone.machine.preview_rebalance();
    assert_eq!(moves.len(), 1, "{moves:?}");
    let (shard, from, to) = &moves[0];
    assert_eq!(*from, owners[shard.0 as usize - 1].1.as_ref().expect("an owner").node);
    assert_eq!(*to, NodeId::from("b"));
}

#[test]
fn r10_nothing_is_decided_before_every_row_is_sealed() {
    let mut alone = leader(100, Vec::new());
    let lengths = |alone: &Alone| {
        let of = |(_, row): &(u64, Row)| match row {
            Row::Assignments(row) => {
                (row.term, row.assignments.len(), row.assignments[0].owner.is_some())
            }
            _ => panic!("{row:?}"),
        };
        alone.writes.iter().map(of).collect::<Vec<_>>()
    };
    assert_eq!(lengths(&alone), [(1, 64, false), (1, 36, false)]);
    alone.done();
    assert_eq!(alone.machine.managing_term(), None);
    assert_eq!(lengths(&alone), [(1, 36, false)], "the first has no owners yet");
    alone.done();
    assert_eq!(alone.machine.managing_term(), Some(1));
    assert_eq!(lengths(&alone), [(1, 64, true), (1, 36, true)]);
}

#[test]
fn r10_an_unanswered_seal_is_read_until_it_is_known() {
    let retry = Settings::default().store_retry_interval;
    let read = Action::ReadRow(RowKey::Assignments(0));
    let unanswered = || {
        let mut alone = leader(4, Vec::new());
        let row = alone.writes[0].1.clone();
        assert!(alone.written(Err(WriteError::Unknown)).contains(&read));
        assert!(!alone.wait(retry - 1).contains(&read), "not again immediately");
        assert!(alone.wait(1).contains(&read));
        assert_eq!((alone.machine.managing_term(), alone.writes.len()), (None, 0));
        (alone, row)
    };
    let (mut alone, row) = unanswered();
    alone.learn(RowKey::Assignments(0), row);
    assert_eq!(alone.machine.managing_term(), Some(1), "it was written");

    let (mut alone, _) = unanswered();
    alone.handle(Event::RowObserved { key: RowKey::Assignments(0), value: None });
    assert_eq!(
        (alone.machine.managing_term(), alone.writes.len()),
        (None, 1),
        "it was not written"
    );

    let (mut alone, _) = unanswered();
    let later = AssignmentsRow { term: 2, ..AssignmentsRow::default() };
    let actions = alone.learn(RowKey::Assignments(0), Row::Assignments(later));
    assert!(actions.contains(&Action::ReadRow(RowKey::Manager)), "another node is the manager");
    assert!(!actions.contains(&read), "the chunk is known for now");
    assert_eq!((alone.machine.managing_term(), alone.writes.len()), (None, 0));
    assert!(!alone.wait(retry - 1).contains(&read));
    assert!(alone.wait(1).contains(&read));
    let earlier = AssignmentsRow { term: 0, ..AssignmentsRow::default() };
    alone.learn(RowKey::Assignments(0), Row::Assignments(earlier));
    assert_eq!(
        (alone.machine.managing_term(), alone.writes.len()),
        (None, 1),
        "it is sealed again"
    );
}

#[test]
fn r10_a_late_manager_seals_no_row_of_a_later_term() {
    let retry = Settings::default().store_retry_interval;
    let later = AssignmentsRow { term: 5, ..AssignmentsRow::default() };
    let mut alone = leader(4, vec![(RowKey::Assignments(0), Row::Assignments(later), 3)]);
    assert_eq!((alone.machine.managing_term(), alone.writes.len()), (None, 0));
    let read = Action::ReadRow(RowKey::Assignments(0));
    assert!(!alone.wait(retry - 1).contains(&read));
    assert!(alone.wait(1).contains(&read));
    assert_eq!(alone.writes.len(), 0);
}

/// A manager that has just marked a node dead, in a write that is not answered yet.
fn marks_dead() -> Alone {
    let Settings { lease, lease_margin: margin, renew_interval: renew, .. } = Settings::default();
    let mut alone = sealed(4);
    alone.learn(key("b"), row(1, HOST));
    alone.all_done();
    let mut waited = 0;
    while !writes_death(&alone) {
        alone.all_done();
        alone.wait(10);
        waited += 10;
        assert!(waited < lease + margin + renew, "the node is not marked dead");
    }
    assert!(waited >= lease + margin);
    let dead = |row: &Row| matches!(row, Row::Node(row) if row.status == NodeStatus::Dead);
    alone.writes.retain(|(_, row)| dead(row));
    alone
}

fn writes_death(alone: &Alone) -> bool {
    let dead = |row: &Row| matches!(row, Row::Node(row) if row.status == NodeStatus::Dead);
    alone.writes.iter().any(|(_, row)| dead(row))
}

#[test]
fn r7_an_unanswered_mark_dead_is_retried_after_a_pause() {
    let retry = Settings::default().store_retry_interval;
    for (waits, again) in [(retry - 1, false), (retry, true)] {
        let mut alone = marks_dead();
        let actions = alone.written(Err(WriteError::Unknown));
        assert!(actions.contains(&Action::ReadRow(key("b"))) && !writes_death(&alone));
        alone.wait(waits);
        assert_eq!(writes_death(&alone), again, "after {waits} ms");
    }
}

#[test]
fn a_drain_mark_is_rewritten_only_if_its_answer_is_lost() {
    let retry = Settings::default().store_retry_interval;
    let drains = |alone: &Alone| {
        let of_b = |row: &Row| matches!(row, Row::Node(row) if row.incarnation.counter == 9);
        alone.writes.iter().filter(|(_, row)| of_b(row)).count()
    };
    let mut alone = Alone::registered(HOST);
    alone.learn(key("b"), row(9, HOST));
    // An unrelated renewal of the node is in flight.
    alone.wait(Settings::default().renew_interval);
    alone.handle(Event::Drain { node: "b".into(), draining: true });
    alone.wait(1);
    assert_eq!((drains(&alone), alone.writes.len()), (1, 2));
    let (number, _) = alone.writes.pop().expect("the drain");
    alone.handle(Event::RowWritten { request_id: number, result: Err(WriteError::Unknown) });
    alone.wait(retry - 1);
    assert_eq!(drains(&alone), 0, "not again immediately");
    alone.wait(1);
    assert_eq!(drains(&alone), 1);
}

#[test]
fn a_replaced_manager_still_completes_its_own_renewal() {
    let mut alone = sealed(4);
    alone.all_done();
    alone.wait(Settings::default().renew_interval);
    let of_me = |row: &Row| matches!(row, Row::Node(row) if row.renewals > 0);
    assert!(alone.writes.iter().any(|(_, row)| of_me(row)));
    alone.manager(2, member("b", 1));
    assert_eq!(alone.machine.managing_term(), None);
    alone.writes.retain(|(_, row)| of_me(row));
    assert!(alone.done().iter().any(|action| matches!(action, Action::LeaseRenewed { .. })));
}

#[test]
fn a_manager_that_slept_restarts_its_silence_timeouts() {
    let manager = Roles { manager: true, ..Roles::default() };
    let mut alone = Alone::new(manager, Settings::default());
    alone.handle(Event::RowsListed(Some(Vec::new())));
    alone.all_done();
    let renewed = |roles, renewals| match row(1, roles) {
        Row::Node(row) => Row::Node(NodeRow { renewals, ..row }),
        row => row,
    };
    let mut renewals = 0;
    let mut renew = |alone: &mut Alone| {
        renewals += 1;
        alone.learn(key("b"), renewed(HOST, renewals));
        alone.learn(key("c"), renewed(manager, renewals));
        alone.all_done();
    };
    renew(&mut alone);
    let from = member("b", 1);
    let report = NodeReport {
        incarnation: from.incarnation,
        store_available: true,
        ..NodeReport::default()
    };
    alone.handle(Event::Received { from, message: ControlMessage::Report(Box::new(report)) });
    let silence = Settings::default().manager_silence_timeout;
    alone.wait(silence + 1_000);
    let woke = alone.now;
    while alone.machine.manager_row().is_some_and(|row| row.holder.node == alone.me().node) {
        renew(&mut alone);
        alone.wait(100);
        assert!(alone.now < woke + 2 * silence, "the manager did not hand the leadership on");
    }
    assert!(alone.now >= woke + silence, "the leadership moved after {} ms", alone.now - woke);
}

#[test]
fn r8_checking_leases_once_per_margin_is_often_enough() {
    let Settings { lease, lease_margin: margin, .. } = Settings::default();
    let mut alone = sealed(4);
    alone.learn(key("b"), row(1, HOST));
    let mut ticks = 0;
    while !writes_death(&alone) {
        alone.all_done();
        alone.wait(margin);
        ticks += 1;
        assert!(ticks < 3 * lease / margin, "it assumes that it slept");
    }
}

#[test]
fn r8_relisted_rows_count_as_just_renewed() {
    let Settings { lease, lease_margin: margin, .. } = Settings::default();
    let dies_after = |listed: bool| {
        let mut alone = sealed(4);
        alone.learn(key("b"), row(1, HOST));
        let began = alone.now;
        while !writes_death(&alone) {
            alone.all_done();
            alone.wait(100);
            if listed && alone.now == began + lease {
                alone.handle(Event::WatchLost);
                alone.handle(Event::RowsListed(Some(Vec::new())));
            }
            assert!(alone.now < began + 10 * lease);
        }
        alone.now - began
    };
    assert!((lease + margin..2 * lease).contains(&dies_after(false)));
    assert!((2 * lease + margin..3 * lease).contains(&dies_after(true)));
}
