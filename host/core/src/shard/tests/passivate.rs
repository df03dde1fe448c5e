//! When an instance is dropped: at the guest's request, or after its idle timeout (E8, K31).

use super::*;

/// A machine whose entity has answered one command, and has asked for passivation if `passivate` is set.
fn answered(settings: TypeSettings, passivate: bool) -> Harness {
    let mut harness = Harness::serving();
    harness.handle(Event::TypeDeployed { entity_type: "counter".into(), settings });
    harness.send(1, 0, MessageKind::Command);
    let (generation, id, message) = harness.running.take().expect("a running turn");
    let result = TurnOutput { passivate, ..turn(GuestReply::Result(Bytes::new()), true) };
    harness.handle(Event::TurnDone {
        entity: message.target.clone(),
        generation,
        turn: id,
        result,
    });
    harness
}

#[test]
fn an_instance_is_dropped_when_its_guest_asks_for_it() {
    for (passivate, dropped) in [(false, 0), (true, 1)] {
        let mut harness = answered(TypeSettings::default(), passivate);
        harness.settle(CommitOutcome::Committed);
        assert_eq!((harness.dropped, harness.rooms), (dropped, 1 - dropped));
        // The next message starts another instance, loaded from the store.
        harness.send(2, 1, MessageKind::Command);
        harness.run();
        harness.settle(CommitOutcome::Committed);
        assert_eq!((harness.starts, harness.loads), (1 + dropped, 1 + dropped));
        assert_eq!(harness.code_of(2).as_deref(), Some("final 2"));
    }
}

#[test]
fn a_guest_that_asks_to_be_dropped_gets_its_stop_hook() {
    let settings = TypeSettings { has_stop_hook: true, ..TypeSettings::default() };
    let mut harness = answered(settings, true);
    harness.settle(CommitOutcome::Committed);
    let Action::CallStopHook { reason, .. } = harness.next_action() else { panic!("no stop hook") };
    assert_eq!((reason, harness.dropped), (StopReason::Passivated, 0));
}

#[test]
fn an_instance_is_dropped_after_the_idle_time_of_its_type() {
    let idle = 5_000;
    let mut harness =
        answered(TypeSettings { idle_timeout: idle, ..TypeSettings::default() }, false);
    harness.settle(CommitOutcome::Committed);
    harness.now += idle - 1;
    harness.handle(Event::Tick);
    assert_eq!(harness.dropped, 0, "the timeout has not passed");
    harness.now += 1;
    assert!(
        harness.machine.next_wake().is_some_and(|wake| wake <= harness.now),
        "it requests a wake-up"
    );
    harness.handle(Event::Tick);
    assert_eq!((harness.dropped, harness.rooms), (1, 0));
}

#[test]
fn a_message_restarts_the_idle_time() {
    // A query needs a valid lease: all of this happens within one.
    let idle = 1_000;
    let mut harness =
        answered(TypeSettings { idle_timeout: idle, ..TypeSettings::default() }, false);
    harness.settle(CommitOutcome::Committed);
    harness.now += idle - 1;
    harness.send(2, 1, MessageKind::Query);
    harness.run();
    harness.now += idle - 1;
    harness.handle(Event::Tick);
    assert_eq!(harness.dropped, 0);
    harness.now += 1;
    harness.handle(Event::Tick);
    assert_eq!(harness.dropped, 1);
}
