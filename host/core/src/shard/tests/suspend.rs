//! Suspension after the lease has lapsed (R9).

use super::*;

/// A suspended machine whose entity's instance is idle.
fn suspended() -> Harness {
    let mut harness = Harness::serving();
    harness.send(1, 0, MessageKind::Command);
    harness.run();
    harness.settle(CommitOutcome::Committed);
    harness.handle(Event::Suspend);
    assert!(harness.machine.is_suspended());
    harness
}

#[test]
fn r9_a_suspended_shard_keeps_instances_and_starts_no_turn() {
    let mut harness = suspended();
    let command = harness.send(2, 1, MessageKind::Command);
    let query = harness.send_from(b"other", 1, 0, MessageKind::Query, "1");
    // The lease is valid again, but the claims have not been checked yet.
    harness.handle(Event::LeaseRenewed { sent_at: harness.now, lease: 3_000 });
    assert!(harness.running.is_none(), "neither a command nor a query");
    harness.now += TypeSettings::default().idle_timeout + 1;
    harness.handle(Event::Tick);
    harness.handle(Event::Evict { entity: alice() });
    assert_eq!((harness.dropped, harness.machine.stats()), (0, (1, 2)), "the instance is kept");
    harness.handle(Event::LeaseRenewed { sent_at: harness.now, lease: 3_000 });
    harness.handle(Event::Resume);
    assert!(!harness.machine.is_suspended());
    assert_eq!(harness.starts, 1, "the same instance continues");
    harness.run();
    harness.settle(CommitOutcome::Committed);
    harness.run();
    assert_eq!(harness.code_of(command).as_deref(), Some("final 2"));
    assert_eq!(harness.code_of(query).as_deref(), Some("final 2"));
}

#[test]
fn r9_a_turn_running_at_suspension_is_still_committed() {
    let mut harness = Harness::serving();
    let command = harness.send(1, 0, MessageKind::Command);
    harness.handle(Event::Suspend);
    harness.run();
    assert_eq!(harness.commits.len(), 1, "the store fences it");
    harness.settle(CommitOutcome::Committed);
    assert_eq!(harness.code_of(command).as_deref(), Some("final 1"));
}

#[test]
fn r9_a_query_running_at_suspension_is_not_answered() {
    let mut harness = Harness::serving();
    let query = harness.send(1, 0, MessageKind::Query);
    harness.handle(Event::Suspend);
    harness.handle(Event::LeaseRenewed { sent_at: harness.now, lease: 3_000 });
    harness.run();
    assert_eq!(harness.code_of(query).as_deref(), Some(&*codes::STORE_UNAVAILABLE));
}

#[test]
fn r9_messages_to_a_suspended_shard_wait_within_bounds() {
    let mut harness = suspended();
    let settings = TypeSettings { mailbox_capacity: 2, ..TypeSettings::default() };
    harness.handle(Event::TypeDeployed { entity_type: "counter".into(), settings });
    harness.send(2, 1, MessageKind::Command);
    let template = Message {
        id: MessageId { session: ScopedSessionId::derive("client/x", b"late"), sequence: 1 },
        deadline: Some(harness.now + 50),
        ..harness.template()
    };
    let late = harness.post(template);
    let full = harness.send(3, 2, MessageKind::Command);
    assert_eq!(harness.code_of(full).as_deref(), Some(&*codes::MAILBOX_FULL));
    harness.now = harness.machine.next_wake().expect("the deadline");
    harness.handle(Event::Tick);
    assert_eq!(harness.code_of(late).as_deref(), Some(&*codes::DEADLINE_EXCEEDED));
    assert!(harness.running.is_none());
}

#[test]
fn r9_a_suspension_puts_no_parked_message_out_of_order() {
    let mut harness = Harness::serving();
    harness.send_from(b"other", 1, 0, MessageKind::Command, "1");
    let follower = harness.send(2, 1, MessageKind::Command);
    harness.run();
    harness.settle(CommitOutcome::Committed);
    harness.handle(Event::Suspend);
    harness.send(1, 0, MessageKind::Command);
    harness.now += 2 * Settings::default().order_timeout;
    harness.handle(Event::Tick);
    harness.handle(Event::LeaseRenewed { sent_at: harness.now, lease: 3_000 });
    harness.handle(Event::Resume);
    harness.run();
    harness.run();
    (0..2).for_each(|_| harness.settle(CommitOutcome::Committed));
    assert_eq!(harness.code_of(follower).as_deref(), Some("final 3"));
}

#[test]
fn r9_no_start_runs_and_no_slot_is_kept_while_suspended() {
    let mut harness = Harness::serving();
    harness.silent = true;
    harness.send(1, 0, MessageKind::Command);
    let loading = harness.next_action();
    harness.answer_load(&loading);
    let Action::RequestSlot { entity, generation, .. } = harness.next_action() else {
        panic!("no slot requested")
    };
    harness.handle(Event::Suspend);
    assert_eq!(harness.rooms, 0, "a suspended shard waits for no slot");
    harness.handle(Event::SlotGranted { entity: entity.clone(), generation });
    assert_eq!(harness.starts, 0);
    harness.handle(Event::Resume);
    harness.handle(Event::SlotGranted { entity, generation });
    assert_eq!(harness.starts, 0, "the slot was returned");
    let Action::RequestSlot { entity, generation, .. } = harness.next_action() else {
        panic!("no slot requested")
    };
    harness.handle(Event::SlotGranted { entity, generation });
    assert_eq!((harness.starts, harness.rooms), (1, 1));
}

#[test]
fn r9_a_claim_granted_while_suspended_loads_nothing() {
    let mut harness = Harness::new(Settings::default());
    harness.handle(Event::Suspend);
    let command = harness.send(1, 0, MessageKind::Command);
    harness.grant();
    assert_eq!((harness.machine.phase(), harness.loads), (Phase::Serving, 0));
    harness.handle(Event::Resume);
    harness.run();
    harness.settle(CommitOutcome::Committed);
    assert_eq!(harness.code_of(command).as_deref(), Some("final 1"));
}

#[test]
fn r9_a_suspended_shard_stops_without_its_stop_hooks() {
    let mut harness = Harness::serving();
    let settings = TypeSettings { has_stop_hook: true, ..TypeSettings::default() };
    harness.handle(Event::TypeDeployed { entity_type: "counter".into(), settings });
    let running = harness.send(1, 0, MessageKind::Command);
    harness.handle(Event::Suspend);
    harness.handle(Event::Stop(StopReason::HandedOff));
    assert_eq!(harness.stopped, 0, "a turn is running");
    harness.run();
    assert_eq!((harness.stopped, harness.dropped), (0, 1), "its commit is pending");
    harness.settle(CommitOutcome::Committed);
    assert_eq!(harness.code_of(running).as_deref(), Some("final 1"));
    assert_eq!((harness.stopped, harness.hooks, harness.rooms), (1, 0, 0), "the hook is a turn");
}

#[test]
fn r9_slots_granted_before_a_suspension_are_returned() {
    let mut harness = Harness::serving();
    harness.silent = true;
    let mut wanted = Vec::new();
    for target in [alice(), Entity::new("counter", "bob")] {
        let session = ScopedSessionId::derive("client/x", target.id.as_bytes());
        let id = MessageId { session, sequence: 1 };
        harness.post(Message { id, target, ..harness.template() });
        let load = harness.next_action();
        harness.answer_load(&load);
        wanted.push(harness.next_action());
    }
    harness.handle(Event::Suspend);
    harness.handle(Event::Resume);
    for room in wanted {
        let Action::RequestSlot { entity, generation, .. } = room else { panic!("{room:?}") };
        harness.handle(Event::SlotGranted { entity, generation });
    }
    assert_eq!(harness.starts, 0, "the slot was returned");
}
