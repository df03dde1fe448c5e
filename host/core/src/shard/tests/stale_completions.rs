//! Late results of operations that have ended change nothing. Also: evictions of instances.

use super::*;

fn done(harness: &mut Harness, of: (u64, TurnId, Arc<Message>)) {
    let (generation, id, message) = of;
    let result = turn(GuestReply::Result(Bytes::from_static(b"r")), false);
    harness.handle(Event::TurnDone {
        entity: message.target.clone(),
        generation,
        turn: id,
        result,
    });
}

fn abandon(harness: &mut Harness) -> (u64, TurnId, Arc<Message>) {
    let (generation, turn, message) = harness.running.take().expect("a running turn");
    harness.handle(Event::QueryAbandoned { entity: alice(), generation, turn });
    (generation, turn, message)
}

#[test]
fn a_commit_outcome_of_another_machine_is_ignored() {
    let mut harness = Harness::serving();
    let token = harness.send(1, 0, MessageKind::Command);
    harness.run();
    let turn = harness.commits[0].head.turn;
    for foreign in [TurnId { epoch: Epoch(2), ..turn }, TurnId { nonce: turn.nonce + 1, ..turn }] {
        harness.handle(Event::Stop(StopReason::HandedOff));
        harness.handle(Event::CommitResults(vec![(alice(), foreign, CommitOutcome::Committed)]));
        assert_eq!(
            (harness.code_of(token), harness.stopped),
            (None, 0),
            "its own commit is pending"
        );
        // It does not count as the answer to a commit whose entity is gone, either.
        harness.handle(Event::CommitResults(vec![(
            Entity::new("counter", "x"),
            foreign,
            CommitOutcome::Committed,
        )]));
    }
    harness.now += Settings::default().stop_timeout;
    harness.handle(Event::Tick);
    assert_eq!(harness.stopped, 0);
    harness.settle(CommitOutcome::Committed);
    assert_eq!((harness.code_of(token).as_deref(), harness.stopped), (Some("final 1"), 1));
}

#[test]
fn an_abandoned_load_does_not_complete_a_later_one() {
    let mut harness = Harness::serving();
    harness.silent = true;
    let deadline = Some(harness.now + 10);
    harness.post(Message { deadline, ..harness.template() });
    let first = harness.next_action();
    harness.now += 10;
    harness.handle(Event::Tick);
    harness.answer_load(&first);
    assert_eq!(harness.machine.stats(), (0, 0), "no caller waits any longer");
    harness.send(2, 0, MessageKind::Command);
    let second = harness.next_action();
    harness.answer_load(&first);
    assert!(harness.pending_actions.is_empty(), "{:?}", harness.pending_actions);
    harness.answer_load(&second);
    assert!(matches!(harness.next_action(), Action::RequestSlot { .. }));
    harness.answer_load(&second);
    assert!(harness.pending_actions.is_empty(), "it is loaded already");
}

#[test]
fn a_reply_from_the_head_leaves_nothing_in_memory() {
    let mut harness = Harness::serving();
    harness.send(1, 0, MessageKind::Command);
    harness.run();
    harness.settle(CommitOutcome::Committed);
    let (head, lanes) = (harness.head.take(), std::mem::take(&mut harness.lanes));
    let mut harness = Harness::serving();
    (harness.head, harness.lanes) = (head, lanes);
    let copy = harness.send(1, 0, MessageKind::Command);
    assert_eq!(harness.code_of(copy).as_deref(), Some("final 1"));
    assert_eq!((harness.loads, harness.rooms, harness.machine.stats()), (1, 0, (0, 0)));
}

#[test]
fn an_abandoned_turn_does_not_complete_a_later_one() {
    let mut harness = Harness::serving();
    let query = harness.send(1, 0, MessageKind::Query);
    let late = abandon(&mut harness);
    assert_eq!(harness.code_of(query).as_deref(), Some(&*codes::CALLER_GONE));
    let command = harness.send(2, 0, MessageKind::Command);
    done(&mut harness, late.clone());
    assert_eq!((harness.code_of(command), harness.commits.len()), (None, 0), "it is running");
    // Nor does a second cancellation of the first query.
    let (generation, turn, _) = late;
    harness.handle(Event::QueryAbandoned { entity: alice(), generation, turn });
    harness.run();
    harness.settle(CommitOutcome::Committed);
    assert_eq!(harness.code_of(command).as_deref(), Some("final 1"));
}

#[test]
fn a_command_continues_when_its_sender_is_gone() {
    let mut harness = Harness::serving();
    let command = harness.send(1, 0, MessageKind::Command);
    harness.running = Some(abandon(&mut harness));
    assert_eq!(harness.code_of(command), None);
    harness.run();
    harness.settle(CommitOutcome::Committed);
    assert_eq!(harness.code_of(command).as_deref(), Some("final 1"));
}

#[test]
fn a_query_runs_until_the_last_of_its_senders_is_gone() {
    let mut harness = Harness::serving();
    let tokens = [(); 3].map(|()| harness.send(1, 0, MessageKind::Query));
    for gone in 0..3 {
        abandon(&mut harness);
        let told = tokens.map(|token| harness.code_of(token).is_some());
        assert_eq!(told, [0, 1, 2].map(|of| of <= gone));
    }
    assert!(harness.running.is_none());
    assert_eq!(harness.replies.len(), 3, "one reply each");
}

#[test]
fn a_stop_hook_is_completed_only_by_its_own_turn() {
    let mut harness = Harness::serving();
    let settings = TypeSettings { has_stop_hook: true, ..TypeSettings::default() };
    harness.handle(Event::TypeDeployed { entity_type: "counter".into(), settings });
    harness.send(1, 0, MessageKind::Query);
    let late = abandon(&mut harness);
    harness.handle(Event::Evict { entity: alice() });
    let Action::CallStopHook { entity, generation, turn: id, .. } = harness.next_action() else {
        panic!("no hook")
    };
    done(&mut harness, late);
    assert_eq!(harness.dropped, 0, "the hook is running");
    let result = turn(GuestReply::Result(Bytes::new()), false);
    harness.handle(Event::TurnDone { entity, generation, turn: id, result });
    assert_eq!(harness.dropped, 1);
}

#[test]
fn only_idle_instances_are_evicted() {
    let evict = |harness: &mut Harness| harness.handle(Event::Evict { entity: alice() });
    let mut harness = Harness::serving();
    evict(&mut harness);
    assert_eq!((harness.dropped, harness.busy), (0, 0), "there is no instance");
    let token = harness.send(1, 0, MessageKind::Command);
    evict(&mut harness);
    assert_eq!((harness.dropped, harness.busy), (0, 1), "it is running a turn");
    harness.run();
    harness.settle(CommitOutcome::Committed);
    assert_eq!(
        (harness.dropped, harness.code_of(token).as_deref()),
        (0, Some("final 1")),
        "it is kept"
    );
    // A message that waits for the lease is about to run.
    harness.now += 2_400;
    harness.send(2, 1, MessageKind::Query);
    assert!(harness.running.is_none());
    evict(&mut harness);
    assert_eq!((harness.dropped, harness.busy), (0, 2));
    harness.handle(Event::LeaseRenewed { sent_at: harness.now, lease: 3_000 });
    harness.run();
    harness.handle(Event::Suspend);
    evict(&mut harness);
    assert_eq!((harness.dropped, harness.busy), (0, 3), "a suspended shard keeps its instances");
    harness.handle(Event::Resume);
    evict(&mut harness);
    assert_eq!((harness.dropped, harness.busy, harness.rooms), (1, 3, 0));
    harness.silent = true;
    harness.send(3, 0, MessageKind::Command);
    evict(&mut harness);
    assert_eq!((harness.dropped, harness.busy), (1, 3), "it is being loaded");
}

#[test]
fn r24_a_newer_revision_replaces_only_instances_of_its_type() {
    let deploy = |harness: &mut Harness, kind: &str, revision| {
        let settings = TypeSettings { revision, ..TypeSettings::default() };
        harness.handle(Event::TypeDeployed { entity_type: kind.into(), settings });
    };
    let mut harness = Harness::serving();
    deploy(&mut harness, "other", 1);
    deploy(&mut harness, "counter", 3);
    harness.head = Some(Head { version: 1, revision: 3, state_bytes: 9, ..Head::default() });
    harness.send(1, 0, MessageKind::Command);
    harness.run();
    harness.settle(CommitOutcome::Committed);
    deploy(&mut harness, "other", 2);
    deploy(&mut harness, "counter", 3);
    assert_eq!(harness.dropped, 0);
    deploy(&mut harness, "counter", 4);
    assert_eq!(harness.dropped, 1);
    harness.send(2, 1, MessageKind::Command);
    harness.run();
    let head = &harness.commits[0].head;
    assert_eq!(
        (head.revision, head.state_bytes),
        (4, 2),
        "the revision that ran the turn, and the size of the state"
    );
}

#[test]
fn a_store_limit_delays_no_turn_after_the_refused_one() {
    let mut harness = Harness::serving();
    harness.send(1, 0, MessageKind::Command);
    harness.run();
    harness.settle(CommitOutcome::Refused(CommitRefusal::LimitReached("the disk is full".into())));
    let next = harness.send(2, 0, MessageKind::Command);
    harness.run();
    harness.settle(CommitOutcome::Committed);
    assert_eq!(harness.code_of(next).as_deref(), Some("final 1"));
}

#[test]
fn r3_an_outcome_of_another_machine_permits_no_claim() {
    let mut harness = Harness::serving();
    harness.send(1, 0, MessageKind::Command);
    harness.run();
    let turn = harness.commits[0].head.turn;
    harness.send(2, 1, MessageKind::Command);
    harness.run();
    harness.settle(CommitOutcome::Unknown("a failed sync".into()));
    for foreign in [TurnId { epoch: Epoch(2), ..turn }, TurnId { nonce: turn.nonce + 1, ..turn }] {
        harness.handle(Event::CommitResults(vec![(alice(), foreign, CommitOutcome::Committed)]));
        assert_eq!(harness.claims.len(), 1, "its own commit is pending");
    }
    harness.settle(CommitOutcome::Unknown("a failed sync".into()));
    assert_eq!(harness.claims.len(), 2);
}

#[test]
fn gate_lane_and_lease_mutations_have_visible_effects() {
    let without =
        |mutation| Harness::with(Settings { mutations: vec![mutation], ..Settings::default() });
    let mut harness = without(Mutation::ReplyBeforeCommit);
    let token = harness.send(1, 0, MessageKind::Command);
    harness.run();
    assert_eq!(harness.code_of(token).as_deref(), Some("final 1"), "before its commit");

    let mut harness = without(Mutation::IgnoreLanes);
    harness.send(1, 0, MessageKind::Command);
    harness.run();
    assert!(harness.commits[0].head.lanes.is_empty(), "nothing is remembered");

    let mut harness = without(Mutation::DoubleLease);
    harness.now += 5_900;
    let query = harness.send(1, 0, MessageKind::Query);
    harness.run();
    assert_eq!(harness.code_of(query).as_deref(), Some("final 0"), "for twice the lease");
}
