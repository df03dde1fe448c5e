//! Shows that each rule that the model checks can fail: because a rule of the machine is disabled or, where that alone
//! violates nothing, because of handmade writes and claims.

#![allow(clippy::print_stdout, reason = "a run prints how many states it explored")]

use ostraca_core::ids::{Epoch, ShardId};
use ostraca_core::node::{Event, Mutation};
use ostraca_core::rows::{NodeStatus, Row, RowKey};
use ostraca_model::hosted::claim;
use ostraca_model::model::{Cluster, ONE_ANSWERS};
use ostraca_model::rules;
use ostraca_model::run::to_depth;
use ostraca_model::scope::{Budget, Scope, Start};
use ostraca_model::state::{NOW, State, claim_of};
use ostraca_model::world::handle_event;
use stateright::Model;

const CRASH: Budget = Budget { crashes: 1, ..Budget::NOTHING };
const DRAIN: Budget = Budget { crashes: 0, drains: 1, ..CRASH };

/// Explores from one initial state only: with some mutations, the cluster does not come to rest in the others.
fn seen_to_fail(mutation: Mutation, budget: Budget, rule: &str) {
    let start =
        if mutation == Mutation::SkipSeal { Start::OwnerManages } else { Start::OwnerHosts };
    let scope = Scope::one_shard(budget).from(&[start]).without(mutation);
    let outcome = to_depth(scope, 60);
    println!("{mutation:?}: {outcome}");
    assert!(outcome.broken.iter().any(|(name, _)| *name == rule), "{rule}");
}

#[test]
fn a_new_owner_before_the_old_one_is_marked_dead() {
    seen_to_fail(Mutation::AssignWithoutDeath, CRASH, rules::OVER);
}

#[test]
fn a_new_owner_before_the_old_one_has_stopped() {
    seen_to_fail(Mutation::AssignBeforeStopped, DRAIN, rules::OVER);
}

#[test]
fn a_new_owner_under_the_old_epoch() {
    seen_to_fail(Mutation::ReuseEpoch, DRAIN, rules::ONE_INCARNATION);
}

#[test]
fn a_message_of_another_hand_off_that_counts() {
    let budget = Budget { drains: 2, duplicates: 1, ..DRAIN };
    seen_to_fail(Mutation::SkipHandOffMatching, budget, rules::OVER);
}

#[test]
fn a_new_manager_that_decides_from_unsealed_rows() {
    seen_to_fail(Mutation::SkipSeal, CRASH, rules::SEALED);
}

#[test]
fn a_hand_off_announced_before_it_is_written() {
    seen_to_fail(Mutation::SkipWriteAhead, DRAIN, rules::AHEAD);
}

#[test]
fn an_incarnation_registered_over_a_live_lease() {
    let budget = Budget { restarts: 1, ..CRASH };
    seen_to_fail(Mutation::RegisterOverLiveLease, budget, rules::LEASE);
}

#[test]
fn a_node_that_does_not_suspend_when_its_lease_lapses() {
    let budget = Budget { crashes: 0, cuts: 1, ..CRASH };
    seen_to_fail(Mutation::SkipSuspend, budget, ONE_ANSWERS);
}

#[test]
fn a_hand_off_that_waits_for_every_acknowledgement() {
    let budget = Budget { losses: 1, ..DRAIN };
    seen_to_fail(Mutation::RequireAllAcks, budget, rules::REST);
}

fn at_rest() -> (Scope, State) {
    let scope = Scope::one_shard(CRASH).from(&[Start::OwnerHosts]);
    let state = Cluster::new(scope.clone()).init_states().remove(0);
    (scope, state)
}

fn broken_by(key: &RowKey, change: impl Fn(&mut Row)) -> Option<&'static str> {
    let (scope, mut state) = at_rest();
    let (mut row, _) = state.rows[key].clone();
    change(&mut row);
    rules::check_write(&scope, &mut state, 2, key, &row);
    state.broken
}

#[test]
fn rows_whose_term_or_epoch_decreases() {
    let term = broken_by(&RowKey::Manager, |row| {
        if let Row::Manager(row) = row {
            row.term -= 1;
        }
    });
    assert_eq!(term, Some(rules::TERMS));
    let epoch = broken_by(&RowKey::Assignments(0), |row| {
        if let Row::Assignments(row) = row {
            row.assignments[0].epoch = Epoch(0);
        }
    });
    assert_eq!(epoch, Some(rules::EPOCHS));
}

#[test]
fn a_dead_incarnation_that_renews() {
    let (scope, mut state) = at_rest();
    let key = RowKey::Node(State::name(0));
    let live = state.rows[&key].0.clone();
    if let Some((Row::Node(row), _)) = state.rows.get_mut(&key) {
        row.status = NodeStatus::Dead;
    }
    rules::check_write(&scope, &mut state, 0, &key, &live);
    assert_eq!(state.broken, Some(rules::DEAD));
    assert_eq!(state.renewed[&State::name(0)], NOW);
}

#[test]
fn a_claim_that_no_row_named() {
    let (_, mut state) = at_rest();
    let thief =
        state.nodes[1].as_ref().and_then(|node| node.machine.member()).expect("an incarnation");
    let _ = claim(&mut state, &claim_of(ShardId(1), Epoch(9), &thief));
    assert_eq!(state.broken, Some(rules::NAMED));
}

#[test]
fn an_epoch_that_is_served_after_it_was_released() {
    let (scope, mut state) = at_rest();
    let (mut row, revision) = state.rows[&RowKey::Assignments(0)].clone();
    if let Row::Assignments(row) = &mut row {
        row.assignments[0].epoch = Epoch(7);
    }
    state.given_up.insert((ShardId(1), Epoch(7)));
    let value = Some((row, revision + 1));
    handle_event(&scope, &mut state, 0, Event::RowObserved { key: RowKey::Assignments(0), value });
    assert_eq!(state.broken, Some(rules::FINAL));
}
