//! What an event costs does not grow with what it does not concern.

use super::*;

const MANY: u64 = 100_000;

fn entity(number: u64) -> Entity {
    Entity::new("counter", format!("{number:06}"))
}

#[test]
fn a_renewal_and_a_tick_look_only_at_what_they_change() {
    let mut hand = Hand::serving();
    for number in 1..=MANY {
        let target = entity(number);
        let id = MessageId { session: Session::of("client/x", b"s"), sequence: number };
        let digest = Digest::of(&target, "m", b"1");
        hand.post(Message { target, id, digest, kind: Kind::Query, ..hand.template() });
        hand.run();
        hand.now += u64::from(number == MANY / 2);
    }
    hand.replies.clear();
    assert_eq!(hand.machine.load(), (MANY as usize, 0), "all are live and idle");

    hand.machine.looks = 0;
    for _ in 0..10 {
        hand.now += 500;
        hand.tell(Event::Renewed { sent: hand.now });
        hand.tell(Event::Tick);
    }
    assert_eq!(hand.machine.looks, 0, "nothing waits for the lease, and nothing is due");

    // One message with a deadline for an entity that is away.
    let id = MessageId { session: Session::of("client/x", b"s"), sequence: MANY + 1 };
    hand.silent = true;
    let deadline = Some(hand.now + 10);
    hand.post(Message { id, deadline, ..hand.template() });
    hand.machine.looks = 0;
    hand.now += 10;
    assert!(hand.machine.wake().is_some_and(|wake| wake <= hand.now));
    hand.tell(Event::Tick);
    assert!(hand.machine.looks <= 2, "{}", hand.machine.looks);
    assert_eq!(hand.replies.len(), 1);

    // The lease ends; who asks then waits for it, and nobody else is looked at.
    hand.silent = false;
    hand.now += 2_900;
    let target = entity(7);
    let digest = Digest::of(&target, "m", b"1");
    hand.post(Message { id, target, digest, kind: Kind::Query, ..hand.template() });
    assert!(hand.running.is_none());
    hand.machine.looks = 0;
    hand.tell(Event::Renewed { sent: hand.now });
    assert!(hand.running.is_some());
    assert!(hand.machine.looks <= 2, "{}", hand.machine.looks);
    hand.run();

    // Half of them have been idle for long enough.
    hand.machine.looks = 0;
    let first = hand.machine.wake().expect("idle instances");
    hand.now = first;
    hand.tell(Event::Renewed { sent: hand.now });
    hand.tell(Event::Tick);
    let left = hand.machine.load().0 as u64;
    assert_eq!(left, MANY / 2 + 2, "and the one that was used since, and the one that loads");
    assert!(hand.machine.looks as u64 <= 3 * MANY / 2, "{}", hand.machine.looks);
}
