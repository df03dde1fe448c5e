//! If the scope requests it, checks in each step that what the model discards has no effect.
//!
//! - Each machine runs alongside one that discards nothing. Given the same events, both must return the same actions,
//!   and they must be equal once the second one is pruned.
//! - Every discarded message is delivered again after each later step. Neither the message nor the answer to it may
//!   change anything, except what a nudge, which is a separate step, would change. Discarded reports are delivered only
//!   in the step that discards them, since a later report could follow them.
//! - An epoch that was given up stays given up.

use std::collections::BTreeSet;
use std::sync::Arc;

use ostraca_core::ids::{Epoch, ShardId};
use ostraca_core::message::Now;
use ostraca_core::node::{Action, Canonicalizer, ControlMessage, Event, Machine};
use ostraca_core::rows::Member;

use crate::pruning::is_irrelevant;
use crate::rules;
use crate::scope::Scope;
use crate::state::{NOW, Process, State, hash};
use crate::time::Unchanged;
use crate::world::is_restless;

/// The messages and epochs that were discarded.
#[derive(Clone, Debug, Default)]
pub struct Proof {
    messages: Vec<(Member, usize, ControlMessage)>,
    given_up: BTreeSet<(ShardId, Epoch)>,
}

impl Proof {
    /// Normalizes the numbers in the discarded messages.
    pub fn canonicalize(&mut self, to: &dyn Canonicalizer) {
        for (_, _, message) in &mut self.messages {
            to.canonicalize_message(message);
        }
    }
}

/// Checks an action that a machine returned: the unpruned machine must return the same one.
pub fn same_action(state: &mut State, node: usize, action: &Action) {
    let Some(Some(whole)) = state.nodes[node].as_mut().map(|process| &mut process.whole) else {
        return;
    };
    if Arc::make_mut(whole).poll().as_ref() != Some(action) {
        state.break_rule(rules::PAST);
    }
}

/// Checks a machine that has no further action: the unpruned machine must have none either, and both must be equal
/// after pruning.
pub fn same_machine(state: &mut State, node: usize) {
    let Some(process) = &mut state.nodes[node] else { return };
    let Some(whole) = &mut process.whole else { return };
    let whole = Arc::make_mut(whole);
    let more = whole.poll().is_some();
    whole.canonicalize(&Unchanged);
    whole.nudge(false);
    let mut forgetful = whole.clone();
    forgetful.prune_irrelevant();
    if more || hash(&forgetful) != process.digest {
        state.break_rule(rules::PAST);
    }
}

/// Whether an epoch was ever given up.
pub fn given_up(state: &State, shard: ShardId, epoch: Epoch) -> bool {
    state.proof.as_ref().is_some_and(|proof| proof.given_up.contains(&(shard, epoch)))
}

/// Records discarded control messages. Checks discarded reports at once.
pub fn thrown_away(state: &mut State, messages: Vec<(Member, usize, ControlMessage)>) {
    let Some(mut proof) = state.proof.take() else { return };
    let all = Arc::make_mut(&mut proof);
    for gone in messages {
        if matches!(gone.2, ControlMessage::Report(_)) {
            if state.nodes[gone.1].is_some() && !does_nothing(state, &gone) {
                state.break_rule(rules::PAST);
            }
        } else if !all.messages.contains(&gone) {
            all.messages.push(gone);
        }
    }
    all.messages.retain(|(_, to, _)| state.nodes[*to].is_some());
    all.given_up.extend(&state.given_up);
    state.proof = Some(proof);
}

/// Checks that no recorded message has an effect.
pub fn check(scope: &Scope, state: &mut State) {
    if !scope.proof {
        return;
    }
    let Some(proof) = state.proof.clone() else { return };
    if !proof.messages.iter().all(|gone| does_nothing(state, gone)) {
        state.break_rule(rules::PAST);
    }
}

fn does_nothing(state: &State, (from, to, message): &(Member, usize, ControlMessage)) -> bool {
    let Some(process) = &state.nodes[*to] else { return true };
    // The receiver may be nudged at any time, which has the same effect as any message.
    if process.paused || is_restless(process) {
        return true;
    }
    let heard = Event::Received { from: from.clone(), message: message.clone() };
    let Some(said) = tells(state, process, heard) else { return false };
    let me = Member { node: State::name(*to), incarnation: from.incarnation };
    is_irrelevant(state, *to, from, message)
        && said.iter().all(|(at, answer)| is_irrelevant(state, *at, &me, answer))
}

/// The messages with which a machine answers an event. `None` if the event changes the machine, or causes an action
/// other than sending, buffering or notifying.
fn tells(state: &State, process: &Process, event: Event) -> Option<Vec<(usize, ControlMessage)>> {
    let mut machine = Machine::clone(&process.machine);
    machine.handle(Now { mono: NOW, cluster_time: 1 + state.restarts, utc: 0 }, event);
    let mut said = Vec::new();
    while let Some(action) = machine.poll() {
        match action {
            Action::Send { to, message } => said.push((State::number(&to), message)),
            Action::BufferShard { .. } | Action::Notify(_) => {}
            _ => return None,
        }
    }
    machine.canonicalize(&Unchanged);
    machine.prune_irrelevant();
    machine.nudge(false);
    (hash(&machine) == process.digest).then_some(said)
}
