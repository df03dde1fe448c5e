//! Tells: when they are sent, what their answers cause, and which lanes their targets keep (R19, R25).

use super::*;

fn bob() -> Entity {
    Entity::new("counter", "bob")
}

pub(super) fn tell(target: &str, method: &str) -> NewTell {
    NewTell {
        target: Entity::new("counter", target),
        method: method.into(),
        body: Bytes::from_static(b"b"),
        content_type: "".into(),
        traceparent: "".into(),
        utc_ms: 5,
    }
}

fn with(tells: Vec<NewTell>) -> TurnOutput {
    TurnOutput { tells, ..turn(GuestReply::Result(Bytes::new()), true) }
}

pub(super) fn ran() -> Outcome {
    Outcome::Final { reply: GuestReply::Result(Bytes::new()), version: 1 }
}

fn trapped() -> Outcome {
    Outcome::not_run(codes::TRAP, "why")
}

impl Harness {
    /// Runs a command whose turn sends these tells.
    fn tells(&mut self, sequence: u64, tells: Vec<NewTell>) {
        self.send(sequence, 0, MessageKind::Command);
        let (generation, turn, _) = self.running.take().expect("a running turn");
        self.handle(Event::TurnDone { entity: alice(), generation, turn, result: with(tells) });
    }

    pub(super) fn told(&mut self, sequence: u64, tells: Vec<NewTell>) {
        self.tells(sequence, tells);
        self.settle(CommitOutcome::Committed);
    }

    /// Methods of the tells that were sent, in order.
    pub(super) fn sent(&self) -> Vec<String> {
        self.tells.iter().map(|(_, tell)| tell.method.to_string()).collect()
    }

    /// Answers the oldest tell.
    pub(super) fn answer_tell(&mut self, outcome: Outcome) -> u64 {
        let (number, tell) = self.tells.remove(0);
        let (sender, target, created_ms) = (alice(), tell.target.clone(), tell.created_ms);
        self.handle(Event::TellAnswered { sender, target, number, created_ms, outcome });
        number
    }

    /// Delivers a tell from bob to alice.
    fn receive(&mut self, number: u64, created_ms: u64) -> u64 {
        let id = MessageId { session: ScopedSessionId::of_entity(&bob()), sequence: number };
        self.post(Message {
            sender: Some(bob()),
            id,
            settled: number,
            created_ms,
            ..self.template()
        })
    }
}

#[test]
fn r25_a_tell_leaves_after_its_turn_is_durable() {
    let mut harness = Harness::serving();
    harness.tells(1, vec![tell("bob", "a")]);
    assert!(harness.tells.is_empty());
    harness.settle(CommitOutcome::Committed);
    assert_eq!(harness.sent(), ["a"]);
    assert_eq!((harness.outbox.len(), harness.wakes.len()), (1, 1));
    harness.answer_tell(ran());
    harness.settle(CommitOutcome::Committed);
    assert_eq!((harness.outbox.len(), harness.wakes.len()), (0, 0));
    assert_eq!(harness.head.as_ref().unwrap().outbox_counts(), Ok((0, 0)));

    let mutations = vec![Mutation::TellBeforeCommit];
    let mut early = Harness::with(Settings { mutations, ..Settings::default() });
    early.tells(1, vec![tell("bob", "a")]);
    assert_eq!(early.sent(), ["a"], "the violation of the rule is visible");
}

#[test]
fn r25_a_turn_that_does_not_commit_sends_nothing() {
    let mut harness = Harness::serving();
    harness.tells(1, vec![tell("bob", "a")]);
    harness.settle(CommitOutcome::Refused(CommitRefusal::LimitReached("full".into())));
    harness.tick(2_000);
    assert!(harness.tells.is_empty());
    // The number of the refused tell is used again by another one, which is durable.
    harness.told(2, vec![tell("bob", "b")]);
    assert_eq!(harness.sent(), ["b"]);
}

#[test]
fn r19_tells_to_one_target_are_sent_one_by_one_in_order() {
    let mut harness = Harness::serving();
    harness.told(1, vec![tell("bob", "a"), tell("carol", "x"), tell("bob", "b")]);
    harness.told(2, vec![tell("bob", "c")]);
    assert_eq!(harness.sent(), ["a", "x"], "targets do not wait for each other");
    let first = harness.answer_tell(ran());
    assert_eq!(harness.sent(), ["x", "b"]);
    harness.tells.remove(0);
    let second = harness.answer_tell(ran());
    assert_eq!(harness.sent(), ["c"]);
    let third = harness.answer_tell(ran());
    assert!(first < second && second < third);
}

#[test]
fn r19_a_new_owner_resends_what_remains_with_its_number() {
    let mut harness = Harness::serving();
    harness.told(1, vec![tell("bob", "a"), tell("bob", "b")]);
    let number = harness.answer_tell(ran());
    let mut next = harness.restarted();
    assert_eq!(next.sent(), ["a"], "its deletion was not committed");
    assert_eq!(next.tells[0].0, number);
    // The target has run both tells, and no longer knows the first one.
    next.answer_tell(Outcome::not_run(codes::SUPERSEDED, ""));
    assert_eq!(next.sent(), ["b"]);
    next.answer_tell(ran());
    while !next.commits.is_empty() {
        next.settle(CommitOutcome::Committed);
    }
    assert_eq!((next.outbox.len(), next.starts, next.machine.stats().0), (0, 0, 0));
}

#[test]
fn r19_an_application_error_makes_a_dead_letter_at_once() {
    let mut harness = Harness::serving();
    harness.told(1, vec![tell("bob", "a"), tell("bob", "b")]);
    let error = GuestReply::Error { code: "no".into(), message: "why".into() };
    harness.answer_tell(Outcome::Final { reply: error, version: 3 });
    harness.settle(CommitOutcome::Committed);
    assert_eq!(harness.sent(), ["b"], "the next one is sent");
    let (_, dead) = &harness.dead_letters[0];
    assert_eq!((&*dead.method, &*dead.failure, dead.attempts), ("a", "no: why", 1));
    assert_eq!(harness.head.as_ref().unwrap().outbox_counts(), Ok((1, 1)));
}

#[test]
fn r19_the_next_tell_waits_until_the_dead_letter_is_durable() {
    let mut harness = Harness::serving();
    harness.told(1, vec![tell("bob", "a"), tell("bob", "b"), tell("carol", "x")]);
    let error = GuestReply::Error { code: "no".into(), message: "why".into() };
    let refused = Outcome::Final { reply: error, version: 3 };
    let number = harness.answer_tell(refused.clone());
    assert_eq!(harness.sent(), ["x"], "bob would forget the first one when it runs the second");
    harness.settle(CommitOutcome::Refused(CommitRefusal::LimitReached("full".into())));
    assert!(harness.dead_letters.is_empty());
    harness.tick(harness.now + 1_000);
    let again = harness.tells.iter().position(|(other, _)| *other == number).expect("sent again");
    harness.tells.swap(0, again);
    harness.answer_tell(refused);
    harness.settle(CommitOutcome::Committed);
    assert_eq!((harness.dead_letters.len(), harness.sent().contains(&"b".to_owned())), (1, true));
}

#[test]
fn r19_a_failing_tell_is_repeated_then_given_up() {
    let settings = Settings { tell_attempts: 3, ..Settings::default() };
    let mut harness = Harness::with(settings);
    harness.told(1, vec![tell("bob", "a"), tell("bob", "b")]);
    let first = harness.answer_tell(trapped());
    harness.settle(CommitOutcome::Committed);
    assert!(harness.tells.is_empty(), "neither this one nor a later one is sent yet");
    assert_eq!(harness.machine.next_wake(), Some(2_000));
    // The number of attempts is in the store.
    let mut harness = harness.restarted();
    harness.tick(1_999);
    assert!(harness.tells.is_empty());
    harness.tick(2_000);
    assert_eq!(harness.answer_tell(trapped()), first);
    harness.settle(CommitOutcome::Committed);
    harness.tick(3_999);
    assert!(harness.tells.is_empty(), "the pause doubles");
    harness.tick(4_000);
    harness.answer_tell(trapped());
    harness.settle(CommitOutcome::Committed);
    assert_eq!(harness.dead_letters[0].1.attempts, 3);
    assert_eq!(harness.sent(), ["b"]);
}

#[test]
fn r19_what_is_not_an_answer_does_not_count() {
    let settings = Settings { tell_attempts: 1, ..Settings::default() };
    let mut harness = Harness::with(settings);
    harness.told(1, vec![tell("bob", "a")]);
    let mut again = harness.now;
    let busy = Outcome::not_run_retryable(codes::MAILBOX_FULL, "", 50);
    for (outcome, pause) in [
        (Outcome::Unknown { message: "lost".into() }, 20),
        (busy.clone(), 50),
        (busy.clone(), 100),
        (Outcome::Unknown { message: "lost".into() }, 200),
    ] {
        harness.answer_tell(outcome);
        harness.tick(again + pause - 1);
        assert!(harness.tells.is_empty(), "it waits {pause} ms");
        again += pause;
        harness.tick(again);
        assert_eq!(harness.sent(), ["a"]);
    }
    assert!(harness.commits.is_empty() && harness.dead_letters.is_empty());
}

#[test]
fn r19_a_tell_that_is_too_old_never_ran_and_is_restamped() {
    let mut harness = Harness::serving();
    harness.told(1, vec![tell("bob", "a")]);
    assert_eq!(harness.tells[0].1.created_ms, 1_000);
    let old = Outcome::not_run(codes::TOO_OLD, "").with_suggested_created_ms(7_000);
    let number = harness.answer_tell(old);
    harness.settle(CommitOutcome::Committed);
    assert_eq!(harness.tells.len(), 1);
    assert_eq!((harness.tells[0].0, harness.tells[0].1.created_ms), (number, 7_000));
}

#[test]
fn r19_an_answer_to_another_tell_is_ignored() {
    let mut harness = Harness::serving();
    harness.told(1, vec![tell("bob", "a"), tell("bob", "b")]);
    let number = harness.tells[0].0;
    let answer = |target: &str, number| Event::TellAnswered {
        sender: alice(),
        target: Entity::new("counter", target),
        number,
        created_ms: 0,
        outcome: ran(),
    };
    for wrong in [answer("bob", number + 1), answer("carol", number)] {
        harness.handle(wrong);
        assert_eq!(harness.sent(), ["a"]);
    }
    harness.handle(answer("bob", number));
    harness.handle(answer("bob", number));
    assert_eq!(harness.sent(), ["a", "b"], "an answer counts once");
}

#[test]
fn a_sleeping_sender_stays_for_its_answers_and_not_longer() {
    let mut harness = Harness::serving();
    harness.told(1, vec![tell("bob", "a")]);
    let loads = harness.loads;
    harness.handle(Event::Evict { entity: alice() });
    assert_eq!((harness.machine.stats().0, harness.rooms), (1, 0), "without an instance");
    harness.answer_tell(ran());
    assert_eq!(harness.loads, loads + 1, "the deletion is a commit");
    harness.settle(CommitOutcome::Committed);
    assert_eq!((harness.machine.stats().0, harness.outbox.len(), harness.starts), (0, 0, 1));
    assert_eq!(harness.machine.next_wake(), None);
}

#[test]
fn a_failure_of_a_sleeping_senders_tell_is_counted() {
    let settings = Settings { tell_attempts: 1, ..Settings::default() };
    let mut harness = Harness::with(settings);
    harness.told(1, vec![tell("bob", "a")]);
    harness.handle(Event::Evict { entity: alice() });
    harness.answer_tell(trapped());
    harness.tick(1_020);
    harness.answer_tell(trapped());
    harness.settle(CommitOutcome::Committed);
    assert_eq!(harness.dead_letters.len(), 1);
}

#[test]
fn r24_a_commit_without_the_guest_keeps_the_revision() {
    let mut harness = Harness::with(Settings::default());
    harness.told(1, vec![tell("bob", "a")]);
    let mut harness = harness.restarted();
    assert_eq!(harness.sent().len(), 1);
    harness.answer_tell(ran());
    harness.settle(CommitOutcome::Committed);
    let head = harness.head.as_ref().expect("committed");
    assert_eq!((head.version, head.revision, harness.starts), (2, 1, 0));

    // Nor does it if an instance of a later revision has only answered queries.
    harness.told(2, vec![tell("bob", "b")]);
    let settings = TypeSettings { revision: 2, ..TypeSettings::default() };
    harness.handle(Event::TypeDeployed { entity_type: "counter".into(), settings });
    harness.send(3, 0, MessageKind::Query);
    assert_eq!(harness.machine.running_revision(&alice()), Some(2));
    let nothing = turn(GuestReply::Result(Bytes::new()), false);
    let (generation, id, _) = harness.running.take().expect("a query");
    harness.handle(Event::TurnDone { entity: alice(), generation, turn: id, result: nothing });
    harness.answer_tell(ran());
    harness.handle(Event::Evict { entity: alice() });
    harness.settle(CommitOutcome::Committed);
    let head = harness.head.as_ref().expect("committed");
    assert_eq!((head.version, head.revision), (4, 1));
}

#[test]
fn r9_no_tell_is_sent_while_suspended_or_without_a_lease() {
    let mut harness = Harness::serving();
    harness.tells(1, vec![tell("bob", "a")]);
    harness.handle(Event::Suspend);
    harness.settle(CommitOutcome::Committed);
    assert!(harness.tells.is_empty());
    harness.tick(2_000);
    harness.handle(Event::Resume);
    assert_eq!(harness.sent(), ["a"]);
    harness.tells(2, vec![tell("carol", "b")]);
    harness.now = 2_000 + 2_400;
    harness.settle(CommitOutcome::Committed);
    assert_eq!(harness.sent(), ["a"], "80 % of the lease has passed");
    harness.tick(5_000);
    assert_eq!(harness.sent(), ["a", "b"]);
}

#[test]
fn the_deletion_of_a_tell_goes_with_the_next_turn() {
    let mut harness = Harness::serving();
    harness.told(1, vec![tell("bob", "a")]);
    harness.send(2, 1, MessageKind::Command);
    harness.answer_tell(ran());
    assert!(harness.commits.is_empty(), "a turn is running");
    harness.run();
    let deletes = harness.commits[0]
        .writes
        .iter()
        .filter(|write| matches!(write.key, RecordKey::Outbox { .. }) && write.value.is_none());
    assert_eq!((harness.commits.len(), deletes.count()), (1, 1));
}

#[test]
fn one_commit_deletes_the_tells_of_many_answers() {
    let mut harness = Harness::serving();
    harness.told(1, vec![tell("bob", "a"), tell("carol", "x"), tell("dave", "y")]);
    harness.answer_tell(ran());
    harness.answer_tell(ran());
    assert!(harness.commits.is_empty(), "an answer is still expected");
    harness.answer_tell(ran());
    let deleted = |harness: &Harness| harness.commits.last().map(|commit| commit.writes.len() - 1);
    assert_eq!((harness.commits.len(), deleted(&harness)), (1, Some(3)), "and the wake-up");
    harness.settle(CommitOutcome::Committed);

    // With many tells to one target, an answer is always expected.
    harness.told(2, (0..100).map(|_| tell("bob", "a")).collect());
    for answered in 1..=64 {
        assert!(harness.commits.is_empty(), "after {answered} answers");
        harness.answer_tell(ran());
    }
    assert_eq!(harness.commits.len(), 1, "the outbox has a limit, so room is made in time");
    harness.settle(CommitOutcome::Committed);
    assert_eq!(harness.outbox.len(), 36);
}

#[test]
fn targets_of_a_sender_take_turns() {
    let mut harness = Harness::with(Settings { tell_targets: 2, ..Settings::default() });
    let twice = ["a", "b", "c"].iter().flat_map(|target| [tell(target, "1"), tell(target, "2")]);
    harness.told(1, twice.collect());
    let mut order = Vec::new();
    while let Some((_, tell)) = harness.tells.first() {
        order.push(tell.target.id.to_string());
        harness.answer_tell(ran());
    }
    assert_eq!(order, ["a", "b", "c", "a", "b", "c"]);
}

#[test]
fn a_refused_commit_of_the_outbox_is_repeated_after_a_pause() {
    let error = GuestReply::Error { code: "no".into(), message: "why".into() };
    let refused = CommitOutcome::Refused(CommitRefusal::LimitReached("full".into()));
    for answer in [ran(), Outcome::Final { reply: error, version: 3 }, trapped()] {
        let mut harness = Harness::serving();
        harness.told(1, vec![tell("bob", "a")]);
        harness.answer_tell(answer.clone());
        for pause in [1_000, 2_000, 4_000] {
            harness.settle(refused.clone());
            let again = harness.now + pause;
            harness.tick(again - 1);
            assert_eq!(harness.commits.len(), 0, "it waits");
            assert_eq!(harness.machine.next_wake(), Some(again));
            harness.tick(again);
            assert_eq!(harness.sent(), ["a"], "sent again");
            harness.answer_tell(answer.clone());
            assert_eq!(harness.commits.len(), 1);
        }
        harness.settle(CommitOutcome::Committed);
        harness.told(2, vec![tell("dave", "y")]);
        assert_eq!(harness.sent().last().map(String::as_str), Some("y"), "the pause has ended");
    }
}

#[test]
fn a_message_retries_a_paused_outbox_at_most_twice() {
    let refused = CommitOutcome::Refused(CommitRefusal::LimitReached("full".into()));
    let mut harness = Harness::serving();
    harness.told(1, vec![tell("bob", "a")]);
    harness.answer_tell(ran());
    harness.settle(refused.clone());
    let token = harness.send(2, 1, MessageKind::Command);
    assert_eq!(harness.sent(), ["a"], "the message loads the entity");
    harness.answer_tell(ran());
    harness.run();
    assert_eq!(harness.commits.len(), 1, "the deletion goes with the message's turn");
    harness.settle(refused.clone());
    assert_eq!(harness.code_of(token).as_deref(), Some("store-full"));
    harness.answer_tell(ran());
    harness.settle(refused);
    assert_eq!((harness.commits.len(), harness.tells.len()), (0, 0), "nobody waits for it");
    harness.tick(harness.now + 2_000);
    assert_eq!(harness.sent(), ["a"]);
}

#[test]
fn an_unknown_commit_of_a_deletion_is_repeated() {
    let mut harness = Harness::serving();
    harness.told(1, vec![tell("bob", "a")]);
    harness.answer_tell(ran());
    harness.settle(CommitOutcome::Unknown("lost".into()));
    harness.grant();
    assert_eq!(harness.sent(), ["a"], "it may not have been deleted");
    harness.answer_tell(ran());
    harness.settle(CommitOutcome::Committed);
    assert!(harness.outbox.is_empty());
}

#[test]
fn r25_a_wake_up_stays_until_a_done_tell_is_deleted() {
    let mut harness = Harness::serving();
    harness.told(1, vec![tell("bob", "a")]);
    harness.tells(2, Vec::new());
    harness.answer_tell(ran());
    harness.settle(CommitOutcome::Refused(CommitRefusal::LimitReached("full".into())));
    assert_eq!((harness.outbox.len(), harness.wakes.len()), (1, 1), "it is read again");
    harness.settle(CommitOutcome::Committed);
    assert_eq!((harness.outbox.len(), harness.wakes.len()), (0, 0));
}

#[test]
fn r19_a_tell_is_run_once_and_its_result_is_not_kept() {
    let mut harness = Harness::serving();
    let token = harness.receive(5, 1_000);
    harness.run();
    harness.settle(CommitOutcome::Committed);
    assert_eq!(harness.code_of(token).as_deref(), Some("final 1"));
    let lane = &harness.head.as_ref().unwrap().lanes[0];
    assert_eq!(lane.sender(), Ok(Some(bob())));
    assert!(lane.replies[0].reply.is_empty());
    let copy = harness.receive(5, 1_000);
    assert_eq!((harness.code_of(copy).as_deref(), harness.runs), (Some("final 1"), 1));
    let old = harness.receive(4, 1_000);
    assert_eq!(harness.code_of(old).as_deref(), Some("superseded"));
}

#[test]
fn r19_a_senders_lane_outlives_its_time_and_clients_room() {
    let settings = Settings { max_lanes: 2, lane_ttl: 1_000, ..Settings::default() };
    let mut harness = Harness::with(settings);
    harness.receive(5, 1_000);
    harness.run();
    harness.settle(CommitOutcome::Committed);
    for (at, session) in (1..).zip([b"a", b"b", b"c"]) {
        harness.tick(1_000 + at * 2_000);
        harness.send_from(session, 1, 0, MessageKind::Command, "1");
        harness.run();
        harness.settle(CommitOutcome::Committed);
    }
    harness.handle(Event::Evict { entity: alice() });
    let copy = harness.receive(5, 1_000);
    assert_eq!((harness.code_of(copy).as_deref(), harness.runs), (Some("final 1"), 4));
}

#[test]
fn r19_a_lane_is_dropped_when_its_sender_needs_it_no_more() {
    let settings = Settings { lane_ttl: 1_000, ..Settings::default() };
    let mut harness = Harness::with(settings);
    harness.receive(5, 1_000);
    harness.run();
    harness.settle(CommitOutcome::Committed);
    assert!(harness.asked.is_empty(), "the lane is not old yet");
    let command = |harness: &mut Harness, sequence: u64, at| {
        harness.tick(at);
        harness.send(sequence, sequence - 1, MessageKind::Command);
        harness.run();
        harness.settle(CommitOutcome::Committed);
    };
    command(&mut harness, 1, 3_000);
    assert_eq!(harness.asked, [bob()]);
    command(&mut harness, 2, 3_100);
    assert_eq!(harness.asked.len(), 1, "one question at a time");
    // First the sender does not answer; then it may still send 5; then it has only a later tell.
    for (number, first) in [(3, None), (4, Some(Some(5))), (5, Some(Some(6)))] {
        harness.handle(Event::SenderAnswered { entity: alice(), sender: bob(), first });
        command(&mut harness, number, number * 2_000);
        let kept = harness.lanes.len() + harness.head.as_ref().unwrap().lanes.len();
        assert_eq!(kept, if number < 5 { 2 } else { 1 }, "{first:?}");
    }
    let watermark = harness.head.as_ref().unwrap().tell_watermark();
    assert_eq!((watermark, harness.head.as_ref().unwrap().watermark), (Ok(1_000), 0));
    // A late copy is refused permanently, and a new tell runs.
    let late = harness.receive(5, 1_000);
    harness.settle(CommitOutcome::Committed);
    assert_eq!(harness.code_of(late).as_deref(), Some("too-old"));
    harness.receive(6, 9_000);
    assert!(harness.running.is_some());
}

#[test]
fn r19_an_answer_does_not_cover_a_tell_that_ran_meanwhile() {
    let settings = Settings { lane_ttl: 1_000, ..Settings::default() };
    let mut harness = Harness::with(settings);
    harness.receive(5, 1_000);
    harness.run();
    harness.settle(CommitOutcome::Committed);
    harness.tick(3_000);
    harness.send(1, 0, MessageKind::Command);
    harness.run();
    harness.settle(CommitOutcome::Committed);
    assert_eq!(harness.asked, [bob()]);
    harness.receive(6, 3_000);
    harness.run();
    harness.settle(CommitOutcome::Committed);
    harness.handle(Event::SenderAnswered { entity: alice(), sender: bob(), first: Some(None) });
    let copy = harness.receive(6, 3_000);
    assert!(harness.code_of(copy).is_some_and(|code| code.starts_with("final")));
}

#[test]
fn too_many_senders_are_refused_until_some_are_dropped() {
    let settings = Settings { max_lanes: 2, ..Settings::default() };
    let mut harness = Harness::with(settings);
    let from = |harness: &mut Harness, id: &str| {
        let sender = Entity::new("counter", id);
        let id = MessageId { session: ScopedSessionId::of_entity(&sender), sequence: 1 };
        harness.post(Message { sender: Some(sender), id, ..harness.template() })
    };
    for id in ["a", "b"] {
        from(&mut harness, id);
        harness.run();
        harness.settle(CommitOutcome::Committed);
    }
    let third = from(&mut harness, "c");
    assert_eq!(harness.code_of(third).as_deref(), Some("too-many-senders"));
    assert!(harness.may_be_sent_again(third));
    let asked = harness.asked[0].clone();
    harness.handle(Event::SenderAnswered { entity: alice(), sender: asked, first: Some(None) });
    harness.now += 1;
    from(&mut harness, "c");
    assert!(harness.running.is_some());
}

#[test]
fn a_sender_tells_its_targets_what_it_may_still_send() {
    let mut harness = Harness::serving();
    let ask = |harness: &mut Harness, number| {
        let id = MessageId { session: ScopedSessionId::of_entity(&bob()), sequence: number };
        let message = Message {
            sender: Some(bob()),
            id,
            kind: MessageKind::Query,
            method: FIRST_TELL.into(),
            ..harness.template()
        };
        harness.post(message)
    };
    let answer = |harness: &Harness, token: u64| {
        let (_, outcome) = harness.replies.iter().find(|(other, _)| *other == token)?;
        let Outcome::Final { reply: GuestReply::Result(body), .. } = outcome else { panic!() };
        Some(u64::from_be_bytes(body[..].try_into().unwrap()))
    };
    let nothing = ask(&mut harness, 1);
    assert_eq!(answer(&harness, nothing), Some(u64::MAX));
    assert_eq!((harness.starts, harness.machine.stats().0), (0, 0), "without an instance");
    harness.told(1, vec![tell("carol", "x"), tell("bob", "a")]);
    let number = harness.tells.iter().find(|(_, tell)| tell.target == bob()).unwrap().0;
    let waits = ask(&mut harness, 2);
    assert_eq!(answer(&harness, waits), Some(number));
    harness.tells.sort_by_key(|(_, tell)| tell.target != bob());
    harness.answer_tell(ran());
    let done = ask(&mut harness, 3);
    assert_eq!(answer(&harness, done), Some(number), "carol's answer is still expected");
    harness.answer_tell(ran());
    let deleting = ask(&mut harness, 4);
    assert_eq!(answer(&harness, deleting), None, "the deletion is not durable");
    harness.settle(CommitOutcome::Committed);
    assert_eq!(answer(&harness, deleting), Some(u64::MAX));
}

#[test]
fn r19_a_sender_leaving_with_a_tell_in_flight_returns() {
    let mut harness = Harness::serving();
    harness.told(1, vec![tell("bob", "a")]);
    harness.handle(Event::Evict { entity: alice() });
    // A load that fails takes the entity out of memory.
    harness.silent = true;
    harness.send(2, 0, MessageKind::Query);
    let Action::Load { entity, generation } = harness.next_action() else { panic!("no load") };
    harness.handle(Event::Loaded { entity, generation, result: Err("busy".into()) });
    assert_eq!(harness.machine.stats().0, 0);
    harness.silent = false;
    harness.answer_tell(ran());
    assert_eq!(harness.machine.next_wake(), Some(2_000), "nobody received the answer");
    harness.tick(2_000);
    assert_eq!(harness.sent(), ["a"]);
    harness.answer_tell(ran());
    harness.settle(CommitOutcome::Committed);
    assert!(harness.outbox.is_empty());
}

#[test]
fn r19_a_sender_leaving_before_it_deletes_a_tell_returns() {
    let mut harness = Harness::serving();
    harness.told(1, vec![tell("bob", "a")]);
    harness.handle(Event::Evict { entity: alice() });
    // The deletion of the tell that is done needs a load, which fails.
    harness.silent = true;
    harness.answer_tell(ran());
    let Action::Load { entity, generation } = harness.next_action() else { panic!("no load") };
    harness.handle(Event::Loaded { entity, generation, result: Err("busy".into()) });
    assert_eq!(harness.machine.stats().0, 0);
    harness.silent = false;
    assert_eq!(harness.machine.next_wake(), Some(2_000));
    harness.tick(2_000);
    assert_eq!(harness.sent(), ["a"], "the answer is lost, so it is sent again");
    harness.answer_tell(ran());
    harness.settle(CommitOutcome::Committed);
    assert!(harness.outbox.is_empty());
}

#[test]
fn r19_a_missed_deadline_counts_as_no_attempt() {
    let mut harness = Harness::with(Settings { tell_attempts: 1, ..Settings::default() });
    harness.told(1, vec![tell("bob", "a")]);
    harness.answer_tell(Outcome::not_run(codes::DEADLINE_EXCEEDED, "late"));
    assert!(harness.commits.is_empty() && harness.gave_up == 0, "it is no dead letter");
    let next = harness.machine.next_wake().expect("another attempt");
    harness.tick(next);
    assert_eq!(harness.sent(), ["a"]);
}

#[test]
fn r17_a_late_refusal_of_an_old_copy_restamps_no_tell() {
    let mut harness = Harness::serving();
    harness.told(1, vec![tell("bob", "a")]);
    let (number, old) = harness.tells[0].clone();
    let refused =
        |created| Outcome::not_run(codes::TOO_OLD, "old").with_suggested_created_ms(created);
    harness.answer_tell(refused(5_000));
    assert!(harness.tells.is_empty(), "a crash must not bring the old time back");
    harness.settle(CommitOutcome::Committed);
    assert_eq!(harness.tells[0].1.created_ms, 5_000, "no copy ran, so it is sent anew");
    assert_eq!(harness.outbox[0].1.created_ms, 5_000);
    // Another copy of the old time was on its way, too. The new one may have run by now.
    harness.handle(Event::TellAnswered {
        sender: alice(),
        target: Entity::new("counter", "bob"),
        number,
        created_ms: old.created_ms,
        outcome: refused(6_000),
    });
    assert_eq!((harness.sent().len(), harness.tells[0].1.created_ms), (1, 5_000));
}

#[test]
fn r17_a_tell_is_too_old_once_the_drop_of_its_lane_is_durable() {
    let settings = Settings { lane_ttl: 1_000, ..Settings::default() };
    let mut harness = Harness::with(settings);
    harness.receive(5, 1_000);
    harness.run();
    harness.settle(CommitOutcome::Committed);
    harness.tick(3_000);
    harness.send(1, 0, MessageKind::Command);
    harness.run();
    harness.settle(CommitOutcome::Committed);
    harness.handle(Event::SenderAnswered { entity: alice(), sender: bob(), first: Some(None) });
    let late = harness.receive(5, 1_000);
    assert_eq!(harness.code_of(late), None, "a new owner might still run it");
    harness.settle(CommitOutcome::Committed);
    assert_eq!(harness.code_of(late).as_deref(), Some("too-old"));
}
