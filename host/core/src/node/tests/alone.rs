//! One machine, event by event: what it requests immediately, and when it retries.

mod leaving;
mod managing;
mod registration;
mod shards;

use crate::assign::BuiltinStrategy;
use crate::extensions::Extensions;
use crate::ids::{Epoch, Incarnation, NodeId, ShardId};
use crate::message::Now;
use crate::node::{
    Action, ControlMessage, Event, HandOff, Machine, NodeIdentity, NodeReport, Settings, WriteError,
};
use crate::pools::Pools;
use crate::rows::{
    Assignment, AssignmentsRow, ManagerRow, Member, NodeRow, NodeStatus, Roles, Row, RowKey,
};

pub(super) const HOST: Roles = Roles { store: false, manager: false, host: true, gateway: false };

pub(super) struct Alone {
    pub(super) machine: Machine,
    pub(super) now: u64,
    pub(super) revision: u64,
    /// The pending writes.
    pub(super) writes: Vec<(u64, Row)>,
}

impl Alone {
    pub(super) fn new(roles: Roles, settings: Settings) -> Self {
        Self::of(roles, settings, 4)
    }

    pub(super) fn of(roles: Roles, settings: Settings, shards: u32) -> Self {
        let identity = NodeIdentity {
            node: "me".into(),
            roles,
            version: 1,
            addresses: vec!["me:1".into()],
            pool_roles: Vec::new(),
            weight: 1,
            pools: Pools::one(shards),
            seed: 7,
        };
        let machine = Machine::new(settings, identity, BuiltinStrategy::Average.build());
        let mut alone = Self { machine, now: 10_000, revision: 0, writes: Vec::new() };
        assert_eq!(alone.actions(), [Action::ListRows]);
        alone
    }

    pub(super) fn registered(roles: Roles) -> Self {
        let mut alone = Self::new(roles, Settings::default());
        alone.handle(Event::RowsListed(Some(Vec::new())));
        alone.done();
        alone
    }

    fn actions(&mut self) -> Vec<Action> {
        std::iter::from_fn(|| self.machine.poll()).collect()
    }

    pub(super) fn handle(&mut self, event: Event) -> Vec<Action> {
        self.machine.handle(Now { mono: self.now, cluster_time: self.now, utc: 0 }, event);
        let wake = self.machine.next_wake();
        assert!(wake.is_none_or(|wake| wake > self.now), "{wake:?} is not after {}", self.now);
        let actions = self.actions();
        for action in &actions {
            if let Action::WriteRow { request_id: number, row, .. } = action {
                self.writes.push((*number, row.clone()));
            }
        }
        actions
    }

    pub(super) fn wait(&mut self, millis: u64) -> Vec<Action> {
        self.now += millis;
        self.handle(Event::Tick)
    }

    pub(super) fn learn(&mut self, key: RowKey, row: Row) -> Vec<Action> {
        self.revision += 1;
        let value = Some((row, self.revision));
        self.handle(Event::RowObserved { key, value })
    }

    /// Answers the oldest write.
    pub(super) fn written(&mut self, result: Result<u64, WriteError>) -> Vec<Action> {
        let (number, _) = self.writes.remove(0);
        self.handle(Event::RowWritten { request_id: number, result })
    }

    pub(super) fn done(&mut self) -> Vec<Action> {
        self.revision += 1;
        self.written(Ok(self.revision))
    }

    /// Answers all writes until none are pending.
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
        let shard = |(epoch, owner): &(u64, Option<Member>)| Assignment {
            epoch: Epoch(*epoch),
            owner: owner.clone(),
            ..Assignment::default()
        };
        let shards = rows.iter().map(shard).collect();
        let row =
            AssignmentsRow { term: 1, assignments: shards, extensions: Extensions::default() };
        self.learn(RowKey::Assignments(0), Row::Assignments(row))
    }

    pub(super) fn manager(&mut self, term: u64, holder: Member) -> Vec<Action> {
        let row = ManagerRow { term, holder, extensions: Extensions::default() };
        self.learn(RowKey::Manager, Row::Manager(row))
    }
}

pub(super) fn member(node: &str, counter: u64) -> Member {
    Member { node: node.into(), incarnation: Incarnation { counter, nonce: counter } }
}

pub(super) fn row(counter: u64, roles: Roles) -> Row {
    Row::Node(NodeRow {
        roles,
        registered_at: 1,
        settings_revision: 0,
        ..NodeRow::for_tests(Incarnation { counter, nonce: counter })
    })
}

pub(super) fn key(node: &str) -> RowKey {
    RowKey::Node(node.into())
}

fn writes(actions: &[Action]) -> Vec<&RowKey> {
    let written = actions.iter().filter_map(|action| match action {
        Action::WriteRow { key, .. } => Some(key),
        _ => None,
    });
    written.collect()
}

fn adopted(actions: &[Action]) -> Vec<(u32, u64)> {
    let adopted = |action: &Action| match action {
        Action::StartShard { shard, epoch, .. } => Some((shard.0, epoch.0)),
        _ => None,
    };
    actions.iter().filter_map(adopted).collect()
}

fn forgot(actions: &[Action]) -> Vec<(u32, u64)> {
    let forgot = |action: &Action| match action {
        Action::DropShard { shard, epoch } => Some((shard.0, epoch.0)),
        _ => None,
    };
    actions.iter().filter_map(forgot).collect()
}

pub(super) fn reported(actions: &[Action]) -> Option<NodeReport> {
    actions.iter().rev().find_map(|action| match action {
        Action::Send { message: ControlMessage::Report(report), .. } => {
            Some(NodeReport::clone(report))
        }
        _ => None,
    })
}

/// A candidate that knows the current manager.
fn candidate(holder: Member) -> Alone {
    let mut alone = Alone::new(Roles::ALL, Settings::default());
    alone.revision = 1;
    let row = ManagerRow { term: 3, holder, extensions: Extensions::default() };
    let rows = vec![(RowKey::Manager, Row::Manager(row), 1)];
    alone.handle(Event::RowsListed(Some(rows)));
    let _ = alone.done();
    alone
}

/// A manager whose assignment rows are not written yet.
pub(super) fn leader(shards: u32, rows: Vec<(RowKey, Row, u64)>) -> Alone {
    let mut alone = Alone::of(Roles::ALL, Settings::default(), shards);
    alone.revision = 10;
    alone.handle(Event::RowsListed(Some(rows)));
    alone.done();
    assert!(matches!(alone.writes[..], [(_, Row::Manager(_))]), "{:?}", alone.writes);
    alone.done();
    alone
}

pub(super) fn sealed(shards: u32) -> Alone {
    let mut alone = leader(shards, Vec::new());
    alone.all_done();
    assert_eq!(alone.machine.managing_term(), Some(1));
    alone
}

/// The node's own row as last published.
pub(super) fn own(alone: &Alone) -> NodeRow {
    let own = alone.machine.nodes().find(|(node, _)| *node.0 == *"me");
    own.expect("it registered").1.clone()
}

pub(super) fn host_row() -> NodeRow {
    match row(1, HOST) {
        Row::Node(row) => row,
        row => panic!("{row:?}"),
    }
}
