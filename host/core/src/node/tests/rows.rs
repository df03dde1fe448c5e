//! Tests of what a machine emits for the rows that it learns: notices for people, and incarnations and routes for its
//! node.

use crate::assign::BuiltinStrategy;
use crate::extensions::Extensions;
use crate::ids::{Epoch, Incarnation, ShardId};
use crate::message::Now;
use crate::node::{Action, Event, Machine, Mutation, NodeIdentity, Notice, Settings};
use crate::pools::Pools;
use crate::rows::{
    Assignment, AssignmentsRow, HandOffId, HandOffIntent, ManagerRow, Member, NodeRow, NodeStatus,
    Roles, Row, RowKey,
};

/// A gateway's machine: it is neither a manager nor a host, so rows cause only these actions.
struct Reader {
    machine: Machine,
    revision: u64,
    now: u64,
}

impl Reader {
    fn new() -> Self {
        Self::with(Settings::default())
    }

    fn with(settings: Settings) -> Self {
        let identity = NodeIdentity {
            node: "me".into(),
            roles: Roles { gateway: true, ..Roles::default() },
            version: 1,
            addresses: vec!["me:1".into()],
            pool_roles: Vec::new(),
            weight: 1,
            pools: Pools::one(2),
            seed: 1,
        };
        let machine = Machine::new(settings, identity, BuiltinStrategy::Average.build());
        let mut reader = Self { machine, revision: 0, now: 1_000 };
        reader.handle(Event::RowsListed(Some(Vec::new())));
        reader
    }

    /// The incarnations, routes and notices that the machine emits for an event.
    fn handle(&mut self, event: Event) -> Vec<Action> {
        self.machine.handle(Now { mono: self.now, cluster_time: self.now, utc: 0 }, event);
        let is_relevant = |it: &Action| {
            matches!(it, Action::UpdatePeer { .. } | Action::UpdateRoute { .. } | Action::Notify(_))
        };
        std::iter::from_fn(|| self.machine.poll()).filter(is_relevant).collect()
    }

    fn learn(&mut self, key: RowKey, row: Row) -> Vec<Action> {
        self.revision += 1;
        let value = Some((row, self.revision));
        self.handle(Event::RowObserved { key, value })
    }

    fn node(&mut self, row: &NodeRow) -> Vec<Action> {
        self.learn(RowKey::Node("b".into()), Row::Node(row.clone()))
    }

    fn shards(&mut self, rows: &[Assignment]) -> Vec<Action> {
        let row = AssignmentsRow {
            term: 1,
            assignments: rows.to_vec(),
            extensions: Extensions::default(),
        };
        self.learn(RowKey::Assignments(0), Row::Assignments(row))
    }
}

fn member(counter: u64) -> Member {
    Member { node: "b".into(), incarnation: Incarnation { counter, nonce: counter } }
}

fn row(counter: u64) -> NodeRow {
    NodeRow { addresses: vec!["b:1".into()], ..NodeRow::for_tests(member(counter).incarnation) }
}

fn updated_peer(counter: u64, alive: bool, address: &str) -> Action {
    Action::UpdatePeer { member: member(counter), alive, addresses: vec![address.into()] }
}

fn route(epoch: u64, owner: Option<u64>, moving: bool) -> Action {
    Action::UpdateRoute {
        shard: ShardId(1),
        epoch: Epoch(epoch),
        owner: owner.map(member),
        hand_off_in_progress: moving,
    }
}

fn owned(epoch: u64, counter: u64) -> Assignment {
    Assignment { epoch: Epoch(epoch), owner: Some(member(counter)), ..Assignment::default() }
}

fn note(notice: Notice) -> Action {
    Action::Notify(notice)
}

#[test]
fn an_incarnation_is_announced_at_start_end_and_move() {
    let mut reader = Reader::new();
    let joined = [note(Notice::NodeJoined(member(1))), updated_peer(1, true, "b:1")];
    assert_eq!(reader.node(&row(1)), joined);
    assert_eq!(reader.node(&NodeRow { renewals: 1, ..row(1) }), [], "a renewal is not announced");
    let moved = NodeRow { addresses: vec!["b:2".into()], ..row(1) };
    assert_eq!(reader.node(&moved), [updated_peer(1, true, "b:2")]);
    let dead = NodeRow { status: NodeStatus::Dead, ..moved };
    let gone = note(Notice::NodeGone { member: member(1), left_gracefully: false });
    assert_eq!(reader.node(&dead), [gone, updated_peer(1, false, "b:2")]);
    let stopped = NodeRow { status: NodeStatus::Left, ..dead };
    assert_eq!(reader.node(&stopped), [], "it was already gone");
    let joined = [note(Notice::NodeJoined(member(2))), updated_peer(2, true, "b:1")];
    assert_eq!(reader.node(&row(2)), joined);
    let joined = [
        updated_peer(2, false, "b:1"),
        note(Notice::NodeJoined(member(3))),
        updated_peer(3, true, "b:1"),
    ];
    assert_eq!(reader.node(&row(3)), joined, "the end of the second incarnation was not seen");
    let left = NodeRow { status: NodeStatus::Left, ..row(3) };
    let gone = note(Notice::NodeGone { member: member(3), left_gracefully: true });
    assert_eq!(reader.node(&left), [gone, updated_peer(3, false, "b:1")]);
}

#[test]
fn an_incarnation_first_seen_dead_emits_no_notice() {
    let dead = NodeRow { status: NodeStatus::Dead, draining: true, ..row(1) };
    assert_eq!(Reader::new().node(&dead), [updated_peer(1, false, "b:1")]);
}

#[test]
fn a_drain_notice_is_emitted_per_change_and_incarnation() {
    let mut reader = Reader::new();
    reader.node(&row(1));
    let drains = |on, counter| note(Notice::DrainChanged(member(counter), on));
    let marked = NodeRow { draining: true, ..row(1) };
    assert_eq!(reader.node(&marked), [drains(true, 1)]);
    assert_eq!(reader.node(&NodeRow { renewals: 1, ..marked.clone() }), []);
    let joined = reader.node(&NodeRow { draining: true, ..row(2) });
    assert!(joined.contains(&drains(true, 2)), "the mark survives the node's restarts");
    assert_eq!(reader.node(&NodeRow { renewals: 1, ..row(2) }), [drains(false, 2)]);
    reader.node(&NodeRow { status: NodeStatus::Left, ..row(2) });
    let marked = NodeRow { status: NodeStatus::Left, draining: true, ..row(2) };
    assert_eq!(reader.node(&marked), [], "an incarnation that has ended does not drain");
}

#[test]
fn r13_a_route_names_its_owner_only_while_it_is_live() {
    let mut reader = Reader::new();
    reader.node(&row(1));
    assert!(reader.shards(&[owned(1, 1)]).contains(&route(1, Some(1), false)));
    let dead = NodeRow { status: NodeStatus::Dead, ..row(1) };
    assert!(reader.node(&dead).contains(&route(1, None, false)));
    assert!(!reader.node(&row(2)).contains(&route(1, Some(2), false)), "another incarnation");
    assert!(reader.shards(&[owned(2, 2)]).contains(&route(2, Some(2), false)));
    // An incarnation that started and ended unseen: its predecessor has ended too.
    let stopped = NodeRow { status: NodeStatus::Left, ..row(3) };
    assert!(reader.node(&stopped).contains(&route(2, None, false)));
    assert_eq!(reader.shards(&[owned(3, 2)])[1..], [route(3, None, false)]);
}

#[test]
fn notices_are_emitted_for_assignments_and_hand_offs() {
    let mut reader = Reader::new();
    reader.node(&row(1));
    let shard = ShardId(1);
    let assigned =
        |epoch| note(Notice::ShardAssigned { shard, epoch: Epoch(epoch), owner: member(1) });
    assert_eq!(reader.shards(&[owned(1, 1)]), [assigned(1), route(1, Some(1), false)]);
    assert_eq!(reader.shards(&[owned(1, 1)]), [], "written again");
    let id = HandOffId { term: 1, number: 1 };
    let moving = Assignment { hand_off: Some(HandOffIntent { id, target: None }), ..owned(1, 1) };
    let began = note(Notice::HandOffStarted { shard, from: member(1) });
    assert_eq!(reader.shards(std::slice::from_ref(&moving)), [began, route(1, Some(1), true)]);
    assert_eq!(reader.shards(&[moving]), []);
    let failed = note(Notice::HandOffFailed { shard, owner: member(1) });
    assert_eq!(reader.shards(&[owned(1, 1)]), [failed, route(1, Some(1), false)]);
    assert_eq!(reader.shards(&[owned(2, 1)]), [assigned(2), route(2, Some(1), false)]);
}

/// What a machine emits for rows that a watch repeats after newer ones, of a node, of the manager, and of shards.
fn repeated_rows(mutations: Vec<Mutation>) -> [Vec<Action>; 3] {
    let mut reader = Reader::with(Settings { mutations, ..Settings::default() });
    let mut repeat = |key: RowKey, older: Row, newer: Row| {
        reader.learn(key.clone(), older.clone());
        let revision = reader.revision;
        reader.learn(key.clone(), newer);
        reader.handle(Event::RowObserved { key, value: Some((older, revision)) })
    };
    let ended = NodeRow { status: NodeStatus::Left, ..row(2) };
    let node = repeat(RowKey::Node("b".into()), Row::Node(row(2)), Row::Node(ended));
    let term = |term| {
        Row::Manager(ManagerRow { term, holder: member(2), extensions: Extensions::default() })
    };
    let manager = repeat(RowKey::Manager, term(1), term(2));
    let chunk = |epoch| {
        let assignments = vec![owned(epoch, 2)];
        Row::Assignments(AssignmentsRow { assignments, ..AssignmentsRow::default() })
    };
    [node, manager, repeat(RowKey::Assignments(0), chunk(1), chunk(2))]
}

#[test]
fn a_repeated_older_row_is_ignored() {
    assert_eq!(repeated_rows(Vec::new()), [const { Vec::new() }; 3]);
    let accepted = repeated_rows(vec![Mutation::AcceptOlderRows]);
    assert!(accepted.iter().all(|actions| !actions.is_empty()), "{accepted:?}");
}

#[test]
fn s8_cached_rows_give_peers_and_routes_until_rows_are_listed() {
    let mut reader = Reader::new();
    reader.handle(Event::WatchLost);
    let shards = AssignmentsRow { assignments: vec![owned(4, 1)], ..AssignmentsRow::default() };
    let cached = |row: NodeRow| {
        let shards = (RowKey::Assignments(0), Row::Assignments(shards.clone()), 2);
        Event::CachedRows(vec![(RowKey::Node("b".into()), Row::Node(row), 1), shards])
    };
    let live = reader.handle(cached(row(1)));
    assert_eq!(live, [updated_peer(1, true, "b:1"), route(4, Some(1), false)]);
    let dead = reader.handle(cached(NodeRow { status: NodeStatus::Dead, ..row(1) }));
    assert_eq!(dead, [updated_peer(1, false, "b:1"), route(4, None, false)]);
    reader.handle(Event::RowsListed(Some(Vec::new())));
    assert_eq!(reader.handle(cached(row(1))), [], "the store is authoritative");
}

#[test]
fn a_notice_reads_as_a_sentence() {
    assert_eq!(Notice::NodeJoined(member(3)).to_string(), "node b#3 joined");
    let gone = Notice::NodeGone { member: member(3), left_gracefully: true };
    assert_eq!(gone.to_string(), "node b#3 left");
    let assigned = Notice::ShardAssigned { shard: ShardId(7), epoch: Epoch(2), owner: member(3) };
    assert_eq!(assigned.to_string(), "shard 7 was assigned to b#3, epoch 2");
}
