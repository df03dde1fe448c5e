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

/// Ends the running turn with a request to drop the instance after a delay.
fn asks_for(harness: &mut Harness, passivate_after: Option<Option<u64>>) {
    let (generation, id, message) = harness.running.take().expect("a running turn");
    let answered = turn(GuestReply::Result(Bytes::new()), message.kind == MessageKind::Command);
    let result = TurnOutput { passivate_after, ..answered };
    harness.handle(Event::TurnDone { entity: alice(), generation, turn: id, result });
    settle_all(harness);
}

fn settle_all(harness: &mut Harness) {
    while !harness.commits.is_empty() {
        harness.settle(CommitOutcome::Committed);
    }
}

fn tick_after(harness: &mut Harness, wait: u64) -> usize {
    harness.now += wait;
    harness.handle(Event::Tick);
    harness.dropped
}

#[test]
fn e15_a_guest_chooses_the_delay_of_its_passivation() {
    let settings =
        TypeSettings { idle_timeout: 1_000, has_stop_hook: true, ..TypeSettings::default() };
    let mut harness = Harness::serving();
    harness.handle(Event::TypeDeployed { entity_type: "counter".into(), settings });
    harness.send(1, 0, MessageKind::Command);
    asks_for(&mut harness, Some(Some(300)));
    assert!(harness.machine.next_wake().is_some_and(|wake| wake <= harness.now + 300));
    tick_after(&mut harness, 299);
    // A later message restarts the delay, whoever sends it.
    harness.send(2, 1, MessageKind::Query);
    asks_for(&mut harness, None);
    tick_after(&mut harness, 299);
    assert_eq!(harness.hooks, 0);
    assert_eq!(
        harness.machine.activity(&alice()).awake,
        [AwakeReason::PassivatesIn(1)],
        "inspection says why it is awake"
    );
    tick_after(&mut harness, 1);
    let Action::CallStopHook { reason, .. } = harness.next_action() else { panic!("no stop hook") };
    assert_eq!(reason, StopReason::Passivated);
}

#[test]
fn e15_the_delay_ends_with_its_instance_or_by_the_guest() {
    let settings = TypeSettings { idle_timeout: 1_000, ..TypeSettings::default() };
    for by_guest in [false, true] {
        let mut harness = Harness::serving();
        let entity_type: Arc<str> = "counter".into();
        harness.handle(Event::TypeDeployed { entity_type, settings: settings.clone() });
        harness.send(1, 0, MessageKind::Query);
        asks_for(&mut harness, Some(Some(100)));
        if !by_guest {
            assert_eq!(tick_after(&mut harness, 100), 1);
        }
        harness.send(2, 0, MessageKind::Query);
        asks_for(&mut harness, by_guest.then_some(None));
        let before = harness.dropped;
        assert_eq!(tick_after(&mut harness, 999), before, "its type's idle timeout applies");
        assert_eq!(tick_after(&mut harness, 1), before + 1);
    }
}

#[test]
fn e15_a_remembered_entity_passivates_when_it_asks_for_it() {
    let mut harness = Harness::serving();
    let settings = TypeSettings { remembers: true, idle_timeout: 10, ..TypeSettings::default() };
    harness.handle(Event::TypeDeployed { entity_type: "counter".into(), settings });
    harness.send(1, 0, MessageKind::Command);
    asks_for(&mut harness, Some(Some(200)));
    assert_eq!(tick_after(&mut harness, 199), 0);
    assert_eq!(tick_after(&mut harness, 1), 1);
    assert_eq!(tick_after(&mut harness, 1_000), 1);
    assert_eq!(harness.starts, 1, "recovery does not start it again");
}

#[test]
fn k29_inspection_says_why_an_entity_is_awake() {
    let mut harness = Harness::serving();
    let awake = |harness: &Harness| harness.machine.activity(&alice()).awake;
    assert_eq!(awake(&harness), []);
    harness.silent = true;
    harness.send(1, 0, MessageKind::Command);
    assert_eq!(awake(&harness), [], "it is being loaded");
    harness.silent = false;
    let load = harness.next_action();
    harness.answer_load(&load);
    assert_eq!(awake(&harness), [AwakeReason::RunsMessage]);
    harness.send(2, 1, MessageKind::Command);
    assert_eq!(awake(&harness), [AwakeReason::RunsMessage, AwakeReason::Messages(1)]);
    harness.run();
    assert_eq!(awake(&harness), [AwakeReason::RunsMessage, AwakeReason::Commits(1)]);
    let asked = TurnOutput { remember: Some(true), ..turn(GuestReply::Result(Bytes::new()), true) };
    let (generation, id, _) = harness.running.take().expect("a running turn");
    harness.handle(Event::TurnDone { entity: alice(), generation, turn: id, result: asked });
    settle_all(&mut harness);
    assert_eq!(awake(&harness), [AwakeReason::Remembered]);
}
