//! The end of a shard on this node: stopped in every state, or lost.

use super::*;
use crate::rows::Member;

/// Another node's claim of the same shard.
fn standing(hand: &Hand, epoch: u64) -> Box<Claim> {
    let incarnation = Incarnation { counter: 7, nonce: 70 };
    let mine = Claim::clone(hand.machine.claim());
    Box::new(Claim { epoch: Epoch(epoch), node: "b".into(), incarnation, ..mine })
}

fn hint_of(claim: &Claim) -> Hint {
    let owner = Member { node: claim.node.clone(), incarnation: claim.incarnation };
    Hint { epoch: claim.epoch, owner: Some(owner) }
}

#[test]
fn s11_6_a_message_for_a_shard_that_was_lost_is_told_whose_it_is() {
    let mut hand = Hand::new(Settings::default());
    let waiting = hand.send(1, 0, Kind::Command);
    let standing = standing(&hand, 4);
    hand.tell(Event::Claimed {
        number: 1,
        outcome: ClaimOutcome::Refused { standing: standing.clone() },
    });
    let late = hand.send(2, 1, Kind::Command);
    for token in [waiting, late] {
        assert_eq!(hand.code_of(token).as_deref(), Some(codes::NOT_OWNER));
        assert_eq!(hand.hint_of(token), Some(hint_of(&standing)));
    }
    assert_eq!((hand.machine.phase(), hand.lost), (Phase::Lost, 1));
}

#[test]
fn s11_6_a_turn_whose_commit_met_another_claim_is_told_whose_the_shard_is() {
    let mut hand = Hand::serving();
    let turn = hand.send(1, 0, Kind::Command);
    hand.run();
    let standing = standing(&hand, 2);
    let refusal = Refusal::Claim { standing: Some(standing.clone()) };
    hand.settle(CommitOutcome::Refused(refusal));
    assert_eq!(hand.code_of(turn).as_deref(), Some(codes::NOT_OWNER));
    assert_eq!(hand.hint_of(turn), Some(hint_of(&standing)));
    assert_eq!((hand.lost, hand.rooms), (1, 0));
}

#[test]
fn s11_6_a_message_for_a_shard_that_stops_is_told_the_epoch_that_ends() {
    let mut hand = Hand::serving();
    hand.send(1, 0, Kind::Command);
    hand.tell(Event::Stop(StopReason::HandedOff));
    let late = hand.send(2, 1, Kind::Command);
    assert_eq!(hand.code_of(late).as_deref(), Some(codes::REBALANCING));
    assert_eq!(hand.hint_of(late), Some(Hint { epoch: Epoch(1), owner: None }));
}
