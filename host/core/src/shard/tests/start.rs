//! Start turns: those that the store refuses, and those that ask to be passivated at once.

use super::*;

/// A machine whose instances' start turns the test answers.
fn hand() -> Harness {
    hand_with(Settings::default())
}

fn hand_with(settings: Settings) -> Harness {
    let mut hand = Harness::with(settings);
    hand.silent = true;
    let settings = TypeSettings { revision: 2, has_stop_hook: true, ..TypeSettings::default() };
    hand.handle(Event::TypeDeployed { entity_type: "counter".into(), settings });
    hand
}

/// Answers all pending actions; start turns with `started`.
fn go_on(hand: &mut Harness, started: &TurnOutput) {
    while !hand.asked.is_empty() {
        match hand.ask() {
            action @ Action::Load { .. } => hand.answer_load(&action),
            Action::RequestSlot { entity, generation } => {
                hand.handle(Event::SlotGranted { entity, generation });
            }
            Action::Activate { entity, generation, .. } => {
                let result = ActivationOutcome::Started(started.clone());
                hand.handle(Event::ActivationResult { entity, generation, result });
            }
            Action::CallStopHook { entity, generation, turn: id, .. } => {
                let result = turn(GuestReply::Result(Bytes::new()), false);
                hand.handle(Event::TurnDone { entity, generation, turn: id, result });
            }
            other => panic!("{other:?}"),
        }
    }
}

fn full() -> CommitOutcome {
    CommitOutcome::Refused(CommitRefusal::LimitReached("the disk is full".into()))
}

/// The answer to a message, and after how many milliseconds it may be retried.
fn told(hand: &Harness, token: u64) -> Option<(String, u32)> {
    let (_, outcome) = hand.replies.iter().find(|(other, _)| *other == token)?;
    let Outcome::NotRun { code, retry_after, .. } = outcome else { panic!("{outcome:?}") };
    Some((code.to_string(), retry_after.expect("retryable")))
}

#[test]
fn a_start_refused_for_a_limit_is_retried_with_backoff() {
    let mut hand = hand();
    let writes = turn(GuestReply::Result(Bytes::new()), true);
    let mut pause = 0;
    for (round, expected) in [250, 500, 1_000, 2_000, 4_000, 8_000, 8_000].into_iter().enumerate() {
        let waits = hand.send(round as u64 + 1, 0, MessageKind::Command);
        go_on(&mut hand, &writes);
        assert_eq!(hand.starts, round.max(1), "none during the pause before it");
        hand.now += u64::from(pause);
        assert!(round == 0 || hand.machine.next_wake().is_some_and(|wake| wake <= hand.now));
        hand.handle(Event::LeaseRenewed { sent_at: hand.now, lease: 3_000 });
        hand.handle(Event::Tick);
        go_on(&mut hand, &writes);
        assert_eq!((hand.starts, told(&hand, waits)), (round + 1, None));
        hand.settle(full());
        go_on(&mut hand, &writes);
        assert_eq!(hand.starts, round + 1, "not again at once");
        assert_eq!(told(&hand, waits), Some((codes::STORE_FULL.into(), expected)));
        pause = expected;
    }
    // No message arrives for long: the backoff is forgotten, and the next pause is the initial one.
    hand.now += 23_999;
    hand.handle(Event::LeaseRenewed { sent_at: hand.now, lease: 3_000 });
    hand.handle(Event::Tick);
    assert_eq!(hand.machine.stats(), (1, 0), "for twice the pause after it is over");
    hand.now += 1;
    hand.handle(Event::Tick);
    assert_eq!(hand.machine.stats(), (0, 0));
    let last = hand.send(50, 0, MessageKind::Command);
    go_on(&mut hand, &writes);
    hand.settle(full());
    assert_eq!(told(&hand, last), Some((codes::STORE_FULL.into(), 250)));

    // A shard that stops does not wait for the pause.
    hand.handle(Event::Stop(StopReason::HandedOff));
    assert_eq!(hand.stopped, 1);
}

#[test]
fn the_backoff_after_a_refused_start_is_configurable() {
    let mut hand = hand_with(Settings { start_backoff: 10, ..Settings::default() });
    let writes = turn(GuestReply::Result(Bytes::new()), true);
    for (round, expected) in (0..7).map(|doubled| 10 << doubled.min(5)).enumerate() {
        let waits = hand.send(round as u64 + 1, 0, MessageKind::Command);
        hand.now += 320;
        hand.handle(Event::Tick);
        go_on(&mut hand, &writes);
        hand.settle(full());
        assert_eq!(told(&hand, waits), Some((codes::STORE_FULL.into(), expected)));
    }
}

#[test]
fn a_start_that_passivates_serves_a_message_first() {
    let mut hand = hand();
    let passivates =
        TurnOutput { passivate: true, ..turn(GuestReply::Result(Bytes::new()), false) };
    let tokens: Vec<_> =
        (1..=3).map(|sequence| hand.send(sequence, sequence - 1, MessageKind::Command)).collect();
    for (served, token) in (1..).zip(tokens) {
        go_on(&mut hand, &passivates);
        assert_eq!(hand.starts, served, "one activation per message");
        hand.run();
        hand.settle(CommitOutcome::Committed);
        let answered = format!("final {served}");
        assert_eq!(hand.code_of(token), Some(answered));
    }
    go_on(&mut hand, &passivates);
    assert_eq!((hand.starts, hand.hooks, hand.rooms), (3, 3, 0));
    assert_eq!(hand.machine.stats(), (0, 0), "passivated, as it asked");
}

#[test]
fn a_passivating_start_without_messages_is_dropped() {
    let mut hand = hand();
    let passivates =
        TurnOutput { passivate: true, ..turn(GuestReply::Result(Bytes::new()), false) };
    let deadline = Some(hand.now + 100);
    hand.post(Message { deadline, ..hand.template() });
    let load = hand.ask();
    hand.answer_load(&load);
    let Action::RequestSlot { entity, generation } = hand.ask() else {
        panic!("no slot requested")
    };
    hand.handle(Event::SlotGranted { entity, generation });
    hand.now += 100;
    go_on(&mut hand, &passivates);
    assert_eq!((hand.starts, hand.hooks, hand.rooms), (1, 1, 0));
    assert_eq!(hand.machine.stats(), (0, 0));
}

#[test]
fn an_ended_start_backoff_leaves_nothing_in_memory() {
    let mut hand = hand();
    let writes = turn(GuestReply::Result(Bytes::new()), true);
    hand.send(1, 0, MessageKind::Command);
    go_on(&mut hand, &writes);
    hand.running = None;
    hand.settle(full());
    let waits = hand.send(2, 0, MessageKind::Query);
    hand.now += 250;
    hand.handle(Event::Tick);
    go_on(&mut hand, &turn(GuestReply::Result(Bytes::new()), false));
    hand.run();
    assert_eq!(hand.code_of(waits).as_deref(), Some("final 0"));
    hand.handle(Event::Evict { entity: alice() });
    go_on(&mut hand, &writes);
    assert_eq!(hand.machine.stats(), (0, 0));
}

#[test]
fn the_start_reason_says_whether_the_entity_is_new() {
    for (version, reason) in [(0, StartReason::FirstMessage), (3, StartReason::Message)] {
        let mut hand = hand();
        hand.head = Some(Head { version, ..Head::default() });
        hand.send(1, 0, MessageKind::Command);
        let load = hand.ask();
        hand.answer_load(&load);
        let Action::RequestSlot { entity, generation } = hand.ask() else { panic!("no room") };
        hand.handle(Event::SlotGranted { entity, generation });
        let started = hand.ask();
        assert!(
            matches!(&started, Action::Activate { reason: told, .. } if *told == reason),
            "{started:?}"
        );
    }
}
