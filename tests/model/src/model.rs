//! The model in stateright's terms: the steps of a state, and the properties of every state.

use std::collections::BTreeSet;
use std::sync::Arc;

use ostraca_core::node::Event;
use stateright::{Model, Property};

use crate::faults::{crash, faults, hold_up, keep_copy, lose, lose_message, owner};
use crate::hosted::{claim, shard};
use crate::proof;
use crate::pruning::clear;
use crate::rules;
use crate::scope::{Budget, Scope, Start};
use crate::state::{DelayedRequest, Phase, State};
use crate::step::{Step, StepCounts};
use crate::time::{may_pass, pass};
use crate::world::{
    apply, call, deliver, deliver_watch_event, handle_event, hurry, is_restless, nudge, start,
};

/// The property for R9 and S14.
pub const ONE_ANSWERS: &str = "one incarnation at a time answers for a shard";

/// A run of the model.
#[derive(Clone, Debug)]
pub struct Cluster {
    /// The scope of the run.
    pub scope: Scope,
    /// How often each kind of step occurred in the run.
    pub step_counts: Arc<StepCounts>,
}

impl Cluster {
    /// Creates the model of a scope.
    pub fn new(scope: Scope) -> Self {
        Self { scope, step_counts: Arc::default() }
    }

    fn begin(&self, from: Start) -> State {
        let scope = &self.scope;
        let mut state = State {
            nodes: vec![None; scope.nodes()],
            rows: Default::default(),
            renewed: Default::default(),
            claims: Default::default(),
            links: Default::default(),
            strays: Vec::new(),
            delayed_requests: Vec::new(),
            named: Default::default(),
            given_up: Default::default(),
            intents: BTreeSet::new(),
            budget: Budget::default(),
            restarts: 0,
            broken: None,
            proof: scope.proof.then(Arc::default),
        };
        let order: &[usize] = match from {
            Start::Cold => &[0, 1, 2],
            Start::OwnerHosts => &[0, 2, 1],
            Start::OwnerManages => &[2, 0, 1],
            Start::OwnerStandsBy => &[2, 1, 0],
        };
        for node in order.iter().filter(|node| **node < scope.nodes()) {
            start(scope, &mut state, *node);
            if from == Start::Cold {
                continue;
            }
            self.settle(&mut state);
            if from == Start::OwnerStandsBy && *node == 1 {
                let node = State::name(2);
                for draining in [true, false] {
                    handle_event(
                        scope,
                        &mut state,
                        2,
                        Event::Drain { node: node.clone(), draining },
                    );
                    self.settle(&mut state);
                }
            }
        }
        state.budget = scope.budget;
        state.named.retain(|(shard, epoch), _| {
            state.claims.get(shard).is_some_and(|claim| claim.epoch == *epoch)
        });
        state.given_up.clear();
        state.intents.clear();
        state
    }

    /// Runs all pending steps, in one order.
    fn settle(&self, state: &mut State) {
        let mut steps = Vec::new();
        for _ in 0..12 {
            loop {
                steps.clear();
                self.actions(state, &mut steps);
                match steps.first() {
                    Some(step) if *step != Step::Pass => self.step(state, *step),
                    _ => break,
                }
            }
            *state = pass(&self.scope, state);
            // A cluster without a manager, or without a node that could own the shard, is at rest as well.
            state.broken = None;
        }
    }

    /// Applies a step in place.
    fn step(&self, state: &mut State, step: Step) {
        let scope = &self.scope;
        match step {
            Step::Call(node) => call(scope, state, node),
            Step::Watch(node) => deliver_watch_event(scope, state, node),
            Step::Deliver(from, to) => deliver(scope, state, from, to),
            Step::Shard(node, of) => shard(scope, state, node, of),
            Step::Nudge(node) => nudge(scope, state, node),
            Step::Pass => *state = pass(scope, state),
            Step::Stray(at) => {
                let (from, to, message) = state.strays.remove(at);
                handle_event(scope, state, to, Event::Received { from, message });
            }
            Step::DeliverDelayed(at) => match state.delayed_requests.remove(at) {
                DelayedRequest::Write(node, write) => {
                    let _ = apply(scope, state, node, &write);
                }
                DelayedRequest::Claim(late) => {
                    let _ = claim(state, &late);
                }
            },
            Step::Crash(node) => crash(state, node),
            Step::Restart(node) => {
                state.budget.restarts -= 1;
                state.restarts += 1;
                start(scope, state, node);
            }
            Step::Duplicate(from, to) => {
                keep_copy(state, from, to);
                deliver(scope, state, from, to);
            }
            Step::LoseMessage(from, to) => lose_message(state, from, to),
            Step::DelayMessage(from, to) => {
                keep_copy(state, from, to);
                lose_message(state, from, to);
            }
            Step::LoseResponse(node) | Step::Delay(node) => {
                state.budget.losses -= 1;
                lose(scope, state, node, step);
            }
            Step::Cut(_)
            | Step::Heal(_)
            | Step::Lag(_)
            | Step::CatchUp(_)
            | Step::Pause(_)
            | Step::Wake(_) => hold_up(scope, state, step),
            Step::Drain => {
                state.budget.drains -= 1;
                if let Some(owner) = owner(scope, state) {
                    let by = if state.nodes[1].is_some() { 1 } else { 2 };
                    handle_event(scope, state, by, Event::Drain { node: owner, draining: true });
                }
            }
        }
        hurry(scope, state);
        clear(state);
        proof::check(scope, state);
    }
}

impl Model for Cluster {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        self.scope.starts.iter().map(|from| self.begin(*from)).collect()
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        if state.broken.is_some() {
            return;
        }
        for (node, process) in state.awake() {
            if !process.calls.is_empty() {
                steps.push(Step::Call(node));
            }
            if !process.lag && process.watch.as_ref().is_some_and(|watch| !watch.is_empty()) {
                steps.push(Step::Watch(node));
            }
            for from in 0..state.nodes.len() {
                if state.links.contains_key(&(from, node)) {
                    steps.push(Step::Deliver(from, node));
                }
            }
            for (shard, hosted) in &process.hosted {
                if hosted.phase != Phase::Serving {
                    steps.push(Step::Shard(node, *shard));
                }
            }
        }
        for (node, process) in state.awake() {
            if is_restless(process) {
                steps.push(Step::Nudge(node));
            }
        }
        if may_pass(state) {
            steps.push(Step::Pass);
        }
        let awake = |node: usize| state.nodes[node].as_ref().is_some_and(|node| !node.paused);
        for (at, (_, to, _)) in state.strays.iter().enumerate() {
            if awake(*to) {
                steps.push(Step::Stray(at));
            }
        }
        steps.extend((0..state.delayed_requests.len()).map(Step::DeliverDelayed));
        faults(&self.scope, state, steps);
    }

    fn next_state(&self, before: &State, step: Step) -> Option<State> {
        let mut state = before.clone();
        self.step(&mut state, step);
        self.step_counts.record(before, &state, step);
        let changed = match step {
            Step::Pass => state != *before,
            // If the copy was pruned at once, the step is only a delivery or a loss.
            Step::Duplicate(..) | Step::DelayMessage(..) => {
                state.strays.len() > before.strays.len()
            }
            _ => true,
        };
        changed.then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        macro_rules! kept {
            ($($rule:ident),*) => {
                vec![$(Property::always(rules::$rule, |_: &Self, state: &State| {
                    state.broken != Some(rules::$rule)
                })),*]
            };
        }
        let mut all = kept![
            NAMED,
            ONE_INCARNATION,
            OVER,
            TERMS,
            EPOCHS,
            SEALED,
            DEAD,
            LEASE,
            AHEAD,
            FINAL,
            REST,
            ONE_NUMBER,
            LAPSED,
            STOPPED,
            PAST
        ];
        all.push(Property::always(ONE_ANSWERS, one_serves));
        all
    }
}

fn one_serves(model: &Cluster, state: &State) -> bool {
    model.scope.all_shards().all(|shard| {
        let serving = state.awake().filter(|(_, process)| {
            !process.suspended
                && process.hosted.get(&shard).is_some_and(|hosted| {
                    hosted.phase.serves() && (!model.scope.stateless || hosted.has_lease())
                })
        });
        serving.count() <= 1
    })
}
