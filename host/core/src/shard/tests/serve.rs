//! How a shard begins to serve (R14), an instance with it (R24), and how waiting ends (R22).

use super::*;

fn room(hand: &mut Harness) {
    let Action::RequestSlot { entity, generation } = hand.ask() else {
        panic!("no slot requested")
    };
    hand.handle(Event::SlotGranted { entity, generation });
}

#[test]
fn r14_a_shard_serves_once_claimed_and_loads_on_demand() {
    let mut hand = Harness::new(Settings::default());
    hand.silent = true;
    let waiting = hand.send(1, 0, MessageKind::Command);
    assert!(
        hand.asked.is_empty() && hand.loads == 0,
        "nothing is read before the claim is granted"
    );
    hand.grant();
    assert_eq!(hand.machine.phase(), Phase::Serving, "whatever the store still has to be asked");
    // Only the message's own entity is loaded.
    let load = hand.ask();
    assert!(matches!(&load, Action::Load { entity, .. } if *entity == alice()), "{load:?}");
    assert!(hand.asked.is_empty(), "{:?}", hand.asked);
    hand.answer_load(&load);
    room(&mut hand);
    hand.silent = false;
    let Action::Activate { entity, generation, .. } = hand.ask() else { panic!("no activation") };
    let result = ActivationOutcome::Started(turn(GuestReply::Result(Bytes::new()), false));
    hand.handle(Event::ActivationResult { entity, generation, result });
    hand.run();
    hand.settle(CommitOutcome::Committed);
    assert_eq!(hand.code_of(waiting).as_deref(), Some("final 1"));
}

/// A message's turn that has run behind a start that wrote something.
fn started() -> (Harness, u64) {
    let mut hand = Harness::serving();
    hand.silent = true;
    let message = hand.send(1, 0, MessageKind::Command);
    let load = hand.ask();
    hand.answer_load(&load);
    room(&mut hand);
    let Action::Activate { entity, generation, .. } = hand.ask() else { panic!("no activation") };
    let result = ActivationOutcome::Started(turn(GuestReply::Result(Bytes::new()), true));
    hand.handle(Event::ActivationResult { entity, generation, result });
    hand.silent = false;
    hand.run();
    (hand, message)
}

#[test]
fn r24_a_start_with_effects_is_committed_as_its_own_turn() {
    let (mut hand, message) = started();
    let versions: Vec<_> =
        hand.commits.iter().map(|it| (it.expected_version, it.head.version)).collect();
    assert_eq!(versions, [(0, 1), (1, 2)], "the start, then the message");
    assert!(hand.commits[0].head.lanes.is_empty(), "the start has no caller");
    hand.settle(CommitOutcome::Committed);
    assert_eq!(hand.code_of(message), None);
    hand.settle(CommitOutcome::Committed);
    assert_eq!(hand.code_of(message).as_deref(), Some("final 2"));

    // A refused start also ends the message: it ran on state that was never committed.
    let (mut hand, message) = started();
    hand.settle(CommitOutcome::Refused(CommitRefusal::VersionMismatch { stored: 7 }));
    hand.settle(CommitOutcome::Refused(CommitRefusal::VersionMismatch { stored: 7 }));
    assert_eq!(hand.code_of(message).as_deref(), Some(&*codes::COMMIT_REFUSED));
}

#[test]
fn r22_a_deadline_ends_the_wait_behind_a_running_turn() {
    let mut hand = Harness::serving();
    let running = hand.send(1, 0, MessageKind::Command);
    let id = MessageId { session: ScopedSessionId::derive("client/x", b"s"), sequence: 2 };
    let deadline = Some(hand.now + 50);
    let late = hand.post(Message { id, deadline, ..hand.template() });
    assert!(
        hand.machine.next_wake().is_some_and(|wake| Some(wake) <= deadline),
        "it wants to be told"
    );
    hand.now += 60;
    hand.handle(Event::Tick);
    assert_eq!(hand.code_of(late).as_deref(), Some(&*codes::DEADLINE_EXCEEDED));
    assert!(hand.running.is_some(), "no caller's deadline interrupts a turn");
    hand.run();
    hand.settle(CommitOutcome::Committed);
    assert_eq!(hand.code_of(running).as_deref(), Some("final 1"));
}

#[test]
fn r1_every_turn_has_an_id_of_its_own() {
    let mut hand = Harness::serving();
    for sequence in 1..=3 {
        hand.send(sequence, sequence - 1, MessageKind::Command);
        hand.run();
    }
    let numbers: Vec<_> = hand.commits.iter().map(|commit| commit.head.turn.number).collect();
    let mut distinct = numbers.clone();
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!(distinct.len(), 3, "{numbers:?}");
}

#[test]
fn a_reused_id_is_named_to_its_sender() {
    let mut hand = Harness::serving();
    hand.send(7, 0, MessageKind::Command);
    let token = hand.send_from(b"s", 7, 0, MessageKind::Command, "other");
    let (_, outcome) = hand.replies.iter().find(|(other, _)| *other == token).expect("a reply");
    let Outcome::NotRun { code, message, .. } = outcome else { panic!("{outcome:?}") };
    assert_eq!(*code, codes::ID_REUSED);
    assert!(message.contains("/7 was already used with another target"), "{message}");
}

#[test]
fn a_machine_shows_its_waiting_messages_and_settings() {
    let mut hand = Harness::with(Settings { max_copies: 7, ..Settings::default() });
    assert_eq!(hand.machine.queued_messages(&alice()), None);
    hand.send(1, 0, MessageKind::Command);
    hand.send(2, 1, MessageKind::Command);
    hand.send(3, 2, MessageKind::Command);
    assert_eq!(hand.machine.queued_messages(&alice()), Some(2), "one runs");
    assert_eq!(hand.machine.settings().max_copies, 7);
}
