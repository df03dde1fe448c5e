//! One machine, event by event: what it asks for at once, and when it asks again.

use crate::assign::Strategy;
use crate::extensions::Extensions;
use crate::ids::{Epoch, Incarnation, NodeId, ShardId};
use crate::message::Now;
use crate::node::{Action, Event, Identity, Machine, Report, Settings, Talk, WriteError};
use crate::rows::{Key, ManagerRow, Member, NodeRow, Roles, Row, ShardRow, ShardsRow, Standing};

const HOST: Roles = Roles { store: false, manager: false, host: true, gateway: false };

struct Alone {
    machine: Machine,
    now: u64,
    revision: u64,
    /// The writes that were not answered.
    writes: Vec<(u64, Row)>,
}

impl Alone {
    fn new(roles: Roles, settings: Settings) -> Self {
        let identity = Identity {
            node: "me".into(),
            roles,
            version: 1,
            addresses: vec!["me:1".into()],
            shards: 4,
            seed: 7,
        };
        let machine = Machine::new(settings, identity, Strategy::Average.build());
        let mut alone = Self { machine, now: 10_000, revision: 0, writes: Vec::new() };
        assert_eq!(alone.actions(), [Action::List]);
        alone
    }

    fn registered(roles: Roles) -> Self {
        let mut alone = Self::new(roles, Settings::default());
        alone.tell(Event::Listed(Some(Vec::new())));
        alone.done();
        alone
    }

    fn actions(&mut self) -> Vec<Action> {
        std::iter::from_fn(|| self.machine.poll()).collect()
    }

    fn tell(&mut self, event: Event) -> Vec<Action> {
        self.machine.handle(Now { mono: self.now, cluster: self.now }, event);
        let wake = self.machine.wake();
        assert!(wake.is_none_or(|wake| wake > self.now), "{wake:?} is not after {}", self.now);
        let actions = self.actions();
        for action in &actions {
            if let Action::Write { number, row, .. } = action {
                self.writes.push((*number, row.clone()));
            }
        }
        actions
    }

    fn wait(&mut self, millis: u64) -> Vec<Action> {
        self.now += millis;
        self.tell(Event::Tick)
    }

    fn learn(&mut self, key: Key, row: Row) -> Vec<Action> {
        self.revision += 1;
        let value = Some((row, self.revision));
        self.tell(Event::Row { key, value })
    }

    /// Answers the oldest write.
    fn written(&mut self, result: Result<u64, WriteError>) -> Vec<Action> {
        let (number, _) = self.writes.remove(0);
        self.tell(Event::Written { number, result })
    }

    fn done(&mut self) -> Vec<Action> {
        self.revision += 1;
        self.written(Ok(self.revision))
    }

    fn me(&self) -> Member {
        self.machine.member().expect("registered")
    }

    fn shards(&mut self, rows: &[(u64, Option<Member>)]) -> Vec<Action> {
        let shard = |(epoch, owner): &(u64, Option<Member>)| ShardRow {
            epoch: Epoch(*epoch),
            owner: owner.clone(),
            ..ShardRow::default()
        };
        let shards = rows.iter().map(shard).collect();
        let row = ShardsRow { term: 1, shards, extensions: Extensions::default() };
        self.learn(Key::Shards(0), Row::Shards(row))
    }

    fn manager(&mut self, term: u64, holder: Member) -> Vec<Action> {
        let row = ManagerRow { term, holder, extensions: Extensions::default() };
        self.learn(Key::Manager, Row::Manager(row))
    }
}

fn member(node: &str, counter: u64) -> Member {
    Member { node: node.into(), incarnation: Incarnation { counter, nonce: counter } }
}

fn row(counter: u64, roles: Roles) -> Row {
    Row::Node(NodeRow {
        incarnation: Incarnation { counter, nonce: counter },
        renewals: 0,
        standing: Standing::Live,
        draining: false,
        store_answers: true,
        roles,
        version: 1,
        since: 1,
        addresses: Vec::new(),
        format: 3,
        lease: 3_000,
        settings: 0,
        extensions: Extensions::default(),
    })
}

fn key(node: &str) -> Key {
    Key::Node(node.into())
}

fn writes(actions: &[Action]) -> Vec<&Key> {
    let written = |action| match action {
        &Action::Write { ref key, .. } => Some(key),
        _ => None,
    };
    actions.iter().filter_map(written).collect()
}

fn adopted(actions: &[Action]) -> Vec<(u32, u64)> {
    let adopted = |action: &Action| match action {
        Action::Adopt { shard, epoch, .. } => Some((shard.0, epoch.0)),
        _ => None,
    };
    actions.iter().filter_map(adopted).collect()
}

fn forgot(actions: &[Action]) -> Vec<(u32, u64)> {
    let forgot = |action: &Action| match action {
        Action::Forget { shard, epoch } => Some((shard.0, epoch.0)),
        _ => None,
    };
    actions.iter().filter_map(forgot).collect()
}

fn reported(actions: &[Action]) -> Option<Report> {
    actions.iter().rev().find_map(|action| match action {
        Action::Say { talk: Talk::Report(report), .. } => Some(Report::clone(report)),
        _ => None,
    })
}

#[test]
fn r7_nobody_registers_before_the_rows_were_listed() {
    let mut alone = Alone::new(HOST, Settings::default());
    assert_eq!(alone.wait(1_000), []);
    assert_eq!(writes(&alone.tell(Event::Listed(Some(Vec::new())))), [&key("me")]);
}

#[test]
fn who_leaves_before_it_registered_never_registers() {
    let mut alone = Alone::new(HOST, Settings::default());
    assert_eq!(alone.tell(Event::Leave), [Action::Left]);
    assert_eq!(alone.tell(Event::Listed(Some(Vec::new()))), []);
    assert_eq!(alone.wait(1_000), []);
}

#[test]
fn who_leaves_with_the_rows_listed_does_not_register_either() {
    let mut alone = Alone::new(HOST, Settings::default());
    // The first life registers in vain, and the rows are listed anew.
    alone.tell(Event::Listed(Some(Vec::new())));
    alone.tell(Event::Leave);
    alone.written(Err(WriteError::Conflict(None)));
    assert_eq!(writes(&alone.wait(1_000)), Vec::<&Key>::new());
}

#[test]
fn a_registration_without_an_answer_has_the_rows_listed_after_a_while() {
    let mut alone = Alone::new(HOST, Settings::default());
    alone.tell(Event::Listed(Some(Vec::new())));
    assert_eq!(alone.written(Err(WriteError::Unknown)), []);
    let retry = Settings::default().retry;
    assert_eq!(alone.wait(retry - 1), []);
    assert_eq!(alone.wait(1), [Action::List]);
}

#[test]
fn r8_a_renewal_without_an_answer_is_read_and_not_written_again() {
    let mut alone = Alone::registered(HOST);
    let Settings { renew, retry, .. } = Settings::default();
    assert_eq!(writes(&alone.wait(renew)), [&key("me")]);
    // While the answer may still come there is nothing to do, and nothing to wake for.
    assert_eq!(writes(&alone.wait(renew)), Vec::<&Key>::new());
    assert!(alone.machine.wake().is_some_and(|wake| wake > alone.now + 1), "it would be busy");
    assert_eq!(alone.written(Err(WriteError::Unknown)), [Action::Read(key("me"))]);
    assert_eq!(alone.wait(retry), [Action::Read(key("me"))]);
}

#[test]
fn a_node_wakes_for_its_renewals() {
    let mut alone = Alone::registered(HOST);
    let began = alone.now;
    for renewals in 1..=10 {
        while alone.writes.is_empty() {
            let wake = alone.machine.wake().expect("it renews");
            alone.wait(wake - alone.now);
        }
        alone.done();
        assert_eq!(alone.now - began, renewals * Settings::default().renew);
    }
}

#[test]
fn a_report_that_is_due_at_once_is_made_and_does_not_keep_the_node_awake() {
    let settings = Settings { report_delay: 0, ..Settings::default() };
    let mut alone = Alone::new(HOST, settings);
    alone.tell(Event::Listed(Some(Vec::new())));
    alone.done();
    let me = alone.me();
    alone.learn(key("m"), row(1, Roles::ALL));
    alone.manager(1, member("m", 1));
    let actions = alone.shards(&[(1, Some(me))]);
    assert_eq!(adopted(&actions), [(1, 1)]);
    let report = reported(&actions).expect("a report at once");
    assert_eq!(report.held.len(), 1);
    let woken = alone.machine.wake().expect("it renews") - alone.now;
    alone.wait(woken);
}

#[test]
fn r11_a_shard_is_held_under_the_epoch_of_its_row() {
    let mut alone = Alone::registered(HOST);
    let me = alone.me();
    assert_eq!(adopted(&alone.shards(&[(1, Some(me.clone()))])), [(1, 1)]);
    assert_eq!(alone.machine.held().collect::<Vec<_>>(), [(ShardId(1), Epoch(1), false)]);
    alone.tell(Event::Serving { shard: ShardId(1), epoch: Epoch(1) });
    assert_eq!(alone.machine.held().collect::<Vec<_>>(), [(ShardId(1), Epoch(1), true)]);
    let actions = alone.shards(&[(3, Some(me))]);
    assert_eq!((forgot(&actions), adopted(&actions)), (vec![(1, 1)], vec![(1, 3)]));
    let actions = alone.shards(&[(4, Some(member("b", 1)))]);
    assert_eq!((forgot(&actions), adopted(&actions)), (vec![(1, 3)], vec![]));
    assert_eq!(alone.machine.held().count(), 0);
}

#[test]
fn r5_a_refused_claim_is_reported_until_its_row_goes_above_it() {
    let mut alone = Alone::registered(HOST);
    let me = alone.me();
    alone.learn(key("m"), row(1, Roles::ALL));
    alone.manager(1, member("m", 1));
    alone.shards(&[(2, Some(me.clone())), (1, None)]);
    let (shard, epoch) = (ShardId(1), Epoch(2));
    alone.tell(Event::Lost { shard, epoch, standing: Some(Epoch(5)) });
    let refused = [(shard, epoch, Epoch(5))];
    assert_eq!(reported(&alone.wait(20)).expect("a report").refused, refused);
    // The same chunk is written again, for another shard.
    alone.shards(&[(2, Some(me.clone())), (2, None)]);
    assert_eq!(reported(&alone.wait(20)).expect("a report").refused, refused);
    alone.shards(&[(6, Some(me)), (2, None)]);
    assert_eq!(reported(&alone.wait(20)).expect("a report").refused, []);
}

#[test]
fn r9_no_shard_is_taken_while_the_lease_is_lapsed_or_rows_are_missed() {
    let mut alone = Alone::registered(HOST);
    let me = alone.me();
    alone.tell(Event::WatchLost);
    assert_eq!(adopted(&alone.shards(&[(1, Some(me.clone()))])), []);
    assert_eq!(adopted(&alone.tell(Event::Listed(Some(Vec::new())))), [(1, 1)]);
    alone.wait(Settings::default().lease);
    assert!(alone.machine.suspended());
    assert_eq!(adopted(&alone.shards(&[(1, Some(me.clone())), (1, Some(me))])), []);

    let mut alone = Alone::registered(Roles { manager: true, ..Roles::default() });
    let me = alone.me();
    assert_eq!(adopted(&alone.shards(&[(1, Some(me))])), [], "it hosts nothing");
}

/// A candidate that knows who managed last.
fn candidate(holder: Member) -> Alone {
    let mut alone = Alone::new(Roles::ALL, Settings::default());
    alone.revision = 1;
    let row = ManagerRow { term: 3, holder, extensions: Extensions::default() };
    let rows = vec![(Key::Manager, Row::Manager(row), 1)];
    alone.tell(Event::Listed(Some(rows)));
    let _ = alone.done();
    alone
}

#[test]
fn r10_a_life_that_was_not_seen_is_looked_for_and_not_followed() {
    let mut alone = candidate(member("x", 2));
    let read = Action::Read(key("x"));
    let retry = Settings::default().retry;
    // It was asked for when the node registered.
    assert!(!alone.wait(retry - 1).contains(&read), "not again at once");
    assert!(alone.wait(1).contains(&read));
    // A row of the life before it says nothing; nor does one that took the same counter.
    alone.learn(key("x"), row(1, Roles::ALL));
    let mut other = row(2, Roles::ALL);
    if let Row::Node(row) = &mut other {
        row.incarnation.nonce = 9;
    }
    alone.learn(key("x"), other);
    alone.wait(retry);
    assert_eq!(alone.writes.iter().filter(|(_, row)| matches!(row, Row::Manager(_))).count(), 0);
    // A later life: the one that managed is over.
    let actions = alone.learn(key("x"), row(3, Roles::ALL));
    assert_eq!(writes(&actions), [&Key::Manager]);
}

#[test]
fn a_rebalance_is_asked_of_nobody_where_a_former_life_of_this_node_managed() {
    let mut alone = Alone::registered(HOST);
    alone.manager(3, member("me", 9));
    let said = |actions: Vec<Action>| {
        actions.into_iter().any(|action| matches!(action, Action::Say { .. }))
    };
    assert!(!said(alone.tell(Event::Rebalance)));
    alone.manager(4, member("m", 1));
    assert!(said(alone.tell(Event::Rebalance)));
}

#[test]
fn what_a_machine_knows_is_shown_and_what_it_would_move() {
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
    let chunks: Vec<_> = alone.machine.assignments().map(|(at, _, rev)| (at, rev)).collect();
    assert_eq!(chunks, [(0, alone.revision)]);
    let moves = alone.machine.would_move();
    assert_eq!(moves.len(), 1, "{moves:?}");
    let (shard, from, to) = &moves[0];
    assert_eq!(*from, owners[shard.0 as usize - 1].1.as_ref().expect("an owner").node);
    assert_eq!(*to, NodeId::from("b"));
}
