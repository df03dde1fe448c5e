//! Explores every state of one or two tells: any order of the steps, with crashes of either side, a copy and a loss.

#![allow(clippy::print_stdout, reason = "a run prints how many states it explored")]

use std::collections::BTreeMap;

use ostraca_core::shard::Mutation;
use ostraca_model::run::is_large;
use ostraca_model::tells::{
    ANSWER_LOST, COPY_AFTER, ENDS, HOLDS, SENDER_EARLY, SENDER_LATE, SENDER_WAITING, TARGET_EARLY,
    TARGET_LATE, TellScope, Tells,
};
use stateright::{Checker, HasDiscoveries, Model};

/// The violated rules and the events that occurred, each with the steps that lead to it.
fn explore(name: &str, scope: TellScope) -> BTreeMap<&'static str, Vec<String>> {
    let checker = Tells { scope }.checker().threads(2);
    let checker = checker.finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    let (states, depth) = (checker.unique_state_count(), checker.max_depth());
    println!("{name}: {states} states, depth {depth}");
    let found = checker.discoveries().into_iter();
    let steps = |path: stateright::Path<_, _>| {
        path.into_actions().into_iter().map(|step| format!("{step:?}")).collect()
    };
    found.map(|(property, path)| (property, steps(path))).collect()
}

fn holds(name: &str, scope: TellScope, occurs: &[&str]) {
    let found = explore(name, scope);
    for rule in [HOLDS, ENDS] {
        assert!(!found.contains_key(rule), "{name}: violated: {rule}: {:?}", found[rule]);
    }
    for what in occurs {
        assert!(found.contains_key(what), "{name}: did not occur: {what}");
    }
}

fn breaks(mutation: Mutation, scope: TellScope) {
    let found = explore(&format!("{mutation:?}"), TellScope { mutations: vec![mutation], ..scope });
    assert!(found.contains_key(HOLDS), "{mutation:?} is not detected");
}

#[test]
fn r19_a_tell_runs_once_with_a_crash_of_either_side() {
    for (name, crashes, occurs) in [
        ("crash of the sender", [1, 0], [SENDER_EARLY, SENDER_WAITING, SENDER_LATE].as_slice()),
        ("crash of the target", [0, 1], &[TARGET_EARLY, TARGET_LATE]),
    ] {
        let scope = TellScope { tells: 1, crashes, copies: 1, losses: 1, ..Default::default() };
        let occurs = [occurs, &[COPY_AFTER, ANSWER_LOST]].concat();
        holds(&format!("{name}, copy, loss"), scope, &occurs);
    }
}

#[test]
fn r19_a_tell_runs_once_though_both_sides_crash() {
    let scope = TellScope { tells: 1, crashes: [1, 1], ..Default::default() };
    let occurs = [SENDER_EARLY, SENDER_WAITING, SENDER_LATE, TARGET_EARLY, TARGET_LATE];
    holds("crashes of both", scope.clone(), &occurs);
    if is_large() {
        let scope = TellScope { copies: 1, losses: 1, ..scope };
        holds("crashes of both, copy, loss", scope, &[&occurs[..], &[COPY_AFTER]].concat());
    }
}

#[test]
fn r19_two_tells_run_in_order() {
    let scope = TellScope { tells: 2, crashes: [0, 1], ..Default::default() };
    holds("two tells, crash of the target", scope.clone(), &[TARGET_EARLY, TARGET_LATE]);
    let scope = TellScope { crashes: [0, 0], copies: 1, losses: 1, ..scope };
    holds("two tells, copy, loss", scope.clone(), &[COPY_AFTER, ANSWER_LOST]);
    if is_large() {
        let scope = TellScope { crashes: [1, 0], ..scope };
        holds("two tells, crash of the sender, copy, loss", scope, &[SENDER_WAITING, COPY_AFTER]);
    }
}

#[test]
fn r19_a_refused_tell_becomes_a_dead_letter_at_any_step() {
    let scope = TellScope { tells: 2, refuses: true, crashes: [1, 0], ..Default::default() };
    holds("two tells, one refused, crash of the sender", scope.clone(), &[SENDER_LATE]);
    let scope = TellScope { crashes: [0, 1], copies: 1, losses: 1, ..scope };
    holds("two tells, one refused, crash of the target, copy, loss", scope, &[TARGET_LATE]);
}

#[test]
fn r19_the_model_detects_broken_tell_rules() {
    let scope = TellScope { tells: 1, ..Default::default() };
    breaks(Mutation::DeleteSentTell, scope.clone());
    breaks(Mutation::IgnoreLanes, TellScope { copies: 1, ..scope.clone() });
    breaks(Mutation::TellBeforeCommit, TellScope { crashes: [1, 0], ..scope });
}
