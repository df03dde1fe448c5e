//! Each kind of wait ends by its own cause. The clock moves only to where the machine asks to be woken, as in a
//! worker: without a timer nothing happens.

use ostraca_codes::Code;

use super::*;

impl Harness {
    /// Advances the time.
    fn pass(&mut self, span: u64) {
        let until = self.now + span;
        while let Some(wake) = self.machine.next_wake().filter(|wake| *wake <= until) {
            self.now = self.now.max(wake);
            self.handle(Event::Tick);
        }
        self.now = until;
    }

    fn renew(&mut self) {
        self.handle(Event::LeaseRenewed { sent_at: self.now, lease: 3_000 });
    }

    fn deploy(&mut self, settings: TypeSettings) {
        self.handle(Event::TypeDeployed { entity_type: "counter".into(), settings });
    }

    /// A command of a new session, with a deadline this many milliseconds from now.
    fn send_by(&mut self, session: &[u8], span: u64) -> u64 {
        let id = MessageId { session: ScopedSessionId::derive("client/x", session), sequence: 1 };
        self.post(Message { id, deadline: Some(self.now + span), ..self.template() })
    }

    /// Expects no output until the deadline.
    fn ends_at(&mut self, token: u64, span: u64, code: Code) {
        self.pass(span - 1);
        assert_eq!(self.code_of(token), None, "too early");
        self.pass(1);
        assert_eq!(self.code_of(token).as_deref(), Some(&*code));
    }

    fn fail(&mut self) {
        let (generation, id, message) = self.running.take().expect("a running turn");
        let failed =
            TurnResult::Failed { code: "trap".into(), message: String::new(), retry_after: None };
        let result =
            TurnOutput { result: failed, writes: Vec::new(), state_bytes: None, passivate: false };
        self.handle(Event::TurnDone {
            entity: message.target.clone(),
            generation,
            turn: id,
            result,
        });
    }

    fn slot(&mut self) {
        let Action::RequestSlot { entity, generation } = self.ask() else {
            panic!("no room asked for")
        };
        self.handle(Event::SlotGranted { entity, generation });
    }
}

fn bob() -> Entity {
    Entity::new("counter", "bob")
}

/// A command for bob, by a session of his.
fn for_bob(hand: &mut Harness, sequence: u64) -> u64 {
    let id = MessageId { session: ScopedSessionId::derive("client/x", b"bob"), sequence };
    let digest = MessageDigest::compute(&bob(), "m", b"1");
    hand.post(Message { id, target: bob(), digest, ..hand.template() })
}

/// Bob's instance is idle; the outcome of alice's command is unknown, and the shard claims again.
fn claims_anew() -> Harness {
    let mut hand = Harness::serving();
    for_bob(&mut hand, 1);
    hand.run();
    hand.settle(CommitOutcome::Committed);
    hand.head = None;
    hand.lanes.clear();
    hand.send(1, 0, MessageKind::Command);
    hand.run();
    hand.settle(CommitOutcome::Unknown("a failed sync".into()));
    assert_eq!((hand.machine.phase(), hand.claims.len()), (Phase::Claiming, 2));
    hand
}

#[test]
fn an_idle_entity_waits_for_the_new_claim() {
    let mut hand = claims_anew();
    for_bob(&mut hand, 2);
    assert!(hand.running.is_none());
    hand.grant();
    assert!(hand.running.is_some());
}

#[test]
fn an_entity_loaded_meanwhile_waits_for_the_new_claim() {
    let mut hand = Harness::serving();
    hand.send(1, 0, MessageKind::Command);
    hand.run();
    hand.silent = true;
    for_bob(&mut hand, 1);
    hand.settle(CommitOutcome::Unknown("a failed sync".into()));
    let load = hand.ask();
    hand.answer_load(&load);
    assert!(hand.asked.is_empty(), "no room is asked for under a claim that may not stand");
    hand.grant();
    hand.slot();
    assert_eq!(hand.starts, 2);
}

#[test]
fn a_failed_claim_is_retried_with_backoff() {
    let mut hand = Harness::new(Settings::default());
    for (asked, wait) in [(1, 250), (2, 500)] {
        hand.handle(Event::ClaimResult { number: 1, outcome: ClaimOutcome::Failed("no".into()) });
        assert_eq!(hand.machine.next_wake(), Some(hand.now + wait));
        hand.pass(wait - 1);
        hand.handle(Event::Tick);
        assert_eq!(hand.claims.len(), asked);
        hand.pass(1);
        assert_eq!(hand.claims.len(), asked + 1);
    }
    hand.grant();
    hand.send(1, 0, MessageKind::Command);
    assert!(hand.running.is_some());
}

#[test]
fn each_entity_that_waits_for_the_lease_resumes() {
    let mut hand = Harness::serving();
    for_bob(&mut hand, 1);
    hand.run();
    hand.send(1, 0, MessageKind::Command);
    hand.run();
    hand.pass(2_400);
    for_bob(&mut hand, 2);
    hand.send(2, 1, MessageKind::Query);
    let runs = hand.runs;
    hand.renew();
    assert_eq!(hand.runs, runs + 2);
}

#[test]
fn a_full_gate_waits_for_a_commit() {
    let mut hand = Harness::with(Settings { max_gated_turns: 1, ..Settings::default() });
    hand.send(1, 0, MessageKind::Command);
    hand.run();
    hand.send(2, 1, MessageKind::Command);
    assert!(hand.running.is_none());
    hand.settle(CommitOutcome::Committed);
    assert!(hand.running.is_some());
}

#[test]
fn a_closed_entity_waits_for_its_commits_and_loads_again() {
    let mut hand = Harness::serving();
    hand.send(1, 0, MessageKind::Command);
    hand.run();
    hand.send(2, 1, MessageKind::Command);
    hand.fail();
    hand.send(3, 0, MessageKind::Command);
    assert_eq!(hand.loads, 1, "a commit is under way");
    hand.settle(CommitOutcome::Committed);
    assert_eq!(hand.loads, 2);
    assert!(hand.running.is_some());
}

#[test]
fn a_deadline_ends_the_wait_in_every_state() {
    // While its entity is loaded, waits for a slot, starts, and runs another.
    for steps in 0..=3 {
        let mut hand = Harness::serving();
        hand.silent = steps < 3;
        hand.send_from(b"other", 1, 0, MessageKind::Command, "1");
        if (1..3).contains(&steps) {
            let load = hand.ask();
            hand.answer_load(&load);
        }
        if steps == 2 {
            hand.slot();
        }
        let token = hand.send_by(b"late", 300);
        hand.ends_at(token, 300, codes::DEADLINE_EXCEEDED);
    }
    // While its shard claims, and claims again.
    let mut hand = Harness::new(Settings::default());
    let token = hand.send_by(b"late", 300);
    hand.ends_at(token, 300, codes::DEADLINE_EXCEEDED);
    let mut hand = claims_anew();
    let token = hand.send_by(b"late", 300);
    hand.ends_at(token, 300, codes::DEADLINE_EXCEEDED);
    // Behind one that has not arrived, and behind commits of an instance that was dropped.
    let mut hand = Harness::serving();
    let deadline = Some(hand.now + 300);
    let token = hand.post(Message { after: 7, deadline, id: id_after(8), ..hand.template() });
    hand.ends_at(token, 300, codes::DEADLINE_EXCEEDED);
    let mut hand = Harness::serving();
    hand.send(1, 0, MessageKind::Command);
    hand.run();
    hand.send(2, 1, MessageKind::Command);
    hand.fail();
    let token = hand.send_by(b"late", 300);
    hand.ends_at(token, 300, codes::DEADLINE_EXCEEDED);
}

fn id_after(sequence: u64) -> MessageId {
    MessageId { session: ScopedSessionId::derive("client/x", b"after"), sequence }
}

#[test]
fn a_message_returned_to_the_mailbox_keeps_its_deadline() {
    let mut hand = Harness::serving();
    hand.send_from(b"other", 1, 0, MessageKind::Command, "1");
    hand.run();
    hand.send_from(b"other", 2, 1, MessageKind::Command, "1");
    hand.run();
    let token = hand.send_by(b"late", 300);
    // A timer that fires while it runs does not affect it.
    let parked = hand.send_by(b"soon", 100);
    hand.ends_at(parked, 100, codes::DEADLINE_EXCEEDED);
    assert!(hand.running.is_some());
    hand.settle(CommitOutcome::Refused(CommitRefusal::VersionMismatch { stored: 7 }));
    assert_eq!(hand.machine.queued_messages(&alice()), Some(1), "behind the other commit");
    hand.ends_at(token, 200, codes::DEADLINE_EXCEEDED);
}

#[test]
fn a_message_whose_sender_left_keeps_the_copys_deadline() {
    let mut hand = Harness::with(Settings { max_gated_turns: 1, ..Settings::default() });
    let id = id_after(1);
    let deadline = Some(hand.now + 300);
    let query = Message { id, deadline, kind: MessageKind::Query, ..hand.template() };
    hand.post(query.clone());
    let copy = hand.post(query);
    let (generation, turn, _) = hand.running.take().expect("a running turn");
    let soon = hand.send_by(b"soon", 100);
    hand.ends_at(soon, 100, codes::DEADLINE_EXCEEDED);
    // The lease is no longer valid, so the copy waits.
    hand.handle(Event::LeaseRenewed { sent_at: hand.now, lease: 0 });
    hand.handle(Event::QueryAbandoned { entity: alice(), generation, turn });
    hand.ends_at(copy, 200, codes::DEADLINE_EXCEEDED);
}

#[test]
fn a_copy_with_a_later_deadline_extends_the_wait() {
    let mut hand = Harness::serving();
    hand.send_from(b"other", 1, 0, MessageKind::Command, "1");
    let first = hand.send_by(b"late", 100);
    let copy = hand.send_by(b"late", 300);
    hand.ends_at(copy, 300, codes::DEADLINE_EXCEEDED);
    assert_eq!(hand.code_of(first).as_deref(), Some(&*codes::DEADLINE_EXCEEDED));
}

#[test]
fn the_wait_for_an_instance_slot_is_bounded() {
    let mut hand = Harness::serving();
    hand.silent = true;
    let token = hand.send(1, 0, MessageKind::Command);
    let load = hand.ask();
    hand.answer_load(&load);
    hand.ends_at(token, Settings::default().instance_slot_timeout, codes::OVERLOADED);
    assert_eq!((hand.rooms, hand.machine.stats()), (0, (0, 0)));
}

#[test]
fn the_wait_of_a_message_parked_again_is_bounded() {
    let mut hand = Harness::serving();
    hand.send_from(b"other", 1, 0, MessageKind::Command, "1");
    let parked = hand.send(2, 1, MessageKind::Command);
    hand.run();
    hand.settle(CommitOutcome::Committed);
    hand.send_from(b"other", 2, 1, MessageKind::Command, "1");
    hand.pass(500);
    hand.fail();
    assert_eq!((hand.loads, hand.code_of(parked)), (2, None));
    hand.ends_at(parked, Settings::default().order_timeout, codes::OUT_OF_ORDER);
    assert_eq!(hand.machine.stats(), (0, 0), "nothing of it stays");
}

#[test]
fn order_and_idle_timeouts_restart_after_a_resume() {
    let mut hand = Harness::serving();
    hand.send_from(b"other", 1, 0, MessageKind::Command, "1");
    hand.run();
    hand.settle(CommitOutcome::Committed);
    let parked = hand.send(2, 1, MessageKind::Command);
    hand.handle(Event::Suspend);
    hand.pass(300_000);
    hand.renew();
    hand.handle(Event::Resume);
    hand.ends_at(parked, Settings::default().order_timeout, codes::OUT_OF_ORDER);
    hand.pass(TypeSettings::default().idle_timeout);
    assert_eq!((hand.dropped, hand.machine.stats()), (1, (0, 0)));
}

#[test]
fn idle_time_counts_from_the_last_reply_of_any_kind() {
    let idle = 1_000;
    for last in 0..=4 {
        let mut hand = Harness::serving();
        hand.deploy(TypeSettings { idle_timeout: idle, ..TypeSettings::default() });
        hand.send_from(b"other", 1, 0, MessageKind::Command, "1");
        hand.run();
        match last {
            // A commit that took long.
            0 => hand.pass(5_000),
            // A query behind it.
            1 => {
                hand.send(1, 0, MessageKind::Query);
                hand.run();
                hand.pass(5_000);
            }
            // A message that was not run in time.
            2 => {
                hand.send(2, 1, MessageKind::Command);
                hand.pass(5_000);
            }
            // A query whose lease ended while it ran.
            3 => {
                hand.send(1, 0, MessageKind::Query);
                hand.settle(CommitOutcome::Committed);
                hand.pass(2_500);
                hand.run();
            }
            // A query whose sender disconnected.
            _ => {
                hand.settle(CommitOutcome::Committed);
                hand.send(1, 0, MessageKind::Query);
                let (generation, turn, _) = hand.running.take().expect("a running turn");
                hand.handle(Event::QueryAbandoned { entity: alice(), generation, turn });
            }
        }
        if !hand.commits.is_empty() {
            hand.settle(CommitOutcome::Committed);
        }
        hand.pass(idle);
        assert_eq!((hand.dropped, hand.rooms, hand.machine.stats()), (1, 0, (0, 0)), "case {last}");
    }
}

#[test]
fn a_hanging_stop_hook_delays_messages_to_its_deadline() {
    let mut hand = Harness::serving();
    let settings =
        TypeSettings { idle_timeout: 1_000, has_stop_hook: true, ..TypeSettings::default() };
    hand.deploy(settings);
    hand.send(1, 0, MessageKind::Query);
    hand.run();
    hand.pass(1_000);
    assert_eq!(hand.hooks, 1);
    hand.send(2, 0, MessageKind::Command);
    hand.pass(Settings::default().stop_timeout - 1);
    assert_eq!((hand.dropped, hand.starts), (0, 1));
    hand.renew();
    hand.pass(1);
    assert_eq!((hand.dropped, hand.starts), (1, 2));
    assert!(hand.running.is_some());
}

/// An entity whose start turn wrote, and whose commit is pending.
fn waits_for_its_start() -> Harness {
    let mut hand = Harness::serving();
    hand.silent = true;
    hand.send(1, 0, MessageKind::Command);
    let load = hand.ask();
    hand.answer_load(&load);
    hand.slot();
    let Action::Activate { entity, generation, .. } = hand.ask() else { panic!("no activation") };
    let started = ActivationOutcome::Started(turn(GuestReply::Result(Bytes::new()), true));
    hand.handle(Event::ActivationResult { entity, generation, result: started });
    hand.running = None;
    hand
}

#[test]
fn a_start_backoff_is_kept_across_a_late_claim() {
    let mut hand = waits_for_its_start();
    for_bob(&mut hand, 1);
    hand.silent = false;
    let load = hand.ask();
    hand.answer_load(&load);
    hand.run();
    let mut commits: Vec<_> = std::mem::take(&mut hand.commits);
    let unknown = commits.pop().expect("bob's commit");
    let start = commits.remove(0);
    let refused = CommitOutcome::Refused(CommitRefusal::LimitReached("the disk is full".into()));
    hand.handle(Event::CommitResults(vec![
        (unknown.entity, unknown.head.turn, CommitOutcome::Unknown("a failed sync".into())),
        (start.entity, start.head.turn, refused),
    ]));
    let starts = hand.starts;
    hand.send(2, 0, MessageKind::Command);
    hand.pass(100);
    hand.grant();
    assert_eq!(hand.starts, starts, "the pause goes on");
    hand.pass(150);
    assert_eq!(hand.starts, starts + 1);
}

#[test]
fn a_start_backoff_that_ends_before_the_claim_wakes_nobody() {
    for suspended in [false, true] {
        let mut hand = waits_for_its_start();
        hand.settle(CommitOutcome::Refused(CommitRefusal::LimitReached("the disk is full".into())));
        hand.send(2, 0, MessageKind::Command);
        if suspended {
            hand.handle(Event::Suspend);
        } else {
            hand.silent = false;
            for_bob(&mut hand, 1);
            hand.run();
            hand.settle(CommitOutcome::Unknown("a failed sync".into()));
            assert_eq!(hand.machine.phase(), Phase::Claiming);
        }
        hand.now += 250;
        hand.handle(Event::Tick);
        assert!(hand.machine.next_wake().is_none_or(|wake| wake > hand.now), "it would be busy");
    }
}

#[test]
fn r3_no_claim_is_made_while_a_delayed_commit_runs() {
    let mut hand = Harness::serving();
    hand.send(1, 0, MessageKind::Command);
    let alices = hand.running.take();
    for_bob(&mut hand, 1);
    hand.run();
    let bobs = hand.running.take();
    hand.settle(CommitOutcome::Unknown("a failed sync".into()));
    assert!(bobs.is_none());
    hand.running = alices;
    hand.run();
    assert!(hand.commits.is_empty(), "it waits for the claim");
    hand.grant();
    assert_eq!(hand.commits.len(), 1);
    for_bob(&mut hand, 2);
    hand.run();
    let bobs = hand.commits.pop().expect("bob's commit");
    let unknown = CommitOutcome::Unknown("a failed sync".into());
    hand.handle(Event::CommitResults(vec![(bobs.entity, bobs.head.turn, unknown)]));
    assert_eq!(hand.claims.len(), 2, "alice's commit is under way");
    hand.settle(CommitOutcome::Committed);
    assert_eq!(hand.claims.len(), 3);
}

#[test]
fn a_refused_turn_affects_no_turn_of_another_entity() {
    let mut hand = Harness::serving();
    // Alice's first turn is with the store; her second and bob's wait for the claim.
    hand.send(1, 0, MessageKind::Command);
    hand.run();
    let third = Entity::new("counter", "carol");
    let id = MessageId { session: ScopedSessionId::derive("client/x", b"carol"), sequence: 1 };
    hand.post(Message { id, target: third, ..hand.template() });
    hand.run();
    let carols = hand.commits.pop().expect("carol's commit");
    let unknown = CommitOutcome::Unknown("a failed sync".into());
    let bobs = for_bob(&mut hand, 1);
    let running = hand.running.take();
    let second = hand.send(2, 1, MessageKind::Command);
    let alices = hand.running.take();
    hand.handle(Event::CommitResults(vec![(carols.entity, carols.head.turn, unknown)]));
    for turn in [running, alices] {
        hand.running = turn;
        hand.run();
    }
    assert_eq!(hand.commits.len(), 1, "only alice's first");
    hand.settle(CommitOutcome::Refused(CommitRefusal::VersionMismatch { stored: 7 }));
    assert_eq!(hand.code_of(second).as_deref(), Some(&*codes::COMMIT_REFUSED));
    hand.grant();
    assert_eq!(hand.commits.len(), 1);
    hand.settle(CommitOutcome::Committed);
    assert_eq!(hand.code_of(bobs).as_deref(), Some("final 1"));
}

#[test]
fn messages_without_a_store_are_refused_as_unavailable() {
    let mut hand = Harness::new(Settings::default());
    hand.handle(Event::ClaimResult { number: 1, outcome: ClaimOutcome::Failed("no".into()) });
    let token = hand.send(1, 0, MessageKind::Command);
    assert_eq!(hand.code_of(token).as_deref(), Some(&*codes::STORE_UNAVAILABLE));
}

#[test]
fn a_message_with_a_passed_deadline_causes_no_load() {
    let mut hand = Harness::serving();
    let token = hand.send_by(b"s", 0);
    assert_eq!(hand.code_of(token).as_deref(), Some(&*codes::DEADLINE_EXCEEDED));
    assert_eq!((hand.loads, hand.machine.stats()), (0, (0, 0)));
}

#[test]
fn a_message_refused_by_a_full_mailbox_leaves_no_trace() {
    let mut hand = Harness::serving();
    hand.deploy(TypeSettings { mailbox_capacity: 0, ..TypeSettings::default() });
    let token = hand.send(1, 0, MessageKind::Command);
    assert_eq!(hand.code_of(token).as_deref(), Some(&*codes::MAILBOX_FULL));
    assert_eq!(hand.machine.stats(), (0, 0));
}
