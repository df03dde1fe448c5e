//! After a lapse of the lease (R9).

use super::*;

/// A suspended machine whose entity's instance is idle.
fn suspended() -> Harness {
    let mut hand = Harness::serving();
    hand.send(1, 0, MessageKind::Command);
    hand.run();
    hand.settle(CommitOutcome::Committed);
    hand.handle(Event::Suspend);
    assert!(hand.machine.is_suspended());
    hand
}

#[test]
fn r9_a_suspended_shard_keeps_instances_and_starts_no_turn() {
    let mut hand = suspended();
    let command = hand.send(2, 1, MessageKind::Command);
    let query = hand.send_from(b"other", 1, 0, MessageKind::Query, "1");
    // The lease is valid again, and the claims were not read yet.
    hand.handle(Event::LeaseRenewed { sent_at: hand.now, lease: 3_000 });
    assert!(hand.running.is_none(), "neither a command nor a query");
    hand.now += TypeSettings::default().idle_timeout + 1;
    hand.handle(Event::Tick);
    hand.handle(Event::Evict { entity: alice() });
    assert_eq!((hand.dropped, hand.machine.stats()), (0, (1, 2)), "the instance stays");
    hand.handle(Event::LeaseRenewed { sent_at: hand.now, lease: 3_000 });
    hand.handle(Event::Resume);
    assert!(!hand.machine.is_suspended());
    assert_eq!(hand.starts, 1, "the same instance goes on");
    hand.run();
    hand.settle(CommitOutcome::Committed);
    hand.run();
    assert_eq!(hand.code_of(command).as_deref(), Some("final 2"));
    assert_eq!(hand.code_of(query).as_deref(), Some("final 2"));
}

#[test]
fn r9_a_turn_running_at_suspension_is_still_committed() {
    let mut hand = Harness::serving();
    let command = hand.send(1, 0, MessageKind::Command);
    hand.handle(Event::Suspend);
    hand.run();
    assert_eq!(hand.commits.len(), 1, "the store fences it");
    hand.settle(CommitOutcome::Committed);
    assert_eq!(hand.code_of(command).as_deref(), Some("final 1"));
}

#[test]
fn r9_a_query_running_at_suspension_is_not_answered() {
    let mut hand = Harness::serving();
    let query = hand.send(1, 0, MessageKind::Query);
    hand.handle(Event::Suspend);
    hand.handle(Event::LeaseRenewed { sent_at: hand.now, lease: 3_000 });
    hand.run();
    assert_eq!(hand.code_of(query).as_deref(), Some(&*codes::STORE_UNAVAILABLE));
}

#[test]
fn r9_messages_to_a_suspended_shard_wait_within_bounds() {
    let mut hand = suspended();
    let settings = TypeSettings { mailbox_capacity: 2, ..TypeSettings::default() };
    hand.handle(Event::TypeDeployed { entity_type: "counter".into(), settings });
    hand.send(2, 1, MessageKind::Command);
    let template = Message {
        id: MessageId { session: ScopedSessionId::derive("client/x", b"late"), sequence: 1 },
        deadline: Some(hand.now + 50),
        ..hand.template()
    };
    let late = hand.post(template);
    let full = hand.send(3, 2, MessageKind::Command);
    assert_eq!(hand.code_of(full).as_deref(), Some(&*codes::MAILBOX_FULL));
    hand.now = hand.machine.next_wake().expect("the deadline");
    hand.handle(Event::Tick);
    assert_eq!(hand.code_of(late).as_deref(), Some(&*codes::DEADLINE_EXCEEDED));
    assert!(hand.running.is_none());
}

#[test]
fn r9_a_suspension_puts_no_parked_message_out_of_order() {
    let mut hand = Harness::serving();
    hand.send_from(b"other", 1, 0, MessageKind::Command, "1");
    let follower = hand.send(2, 1, MessageKind::Command);
    hand.run();
    hand.settle(CommitOutcome::Committed);
    hand.handle(Event::Suspend);
    hand.send(1, 0, MessageKind::Command);
    hand.now += 2 * Settings::default().order_timeout;
    hand.handle(Event::Tick);
    hand.handle(Event::LeaseRenewed { sent_at: hand.now, lease: 3_000 });
    hand.handle(Event::Resume);
    hand.run();
    hand.run();
    (0..2).for_each(|_| hand.settle(CommitOutcome::Committed));
    assert_eq!(hand.code_of(follower).as_deref(), Some("final 3"));
}

#[test]
fn r9_no_start_runs_and_no_slot_is_kept_while_suspended() {
    let mut hand = Harness::serving();
    hand.silent = true;
    hand.send(1, 0, MessageKind::Command);
    let loading = hand.ask();
    hand.answer_load(&loading);
    let Action::RequestSlot { entity, generation } = hand.ask() else {
        panic!("room is asked for")
    };
    hand.handle(Event::Suspend);
    assert_eq!(hand.rooms, 0, "a suspended shard waits for no room");
    hand.handle(Event::SlotGranted { entity: entity.clone(), generation });
    assert_eq!(hand.starts, 0);
    hand.handle(Event::Resume);
    hand.handle(Event::SlotGranted { entity, generation });
    assert_eq!(hand.starts, 0, "it was given back");
    let Action::RequestSlot { entity, generation } = hand.ask() else {
        panic!("room is asked for")
    };
    hand.handle(Event::SlotGranted { entity, generation });
    assert_eq!((hand.starts, hand.rooms), (1, 1));
}

#[test]
fn r9_a_claim_granted_while_suspended_loads_nothing() {
    let mut hand = Harness::new(Settings::default());
    hand.handle(Event::Suspend);
    let command = hand.send(1, 0, MessageKind::Command);
    hand.grant();
    assert_eq!((hand.machine.phase(), hand.loads), (Phase::Serving, 0));
    hand.handle(Event::Resume);
    hand.run();
    hand.settle(CommitOutcome::Committed);
    assert_eq!(hand.code_of(command).as_deref(), Some("final 1"));
}

#[test]
fn r9_a_suspended_shard_stops_without_its_stop_hooks() {
    let mut hand = Harness::serving();
    let settings = TypeSettings { has_stop_hook: true, ..TypeSettings::default() };
    hand.handle(Event::TypeDeployed { entity_type: "counter".into(), settings });
    let running = hand.send(1, 0, MessageKind::Command);
    hand.handle(Event::Suspend);
    hand.handle(Event::Stop(StopReason::HandedOff));
    assert_eq!(hand.stopped, 0, "a turn runs");
    hand.run();
    assert_eq!((hand.stopped, hand.dropped), (0, 1), "its commit is under way");
    hand.settle(CommitOutcome::Committed);
    assert_eq!(hand.code_of(running).as_deref(), Some("final 1"));
    assert_eq!((hand.stopped, hand.hooks, hand.rooms), (1, 0, 0), "the hook is a turn");
}

#[test]
fn r9_slots_granted_before_a_suspension_are_returned() {
    let mut hand = Harness::serving();
    hand.silent = true;
    let mut wanted = Vec::new();
    for target in [alice(), Entity::new("counter", "bob")] {
        let session = ScopedSessionId::derive("client/x", target.id.as_bytes());
        let id = MessageId { session, sequence: 1 };
        hand.post(Message { id, target, ..hand.template() });
        let load = hand.ask();
        hand.answer_load(&load);
        wanted.push(hand.ask());
    }
    hand.handle(Event::Suspend);
    hand.handle(Event::Resume);
    for room in wanted {
        let Action::RequestSlot { entity, generation } = room else { panic!("{room:?}") };
        hand.handle(Event::SlotGranted { entity, generation });
    }
    assert_eq!(hand.starts, 0, "it was given back");
}
