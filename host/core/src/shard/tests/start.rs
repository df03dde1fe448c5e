//! Start turns that the store refuses, and those that ask for immediate passivation.

use super::*;

/// A machine whose instances' start turns the test answers.
fn harness() -> Harness {
    hand_with(Settings::default())
}

fn hand_with(settings: Settings) -> Harness {
    let mut harness = Harness::with(settings);
    harness.silent = true;
    let settings = TypeSettings { revision: 2, has_stop_hook: true, ..TypeSettings::default() };
    harness.handle(Event::TypeDeployed { entity_type: "counter".into(), settings });
    harness
}

/// Answers all pending actions; start turns with `started`.
fn go_on(harness: &mut Harness, started: &TurnOutput) {
    while !harness.pending_actions.is_empty() {
        match harness.next_action() {
            action @ Action::Load { .. } => harness.answer_load(&action),
            Action::RequestSlot { entity, generation } => {
                harness.handle(Event::SlotGranted { entity, generation });
            }
            Action::Activate { entity, generation, .. } => {
                let result = ActivationOutcome::Started(started.clone());
                harness.handle(Event::ActivationResult { entity, generation, result });
            }
            Action::CallStopHook { entity, generation, turn: id, .. } => {
                let result = turn(GuestReply::Result(Bytes::new()), false);
                harness.handle(Event::TurnDone { entity, generation, turn: id, result });
            }
            other => panic!("{other:?}"),
        }
    }
}

fn full() -> CommitOutcome {
    CommitOutcome::Refused(CommitRefusal::LimitReached("the disk is full".into()))
}

/// The answer to a message, and after how many milliseconds it may be retried.
fn told(harness: &Harness, token: u64) -> Option<(String, u32)> {
    let (_, outcome) = harness.replies.iter().find(|(other, _)| *other == token)?;
    let Outcome::NotRun { code, retry_after, .. } = outcome else { panic!("{outcome:?}") };
    Some((code.to_string(), retry_after.expect("retryable")))
}

#[test]
fn a_start_refused_for_a_limit_is_retried_with_backoff() {
    let mut harness = harness();
    let writes = turn(GuestReply::Result(Bytes::new()), true);
    let mut pause = 0;
    for (round, expected) in [250, 500, 1_000, 2_000, 4_000, 8_000, 8_000].into_iter().enumerate() {
        let waits = harness.send(round as u64 + 1, 0, MessageKind::Command);
        go_on(&mut harness, &writes);
        assert_eq!(harness.starts, round.max(1), "no start during the pause");
        harness.now += u64::from(pause);
        assert!(round == 0 || harness.machine.next_wake().is_some_and(|wake| wake <= harness.now));
        harness.handle(Event::LeaseRenewed { sent_at: harness.now, lease: 3_000 });
        harness.handle(Event::Tick);
        go_on(&mut harness, &writes);
        assert_eq!((harness.starts, told(&harness, waits)), (round + 1, None));
        harness.settle(full());
        go_on(&mut harness, &writes);
        assert_eq!(harness.starts, round + 1, "no immediate retry");
        assert_eq!(told(&harness, waits), Some((codes::STORE_FULL.into(), expected)));
        pause = expected;
    }
    // No message arrives for a long time: the backoff is forgotten, and the next pause is the initial one.
    harness.now += 23_999;
    harness.handle(Event::LeaseRenewed { sent_at: harness.now, lease: 3_000 });
    harness.handle(Event::Tick);
    assert_eq!(harness.machine.stats(), (1, 0), "for two more pauses");
    harness.now += 1;
    harness.handle(Event::Tick);
    assert_eq!(harness.machine.stats(), (0, 0));
    let last = harness.send(50, 0, MessageKind::Command);
    go_on(&mut harness, &writes);
    harness.settle(full());
    assert_eq!(told(&harness, last), Some((codes::STORE_FULL.into(), 250)));

    // A shard that stops does not wait for the pause.
    harness.handle(Event::Stop(StopReason::HandedOff));
    assert_eq!(harness.stopped, 1);
}

#[test]
fn the_backoff_after_a_refused_start_is_configurable() {
    let mut harness = hand_with(Settings { start_backoff: 10, ..Settings::default() });
    let writes = turn(GuestReply::Result(Bytes::new()), true);
    for (round, expected) in (0..7).map(|doubled| 10 << doubled.min(5)).enumerate() {
        let waits = harness.send(round as u64 + 1, 0, MessageKind::Command);
        harness.now += 320;
        harness.handle(Event::Tick);
        go_on(&mut harness, &writes);
        harness.settle(full());
        assert_eq!(told(&harness, waits), Some((codes::STORE_FULL.into(), expected)));
    }
}

#[test]
fn a_start_that_passivates_serves_a_message_first() {
    let mut harness = harness();
    let passivates =
        TurnOutput { passivate: true, ..turn(GuestReply::Result(Bytes::new()), false) };
    let tokens: Vec<_> = (1..=3)
        .map(|sequence| harness.send(sequence, sequence - 1, MessageKind::Command))
        .collect();
    for (served, token) in (1..).zip(tokens) {
        go_on(&mut harness, &passivates);
        assert_eq!(harness.starts, served, "one activation per message");
        harness.run();
        harness.settle(CommitOutcome::Committed);
        let answered = format!("final {served}");
        assert_eq!(harness.code_of(token), Some(answered));
    }
    go_on(&mut harness, &passivates);
    assert_eq!((harness.starts, harness.hooks, harness.rooms), (3, 3, 0));
    assert_eq!(harness.machine.stats(), (0, 0), "passivated at its own request");
}

#[test]
fn a_passivating_start_without_messages_is_dropped() {
    let mut harness = harness();
    let passivates =
        TurnOutput { passivate: true, ..turn(GuestReply::Result(Bytes::new()), false) };
    let deadline = Some(harness.now + 100);
    harness.post(Message { deadline, ..harness.template() });
    let load = harness.next_action();
    harness.answer_load(&load);
    let Action::RequestSlot { entity, generation } = harness.next_action() else {
        panic!("no slot requested")
    };
    harness.handle(Event::SlotGranted { entity, generation });
    harness.now += 100;
    go_on(&mut harness, &passivates);
    assert_eq!((harness.starts, harness.hooks, harness.rooms), (1, 1, 0));
    assert_eq!(harness.machine.stats(), (0, 0));
}

#[test]
fn an_ended_start_backoff_leaves_nothing_in_memory() {
    let mut harness = harness();
    let writes = turn(GuestReply::Result(Bytes::new()), true);
    harness.send(1, 0, MessageKind::Command);
    go_on(&mut harness, &writes);
    harness.running = None;
    harness.settle(full());
    let waits = harness.send(2, 0, MessageKind::Query);
    harness.now += 250;
    harness.handle(Event::Tick);
    go_on(&mut harness, &turn(GuestReply::Result(Bytes::new()), false));
    harness.run();
    assert_eq!(harness.code_of(waits).as_deref(), Some("final 0"));
    harness.handle(Event::Evict { entity: alice() });
    go_on(&mut harness, &writes);
    assert_eq!(harness.machine.stats(), (0, 0));
}

#[test]
fn the_start_reason_says_whether_the_entity_is_new() {
    for (version, reason) in [(0, StartReason::FirstMessage), (3, StartReason::Message)] {
        let mut harness = harness();
        harness.head = Some(Head { version, ..Head::default() });
        harness.send(1, 0, MessageKind::Command);
        let load = harness.next_action();
        harness.answer_load(&load);
        let Action::RequestSlot { entity, generation } = harness.next_action() else {
            panic!("no slot requested")
        };
        harness.handle(Event::SlotGranted { entity, generation });
        let started = harness.next_action();
        assert!(
            matches!(&started, Action::Activate { reason: told, .. } if *told == reason),
            "{started:?}"
        );
    }
}
