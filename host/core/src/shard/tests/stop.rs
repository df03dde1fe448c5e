//! How a shard ends on this node: stopped in any state, or lost.

use super::*;
use crate::rows::Member;

/// Another node's claim of the same shard.
fn standing(harness: &Harness, epoch: u64) -> Box<Claim> {
    let incarnation = Incarnation { counter: 7, nonce: 70 };
    let mine = Claim::clone(harness.machine.claim());
    Box::new(Claim { epoch: Epoch(epoch), owner: Member { node: "b".into(), incarnation }, ..mine })
}

fn hint_of(claim: &Claim) -> OwnerHint {
    let owner = claim.owner.clone();
    OwnerHint { epoch: claim.epoch, owner: Some(owner) }
}

#[test]
fn s11_6_messages_for_a_lost_shard_get_the_current_owner() {
    let mut harness = Harness::new(Settings::default());
    let waiting = harness.send(1, 0, MessageKind::Command);
    let standing = standing(&harness, 4);
    harness.handle(Event::ClaimResult {
        number: 1,
        outcome: ClaimOutcome::Refused { current: standing.clone() },
    });
    let late = harness.send(2, 1, MessageKind::Command);
    for token in [waiting, late] {
        assert_eq!(harness.code_of(token).as_deref(), Some(&*codes::NOT_OWNER));
        assert_eq!(harness.hint_of(token), Some(hint_of(&standing)));
    }
    assert_eq!((harness.machine.phase(), harness.lost), (Phase::Lost, 1));
}

#[test]
fn s11_6_a_commit_under_an_old_claim_gets_the_current_owner() {
    let mut harness = Harness::serving();
    let turn = harness.send(1, 0, MessageKind::Command);
    harness.run();
    let standing = standing(&harness, 2);
    let refusal = CommitRefusal::ClaimMismatch { current: Some(standing.clone()) };
    harness.settle(CommitOutcome::Refused(refusal));
    assert_eq!(harness.code_of(turn).as_deref(), Some(&*codes::NOT_OWNER));
    assert_eq!(harness.hint_of(turn), Some(hint_of(&standing)));
    assert_eq!((harness.lost, harness.rooms), (1, 0));
}

#[test]
fn s11_6_messages_for_a_stopping_shard_get_its_ending_epoch() {
    let mut harness = Harness::serving();
    harness.send(1, 0, MessageKind::Command);
    harness.handle(Event::Stop(StopReason::HandedOff));
    let late = harness.send(2, 1, MessageKind::Command);
    assert_eq!(harness.code_of(late).as_deref(), Some(&*codes::REBALANCING));
    assert_eq!(harness.hint_of(late), Some(OwnerHint { epoch: Epoch(1), owner: None }));
}

impl Harness {
    fn stop(&mut self) {
        self.handle(Event::Stop(StopReason::HandedOff));
    }

    /// Advances the time to the stop deadline, and checks that the stop may use all of it (A13).
    fn stop_deadline(&mut self) {
        let deadline = Settings::default().stop_timeout;
        assert!(deadline > 0);
        let (dropped, told) = (self.dropped, self.replies.len());
        self.now += deadline - 1;
        self.handle(Event::Tick);
        assert_eq!((self.dropped, self.replies.len(), self.stopped), (dropped, told, 0));
        self.now += 1;
        assert_eq!(self.machine.next_wake(), Some(self.now), "it requests a wake-up for then");
        self.handle(Event::Tick);
        assert_eq!(self.dropped, dropped + 1);
    }

    fn claimed(&mut self, outcome: ClaimOutcome) {
        let number = self.claims.last().expect("a claim").number;
        self.handle(Event::ClaimResult { number, outcome });
    }

    /// Checks that `Stopped` was emitted once, that nothing remains in memory, and that no later event changes that
    /// (A14).
    fn ended(&mut self) {
        for late in 0..3 {
            assert_eq!((self.stopped, self.lost), (1, 0), "{late}");
            assert_eq!(self.machine.phase(), Phase::Stopped);
            assert_eq!((self.rooms, self.machine.stats()), (0, (0, 0)));
            let told: std::collections::BTreeSet<_> = self.replies.iter().map(|r| r.0).collect();
            assert_eq!((told.len(), self.replies.len()), (self.tokens as usize, told.len()));
            self.now += 10_000;
            self.handle(Event::Tick);
            self.stop();
            self.handle(Event::Resume);
            self.handle(Event::LeaseRenewed { sent_at: self.now, lease: 3_000 });
            let token = self.send(100 + late, 0, MessageKind::Command);
            assert_eq!(self.code_of(token).as_deref(), Some(&*codes::REBALANCING));
        }
    }
}

#[test]
fn a12_a_claiming_shard_ignores_the_outcome_after_its_stop() {
    for at in 0..3 {
        let mut harness = Harness::new(Settings::default());
        let waiting = harness.send(1, 0, MessageKind::Command);
        harness.stop();
        assert_eq!(harness.code_of(waiting).as_deref(), Some(&*codes::REBALANCING));
        assert_eq!(harness.stopped, 1, "it has written nothing, and never will");
        let standing = standing(&harness, 2);
        harness.claimed(match at {
            0 => ClaimOutcome::Granted,
            1 => ClaimOutcome::Refused { current: standing },
            _ => ClaimOutcome::Failed("no".into()),
        });
        harness.ended();
        assert_eq!(harness.claims.len(), 1);
    }
}

#[test]
fn a12_a_shard_waiting_to_retry_its_claim_stops_at_once() {
    let mut harness = Harness::new(Settings::default());
    harness.claimed(ClaimOutcome::Failed("no".into()));
    harness.stop();
    harness.ended();
    assert_eq!(harness.claims.len(), 1);
}

#[test]
fn a12_stopped_waits_for_commits_but_for_no_new_claim() {
    let mut harness = Harness::serving();
    let unknown = harness.send(1, 0, MessageKind::Command);
    harness.run();
    let behind = harness.send(2, 1, MessageKind::Command);
    harness.run();
    harness.settle(CommitOutcome::Unknown("lost".into()));
    harness.stop();
    assert_eq!(harness.stopped, 0, "a commit is pending");
    harness.settle(CommitOutcome::Refused(CommitRefusal::VersionMismatch { stored: 0 }));
    assert_eq!(harness.code_of(unknown).as_deref(), Some("unknown"));
    assert_eq!(harness.code_of(behind).as_deref(), Some(&*codes::COMMIT_REFUSED));
    harness.ended();
    assert_eq!(harness.claims.len(), 1);
}

/// A machine that claims again while a turn of another entity runs.
fn claiming_again() -> (Harness, u64) {
    let mut harness = Harness::serving();
    harness.send(1, 0, MessageKind::Command);
    harness.run();
    let session = ScopedSessionId::derive("client/x", b"t");
    let template = Message {
        target: Entity::new("counter", "bob"),
        id: MessageId { session, sequence: 1 },
        ..harness.template()
    };
    let running = harness.post(template);
    harness.settle(CommitOutcome::Unknown("lost".into()));
    assert_eq!(harness.claims.len(), 2);
    (harness, running)
}

#[test]
fn a12_a_turn_ending_in_a_reclaim_needs_the_new_claim() {
    let (mut harness, running) = claiming_again();
    harness.stop();
    harness.run();
    assert!(harness.commits.is_empty(), "the claim is unanswered");
    harness.claimed(ClaimOutcome::Granted);
    assert_eq!((harness.commits[0].claim.number, harness.stopped), (2, 0));
    harness.settle(CommitOutcome::Committed);
    assert_eq!(harness.code_of(running).as_deref(), Some("final 1"));
    harness.ended();

    let (mut harness, running) = claiming_again();
    harness.stop();
    harness.run();
    harness.claimed(ClaimOutcome::Failed("no".into()));
    assert_eq!(harness.code_of(running).as_deref(), Some(&*codes::STORE_UNAVAILABLE));
    harness.ended();
}

#[test]
fn a12_a_stop_discards_a_turn_that_awaits_its_claim() {
    let (mut harness, waiting) = claiming_again();
    let settings = TypeSettings { has_stop_hook: true, ..TypeSettings::default() };
    harness.handle(Event::TypeDeployed { entity_type: "counter".into(), settings });
    harness.run();
    harness.stop();
    assert_eq!(harness.code_of(waiting).as_deref(), Some(&*codes::REBALANCING));
    harness.claimed(ClaimOutcome::Granted);
    assert!(harness.commits.is_empty());
    assert_eq!(harness.hooks, 0, "a hook would build on state that was never committed");
    harness.ended();
}

#[test]
fn a12_a_shard_that_loads_or_awaits_a_slot_stops_at_once() {
    for room in [false, true] {
        let mut harness = Harness::serving();
        harness.silent = true;
        let waiting = harness.send(1, 0, MessageKind::Command);
        let load = harness.next_action();
        if room {
            harness.answer_load(&load);
        }
        harness.stop();
        assert_eq!(harness.code_of(waiting).as_deref(), Some(&*codes::REBALANCING));
        harness.ended();
        match harness.pending_actions.pop() {
            Some(Action::RequestSlot { entity, generation, .. }) => {
                harness.handle(Event::SlotGranted { entity, generation });
            }
            _ => harness.answer_load(&load),
        }
        assert_eq!(
            (harness.starts, harness.pending_actions.len(), harness.stopped),
            (0, 0, 1),
            "a late answer"
        );
    }
}

/// A machine that was told to stop while its entity's instance was being created.
fn activating() -> (Harness, u64, Event) {
    let mut harness = Harness::serving();
    harness.silent = true;
    let waiting = harness.send(1, 0, MessageKind::Command);
    let load = harness.next_action();
    harness.answer_load(&load);
    let Action::RequestSlot { entity, generation, .. } = harness.next_action() else {
        panic!("no slot requested")
    };
    harness.handle(Event::SlotGranted { entity: entity.clone(), generation });
    let result = ActivationOutcome::Started(turn(GuestReply::Result(Bytes::new()), true));
    harness.stop();
    assert_eq!(harness.code_of(waiting).as_deref(), Some(&*codes::REBALANCING));
    assert_eq!(harness.stopped, 0, "an instance is being created");
    (harness, waiting, Event::ActivationResult { entity, generation, result })
}

#[test]
fn a12_stopped_waits_for_an_activation_up_to_the_deadline() {
    let (mut harness, _, activated) = activating();
    harness.handle(activated);
    assert_eq!((harness.stopped, harness.dropped), (0, 1), "the start turn's commit is pending");
    harness.settle(CommitOutcome::Committed);
    harness.ended();

    let (mut harness, _, activated) = activating();
    harness.now = harness.machine.next_wake().expect("the stop deadline");
    harness.handle(Event::Tick);
    assert_eq!(harness.dropped, 1);
    harness.ended();
    harness.handle(activated);
    assert!(harness.commits.is_empty(), "a late answer");
}

#[test]
fn a12_stopped_waits_for_gated_replies_and_refuses_parked() {
    let mut harness = Harness::serving();
    let first = harness.send(1, 0, MessageKind::Command);
    harness.run();
    let second = harness.send(2, 1, MessageKind::Command);
    harness.run();
    let query = harness.send(3, 2, MessageKind::Query);
    harness.run();
    let parked = harness.send(9, 8, MessageKind::Command);
    harness.stop();
    assert_eq!(harness.code_of(parked).as_deref(), Some(&*codes::REBALANCING));
    assert_eq!((harness.stopped, harness.dropped), (0, 1));
    harness.settle(CommitOutcome::Committed);
    assert_eq!(harness.stopped, 0);
    harness.settle(CommitOutcome::Committed);
    for (token, end) in [(first, "final 1"), (second, "final 2"), (query, "final 2")] {
        assert_eq!(harness.code_of(token).as_deref(), Some(end));
    }
    harness.ended();
}

#[test]
fn a13_a_turn_beyond_the_stop_deadline_has_no_effect() {
    let mut harness = Harness::serving();
    let token = harness.send(1, 0, MessageKind::Command);
    harness.stop();
    harness.stop_deadline();
    assert_eq!(harness.code_of(token).as_deref(), Some(&*codes::REBALANCING));
    harness.run();
    assert!(harness.commits.is_empty());
    harness.ended();
}

#[test]
fn a13_stopped_waits_for_a_stop_hook_up_to_the_deadline() {
    for hangs in [false, true] {
        let mut harness = Harness::serving();
        let settings = TypeSettings { has_stop_hook: true, ..TypeSettings::default() };
        harness.handle(Event::TypeDeployed { entity_type: "counter".into(), settings });
        harness.send(1, 0, MessageKind::Command);
        harness.run();
        harness.settle(CommitOutcome::Committed);
        harness.stop();
        let Action::CallStopHook { entity, generation, turn: id, .. } = harness.next_action()
        else {
            panic!("no stop hook")
        };
        assert_eq!(harness.stopped, 0);
        if hangs {
            harness.stop_deadline();
        } else {
            let result = turn(GuestReply::Result(Bytes::new()), true);
            harness.handle(Event::TurnDone { entity, generation, turn: id, result });
            assert_eq!(harness.stopped, 0, "its commit is pending");
            harness.settle(CommitOutcome::Committed);
        }
        harness.ended();
    }
}

#[test]
fn a13_a_shard_lost_while_stopping_still_reports_stopped() {
    let mut harness = Harness::serving();
    let token = harness.send(1, 0, MessageKind::Command);
    harness.run();
    harness.stop();
    let standing = standing(&harness, 2);
    let refusal = CommitRefusal::ClaimMismatch { current: Some(standing.clone()) };
    harness.settle(CommitOutcome::Refused(refusal));
    assert_eq!(harness.code_of(token).as_deref(), Some(&*codes::NOT_OWNER));
    assert_eq!(harness.hint_of(token), Some(hint_of(&standing)));
    harness.ended();
}

#[test]
fn a14_a_repeated_stop_or_one_for_a_lost_shard_is_a_no_op() {
    let mut harness = Harness::serving();
    harness.send(1, 0, MessageKind::Command);
    harness.stop();
    let deadline = harness.machine.next_wake();
    harness.now += 1_000;
    harness.stop();
    assert_eq!(
        (harness.machine.next_wake(), harness.stopped),
        (deadline, 0),
        "the first one counts"
    );
    harness.run();
    harness.settle(CommitOutcome::Committed);
    harness.ended();

    let mut harness = Harness::new(Settings::default());
    let standing = standing(&harness, 2);
    harness.claimed(ClaimOutcome::Refused { current: standing });
    harness.stop();
    assert_eq!((harness.machine.phase(), harness.stopped, harness.lost), (Phase::Lost, 0, 1));
}

#[test]
fn a_dropped_machine_answers_all_messages_at_once() {
    let mut harness = Harness::serving();
    let gated = harness.send(1, 0, MessageKind::Command);
    harness.run();
    let read = harness.send(2, 1, MessageKind::Query);
    harness.run();
    let running = harness.send(3, 2, MessageKind::Command);
    let waiting = harness.send(4, 3, MessageKind::Command);
    let parked = harness.send(9, 8, MessageKind::Command);
    harness.handle(Event::Drop);
    assert_eq!(harness.code_of(gated).as_deref(), Some("unknown"), "its commit is pending");
    let ended = OwnerHint { epoch: Epoch(1), owner: None };
    let late = harness.send(5, 4, MessageKind::Command);
    for token in [read, running, waiting, parked, late] {
        assert_eq!(harness.code_of(token).as_deref(), Some(&*codes::NOT_OWNER));
        assert_eq!(harness.hint_of(token), Some(ended.clone()));
    }
    assert_eq!((harness.dropped, harness.rooms), (1, 0), "the instance and its slot are given up");
    let replies = harness.replies.len();
    harness.settle(CommitOutcome::Committed);
    harness.run();
    harness.handle(Event::Stop(StopReason::HandedOff));
    harness.handle(Event::Tick);
    harness.handle(Event::Drop);
    assert_eq!(
        (harness.replies.len(), harness.commits.len(), harness.claims.len()),
        (replies, 0, 1)
    );
    assert_eq!((harness.machine.phase(), harness.stopped, harness.lost), (Phase::Lost, 0, 0));
    assert_eq!((harness.machine.stats(), harness.machine.next_wake()), ((0, 0), None));
}

#[test]
fn k14_a_stop_does_not_wait_for_the_first_claim() {
    let mut harness = Harness::new(Settings::default());
    let waiting = harness.send(1, 0, MessageKind::Command);
    harness.stop();
    assert_eq!(harness.code_of(waiting).as_deref(), Some(&*codes::REBALANCING));
    harness.ended();
    harness.claimed(ClaimOutcome::Granted);
    assert_eq!((harness.claims.len(), harness.commits.len(), harness.rooms), (1, 0, 0));
    assert_eq!((harness.machine.phase(), harness.machine.next_wake()), (Phase::Stopped, None));
    harness.ended();
}

#[test]
fn a_machine_dropped_while_claiming_ignores_the_outcome() {
    for again in [false, true] {
        let mut harness =
            if again { Harness::serving() } else { Harness::new(Settings::default()) };
        let first = harness.send(1, 0, MessageKind::Command);
        if again {
            harness.run();
            harness.settle(CommitOutcome::Unknown("a failed sync".into()));
        }
        let number = harness.claims.last().expect("a claim").number;
        let waiting = harness.send(2, 1, MessageKind::Command);
        harness.handle(Event::Drop);
        let standing = standing(&harness, 4);
        harness.handle(Event::ClaimResult {
            number,
            outcome: ClaimOutcome::Refused { current: standing },
        });
        harness.handle(Event::ClaimResult { number, outcome: ClaimOutcome::Granted });
        assert_eq!(
            harness.code_of(first).as_deref(),
            Some(if again { &*codes::UNKNOWN } else { &*codes::NOT_OWNER })
        );
        assert_eq!(harness.code_of(waiting).as_deref(), Some(&*codes::NOT_OWNER));
        assert_eq!((harness.machine.phase(), harness.lost, harness.rooms), (Phase::Lost, 0, 0));
    }
}

#[test]
fn a_lost_and_dropped_machine_answers_open_commits_unknown() {
    let mut harness = Harness::serving();
    let first = harness.send(1, 0, MessageKind::Command);
    harness.run();
    let second = harness.send(2, 1, MessageKind::Command);
    harness.run();
    let standing = standing(&harness, 2);
    let refusal = CommitRefusal::ClaimMismatch { current: Some(standing.clone()) };
    harness.settle(CommitOutcome::Refused(refusal));
    assert_eq!(
        (harness.code_of(first).as_deref(), harness.code_of(second)),
        (Some(&*codes::NOT_OWNER), None)
    );
    harness.handle(Event::Drop);
    assert_eq!(harness.code_of(second).as_deref(), Some("unknown"));
    let late = harness.send(3, 2, MessageKind::Command);
    assert_eq!(harness.hint_of(late), Some(hint_of(&standing)), "the store's answer is remembered");
    assert_eq!((harness.lost, harness.rooms), (1, 0));
}

#[test]
fn a15_a_failed_instance_is_dropped_and_replaced_on_demand() {
    let mut harness = Harness::serving();
    harness.send(1, 0, MessageKind::Command);
    let (generation, id, _) = harness.running.take().expect("a running turn");
    let result = trapped_turn();
    harness.handle(Event::TurnDone { entity: alice(), generation, turn: id, result });
    assert_eq!((harness.dropped, harness.rooms, harness.machine.stats()), (1, 0, (0, 0)));
    assert_eq!(harness.machine.phase(), Phase::Serving);
    let next = harness.send(2, 0, MessageKind::Command);
    harness.run();
    harness.settle(CommitOutcome::Committed);
    assert_eq!(harness.code_of(next).as_deref(), Some("final 1"));
    assert_eq!((harness.loads, harness.starts), (2, 2));
}

#[test]
fn a13_a_stopping_shard_wakes_at_its_deadline() {
    let mut harness = Harness::serving();
    harness.send(1, 0, MessageKind::Command);
    harness.stop();
    assert_eq!(harness.machine.next_wake(), Some(harness.now + Settings::default().stop_timeout));
}
