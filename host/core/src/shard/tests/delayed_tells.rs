//! Delayed tells (R19, R25).

use super::tells::ran;
use super::*;
use crate::records::DelayedTell;

fn later(name: &str, due: u64, method: &str) -> TimerChange {
    let tell = DelayedTell {
        target: Entity::new("counter", "bob"),
        method: method.into(),
        body: Bytes::from_static(b"b"),
        content_type: "c".into(),
        traceparent: "p".into(),
        extensions: Default::default(),
    };
    set_delayed_tell(name, due, &tell)
}

fn cancel(name: &str) -> TimerChange {
    TimerChange::Cancel { name: timer_of_delayed_tell(name) }
}

fn stored(harness: &Harness) -> (usize, usize, usize) {
    (harness.timers.len(), harness.outbox.len(), harness.wakes.len())
}

#[test]
fn r19_a_delayed_tell_leaves_when_due_and_never_early() {
    let mut harness = Harness::serving();
    harness.committed(1, vec![later("n", 1_500, "a")]);
    assert_eq!((stored(&harness), harness.machine.next_wake()), ((1, 0, 1), Some(1_500)));
    harness.tick(1_499);
    assert!(harness.commits.is_empty() && harness.tells.is_empty());
    harness.tick(1_500);
    assert!(harness.tells.is_empty(), "its number is not durable");
    harness.settle(CommitOutcome::Committed);
    assert_eq!((stored(&harness), harness.sent()), ((0, 1, 1), vec!["a".to_owned()]));
    let (number, tell) = harness.tells[0].clone();
    assert_eq!(number >> 16, harness.head.as_ref().unwrap().version);
    assert_eq!((tell.utc_ms, &*tell.content_type, &*tell.traceparent), (1_500, "c", "p"));
    harness.answer_tell(ran());
    harness.settle(CommitOutcome::Committed);
    harness.tick(9_000);
    assert_eq!((stored(&harness), harness.firings), ((0, 0, 0), 0), "the guest was not called");
}

#[test]
fn r19_a_delayed_tell_takes_its_number_when_it_is_due() {
    let mut harness = Harness::serving();
    harness.committed(1, vec![later("second", 1_700, "b"), later("first", 1_600, "a")]);
    let mut result = turn(GuestReply::Result(Bytes::new()), true);
    result.tells = vec![NewTell {
        target: Entity::new("counter", "bob"),
        method: "at once".into(),
        body: Bytes::new(),
        content_type: "".into(),
        traceparent: "".into(),
        utc_ms: 1,
    }];
    harness.send(2, 1, MessageKind::Command);
    let (generation, turn, _) = harness.running.take().expect("a running turn");
    harness.handle(Event::TurnDone { entity: alice(), generation, turn, result });
    harness.settle(CommitOutcome::Committed);
    harness.tick(2_000);
    while !harness.commits.is_empty() {
        harness.settle(CommitOutcome::Committed);
    }
    for method in ["at once", "a", "b"] {
        assert_eq!(harness.sent(), [method]);
        harness.answer_tell(ran());
    }
}

#[test]
fn r19_a_delayed_tell_can_be_cancelled_and_replaced_until_due() {
    let mut harness = Harness::serving();
    harness.committed(1, vec![later("x", 1_500, "x"), later("y", 1_500, "y")]);
    harness.committed(2, vec![cancel("x"), later("y", 1_600, "z")]);
    harness.tick(1_599);
    assert!(harness.commits.is_empty());
    harness.tick(1_600);
    harness.settle(CommitOutcome::Committed);
    assert_eq!((harness.sent(), harness.timers.len()), (vec!["z".to_owned()], 0));
    // The cancellation comes too late: the tell has its number.
    harness.committed(3, vec![cancel("y")]);
    assert_eq!(stored(&harness), (0, 1, 1));
}

#[test]
fn r19_a_delayed_tell_leaves_without_an_instance() {
    let mut harness = Harness::serving();
    harness.committed(1, vec![later("n", 1_500, "a")]);
    let mut next = harness.restarted();
    assert_eq!((next.loads, next.machine.next_wake()), (0, Some(1_500)));
    next.tick(1_500);
    next.settle(CommitOutcome::Committed);
    assert_eq!((next.sent(), next.starts, next.rooms), (vec!["a".to_owned()], 0, 0));
    next.answer_tell(ran());
    next.settle(CommitOutcome::Committed);
    assert_eq!((stored(&next), next.machine.stats().0), ((0, 0, 0), 0));
}

#[test]
fn r25_a_delayed_tell_that_does_not_commit_is_due_again() {
    let mut harness = Harness::serving();
    harness.committed(1, vec![later("n", 1_500, "a")]);
    harness.tick(1_500);
    harness.settle(CommitOutcome::Refused(CommitRefusal::LimitReached("full".into())));
    assert_eq!((stored(&harness), harness.tells.len()), ((1, 0, 1), 0));
    let again = harness.machine.next_wake().expect("another attempt");
    assert!(again > 1_500, "a store that refused is not asked again at once");
    harness.tick(again);
    harness.settle(CommitOutcome::Committed);
    assert_eq!((stored(&harness), harness.sent()), ((0, 1, 1), vec!["a".to_owned()]));
}

#[test]
fn a_damaged_delayed_tell_is_set_aside_with_its_reason() {
    let settings = Settings { timer_attempts: 1, ..Settings::default() };
    let mut harness = Harness::with(settings);
    let (name, payload) = (timer_of_delayed_tell("n"), Bytes::from_static(b"?"));
    harness.committed(1, vec![TimerChange::Set { name, due: 1_500, interval: 0, payload }]);
    harness.tick(1_500);
    harness.settle(CommitOutcome::Committed);
    assert_eq!((harness.gave_up, harness.outbox.len()), (1, 0));
    assert!(harness.timers[0].set_aside && !harness.timers[0].failure.is_empty());
}

#[test]
fn due_delayed_tells_respect_the_gate_limit() {
    let settings = Settings { max_gated_turns: 3, ..Settings::default() };
    let mut harness = Harness::with(settings);
    let tells = (0..10).map(|n| later(&format!("n{n}"), 1_500, "a")).collect();
    harness.committed(1, tells);
    let mut next = harness.restarted();
    next.tick(1_500);
    let mut most = 0;
    while !next.commits.is_empty() {
        most = most.max(next.commits.len());
        next.settle(CommitOutcome::Committed);
    }
    assert_eq!((most, next.outbox.len(), next.starts), (3, 10, 0));
}

#[test]
fn due_delayed_tells_do_not_wait_for_timers_that_need_a_guest() {
    let mut harness = Harness::serving();
    let timer =
        TimerChange::Set { name: "t".into(), due: 1_200, interval: 0, payload: Bytes::new() };
    harness.committed(1, vec![timer, later("n", 1_500, "a")]);
    let mut next = harness.restarted();
    next.silent = true;
    next.tick(1_500);
    let load = next.next_action();
    next.answer_load(&load);
    next.settle(CommitOutcome::Committed);
    assert_eq!((next.sent(), next.firings), (vec!["a".to_owned()], 0));
}
