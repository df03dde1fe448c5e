//! The effects of a step: machines handle events, and their actions are queued or executed.
//!
//! Some effects happen within the step that causes them, so their order relative to other steps is not explored: a
//! renewal with its response; the notification of a renewal, if nothing is queued before it; and the notification of a
//! row that its receiver already knows, which changes nothing.

use std::collections::VecDeque;
use std::sync::Arc;

use ostraca_core::assign::BuiltinStrategy;
use ostraca_core::message::Now;
use ostraca_core::node::{Action, ControlMessage, Event, Machine, NodeIdentity, WriteError};
use ostraca_core::pools::Pools;
use ostraca_core::rows::{Member, NodeRow, NodeStatus, Roles, Row, RowKey};

use crate::hosted::leave;
use crate::proof;
use crate::rules;
use crate::scope::Scope;
use crate::state::{Call, Hosted, NOW, Phase, Process, State, Write, claim_of, hash};
use crate::stateless;
use crate::time::Unchanged;

/// Starts a node's process.
pub fn start(scope: &Scope, state: &mut State, node: usize) {
    let host = Roles { host: true, ..Roles::default() };
    let identity = NodeIdentity {
        node: State::name(node),
        roles: match node {
            _ if scope.stateless => Roles::default(),
            0 => host,
            _ => Roles { manager: true, ..host },
        },
        version: 1,
        addresses: Vec::new(),
        pool_roles: if scope.stateless { vec![stateless::POOL.into()] } else { Vec::new() },
        weight: 1,
        pools: match scope.stateless {
            true => stateless::pools(scope.shards),
            false => Pools::one(scope.shards),
        },
        seed: node as u64 + 1 + 10 * state.restarts,
    };
    let machine = Machine::new(scope.settings(), identity, BuiltinStrategy::Average.build());
    let machine = Arc::new(machine);
    state.nodes[node] = Some(Process {
        machine: machine.clone(),
        digest: 0,
        whole: state.proof.is_some().then_some(machine),
        calls: VecDeque::new(),
        watch: None,
        hosted: Default::default(),
        suspended: false,
        cut: false,
        lag: false,
        paused: false,
    });
    handle_event(scope, state, node, Event::Tick);
}

/// Passes an event to a machine, and executes its actions.
pub fn handle_event(scope: &Scope, state: &mut State, node: usize, event: Event) {
    let now = Now { mono: NOW, cluster_time: 1 + state.restarts, utc: 0 };
    let Some(process) = &mut state.nodes[node] else { return };
    // A report without content has at most the effect of a nudge, which is a separate step.
    if let Event::Received { from, message: message @ ControlMessage::Report(_) } = &event
        && process.machine.is_irrelevant(from, message)
    {
        return;
    }
    if let Some(whole) = &mut process.whole {
        Arc::make_mut(whole).handle(now, event.clone());
    }
    Arc::make_mut(&mut process.machine).handle(now, event);
    carry_out(scope, state, node);
}

/// Nudges a manager, as if it received something that it already knows.
pub fn nudge(scope: &Scope, state: &mut State, node: usize) {
    let Some(process) = &mut state.nodes[node] else { return };
    for machine in process.whole.iter_mut().chain([&mut process.machine]) {
        Arc::make_mut(machine).nudge(true);
    }
    handle_event(scope, state, node, Event::Tick);
}

/// Whether a nudge would have an effect, because of a message from the manager to itself, or a hand-off that its last
/// decision took over.
pub fn is_restless(process: &Process) -> bool {
    if process.machine.managing_term().is_none() {
        return false;
    }
    let mut machine = Machine::clone(&process.machine);
    machine.nudge(true);
    machine.handle(Now { mono: NOW, cluster_time: 1, utc: 0 }, Event::Tick);
    let acts =
        std::iter::from_fn(|| machine.poll()).any(|action| !matches!(action, Action::Notify(_)));
    machine.canonicalize(&Unchanged);
    machine.prune_irrelevant();
    machine.nudge(false);
    acts || hash(&machine) != process.digest
}

fn carry_out(scope: &Scope, state: &mut State, node: usize) {
    let mut answers = Vec::new();
    while let Some(process) = &mut state.nodes[node]
        && let Some(action) = Arc::make_mut(&mut process.machine).poll()
    {
        proof::same_action(state, node, &action);
        apply_action(scope, state, node, action, &mut answers);
    }
    if let Some(process) = &mut state.nodes[node] {
        Arc::make_mut(&mut process.machine).canonicalize(&Unchanged);
        process.digest();
    }
    proof::same_machine(state, node);
    for answer in answers {
        handle_event(scope, state, node, answer);
    }
}

fn apply_action(
    scope: &Scope,
    state: &mut State,
    node: usize,
    action: Action,
    answers: &mut Vec<Event>,
) {
    let Some(process) = &mut state.nodes[node] else { return };
    match action {
        Action::ListRows => {
            process.watch = None;
            process.calls.push_back(Call::List);
        }
        Action::ReadRow(key) => process.calls.push_back(Call::Read(key)),
        Action::ReadClaims { request_id: number, shards } => {
            process.calls.push_back(Call::Claims(number, shards));
        }
        Action::WriteRow { request_id: number, key, expected, row } => {
            let write = Write { number, key, expected, row };
            if !renews(state, node, &write) {
                if let Some(process) = &mut state.nodes[node] {
                    process.calls.push_back(Call::Write(write));
                }
                return;
            }
            let cut = state.nodes[node].as_ref().is_some_and(|process| process.cut);
            let result = match cut {
                true => Err(WriteError::Unknown),
                false => apply(scope, state, node, &write),
            };
            if result.is_ok() {
                state.renewed.insert(State::name(node), NOW);
            }
            answers.push(Event::RowWritten { request_id: number, result });
        }
        Action::Send { to, mut message } => {
            let from = process.machine.member();
            if let ControlMessage::Report(report) = &mut message {
                // Report numbers would rise forever. Without them, every report counts, which only allows more
                // behaviour.
                let _ = report.take_number();
            }
            if let Some(from) = from {
                send(state, node, from, State::number(&to), message);
            }
        }
        Action::Suspend => process.suspended = true,
        Action::Resume => process.suspended = false,
        Action::StartShard { shard, epoch, member } => {
            let claim = claim_of(shard, epoch, &member);
            let hosted = Hosted { claim, phase: Phase::Claiming, lease_until: 0 };
            if let Some(old) = process.hosted.insert(shard, hosted) {
                leave(state, old);
            }
            if state.given_up.contains(&(shard, epoch)) || proof::given_up(state, shard, epoch) {
                state.break_rule(rules::FINAL);
            }
        }
        Action::StopShard { shard, epoch, .. } => {
            if let Some(hosted) = process.hosted.get_mut(&shard)
                && hosted.claim.epoch == epoch
            {
                let old = hosted.clone();
                hosted.phase = Phase::Stopping(hosted.phase.serves());
                leave(state, old);
            }
        }
        Action::DropShard { shard, epoch } => {
            if process.hosted.get(&shard).is_some_and(|hosted| hosted.claim.epoch == epoch)
                && let Some(old) = process.hosted.remove(&shard)
            {
                leave(state, old);
                state.given_up.insert((shard, epoch));
            }
        }
        Action::ShardLeaseRenewed { shard, epoch, sent_at, lease } => {
            stateless::renewed(process, shard, epoch, sent_at + lease);
        }
        Action::Registered(_)
        | Action::LeaseRenewed { .. }
        | Action::UpdateRoute { .. }
        | Action::BufferShard { .. }
        | Action::UpdatePeer { .. }
        | Action::CheckProcess { .. }
        | Action::Notify(_)
        | Action::Fenced
        | Action::ArbitrationLost { .. }
        | Action::Left => {}
    }
}

/// Whether a write only renews a lease.
fn renews(state: &State, node: usize, write: &Write) -> bool {
    let (RowKey::Node(name), Row::Node(row)) = (&write.key, &write.row) else { return false };
    let Some((Row::Node(old), _)) = state.rows.get(&write.key) else { return false };
    *name == State::name(node)
        && row.incarnation == old.incarnation
        && row.status == NodeStatus::Live
        && row.renewals > 0
        && row.draining == old.draining
}

/// Whether a write starts an incarnation.
fn registers(write: &Write) -> bool {
    matches!(&write.row, Row::Node(row) if row.renewals == 0 && row.status == NodeStatus::Live && !row.draining)
}

fn send(state: &mut State, node: usize, from: Member, to: usize, message: ControlMessage) {
    match &message {
        ControlMessage::ShardStopped(stopped) => {
            state.given_up.insert((stopped.shard, stopped.epoch));
        }
        ControlMessage::HandOff(hand_off) | ControlMessage::BeginHandOff { hand_off, .. }
            if !state.intents.contains(&hand_off.id) =>
        {
            state.break_rule(rules::AHEAD);
        }
        _ => {}
    }
    let Some(process) = &state.nodes[to] else { return };
    // A message is not sent again while the same one is in transit, as if the second were lost.
    let queued = state.links.get(&(node, to));
    if queued.is_some_and(|queue| queue.iter().any(|(_, before)| *before == message)) {
        return;
    }
    let manages =
        process.machine.manager_row().is_some_and(|row| row.holder.node == State::name(to));
    if matches!(message, ControlMessage::Report(_)) && !manages {
        return;
    }
    state.links.entry((node, to)).or_default().push_back((from, message));
}

/// Applies a write at the store, or refuses it.
pub fn apply(
    scope: &Scope,
    state: &mut State,
    node: usize,
    write: &Write,
) -> Result<u64, WriteError> {
    let standing = state.rows.get(&write.key).cloned();
    if standing.as_ref().map(|(_, at)| *at) != write.expected {
        return Err(WriteError::Conflict(standing));
    }
    rules::check_write(scope, state, node, &write.key, &write.row);
    let revision = write.expected.unwrap_or(0) + 1;
    state.rows.insert(write.key.clone(), (write.row.clone(), revision));
    if registers(write) {
        state.renewed.insert(State::name(node), NOW);
    }
    for process in state.nodes.iter_mut().flatten() {
        if let Some(watch) = &mut process.watch {
            // A lagging watch delivers only the last of several renewals.
            let last = watch.iter_mut().rev().find(|(key, ..)| *key == write.key);
            if let Some((_, row, at)) = last
                && alike(row, &write.row)
            {
                (*row, *at) = (write.row.clone(), revision);
            } else {
                watch.push_back((write.key.clone(), write.row.clone(), revision));
            }
        }
    }
    Ok(revision)
}

/// Whether two rows of a node, or two rows of owners, differ at most in renewal counts.
fn alike(one: &Row, other: &Row) -> bool {
    match (one, other) {
        (Row::Assignments(one), Row::Assignments(other)) => stateless::same_owners(one, other),
        (Row::Node(one), Row::Node(other)) => {
            *one == NodeRow { renewals: one.renewals, ..other.clone() }
        }
        _ => false,
    }
}

/// Delivers the notifications that may be delivered immediately: see the module's documentation.
pub fn hurry(scope: &Scope, state: &mut State) {
    loop {
        let next = state.awake().find_map(|(node, process)| {
            let (key, row, at) = process.watch.as_ref()?.front()?;
            let known = process.machine.known_revision(key).is_some_and(|seen| seen >= *at)
                || process.machine.nodes().any(|(name, known)| {
                    *key == RowKey::Node(name.clone()) && alike(&Row::Node(known.clone()), row)
                });
            (known && !process.lag).then_some(node)
        });
        let Some(node) = next else { break };
        deliver_watch_event(scope, state, node);
    }
}

/// Delivers the next change from a node's watch.
pub fn deliver_watch_event(scope: &Scope, state: &mut State, node: usize) {
    let Some(process) = &mut state.nodes[node] else { return };
    if let Some((key, row, revision)) = process.watch.as_mut().and_then(VecDeque::pop_front) {
        handle_event(scope, state, node, Event::RowObserved { key, value: Some((row, revision)) });
    }
}

/// Delivers the first message of a link.
pub fn deliver(scope: &Scope, state: &mut State, from: usize, to: usize) {
    if let Some((from, message)) = state.links.get_mut(&(from, to)).and_then(VecDeque::pop_front) {
        handle_event(scope, state, to, Event::Received { from, message });
    }
}

/// Advances a node's first call: it reaches its store, or the response to it arrives.
pub fn call(scope: &Scope, state: &mut State, node: usize) {
    let Some(process) = &mut state.nodes[node] else { return };
    let cut = process.cut;
    match process.calls.pop_front() {
        Some(Call::List) if cut => handle_event(scope, state, node, Event::RowsListed(None)),
        Some(Call::List) => {
            process.watch = Some(VecDeque::new());
            let rows = state.rows.iter().map(|(key, (row, at))| (key.clone(), row.clone(), *at));
            let rows = rows.collect();
            handle_event(scope, state, node, Event::RowsListed(Some(rows)));
        }
        Some(Call::Read(_)) if cut => {}
        Some(Call::Read(key)) => {
            let value = state.rows.get(&key).cloned();
            handle_event(scope, state, node, Event::RowObserved { key, value });
        }
        Some(Call::Write(write)) if cut => {
            let result = Err(WriteError::Unknown);
            handle_event(
                scope,
                state,
                node,
                Event::RowWritten { request_id: write.number, result },
            );
        }
        Some(Call::Write(write)) => {
            let result = apply(scope, state, node, &write);
            if let Some(process) = &mut state.nodes[node] {
                process.calls.push_front(Call::Response(write.key, write.number, result));
            }
        }
        Some(Call::Response(_, number, result)) => {
            handle_event(scope, state, node, Event::RowWritten { request_id: number, result });
        }
        Some(Call::Claims(number, shards)) => {
            let claims = shards.iter().map(|shard| state.claims.get(shard).cloned()).collect();
            handle_event(
                scope,
                state,
                node,
                Event::ClaimsRead { request_id: number, claims: Some(claims) },
            );
        }
        None => {}
    }
}
