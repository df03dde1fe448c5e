//! Explores every state of a pool without a manager, which two hosts divide (E3 to E8), for several mixes of faults.
//! `MODEL=all` adds the large mixes. Then shows that each rule can fail.

#![allow(clippy::print_stdout, reason = "a run prints how many states it explored")]

use ostraca_core::node::Mutation;
use ostraca_core::rows::{Assignment, NumbersRow, Row, RowKey, index_in_chunk};
use ostraca_model::model::{Cluster, ONE_ANSWERS};
use ostraca_model::rules;
use ostraca_model::run::{holds_in_every_state as every, is_large, to_depth};
use ostraca_model::scope::{Budget, Scope, Start};
use ostraca_model::state::State;
use ostraca_model::stateless::POOL;
use stateright::Model;

const NOTHING: Budget = Budget::NOTHING;
const TAKEN: &str = "shards taken by their leases";
const NUMBERS: &str = "changes of numbers";
const AGAIN: &str = "second owners that serve";

#[test]
fn e5_two_nodes_that_start_at_once_take_two_numbers() {
    let at_once = |budget| Scope::without_manager(budget).from(&[Start::Cold]);
    every("both start at once", at_once(NOTHING), &[NUMBERS, AGAIN]);
    let budget = Budget { losses: 1, ..NOTHING };
    every("both start at once, loss", at_once(budget), &[NUMBERS, "late requests"]);
}

#[test]
fn e8_a_crashed_hosts_shards_are_taken_when_their_leases_lapse() {
    let crash = Budget { crashes: 1, losses: 1, ..NOTHING };
    every("crash, loss", Scope::without_manager(crash), &[TAKEN, AGAIN, "late requests"]);
    let restart = Budget { crashes: 1, restarts: 1, ..NOTHING };
    let seen = [TAKEN, AGAIN, NUMBERS, "restarts"];
    every("crash, restart", Scope::without_manager(restart), &seen);
}

#[test]
fn e7_a_draining_host_hands_its_shards_over() {
    let budget = Budget { drains: 1, crashes: 1, losses: 1, ..NOTHING };
    let seen = [NUMBERS, AGAIN, "late requests", "drains"];
    every("drain, crash, loss", Scope::without_manager(budget), &seen);
}

#[test]
fn e8_a_host_that_cannot_renew_loses_its_shards_in_time() {
    for (name, budget, seen) in [
        ("cut", Budget { cuts: 1, ..NOTHING }, "heals"),
        ("pause", Budget { pauses: 1, ..NOTHING }, "wakes"),
        ("watch behind", Budget { lags: 1, ..NOTHING }, "catch-ups"),
    ] {
        every(name, Scope::without_manager(budget), &[seen]);
    }
}

#[test]
fn large_mixes_of_faults_without_a_manager() {
    if !is_large() {
        println!("set MODEL=all to check the large mixes");
        return;
    }
    let crash = Budget { crashes: 1, restarts: 1, ..NOTHING };
    for (name, scope) in [
        (
            "both start at once, crash, restart, loss",
            Scope::without_manager(Budget { losses: 1, ..crash }).from(&[Start::Cold]),
        ),
        ("crash, restart, loss", Scope::without_manager(Budget { losses: 1, ..crash })),
        ("crash, restart, cut", Scope::without_manager(Budget { cuts: 1, ..crash })),
        ("crash, restart, pause", Scope::without_manager(Budget { pauses: 1, ..crash })),
        (
            "three shards, crash, drain, loss",
            Scope::without_manager(Budget { crashes: 1, drains: 1, losses: 1, ..NOTHING })
                .of_shards(3),
        ),
    ] {
        every(name, scope, &[NUMBERS]);
    }
}

fn seen_to_fail(mutation: Mutation, budget: Budget, rule: &str) {
    let outcome = to_depth(Scope::without_manager(budget).without(mutation), 40);
    println!("{mutation:?}: {outcome}");
    assert!(outcome.broken.iter().any(|(name, _)| *name == rule), "{rule}");
}

#[test]
fn e8_a_shard_taken_while_its_lease_lasts_is_detected() {
    let cut = Budget { cuts: 1, ..NOTHING };
    seen_to_fail(Mutation::TakeUnlapsedShardLease, cut, rules::LAPSED);
    let drain = Budget { cuts: 1, drains: 1, ..NOTHING };
    seen_to_fail(Mutation::TakeUnlapsedShardLease, drain, rules::LAPSED);
}

#[test]
fn e8_a_lease_that_is_never_renewed_is_detected() {
    seen_to_fail(Mutation::NeverRenewShardLeases, NOTHING, rules::REST);
}

fn at_rest() -> (Scope, State) {
    let scope = Scope::without_manager(NOTHING);
    let state = Cluster::new(scope.clone()).init_states().remove(0);
    (scope, state)
}

/// The rule that the first node breaks if it writes this row.
fn broken_by(change: impl Fn(&mut NumbersRow)) -> Option<&'static str> {
    let (scope, mut state) = at_rest();
    let key = RowKey::Numbers(POOL.into());
    let Some((Row::Numbers(mut row), _)) = state.rows.get(&key).cloned() else {
        panic!("no numbers")
    };
    change(&mut row);
    rules::check_write(&scope, &mut state, 0, &key, &Row::Numbers(row));
    state.broken
}

#[test]
fn e5_a_number_with_two_hosts_is_detected() {
    let shared = broken_by(|row| row.holders[1].number = row.holders[0].number);
    assert_eq!(shared, Some(rules::ONE_NUMBER));
    assert_eq!(broken_by(|_| {}), None);
}

/// The rule that is broken if this row replaces that of the last shard, which is served.
fn broken_by_owner(change: impl Fn(&mut Assignment)) -> Option<&'static str> {
    let (scope, mut state) = at_rest();
    let shard = scope.all_shards().last().expect("a shard");
    let key = RowKey::for_shard(shard);
    let Some((Row::Assignments(mut row), _)) = state.rows.get(&key).cloned() else {
        panic!("no owners")
    };
    change(&mut row.assignments[index_in_chunk(shard)]);
    rules::check_write(&scope, &mut state, 0, &key, &Row::Assignments(row));
    state.broken
}

#[test]
fn e7_a_shard_released_while_it_is_served_is_detected() {
    assert_eq!(broken_by_owner(|row| row.owner = None), Some(rules::STOPPED));
}

#[test]
fn e8_two_hosts_that_answer_for_a_shard_are_detected() {
    let (scope, mut state) = at_rest();
    let shard = scope.all_shards().next().expect("a shard");
    let serving = |node: &Option<ostraca_model::state::Process>| {
        node.as_ref().and_then(|it| it.hosted.get(&shard)).cloned()
    };
    let hosted = state.nodes.iter().find_map(serving).expect("it is served");
    for node in state.nodes.iter_mut().flatten() {
        node.hosted.insert(shard, hosted.clone());
    }
    let model = Cluster::new(scope);
    let properties = model.properties();
    let one = properties.iter().find(|rule| rule.name == ONE_ANSWERS).expect("the rule");
    assert!(!(one.condition)(&model, &state));
    // Without its lease, the second one does not answer.
    state.nodes[1].as_mut().expect("a node").hosted.get_mut(&shard).expect("it").lease_until = 0;
    assert!((one.condition)(&model, &state));
}
