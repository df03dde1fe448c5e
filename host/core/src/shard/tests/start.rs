//! Start turns that fail, that the store refuses, or that ask for immediate passivation.

use super::*;

/// A machine whose start turns are completed by the test.
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

/// Completes all pending actions, and start turns with `started`.
fn go_on(harness: &mut Harness, started: &TurnOutput) {
    while !harness.pending_actions.is_empty() {
        match harness.next_action() {
            action @ Action::Load { .. } => harness.answer_load(&action),
            Action::RequestSlot { entity, generation, .. } => {
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

/// The error code for a message, and after how many milliseconds it may be retried.
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
    let Action::RequestSlot { entity, generation, .. } = harness.next_action() else {
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
        let Action::RequestSlot { entity, generation, .. } = harness.next_action() else {
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

/// Completes the pending actions up to a start, which fails. Returns whether there was a start.
fn fail_start(harness: &mut Harness, retry_after: Option<u32>) -> bool {
    while !harness.pending_actions.is_empty() {
        match harness.next_action() {
            action @ Action::Load { .. } => harness.answer_load(&action),
            Action::RequestSlot { entity, generation, .. } => {
                harness.handle(Event::SlotGranted { entity, generation });
            }
            Action::Activate { entity, generation, .. } => {
                let (code, message) = ("trap".into(), "unreachable".into());
                let result = ActivationOutcome::Failed { code, message, retry_after };
                harness.handle(Event::ActivationResult { entity, generation, result });
                return true;
            }
            other => panic!("{other:?}"),
        }
    }
    false
}

/// Advances the time, and renews the lease.
fn pass(harness: &mut Harness, millis: u64) {
    harness.now += millis;
    harness.handle(Event::LeaseRenewed { sent_at: harness.now, lease: 3_000 });
    harness.handle(Event::Tick);
}

#[test]
fn an_entity_that_never_starts_is_tried_less_and_less() {
    let mut harness = harness();
    let pauses = [0, 0, 0, 250, 500, 1_000, 2_000, 4_000, 8_000, 8_000];
    for (round, pause) in pauses.into_iter().enumerate() {
        // Both messages arrive during the pause after the last failure, and share the next attempt.
        let sequence = 2 * round as u64 + 1;
        let tokens = [0, 1].map(|it| harness.send(sequence + it, 0, MessageKind::Query));
        if pause > 0 {
            pass(&mut harness, pause - 1);
            assert!(!fail_start(&mut harness, None), "round {round}: a start during the pause");
            assert_eq!(harness.machine.next_wake(), Some(harness.now + 1));
            pass(&mut harness, 1);
        }
        assert!(fail_start(&mut harness, None), "round {round}: no start after the pause");
        for token in tokens {
            assert_eq!(harness.code_of(token).as_deref(), Some("trap"));
        }
    }
    // No message arrives for two more pauses: the failures are forgotten.
    pass(&mut harness, 8_000 * 3 - 1);
    assert_eq!(harness.machine.stats(), (1, 0));
    pass(&mut harness, 1);
    assert_eq!(harness.machine.stats(), (0, 0));
}

/// Three failed starts, so that the next one is delayed by 250 ms.
fn three_failures() -> Harness {
    let mut harness = harness();
    for sequence in 1..=3 {
        harness.send(sequence, 0, MessageKind::Query);
        assert!(fail_start(&mut harness, None));
    }
    harness
}

#[test]
fn a_start_that_succeeds_ends_the_count_of_failures() {
    let mut harness = three_failures();
    pass(&mut harness, 250);
    let waits = harness.send(4, 0, MessageKind::Command);
    go_on(&mut harness, &turn(GuestReply::Result(Bytes::new()), false));
    harness.run();
    harness.settle(CommitOutcome::Committed);
    assert_eq!(harness.code_of(waits).as_deref(), Some("final 1"));
    harness.handle(Event::Evict { entity: alice() });
    go_on(&mut harness, &turn(GuestReply::Result(Bytes::new()), false));
    for sequence in 5..=7 {
        harness.send(sequence, 0, MessageKind::Query);
        assert!(fail_start(&mut harness, None), "no pause before three failures in a row");
    }
}

#[test]
fn only_the_guests_own_failures_delay_its_start() {
    let mut harness = harness();
    for sequence in 1..=5 {
        harness.send(sequence, 0, MessageKind::Query);
        assert!(fail_start(&mut harness, Some(100)), "a failure of the node is retried");
    }
    assert_eq!(harness.machine.stats(), (0, 0));
}

#[test]
fn a_message_that_cannot_wait_for_the_next_start_is_refused() {
    let mut harness = three_failures();
    for (wait, code) in [(250, Some("entity-backoff")), (251, None)] {
        let deadline = Some(harness.now + wait);
        let token = harness.post(Message { deadline, ..harness.template() });
        assert_eq!(harness.code_of(token).as_deref(), code, "{wait} ms");
        assert!(code.is_none() || told(&harness, token).is_some_and(|(_, after)| after == 250));
    }
    let Some((_, Outcome::NotRun { message, .. })) = harness.replies.last() else { panic!() };
    assert!(message.ends_with("failed with trap: unreachable"), "{message}");
}

#[test]
fn a_new_revision_is_started_without_a_pause() {
    let mut harness = three_failures();
    harness.send(4, 0, MessageKind::Query);
    assert!(!fail_start(&mut harness, None));
    let settings = TypeSettings { revision: 3, ..TypeSettings::default() };
    harness.handle(Event::TypeDeployed { entity_type: "counter".into(), settings });
    assert!(fail_start(&mut harness, None));
}

#[test]
fn a_start_too_large_for_any_store_is_delayed_like_failures() {
    let mut harness = harness();
    let writes = turn(GuestReply::Result(Bytes::new()), true);
    for sequence in 1..=4 {
        let token = harness.send(sequence, 0, MessageKind::Command);
        go_on(&mut harness, &writes);
        assert_eq!(harness.starts, sequence.min(3) as usize, "the fourth one waits");
        if sequence < 4 {
            let refusal = CommitRefusal::TooLarge("18 MiB".into());
            harness.settle(CommitOutcome::Refused(refusal));
            assert_eq!(harness.code_of(token).as_deref(), Some("turn-too-large"));
        }
    }
}

#[test]
fn a_timer_waits_for_the_end_of_a_pause_and_takes_no_place() {
    let mut harness = Harness::new(Settings { max_timer_entities: 1, ..Settings::default() });
    harness.silent = true;
    harness.grant();
    let Action::ScanWakes { number, .. } = harness.next_action() else { panic!("no scan") };
    for sequence in 1..=3 {
        harness.send(sequence, 0, MessageKind::Query);
        assert!(fail_start(&mut harness, None));
    }
    let page = Ok((vec![(1, alice()), (1, Entity::new("counter", "bob"))], false));
    harness.handle(Event::WakesScanned { number, page });
    let Action::Load { entity, .. } = harness.next_action() else { panic!("no load") };
    assert_eq!(&*entity.id, "bob", "alice waits");
    pass(&mut harness, 249);
    assert!(harness.pending_actions.is_empty());
    pass(&mut harness, 1);
    let Action::Load { entity, .. } = harness.next_action() else { panic!("no load") };
    assert_eq!(entity, alice());
}
