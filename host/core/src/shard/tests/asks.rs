//! Asks of running turns (R15, R20).

use super::*;
use crate::message::AskOrigin;

pub(super) fn bob() -> Entity {
    Entity::new("counter", "bob")
}

pub(super) fn new_ask(to: &Entity, body: &'static str) -> NewAsk {
    NewAsk {
        target: to.clone(),
        method: "m".into(),
        body: Bytes::from_static(body.as_bytes()),
        content_type: "".into(),
        traceparent: "".into(),
        timeout: 1_000,
    }
}

impl Harness {
    /// The running turn starts an ask.
    pub(super) fn ask(&mut self, place: u32, ask: NewAsk) {
        let (generation, entity) = match (&self.running, &self.firing) {
            (Some((generation, _, message)), _) => (*generation, message.target.clone()),
            (None, Some((generation, ..))) => (*generation, alice()),
            (None, None) => panic!("no turn is running"),
        };
        self.handle(Event::AskStarted { entity, generation, place, ask });
    }

    /// Answers the oldest ask that was sent.
    pub(super) fn answer_ask(&mut self, outcome: Outcome) {
        let (turn, ask, _) = self.asks.remove(0);
        let asker = ask.chain.last().expect("the asker").clone();
        self.handle(Event::AskAnswered { asker, turn, id: ask.id, outcome });
    }

    /// An ask that another entity sends to this one.
    pub(super) fn asked_by(&mut self, chain: &[Entity], id: u8, started: u64) -> u64 {
        let message = asked_by(chain, id, started);
        self.post(Message { ..self.of_template(message) })
    }

    pub(super) fn of_template(&self, asked: (MessageId, AskOrigin)) -> Message {
        let (id, origin) = asked;
        Message { id, asked_by: Some(Arc::new(origin)), ..self.template() }
    }

    /// Delivers a note from an entity on another node.
    pub(super) fn note(&mut self, note: &AskNote) {
        let message = Message {
            method: ASK_NOTE.into(),
            kind: MessageKind::Query,
            sender: Some(bob()),
            body: note.encode(),
            ..self.template()
        };
        self.post(message);
    }
}

pub(super) fn ask_id(id: u8) -> MessageId {
    MessageId { session: ScopedSessionId([id; 16]), sequence: 1 }
}

pub(super) fn asked_by(chain: &[Entity], id: u8, started: u64) -> (MessageId, AskOrigin) {
    (ask_id(id), AskOrigin { chain: chain.to_vec(), started, created_skew: 0 })
}

pub(super) fn result(body: &'static str) -> Outcome {
    let reply = GuestReply::Result(Bytes::from_static(body.as_bytes()));
    Outcome::Final { reply, version: 1 }
}

pub(super) fn code(outcome: &Outcome) -> &str {
    match outcome {
        Outcome::Final { .. } => "final",
        Outcome::NotRun { code, .. } => code,
        Outcome::Unknown { .. } => "unknown",
    }
}

/// A harness whose alice runs a command.
pub(super) fn running() -> Harness {
    let mut harness = Harness::serving();
    harness.send(1, 0, MessageKind::Command);
    harness
}

#[test]
fn r20_an_ask_waits_until_earlier_turns_are_durable() {
    let mut harness = running();
    harness.run();
    harness.send(2, 1, MessageKind::Command);
    harness.ask(0, new_ask(&bob(), "1"));
    assert!(harness.asks.is_empty(), "it could reveal what the first turn did");
    harness.settle(CommitOutcome::Committed);
    assert_eq!(harness.asks.len(), 1);
    let (_, ask, remaining) = harness.asks[0].clone();
    assert_eq!((ask.chain.clone(), ask.query_only, remaining), (vec![alice()], false, 1_000));
    harness.answer_ask(result("r"));
    assert_eq!(harness.answers, [(0, result("r"))]);
    harness.run();
    assert_eq!(harness.commits.len(), 1);
}

#[test]
fn r20_a_turn_that_runs_again_asks_under_the_same_ids() {
    let sent = |harness: &mut Harness| {
        for (place, body) in [(0, "1"), (1, "1"), (2, "2")] {
            harness.ask(place, new_ask(&bob(), body));
        }
        harness.asks.iter().map(|(_, ask, _)| (ask.id, ask.created_ms)).collect::<Vec<_>>()
    };
    let mut first = running();
    let ids = sent(&mut first);
    assert!(ids[0] != ids[1] && ids[1] != ids[2] && ids[0] != ids[2], "places and bodies differ");
    let message = first.running.as_ref().expect("a turn").2.clone();
    let mut second = first.restarted();
    second.now += 500;
    second.post(Message::clone(&message));
    assert_eq!(sent(&mut second), ids);
    let mut other = second.restarted();
    let id = MessageId { sequence: 2, ..message.id };
    other.post(Message { id, ..Message::clone(&message) });
    assert_ne!(sent(&mut other), ids, "another message");
}

#[test]
fn r20_an_attempt_of_a_firing_asks_under_the_same_id() {
    let mut harness = running();
    harness.ask(0, new_ask(&bob(), "1"));
    let of_message = harness.asks[0].1.id;
    let mut harness = Harness::serving();
    harness.send(1, 0, MessageKind::Command);
    let (generation, id, message) = harness.running.take().expect("a turn");
    let set = TimerChange::Set {
        name: "t".into(),
        due: harness.now + 100,
        interval: 0,
        payload: Bytes::new(),
    };
    let output = TurnOutput { timers: vec![set], ..turn(GuestReply::Result(Bytes::new()), false) };
    let done =
        Event::TurnDone { entity: message.target.clone(), generation, turn: id, result: output };
    harness.handle(done);
    harness.settle(CommitOutcome::Committed);
    let mut seen = Vec::new();
    for _ in 0..2 {
        harness.now += 40_000;
        harness.handle(Event::LeaseRenewed { sent_at: harness.now, lease: 3_000 });
        harness.handle(Event::Tick);
        harness.ask(0, new_ask(&bob(), "1"));
        let ask = harness.asks.pop().expect("an ask").1;
        seen.push((ask.id, ask.created_ms, ask.utc_ms));
        assert!(ask.created_skew > 0, "the nodes' clocks may differ");
        let (generation, turn, _) = harness.firing.take().expect("a firing");
        let (entity, result) = (alice(), trapped_turn());
        harness.handle(Event::TurnDone { entity, generation, turn, result });
        harness.settle(CommitOutcome::Committed);
    }
    assert_eq!(seen[0], seen[1], "so a target that has run it answers from its record");
    assert_ne!(seen[0].0, of_message);
}

#[test]
fn an_ask_is_sent_again_until_its_outcome_is_known() {
    let mut harness = running();
    harness.ask(0, new_ask(&bob(), "1"));
    let id = harness.asks[0].1.id;
    harness.answer_ask(Outcome::not_run_retryable(codes::REBALANCING, "moving", 200));
    harness.handle(Event::Tick);
    assert!(harness.asks.is_empty(), "the pause that the refusal names");
    harness.now += 200;
    harness.handle(Event::Tick);
    harness.answer_ask(Outcome::Unknown { message: "lost".into() });
    harness.now += 100;
    harness.handle(Event::Tick);
    assert_eq!((harness.asks[0].1.id, harness.asks[0].2), (id, 700));
    assert!(harness.answers.is_empty());
    // The second copy was not run, but the first one may have been.
    harness.answer_ask(Outcome::not_run(codes::UNKNOWN_METHOD, "redeployed"));
    assert_eq!(code(&harness.answers[0].1), "unknown");
}

#[test]
fn an_ask_ends_at_its_deadline() {
    let mut harness = running();
    harness.ask(0, new_ask(&bob(), "1"));
    harness.ask(1, NewAsk { timeout: 3_000, ..new_ask(&bob(), "2") });
    harness.answer_ask(Outcome::not_run_retryable(codes::REBALANCING, "moving", 5_000));
    assert_eq!(harness.machine.next_wake(), Some(harness.now + 1_000));
    harness.now += 1_000;
    harness.handle(Event::LeaseRenewed { sent_at: harness.now, lease: 3_000 });
    harness.handle(Event::Tick);
    assert_eq!(harness.answers.len(), 1);
    let Outcome::Unknown { message } = &harness.answers[0].1 else { panic!() };
    assert!(message.ends_with("did not answer in time: moving (rebalancing)"), "{message}");
    harness.now += 2_000;
    harness.handle(Event::Tick);
    assert_eq!((harness.answers[1].0, code(&harness.answers[1].1)), (1, "unknown"));
    harness.run();
    assert_eq!(harness.commits.len(), 1, "the guest decides what follows");
}

#[test]
fn r8_an_ask_leaves_only_under_a_valid_lease() {
    let mut harness = running();
    harness.now += 2_400;
    harness.ask(0, new_ask(&bob(), "1"));
    assert!(harness.asks.is_empty(), "four fifths of the lease have passed");
    harness.handle(Event::LeaseRenewed { sent_at: harness.now, lease: 3_000 });
    assert_eq!(harness.asks.len(), 1);
}

#[test]
fn r15_a_stopping_shard_abandons_waiting_turns_at_once() {
    let mut harness = running();
    let queued = harness.send(2, 1, MessageKind::Command);
    harness.ask(0, new_ask(&bob(), "1"));
    harness.handle(Event::Stop(StopReason::HandedOff));
    assert_eq!((harness.stopped, harness.dropped), (1, 1), "without waiting for the answer");
    for token in [1, queued] {
        assert_eq!(harness.code_of(token).as_deref(), Some(&*codes::REBALANCING));
    }
    // A turn that is running may finish, but not wait.
    let mut harness = running();
    harness.handle(Event::Stop(StopReason::HandedOff));
    assert_eq!(harness.stopped, 0);
    harness.ask(0, new_ask(&bob(), "1"));
    assert_eq!((harness.stopped, harness.asks.len(), harness.commits.len()), (1, 0, 0));
}

#[test]
fn an_answer_for_an_earlier_attempt_is_ignored() {
    let mut harness = running();
    harness.run();
    harness.send(2, 1, MessageKind::Command);
    let turn_before = harness.running.as_ref().expect("a turn").1;
    harness.settle(CommitOutcome::Committed);
    harness.ask(0, new_ask(&bob(), "1"));
    let (turn, ask, _) = harness.asks[0].clone();
    assert_eq!(turn, turn_before);
    let other = TurnId { number: turn.number + 7, ..turn };
    for (turn, id) in [(other, ask.id), (turn, ask_id(9))] {
        let outcome = result("stale");
        harness.handle(Event::AskAnswered { asker: alice(), turn, id, outcome });
    }
    assert!(harness.answers.is_empty());
    harness.run();
    harness.answer_ask(result("late"));
    assert!(harness.answers.is_empty(), "the turn has ended");
}

#[test]
fn a_query_may_ask_queries_only() {
    let mut harness = Harness::serving();
    harness.send(1, 0, MessageKind::Query);
    harness.ask(0, new_ask(&bob(), "1"));
    assert!(harness.asks[0].1.query_only);
}

#[test]
fn asks_are_limited_in_depth() {
    let mut harness = Harness::with(Settings { max_ask_depth: 2, ..Settings::default() });
    harness.asked_by(&[bob()], 1, 5);
    harness.ask(0, new_ask(&Entity::new("counter", "carol"), "1"));
    assert_eq!(harness.asks[0].1.chain, [bob(), alice()]);
    let mut harness = Harness::with(Settings { max_ask_depth: 1, ..Settings::default() });
    harness.asked_by(&[bob()], 1, 5);
    harness.ask(0, new_ask(&Entity::new("counter", "carol"), "1"));
    assert_eq!(code(&harness.answers[0].1), &*codes::ASK_TOO_DEEP);
}

#[test]
fn a_refused_commit_abandons_the_asks_that_built_on_it() {
    let mut harness = running();
    harness.run();
    harness.send(2, 0, MessageKind::Command);
    harness.ask(0, new_ask(&bob(), "1"));
    harness.settle(CommitOutcome::Refused(CommitRefusal::VersionMismatch { stored: 7 }));
    assert!(harness.asks.is_empty() && harness.answers.is_empty());
    assert_eq!(harness.loads, 2);
    harness.ask(0, new_ask(&bob(), "1"));
    assert_eq!(harness.asks.len(), 1, "the turn runs again, and asks again");
}

#[test]
fn suspension_holds_asks_back_and_keeps_their_turn() {
    let mut harness = running();
    harness.handle(Event::Suspend);
    harness.ask(0, NewAsk { timeout: 60_000, ..new_ask(&bob(), "1") });
    assert_eq!((harness.asks.len(), harness.dropped), (0, 0));
    harness.handle(Event::Resume);
    assert_eq!(harness.asks.len(), 1);
}

#[test]
fn r16_a_refusal_that_proves_nothing_leaves_asks_in_doubt() {
    for (refusal, expected) in [
        (codes::TOO_OLD, "unknown"),
        (codes::SUPERSEDED, "unknown"),
        (codes::DEADLINE_EXCEEDED, "unknown"),
        (codes::UNKNOWN_METHOD, &*codes::UNKNOWN_METHOD),
    ] {
        let mut harness = running();
        harness.ask(0, new_ask(&bob(), "1"));
        harness.answer_ask(Outcome::not_run(refusal, "no"));
        assert_eq!(code(&harness.answers[0].1), expected, "{refusal}");
    }
}

#[test]
fn r16_a_recorded_ask_in_a_cycle_is_answered_from_it() {
    let mut harness = Harness::serving();
    let first = harness.asked_by(&[bob()], 1, 5);
    harness.run();
    harness.settle(CommitOutcome::Committed);
    assert_eq!(harness.code_of(first).as_deref(), Some("final 1"));
    harness.send(1, 0, MessageKind::Command);
    harness.ask(0, new_ask(&bob(), "1"));
    // The turn that asked runs again, and bob now waits for what waits for alice.
    let again = harness.asked_by(&[bob()], 1, 9_000);
    harness.note(&AskNote::Cycle { id: ask_id(1), chain: vec![bob(), alice(), bob()] });
    assert_eq!(harness.code_of(again).as_deref(), Some("final 1"));
}

#[test]
fn r16_an_ask_in_a_cycle_without_a_record_is_in_doubt() {
    let settings = Settings { lane_ttl: 50, ..Settings::default() };
    let mut harness = Harness::with(settings);
    let asked = Message { created_ms: 900, ..harness.of_template(asked_by(&[bob()], 1, 5)) };
    harness.post(asked.clone());
    harness.run();
    harness.settle(CommitOutcome::Committed);
    harness.now += 100;
    let mut harness = harness.restarted();
    harness.send(1, 0, MessageKind::Command);
    harness.ask(0, new_ask(&bob(), "1"));
    let again = harness.post(asked);
    harness.note(&AskNote::Cycle { id: ask_id(1), chain: vec![bob(), alice(), bob()] });
    assert_eq!(harness.code_of(again).as_deref(), Some(&*codes::TOO_OLD));
}

#[test]
fn r20_a_restamped_messages_asks_keep_the_first_time() {
    let mut harness = Harness::serving();
    let first = harness.now - 500;
    let message = Message { first_created_ms: first, ..harness.template() };
    harness.post(message);
    harness.ask(0, new_ask(&bob(), "1"));
    let ask = &harness.asks[0].1;
    assert_eq!((ask.created_ms, ask.created_skew), (first, 0));
}

#[test]
fn r20_a_repeated_requests_asks_allow_for_its_own_time() {
    let mut harness = Harness::serving();
    let message = Message { is_keyed: true, ..harness.template() };
    harness.post(message);
    harness.ask(0, new_ask(&bob(), "1"));
    let ask = &harness.asks[0].1;
    assert_eq!((ask.created_ms, ask.created_skew), (harness.now, 10_000));
}

#[test]
fn r20_a_firings_asks_allow_for_differing_clocks() {
    for (skew, expected) in [(0, "final"), (200, "too-old")] {
        let settings = Settings { lane_ttl: 50, ..Settings::default() };
        let mut harness = Harness::with(settings);
        let (_, mut origin) = asked_by(&[bob()], 1, 5);
        harness.asked_by(&[bob()], 1, 5);
        harness.run();
        harness.settle(CommitOutcome::Committed);
        harness.now += 100;
        let mut next = harness.restarted();
        // The lane of the first ask is dropped, so the time of the second one decides.
        origin.created_skew = skew;
        let id = MessageId { sequence: 1, session: ScopedSessionId([2; 16]) };
        let token = next.post(next.of_template((id, origin)));
        let outcome = match next.running {
            Some(_) => "final",
            None => match next.code_of(token).as_deref() {
                Some(code) if code == &*codes::TOO_OLD => "too-old",
                other => panic!("{other:?}"),
            },
        };
        assert_eq!(outcome, expected, "the second ask was created 100 ms after the first");
    }
}

#[test]
fn the_pause_between_copies_of_an_ask_doubles() {
    let mut harness = running();
    harness.ask(0, new_ask(&bob(), "1"));
    for pause in [20, 40, 80, 160] {
        harness.answer_ask(Outcome::not_run_retryable(codes::REBALANCING, "moving", 0));
        harness.now += pause - 1;
        harness.handle(Event::Tick);
        assert!(harness.asks.is_empty(), "before {pause} ms");
        harness.now += 1;
        harness.handle(Event::Tick);
        assert_eq!(harness.asks.len(), 1, "after {pause} ms");
    }
}

#[test]
fn an_answer_does_not_end_an_ask_that_is_not_in_flight() {
    let mut harness = running();
    harness.ask(0, new_ask(&bob(), "1"));
    let (turn, ask, _) = harness.asks[0].clone();
    harness.answer_ask(Outcome::not_run_retryable(codes::REBALANCING, "moving", 500));
    let again = Outcome::not_run(codes::UNKNOWN_METHOD, "a second answer to that copy");
    harness.handle(Event::AskAnswered { asker: alice(), turn, id: ask.id, outcome: again });
    assert!(harness.answers.is_empty());
}

#[test]
fn an_ask_of_another_instance_is_ignored() {
    let mut harness = running();
    let generation = harness.running.as_ref().expect("a turn").0;
    let (entity, ask) = (alice(), new_ask(&bob(), "1"));
    harness.handle(Event::AskStarted { entity, generation: generation + 1, place: 0, ask });
    assert!(harness.asks.is_empty());
}

#[test]
fn r3_asks_wait_while_the_shard_is_claimed_again() {
    let mut harness = running();
    let (generation, turn, _) = harness.running.take().expect("alice's turn");
    harness.post(Message { target: Entity::new("counter", "carol"), ..harness.template() });
    harness.run();
    harness.settle(CommitOutcome::Unknown("lost".into()));
    let (entity, ask) = (alice(), new_ask(&bob(), "1"));
    harness.handle(Event::AskStarted { entity, generation, place: 0, ask });
    assert!(harness.asks.is_empty(), "the claim is pending");
    harness.grant();
    assert_eq!((harness.asks.len(), harness.asks[0].0), (1, turn));
}

#[test]
fn an_ask_that_nobody_waited_for_ends_with_its_turn() {
    let mut harness = running();
    harness.ask(0, new_ask(&bob(), "1"));
    harness.run();
    harness.send(2, 0, MessageKind::Command);
    harness.answer_ask(result("late"));
    assert!(harness.answers.is_empty(), "another turn is running");
    harness.asked_by(&[bob()], 7, 500);
    assert!(harness.notes.is_empty(), "and it waits for nothing");
}

#[test]
fn r20_a_turn_that_a_firing_has_asked_allows_for_clocks() {
    let mut harness = Harness::serving();
    let (id, mut origin) = asked_by(&[bob()], 1, 5);
    origin.created_skew = 700;
    harness.post(harness.of_template((id, origin)));
    harness.ask(0, new_ask(&Entity::new("counter", "carol"), "1"));
    assert_eq!(harness.asks[0].1.created_skew, 700);
}

#[test]
fn r17_a_resent_dead_letter_has_no_earlier_creation_time() {
    let mut tell = Tell {
        target: bob(),
        method: "m".into(),
        body: Bytes::new(),
        content_type: "".into(),
        traceparent: "".into(),
        created_ms: 5,
        utc_ms: 1,
        attempts: 0,
        retry_at: 0,
        failure: "".into(),
        extensions: Default::default(),
    };
    assert_eq!(tell.first_created_ms(), Ok(5));
    for created in [70, 800] {
        tell.restamp(created).expect("a field");
        assert_eq!((tell.created_ms, tell.first_created_ms()), (created, Ok(5)));
    }
    let stored = crate::codec::encode(&tell).expect("bytes");
    assert_eq!(crate::codec::decode::<Tell>(&stored).as_ref(), Ok(&tell));
    tell.recreate(9_000);
    assert_eq!((tell.created_ms, tell.first_created_ms()), (9_000, Ok(9_000)));
}

#[test]
fn r16_a_recorded_ask_along_a_chain_is_answered_from_it() {
    let mut harness = Harness::serving();
    // Alice has stopped waiting, so the ask of the turn that she asked runs.
    let chain = [alice(), bob()];
    let first = harness.asked_by(&chain, 1, 5);
    harness.run();
    harness.settle(CommitOutcome::Committed);
    assert_eq!(harness.code_of(first).as_deref(), Some("final 1"));
    harness.send(1, 0, MessageKind::Command);
    harness.ask(0, new_ask(&bob(), "1"));
    let again = harness.asked_by(&chain, 1, 5);
    assert_eq!(harness.code_of(again).as_deref(), Some("final 1"), "although she waits now");
    let other = harness.asked_by(&chain, 2, 5);
    assert_eq!(harness.code_of(other).as_deref(), Some(&*codes::ASK_CYCLE));
}
