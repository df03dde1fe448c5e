//! The cost of an event does not grow with unrelated state. Examinations are counted, not time.

use super::*;

const MANY: u64 = 100_000;

fn entity(number: u64) -> Entity {
    Entity::new("counter", format!("{number:06}"))
}

fn id(session: u64, sequence: u64) -> MessageId {
    MessageId { session: ScopedSessionId::derive("client/x", &session.to_be_bytes()), sequence }
}

fn query(harness: &mut Harness, number: u64, sequence: u64) {
    let target = entity(number);
    let digest = MessageDigest::compute(&target, "m", b"1");
    let id = id(number, sequence);
    harness.post(Message { target, id, digest, kind: MessageKind::Query, ..harness.template() });
}

/// [`MANY`] live, idle entities, half of them used one millisecond after the others.
fn live() -> Harness {
    let mut harness = Harness::serving();
    for number in 1..=MANY {
        query(&mut harness, number, 1);
        harness.run();
        harness.now += u64::from(number == MANY / 2);
    }
    harness.replies.clear();
    assert_eq!(harness.machine.stats(), (MANY as usize, 0), "all are live and idle");
    // Each is examined once more, at its slot's deadline.
    harness.now += Settings::default().instance_slot_timeout;
    harness.handle(Event::Tick);
    harness.machine.take_visits();
    harness
}

#[test]
fn time_and_lease_events_visit_only_waiting_entities() {
    let mut harness = live();
    for _ in 0..10 {
        harness.now += 500;
        harness.handle(Event::LeaseRenewed { sent_at: harness.now, lease: 3_000 });
        harness.handle(Event::Tick);
    }
    assert_eq!(harness.machine.take_visits(), 0, "nothing waits for the lease, and nothing is due");

    // One message with a deadline, for an entity that is being loaded.
    harness.silent = true;
    let deadline = Some(harness.now + 10);
    harness.post(Message { id: id(0, 1), deadline, ..harness.template() });
    harness.machine.take_visits();
    harness.now += 10;
    assert!(harness.machine.next_wake().is_some_and(|wake| wake <= harness.now));
    harness.handle(Event::Tick);
    let visits = harness.machine.take_visits();
    assert!((1..=2).contains(&visits), "{visits}");
    assert_eq!(harness.replies.len(), 1);
    harness.silent = false;

    // The lease expires: later messages wait for it, and no other entity is examined.
    harness.now += 2_900;
    query(&mut harness, 7, 2);
    assert!(harness.running.is_none());
    harness.machine.take_visits();
    harness.handle(Event::LeaseRenewed { sent_at: harness.now, lease: 3_000 });
    assert!(harness.running.is_some());
    let visits = harness.machine.take_visits();
    assert!((1..=2).contains(&visits), "{visits}");
    harness.run();

    // Half of them have been idle for long enough.
    harness.machine.take_visits();
    harness.now = harness.machine.next_wake().expect("idle instances");
    harness.handle(Event::Tick);
    let left = harness.machine.stats().0 as u64;
    assert_eq!(left, MANY / 2 + 2, "those used later, the seventh, and the one that is loaded");
    let visits = harness.machine.take_visits() as u64;
    assert!(visits <= 2 * MANY, "{visits}");
}

#[test]
fn a_granted_claim_visits_only_entities_that_wait_for_it() {
    let mut harness = live();
    harness.handle(Event::LeaseRenewed { sent_at: harness.now, lease: 3_000 });
    harness.post(Message { id: id(0, 1), ..harness.template() });
    harness.run();
    harness.settle(CommitOutcome::Unknown("a failed sync".into()));
    query(&mut harness, 7, 2);
    harness.machine.take_visits();
    harness.grant();
    assert!(harness.running.is_some());
    let visits = harness.machine.take_visits();
    assert!((1..=2).contains(&visits), "{visits}");
}

#[test]
fn a_turn_costs_the_same_however_many_messages_wait() {
    let mut harness = Harness::serving();
    let settings = TypeSettings { mailbox_capacity: MANY as usize, ..TypeSettings::default() };
    harness.handle(Event::TypeDeployed { entity_type: "counter".into(), settings });
    harness.post(harness.template());
    let deadline = |number: u64| Some(1_000_000 + number);
    // Half of them wait behind a message that never arrives.
    for number in 2..=MANY / 2 {
        let (id, after, deadline) = (id(0, number), number - 1, deadline(number));
        harness.post(Message { id, after, deadline, ..harness.template() });
    }
    for number in MANY / 2 + 1..=MANY {
        harness.post(Message {
            id: id(number, 1),
            deadline: deadline(number),
            ..harness.template()
        });
    }
    harness.run();
    harness.settle(CommitOutcome::Committed);
    let waiting = harness.machine.stats().1;
    assert_eq!(waiting, MANY as usize - 2, "one has run, and one is running");

    const TURNS: usize = 100;
    let before = harness.machine.touched(&alice());
    for _ in 0..TURNS {
        harness.run();
        harness.settle(CommitOutcome::Committed);
    }
    let touched = harness.machine.touched(&alice()) - before;
    assert_eq!(harness.machine.stats().1, waiting - TURNS);
    assert!((1..=4 * TURNS).contains(&touched), "{touched} messages were touched");

    // The deadline of one message passes.
    let token = harness.post(Message {
        id: id(MANY + 1, 1),
        deadline: Some(harness.now + 10),
        ..harness.template()
    });
    let before = harness.machine.touched(&alice());
    harness.now += 10;
    harness.handle(Event::Tick);
    assert_eq!(harness.code_of(token).as_deref(), Some(&*codes::DEADLINE_EXCEEDED));
    let touched = harness.machine.touched(&alice()) - before;
    assert!(touched <= 4, "{touched} messages were touched");
}
