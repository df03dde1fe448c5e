//! The cost of an event does not grow with unrelated state. Examinations are counted, not time.

use super::*;

const MANY: u64 = 100_000;

fn entity(number: u64) -> Entity {
    Entity::new("counter", format!("{number:06}"))
}

fn id(session: u64, sequence: u64) -> MessageId {
    MessageId { session: ScopedSessionId::derive("client/x", &session.to_be_bytes()), sequence }
}

fn query(hand: &mut Harness, number: u64, sequence: u64) {
    let target = entity(number);
    let digest = MessageDigest::compute(&target, "m", b"1");
    let id = id(number, sequence);
    hand.post(Message { target, id, digest, kind: MessageKind::Query, ..hand.template() });
}

/// This many live, idle entities, half of them used a millisecond after the others.
fn live() -> Harness {
    let mut hand = Harness::serving();
    for number in 1..=MANY {
        query(&mut hand, number, 1);
        hand.run();
        hand.now += u64::from(number == MANY / 2);
    }
    hand.replies.clear();
    assert_eq!(hand.machine.stats(), (MANY as usize, 0), "all are live and idle");
    // Each is examined once more, at its slot's deadline.
    hand.now += Settings::default().instance_slot_timeout;
    hand.handle(Event::Tick);
    hand.machine.take_visits();
    hand
}

#[test]
fn time_and_lease_events_visit_only_waiting_entities() {
    let mut hand = live();
    for _ in 0..10 {
        hand.now += 500;
        hand.handle(Event::LeaseRenewed { sent_at: hand.now, lease: 3_000 });
        hand.handle(Event::Tick);
    }
    assert_eq!(hand.machine.take_visits(), 0, "nothing waits for the lease, and nothing is due");

    // One message with a deadline, for an entity that is being loaded.
    hand.silent = true;
    let deadline = Some(hand.now + 10);
    hand.post(Message { id: id(0, 1), deadline, ..hand.template() });
    hand.machine.take_visits();
    hand.now += 10;
    assert!(hand.machine.next_wake().is_some_and(|wake| wake <= hand.now));
    hand.handle(Event::Tick);
    let visits = hand.machine.take_visits();
    assert!((1..=2).contains(&visits), "{visits}");
    assert_eq!(hand.replies.len(), 1);
    hand.silent = false;

    // The lease ends: later messages wait for it, and no other entity is examined.
    hand.now += 2_900;
    query(&mut hand, 7, 2);
    assert!(hand.running.is_none());
    hand.machine.take_visits();
    hand.handle(Event::LeaseRenewed { sent_at: hand.now, lease: 3_000 });
    assert!(hand.running.is_some());
    let visits = hand.machine.take_visits();
    assert!((1..=2).contains(&visits), "{visits}");
    hand.run();

    // Half of them have been idle for long enough.
    hand.machine.take_visits();
    hand.now = hand.machine.next_wake().expect("idle instances");
    hand.handle(Event::Tick);
    let left = hand.machine.stats().0 as u64;
    assert_eq!(left, MANY / 2 + 2, "those used later, the seventh, and the one that is loaded");
    let visits = hand.machine.take_visits() as u64;
    assert!(visits <= 2 * MANY, "{visits}");
}

#[test]
fn a_granted_claim_visits_only_entities_that_wait_for_it() {
    let mut hand = live();
    hand.handle(Event::LeaseRenewed { sent_at: hand.now, lease: 3_000 });
    hand.post(Message { id: id(0, 1), ..hand.template() });
    hand.run();
    hand.settle(CommitOutcome::Unknown("a failed sync".into()));
    query(&mut hand, 7, 2);
    hand.machine.take_visits();
    hand.grant();
    assert!(hand.running.is_some());
    let visits = hand.machine.take_visits();
    assert!((1..=2).contains(&visits), "{visits}");
}

#[test]
fn a_turn_costs_the_same_however_many_messages_wait() {
    let mut hand = Harness::serving();
    let settings = TypeSettings { mailbox_capacity: MANY as usize, ..TypeSettings::default() };
    hand.handle(Event::TypeDeployed { entity_type: "counter".into(), settings });
    hand.post(hand.template());
    let deadline = |number: u64| Some(1_000_000 + number);
    // Half of them wait behind one that never arrives.
    for number in 2..=MANY / 2 {
        let (id, after, deadline) = (id(0, number), number - 1, deadline(number));
        hand.post(Message { id, after, deadline, ..hand.template() });
    }
    for number in MANY / 2 + 1..=MANY {
        hand.post(Message { id: id(number, 1), deadline: deadline(number), ..hand.template() });
    }
    hand.run();
    hand.settle(CommitOutcome::Committed);
    let waiting = hand.machine.stats().1;
    assert_eq!(waiting, MANY as usize - 2, "two have run, or run");

    const TURNS: usize = 100;
    let before = hand.machine.touched(&alice());
    for _ in 0..TURNS {
        hand.run();
        hand.settle(CommitOutcome::Committed);
    }
    let touched = hand.machine.touched(&alice()) - before;
    assert_eq!(hand.machine.stats().1, waiting - TURNS);
    assert!((1..=4 * TURNS).contains(&touched), "{touched} messages were touched");

    // The deadline of one of them passes.
    let token = hand.post(Message {
        id: id(MANY + 1, 1),
        deadline: Some(hand.now + 10),
        ..hand.template()
    });
    let before = hand.machine.touched(&alice());
    hand.now += 10;
    hand.handle(Event::Tick);
    assert_eq!(hand.code_of(token).as_deref(), Some(&*codes::DEADLINE_EXCEEDED));
    let touched = hand.machine.touched(&alice()) - before;
    assert!(touched <= 4, "{touched} messages were touched");
}
