//! Each kind of wait ends for its own reason. As in a worker, the clock advances only to the machine's next wake-up:
//! without a timer, nothing happens.

use ostraca_codes::Code;

use super::*;

impl Harness {
    /// Advances the time, with a tick at each wake-up.
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

    pub(super) fn deploy(&mut self, settings: TypeSettings) {
        self.handle(Event::TypeDeployed { entity_type: "counter".into(), settings });
    }

    /// Sends a command in a new session, with a deadline `span` milliseconds from now.
    fn send_by(&mut self, session: &[u8], span: u64) -> u64 {
        let id = MessageId { session: ScopedSessionId::derive("client/x", session), sequence: 1 };
        self.post(Message { id, deadline: Some(self.now + span), ..self.template() })
    }

    /// Expects that the message ends with `code` after exactly `span` milliseconds.
    fn ends_at(&mut self, token: u64, span: u64, code: Code) {
        self.pass(span - 1);
        assert_eq!(self.code_of(token), None, "too early");
        self.pass(1);
        assert_eq!(self.code_of(token).as_deref(), Some(&*code));
    }

    fn fail(&mut self) {
        let (generation, id, message) = self.running.take().expect("a running turn");
        let result = trapped_turn();
        self.handle(Event::TurnDone {
            entity: message.target.clone(),
            generation,
            turn: id,
            result,
        });
    }

    fn slot(&mut self) {
        let Action::RequestSlot { entity, generation, .. } = self.next_action() else {
            panic!("no slot requested")
        };
        self.handle(Event::SlotGranted { entity, generation });
    }
}

fn bob() -> Entity {
    Entity::new("counter", "bob")
}

/// Sends a command to bob, in a separate session.
fn for_bob(harness: &mut Harness, sequence: u64) -> u64 {
    let id = MessageId { session: ScopedSessionId::derive("client/x", b"bob"), sequence };
    let digest = MessageDigest::compute(&bob(), "m", b"1");
    harness.post(Message { id, target: bob(), digest, ..harness.template() })
}

/// Bob's instance is idle, the outcome of alice's command is unknown, and the shard is being claimed again.
fn claims_anew() -> Harness {
    let mut harness = Harness::serving();
    for_bob(&mut harness, 1);
    harness.run();
    harness.settle(CommitOutcome::Committed);
    harness.head = None;
    harness.lanes.clear();
    harness.send(1, 0, MessageKind::Command);
    harness.run();
    harness.settle(CommitOutcome::Unknown("a failed sync".into()));
    assert_eq!((harness.machine.phase(), harness.claims.len()), (Phase::Claiming, 2));
    harness
}

#[test]
fn an_idle_entity_waits_for_the_new_claim() {
    let mut harness = claims_anew();
    for_bob(&mut harness, 2);
    assert!(harness.running.is_none());
    harness.grant();
    assert!(harness.running.is_some());
}

#[test]
fn an_entity_loaded_meanwhile_waits_for_the_new_claim() {
    let mut harness = Harness::serving();
    harness.send(1, 0, MessageKind::Command);
    harness.run();
    harness.silent = true;
    for_bob(&mut harness, 1);
    harness.settle(CommitOutcome::Unknown("a failed sync".into()));
    let load = harness.next_action();
    harness.answer_load(&load);
    assert!(
        harness.pending_actions.is_empty(),
        "no slot is requested under a claim that may be invalid"
    );
    harness.grant();
    harness.slot();
    assert_eq!(harness.starts, 2);
}

#[test]
fn a_failed_claim_is_retried_with_backoff() {
    let mut harness = Harness::new(Settings::default());
    for (claims, wait) in [(1, 250), (2, 500)] {
        harness
            .handle(Event::ClaimResult { number: 1, outcome: ClaimOutcome::Failed("no".into()) });
        assert_eq!(harness.machine.next_wake(), Some(harness.now + wait));
        harness.pass(wait - 1);
        harness.handle(Event::Tick);
        assert_eq!(harness.claims.len(), claims);
        harness.pass(1);
        assert_eq!(harness.claims.len(), claims + 1);
    }
    harness.grant();
    harness.send(1, 0, MessageKind::Command);
    assert!(harness.running.is_some());
}

#[test]
fn each_entity_that_waits_for_the_lease_resumes() {
    let mut harness = Harness::serving();
    for_bob(&mut harness, 1);
    harness.run();
    harness.send(1, 0, MessageKind::Command);
    harness.run();
    harness.pass(2_400);
    for_bob(&mut harness, 2);
    harness.send(2, 1, MessageKind::Query);
    let runs = harness.runs;
    harness.renew();
    assert_eq!(harness.runs, runs + 2);
}

#[test]
fn a_full_gate_waits_for_a_commit() {
    let mut harness = Harness::with(Settings { max_gated_turns: 1, ..Settings::default() });
    harness.send(1, 0, MessageKind::Command);
    harness.run();
    harness.send(2, 1, MessageKind::Command);
    assert!(harness.running.is_none());
    harness.settle(CommitOutcome::Committed);
    assert!(harness.running.is_some());
}

#[test]
fn a_closed_entity_waits_for_its_commits_and_loads_again() {
    let mut harness = Harness::serving();
    harness.send(1, 0, MessageKind::Command);
    harness.run();
    harness.send(2, 1, MessageKind::Command);
    harness.fail();
    harness.send(3, 0, MessageKind::Command);
    assert_eq!(harness.loads, 1, "a commit is pending");
    harness.settle(CommitOutcome::Committed);
    assert_eq!(harness.loads, 2);
    assert!(harness.running.is_some());
}

#[test]
fn a_deadline_ends_the_wait_in_every_state() {
    // While its entity is loaded, waits for a slot, starts, and runs another message.
    for steps in 0..=3 {
        let mut harness = Harness::serving();
        harness.silent = steps < 3;
        harness.send_from(b"other", 1, 0, MessageKind::Command, "1");
        if (1..3).contains(&steps) {
            let load = harness.next_action();
            harness.answer_load(&load);
        }
        if steps == 2 {
            harness.slot();
        }
        let token = harness.send_by(b"late", 300);
        harness.ends_at(token, 300, codes::DEADLINE_EXCEEDED);
    }
    // While its shard is being claimed, and claimed again.
    let mut harness = Harness::new(Settings::default());
    let token = harness.send_by(b"late", 300);
    harness.ends_at(token, 300, codes::DEADLINE_EXCEEDED);
    let mut harness = claims_anew();
    let token = harness.send_by(b"late", 300);
    harness.ends_at(token, 300, codes::DEADLINE_EXCEEDED);
    // Behind a message that has not arrived, and behind commits of an instance that was dropped.
    let mut harness = Harness::serving();
    let deadline = Some(harness.now + 300);
    let token = harness.post(Message { after: 7, deadline, id: id_after(8), ..harness.template() });
    harness.ends_at(token, 300, codes::DEADLINE_EXCEEDED);
    let mut harness = Harness::serving();
    harness.send(1, 0, MessageKind::Command);
    harness.run();
    harness.send(2, 1, MessageKind::Command);
    harness.fail();
    let token = harness.send_by(b"late", 300);
    harness.ends_at(token, 300, codes::DEADLINE_EXCEEDED);
}

fn id_after(sequence: u64) -> MessageId {
    MessageId { session: ScopedSessionId::derive("client/x", b"after"), sequence }
}

#[test]
fn a_message_returned_to_the_mailbox_keeps_its_deadline() {
    let mut harness = Harness::serving();
    harness.send_from(b"other", 1, 0, MessageKind::Command, "1");
    harness.run();
    harness.send_from(b"other", 2, 1, MessageKind::Command, "1");
    harness.run();
    let token = harness.send_by(b"late", 300);
    // A tick while the message runs does not affect it.
    let parked = harness.send_by(b"soon", 100);
    harness.ends_at(parked, 100, codes::DEADLINE_EXCEEDED);
    assert!(harness.running.is_some());
    harness.settle(CommitOutcome::Refused(CommitRefusal::VersionMismatch { stored: 7 }));
    assert_eq!(harness.machine.queued_messages(&alice()), Some(1), "behind the other commit");
    harness.ends_at(token, 200, codes::DEADLINE_EXCEEDED);
}

#[test]
fn a_message_whose_sender_left_keeps_the_copys_deadline() {
    let mut harness = Harness::with(Settings { max_gated_turns: 1, ..Settings::default() });
    let id = id_after(1);
    let deadline = Some(harness.now + 300);
    let query = Message { id, deadline, kind: MessageKind::Query, ..harness.template() };
    harness.post(query.clone());
    let copy = harness.post(query);
    let (generation, turn, _) = harness.running.take().expect("a running turn");
    let soon = harness.send_by(b"soon", 100);
    harness.ends_at(soon, 100, codes::DEADLINE_EXCEEDED);
    // The lease is no longer valid, so the copy waits.
    harness.handle(Event::LeaseRenewed { sent_at: harness.now, lease: 0 });
    harness.handle(Event::QueryAbandoned { entity: alice(), generation, turn });
    harness.ends_at(copy, 200, codes::DEADLINE_EXCEEDED);
}

#[test]
fn a_copy_with_a_later_deadline_extends_the_wait() {
    let mut harness = Harness::serving();
    harness.send_from(b"other", 1, 0, MessageKind::Command, "1");
    let first = harness.send_by(b"late", 100);
    let copy = harness.send_by(b"late", 300);
    harness.ends_at(copy, 300, codes::DEADLINE_EXCEEDED);
    assert_eq!(harness.code_of(first).as_deref(), Some(&*codes::DEADLINE_EXCEEDED));
}

#[test]
fn the_wait_for_an_instance_slot_is_bounded() {
    let mut harness = Harness::serving();
    harness.silent = true;
    let token = harness.send(1, 0, MessageKind::Command);
    let load = harness.next_action();
    harness.answer_load(&load);
    harness.ends_at(token, Settings::default().instance_slot_timeout, codes::OVERLOADED);
    assert_eq!((harness.rooms, harness.machine.stats()), (0, (0, 0)));
}

#[test]
fn the_wait_of_a_message_parked_again_is_bounded() {
    let mut harness = Harness::serving();
    harness.send_from(b"other", 1, 0, MessageKind::Command, "1");
    let parked = harness.send(2, 1, MessageKind::Command);
    harness.run();
    harness.settle(CommitOutcome::Committed);
    harness.send_from(b"other", 2, 1, MessageKind::Command, "1");
    harness.pass(500);
    harness.fail();
    assert_eq!((harness.loads, harness.code_of(parked)), (2, None));
    harness.ends_at(parked, Settings::default().order_timeout, codes::OUT_OF_ORDER);
    assert_eq!(harness.machine.stats(), (0, 0), "nothing remains in memory");
}

#[test]
fn order_and_idle_timeouts_restart_after_a_resume() {
    let mut harness = Harness::serving();
    harness.send_from(b"other", 1, 0, MessageKind::Command, "1");
    harness.run();
    harness.settle(CommitOutcome::Committed);
    let parked = harness.send(2, 1, MessageKind::Command);
    harness.handle(Event::Suspend);
    harness.pass(300_000);
    harness.renew();
    harness.handle(Event::Resume);
    harness.ends_at(parked, Settings::default().order_timeout, codes::OUT_OF_ORDER);
    harness.pass(TypeSettings::default().idle_timeout);
    assert_eq!((harness.dropped, harness.machine.stats()), (1, (0, 0)));
}

#[test]
fn idle_time_counts_from_the_last_reply_of_any_kind() {
    let idle = 1_000;
    for last in 0..=4 {
        let mut harness = Harness::serving();
        harness.deploy(TypeSettings { idle_timeout: idle, ..TypeSettings::default() });
        harness.send_from(b"other", 1, 0, MessageKind::Command, "1");
        harness.run();
        match last {
            // A slow commit.
            0 => harness.pass(5_000),
            // A query behind it.
            1 => {
                harness.send(1, 0, MessageKind::Query);
                harness.run();
                harness.pass(5_000);
            }
            // A message that was not run in time.
            2 => {
                harness.send(2, 1, MessageKind::Command);
                harness.pass(5_000);
            }
            // A query whose lease ended while it ran.
            3 => {
                harness.send(1, 0, MessageKind::Query);
                harness.settle(CommitOutcome::Committed);
                harness.pass(2_500);
                harness.run();
            }
            // A query whose sender disconnected.
            _ => {
                harness.settle(CommitOutcome::Committed);
                harness.send(1, 0, MessageKind::Query);
                let (generation, turn, _) = harness.running.take().expect("a running turn");
                harness.handle(Event::QueryAbandoned { entity: alice(), generation, turn });
            }
        }
        if !harness.commits.is_empty() {
            harness.settle(CommitOutcome::Committed);
        }
        harness.pass(idle);
        assert_eq!(
            (harness.dropped, harness.rooms, harness.machine.stats()),
            (1, 0, (0, 0)),
            "case {last}"
        );
    }
}

#[test]
fn a_hanging_stop_hook_delays_messages_to_its_deadline() {
    let mut harness = Harness::serving();
    let settings =
        TypeSettings { idle_timeout: 1_000, has_stop_hook: true, ..TypeSettings::default() };
    harness.deploy(settings);
    harness.send(1, 0, MessageKind::Query);
    harness.run();
    harness.pass(1_000);
    assert_eq!(harness.hooks, 1);
    harness.send(2, 0, MessageKind::Command);
    harness.pass(Settings::default().stop_timeout - 1);
    assert_eq!((harness.dropped, harness.starts), (0, 1));
    harness.renew();
    harness.pass(1);
    assert_eq!((harness.dropped, harness.starts), (1, 2));
    assert!(harness.running.is_some());
}

/// An entity whose start turn changed its state, and is not committed yet.
fn waits_for_its_start() -> Harness {
    let mut harness = Harness::serving();
    harness.silent = true;
    harness.send(1, 0, MessageKind::Command);
    let load = harness.next_action();
    harness.answer_load(&load);
    harness.slot();
    let Action::Activate { entity, generation, .. } = harness.next_action() else {
        panic!("no activation")
    };
    let started = ActivationOutcome::Started(turn(GuestReply::Result(Bytes::new()), true));
    harness.handle(Event::ActivationResult { entity, generation, result: started });
    harness.running = None;
    harness
}

#[test]
fn a_start_backoff_is_kept_across_a_late_claim() {
    let mut harness = waits_for_its_start();
    for_bob(&mut harness, 1);
    harness.silent = false;
    let load = harness.next_action();
    harness.answer_load(&load);
    harness.run();
    let mut commits: Vec<_> = std::mem::take(&mut harness.commits);
    let unknown = commits.pop().expect("bob's commit");
    let start = commits.remove(0);
    let refused = CommitOutcome::Refused(CommitRefusal::LimitReached("the disk is full".into()));
    harness.handle(Event::CommitResults(vec![
        (unknown.entity, unknown.head.turn, CommitOutcome::Unknown("a failed sync".into())),
        (start.entity, start.head.turn, refused),
    ]));
    let starts = harness.starts;
    harness.send(2, 0, MessageKind::Command);
    harness.pass(100);
    harness.grant();
    assert_eq!(harness.starts, starts, "the pause continues");
    harness.pass(150);
    assert_eq!(harness.starts, starts + 1);
}

#[test]
fn a_start_backoff_that_ends_before_the_claim_wakes_nobody() {
    for suspended in [false, true] {
        let mut harness = waits_for_its_start();
        harness
            .settle(CommitOutcome::Refused(CommitRefusal::LimitReached("the disk is full".into())));
        harness.send(2, 0, MessageKind::Command);
        if suspended {
            harness.handle(Event::Suspend);
        } else {
            harness.silent = false;
            for_bob(&mut harness, 1);
            harness.run();
            harness.settle(CommitOutcome::Unknown("a failed sync".into()));
            assert_eq!(harness.machine.phase(), Phase::Claiming);
        }
        harness.now += 250;
        harness.handle(Event::Tick);
        assert!(
            harness.machine.next_wake().is_none_or(|wake| wake > harness.now),
            "it would tick in a busy loop"
        );
    }
}

#[test]
fn r3_no_claim_is_made_while_a_delayed_commit_runs() {
    let mut harness = Harness::serving();
    harness.send(1, 0, MessageKind::Command);
    let alices = harness.running.take();
    for_bob(&mut harness, 1);
    harness.run();
    let bobs = harness.running.take();
    harness.settle(CommitOutcome::Unknown("a failed sync".into()));
    assert!(bobs.is_none());
    harness.running = alices;
    harness.run();
    assert!(harness.commits.is_empty(), "it waits for the claim");
    harness.grant();
    assert_eq!(harness.commits.len(), 1);
    for_bob(&mut harness, 2);
    harness.run();
    let bobs = harness.commits.pop().expect("bob's commit");
    let unknown = CommitOutcome::Unknown("a failed sync".into());
    harness.handle(Event::CommitResults(vec![(bobs.entity, bobs.head.turn, unknown)]));
    assert_eq!(harness.claims.len(), 2, "alice's commit is pending");
    harness.settle(CommitOutcome::Committed);
    assert_eq!(harness.claims.len(), 3);
}

#[test]
fn a_refused_turn_affects_no_turn_of_another_entity() {
    let mut harness = Harness::serving();
    // The store has the commit of alice's first turn; those of her second turn and of bob's wait for the claim.
    harness.send(1, 0, MessageKind::Command);
    harness.run();
    let third = Entity::new("counter", "carol");
    let id = MessageId { session: ScopedSessionId::derive("client/x", b"carol"), sequence: 1 };
    harness.post(Message { id, target: third, ..harness.template() });
    harness.run();
    let carols = harness.commits.pop().expect("carol's commit");
    let unknown = CommitOutcome::Unknown("a failed sync".into());
    let bobs = for_bob(&mut harness, 1);
    let running = harness.running.take();
    let second = harness.send(2, 1, MessageKind::Command);
    let alices = harness.running.take();
    harness.handle(Event::CommitResults(vec![(carols.entity, carols.head.turn, unknown)]));
    for turn in [running, alices] {
        harness.running = turn;
        harness.run();
    }
    assert_eq!(harness.commits.len(), 1, "only that of alice's first turn");
    harness.settle(CommitOutcome::Refused(CommitRefusal::VersionMismatch { stored: 7 }));
    assert_eq!(harness.code_of(second).as_deref(), Some(&*codes::COMMIT_REFUSED));
    harness.grant();
    assert_eq!(harness.commits.len(), 1);
    harness.settle(CommitOutcome::Committed);
    assert_eq!(harness.code_of(bobs).as_deref(), Some("final 1"));
}

#[test]
fn messages_without_a_store_are_refused_as_unavailable() {
    let mut harness = Harness::new(Settings::default());
    harness.handle(Event::ClaimResult { number: 1, outcome: ClaimOutcome::Failed("no".into()) });
    let token = harness.send(1, 0, MessageKind::Command);
    assert_eq!(harness.code_of(token).as_deref(), Some(&*codes::STORE_UNAVAILABLE));
}

#[test]
fn a_message_with_a_passed_deadline_causes_no_load() {
    let mut harness = Harness::serving();
    let token = harness.send_by(b"s", 0);
    assert_eq!(harness.code_of(token).as_deref(), Some(&*codes::DEADLINE_EXCEEDED));
    assert_eq!((harness.loads, harness.machine.stats()), (0, (0, 0)));
}

#[test]
fn a_message_refused_by_a_full_mailbox_leaves_no_trace() {
    let mut harness = Harness::serving();
    harness.deploy(TypeSettings { mailbox_capacity: 0, ..TypeSettings::default() });
    let token = harness.send(1, 0, MessageKind::Command);
    assert_eq!(harness.code_of(token).as_deref(), Some(&*codes::MAILBOX_FULL));
    assert_eq!(harness.machine.stats(), (0, 0));
}
