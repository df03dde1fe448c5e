//! Late answers to what has ended: they change nothing. And what happens to an instance that is asked for its
//! slot.

use super::*;

fn done(hand: &mut Harness, of: (u64, TurnId, Arc<Message>)) {
    let (generation, id, message) = of;
    let result = turn(GuestReply::Result(Bytes::from_static(b"r")), false);
    hand.handle(Event::TurnDone { entity: message.target.clone(), generation, turn: id, result });
}

fn abandon(hand: &mut Harness) -> (u64, TurnId, Arc<Message>) {
    let (generation, turn, message) = hand.running.take().expect("a running turn");
    hand.handle(Event::QueryAbandoned { entity: alice(), generation, turn });
    (generation, turn, message)
}

#[test]
fn a_commit_outcome_of_another_machine_is_ignored() {
    let mut hand = Harness::serving();
    let token = hand.send(1, 0, MessageKind::Command);
    hand.run();
    let turn = hand.commits[0].head.turn;
    for foreign in [TurnId { epoch: Epoch(2), ..turn }, TurnId { nonce: turn.nonce + 1, ..turn }] {
        hand.handle(Event::Stop(StopReason::HandedOff));
        hand.handle(Event::CommitResults(vec![(alice(), foreign, CommitOutcome::Committed)]));
        assert_eq!((hand.code_of(token), hand.stopped), (None, 0), "its own commit is pending");
        // Nor does it count as the answer to a commit whose entity is gone.
        hand.handle(Event::CommitResults(vec![(
            Entity::new("counter", "x"),
            foreign,
            CommitOutcome::Committed,
        )]));
    }
    hand.now += Settings::default().stop_timeout;
    hand.handle(Event::Tick);
    assert_eq!(hand.stopped, 0);
    hand.settle(CommitOutcome::Committed);
    assert_eq!((hand.code_of(token).as_deref(), hand.stopped), (Some("final 1"), 1));
}

#[test]
fn an_abandoned_load_does_not_complete_a_later_one() {
    let mut hand = Harness::serving();
    hand.silent = true;
    let deadline = Some(hand.now + 10);
    hand.post(Message { deadline, ..hand.template() });
    let first = hand.ask();
    hand.now += 10;
    hand.handle(Event::Tick);
    hand.answer_load(&first);
    assert_eq!(hand.machine.stats(), (0, 0), "no caller waits any longer");
    hand.send(2, 0, MessageKind::Command);
    let second = hand.ask();
    hand.answer_load(&first);
    assert!(hand.asked.is_empty(), "{:?}", hand.asked);
    hand.answer_load(&second);
    assert!(matches!(hand.ask(), Action::RequestSlot { .. }));
    hand.answer_load(&second);
    assert!(hand.asked.is_empty(), "it was loaded before");
}

#[test]
fn a_reply_from_the_head_leaves_nothing_in_memory() {
    let mut hand = Harness::serving();
    hand.send(1, 0, MessageKind::Command);
    hand.run();
    hand.settle(CommitOutcome::Committed);
    let (head, lanes) = (hand.head.take(), std::mem::take(&mut hand.lanes));
    let mut hand = Harness::serving();
    (hand.head, hand.lanes) = (head, lanes);
    let copy = hand.send(1, 0, MessageKind::Command);
    assert_eq!(hand.code_of(copy).as_deref(), Some("final 1"));
    assert_eq!((hand.loads, hand.rooms, hand.machine.stats()), (1, 0, (0, 0)));
}

#[test]
fn an_abandoned_turn_does_not_complete_a_later_one() {
    let mut hand = Harness::serving();
    let query = hand.send(1, 0, MessageKind::Query);
    let late = abandon(&mut hand);
    assert_eq!(hand.code_of(query).as_deref(), Some(&*codes::CALLER_GONE));
    let command = hand.send(2, 0, MessageKind::Command);
    done(&mut hand, late.clone());
    assert_eq!((hand.code_of(command), hand.commits.len()), (None, 0), "it runs");
    // Nor does a second cancellation of the first query.
    let (generation, turn, _) = late;
    hand.handle(Event::QueryAbandoned { entity: alice(), generation, turn });
    hand.run();
    hand.settle(CommitOutcome::Committed);
    assert_eq!(hand.code_of(command).as_deref(), Some("final 1"));
}

#[test]
fn a_command_continues_when_its_sender_is_gone() {
    let mut hand = Harness::serving();
    let command = hand.send(1, 0, MessageKind::Command);
    hand.running = Some(abandon(&mut hand));
    assert_eq!(hand.code_of(command), None);
    hand.run();
    hand.settle(CommitOutcome::Committed);
    assert_eq!(hand.code_of(command).as_deref(), Some("final 1"));
}

#[test]
fn a_query_runs_until_the_last_of_its_senders_is_gone() {
    let mut hand = Harness::serving();
    let tokens = [(); 3].map(|()| hand.send(1, 0, MessageKind::Query));
    for gone in 0..3 {
        abandon(&mut hand);
        let told = tokens.map(|token| hand.code_of(token).is_some());
        assert_eq!(told, [0, 1, 2].map(|of| of <= gone));
    }
    assert!(hand.running.is_none());
    assert_eq!(hand.replies.len(), 3, "each once");
}

#[test]
fn a_stop_hook_is_completed_only_by_its_own_turn() {
    let mut hand = Harness::serving();
    let settings = TypeSettings { has_stop_hook: true, ..TypeSettings::default() };
    hand.handle(Event::TypeDeployed { entity_type: "counter".into(), settings });
    hand.send(1, 0, MessageKind::Query);
    let late = abandon(&mut hand);
    hand.handle(Event::Evict { entity: alice() });
    let Action::CallStopHook { entity, generation, turn: id, .. } = hand.ask() else {
        panic!("no hook")
    };
    done(&mut hand, late);
    assert_eq!(hand.dropped, 0, "the hook runs");
    let result = turn(GuestReply::Result(Bytes::new()), false);
    hand.handle(Event::TurnDone { entity, generation, turn: id, result });
    assert_eq!(hand.dropped, 1);
}

#[test]
fn only_idle_instances_are_evicted() {
    let evict = |hand: &mut Harness| hand.handle(Event::Evict { entity: alice() });
    let mut hand = Harness::serving();
    evict(&mut hand);
    assert_eq!((hand.dropped, hand.busy), (0, 0), "there is none");
    let token = hand.send(1, 0, MessageKind::Command);
    evict(&mut hand);
    assert_eq!((hand.dropped, hand.busy), (0, 1), "it runs a turn");
    hand.run();
    hand.settle(CommitOutcome::Committed);
    assert_eq!((hand.dropped, hand.code_of(token).as_deref()), (0, Some("final 1")), "it stays");
    // A message that waits for the lease is about to run.
    hand.now += 2_400;
    hand.send(2, 1, MessageKind::Query);
    assert!(hand.running.is_none());
    evict(&mut hand);
    assert_eq!((hand.dropped, hand.busy), (0, 2));
    hand.handle(Event::LeaseRenewed { sent_at: hand.now, lease: 3_000 });
    hand.run();
    hand.handle(Event::Suspend);
    evict(&mut hand);
    assert_eq!((hand.dropped, hand.busy), (0, 3), "a suspended shard keeps its instances");
    hand.handle(Event::Resume);
    evict(&mut hand);
    assert_eq!((hand.dropped, hand.busy, hand.rooms), (1, 3, 0));
    hand.silent = true;
    hand.send(3, 0, MessageKind::Command);
    evict(&mut hand);
    assert_eq!((hand.dropped, hand.busy), (1, 3), "it is being loaded");
}

#[test]
fn r24_a_newer_revision_replaces_only_instances_of_its_type() {
    let deploy = |hand: &mut Harness, kind: &str, revision| {
        let settings = TypeSettings { revision, ..TypeSettings::default() };
        hand.handle(Event::TypeDeployed { entity_type: kind.into(), settings });
    };
    let mut hand = Harness::serving();
    deploy(&mut hand, "other", 1);
    deploy(&mut hand, "counter", 3);
    hand.head = Some(Head { version: 1, revision: 3, state_bytes: 9, ..Head::default() });
    hand.send(1, 0, MessageKind::Command);
    hand.run();
    hand.settle(CommitOutcome::Committed);
    deploy(&mut hand, "other", 2);
    deploy(&mut hand, "counter", 3);
    assert_eq!(hand.dropped, 0);
    deploy(&mut hand, "counter", 4);
    assert_eq!(hand.dropped, 1);
    hand.send(2, 1, MessageKind::Command);
    hand.run();
    let head = &hand.commits[0].head;
    assert_eq!((head.revision, head.state_bytes), (4, 2), "what ran it, and what it left");
}

#[test]
fn a_store_limit_delays_no_turn_after_the_refused_one() {
    let mut hand = Harness::serving();
    hand.send(1, 0, MessageKind::Command);
    hand.run();
    hand.settle(CommitOutcome::Refused(CommitRefusal::LimitReached("the disk is full".into())));
    let next = hand.send(2, 0, MessageKind::Command);
    hand.run();
    hand.settle(CommitOutcome::Committed);
    assert_eq!(hand.code_of(next).as_deref(), Some("final 1"));
}

#[test]
fn r3_an_outcome_of_another_machine_permits_no_claim() {
    let mut hand = Harness::serving();
    hand.send(1, 0, MessageKind::Command);
    hand.run();
    let turn = hand.commits[0].head.turn;
    hand.send(2, 1, MessageKind::Command);
    hand.run();
    hand.settle(CommitOutcome::Unknown("a failed sync".into()));
    for foreign in [TurnId { epoch: Epoch(2), ..turn }, TurnId { nonce: turn.nonce + 1, ..turn }] {
        hand.handle(Event::CommitResults(vec![(alice(), foreign, CommitOutcome::Committed)]));
        assert_eq!(hand.claims.len(), 1, "its own commit is pending");
    }
    hand.settle(CommitOutcome::Unknown("a failed sync".into()));
    assert_eq!(hand.claims.len(), 2);
}

#[test]
fn gate_lane_and_lease_mutations_have_visible_effects() {
    let without =
        |mutation| Harness::with(Settings { mutations: vec![mutation], ..Settings::default() });
    let mut hand = without(Mutation::ReplyBeforeCommit);
    let token = hand.send(1, 0, MessageKind::Command);
    hand.run();
    assert_eq!(hand.code_of(token).as_deref(), Some("final 1"), "before its commit");

    let mut hand = without(Mutation::IgnoreLanes);
    hand.send(1, 0, MessageKind::Command);
    hand.run();
    assert!(hand.commits[0].head.lanes.is_empty(), "nothing is remembered");

    let mut hand = without(Mutation::DoubleLease);
    hand.now += 5_900;
    let query = hand.send(1, 0, MessageKind::Query);
    hand.run();
    assert_eq!(hand.code_of(query).as_deref(), Some("final 0"), "to twice the lease");
}
