//! Heads of deleted entities are removed when no lane needs them, and not before (E17, R17, R19).

use super::tells::tell;
use super::*;

const TTL: u64 = 10_000;

impl Harness {
    /// An entity that was created by a message of this creation time and deleted; the purge is durable.
    fn deleted(created_ms: u64) -> Self {
        let settings = Settings { lane_ttl: TTL, ..Settings::default() };
        let mut harness = Self::with(settings);
        harness.now = created_ms;
        harness.handle(Event::LeaseRenewed { sent_at: created_ms, lease: 3_000 });
        harness.turn_of(1);
        harness.delete_by_turn(2);
        harness.settle_all();
        harness.handle(Event::Evict { entity: alice() });
        assert!(harness.stored().deleted && harness.removals == 0);
        harness
    }

    fn turn_of(&mut self, sequence: u64) -> u64 {
        let token = self.send(sequence, 0, MessageKind::Command);
        self.run();
        self.settle(CommitOutcome::Committed);
        token
    }

    fn sweep_at(&self) -> u64 {
        self.stored().expires_at.expect("a time")
    }
}

#[test]
fn e17_a_deleted_head_goes_when_its_lanes_are_old() {
    for restarts in [false, true] {
        let mut harness = Harness::deleted(2_000);
        assert_eq!(harness.wakes, [(2_000 + TTL, alice())], "a new owner finds it");
        if restarts {
            harness = harness.restarted();
        }
        harness.pass_until(2_000 + TTL - 1);
        assert_eq!(harness.removals, 0, "its lane may still be needed");
        harness.pass_until(2_000 + TTL + 10);
        assert_eq!((harness.removals, harness.starts), (1, if restarts { 0 } else { 1 }));
        assert_eq!((harness.wakes.len(), harness.machine.stats()), (0, (0, 0)));
        let floor = &harness.floor;
        assert!(floor.version >= 4 && floor.watermark == 2_000, "{floor:?}");
        harness.pass_until(harness.now + 10 * TTL);
        assert_eq!(harness.removals, 1);
    }
}

#[test]
fn r17_copies_from_before_a_removal_do_not_run() {
    let mut harness = Harness::deleted(2_000);
    harness.pass_until(2_000 + TTL + 10);
    assert_eq!(harness.removals, 1);
    let runs = harness.runs;
    let copy = harness.post(Message { created_ms: 2_000, ..harness.template() });
    assert_eq!(harness.code_of(copy).as_deref(), Some("too-old"));
    assert_eq!(harness.runs, runs);
    let floor = harness.floor.clone();
    let fresh = harness.turn_of(9);
    let version = floor.version + 1;
    assert_eq!(harness.code_of(fresh), Some(format!("final {version}")), "versions never fall");
    assert_eq!(harness.reasons.last(), Some(&StartReason::FirstMessage));
    let head = harness.stored();
    assert_eq!((head.deleted, head.is_removed(), head.generation()), (false, Ok(false), Ok(1)));
    assert_eq!((head.watermark, head.expires_at), (2_000, None));
    // The next deletion raises the generation above all cursors of the former entity.
    harness.delete_by_turn(10);
    harness.settle_all();
    assert_eq!(harness.stored().generation(), Ok(2));
}

#[test]
fn r19_a_head_stays_while_a_sender_may_send_again() {
    let mut harness = Harness::with(Settings { lane_ttl: TTL, ..Settings::default() });
    let bob = || Entity::new("counter", "bob");
    let id = MessageId { session: ScopedSessionId::of_entity(&bob()), sequence: 5 };
    harness.post(Message { sender: Some(bob()), id, ..harness.template() });
    harness.run();
    harness.settle(CommitOutcome::Committed);
    harness.delete_by_turn(1);
    harness.settle_all();
    harness.handle(Event::Evict { entity: alice() });
    harness.pass_until(harness.sweep_at() + 10);
    assert_eq!((harness.removals, harness.asked.len()), (0, 1), "it asks the sender");
    let answer = |harness: &mut Harness, first| {
        harness.handle(Event::SenderAnswered { entity: alice(), sender: bob(), first });
        harness.settle_all();
    };
    answer(&mut harness, Some(Some(5)));
    assert_eq!((harness.removals, harness.machine.stats()), (0, (0, 0)), "it is asked again later");
    assert!(harness.sweep_at() >= harness.now + TTL, "not before the lane is old again");
    harness.pass_until(harness.sweep_at() + 10);
    assert_eq!((harness.removals, harness.asked.len()), (0, 2));
    answer(&mut harness, Some(None));
    assert_eq!((harness.removals, harness.floor.tell_watermark), (1, 1_000));
}

#[test]
fn e17_a_message_comes_before_the_sweep() {
    let mut harness = Harness::deleted(2_000);
    let mut next = Harness::with_store(Settings::clone(harness.machine.settings()), |next| {
        (next.head, next.wakes) = (harness.head.take(), std::mem::take(&mut harness.wakes));
        (next.now, next.silent) = (2_000 + TTL + 10, true);
    });
    next.handle(Event::LeaseRenewed { sent_at: next.now, lease: 3_000 });
    let page = Ok((next.wakes.clone(), false));
    let Action::ScanWakes { number, .. } = next.next_action() else { panic!("no scan") };
    next.handle(Event::WakesScanned { number, page });
    next.send(9, 0, MessageKind::Command);
    next.silent = false;
    let load = next.next_action();
    next.answer_load(&load);
    next.run();
    next.settle(CommitOutcome::Committed);
    assert_eq!((next.removals, next.stored().deleted), (0, false), "it starts anew");
    assert_eq!((next.stored().expires_at, next.wakes.len()), (None, 0));
}

#[test]
fn e17_a_head_goes_after_a_message_that_needs_no_turn() {
    let mut harness = Harness::deleted(2_000);
    harness.handle(Event::LeaseRenewed { sent_at: harness.now, lease: TTL * 3 });
    harness.now = harness.sweep_at() + 10;
    // A target of the deleted entity's tells asks whether there are more. The shard's wake-ups are read later.
    let bob = Entity::new("counter", "bob");
    let id = MessageId { session: ScopedSessionId::of_entity(&bob), sequence: 1 };
    let (kind, method) = (MessageKind::Query, FIRST_TELL.into());
    harness.post(Message { sender: Some(bob), id, kind, method, ..harness.template() });
    harness.settle_all();
    assert_eq!((harness.removals, harness.machine.stats()), (1, (0, 0)));
}

#[test]
fn e17_a_refused_removal_is_tried_again() {
    let mut harness = Harness::deleted(2_000);
    let at = harness.sweep_at() + 10;
    harness.now = at;
    harness.handle(Event::LeaseRenewed { sent_at: at, lease: 3_000 });
    harness.handle(Event::Tick);
    let waits = harness.send(9, 0, MessageKind::Command);
    let starts = harness.starts;
    let refusal = CommitRefusal::LimitReached("full".into());
    harness.settle(CommitOutcome::Refused(refusal));
    assert_eq!((harness.removals, harness.starts), (0, starts + 1), "the message runs");
    assert_eq!(harness.code_of(waits), None);
    harness.run();
    harness.settle(CommitOutcome::Committed);
    assert!(!harness.stored().deleted);
    let mut harness = Harness::deleted(2_000);
    harness.now = at;
    harness.handle(Event::LeaseRenewed { sent_at: at, lease: 3_000 });
    harness.handle(Event::Tick);
    harness.settle(CommitOutcome::Refused(CommitRefusal::LimitReached("full".into())));
    assert_eq!((harness.removals, harness.commits.len()), (0, 0), "not at once");
    harness.pass_until(harness.now + 60_000);
    assert_eq!(harness.removals, 1);
}

#[test]
fn e17_an_entity_without_a_head_follows_the_floor() {
    let mut harness = Harness::deleted(2_000);
    let bob = Entity::new("counter", "bob");
    let to_bob = |harness: &mut Harness, sequence: u64, kind| {
        let id = MessageId { session: ScopedSessionId([7; 16]), sequence };
        harness.post(Message { target: bob.clone(), id, kind, ..harness.template() })
    };
    // Bob has no head when he is loaded for a query. Then alice's is removed, and the floor rises.
    let head = harness.head.take();
    to_bob(&mut harness, 1, MessageKind::Query);
    harness.run();
    harness.head = head;
    harness.pass_until(harness.sweep_at() + 10);
    assert_eq!(harness.removals, 1);
    let floor = harness.floor.version;
    to_bob(&mut harness, 2, MessageKind::Command);
    harness.run();
    let commit = harness.commits.last().expect("a commit");
    assert_eq!((commit.expected_version, commit.head.version), (floor, floor + 1));
    assert_eq!((commit.head.deleted, commit.head.is_removed()), (false, Ok(false)));
}

#[test]
fn e17_a_head_with_subscribers_stays() {
    let mut harness = Harness::deleted(2_000);
    let mut head = harness.head.take().expect("a head");
    head.set_subscriptions(SubscriptionCounts { pages: 1, subscriptions: 1 }).expect("fits");
    harness.head = Some(head.clone());
    harness.pass_until(2_000 + TTL + 10);
    assert_eq!(harness.removals, 0);
    assert!(harness.sweep_at() > harness.now, "it is examined again");
    head = harness.stored().clone();
    head.set_subscriptions(SubscriptionCounts::default()).expect("fits");
    harness.head = Some(head);
    harness.pass_until(harness.sweep_at() + 10);
    assert_eq!(harness.removals, 1);
}

#[test]
fn e17_a_head_stays_while_a_tell_is_not_deleted() {
    let mut harness = Harness::with(Settings { lane_ttl: TTL, ..Settings::default() });
    harness.turn_of(1);
    harness.told(2, vec![tell("bob", "a")]);
    harness.delete_by_turn(3);
    harness.settle_all();
    harness.handle(Event::Evict { entity: alice() });
    let sweep = harness.sweep_at();
    let version = harness.stored().version;
    // Bob does not answer, so the tell is sent again and again.
    harness.pass_until(sweep + TTL / 2);
    assert_eq!(harness.removals, 0);
    let commits = harness.stored().version - version;
    assert!(commits <= 2, "{commits} commits for one examination");
    assert!(harness.sweep_at() > sweep + TTL / 2, "the next one is not soon");
    harness.answer_tell(Outcome::Final { reply: GuestReply::Result(Bytes::new()), version: 1 });
    harness.settle_all();
    assert!(harness.outbox.is_empty());
    harness.pass_until(sweep + 2 * TTL + 10);
    assert_eq!((harness.removals, harness.machine.stats()), (1, (0, 0)));
}
