//! Pruning: state that no node will ever read again is discarded after each step.

use ostraca_core::ids::{Epoch, NodeId, ShardId};
use ostraca_core::node::{ControlMessage, HandOff, NodeReport, WriteError};
use ostraca_core::rows::{Assignment, HandOffId, Member, NodeStatus, Row, RowKey, index_in_chunk};

use crate::proof;
use crate::state::{Call, DelayedRequest, Process, State, hash};

/// Discards what can no longer have an effect.
pub fn clear(state: &mut State) {
    clear_messages(state);
    clear_requests(state);
    clear_history(state);
}

/// Whether neither this message nor its answer will ever have an effect.
pub fn is_irrelevant(state: &State, to: usize, from: &Member, message: &ControlMessage) -> bool {
    let Some(process) = &state.nodes[to] else { return true };
    if !process.machine.is_irrelevant(from, message) {
        return false;
    }
    let answer = match *message {
        ControlMessage::BeginHandOff { hand_off, .. } => {
            let HandOff { term, shard, epoch, id, .. } = hand_off;
            ControlMessage::BeginHandOffAck { term, shard, epoch, id }
        }
        ControlMessage::HandOff(hand_off) => ControlMessage::ShardStopped(hand_off),
        _ => return true,
    };
    // Of its sender, an answer contains only the name.
    let me = Member { node: State::name(to), incarnation: from.incarnation };
    match &state.nodes[State::number(&from.node)] {
        Some(asker) => asker.machine.is_irrelevant(&me, &answer),
        None => true,
    }
}

fn clear_messages(state: &mut State) {
    let is_report = |message: &ControlMessage| matches!(message, ControlMessage::Report(_));
    let mut links = std::mem::take(&mut state.links);
    let mut gone = Vec::new();
    links.retain(|(_, to), queue| {
        // The last report counts: even a report without content may revoke an earlier one.
        let mut behind = false;
        queue.retain(|(from, message)| {
            let copies = || {
                let mut all = state.strays.iter();
                all.any(|(sender, at, message)| {
                    at == to && sender.node == from.node && is_report(message)
                })
            };
            let follows = is_report(message) && (behind || copies());
            let keep = follows || !is_irrelevant(state, *to, from, message);
            behind |= keep && is_report(message);
            if !keep && state.proof.is_some() {
                gone.push((from.clone(), *to, message.clone()));
            }
            keep
        });
        !queue.is_empty()
    });
    let mut strays = std::mem::take(&mut state.strays);
    strays.retain_mut(|(from, to, message)| {
        let keep = match message {
            ControlMessage::Report(report) => {
                blank(state, *to, from, report);
                state.nodes[*to].is_some() && (state.budget.restarts > 0 || !is_gone(state, from))
            }
            _ => !is_irrelevant(state, *to, from, message),
        };
        if !keep && state.proof.is_some() && !is_report(message) {
            gone.push((from.clone(), *to, message.clone()));
        }
        keep
    });
    strays.sort_by_cached_key(hash);
    (state.links, state.strays) = (links, strays);
    proof::thrown_away(state, gone);
}

/// Blanks a late report without content. It may still revoke a later report, but all such reports are equal.
fn blank(state: &State, to: usize, from: &Member, report: &mut NodeReport) {
    let agrees = |process: &Process| process.machine.is_report_irrelevant(from, report);
    if state.nodes[to].as_ref().is_some_and(agrees) {
        let incarnation = report.incarnation;
        *report = NodeReport { incarnation, store_available: true, ..NodeReport::default() };
    }
}

/// Whether an incarnation has ended and its node will have no other, as long as no process is restarted.
fn is_gone(state: &State, member: &Member) -> bool {
    state.nodes[State::number(&member.node)].is_none() && state.has_ended(member)
}

fn clear_requests(state: &mut State) {
    let (rows, claims) = (&state.rows, &state.claims);
    state.delayed_requests.retain(|late| match late {
        DelayedRequest::Write(_, write) => {
            rows.get(&write.key).map(|(_, at)| *at) == write.expected
        }
        DelayedRequest::Claim(claim) => {
            claims.get(&claim.shard.shard).is_none_or(|standing| claim.supersedes(standing))
        }
    });
    for late in &mut state.delayed_requests {
        if let DelayedRequest::Write(_, write) = late {
            // No node waits for the response.
            write.number = 0;
        }
    }
    // Delayed requests arrive in any order, and the second of two equal ones has no effect.
    state.delayed_requests.sort_by_cached_key(hash);
    state.delayed_requests.dedup();
}

fn clear_history(state: &mut State) {
    let State { rows, nodes, claims, .. } = &*state;
    let row = |shard: ShardId| match rows.get(&RowKey::for_shard(shard)) {
        Some((Row::Assignments(row), _)) => row.assignments.get(index_in_chunk(shard)),
        _ => None,
    };
    // The time of the last renewal matters only while the incarnation is live.
    let live = |row: &Row| matches!(row, Row::Node(row) if row.status == NodeStatus::Live);
    let judged =
        |node: &NodeId| rows.get(&RowKey::Node(node.clone())).is_some_and(|row| live(&row.0));
    // No node claims below the current claim, and no row is written below the current one.
    let claimed = |shard: ShardId| claims.get(&shard).map_or(Epoch(0), |claim| claim.epoch);
    // A node that knows no higher epoch may take a released shard again.
    let seen = |shard: ShardId| {
        let of = |process: &Process| process.machine.known_epoch(shard);
        let least = nodes.iter().flatten().filter_map(of).min();
        least.into_iter().chain(row(shard).map(|row| row.epoch)).min().unwrap_or(Epoch(0))
    };
    let known = |id: &HandOffId| {
        let named = |row: &Assignment| row.hand_off.as_ref().is_some_and(|moving| moving.id == *id);
        let in_row =
            |row: &Row| matches!(row, Row::Assignments(row) if row.assignments.iter().any(named));
        let in_message = |message: &ControlMessage| matches!(message, ControlMessage::RowUpdate { row, .. } if in_row(row));
        let in_call = |call: &Call| match call {
            Call::Response(_, _, Err(WriteError::Conflict(Some((row, _))))) => in_row(row),
            _ => false,
        };
        rows.values().any(|(row, _)| in_row(row))
            || state.links.values().flatten().any(|(_, message)| in_message(message))
            || state.strays.iter().any(|(_, _, message)| in_message(message))
            || nodes.iter().flatten().any(|process| {
                process.machine.may_continue_hand_off(*id)
                    || process.calls.iter().any(in_call)
                    || process.watch.iter().flatten().any(|(_, row, _)| in_row(row))
            })
    };
    let renewed: Vec<_> = state.renewed.keys().filter(|node| !judged(node)).cloned().collect();
    let named: Vec<_> =
        state.named.keys().filter(|(shard, at)| *at < claimed(*shard)).copied().collect();
    let given_up: Vec<_> =
        state.given_up.iter().filter(|(shard, at)| *at < seen(*shard)).copied().collect();
    let intents: Vec<_> = state.intents.iter().filter(|id| !known(id)).copied().collect();
    state.renewed.retain(|node, _| !renewed.contains(node));
    state.named.retain(|at, _| !named.contains(at));
    state.given_up.retain(|at| !given_up.contains(at));
    state.intents.retain(|id| !intents.contains(id));
}
