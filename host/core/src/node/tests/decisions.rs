//! When a manager decides: at which event, at which time, and what keeps it from it.

use super::alone::{Alone, HOST, host_row, key, leader, member, own, reported, row, sealed};
use crate::extensions::Extensions;
use crate::ids::{Epoch, ShardId};
use crate::node::{Action, Event, Report, Settings, Talk, WriteError};
use crate::rows::{HandOffId, Key, Moving, NodeRow, Roles, Row, ShardRow, ShardsRow, Standing};

const MANAGER: Roles = Roles { store: false, manager: true, host: false, gateway: false };
const GATEWAY: Roles = Roles { store: false, manager: false, host: false, gateway: true };

/// A node's row after so many renewals.
fn renewed(roles: Roles, renewals: u64) -> Row {
    match row(1, roles) {
        Row::Node(row) => Row::Node(NodeRow { renewals, ..row }),
        row => row,
    }
}

/// Whether an intent is being written.
fn moves(alone: &Alone) -> bool {
    let intent = |row: &ShardsRow| row.shards.iter().any(|it| it.moving.is_some());
    alone.writes.iter().any(|(_, row)| matches!(row, Row::Shards(row) if intent(row)))
}

/// A manager that hosts nothing and has the leadership of an empty cluster.
fn manager() -> Alone {
    let mut alone = Alone::new(MANAGER, Settings::default());
    alone.tell(Event::Listed(Some(Vec::new())));
    alone.all_done();
    assert_eq!(alone.machine.managing(), Some(1));
    alone
}

#[test]
fn a_manager_decides_when_its_clock_has_just_begun() {
    let mut alone = Alone::new(Roles::ALL, Settings::default());
    alone.now = 0;
    alone.tell(Event::Listed(Some(Vec::new())));
    alone.all_done();
    assert_eq!(alone.machine.managing(), Some(1));
}

#[test]
fn a_renewal_keeps_no_manager_awake_that_misses_rows() {
    let mut alone = sealed(4);
    alone.all_done();
    // Its report to itself is news; a moment later it has decided.
    alone.wait(20);
    alone.wait(1);
    alone.wait(800);
    alone.tell(Event::WatchLost);
    alone.done();
    assert_eq!(alone.machine.wake(), Some(alone.now + Settings::default().report_delay));
}

#[test]
fn a_row_of_its_own_term_is_written_again_and_not_doubted() {
    let retry = Settings::default().retry;
    let mut alone = leader(4, Vec::new());
    // The seal has no answer: it is read, and read again.
    alone.written(Err(WriteError::Unknown));
    alone.wait(retry);
    // The first read: it was not written. It is written again, and the watch tells it sooner than its answer.
    alone.tell(Event::Row { key: Key::Shards(0), value: None });
    let row = alone.writes[0].1.clone();
    alone.learn(Key::Shards(0), row);
    alone.written(Err(WriteError::Unknown));
    // The second read, from before.
    let actions = alone.tell(Event::Row { key: Key::Shards(0), value: None });
    assert_eq!(alone.writes.len(), 1);
    assert!(!actions.contains(&Action::Read(Key::Manager)), "it would ask who manages");
}

/// The owners that a plan counts are kept from plan to plan, and a debug build compares them with a new count.
#[test]
fn a_plan_counts_no_owner_whose_write_is_unknown() {
    let mut alone = leader(100, Vec::new());
    alone.done();
    alone.done();
    // Both rows are being written with their first owners. The second is answered first.
    let (first, _) = alone.writes.remove(0);
    alone.done();
    let refuse = |alone: &mut Alone, shard| {
        let me = alone.me();
        let refused = vec![(ShardId(shard), Epoch(1), Epoch(1))];
        let report = Report { incarnation: me.incarnation, refused, ..Report::default() };
        alone.tell(Event::Heard { from: me, talk: Talk::Report(report.into()) });
        assert_eq!(alone.writes.len(), 1, "it is planned anew");
    };
    refuse(&mut alone, 65);
    alone.done();
    alone.tell(Event::Written { number: first, result: Err(WriteError::Unknown) });
    refuse(&mut alone, 66);
}

#[test]
fn r11_after_a_lapse_rows_are_seen_when_acted_on_again() {
    let mut alone = Alone::registered(HOST);
    alone.learn(key("m"), row(1, Roles::ALL));
    alone.manager(1, member("m", 1));
    // Nothing of its own: there are no claims to read.
    alone.shards(&[(1, Some(member("b", 1)))]);
    let seen = alone.revision;
    assert_eq!(reported(&alone.wait(20)).expect("a report").seen, [(0, seen)]);
    alone.tell(Event::WatchLost);
    alone.wait(Settings::default().lease);
    assert!(alone.machine.suspended());
    assert!(alone.done().contains(&Action::Resume), "it is renewed");
    assert_eq!(reported(&alone.wait(20)).expect("a report").seen, []);
    alone.tell(Event::Listed(Some(Vec::new())));
    assert_eq!(reported(&alone.wait(20)).expect("a report").seen, [(0, seen)]);
}

#[test]
fn shards_nobody_could_have_are_given_once_a_drain_is_undone() {
    let mut alone = manager();
    alone.learn(key("b"), Row::Node(NodeRow { draining: true, ..host_row() }));
    assert!(alone.writes.is_empty(), "nobody can have them");
    alone.learn(key("b"), Row::Node(host_row()));
    let all = |row: &ShardsRow| row.shards.iter().all(|it| it.owner == Some(member("b", 1)));
    assert!(alone.writes.iter().any(|(_, row)| matches!(row, Row::Shards(row) if all(row))));
}

#[test]
fn who_was_not_reached_holds_balancing_up_for_one_lease() {
    let lease = Settings::default().lease;
    let mut alone = sealed(4);
    alone.all_done();
    alone.learn(key("g"), row(1, GATEWAY));
    let talk = Talk::Unreachable { node: "g".into() };
    alone.tell(Event::Heard { from: member("g", 1), talk });
    let told = alone.now;
    // An occasion to balance: it is put off, and put off again.
    alone.learn(key("b"), row(1, HOST));
    for renewals in 1..=lease / 100 {
        assert!(!moves(&alone));
        alone.all_done();
        alone.now += 100;
        // Otherwise it gives its own shards up.
        let sent = alone.now;
        alone.tell(Event::StoreAnswered { sent });
        alone.learn(key("b"), renewed(HOST, renewals));
        alone.learn(key("g"), renewed(GATEWAY, renewals));
    }
    assert_eq!(alone.now, told + lease);
    assert!(!moves(&alone));
    alone.tell(Event::Rebalance);
    assert!(moves(&alone), "no longer than the lease");
}

#[test]
fn nothing_is_balanced_while_a_row_is_being_written() {
    let mut alone = sealed(100);
    alone.all_done();
    alone.tell(Event::Lost { shard: ShardId(1), epoch: Epoch(1), standing: None });
    // It tells itself, and gives the shard again.
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
fn a_hand_off_is_over_when_its_owner_died_in_it() {
    let id = HandOffId { term: 0, number: 1 };
    let moving = Some(Moving { id, to: Some("d".into()) });
    let owned = |node: &str, moving| ShardRow {
        epoch: Epoch(3),
        owner: Some(member(node, 1)),
        moving,
        ..ShardRow::default()
    };
    // Counted where they go: one at b, one at c, two at d. Nothing is balanced.
    let shards = vec![owned("b", moving), owned("b", None), owned("c", None), owned("d", None)];
    let shards = ShardsRow { term: 0, shards, extensions: Extensions::default() };
    let nodes = (1..).zip(["b", "c", "d"]);
    let mut rows: Vec<_> = nodes.map(|(at, node)| (key(node), row(1, HOST), at)).collect();
    rows.push((Key::Shards(0), Row::Shards(shards), 4));
    let mut alone = Alone::new(MANAGER, Settings::default());
    alone.revision = 10;
    alone.tell(Event::Listed(Some(rows)));
    alone.all_done();
    assert_eq!(alone.machine.managing(), Some(1));
    alone.learn(key("b"), Row::Node(NodeRow { standing: Standing::Dead, ..host_row() }));
    let given = alone.writes.iter().find_map(|(_, row)| match row {
        Row::Shards(row) => {
            Some(row.shards[..2].iter().map(|it| it.owner.clone()).collect::<Vec<_>>())
        }
        _ => None,
    });
    // Not both to d, where the intent says: where the strategy does.
    assert_eq!(given, Some(vec![Some(member("c", 1)), Some(member("d", 1))]));
}

#[test]
fn who_hears_no_host_gives_the_lead_on_when_patience_ends() {
    let mut alone = manager();
    alone.learn(key("b"), row(1, HOST));
    alone.learn(key("c"), row(1, MANAGER));
    let given = |row: &Row| matches!(row, Row::Manager(row) if row.holder == member("c", 1));
    let gives_on = |alone: &Alone| alone.writes.iter().any(|(_, row)| given(row));
    for renewals in 1..=Settings::default().unheard / 100 {
        assert!(!gives_on(&alone));
        alone.all_done();
        alone.now += 100;
        alone.learn(key("b"), renewed(HOST, renewals));
        alone.learn(key("c"), renewed(MANAGER, renewals));
    }
    // It decides at exactly that time.
    alone.tell(Event::Rebalance);
    assert!(gives_on(&alone));
}

#[test]
fn who_is_marked_dead_drops_its_shards_before_it_tells_it() {
    let mut alone = Alone::registered(HOST);
    let me = alone.me();
    alone.shards(&[(1, Some(me))]);
    let dead = NodeRow { standing: Standing::Dead, ..own(&alone) };
    let actions = alone.learn(key("me"), Row::Node(dead));
    let at = |wanted: &dyn Fn(&Action) -> bool| actions.iter().position(wanted).expect("said");
    let fenced = at(&|it| *it == Action::Fenced);
    assert!(fenced < at(&|it| matches!(it, Action::Node { alive: false, .. })));
}
