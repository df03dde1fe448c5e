//! When an instance is dropped: at the guest's request, or after its idle time (E8, K31).

use super::*;

/// A machine whose entity has answered one command, by a guest that asks to be dropped or does not.
fn answered(settings: TypeSettings, passivate: bool) -> Harness {
    let mut hand = Harness::serving();
    hand.handle(Event::TypeDeployed { entity_type: "counter".into(), settings });
    hand.send(1, 0, MessageKind::Command);
    let (generation, id, message) = hand.running.take().expect("a running turn");
    let result = TurnOutput { passivate, ..turn(GuestReply::Result(Bytes::new()), true) };
    hand.handle(Event::TurnDone { entity: message.target.clone(), generation, turn: id, result });
    hand
}

#[test]
fn an_instance_is_dropped_when_its_guest_asks_for_it() {
    for (passivate, dropped) in [(false, 0), (true, 1)] {
        let mut hand = answered(TypeSettings::default(), passivate);
        hand.settle(CommitOutcome::Committed);
        assert_eq!((hand.dropped, hand.rooms), (dropped, 1 - dropped));
        // The next message starts another instance, loaded from the store.
        hand.send(2, 1, MessageKind::Command);
        hand.run();
        hand.settle(CommitOutcome::Committed);
        assert_eq!((hand.starts, hand.loads), (1 + dropped, 1 + dropped));
        assert_eq!(hand.code_of(2).as_deref(), Some("final 2"));
    }
}

#[test]
fn a_guest_that_asks_to_be_dropped_gets_its_stop_hook() {
    let settings = TypeSettings { has_stop_hook: true, ..TypeSettings::default() };
    let mut hand = answered(settings, true);
    hand.settle(CommitOutcome::Committed);
    let Action::CallStopHook { reason, .. } = hand.ask() else { panic!("a stop hook") };
    assert_eq!((reason, hand.dropped), (StopReason::Passivated, 0));
}

#[test]
fn an_instance_is_dropped_after_the_idle_time_of_its_type() {
    let idle = 5_000;
    let mut hand = answered(TypeSettings { idle_timeout: idle, ..TypeSettings::default() }, false);
    hand.settle(CommitOutcome::Committed);
    hand.now += idle - 1;
    hand.handle(Event::Tick);
    assert_eq!(hand.dropped, 0, "its time has not passed");
    hand.now += 1;
    assert!(hand.machine.next_wake().is_some_and(|wake| wake <= hand.now), "it asks to be woken");
    hand.handle(Event::Tick);
    assert_eq!((hand.dropped, hand.rooms), (1, 0));
}

#[test]
fn a_message_restarts_the_idle_time() {
    // A query needs a valid lease: all of this happens within one.
    let idle = 1_000;
    let mut hand = answered(TypeSettings { idle_timeout: idle, ..TypeSettings::default() }, false);
    hand.settle(CommitOutcome::Committed);
    hand.now += idle - 1;
    hand.send(2, 1, MessageKind::Query);
    hand.run();
    hand.now += idle - 1;
    hand.handle(Event::Tick);
    assert_eq!(hand.dropped, 0);
    hand.now += 1;
    hand.handle(Event::Tick);
    assert_eq!(hand.dropped, 1);
}
