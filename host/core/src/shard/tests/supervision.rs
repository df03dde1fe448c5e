//! What follows a failure of the guest, by the strategy of its type (K33).

use super::*;

impl Harness {
    /// A machine whose type stops entities after a failure.
    fn stopping() -> Self {
        let mut harness = Self::serving();
        harness.stop_on_failure(1);
        harness
    }

    fn stop_on_failure(&mut self, revision: u64) {
        let on_failure = OnFailure::Stop;
        let settings = TypeSettings { revision, on_failure, ..TypeSettings::default() };
        self.handle(Event::TypeDeployed { entity_type: "counter".into(), settings });
    }

    fn ends_with(&mut self, result: TurnOutput) {
        let (generation, turn, _) = self.running.take().expect("a running turn");
        self.handle(Event::TurnDone { entity: alice(), generation, turn, result });
    }

    /// Sends the command that lets a stopped entity start again. Returns whether it was stopped.
    fn restart_entity(&mut self, sequence: u64) -> bool {
        self.request_restart(sequence).expect("an answer") == 1
    }
}

fn succeeded() -> TurnOutput {
    turn(GuestReply::Result(Bytes::new()), true)
}

#[test]
fn k33_a_stopped_entity_refuses_messages_until_restarted() {
    let mut harness = Harness::stopping();
    harness.send(1, 0, MessageKind::Command);
    let waiting = harness.send_from(b"other", 1, 0, MessageKind::Command, "1");
    harness.ends_with(trapped_turn());
    let later = harness.send_from(b"third", 1, 0, MessageKind::Query, "1");
    for token in [waiting, later] {
        assert_eq!(harness.code_of(token).as_deref(), Some(&*codes::ENTITY_STOPPED));
        assert!(!harness.may_be_sent_again(token));
    }
    assert_eq!((harness.starts, harness.machine.stats().0), (1, 0), "it costs no instance");
    assert!(harness.machine.stopped_by(&alice()).is_some());
    assert!(harness.restart_entity(1) && !harness.restart_entity(2));
    assert_eq!(harness.machine.stopped_by(&alice()), None);
    let again = harness.send_from(b"other", 2, 0, MessageKind::Command, "1");
    harness.run();
    harness.settle(CommitOutcome::Committed);
    assert_eq!(harness.code_of(again).as_deref(), Some("final 1"));
}

#[test]
fn k33_a_stopped_entity_answers_what_it_has_run() {
    let mut harness = Harness::stopping();
    harness.send(1, 0, MessageKind::Command);
    harness.run();
    harness.settle(CommitOutcome::Committed);
    harness.send(2, 1, MessageKind::Command);
    harness.ends_with(trapped_turn());
    let copy = harness.send(1, 0, MessageKind::Command);
    assert_eq!(harness.code_of(copy).as_deref(), Some("final 1"));
}

#[test]
fn k33_a_new_revision_restarts_stopped_entities() {
    let mut harness = Harness::stopping();
    harness.send(1, 0, MessageKind::Command);
    harness.ends_with(trapped_turn());
    harness.stop_on_failure(1);
    assert!(harness.machine.stopped_by(&alice()).is_some(), "the same revision changes nothing");
    harness.stop_on_failure(2);
    assert_eq!(harness.machine.stopped_by(&alice()), None);
}

#[test]
fn k33_an_application_error_stops_nothing() {
    let mut harness = Harness::stopping();
    harness.send(1, 0, MessageKind::Command);
    let error = GuestReply::Error { code: "no".into(), message: String::new() };
    harness.ends_with(turn(error, false));
    assert_eq!((harness.machine.stopped_by(&alice()), harness.dropped), (None, 0));
    harness.send(2, 0, MessageKind::Command);
    let busy = TurnResult::Failed { code: "x".into(), message: "".into(), retry_after: Some(5) };
    harness.ends_with(TurnOutput::without_effects(busy));
    assert_eq!(harness.machine.stopped_by(&alice()), None, "nor does a failure of the node");
}

#[test]
fn k33_a_failed_start_stops_the_entity() {
    let mut harness = Harness::stopping();
    harness.silent = true;
    harness.pending_actions.clear();
    let token = harness.send(1, 0, MessageKind::Command);
    let load = harness.next_action();
    harness.answer_load(&load);
    let Action::RequestSlot { entity, generation, .. } = harness.next_action() else { panic!() };
    harness.handle(Event::SlotGranted { entity: entity.clone(), generation });
    let result = ActivationOutcome::Started(trapped_turn());
    harness.handle(Event::ActivationResult { entity, generation, result });
    assert!(harness.machine.stopped_by(&alice()).is_some() && harness.code_of(token).is_some());
    assert_eq!(harness.machine.stats().0, 0, "no pause keeps it in memory");
}

#[test]
fn k33_the_timers_of_a_stopped_entity_wait() {
    let mut harness = Harness::stopping();
    let due = TimerChange::Set { name: "t".into(), due: 1_500, interval: 0, payload: Bytes::new() };
    harness.committed(1, vec![due]);
    harness.send(2, 1, MessageKind::Command);
    harness.ends_with(trapped_turn());
    for now in [1_500, 3_000, 90_000] {
        harness.tick(now);
    }
    assert_eq!((harness.starts, harness.firings), (1, 0));
    assert!(harness.machine.next_wake().is_some_and(|at| at > harness.now));
    assert!(harness.restart_entity(1));
    assert_eq!((harness.starts, harness.firings), (2, 1), "it fires when it may");
}

#[test]
fn k33_a_failed_firing_stops_the_entity() {
    let mut harness = Harness::stopping();
    let due = TimerChange::Set { name: "t".into(), due: 1_500, interval: 0, payload: Bytes::new() };
    harness.committed(1, vec![due]);
    harness.tick(1_500);
    let (generation, turn, _) = harness.firing.take().expect("a firing");
    harness.handle(Event::TurnDone { entity: alice(), generation, turn, result: trapped_turn() });
    harness.settle(CommitOutcome::Committed);
    harness.tick(400_000);
    assert_eq!((harness.starts, harness.firings), (1, 1));
    assert!(harness.machine.stopped_by(&alice()).is_some());
}

#[test]
fn k33_a_remembered_entity_stays_stopped() {
    let mut harness = Harness::stopping();
    harness.send(1, 0, MessageKind::Command);
    harness.ends_with(TurnOutput { remember: Some(true), ..succeeded() });
    harness.settle(CommitOutcome::Committed);
    harness.marks = Some(vec![alice()]);
    harness.send(2, 1, MessageKind::Command);
    harness.ends_with(trapped_turn());
    harness.tick(100_000);
    assert_eq!(harness.starts, 1);
    assert!(harness.restart_entity(1));
    assert_eq!(harness.starts, 2, "it starts without another message");
    harness.send(3, 1, MessageKind::Command);
    harness.ends_with(trapped_turn());
    assert_eq!(harness.starts, 2);
    harness.stop_on_failure(2);
    assert_eq!(harness.starts, 3, "its marks are read again");
}

#[test]
fn k33_the_next_owner_starts_a_stopped_entity_once_more() {
    let mut harness = Harness::stopping();
    harness.send(1, 0, MessageKind::Command);
    harness.ends_with(trapped_turn());
    let mut next = harness.restarted();
    next.send(2, 0, MessageKind::Command);
    assert_eq!(next.starts, 1);
}

#[test]
fn k33_a_failure_is_escalated_once_and_the_entity_restarts() {
    for (on_failure, count) in [(OnFailure::Escalate, 1), (OnFailure::Resume, 0)] {
        let mut harness = Harness::serving();
        let settings = TypeSettings { on_failure, ..TypeSettings::default() };
        harness.handle(Event::TypeDeployed { entity_type: "counter".into(), settings });
        for sequence in 1..=3 {
            harness.send(sequence, 0, MessageKind::Command);
            harness.ends_with(trapped_turn());
        }
        assert_eq!((harness.escalated, harness.starts, harness.dropped), (count, 3, 3));
        let last = harness.send(4, 0, MessageKind::Command);
        harness.run();
        harness.settle(CommitOutcome::Committed);
        assert_eq!(harness.code_of(last).as_deref(), Some("final 1"), "it serves meanwhile");
        assert_eq!(harness.machine.activity(&alice()).on_failure, Some(on_failure));
    }
}

#[test]
fn k33_an_application_error_is_neither_a_stop_nor_escalated() {
    for on_failure in [OnFailure::Resume, OnFailure::Escalate] {
        let mut harness = Harness::serving();
        let settings = TypeSettings { on_failure, ..TypeSettings::default() };
        harness.handle(Event::TypeDeployed { entity_type: "counter".into(), settings });
        harness.send(1, 0, MessageKind::Command);
        harness.answer(GuestReply::Error { code: "no".into(), message: String::new() });
        assert_eq!((harness.escalated, harness.dropped), (0, 0));
    }
}

#[test]
fn k33_the_number_of_stopped_entities_is_limited() {
    let mut harness = Harness::with(Settings { max_stopped: 2, ..Settings::default() });
    harness.stop_on_failure(1);
    let named = |number: u32| Entity::new("counter", format!("e{number}"));
    for number in 0..3 {
        let target = named(number);
        let id = MessageId { session: ScopedSessionId([number as u8; 16]), sequence: 1 };
        let message = Message { id, target: target.clone(), ..harness.template() };
        harness.post(message);
        let (generation, turn, _) = harness.running.take().expect("a running turn");
        harness.handle(Event::TurnDone {
            entity: target,
            generation,
            turn,
            result: trapped_turn(),
        });
    }
    let is_stopped = |number| harness.machine.stopped_by(&named(number)).is_some();
    assert_eq!([0, 1, 2].map(is_stopped), [false, true, true]);
    assert_eq!(harness.forgotten, [named(0)], "the log names it");
}

#[test]
fn k33_inspection_shows_strategy_stop_and_back_off() {
    let mut harness = Harness::stopping();
    harness.send(1, 0, MessageKind::Command);
    harness.ends_with(trapped_turn());
    let seen = harness.machine.activity(&alice());
    assert_eq!(seen.on_failure, Some(OnFailure::Stop));
    assert!(seen.stopped_by.is_some_and(|why| why.starts_with("trap")));
    let mut harness = Harness::serving();
    harness.silent = true;
    for sequence in 1..=3 {
        harness.send(sequence, 0, MessageKind::Command);
        while !harness.pending_actions.is_empty() {
            match harness.next_action() {
                action @ Action::Load { .. } => harness.answer_load(&action),
                Action::RequestSlot { entity, generation, .. } => {
                    harness.handle(Event::SlotGranted { entity, generation });
                }
                Action::Activate { entity, generation, .. } => {
                    let result = ActivationOutcome::Started(trapped_turn());
                    harness.handle(Event::ActivationResult { entity, generation, result });
                }
                other => panic!("{other:?}"),
            }
        }
    }
    let seen = harness.machine.activity(&alice());
    assert_eq!((seen.failed_starts, seen.start_pause), (3, Some(250)));
}
