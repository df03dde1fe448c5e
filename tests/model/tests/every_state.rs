//! Explores every state of a small cluster, for several mixes of faults. `MODEL=all` adds the large mixes.

#![allow(clippy::print_stdout, reason = "a run prints how many states it explored")]

use ostraca_model::run::{holds_in_every_state as every, is_large};
use ostraca_model::scope::{Budget, Scope, Start};

const NOTHING: Budget = Budget::NOTHING;
const AGAIN: &str = "second owners that serve";

#[test]
fn one_crash_at_any_step_with_one_duplicate_and_one_loss() {
    let budget = Budget { crashes: 1, duplicates: 1, losses: 1, ..NOTHING };
    let seen = [
        "crashes",
        "duplicates received",
        "messages lost",
        "requests lost or delayed",
        "responses lost",
        "late requests",
        "owners by fail-over",
        "managers by fail-over",
        AGAIN,
    ];
    every("crash, copy, loss", Scope::one_shard(budget), &seen);
}

#[test]
fn one_crash_of_any_node_at_any_step_of_a_hand_off() {
    let budget = Budget { crashes: 1, drains: 1, ..NOTHING };
    let seen = [
        "owners by hand-off",
        "owners by fail-over",
        "managers by fail-over",
        "late requests",
        AGAIN,
    ];
    every("hand-off, crash", Scope::one_shard(budget), &seen);
}

#[test]
fn a_hand_off_with_one_duplicate_or_one_loss() {
    for (name, duplicates, losses) in [("hand-off, copy", 1, 0), ("hand-off, loss", 0, 1)] {
        let budget = Budget { drains: 1, duplicates, losses, ..NOTHING };
        every(name, Scope::one_shard(budget), &["owners by hand-off", AGAIN]);
    }
}

/// A hand-off with one crash of any node, one copy and one loss, each at any step.
fn all_at_once(name: &str, start: Start) {
    let budget = Budget { crashes: 1, drains: 1, duplicates: 1, losses: 1, ..NOTHING };
    let seen = [
        "crashes",
        "duplicates received",
        "messages lost",
        "messages delayed",
        "requests lost or delayed",
        "responses lost",
        "late requests",
        "owners by hand-off",
        "owners by fail-over",
        "managers by fail-over",
        AGAIN,
    ];
    let name = format!("hand-off, crash, copy, loss; {name}");
    every(&name, Scope::one_shard(budget).from(&[start]), &seen);
}

#[test]
fn all_faults_in_a_hand_off_of_an_owner_that_only_hosts() {
    all_at_once("the owner hosts only", Start::OwnerHosts);
}

#[test]
fn all_faults_in_a_hand_off_of_an_owner_that_manages() {
    all_at_once("the owner manages", Start::OwnerManages);
}

#[test]
fn all_faults_in_a_hand_off_of_the_next_manager() {
    all_at_once("the owner stands by", Start::OwnerStandsBy);
}

#[test]
fn a_node_cut_from_the_store_and_healed_at_any_step() {
    let budget = Budget { cuts: 1, ..NOTHING };
    let seen = ["heals", "owners by fail-over", "managers by fail-over", AGAIN];
    every("cut", Scope::one_shard(budget), &seen);
}

#[test]
fn a_node_whose_watch_falls_behind_and_catches_up_at_any_step() {
    let budget = Budget { lags: 1, ..NOTHING };
    every("watch behind", Scope::one_shard(budget), &["catch-ups", "managers by fail-over"]);
}

#[test]
fn a_process_paused_by_a_signal_and_resumed_at_any_step() {
    let budget = Budget { pauses: 1, ..NOTHING };
    let seen = ["wakes", "owners by fail-over", "managers by fail-over", AGAIN];
    every("pause", Scope::one_shard(budget), &seen);
}

#[test]
fn one_crash_at_any_step_of_a_hand_off_with_two_shards() {
    let budget = Budget { crashes: 1, drains: 1, ..NOTHING };
    let seen = ["owners by hand-off", "owners by fail-over", "managers by fail-over", AGAIN];
    every("two shards, hand-off, crash", Scope::one_shard(budget).of_shards(2), &seen);
}

#[test]
fn large_mixes_of_faults() {
    if !is_large() {
        println!("set MODEL=all to check the large mixes: about ten minutes");
        return;
    }
    let crash = Budget { crashes: 1, ..NOTHING };
    let joint = Budget { drains: 1, duplicates: 1, losses: 1, ..crash };
    let mixes = [
        ("crash, restart", Scope::one_shard(Budget { restarts: 1, ..crash })),
        ("crash, cut", Scope::one_shard(Budget { cuts: 1, ..crash })),
        ("two shards, hand-off, crash, copy, loss", Scope::one_shard(joint).of_shards(2)),
    ];
    for (name, scope) in mixes {
        every(name, scope, &["owners by fail-over"]);
    }
    let scope = Scope::one_shard(NOTHING).from(&[Start::Cold]);
    every("three processes start at once", scope, &["claims and stops"]);
}
