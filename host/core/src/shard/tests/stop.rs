//! The end of a shard on this node: stopped in every state, or lost.

use super::*;
use crate::rows::Member;

/// Another node's claim of the same shard.
fn standing(hand: &Harness, epoch: u64) -> Box<Claim> {
    let incarnation = Incarnation { counter: 7, nonce: 70 };
    let mine = Claim::clone(hand.machine.claim());
    Box::new(Claim { epoch: Epoch(epoch), owner: Member { node: "b".into(), incarnation }, ..mine })
}

fn hint_of(claim: &Claim) -> OwnerHint {
    let owner = claim.owner.clone();
    OwnerHint { epoch: claim.epoch, owner: Some(owner) }
}

#[test]
fn s11_6_messages_for_a_lost_shard_get_the_current_owner() {
    let mut hand = Harness::new(Settings::default());
    let waiting = hand.send(1, 0, MessageKind::Command);
    let standing = standing(&hand, 4);
    hand.handle(Event::ClaimResult {
        number: 1,
        outcome: ClaimOutcome::Refused { current: standing.clone() },
    });
    let late = hand.send(2, 1, MessageKind::Command);
    for token in [waiting, late] {
        assert_eq!(hand.code_of(token).as_deref(), Some(&*codes::NOT_OWNER));
        assert_eq!(hand.hint_of(token), Some(hint_of(&standing)));
    }
    assert_eq!((hand.machine.phase(), hand.lost), (Phase::Lost, 1));
}

#[test]
fn s11_6_a_commit_under_an_old_claim_gets_the_current_owner() {
    let mut hand = Harness::serving();
    let turn = hand.send(1, 0, MessageKind::Command);
    hand.run();
    let standing = standing(&hand, 2);
    let refusal = CommitRefusal::ClaimMismatch { current: Some(standing.clone()) };
    hand.settle(CommitOutcome::Refused(refusal));
    assert_eq!(hand.code_of(turn).as_deref(), Some(&*codes::NOT_OWNER));
    assert_eq!(hand.hint_of(turn), Some(hint_of(&standing)));
    assert_eq!((hand.lost, hand.rooms), (1, 0));
}

#[test]
fn s11_6_messages_for_a_stopping_shard_get_its_ending_epoch() {
    let mut hand = Harness::serving();
    hand.send(1, 0, MessageKind::Command);
    hand.handle(Event::Stop(StopReason::HandedOff));
    let late = hand.send(2, 1, MessageKind::Command);
    assert_eq!(hand.code_of(late).as_deref(), Some(&*codes::REBALANCING));
    assert_eq!(hand.hint_of(late), Some(OwnerHint { epoch: Epoch(1), owner: None }));
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
        assert_eq!(self.machine.next_wake(), Some(self.now), "it asks to be woken then");
        self.handle(Event::Tick);
        assert_eq!(self.dropped, dropped + 1);
    }

    fn claimed(&mut self, outcome: ClaimOutcome) {
        let number = self.claims.last().expect("a claim").number;
        self.handle(Event::ClaimResult { number, outcome });
    }

    /// `Stopped` was emitted once, nothing is left, and no later event changes that (A14).
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
fn a12_a_claiming_shard_stops_after_any_claim_outcome() {
    for at in 0..3 {
        let mut hand = Harness::new(Settings::default());
        let waiting = hand.send(1, 0, MessageKind::Command);
        hand.stop();
        assert_eq!(hand.code_of(waiting).as_deref(), Some(&*codes::REBALANCING));
        assert_eq!(hand.stopped, 0, "its claim is pending");
        let standing = standing(&hand, 2);
        hand.claimed(match at {
            0 => ClaimOutcome::Granted,
            1 => ClaimOutcome::Refused { current: standing },
            _ => ClaimOutcome::Failed("no".into()),
        });
        hand.ended();
        assert_eq!(hand.claims.len(), 1);
    }
}

#[test]
fn a12_a_shard_waiting_to_retry_its_claim_stops_at_once() {
    let mut hand = Harness::new(Settings::default());
    hand.claimed(ClaimOutcome::Failed("no".into()));
    hand.stop();
    hand.ended();
    assert_eq!(hand.claims.len(), 1);
}

#[test]
fn a12_stopped_waits_for_commits_but_for_no_new_claim() {
    let mut hand = Harness::serving();
    let unknown = hand.send(1, 0, MessageKind::Command);
    hand.run();
    let behind = hand.send(2, 1, MessageKind::Command);
    hand.run();
    hand.settle(CommitOutcome::Unknown("lost".into()));
    hand.stop();
    assert_eq!(hand.stopped, 0, "a commit is pending");
    hand.settle(CommitOutcome::Refused(CommitRefusal::VersionMismatch { stored: 0 }));
    assert_eq!(hand.code_of(unknown).as_deref(), Some("unknown"));
    assert_eq!(hand.code_of(behind).as_deref(), Some(&*codes::COMMIT_REFUSED));
    hand.ended();
    assert_eq!(hand.claims.len(), 1);
}

/// A machine that claims again while a turn of another entity runs.
fn claiming_again() -> (Harness, u64) {
    let mut hand = Harness::serving();
    hand.send(1, 0, MessageKind::Command);
    hand.run();
    let session = ScopedSessionId::derive("client/x", b"t");
    let template = Message {
        target: Entity::new("counter", "bob"),
        id: MessageId { session, sequence: 1 },
        ..hand.template()
    };
    let running = hand.post(template);
    hand.settle(CommitOutcome::Unknown("lost".into()));
    assert_eq!(hand.claims.len(), 2);
    (hand, running)
}

#[test]
fn a12_a_turn_ending_in_a_reclaim_needs_the_new_claim() {
    let (mut hand, running) = claiming_again();
    hand.stop();
    hand.run();
    assert!(hand.commits.is_empty(), "the claim is not answered");
    hand.claimed(ClaimOutcome::Granted);
    assert_eq!((hand.commits[0].claim.number, hand.stopped), (2, 0));
    hand.settle(CommitOutcome::Committed);
    assert_eq!(hand.code_of(running).as_deref(), Some("final 1"));
    hand.ended();

    let (mut hand, running) = claiming_again();
    hand.stop();
    hand.run();
    hand.claimed(ClaimOutcome::Failed("no".into()));
    assert_eq!(hand.code_of(running).as_deref(), Some(&*codes::STORE_UNAVAILABLE));
    hand.ended();
}

#[test]
fn a12_a_stop_discards_a_turn_that_awaits_its_claim() {
    let (mut hand, waiting) = claiming_again();
    let settings = TypeSettings { has_stop_hook: true, ..TypeSettings::default() };
    hand.handle(Event::TypeDeployed { entity_type: "counter".into(), settings });
    hand.run();
    hand.stop();
    assert_eq!(hand.code_of(waiting).as_deref(), Some(&*codes::REBALANCING));
    hand.claimed(ClaimOutcome::Granted);
    assert!(hand.commits.is_empty());
    assert_eq!(hand.hooks, 0, "a hook would build on what never was");
    hand.ended();
}

#[test]
fn a12_a_shard_that_loads_or_awaits_a_slot_stops_at_once() {
    for room in [false, true] {
        let mut hand = Harness::serving();
        hand.silent = true;
        let waiting = hand.send(1, 0, MessageKind::Command);
        let load = hand.ask();
        if room {
            hand.answer_load(&load);
        }
        hand.stop();
        assert_eq!(hand.code_of(waiting).as_deref(), Some(&*codes::REBALANCING));
        hand.ended();
        match hand.asked.pop() {
            Some(Action::RequestSlot { entity, generation }) => {
                hand.handle(Event::SlotGranted { entity, generation });
            }
            _ => hand.answer_load(&load),
        }
        assert_eq!((hand.starts, hand.asked.len(), hand.stopped), (0, 0, 1), "a late answer");
    }
}

/// A machine that was told to stop while its entity's instance is being made.
fn activating() -> (Harness, u64, Event) {
    let mut hand = Harness::serving();
    hand.silent = true;
    let waiting = hand.send(1, 0, MessageKind::Command);
    let load = hand.ask();
    hand.answer_load(&load);
    let Action::RequestSlot { entity, generation } = hand.ask() else {
        panic!("room is asked for")
    };
    hand.handle(Event::SlotGranted { entity: entity.clone(), generation });
    let result = ActivationOutcome::Started(turn(GuestReply::Result(Bytes::new()), true));
    hand.stop();
    assert_eq!(hand.code_of(waiting).as_deref(), Some(&*codes::REBALANCING));
    assert_eq!(hand.stopped, 0, "an instance is being made");
    (hand, waiting, Event::ActivationResult { entity, generation, result })
}

#[test]
fn a12_stopped_waits_for_an_activation_up_to_the_deadline() {
    let (mut hand, _, activated) = activating();
    hand.handle(activated);
    assert_eq!((hand.stopped, hand.dropped), (0, 1), "the start turn's commit is under way");
    hand.settle(CommitOutcome::Committed);
    hand.ended();

    let (mut hand, _, activated) = activating();
    hand.now = hand.machine.next_wake().expect("the stop deadline");
    hand.handle(Event::Tick);
    assert_eq!(hand.dropped, 1);
    hand.ended();
    hand.handle(activated);
    assert!(hand.commits.is_empty(), "a late answer");
}

#[test]
fn a12_stopped_waits_for_gated_replies_and_refuses_parked() {
    let mut hand = Harness::serving();
    let first = hand.send(1, 0, MessageKind::Command);
    hand.run();
    let second = hand.send(2, 1, MessageKind::Command);
    hand.run();
    let query = hand.send(3, 2, MessageKind::Query);
    hand.run();
    let parked = hand.send(9, 8, MessageKind::Command);
    hand.stop();
    assert_eq!(hand.code_of(parked).as_deref(), Some(&*codes::REBALANCING));
    assert_eq!((hand.stopped, hand.dropped), (0, 1));
    hand.settle(CommitOutcome::Committed);
    assert_eq!(hand.stopped, 0);
    hand.settle(CommitOutcome::Committed);
    for (token, end) in [(first, "final 1"), (second, "final 2"), (query, "final 2")] {
        assert_eq!(hand.code_of(token).as_deref(), Some(end));
    }
    hand.ended();
}

#[test]
fn a13_a_turn_beyond_the_stop_deadline_has_no_effect() {
    let mut hand = Harness::serving();
    let token = hand.send(1, 0, MessageKind::Command);
    hand.stop();
    hand.stop_deadline();
    assert_eq!(hand.code_of(token).as_deref(), Some(&*codes::REBALANCING));
    hand.run();
    assert!(hand.commits.is_empty());
    hand.ended();
}

#[test]
fn a13_stopped_waits_for_a_stop_hook_up_to_the_deadline() {
    for hangs in [false, true] {
        let mut hand = Harness::serving();
        let settings = TypeSettings { has_stop_hook: true, ..TypeSettings::default() };
        hand.handle(Event::TypeDeployed { entity_type: "counter".into(), settings });
        hand.send(1, 0, MessageKind::Command);
        hand.run();
        hand.settle(CommitOutcome::Committed);
        hand.stop();
        let Action::CallStopHook { entity, generation, turn: id, .. } = hand.ask() else {
            panic!("a hook")
        };
        assert_eq!(hand.stopped, 0);
        if hangs {
            hand.stop_deadline();
        } else {
            let result = turn(GuestReply::Result(Bytes::new()), true);
            hand.handle(Event::TurnDone { entity, generation, turn: id, result });
            assert_eq!(hand.stopped, 0, "its commit is under way");
            hand.settle(CommitOutcome::Committed);
        }
        hand.ended();
    }
}

#[test]
fn a13_a_shard_lost_while_stopping_still_reports_stopped() {
    let mut hand = Harness::serving();
    let token = hand.send(1, 0, MessageKind::Command);
    hand.run();
    hand.stop();
    let standing = standing(&hand, 2);
    let refusal = CommitRefusal::ClaimMismatch { current: Some(standing.clone()) };
    hand.settle(CommitOutcome::Refused(refusal));
    assert_eq!(hand.code_of(token).as_deref(), Some(&*codes::NOT_OWNER));
    assert_eq!(hand.hint_of(token), Some(hint_of(&standing)));
    hand.ended();
}

#[test]
fn a14_a_repeated_stop_or_one_for_a_lost_shard_is_a_no_op() {
    let mut hand = Harness::serving();
    hand.send(1, 0, MessageKind::Command);
    hand.stop();
    let deadline = hand.machine.next_wake();
    hand.now += 1_000;
    hand.stop();
    assert_eq!((hand.machine.next_wake(), hand.stopped), (deadline, 0), "the first one counts");
    hand.run();
    hand.settle(CommitOutcome::Committed);
    hand.ended();

    let mut hand = Harness::new(Settings::default());
    let standing = standing(&hand, 2);
    hand.claimed(ClaimOutcome::Refused { current: standing });
    hand.stop();
    assert_eq!((hand.machine.phase(), hand.stopped, hand.lost), (Phase::Lost, 0, 1));
}

#[test]
fn a_dropped_machine_answers_all_messages_at_once() {
    let mut hand = Harness::serving();
    let gated = hand.send(1, 0, MessageKind::Command);
    hand.run();
    let read = hand.send(2, 1, MessageKind::Query);
    hand.run();
    let running = hand.send(3, 2, MessageKind::Command);
    let waiting = hand.send(4, 3, MessageKind::Command);
    let parked = hand.send(9, 8, MessageKind::Command);
    hand.handle(Event::Drop);
    assert_eq!(hand.code_of(gated).as_deref(), Some("unknown"), "its commit is under way");
    let ended = OwnerHint { epoch: Epoch(1), owner: None };
    let late = hand.send(5, 4, MessageKind::Command);
    for token in [read, running, waiting, parked, late] {
        assert_eq!(hand.code_of(token).as_deref(), Some(&*codes::NOT_OWNER));
        assert_eq!(hand.hint_of(token), Some(ended.clone()));
    }
    assert_eq!((hand.dropped, hand.rooms), (1, 0), "the instance and its room are given up");
    let replies = hand.replies.len();
    hand.settle(CommitOutcome::Committed);
    hand.run();
    hand.handle(Event::Stop(StopReason::HandedOff));
    hand.handle(Event::Tick);
    hand.handle(Event::Drop);
    assert_eq!((hand.replies.len(), hand.commits.len(), hand.claims.len()), (replies, 0, 1));
    assert_eq!((hand.machine.phase(), hand.stopped, hand.lost), (Phase::Lost, 0, 0));
    assert_eq!((hand.machine.stats(), hand.machine.next_wake()), ((0, 0), None));
}

#[test]
fn a_machine_dropped_while_claiming_ignores_the_outcome() {
    for again in [false, true] {
        let mut hand = if again { Harness::serving() } else { Harness::new(Settings::default()) };
        let first = hand.send(1, 0, MessageKind::Command);
        if again {
            hand.run();
            hand.settle(CommitOutcome::Unknown("a failed sync".into()));
        }
        let number = hand.claims.last().expect("a claim").number;
        let waiting = hand.send(2, 1, MessageKind::Command);
        hand.handle(Event::Drop);
        let standing = standing(&hand, 4);
        hand.handle(Event::ClaimResult {
            number,
            outcome: ClaimOutcome::Refused { current: standing },
        });
        hand.handle(Event::ClaimResult { number, outcome: ClaimOutcome::Granted });
        assert_eq!(
            hand.code_of(first).as_deref(),
            Some(if again { &*codes::UNKNOWN } else { &*codes::NOT_OWNER })
        );
        assert_eq!(hand.code_of(waiting).as_deref(), Some(&*codes::NOT_OWNER));
        assert_eq!((hand.machine.phase(), hand.lost, hand.rooms), (Phase::Lost, 0, 0));
    }
}

#[test]
fn a_lost_and_dropped_machine_answers_open_commits_unknown() {
    let mut hand = Harness::serving();
    let first = hand.send(1, 0, MessageKind::Command);
    hand.run();
    let second = hand.send(2, 1, MessageKind::Command);
    hand.run();
    let standing = standing(&hand, 2);
    let refusal = CommitRefusal::ClaimMismatch { current: Some(standing.clone()) };
    hand.settle(CommitOutcome::Refused(refusal));
    assert_eq!(
        (hand.code_of(first).as_deref(), hand.code_of(second)),
        (Some(&*codes::NOT_OWNER), None)
    );
    hand.handle(Event::Drop);
    assert_eq!(hand.code_of(second).as_deref(), Some("unknown"));
    let late = hand.send(3, 2, MessageKind::Command);
    assert_eq!(hand.hint_of(late), Some(hint_of(&standing)), "what the store told stays known");
    assert_eq!((hand.lost, hand.rooms), (1, 0));
}

#[test]
fn a15_a_failed_instance_is_dropped_and_replaced_on_demand() {
    let mut hand = Harness::serving();
    hand.send(1, 0, MessageKind::Command);
    let (generation, id, _) = hand.running.take().expect("a running turn");
    let failed =
        TurnResult::Failed { code: "trap".into(), message: String::new(), retry_after: None };
    let result =
        TurnOutput { result: failed, writes: Vec::new(), state_bytes: None, passivate: false };
    hand.handle(Event::TurnDone { entity: alice(), generation, turn: id, result });
    assert_eq!((hand.dropped, hand.rooms, hand.machine.stats()), (1, 0, (0, 0)));
    assert_eq!(hand.machine.phase(), Phase::Serving);
    let next = hand.send(2, 0, MessageKind::Command);
    hand.run();
    hand.settle(CommitOutcome::Committed);
    assert_eq!(hand.code_of(next).as_deref(), Some("final 1"));
    assert_eq!((hand.loads, hand.starts), (2, 2));
}

#[test]
fn a13_a_stopping_shard_wakes_at_its_deadline() {
    let mut hand = Harness::serving();
    hand.send(1, 0, MessageKind::Command);
    hand.stop();
    assert_eq!(hand.machine.next_wake(), Some(hand.now + Settings::default().stop_timeout));
}
