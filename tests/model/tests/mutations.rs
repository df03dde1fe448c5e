//! Each rule that the model looks after is seen to fail where the machine is told to forget it.

use ostraca_model::model::ONE_ANSWERS;
use ostraca_model::rules;
use ostraca_model::run::to_depth;
use ostraca_model::scope::{Budget, Scope, Start};
use ostraca_sharding::node::Mutation;

const CRASH: Budget = Budget {
    crashes: 1,
    restarts: 0,
    duplicates: 0,
    losses: 0,
    cuts: 0,
    lags: 0,
    pauses: 0,
    drains: 0,
};
const DRAIN: Budget = Budget { crashes: 0, drains: 1, ..CRASH };

/// From one beginning: some mutations keep a cluster from coming to rest at the others.
fn seen_to_fail(mutation: Mutation, budget: Budget, rule: &str) {
    let start = if mutation == Mutation::NoSeal { Start::OwnerManages } else { Start::OwnerHosts };
    let scope = Scope::one_shard(budget).from(&[start]).without(mutation);
    let outcome = to_depth(scope, 60);
    println!("{mutation:?}: {outcome}");
    assert!(outcome.broken.iter().any(|(name, _)| *name == rule), "{rule}");
}

#[test]
fn a_new_owner_without_the_old_ones_death() {
    seen_to_fail(Mutation::AssignWithoutDeath, CRASH, rules::OVER);
}

#[test]
fn a_new_owner_without_the_old_ones_word() {
    seen_to_fail(Mutation::DontAwaitStop, DRAIN, rules::OVER);
}

#[test]
fn a_new_owner_under_the_old_epoch() {
    seen_to_fail(Mutation::SameEpoch, DRAIN, rules::ONE_LIFE);
}

#[test]
fn a_word_of_another_hand_off_that_counts() {
    let budget = Budget { drains: 2, duplicates: 1, ..DRAIN };
    seen_to_fail(Mutation::NoMatching, budget, rules::OVER);
}

#[test]
fn a_new_manager_that_decides_from_rows_of_the_old_one() {
    seen_to_fail(Mutation::NoSeal, CRASH, rules::SEALED);
}

#[test]
fn a_hand_off_that_is_told_before_it_is_written() {
    seen_to_fail(Mutation::NotAhead, DRAIN, rules::AHEAD);
}

#[test]
fn a_life_that_replaces_one_whose_lease_is_good() {
    let budget = Budget { restarts: 1, ..CRASH };
    seen_to_fail(Mutation::RegisterAtOnce, budget, rules::LEASE);
}

#[test]
fn a_node_that_goes_on_when_its_lease_lapsed() {
    let budget = Budget { crashes: 0, cuts: 1, ..CRASH };
    seen_to_fail(Mutation::NoSuspend, budget, ONE_ANSWERS);
}

#[test]
fn a_hand_off_that_waits_for_every_acknowledgement() {
    let budget = Budget { losses: 1, ..DRAIN };
    seen_to_fail(Mutation::AcksVeto, budget, rules::REST);
}
