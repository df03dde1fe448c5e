//! Tests of what a machine declares permanently irrelevant, so that a model checker may drop it.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

use super::alone::{Alone, HOST, key, leader, member, row, sealed};
use crate::extensions::Extensions;
use crate::ids::{Epoch, Incarnation, NodeId, ShardId};
use crate::message::Now;
use crate::node::{
    Action, Canonicalizer, ControlMessage, Event, HandOff, Machine, Mutation, NodeReport,
    ReportedShard, Settings, WriteError,
};
use crate::rows::{
    Assignment, AssignmentsRow, HandOffId, ManagerRow, Member, NodeRow, NodeStatus, Row, RowKey,
};

fn hash(machine: &Machine) -> u64 {
    BuildHasherDefault::<DefaultHasher>::default().hash_one(machine)
}

const NONE: HandOffId = HandOffId { term: 0, number: 0 };

/// A host that holds shard 1 under epoch 2; another node owns shard 2 under epoch 4; `m` is the manager in term 3.
fn host(mutations: Vec<Mutation>) -> Alone {
    let mut alone = Alone::new(HOST, Settings { mutations, ..Settings::default() });
    alone.handle(Event::RowsListed(Some(Vec::new())));
    alone.done();
    let me = alone.me();
    alone.learn(key("m"), row(1, crate::rows::Roles::ALL));
    alone.learn(key("b"), row(1, HOST));
    alone.manager(3, member("m", 1));
    alone.shards(&[(2, Some(me)), (4, Some(member("b", 1))), (0, None), (0, None)]);
    alone
}

fn stop(incarnation: Incarnation, term: u64, shard: u32, epoch: u64) -> ControlMessage {
    let (shard, epoch) = (ShardId(shard), Epoch(epoch));
    ControlMessage::HandOff(HandOff { term, shard, epoch, incarnation, id: NONE })
}

#[test]
fn a_hand_off_of_an_old_term_or_epoch_is_irrelevant() {
    let mut alone = host(Vec::new());
    let (incarnation, m) = (alone.me().incarnation, member("m", 1));
    let irrelevant = |alone: &Alone, term, shard, epoch| {
        alone.machine.is_irrelevant(&m, &stop(incarnation, term, shard, epoch))
    };
    assert!(!irrelevant(&alone, 3, 1, 2), "it would be stopped");
    assert!(!irrelevant(&alone, 4, 1, 2));
    assert!(irrelevant(&alone, 2, 1, 2), "from a former term");
    let former = Incarnation { nonce: incarnation.nonce + 1, ..incarnation };
    assert!(alone.machine.is_irrelevant(&m, &stop(former, 3, 1, 2)), "for another incarnation");
    assert!(irrelevant(&alone, 3, 1, 1), "it holds a later epoch");
    assert!(!irrelevant(&alone, 3, 1, 3), "an epoch that it has not seen yet");
    assert_eq!([3, 4, 5].map(|epoch| irrelevant(&alone, 3, 2, epoch)), [true, false, false]);
    alone.handle(Event::Received { from: m.clone(), message: stop(incarnation, 3, 3, 6) });
    assert_eq!([5, 6, 7].map(|epoch| irrelevant(&alone, 3, 3, epoch)), [true, true, false]);

    let alone = host(vec![Mutation::SkipHandOffMatching]);
    let incarnation = alone.me().incarnation;
    assert!(!alone.machine.is_irrelevant(&m, &stop(incarnation, 2, 1, 2)), "ids are not compared");
    let unregistered = Alone::new(HOST, Settings::default());
    assert!(!unregistered.machine.is_irrelevant(&m, &stop(incarnation, 2, 1, 2)));
}

#[test]
fn a_known_row_and_any_begin_hand_off_are_irrelevant() {
    let alone = host(Vec::new());
    let m = member("m", 1);
    let seen = alone.revision;
    let wrote = |key, revision| {
        let manager =
            ManagerRow { term: 3, holder: member("m", 1), extensions: Extensions::default() };
        alone.machine.is_irrelevant(
            &m,
            &ControlMessage::RowUpdate { key, row: Row::Manager(manager), revision },
        )
    };
    let irrelevant =
        |key: &RowKey| [seen - 2, seen - 1, seen, seen + 1].map(|at| wrote(key.clone(), at));
    assert_eq!(irrelevant(&RowKey::Manager), [true, true, false, false]);
    assert_eq!(irrelevant(&RowKey::Assignments(0)), [true, true, true, false]);
    assert_eq!(irrelevant(&RowKey::Assignments(9)), [false; 4]);
    assert_eq!(irrelevant(&key("x")), [false; 4]);
    assert_eq!(alone.machine.known_revision(&RowKey::Assignments(0)), Some(seen));
    assert_eq!(alone.machine.known_revision(&RowKey::Manager), Some(seen - 1));
    assert_eq!(alone.machine.known_revision(&key("b")), Some(seen - 2));
    assert_eq!(alone.machine.known_epoch(ShardId(2)), Some(Epoch(4)));
    assert_eq!(alone.machine.known_epoch(ShardId(900)), None);
    let incarnation = alone.me().incarnation;
    let (shard, epoch) = (ShardId(1), Epoch(2));
    let hand_off = HandOff { term: 3, shard, epoch, incarnation, id: NONE };
    let begin = ControlMessage::BeginHandOff { hand_off, revision: 99 };
    assert!(alone.machine.is_irrelevant(&m, &begin));
    assert!(!alone.machine.is_irrelevant(&m, &ControlMessage::Rebalance));
}

/// A manager that hands off two of its four shards to the host `b`: the intents are being written.
fn handing_off() -> (Alone, Vec<(ShardId, Epoch, HandOffId)>) {
    let mut alone = sealed(4);
    alone.all_done();
    let me = alone.me();
    for shard in 1..=4 {
        alone.handle(Event::ShardServing { shard: ShardId(shard), epoch: Epoch(1) });
    }
    alone.learn(key("b"), row(1, HOST));
    for _ in 0..1_000 {
        let intents: Vec<_> = alone
            .writes
            .iter()
            .filter_map(|(_, row)| match row {
                Row::Assignments(row) => {
                    Some(row.assignments.iter().enumerate().filter_map(|(place, row)| {
                        let moving = row.hand_off.as_ref()?;
                        assert_eq!(row.owner.as_ref(), Some(&me));
                        Some((ShardId(place as u32 + 1), row.epoch, moving.id))
                    }))
                }
                _ => None,
            })
            .flatten()
            .collect();
        if !intents.is_empty() {
            assert_eq!((intents.len(), alone.writes.len()), (2, 1));
            return (alone, intents);
        }
        alone.all_done();
        alone.wait(10);
    }
    panic!("nothing is handed off");
}

fn ack(of: (ShardId, Epoch, HandOffId), term: u64) -> ControlMessage {
    ControlMessage::BeginHandOffAck { term, shard: of.0, epoch: of.1, id: of.2 }
}

fn stopped(of: (ShardId, Epoch, HandOffId), term: u64, from: &Member) -> ControlMessage {
    let incarnation = from.incarnation;
    ControlMessage::ShardStopped(HandOff { term, shard: of.0, epoch: of.1, incarnation, id: of.2 })
}

#[test]
fn an_ack_is_irrelevant_after_its_hand_off() {
    let (mut alone, intents) = handing_off();
    let (of, me, b) = (intents[0], alone.me(), member("b", 1));
    let irrelevant =
        |alone: &Alone, from: &Member, of| alone.machine.is_irrelevant(from, &ack(of, 1));
    assert!(
        !irrelevant(&alone, &b, of) && !irrelevant(&alone, &me, of),
        "the intent is being written"
    );
    alone.done();
    assert!(!irrelevant(&alone, &b, of), "its acknowledgement is pending");
    assert!(irrelevant(&alone, &me, of), "this node has acknowledged the hand-off itself");
    let other = HandOffId { number: of.2.number + 9, ..of.2 };
    assert!(!irrelevant(&alone, &me, (of.0, of.1, other)), "for an unknown hand-off");
    assert!(irrelevant(&alone, &b, (of.0, Epoch(0), of.2)), "the epoch has ended");
    assert!(!irrelevant(&alone, &b, (of.0, Epoch(2), of.2)), "the epoch is in the future");
    assert!(alone.machine.is_irrelevant(&b, &ack(of, 0)), "for a term before its own");
    assert!(
        !alone.machine.is_irrelevant(&b, &ack(of, 2)),
        "it may become the manager in that term"
    );
    let actions = alone.handle(Event::Received { from: b.clone(), message: ack(of, 1) });
    assert!(irrelevant(&alone, &b, of), "it has been received");
    let stops = |it: &crate::node::Action| matches!(it, crate::node::Action::StopShard { shard, .. } if *shard == of.0);
    assert!(actions.iter().any(stops), "A9: no other acknowledgement is missing");

    // A shard without a hand-off: only the death of its owner rules out a future hand-off.
    let free = (1..=4).map(ShardId).find(|shard| intents.iter().all(|it| it.0 != *shard));
    assert!(!irrelevant(&alone, &b, (free.expect("a free shard"), of.1, other)));
}

#[test]
fn an_ack_is_irrelevant_once_the_owner_is_dead() {
    let mut alone = sealed(4);
    alone.learn(key("b"), row(1, HOST));
    let b = member("b", 1);
    // A row that another node wrote, which assigns a shard to `b`.
    let owned =
        |node: Member| Assignment { epoch: Epoch(3), owner: Some(node), ..Assignment::default() };
    let me = alone.me();
    let shards = vec![owned(b.clone()), owned(me.clone()), owned(me.clone()), owned(me)];
    let row_of = AssignmentsRow { term: 1, assignments: shards, extensions: Extensions::default() };
    let revision = alone.revision + 1;
    let result = Err(WriteError::Conflict(Some((Row::Assignments(row_of), revision))));
    alone.revision = revision;
    let at = alone.writes.iter().position(|(_, row)| matches!(row, Row::Assignments(_)));
    let first = alone.writes.remove(at.expect("a row of assignments"));
    alone.handle(Event::RowWritten { request_id: first.0, result });
    let of = (ShardId(1), Epoch(3), NONE);
    assert!(!alone.machine.is_irrelevant(&b, &ack(of, 1)));
    let Row::Node(live) = row(1, HOST) else { panic!("a node's row") };
    let dead = NodeRow { status: NodeStatus::Dead, ..live };
    alone.learn(key("b"), Row::Node(dead));
    assert!(alone.machine.is_irrelevant(&b, &ack(of, 1)));
    let of = (ShardId(2), Epoch(3), NONE);
    assert!(!alone.machine.is_irrelevant(&b, &ack(of, 1)), "the owner of that shard is alive");
}

#[test]
fn shard_stopped_of_an_old_epoch_or_term_is_irrelevant() {
    let (alone, intents) = handing_off();
    let (of, me) = (intents[0], alone.me());
    let irrelevant = |of, term| alone.machine.is_irrelevant(&me, &stopped(of, term, &me));
    assert_eq!([0, 1, 2].map(|term| irrelevant(of, term)), [true, false, false]);
    let at = |epoch| irrelevant((of.0, Epoch(epoch), of.2), 1);
    assert_eq!([of.1.0 - 1, of.1.0, of.1.0 + 1].map(at), [true, false, false]);
    assert!(irrelevant((of.0, Epoch(0), of.2), 0));
    assert!(
        !irrelevant((of.0, Epoch(0), of.2), 2),
        "for a term in which it is not the manager yet"
    );

    let host = host(Vec::new());
    assert!(host.machine.is_irrelevant(&me, &stopped(of, 9, &me)), "it is never the manager");
}

#[test]
fn acks_of_terms_that_others_managed_are_irrelevant() {
    let mut alone = Alone::registered(crate::rows::Roles::ALL);
    alone.written(Err(WriteError::Unknown));
    alone.learn(key("m"), row(1, HOST));
    let of = (ShardId(1), Epoch(1), NONE);
    let irrelevant =
        |alone: &Alone, term| alone.machine.is_irrelevant(&member("b", 1), &ack(of, term));
    assert!(!irrelevant(&alone, 1), "there is no manager: it may become one");
    alone.manager(5, member("m", 1));
    assert_eq!([4, 5, 6].map(|term| irrelevant(&alone, term)), [true, true, false]);
    let me = alone.me();
    alone.handle(Event::WatchLost);
    alone.manager(6, me);
    assert_eq!(
        [5, 6, 7].map(|term| irrelevant(&alone, term)),
        [true, false, false],
        "only those before its own term"
    );
}

#[test]
fn a_hand_off_may_continue_by_its_intent_or_its_row() {
    let (mut alone, intents) = handing_off();
    let (of, other) = (intents[0].2, HandOffId { term: 1, number: 99 });
    let knows = |alone: &Alone| {
        (alone.machine.may_continue_hand_off(of), alone.machine.may_continue_hand_off(other))
    };
    assert_eq!(knows(&alone), (true, false), "it is being written");
    alone.written(Err(WriteError::Unknown));
    assert_eq!(knows(&alone), (true, false), "it is unknown whether it was written");

    let mut host = host(Vec::new());
    assert_eq!(knows(&host), (false, false));
    let moving = Some(crate::rows::HandOffIntent { id: of, target: None });
    let shard = Assignment { epoch: Epoch(9), hand_off: moving, ..Assignment::default() };
    let row =
        AssignmentsRow { term: 3, assignments: vec![shard], extensions: Extensions::default() };
    host.learn(RowKey::Assignments(0), Row::Assignments(row));
    assert_eq!(knows(&host), (true, false), "the row names it");
}

/// A report from `b`, which holds shard 2 under epoch 4, to an observing host.
fn report(alone: &Alone) -> NodeReport {
    NodeReport {
        incarnation: member("b", 1).incarnation,
        applied_chunks: vec![(0, alone.revision)],
        shards: vec![ReportedShard { shard: ShardId(2), epoch: Epoch(4), serving: true }],
        store_available: true,
        ..NodeReport::default()
    }
}

#[test]
fn a_report_that_matches_the_rows_is_irrelevant() {
    let mut alone = host(Vec::new());
    let b = member("b", 1);
    let base = report(&alone);
    let agrees = |report: &NodeReport| alone.machine.is_report_irrelevant(&b, report);
    assert!(agrees(&base));
    assert!(alone.machine.is_irrelevant(&b, &ControlMessage::Report(Box::new(base.clone()))));
    assert!(!agrees(&NodeReport { store_available: false, ..base.clone() }));
    let mut unrunnable = base.clone();
    unrunnable.set_unrunnable_types(&["x".into()]).expect("it fits");
    assert!(!agrees(&unrunnable));
    let mut misplaced = base.clone();
    misplaced.set_misplaced(&[(ShardId(2), Epoch(4))]);
    assert!(!agrees(&misplaced));
    // A missing shard counts if the sender had seen the row.
    let silent = NodeReport { shards: Vec::new(), ..base.clone() };
    assert!(!agrees(&silent));
    assert!(
        agrees(&NodeReport { applied_chunks: Vec::new(), ..silent.clone() }),
        "it had seen no row"
    );
    let before = vec![(0, alone.revision - 1)];
    assert!(
        agrees(&NodeReport { applied_chunks: before, ..silent.clone() }),
        "it had seen an earlier row"
    );
    let after = vec![(0, alone.revision + 1)];
    assert!(
        !agrees(&NodeReport { applied_chunks: after, ..base.clone() }),
        "it had seen a row that is unknown here"
    );
    assert!(
        alone.machine.is_report_irrelevant(&member("c", 1), &silent),
        "it owns none of the shards"
    );
    let held = |shard, epoch| {
        vec![ReportedShard { shard: ShardId(shard), epoch: Epoch(epoch), serving: true }]
    };
    assert!(!agrees(&NodeReport { shards: held(2, 3), ..base.clone() }));
    assert!(!agrees(&NodeReport { shards: held(1, 4), ..base.clone() }));
    let refused = |shard, epoch| vec![(ShardId(shard), Epoch(epoch), Epoch(epoch))];
    assert!(!agrees(&NodeReport { refused_claims: refused(2, 4), ..base.clone() }));
    assert!(!agrees(&NodeReport { refused_claims: refused(2, 5), ..base.clone() }));
    assert!(
        agrees(&NodeReport { refused_claims: refused(2, 3), ..base.clone() }),
        "the epoch has ended"
    );
    assert!(agrees(&NodeReport { refused_claims: refused(900, 9), ..base.clone() }));

    let Row::Node(live) = row(1, HOST) else { panic!("a node's row") };
    let dead = NodeRow { status: NodeStatus::Dead, ..live };
    alone.learn(key("b"), Row::Node(dead));
    assert!(alone.machine.is_report_irrelevant(&b, &silent), "its incarnation has ended");
    assert!(
        !Alone::registered(HOST).machine.is_report_irrelevant(&b, &base),
        "no row is known here"
    );
}

#[test]
fn reports_that_match_the_rows_are_pruned() {
    let mut alone = sealed(4);
    alone.all_done();
    alone.learn(key("g"), row(1, crate::rows::Roles { gateway: true, ..Default::default() }));
    let g = member("g", 1);
    let base =
        NodeReport { incarnation: g.incarnation, store_available: true, ..NodeReport::default() };
    let message = ControlMessage::Report(Box::new(base.clone()));
    let receive = |alone: &mut Alone, report: &NodeReport| {
        let message = ControlMessage::Report(Box::new(report.clone()));
        alone.handle(Event::Received { from: g.clone(), message });
    };
    assert!(alone.machine.is_irrelevant(&g, &message));
    receive(&mut alone, &base);
    assert!(!alone.machine.is_irrelevant(&g, &message), "an earlier report may differ");
    alone.machine.prune_irrelevant();
    assert!(alone.machine.is_irrelevant(&g, &message));
    let refused =
        NodeReport { refused_claims: vec![(ShardId(1), Epoch(9), Epoch(9))], ..base.clone() };
    receive(&mut alone, &refused);
    alone.machine.prune_irrelevant();
    assert!(!alone.machine.is_irrelevant(&g, &message), "the earlier report matters");

    let unavailable = NodeReport { store_available: false, ..base.clone() };
    receive(&mut alone, &unavailable);
    assert!(
        !alone.machine.is_report_irrelevant(&g, &base),
        "it reports that the store responds again"
    );
    receive(&mut alone, &base);
    assert!(alone.machine.is_report_irrelevant(&g, &base));
    let mut unrunnable = base.clone();
    unrunnable.set_unrunnable_types(&["x".into()]).expect("it fits");
    receive(&mut alone, &unrunnable);
    assert!(
        !alone.machine.is_report_irrelevant(&g, &base),
        "it reports that it can run all types again"
    );
}

#[test]
fn ended_epochs_are_pruned_once_the_row_is_above_them() {
    let mut alone = host(Vec::new());
    let me = alone.me();
    let m = member("m", 1);
    alone.handle(Event::Received { from: m, message: stop(me.incarnation, 3, 3, 6) });
    let before = hash(&alone.machine);
    alone.machine.prune_irrelevant();
    assert_eq!(hash(&alone.machine), before, "a row that names it may still arrive");
    let other = Some(member("b", 1));
    alone.shards(&[(2, Some(me)), (4, other.clone()), (6, other.clone()), (0, None)]);
    let before = hash(&alone.machine);
    alone.machine.prune_irrelevant();
    assert_eq!(hash(&alone.machine), before, "its epoch is the one that ended");
    let me = alone.me();
    alone.shards(&[(2, Some(me)), (4, other.clone()), (7, other), (0, None)]);
    let before = hash(&alone.machine);
    alone.machine.prune_irrelevant();
    assert_ne!(hash(&alone.machine), before);
}

#[test]
fn shard_stopped_is_kept_until_the_shard_has_an_owner() {
    let (mut alone, intents) = handing_off();
    let (of, me) = (intents[0], alone.me());
    // The intent is being written, so the row causes no other decision.
    alone.handle(Event::Received { from: me.clone(), message: stopped(of, 1, &me) });
    let before = hash(&alone.machine);
    alone.machine.prune_irrelevant();
    assert_eq!(hash(&alone.machine), before);
}

#[test]
fn only_a_node_that_manages_can_be_nudged() {
    let nudged = |alone: &mut Alone| {
        alone.machine.nudge(false);
        let before = hash(&alone.machine);
        alone.machine.nudge(true);
        let changed = hash(&alone.machine) != before;
        alone.machine.nudge(false);
        assert_eq!(hash(&alone.machine), before);
        changed
    };
    let mut alone = sealed(4);
    alone.all_done();
    assert!(nudged(&mut alone));
    alone.handle(Event::WatchLost);
    assert!(!nudged(&mut alone), "rows are missing");
    let mut alone = sealed(4);
    alone.all_done();
    alone.wait(Settings::default().lease);
    assert!(alone.machine.is_suspended() && !nudged(&mut alone));
    assert!(!nudged(&mut leader(4, Vec::new())), "its rows are not sealed");
    assert!(!nudged(&mut host(Vec::new())));
}

/// Shifts all times back.
struct Back(u64);

impl Canonicalizer for Back {
    fn map_time(&self, at: u64) -> u64 {
        at.saturating_sub(self.0)
    }

    fn map_deadline(&self, at: u64) -> u64 {
        at.saturating_sub(self.0)
    }

    fn map_revision(&self, _: &RowKey, at: u64) -> u64 {
        at
    }

    fn map_renewals(&self, _: &NodeId, count: u64) -> u64 {
        count
    }
}

#[test]
fn canonicalization_shifts_hand_off_deadlines_too() {
    let (mut alone, _) = handing_off();
    // The hand-offs start, and `b` does not acknowledge them.
    alone.done();
    let until = alone.now + Settings::default().ack_timeout;
    let stops = |back: u64, at: u64| {
        let mut machine = alone.machine.clone();
        machine.canonicalize(&Back(back));
        machine.handle(Now { mono: at, cluster_time: at, utc: 0 }, Event::Tick);
        let actions = std::iter::from_fn(|| machine.poll());
        actions.filter(|it| matches!(it, Action::StopShard { .. })).count()
    };
    for back in [0, 5_000] {
        assert_eq!(stops(back, until - back - 1), 0);
        assert_eq!(stops(back, until - back), 2);
    }
}

#[test]
fn a_hand_off_ends_when_its_shard_has_another_epoch() {
    let (mut alone, intents) = handing_off();
    alone.done();
    // No acknowledgement is missing: this node is asked to stop the shards.
    let Row::Node(live) = row(1, HOST) else { panic!("a node's row") };
    alone.learn(key("b"), Row::Node(NodeRow { status: NodeStatus::Dead, ..live }));
    for (shard, epoch, _) in &intents {
        alone.handle(Event::ShardStopped { shard: *shard, epoch: *epoch });
    }
    // This node gets the shards again: there is no other host.
    alone.all_done();
    assert!(intents.iter().all(|(shard, ..)| alone.machine.known_epoch(*shard) == Some(Epoch(2))));
    alone.learn(key("b"), row(2, HOST));
    let moving = alone.writes.iter().find_map(|(_, row)| match row {
        Row::Assignments(row) => {
            Some(row.assignments.iter().filter(|it| it.hand_off.is_some()).count())
        }
        _ => None,
    });
    assert_eq!(moving, Some(2), "balanced immediately");
}

#[test]
fn a_hand_off_may_continue_until_its_seal_is_confirmed() {
    let id = HandOffId { term: 0, number: 7 };
    let of = |epoch, moving| {
        let owner = Some(member("b", 1));
        let shard =
            Assignment { epoch: Epoch(epoch), owner, hand_off: moving, ..Assignment::default() };
        Row::Assignments(AssignmentsRow {
            term: 0,
            assignments: vec![shard],
            extensions: Extensions::default(),
        })
    };
    let moving = Some(crate::rows::HandOffIntent { id, target: None });
    let mut alone = leader(4, vec![(RowKey::Assignments(0), of(1, moving), 3)]);
    alone.written(Err(WriteError::Unknown));
    // The former manager has ended the hand-off in the meantime.
    let message =
        ControlMessage::RowUpdate { key: RowKey::Assignments(0), row: of(2, None), revision: 20 };
    alone.handle(Event::Received { from: member("b", 1), message });
    assert!(
        alone.machine.may_continue_hand_off(id),
        "it does not know whether its seal was written"
    );
}
