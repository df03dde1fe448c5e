//! Checks, in each step of several fault mixes, that discarded state has no effect (see `proof`).
//! `MODEL=all` checks each step of the largest mix.

#![allow(clippy::print_stdout, reason = "a run prints how many states it explored")]

use std::time::Duration;

use ostraca_core::ids::{Epoch, ShardId};
use ostraca_core::node::{ControlMessage, HandOff};
use ostraca_core::rows::HandOffId;
use ostraca_model::model::Cluster;
use ostraca_model::proof::{check, thrown_away};
use ostraca_model::rules;
use ostraca_model::run::every_state;
use ostraca_model::scope::{Budget, Scope, Start};
use ostraca_model::state::State;
use stateright::Model;

fn shown(name: &str, budget: Budget) {
    let scope = Scope::one_shard(budget).with_proof();
    let outcome = every_state(scope, Duration::from_secs(7_200));
    println!("{name}, checking what is discarded: {outcome}");
    assert!(outcome.holds(), "{name}: {outcome}");
}

#[test]
fn no_relevant_message_is_pruned_around_a_hand_off() {
    let drain = Budget { drains: 1, ..Budget::default() };
    shown("hand-off, crash", Budget { crashes: 1, ..drain });
    shown("hand-off, copy", Budget { duplicates: 1, ..drain });
    shown("hand-off, loss", Budget { losses: 1, ..drain });
}

#[test]
fn no_relevant_message_is_pruned_around_faults() {
    let none = Budget::default();
    shown("crash, copy, loss", Budget { crashes: 1, duplicates: 1, losses: 1, ..none });
    shown("crash, restart", Budget { crashes: 1, restarts: 1, ..none });
    shown("cut", Budget { cuts: 1, ..none });
    shown("pause", Budget { pauses: 1, ..none });
    shown("watch behind", Budget { lags: 1, ..none });
}

#[test]
fn no_relevant_message_is_pruned_in_the_largest_mix() {
    if !std::env::var("MODEL").is_ok_and(|what| what == "all") {
        println!("set MODEL=all to check the largest mix");
        return;
    }
    let budget = Budget { crashes: 1, drains: 1, duplicates: 1, losses: 1, ..Budget::default() };
    shown("hand-off, crash, copy, loss", budget);
}

#[test]
fn the_pruning_of_a_relevant_message_is_detected() {
    let scope = Scope::one_shard(Budget::default()).from(&[Start::OwnerHosts]).with_proof();
    let mut state = Cluster::new(scope.clone()).init_states().remove(0);
    check(&scope, &mut state);
    assert_eq!(state.broken, None);
    let incarnation = |state: &State, node: usize| {
        state.nodes[node].as_ref().and_then(|node| node.machine.member()).expect("an incarnation")
    };
    let (owner, manager) = (incarnation(&state, 0), incarnation(&state, 2));
    let id = HandOffId { term: 1, number: 1 };
    let (shard, epoch, incarnation) = (ShardId(1), Epoch(1), owner.incarnation);
    let stop = ControlMessage::HandOff(HandOff { term: 1, shard, epoch, incarnation, id });
    thrown_away(&mut state, vec![(manager, 0, stop)]);
    check(&scope, &mut state);
    assert_eq!(state.broken, Some(rules::PAST));
}
