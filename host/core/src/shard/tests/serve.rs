//! How a shard and its instances start to serve (R14, R24), and how waiting ends (R22).

use super::*;

fn room(harness: &mut Harness) {
    let Action::RequestSlot { entity, generation, .. } = harness.next_action() else {
        panic!("no slot requested")
    };
    harness.handle(Event::SlotGranted { entity, generation });
}

#[test]
fn r14_a_shard_serves_once_claimed_and_loads_on_demand() {
    let mut harness = Harness::new(Settings::default());
    harness.silent = true;
    let waiting = harness.send(1, 0, MessageKind::Command);
    assert!(
        harness.pending_actions.is_empty() && harness.loads == 0,
        "nothing is read before the claim is granted"
    );
    harness.grant();
    assert_eq!(harness.machine.phase(), Phase::Serving, "without waiting for any load");
    // Only the message's own entity is loaded.
    let load = harness.next_action();
    assert!(matches!(&load, Action::Load { entity, .. } if *entity == alice()), "{load:?}");
    let scan = harness.next_action();
    assert!(matches!(&scan, Action::ScanWakes { from: None, .. }), "then wake-ups: {scan:?}");
    assert!(harness.pending_actions.is_empty(), "{:?}", harness.pending_actions);
    harness.answer_load(&load);
    room(&mut harness);
    harness.silent = false;
    let Action::Activate { entity, generation, .. } = harness.next_action() else {
        panic!("no activation")
    };
    let result = ActivationOutcome::Started(turn(GuestReply::Result(Bytes::new()), false));
    harness.handle(Event::ActivationResult { entity, generation, result });
    harness.run();
    harness.settle(CommitOutcome::Committed);
    assert_eq!(harness.code_of(waiting).as_deref(), Some("final 1"));
}

/// A machine in which a message's turn ran after a start turn with writes, and the message's token.
fn started() -> (Harness, u64) {
    let mut harness = Harness::serving();
    harness.silent = true;
    let message = harness.send(1, 0, MessageKind::Command);
    let load = harness.next_action();
    harness.answer_load(&load);
    room(&mut harness);
    let Action::Activate { entity, generation, .. } = harness.next_action() else {
        panic!("no activation")
    };
    let result = ActivationOutcome::Started(turn(GuestReply::Result(Bytes::new()), true));
    harness.handle(Event::ActivationResult { entity, generation, result });
    harness.silent = false;
    harness.run();
    (harness, message)
}

#[test]
fn r24_a_start_with_effects_is_committed_as_its_own_turn() {
    let (mut harness, message) = started();
    let versions: Vec<_> =
        harness.commits.iter().map(|it| (it.expected_version, it.head.version)).collect();
    assert_eq!(versions, [(0, 1), (1, 2)], "the start, then the message");
    assert!(harness.commits[0].head.lanes.is_empty(), "the start has no caller");
    harness.settle(CommitOutcome::Committed);
    assert_eq!(harness.code_of(message), None);
    harness.settle(CommitOutcome::Committed);
    assert_eq!(harness.code_of(message).as_deref(), Some("final 2"));

    // A refused start also ends the message: it ran on state that was never committed.
    let (mut harness, message) = started();
    harness.settle(CommitOutcome::Refused(CommitRefusal::VersionMismatch { stored: 7 }));
    harness.settle(CommitOutcome::Refused(CommitRefusal::VersionMismatch { stored: 7 }));
    assert_eq!(harness.code_of(message).as_deref(), Some(&*codes::COMMIT_REFUSED));
}

#[test]
fn r22_a_deadline_ends_the_wait_behind_a_running_turn() {
    let mut harness = Harness::serving();
    let running = harness.send(1, 0, MessageKind::Command);
    let id = MessageId { session: ScopedSessionId::derive("client/x", b"s"), sequence: 2 };
    let deadline = Some(harness.now + 50);
    let late = harness.post(Message { id, deadline, ..harness.template() });
    assert!(
        harness.machine.next_wake().is_some_and(|wake| Some(wake) <= deadline),
        "it requests a wake-up"
    );
    harness.now += 60;
    harness.handle(Event::Tick);
    assert_eq!(harness.code_of(late).as_deref(), Some(&*codes::DEADLINE_EXCEEDED));
    assert!(harness.running.is_some(), "no caller's deadline interrupts a turn");
    harness.run();
    harness.settle(CommitOutcome::Committed);
    assert_eq!(harness.code_of(running).as_deref(), Some("final 1"));
}

#[test]
fn r1_every_turn_has_an_id_of_its_own() {
    let mut harness = Harness::serving();
    for sequence in 1..=3 {
        harness.send(sequence, sequence - 1, MessageKind::Command);
        harness.run();
    }
    let numbers: Vec<_> = harness.commits.iter().map(|commit| commit.head.turn.number).collect();
    let mut distinct = numbers.clone();
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!(distinct.len(), 3, "{numbers:?}");
}

#[test]
fn a_reused_id_is_named_to_its_sender() {
    let mut harness = Harness::serving();
    harness.send(7, 0, MessageKind::Command);
    let token = harness.send_from(b"s", 7, 0, MessageKind::Command, "other");
    let (_, outcome) = harness.replies.iter().find(|(other, _)| *other == token).expect("a reply");
    let Outcome::NotRun { code, message, .. } = outcome else { panic!("{outcome:?}") };
    assert_eq!(*code, codes::ID_REUSED);
    assert!(message.contains("/7 was already used with another target"), "{message}");
}

#[test]
fn a_machine_shows_its_waiting_messages_and_settings() {
    let mut harness = Harness::with(Settings { max_copies: 7, ..Settings::default() });
    assert_eq!(harness.machine.queued_messages(&alice()), None);
    harness.send(1, 0, MessageKind::Command);
    harness.send(2, 1, MessageKind::Command);
    harness.send(3, 2, MessageKind::Command);
    assert_eq!(harness.machine.queued_messages(&alice()), Some(2), "the first one is running");
    assert_eq!(harness.machine.settings().max_copies, 7);
}
