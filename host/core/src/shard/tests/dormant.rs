//! An entity that was dropped from memory is not loaded again until a message arrives (K32).

use super::*;

#[test]
fn only_a_message_activates_a_dropped_entity() {
    let settings = TypeSettings { idle_timeout: 5_000, ..TypeSettings::default() };
    let mut harness = Harness::serving();
    let deployed = Event::TypeDeployed { entity_type: "counter".into(), settings };
    harness.handle(deployed.clone());
    harness.send(1, 0, MessageKind::Command);
    harness.run();
    harness.settle(CommitOutcome::Committed);
    harness.now += 5_000;
    harness.handle(Event::Tick);
    assert_eq!((harness.dropped, harness.rooms), (1, 0));

    // Less than `lane_ttl`, so that the session is still remembered.
    for second in 0..3_000 {
        harness.now += 1_000;
        harness.handle(Event::LeaseRenewed { sent_at: harness.now, lease: 3_000 });
        harness.handle(Event::Tick);
        if second % 60 == 0 {
            harness.handle(Event::Suspend);
            harness.handle(Event::Resume);
            harness.handle(deployed.clone());
        }
    }
    assert_eq!((harness.loads, harness.starts, harness.rooms), (1, 1, 0));
    assert_eq!(harness.machine.stats(), (0, 0));

    harness.send(2, 1, MessageKind::Command);
    harness.run();
    harness.settle(CommitOutcome::Committed);
    assert_eq!((harness.loads, harness.starts), (2, 2));
}
