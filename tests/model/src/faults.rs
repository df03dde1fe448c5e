//! The faults of the model.

use ostraca_core::ids::NodeId;
use ostraca_core::node::{Event, WriteError};
use ostraca_core::rows::{Row, RowKey, index_in_chunk};

use crate::scope::Scope;
use crate::state::{Call, DelayedRequest, Phase, State};
use crate::step::Step;
use crate::world::handle_event;

/// The possible next faults.
pub fn faults(scope: &Scope, state: &State, steps: &mut Vec<Step>) {
    let budget = state.budget;
    for (node, process) in state.nodes.iter().enumerate() {
        let Some(process) = process else {
            if budget.restarts > 0 {
                steps.push(Step::Restart(node));
            }
            continue;
        };
        if process.cut {
            steps.push(Step::Heal(node));
        }
        if process.lag {
            steps.push(Step::CatchUp(node));
        }
        if process.paused {
            steps.push(Step::Wake(node));
            continue;
        }
        if budget.crashes > 0 {
            steps.push(Step::Crash(node));
        }
        if budget.cuts > 0 && !process.cut {
            steps.push(Step::Cut(node));
        }
        if budget.lags > 0 && !process.lag {
            steps.push(Step::Lag(node));
        }
        if budget.pauses > 0 {
            steps.push(Step::Pause(node));
        }
        if budget.losses > 0 {
            match process.calls.front() {
                Some(Call::Write(_)) => steps.push(Step::Delay(node)),
                Some(Call::Response(..)) => steps.push(Step::LoseResponse(node)),
                _ => {}
            }
        }
    }
    for (from, to) in state.links.keys() {
        if budget.duplicates > 0 {
            steps.push(Step::Duplicate(*from, *to));
        }
        if budget.losses > 0 {
            steps.push(Step::LoseMessage(*from, *to));
        }
        if budget.losses > 0 && budget.duplicates > 0 {
            steps.push(Step::DelayMessage(*from, *to));
        }
    }
    if budget.drains > 0 && owner(scope, state).is_some() && state.nodes[1].is_some() {
        steps.push(Step::Drain);
    }
}

/// Delays or loses a write, or loses the response to it.
pub fn lose(scope: &Scope, state: &mut State, node: usize, step: Step) {
    let Some(process) = &mut state.nodes[node] else { return };
    let number = match process.calls.pop_front() {
        Some(Call::Write(write)) => {
            let number = write.number;
            if matches!(step, Step::Delay(_)) {
                state.delayed_requests.push(DelayedRequest::Write(node, write));
            }
            number
        }
        Some(Call::Response(_, number, _)) => number,
        _ => return,
    };
    let result = Err(WriteError::Unknown);
    handle_event(scope, state, node, Event::RowWritten { request_id: number, result });
}

/// Starts or ends a fault that blocks something.
pub fn hold_up(scope: &Scope, state: &mut State, step: Step) {
    let (Step::Cut(node)
    | Step::Heal(node)
    | Step::Lag(node)
    | Step::CatchUp(node)
    | Step::Pause(node)
    | Step::Wake(node)) = step
    else {
        return;
    };
    let Some(process) = &mut state.nodes[node] else { return };
    match step {
        Step::Cut(_) => {
            state.budget.cuts -= 1;
            process.cut = true;
            process.watch = None;
            if let Some(Call::Response(_, _, result)) = process.calls.front_mut() {
                *result = Err(WriteError::Unknown);
            }
        }
        Step::Heal(_) => {
            process.cut = false;
            handle_event(scope, state, node, Event::WatchLost);
        }
        Step::Lag(_) => {
            state.budget.lags -= 1;
            process.lag = true;
        }
        Step::CatchUp(_) => process.lag = false,
        Step::Pause(_) => {
            state.budget.pauses -= 1;
            process.paused = true;
        }
        Step::Wake(_) => {
            process.paused = false;
            handle_event(scope, state, node, Event::Tick);
        }
        _ => {}
    }
}

/// The owner of the first shard.
pub fn owner(scope: &Scope, state: &State) -> Option<NodeId> {
    let first = scope.all_shards().next()?;
    match state.rows.get(&RowKey::Assignments(0)) {
        Some((Row::Assignments(row), _)) => {
            Some(row.assignments.get(index_in_chunk(first))?.owner.clone()?.node)
        }
        _ => None,
    }
}

/// Duplicates the first message of a link.
pub fn keep_copy(state: &mut State, from: usize, to: usize) {
    state.budget.duplicates -= 1;
    let first = state.links.get(&(from, to)).and_then(|queue| queue.front()).cloned();
    state.strays.extend(first.map(|(incarnation, message)| (incarnation, to, message)));
}

/// Drops the first message of a link.
pub fn lose_message(state: &mut State, from: usize, to: usize) {
    state.budget.losses -= 1;
    state.links.get_mut(&(from, to)).and_then(|queue| queue.pop_front());
}

/// Kills a process. Messages, writes and claims that it sent may still arrive.
pub fn crash(state: &mut State, node: usize) {
    state.budget.crashes -= 1;
    let Some(process) = state.nodes[node].take() else { return };
    for hosted in process.hosted.into_values() {
        if hosted.phase == Phase::Claiming {
            state.delayed_requests.push(DelayedRequest::Claim(hosted.claim));
        }
    }
    for call in process.calls {
        if let Call::Write(write) = call {
            state.delayed_requests.push(DelayedRequest::Write(node, write));
        }
    }
}
