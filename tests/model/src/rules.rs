//! The rules. Most are checked at each write and each claim. Each constant is the name of a stateright property.

use ostraca_core::rows::{AssignmentsRow, NodeRow, NodeStatus, Row, RowKey, shard_at};

use crate::scope::Scope;
use crate::state::{NOW, State};
use crate::stateless;

/// R1, R5: a claim is granted only to the incarnation that a row named under its epoch.
pub const NAMED: &str = "claims belong to incarnations that a row named under that epoch";
/// R5, S14: one epoch names one incarnation.
pub const ONE_INCARNATION: &str = "an epoch names one incarnation";
/// R7, A16.
pub const OVER: &str = "a new owner is written after the old one's death or word";
/// R10.
pub const TERMS: &str = "terms never fall";
/// R5.
pub const EPOCHS: &str = "epochs never fall";
/// R10.
pub const SEALED: &str = "a manager decides from rows that bear its term";
/// R7.
pub const DEAD: &str = "an ended incarnation never renews";
/// R7, R8.
pub const LEASE: &str = "no node is marked dead before its own lease ends";
/// S15, R11.
pub const AHEAD: &str = "a hand-off is written before it is announced";
/// R11.
pub const FINAL: &str = "a released epoch is never served again";
/// E5.
pub const ONE_NUMBER: &str = "a number belongs to one host";
/// E8.
pub const LAPSED: &str = "a shard is taken only when its owner no longer relies on its lease";
/// E7.
pub const STOPPED: &str = "a shard is released only when it has stopped";
/// Liveness of clusters at rest.
pub const REST: &str = "a cluster at rest serves every shard and has drained every draining node";

/// A rule of the model itself: see [`crate::proof`].
pub const PAST: &str = "pruned state has no effect";

/// Checks a write immediately before the store applies it.
pub fn check_write(scope: &Scope, state: &mut State, author: usize, key: &RowKey, new: &Row) {
    let lease = scope.settings().lease;
    let old = state.rows.get(key).map(|(row, _)| row.clone());
    match (key, old, new) {
        (RowKey::Node(node), Some(Row::Node(old)), Row::Node(new)) => {
            let age = NOW - state.renewed.get(node).copied().unwrap_or(0);
            check_node_row(state, &old, new, age < lease);
        }
        (RowKey::Manager, Some(Row::Manager(old)), Row::Manager(new)) if new.term <= old.term => {
            state.break_rule(TERMS);
        }
        (RowKey::Assignments(chunk), old, Row::Assignments(new)) => {
            let old = match old {
                Some(Row::Assignments(old)) => old,
                _ => AssignmentsRow::default(),
            };
            check_assignments(scope, state, author, *chunk, &old, new);
        }
        (RowKey::Numbers(_), _, Row::Numbers(new)) => {
            stateless::check_numbers(state, new);
        }
        _ => {}
    }
}

fn check_node_row(state: &mut State, old: &NodeRow, new: &NodeRow, good: bool) {
    if old.incarnation == new.incarnation {
        if old.status != NodeStatus::Live && new.status == NodeStatus::Live {
            state.break_rule(DEAD);
        }
        if old.status == NodeStatus::Live && new.status == NodeStatus::Dead && good {
            state.break_rule(LEASE);
        }
    } else {
        if old.status == NodeStatus::Live && good {
            state.break_rule(LEASE);
        }
        if new.incarnation.counter <= old.incarnation.counter {
            state.break_rule(DEAD);
        }
    }
}

fn check_assignments(
    scope: &Scope,
    state: &mut State,
    author: usize,
    chunk: u32,
    old: &AssignmentsRow,
    new: &AssignmentsRow,
) {
    if new.term < old.term {
        state.break_rule(TERMS);
    }
    for (place, row) in new.assignments.iter().enumerate() {
        let shard = shard_at(chunk, place);
        let before = old.assignments.get(place).cloned().unwrap_or_default();
        if row.epoch < before.epoch {
            state.break_rule(EPOCHS);
        }
        if *row != before && new.term != old.term {
            state.break_rule(SEALED);
        }
        if let Some(moving) = &row.hand_off {
            state.intents.insert(moving.id);
        }
        if scope.stateless {
            stateless::check_owner(state, shard, &before, row);
        }
        let Some(owner) = &row.owner else { continue };
        if state.named.insert((shard, row.epoch), owner.clone()).is_some_and(|was| was != *owner) {
            state.break_rule(ONE_INCARNATION);
        }
        if scope.stateless {
            continue;
        }
        let Some(was) = before.owner.filter(|_| row.epoch != before.epoch) else { continue };
        // A manager that releases its own shard sends no message about it.
        let own = State::number(&was.node) == author
            && state.nodes[author].as_ref().is_some_and(|process| {
                process.machine.held_shards().all(|held| (held.0, held.1) != (shard, before.epoch))
            });
        if !state.has_ended(&was) && !state.given_up.contains(&(shard, before.epoch)) && !own {
            state.break_rule(OVER);
        }
    }
}
