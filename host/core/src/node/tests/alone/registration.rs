//! How a node registers, renews its lease, and learns its own row.

use super::*;

#[test]
fn r7_a_node_registers_only_after_listing_the_rows() {
    let mut alone = Alone::new(HOST, Settings::default());
    assert_eq!(alone.wait(1_000), []);
    assert_eq!(writes(&alone.handle(Event::RowsListed(Some(Vec::new())))), [&key("me")]);
}

#[test]
fn rows_are_listed_again_after_an_unanswered_registration() {
    let mut alone = Alone::new(HOST, Settings::default());
    alone.handle(Event::RowsListed(Some(Vec::new())));
    assert_eq!(alone.written(Err(WriteError::Unknown)), []);
    let retry = Settings::default().store_retry_interval;
    assert_eq!(alone.wait(retry - 1), []);
    assert_eq!(alone.wait(1), [Action::ListRows]);
}

#[test]
fn r8_an_unanswered_renewal_is_read_and_not_rewritten() {
    let mut alone = Alone::registered(HOST);
    let Settings { renew_interval: renew, store_retry_interval: retry, .. } = Settings::default();
    assert_eq!(writes(&alone.wait(renew)), [&key("me")]);
    // While the answer may still arrive there is nothing to do, and no timer is set.
    assert_eq!(writes(&alone.wait(renew)), Vec::<&RowKey>::new());
    assert!(
        alone.machine.next_wake().is_some_and(|wake| wake > alone.now + 1),
        "otherwise it would busy-loop"
    );
    assert_eq!(alone.written(Err(WriteError::Unknown)), [Action::ReadRow(key("me"))]);
    for _ in 0..2 {
        assert_eq!(alone.wait(retry - 1), []);
        assert_eq!(alone.wait(1), [Action::ReadRow(key("me"))]);
    }
}

#[test]
fn a_node_wakes_for_its_renewals() {
    let mut alone = Alone::registered(HOST);
    let began = alone.now;
    for renewals in 1..=10 {
        while alone.writes.is_empty() {
            let wake = alone.machine.next_wake().expect("it renews");
            alone.wait(wake - alone.now);
        }
        alone.done();
        assert_eq!(alone.now - began, renewals * Settings::default().renew_interval);
    }
}

#[test]
fn a_due_report_causes_no_busy_loop() {
    let settings = Settings { report_delay: 0, ..Settings::default() };
    let mut alone = Alone::new(HOST, settings);
    alone.handle(Event::RowsListed(Some(Vec::new())));
    alone.done();
    let me = alone.me();
    alone.learn(key("m"), row(1, Roles::ALL));
    alone.manager(1, member("m", 1));
    let actions = alone.shards(&[(1, Some(me))]);
    assert_eq!(adopted(&actions), [(1, 1)]);
    let report = reported(&actions).expect("an immediate report");
    assert_eq!(report.shards.len(), 1);
    let woken = alone.machine.next_wake().expect("it renews") - alone.now;
    alone.wait(woken);
}

/// The node's own row each time the node writes it within `millis`; each write is answered immediately.
fn own_rows(alone: &mut Alone, millis: u64) -> Vec<(u64, NodeRow)> {
    let mut rows = Vec::new();
    for _ in 0..millis / 10 {
        alone.wait(10);
        let now = alone.now;
        rows.extend(alone.writes.iter().filter_map(|(_, row)| match row {
            Row::Node(row) => Some((now, row.clone())),
            _ => None,
        }));
        alone.all_done();
    }
    rows
}

#[test]
fn r9_a_row_reports_the_store_available_for_one_lease() {
    let mut alone = Alone::registered(HOST);
    let joined = alone.now;
    let lease = Settings::default().lease;
    let rows = own_rows(&mut alone, 2 * lease);
    assert!(rows.len() >= 7, "{rows:?}");
    for (at, row) in rows {
        assert_eq!(row.store_available, at - joined < lease, "{}", at - joined);
    }
}

#[test]
fn r8_a_shorter_lease_is_written_when_nobody_relies_on_more() {
    let agreed = |revision, lease| crate::node::LeaseSettings {
        revision,
        lease,
        lease_margin: 600,
        renew_interval: 250,
        manager_silence_timeout: 6_000,
    };
    let counted = |actions: &[Action]| {
        actions.iter().any(|action| matches!(action, Action::LeaseRenewed { .. }))
    };
    let mut alone = Alone::registered(HOST);
    let lease = Settings::default().lease;
    assert!(
        !counted(&alone.handle(Event::LeaseSettingsChanged(agreed(1, lease)))),
        "the lease is the same"
    );
    alone.all_done();
    assert!(
        counted(&alone.handle(Event::LeaseSettingsChanged(agreed(2, 1_000)))),
        "the node relies on the shorter lease immediately"
    );
    let until = alone.now + lease;
    alone.all_done();
    let rows = own_rows(&mut alone, 2 * lease);
    for (at, row) in &rows {
        let declared = if *at < until { (lease, 1) } else { (1_000, 2) };
        assert_eq!((row.lease, row.settings_revision), declared, "{at}, {until}");
    }
    assert!(rows.len() > 20);
    alone.now += 1;
    assert!(!counted(&alone.handle(Event::LeaseSettingsChanged(agreed(3, 5_000)))));
    let Row::Node(row) = &alone.writes[0].1 else { panic!("its own row") };
    assert_eq!(
        (row.lease, row.settings_revision),
        (5_000, 3),
        "a longer lease is published immediately"
    );
    let relied =
        alone.done().into_iter().any(|it| matches!(it, Action::LeaseRenewed { lease: 5_000, .. }));
    assert!(relied, "the node relies on the longer lease once it is written");
}

#[test]
fn r8_a_drain_mark_set_by_others_is_no_renewal() {
    let mut alone = Alone::registered(HOST);
    alone.wait(Settings::default().renew_interval);
    let marked = NodeRow { draining: true, ..own(&alone) };
    let actions = alone.learn(key("me"), Row::Node(marked.clone()));
    let counted = |actions: &[Action]| {
        actions.iter().any(|action| matches!(action, Action::LeaseRenewed { .. }))
    };
    assert!(!counted(&actions), "the node did not renew the lease");
    let revision = alone.revision;
    let conflict = WriteError::Conflict(Some((Row::Node(marked), revision)));
    assert!(!counted(&alone.written(Err(conflict))));
    assert!(matches!(&alone.writes[0].1, Row::Node(row) if row.draining && row.renewals == 1));
    assert!(counted(&alone.done()));
}

#[test]
fn r7_a_drain_mark_set_during_registration_is_kept() {
    let mut alone = Alone::new(HOST, Settings::default());
    alone.handle(Event::RowsListed(Some(Vec::new())));
    let (number, row) = alone.writes.remove(0);
    let Row::Node(row) = row else { panic!("its own row") };
    // The watch delivers its row, with a mark that another node set on it, before the answer arrives.
    alone.learn(key("me"), Row::Node(row.clone()));
    let registered = alone.revision;
    let marked = NodeRow { draining: true, ..row };
    alone.learn(key("me"), Row::Node(marked.clone()));
    alone.handle(Event::RowWritten { request_id: number, result: Ok(registered) });
    // Its first renewal conflicts with the mark, and the next one preserves it.
    let expects = |actions: &[Action]| {
        actions.iter().find_map(|action| match action {
            Action::WriteRow { request_id: number, expected, row, .. } => {
                assert!(matches!(row, Row::Node(row) if row.renewals == 1));
                Some((*number, *expected))
            }
            _ => None,
        })
    };
    let (number, expected) =
        expects(&alone.wait(Settings::default().renew_interval)).expect("it renews");
    if expected == Some(registered) {
        let standing = Some((Row::Node(marked), registered + 1));
        let result = Err(WriteError::Conflict(standing));
        let (_, expected) =
            expects(&alone.handle(Event::RowWritten { request_id: number, result }))
                .expect("it renews again");
        assert_eq!(expected, Some(registered + 1), "otherwise it would lose its lease");
    }
}

#[test]
fn a_failed_listing_of_rows_is_retried_after_a_pause() {
    let mut alone = Alone::new(HOST, Settings::default());
    let retry = Settings::default().store_retry_interval;
    assert_eq!(alone.handle(Event::RowsListed(None)), []);
    assert_eq!(alone.wait(retry - 1), []);
    assert_eq!(alone.wait(1), [Action::ListRows]);
}

#[test]
fn r8_a_longer_lease_is_written_at_once_after_a_shorter_one() {
    let agreed = |revision, lease| crate::node::LeaseSettings {
        revision,
        lease,
        lease_margin: 600,
        renew_interval: 250,
        manager_silence_timeout: 6_000,
    };
    let mut alone = Alone::registered(HOST);
    alone.handle(Event::LeaseSettingsChanged(agreed(1, 1_000)));
    alone.all_done();
    assert_eq!(own(&alone).lease, Settings::default().lease, "another node may rely on it");
    alone.now += 1;
    alone.handle(Event::LeaseSettingsChanged(agreed(2, 5_000)));
    alone.all_done();
    assert_eq!((own(&alone).lease, own(&alone).settings_revision), (5_000, 2));
}
