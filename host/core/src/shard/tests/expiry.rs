//! Entities that expire: when they are deleted, and that it is never early (E17, R14).

use super::*;

const TTL: u64 = 1_600;

impl Harness {
    /// A shard whose type has this time to live, and an entity with one turn.
    fn living(time_to_live: u64) -> Self {
        let mut harness = Self::serving();
        harness.deploy_with(2, time_to_live);
        harness.keys = vec![Bytes::from_static(b"k")];
        harness.turn_at(1, output());
        harness
    }

    fn deploy_with(&mut self, revision: u64, time_to_live: u64) {
        let settings = TypeSettings { revision, time_to_live, ..TypeSettings::default() };
        self.handle(Event::TypeDeployed { entity_type: "counter".into(), settings });
    }

    /// Runs a command whose turn has this output.
    fn turn_at(&mut self, sequence: u64, output: TurnOutput) {
        self.send(sequence, sequence - 1, MessageKind::Command);
        let (generation, turn, message) = self.running.take().expect("a running turn");
        let entity = message.target.clone();
        self.handle(Event::TurnDone { entity, generation, turn, result: output });
        self.settle(CommitOutcome::Committed);
    }

    fn expires_at(&self) -> u64 {
        self.head.as_ref().and_then(|head| head.expires_at).expect("an expiry")
    }

    /// Lets time pass, with the lease renewed, and commits what follows.
    pub(super) fn pass_until(&mut self, now: u64) {
        while self.now < now {
            self.now = self.machine.next_wake().filter(|at| *at > self.now).unwrap_or(now).min(now);
            self.handle(Event::LeaseRenewed { sent_at: self.now, lease: 3_000 });
            self.handle(Event::Tick);
            while !self.commits.is_empty() {
                self.settle(CommitOutcome::Committed);
            }
        }
    }

    fn is_deleted(&self) -> bool {
        self.head.as_ref().is_some_and(|head| head.deleted)
    }
}

fn output() -> TurnOutput {
    turn(GuestReply::Result(Bytes::new()), true)
}

#[test]
fn e17_an_entity_without_turns_is_deleted_and_never_early() {
    for sleeps in [false, true] {
        let mut harness = Harness::living(TTL);
        let at = harness.expires_at();
        assert_eq!(harness.wakes, [(at, alice())], "a new owner finds it");
        if sleeps {
            harness = harness.restarted();
            harness.deploy_with(2, TTL);
            assert_eq!(harness.machine.stats(), (0, 0));
        }
        harness.pass_until(at - 1);
        assert!(!harness.is_deleted());
        harness.pass_until(at);
        let runs = harness.runs;
        assert!(harness.is_deleted() && harness.keys.is_empty());
        assert_eq!(harness.wakes, [(at + Settings::default().lane_ttl, alice())], "the sweep");
        assert_eq!((harness.hooks, runs), (0, if sleeps { 0 } else { 1 }), "without the guest");
        harness.pass_until(at + 60_000);
        assert_eq!(harness.machine.stats(), (0, 0));
    }
}

#[test]
fn e17_a_turn_postpones_the_end_and_a_query_does_not() {
    let mut harness = Harness::living(TTL);
    let first = harness.expires_at();
    harness.pass_until(first - 10);
    harness.turn_at(2, output());
    let second = harness.expires_at();
    assert!(second >= harness.now + TTL && harness.wakes == [(second, alice())]);
    harness.pass_until(first + 10);
    assert!(!harness.is_deleted());
    harness.send(3, 2, MessageKind::Query);
    harness.run();
    harness.pass_until(second);
    assert!(harness.is_deleted());
}

#[test]
fn e17_a_message_after_the_end_starts_the_entity_anew() {
    let mut harness = Harness::living(TTL);
    harness.now = harness.expires_at();
    harness.handle(Event::LeaseRenewed { sent_at: harness.now, lease: 3_000 });
    harness.send(2, 1, MessageKind::Command);
    assert_eq!(harness.runs, 1, "the deletion comes first");
    harness.settle(CommitOutcome::Committed);
    harness.settle(CommitOutcome::Committed);
    assert_eq!((harness.runs, harness.reasons.last()), (2, Some(&StartReason::FirstMessage)));
}

#[test]
fn e17_a_guest_sets_its_own_end() {
    let mut harness = Harness::living(0);
    assert_eq!(harness.head.as_ref().unwrap().expires_at, None);
    let at = harness.now + 500;
    harness.turn_at(2, TurnOutput { expiry: Some(Some(at)), ..output() });
    harness.turn_at(3, output());
    assert_eq!(harness.expires_at(), at, "it holds for later turns");
    harness.turn_at(4, TurnOutput { expiry: Some(None), ..output() });
    assert_eq!((harness.head.as_ref().unwrap().expires_at, harness.wakes.len()), (None, 0));
    harness.turn_at(5, TurnOutput { expiry: Some(Some(at)), ..output() });
    harness.pass_until(at);
    assert!(harness.is_deleted());
}

#[test]
fn e17_no_entity_ends_by_a_time_to_live_that_was_removed() {
    let harness = Harness::living(TTL);
    let at = harness.expires_at();
    let mut next = harness.restarted();
    next.deploy_with(3, 0);
    next.pass_until(at + 10_000);
    assert!(!next.is_deleted());
    assert_eq!(next.machine.stats(), (0, 0));
}

#[test]
fn e17_a_refused_end_is_tried_again() {
    let mut harness = Harness::living(TTL);
    harness.now = harness.expires_at();
    harness.handle(Event::LeaseRenewed { sent_at: harness.now, lease: 3_000 });
    harness.handle(Event::Tick);
    harness.settle(CommitOutcome::Refused(CommitRefusal::LimitReached("full".into())));
    assert_eq!((harness.is_deleted(), harness.commits.len()), (false, 0), "not at once");
    harness.pass_until(harness.now + 5_000);
    assert!(harness.is_deleted() && harness.keys.is_empty());
}

#[test]
fn e17_a_refused_turn_does_not_hide_the_end() {
    let mut harness = Harness::living(0);
    let at = harness.now + 500;
    harness.turn_at(2, TurnOutput { expiry: Some(Some(at)), ..output() });
    let mut next = harness.restarted();
    next.deploy_with(2, 0);
    next.send(3, 2, MessageKind::Command);
    let (generation, turn, message) = next.running.take().expect("a running turn");
    let result = TurnOutput { expiry: Some(None), ..output() };
    next.handle(Event::TurnDone { entity: message.target.clone(), generation, turn, result });
    next.settle(CommitOutcome::Refused(CommitRefusal::LimitReached("full".into())));
    next.pass_until(at);
    assert!(next.is_deleted());
}
