//! One machine, event by event: what it asks for at once, and when it asks again.

use crate::assign::Strategy;
use crate::extensions::Extensions;
use crate::ids::{Epoch, Incarnation, NodeId, ShardId};
use crate::message::Now;
use crate::node::{Action, Event, Identity, Machine, Report, Settings, Talk, WriteError};
use crate::rows::{Key, ManagerRow, Member, NodeRow, Roles, Row, ShardRow, ShardsRow, Standing};

pub(super) const HOST: Roles = Roles { store: false, manager: false, host: true, gateway: false };

pub(super) struct Alone {
    pub(super) machine: Machine,
    pub(super) now: u64,
    pub(super) revision: u64,
    /// The writes that were not answered.
    pub(super) writes: Vec<(u64, Row)>,
}

impl Alone {
    pub(super) fn new(roles: Roles, settings: Settings) -> Self {
        Self::of(roles, settings, 4)
    }

    pub(super) fn of(roles: Roles, settings: Settings, shards: u32) -> Self {
        let identity = Identity {
            node: "me".into(),
            roles,
            version: 1,
            addresses: vec!["me:1".into()],
            shards,
            seed: 7,
        };
        let machine = Machine::new(settings, identity, Strategy::Average.build());
        let mut alone = Self { machine, now: 10_000, revision: 0, writes: Vec::new() };
        assert_eq!(alone.actions(), [Action::List]);
        alone
    }

    pub(super) fn registered(roles: Roles) -> Self {
        let mut alone = Self::new(roles, Settings::default());
        alone.tell(Event::Listed(Some(Vec::new())));
        alone.done();
        alone
    }

    fn actions(&mut self) -> Vec<Action> {
        std::iter::from_fn(|| self.machine.poll()).collect()
    }

    pub(super) fn tell(&mut self, event: Event) -> Vec<Action> {
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

    pub(super) fn wait(&mut self, millis: u64) -> Vec<Action> {
        self.now += millis;
        self.tell(Event::Tick)
    }

    pub(super) fn learn(&mut self, key: Key, row: Row) -> Vec<Action> {
        self.revision += 1;
        let value = Some((row, self.revision));
        self.tell(Event::Row { key, value })
    }

    /// Answers the oldest write.
    pub(super) fn written(&mut self, result: Result<u64, WriteError>) -> Vec<Action> {
        let (number, _) = self.writes.remove(0);
        self.tell(Event::Written { number, result })
    }

    pub(super) fn done(&mut self) -> Vec<Action> {
        self.revision += 1;
        self.written(Ok(self.revision))
    }

    /// Answers all writes until there are none.
    pub(super) fn all_done(&mut self) -> Vec<Action> {
        let mut actions = Vec::new();
        while !self.writes.is_empty() {
            actions.extend(self.done());
        }
        actions
    }

    pub(super) fn me(&self) -> Member {
        self.machine.member().expect("registered")
    }

    pub(super) fn shards(&mut self, rows: &[(u64, Option<Member>)]) -> Vec<Action> {
        let shard = |(epoch, owner): &(u64, Option<Member>)| ShardRow {
            epoch: Epoch(*epoch),
            owner: owner.clone(),
            ..ShardRow::default()
        };
        let shards = rows.iter().map(shard).collect();
        let row = ShardsRow { term: 1, shards, extensions: Extensions::default() };
        self.learn(Key::Shards(0), Row::Shards(row))
    }

    pub(super) fn manager(&mut self, term: u64, holder: Member) -> Vec<Action> {
        let row = ManagerRow { term, holder, extensions: Extensions::default() };
        self.learn(Key::Manager, Row::Manager(row))
    }
}

pub(super) fn member(node: &str, counter: u64) -> Member {
    Member { node: node.into(), incarnation: Incarnation { counter, nonce: counter } }
}

pub(super) fn row(counter: u64, roles: Roles) -> Row {
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

pub(super) fn key(node: &str) -> Key {
    Key::Node(node.into())
}

fn writes(actions: &[Action]) -> Vec<&Key> {
    let written = actions.iter().filter_map(|action| match action {
        Action::Write { key, .. } => Some(key),
        _ => None,
    });
    written.collect()
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

pub(super) fn reported(actions: &[Action]) -> Option<Report> {
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
    for _ in 0..2 {
        assert_eq!(alone.wait(retry - 1), []);
        assert_eq!(alone.wait(1), [Action::Read(key("me"))]);
    }
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

/// A node that leads, of which no row of assignments is written.
pub(super) fn leader(shards: u32, rows: Vec<(Key, Row, u64)>) -> Alone {
    let mut alone = Alone::of(Roles::ALL, Settings::default(), shards);
    alone.revision = 10;
    alone.tell(Event::Listed(Some(rows)));
    alone.done();
    assert!(matches!(alone.writes[..], [(_, Row::Manager(_))]), "{:?}", alone.writes);
    alone.done();
    alone
}

pub(super) fn sealed(shards: u32) -> Alone {
    let mut alone = leader(shards, Vec::new());
    alone.all_done();
    assert_eq!(alone.machine.managing(), Some(1));
    alone
}

#[test]
fn r10_nothing_is_decided_before_every_row_is_sealed() {
    let mut alone = leader(100, Vec::new());
    let lengths = |alone: &Alone| {
        let of = |(_, row): &(u64, Row)| match row {
            Row::Shards(row) => (row.term, row.shards.len(), row.shards[0].owner.is_some()),
            _ => panic!("{row:?}"),
        };
        alone.writes.iter().map(of).collect::<Vec<_>>()
    };
    assert_eq!(lengths(&alone), [(1, 64, false), (1, 36, false)]);
    alone.done();
    assert_eq!(alone.machine.managing(), None);
    assert_eq!(lengths(&alone), [(1, 36, false)], "the first has no owners yet");
    alone.done();
    assert_eq!(alone.machine.managing(), Some(1));
    assert_eq!(lengths(&alone), [(1, 64, true), (1, 36, true)]);
}

#[test]
fn r10_a_seal_without_an_answer_is_read_until_it_is_known() {
    let retry = Settings::default().retry;
    let read = Action::Read(Key::Shards(0));
    let unanswered = || {
        let mut alone = leader(4, Vec::new());
        let row = alone.writes[0].1.clone();
        assert!(alone.written(Err(WriteError::Unknown)).contains(&read));
        assert!(!alone.wait(retry - 1).contains(&read), "not again at once");
        assert!(alone.wait(1).contains(&read));
        assert_eq!((alone.machine.managing(), alone.writes.len()), (None, 0));
        (alone, row)
    };
    let (mut alone, row) = unanswered();
    alone.learn(Key::Shards(0), row);
    assert_eq!(alone.machine.managing(), Some(1), "it was written");

    let (mut alone, _) = unanswered();
    alone.tell(Event::Row { key: Key::Shards(0), value: None });
    assert_eq!((alone.machine.managing(), alone.writes.len()), (None, 1), "it was not");

    let (mut alone, _) = unanswered();
    let later = ShardsRow { term: 2, ..ShardsRow::default() };
    let actions = alone.learn(Key::Shards(0), Row::Shards(later));
    assert!(actions.contains(&Action::Read(Key::Manager)), "another manages");
    assert!(!actions.contains(&read), "it is known for now");
    assert_eq!((alone.machine.managing(), alone.writes.len()), (None, 0));
    assert!(!alone.wait(retry - 1).contains(&read));
    assert!(alone.wait(1).contains(&read));
    let earlier = ShardsRow { term: 0, ..ShardsRow::default() };
    alone.learn(Key::Shards(0), Row::Shards(earlier));
    assert_eq!((alone.machine.managing(), alone.writes.len()), (None, 1), "it is sealed anew");
}

#[test]
fn r10_who_was_told_late_that_it_leads_seals_no_row_of_a_later_term() {
    let retry = Settings::default().retry;
    let later = ShardsRow { term: 5, ..ShardsRow::default() };
    let mut alone = leader(4, vec![(Key::Shards(0), Row::Shards(later), 3)]);
    assert_eq!((alone.machine.managing(), alone.writes.len()), (None, 0));
    let read = Action::Read(Key::Shards(0));
    assert!(!alone.wait(retry - 1).contains(&read));
    assert!(alone.wait(1).contains(&read));
    assert_eq!(alone.writes.len(), 0);
}

/// A leader that has just written a death, which is to be answered.
fn marks_dead() -> Alone {
    let Settings { lease, margin, renew, .. } = Settings::default();
    let mut alone = sealed(4);
    alone.learn(key("b"), row(1, HOST));
    alone.all_done();
    let mut waited = 0;
    while !writes_death(&alone) {
        alone.all_done();
        alone.wait(10);
        waited += 10;
        assert!(waited < lease + margin + renew, "nobody marks it dead");
    }
    assert!(waited >= lease + margin);
    let dead = |row: &Row| matches!(row, Row::Node(row) if row.standing == Standing::Dead);
    alone.writes.retain(|(_, row)| dead(row));
    alone
}

fn writes_death(alone: &Alone) -> bool {
    let dead = |row: &Row| matches!(row, Row::Node(row) if row.standing == Standing::Dead);
    alone.writes.iter().any(|(_, row)| dead(row))
}

#[test]
fn r7_a_death_without_an_answer_is_written_again_after_a_while() {
    let retry = Settings::default().retry;
    for (waits, again) in [(retry - 1, false), (retry, true)] {
        let mut alone = marks_dead();
        let actions = alone.written(Err(WriteError::Unknown));
        assert!(actions.contains(&Action::Read(key("b"))) && !writes_death(&alone));
        alone.wait(waits);
        assert_eq!(writes_death(&alone), again, "after {waits} ms");
    }
}

#[test]
fn r9_after_a_lapse_only_shards_whose_claims_stand_go_on() {
    let claim = |node: &str, life: Incarnation, epoch| {
        Some(crate::records::Claim {
            cluster: crate::ids::ClusterId(1),
            shard: crate::ids::ShardKey {
                namespace: "d".into(),
                pool: "d".into(),
                shard: ShardId(1),
            },
            epoch: Epoch(epoch),
            node: node.into(),
            incarnation: life,
            number: 1,
            extensions: Extensions::default(),
        })
    };
    let Settings { lease, renew, retry, .. } = Settings::default();
    let mut alone = Alone::of(HOST, Settings::default(), 8);
    alone.tell(Event::Listed(Some(Vec::new())));
    alone.done();
    let me = alone.me();
    let mine = |epoch| (epoch, Some(me.clone()));
    alone.shards(&[mine(5), mine(5), mine(5), mine(5), mine(5), mine(5), mine(5), mine(5)]);
    for shard in 1..=5 {
        alone.tell(Event::Serving { shard: ShardId(shard), epoch: Epoch(5) });
    }
    alone.wait(renew);
    let answer = alone.writes.remove(0).0;
    alone.wait(lease);
    assert!(alone.machine.suspended());
    // The answer to its next renewal.
    alone.tell(Event::Written { number: answer, result: Err(WriteError::Unknown) });
    let number = |actions: &[Action]| {
        actions.iter().find_map(|action| match action {
            Action::ReadClaims { number, shards } => {
                assert_eq!(shards.len(), 8);
                Some(*number)
            }
            _ => None,
        })
    };
    let own = alone.machine.nodes().find(|(node, _)| node.0 == me.node.0);
    let mut renewed = own.expect("its row").1.clone();
    renewed.renewals += 1;
    alone.writes.clear();
    alone.learn(key("me"), Row::Node(renewed));
    while alone.writes.is_empty() {
        alone.wait(10);
    }
    let first = number(&alone.done()).expect("its claims are read");
    alone.tell(Event::Claims { number: first, claims: None });
    assert_eq!(number(&alone.wait(retry - 1)), None);
    let second = number(&alone.wait(1)).expect("they are read again");
    assert!(second > first);
    let theirs = Incarnation { counter: 9, nonce: 9 };
    let claims = vec![
        claim("me", me.incarnation, 5),
        claim("me", theirs, 5),
        claim("b", me.incarnation, 5),
        claim("me", me.incarnation, 4),
        claim("b", theirs, 6),
        // Those that claim: not yet granted, another's of the same epoch, and one above it.
        None,
        claim("b", theirs, 5),
        claim("b", theirs, 6),
    ];
    let late = alone.tell(Event::Claims { number: first, claims: Some(vec![None; 8]) });
    assert_eq!(forgot(&late), [], "an answer that was given up");
    let actions = alone.tell(Event::Claims { number: second, claims: Some(claims) });
    assert_eq!(forgot(&actions), [(2, 5), (3, 5), (4, 5), (5, 5), (8, 5)]);
    assert!(!alone.machine.suspended());
    let held: Vec<_> = alone.machine.held().map(|(shard, ..)| shard.0).collect();
    assert_eq!(held, [1, 6, 7]);
}

/// The rows of its own that it writes for so long, each answered at once.
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
fn r9_a_row_says_for_one_lease_that_the_store_answers() {
    let mut alone = Alone::registered(HOST);
    let joined = alone.now;
    let lease = Settings::default().lease;
    let rows = own_rows(&mut alone, 2 * lease);
    assert!(rows.len() >= 7, "{rows:?}");
    for (at, row) in rows {
        assert_eq!(row.store_answers, at - joined < lease, "{}", at - joined);
    }
}

#[test]
fn r8_another_lease_is_said_when_nobody_relies_on_the_longer_one() {
    let agreed = |revision, lease| crate::node::Agreed {
        revision,
        lease,
        margin: 600,
        renew: 250,
        unheard: 6_000,
    };
    let counted =
        |actions: &[Action]| actions.iter().any(|action| matches!(action, Action::Renewed { .. }));
    let mut alone = Alone::registered(HOST);
    let lease = Settings::default().lease;
    assert!(!counted(&alone.tell(Event::Settings(agreed(1, lease)))), "the lease is the same");
    alone.all_done();
    assert!(counted(&alone.tell(Event::Settings(agreed(2, 1_000)))), "it relies on less at once");
    let until = alone.now + lease;
    alone.all_done();
    let rows = own_rows(&mut alone, 2 * lease);
    for (at, row) in &rows {
        let says = if *at < until { (lease, 1) } else { (1_000, 2) };
        assert_eq!((row.lease, row.settings), says, "{at}, {until}");
    }
    assert!(rows.len() > 20);
    alone.now += 1;
    assert!(!counted(&alone.tell(Event::Settings(agreed(3, 5_000)))));
    let Row::Node(row) = &alone.writes[0].1 else { panic!("its own row") };
    assert_eq!((row.lease, row.settings), (5_000, 3), "a longer one is said at once");
    let relied =
        alone.done().into_iter().any(|it| matches!(it, Action::Renewed { lease: 5_000, .. }));
    assert!(relied, "and relied on when that is written");
}

/// Its own row as it was last told.
pub(super) fn own(alone: &Alone) -> NodeRow {
    let own = alone.machine.nodes().find(|(node, _)| *node.0 == *"me");
    own.expect("it registered").1.clone()
}

#[test]
fn r8_a_mark_that_others_set_counts_as_no_renewal() {
    let mut alone = Alone::registered(HOST);
    alone.wait(Settings::default().renew);
    let marked = NodeRow { draining: true, ..own(&alone) };
    let actions = alone.learn(key("me"), Row::Node(marked.clone()));
    let counted =
        |actions: &[Action]| actions.iter().any(|action| matches!(action, Action::Renewed { .. }));
    assert!(!counted(&actions), "its renewal was not made");
    let revision = alone.revision;
    let conflict = WriteError::Conflict(Some((Row::Node(marked), revision)));
    assert!(!counted(&alone.written(Err(conflict))));
    assert!(matches!(&alone.writes[0].1, Row::Node(row) if row.draining && row.renewals == 1));
    assert!(counted(&alone.done()));
}

#[test]
fn r7_a_mark_set_before_the_registration_is_answered_is_learnt() {
    let mut alone = Alone::new(HOST, Settings::default());
    alone.tell(Event::Listed(Some(Vec::new())));
    let (number, row) = alone.writes.remove(0);
    let Row::Node(row) = row else { panic!("its own row") };
    // The watch tells its row, and the mark that somebody set on it, before the answer comes.
    alone.learn(key("me"), Row::Node(row.clone()));
    let registered = alone.revision;
    let marked = NodeRow { draining: true, ..row };
    alone.learn(key("me"), Row::Node(marked.clone()));
    alone.tell(Event::Written { number, result: Ok(registered) });
    // Its first renewal meets the mark, and the next one carries it on.
    let expects = |actions: &[Action]| {
        actions.iter().find_map(|action| match action {
            Action::Write { number, expected, row, .. } => {
                assert!(matches!(row, Row::Node(row) if row.renewals == 1));
                Some((*number, *expected))
            }
            _ => None,
        })
    };
    let (number, expected) = expects(&alone.wait(Settings::default().renew)).expect("it renews");
    if expected == Some(registered) {
        let standing = Some((Row::Node(marked), registered + 1));
        let result = Err(WriteError::Conflict(standing));
        let (_, expected) = expects(&alone.tell(Event::Written { number, result })).expect("again");
        assert_eq!(expected, Some(registered + 1), "it would lose its lease");
    }
}

/// A host that has shard 1 and is told to leave, beside another node; its row says that it leaves.
fn leaves(other: NodeRow) -> (Alone, Vec<Action>) {
    let mut alone = Alone::registered(HOST);
    let me = alone.me();
    let manager = Roles { manager: true, ..Roles::default() };
    alone.learn(key("m"), row(1, manager));
    alone.manager(1, member("m", 1));
    alone.learn(key("b"), Row::Node(other));
    alone.shards(&[(1, Some(me)), (1, Some(member("b", 1)))]);
    alone.tell(Event::Serving { shard: ShardId(1), epoch: Epoch(1) });
    let mut actions = alone.tell(Event::Leave);
    actions.extend(alone.all_done());
    assert!(own(&alone).is_leaving());
    (alone, actions)
}

pub(super) fn host_row() -> NodeRow {
    match row(1, HOST) {
        Row::Node(row) => row,
        row => panic!("{row:?}"),
    }
}

fn stops(actions: &[Action]) -> bool {
    actions.iter().any(|action| matches!(action, Action::Stop { .. }))
}

fn goodbye(alone: &Alone) -> bool {
    let stopped = |row: &Row| matches!(row, Row::Node(row) if row.standing == Standing::Stopped);
    alone.writes.iter().any(|(_, row)| stopped(row))
}

#[test]
fn s10_who_leaves_waits_for_hand_offs_while_another_can_have_its_shards() {
    assert!(!stops(&leaves(host_row()).1));
    let gateway = Roles { gateway: true, ..Roles::default() };
    for other in [
        NodeRow { roles: gateway, ..host_row() },
        NodeRow { draining: true, ..host_row() },
        NodeRow { store_answers: false, ..host_row() },
        NodeRow { standing: Standing::Dead, ..host_row() },
    ] {
        assert!(stops(&leaves(other).1));
    }
}

#[test]
fn s10_goodbye_is_said_when_no_row_names_the_node() {
    let (mut alone, _) = leaves(host_row());
    let (shard, epoch) = (ShardId(1), Epoch(1));
    alone.tell(Event::Stopped { shard, epoch });
    alone.wait(10);
    assert!(!goodbye(&alone), "its row names it, and the next owner may be another life of it");
    let b = Some(member("b", 1));
    alone.shards(&[(2, b.clone()), (1, b)]);
    assert!(goodbye(&alone));
    let actions = alone.done();
    assert!(actions.contains(&Action::Left), "{actions:?}");
}

#[test]
fn s10_no_goodbye_is_said_with_a_shard_that_has_not_stopped() {
    let (mut alone, actions) = leaves(NodeRow { draining: true, ..host_row() });
    assert!(stops(&actions));
    alone.wait(10);
    assert!(!goodbye(&alone));
    alone.tell(Event::Stopped { shard: ShardId(1), epoch: Epoch(1) });
    assert!(goodbye(&alone));
}

#[test]
fn s10_who_leaves_is_gone_with_its_goodbye_and_not_before() {
    let mut alone = Alone::registered(HOST);
    alone.tell(Event::Leave);
    let renewed = alone.writes[0].1.clone();
    // The watch tells its renewal sooner than the answer comes.
    let actions = alone.learn(key("me"), renewed);
    assert!(!actions.contains(&Action::Left) && alone.machine.member().is_some());
    let revision = alone.revision;
    let actions = alone.written(Ok(revision));
    assert!(!actions.contains(&Action::Left) && goodbye(&alone));
    assert!(alone.done().contains(&Action::Left));
}

#[test]
fn who_leaves_takes_no_shard_once_its_row_says_so() {
    let given = |alone: &mut Alone| {
        let me = alone.me();
        adopted(&alone.shards(&[(1, Some(me))]))
    };
    let mut alone = Alone::registered(HOST);
    alone.tell(Event::Leave);
    assert_eq!(given(&mut alone), [(1, 1)], "nobody can know yet");
    let (mut alone, _) = leaves(host_row());
    let me = alone.me();
    let both = [(1, Some(me.clone())), (2, Some(me))];
    assert_eq!(adopted(&alone.shards(&both)), []);
    let mut alone = Alone::registered(HOST);
    alone.tell(Event::LeaveNow);
    assert_eq!(given(&mut alone), []);
    // One that an operator drains serves what it is given, as there may be no other.
    let mut alone = Alone::registered(HOST);
    let marked = NodeRow { draining: true, ..own(&alone) };
    alone.learn(key("me"), Row::Node(marked));
    assert_eq!(given(&mut alone), [(1, 1)]);
}

#[test]
fn a8_messages_are_held_for_a_hand_off_that_is_news_or_under_way() {
    let mut alone = Alone::registered(HOST);
    let me = alone.me();
    alone.learn(key("m"), row(1, Roles::ALL));
    let id = |number| crate::rows::HandOffId { term: 1, number };
    let moving = Some(crate::rows::Moving { id: id(1), to: None });
    let shard = ShardRow { epoch: Epoch(2), owner: Some(me), moving, ..ShardRow::default() };
    let rows = ShardsRow { term: 1, shards: vec![shard], extensions: Extensions::default() };
    alone.learn(Key::Shards(0), Row::Shards(rows));
    let known = alone.revision;
    let mut held = |epoch, number, revision| {
        let (shard, epoch, incarnation) = (ShardId(1), Epoch(epoch), alone.me().incarnation);
        let talk =
            Talk::BeginHandOff { term: 1, shard, epoch, incarnation, id: id(number), revision };
        let actions = alone.tell(Event::Heard { from: member("m", 1), talk });
        let acked =
            |it: &Action| matches!(it, Action::Say { talk: Talk::BeginHandOffAck { .. }, .. });
        assert!(actions.iter().any(acked), "whether or not it holds any");
        actions.contains(&Action::Hold { shard, epoch })
    };
    assert!(held(2, 1, known), "its row names it");
    assert!(held(2, 9, known + 1), "its row is on its way");
    assert!(!held(2, 9, known), "its row does not name it");
    assert!(!held(1, 1, known), "of an epoch that is over");
    assert!(!held(2, 9, known - 1), "it is late");
}

#[test]
fn a11_a_hand_off_of_a_later_epoch_ends_the_one_that_is_held() {
    let mut alone = Alone::registered(HOST);
    let me = alone.me();
    alone.learn(key("m"), row(1, Roles::ALL));
    alone.manager(1, member("m", 1));
    alone.shards(&[(2, Some(me.clone()))]);
    let mut stop = |epoch| {
        let (shard, epoch, incarnation) = (ShardId(1), Epoch(epoch), me.incarnation);
        let id = crate::rows::HandOffId { term: 1, number: 1 };
        let talk = Talk::HandOff { term: 1, shard, epoch, incarnation, id };
        let actions = alone.tell(Event::Heard { from: member("m", 1), talk });
        let stopped = Talk::ShardStopped { term: 1, shard, epoch, incarnation, id };
        let said = Action::Say { to: "m".into(), talk: stopped };
        (forgot(&actions), actions.contains(&said))
    };
    assert_eq!(stop(1), (vec![], false), "it is late");
    assert_eq!(stop(5), (vec![(1, 2)], true));
}

#[test]
fn a_report_says_which_shards_serve() {
    let mut alone = Alone::registered(HOST);
    let me = alone.me();
    alone.learn(key("m"), row(1, Roles::ALL));
    alone.manager(1, member("m", 1));
    let mine = (1, Some(me.clone()));
    alone.shards(&[mine.clone(), mine.clone(), mine]);
    for shard in [2, 3] {
        alone.tell(Event::Serving { shard: ShardId(shard), epoch: Epoch(1) });
    }
    let id = crate::rows::HandOffId { term: 1, number: 1 };
    let (shard, epoch, incarnation) = (ShardId(3), Epoch(1), me.incarnation);
    let talk = Talk::HandOff { term: 1, shard, epoch, incarnation, id };
    alone.tell(Event::Heard { from: member("m", 1), talk });
    let report = reported(&alone.wait(20)).expect("a report");
    let serving: Vec<_> = report.held.iter().map(|held| held.serving).collect();
    assert_eq!(serving, [false, true, false], "it claims, it serves, it stops");
}

#[test]
fn r8_a_judge_that_looks_once_a_margin_is_awake() {
    let Settings { lease, margin, .. } = Settings::default();
    let mut alone = sealed(4);
    alone.learn(key("b"), row(1, HOST));
    let mut looks = 0;
    while !writes_death(&alone) {
        alone.all_done();
        alone.wait(margin);
        looks += 1;
        assert!(looks < 3 * lease / margin, "it takes itself for one that slept");
    }
}

#[test]
fn r8_rows_listed_anew_count_as_just_renewed() {
    let Settings { lease, margin, .. } = Settings::default();
    let dies_after = |listed: bool| {
        let mut alone = sealed(4);
        alone.learn(key("b"), row(1, HOST));
        let began = alone.now;
        while !writes_death(&alone) {
            alone.all_done();
            alone.wait(100);
            if listed && alone.now == began + lease {
                alone.tell(Event::WatchLost);
                alone.tell(Event::Listed(Some(Vec::new())));
            }
            assert!(alone.now < began + 10 * lease);
        }
        alone.now - began
    };
    assert!((lease + margin..2 * lease).contains(&dies_after(false)));
    assert!((2 * lease + margin..3 * lease).contains(&dies_after(true)));
}

#[test]
fn rows_that_cannot_be_listed_are_asked_for_after_a_while() {
    let mut alone = Alone::new(HOST, Settings::default());
    let retry = Settings::default().retry;
    assert_eq!(alone.tell(Event::Listed(None)), []);
    assert_eq!(alone.wait(retry - 1), []);
    assert_eq!(alone.wait(1), [Action::List]);
}

#[test]
fn a_drain_is_written_once_and_again_when_its_answer_is_lost() {
    let retry = Settings::default().retry;
    let drains = |alone: &Alone| {
        let of_b = |row: &Row| matches!(row, Row::Node(row) if row.incarnation.counter == 9);
        alone.writes.iter().filter(|(_, row)| of_b(row)).count()
    };
    let mut alone = Alone::registered(HOST);
    alone.learn(key("b"), row(9, HOST));
    // A renewal of its own is under way, which has nothing to do with it.
    alone.wait(Settings::default().renew);
    alone.tell(Event::Drain { node: "b".into(), draining: true });
    alone.wait(1);
    assert_eq!((drains(&alone), alone.writes.len()), (1, 2));
    let (number, _) = alone.writes.pop().expect("the drain");
    alone.tell(Event::Written { number, result: Err(WriteError::Unknown) });
    alone.wait(retry - 1);
    assert_eq!(drains(&alone), 0, "not again at once");
    alone.wait(1);
    assert_eq!(drains(&alone), 1);
}

#[test]
fn a_manager_that_was_followed_still_hears_of_its_own_renewal() {
    let mut alone = sealed(4);
    alone.all_done();
    alone.wait(Settings::default().renew);
    let of_me = |row: &Row| matches!(row, Row::Node(row) if row.renewals > 0);
    assert!(alone.writes.iter().any(|(_, row)| of_me(row)));
    alone.manager(2, member("b", 1));
    assert_eq!(alone.machine.managing(), None);
    alone.writes.retain(|(_, row)| of_me(row));
    assert!(alone.done().iter().any(|action| matches!(action, Action::Renewed { .. })));
}

#[test]
fn a_manager_that_slept_counts_every_node_as_just_heard() {
    let manager = Roles { manager: true, ..Roles::default() };
    let mut alone = Alone::new(manager, Settings::default());
    alone.tell(Event::Listed(Some(Vec::new())));
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
    let report = Report { incarnation: from.incarnation, store_answers: true, ..Report::default() };
    alone.tell(Event::Heard { from, talk: Talk::Report(Box::new(report)) });
    let unheard = Settings::default().unheard;
    alone.wait(unheard + 1_000);
    let woke = alone.now;
    while alone.machine.manager_row().is_some_and(|row| row.holder.node == alone.me().node) {
        renew(&mut alone);
        alone.wait(100);
        assert!(alone.now < woke + 2 * unheard, "nobody else hears the host either");
    }
    assert!(alone.now >= woke + unheard, "it gives the leadership on after {}", alone.now - woke);
}

#[test]
fn r8_a_longer_lease_is_said_at_once_after_a_shorter_one() {
    let agreed = |revision, lease| crate::node::Agreed {
        revision,
        lease,
        margin: 600,
        renew: 250,
        unheard: 6_000,
    };
    let mut alone = Alone::registered(HOST);
    alone.tell(Event::Settings(agreed(1, 1_000)));
    alone.all_done();
    assert_eq!(own(&alone).lease, Settings::default().lease, "somebody may rely on it");
    alone.now += 1;
    alone.tell(Event::Settings(agreed(2, 5_000)));
    alone.all_done();
    assert_eq!((own(&alone).lease, own(&alone).settings), (5_000, 2));
}

#[test]
fn s10_a_manager_says_goodbye_whatever_row_it_is_writing() {
    let mut alone = leader(4, Vec::new());
    let seals = alone.writes.remove(0);
    alone.tell(Event::LeaveNow);
    assert!(matches!(&alone.writes[..], [(_, Row::Node(_))]), "its row says that it leaves");
    alone.done();
    assert!(goodbye(&alone), "{seals:?} is not answered");
}

#[test]
fn s10_a_goodbye_in_its_name_ends_a_life_that_still_has_shards() {
    let (mut alone, actions) = leaves(NodeRow { draining: true, ..host_row() });
    assert!(stops(&actions));
    let stopped = NodeRow { standing: Standing::Stopped, ..own(&alone) };
    let actions = alone.learn(key("me"), Row::Node(stopped));
    assert_eq!(forgot(&actions), [(1, 1)], "others may have it");
    assert!(actions.contains(&Action::Left));
}
