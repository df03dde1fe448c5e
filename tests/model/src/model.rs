//! The model as stateright sees it: which steps a state has, and what must be true of every state.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ostraca_sharding::ids::ShardId;
use ostraca_sharding::node::{Event, WriteError};
use ostraca_sharding::rows::{Key, Row};
use stateright::{Model, Property};

use crate::rules;
use crate::scope::{Budget, Scope, Start};
use crate::state::{Call, Late, Phase, State};
use crate::time::{may_pass, pass};
use crate::world::{apply, call, claim, hear, hear_watch, hurry, shard, start, tell};

/// Nodes of the cluster.
pub const NODES: usize = 3;

/// Some path has a shard served by a second owner.
pub const SERVED_AGAIN: &str = "a shard is served under a second epoch";
/// R9, S14.
pub const ONE_ANSWERS: &str = "one life at a time answers for a shard";

/// One thing that may happen next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Step {
    /// A node's first call to a store is made, or answered.
    Call(usize),
    /// A node's watch tells a change.
    Watch(usize),
    /// The second node hears what the first said.
    Hear(usize, usize),
    /// A shard's machine of a node goes on.
    Shard(usize, ShardId),
    /// Time passes.
    Pass,
    /// A copy of something said comes.
    Stray(usize),
    /// A request that nobody waits for reaches its store.
    Late(usize),
    /// A process dies.
    Crash(usize),
    /// A dead one is started again.
    Restart(usize),
    /// What the first said will come to the second once more.
    Duplicate(usize, usize),
    /// What the first said does not come to the second.
    LoseTalk(usize, usize),
    /// A write does not reach the store; its writer hears nothing.
    LoseRequest(usize),
    /// A write's answer is lost.
    LoseAnswer(usize),
    /// A write reaches the store some time; its writer hears nothing.
    Delay(usize),
    /// A node is cut from the `ClusterStore`.
    Cut(usize),
    /// It is reached again.
    Heal(usize),
    /// A node's watch falls behind.
    Lag(usize),
    /// It goes on.
    CatchUp(usize),
    /// A process is stopped by a signal.
    Pause(usize),
    /// It goes on.
    Wake(usize),
    /// An operator drains the owner of the first shard, by a word to the node that stands by.
    Drain,
}

/// How often each thing was seen, to know that a run was not about nothing.
#[derive(Debug, Default)]
pub struct Seen {
    counts: [AtomicU64; 24],
}

impl Seen {
    const NAMES: [&str; 24] = [
        "calls",
        "watched",
        "heard",
        "claims and stops",
        "beats",
        "copies heard",
        "late requests",
        "crashes",
        "restarts",
        "copies made",
        "talks lost",
        "requests lost",
        "answers lost",
        "requests delayed",
        "cuts",
        "heals",
        "lags",
        "catch-ups",
        "pauses",
        "wakes",
        "drains",
        "owners by hand-off",
        "owners by fail-over",
        "managers by fail-over",
    ];

    fn add(&self, at: usize) {
        self.counts[at].fetch_add(1, Ordering::Relaxed);
    }

    /// Names and counts.
    pub fn all(&self) -> impl Iterator<Item = (&'static str, u64)> {
        Self::NAMES.into_iter().zip(self.counts.iter().map(|count| count.load(Ordering::Relaxed)))
    }

    /// The count of one.
    pub fn count(&self, name: &str) -> u64 {
        self.all().find(|(one, _)| *one == name).map_or(0, |(_, count)| count)
    }
}

/// A run of the model.
#[derive(Clone, Debug)]
pub struct Cluster {
    /// What it looks at.
    pub scope: Scope,
    /// What happened in it.
    pub seen: Arc<Seen>,
}

impl Cluster {
    /// The model of that scope.
    pub fn new(scope: Scope) -> Self {
        Self { scope, seen: Arc::default() }
    }

    fn begin(&self, from: Start) -> State {
        let scope = &self.scope;
        let mut state = State {
            nodes: vec![None; NODES],
            rows: Default::default(),
            renewed: Default::default(),
            claims: Default::default(),
            links: Default::default(),
            strays: Vec::new(),
            late: Vec::new(),
            named: Default::default(),
            given_up: Default::default(),
            intents: BTreeSet::new(),
            budget: Budget::default(),
            restarts: 0,
            broken: None,
        };
        let order: &[usize] = match from {
            Start::Cold => &[0, 1, 2],
            Start::OwnerHosts => &[0, 2, 1],
            Start::OwnerManages => &[2, 0, 1],
            Start::OwnerStandsBy => &[2, 1, 0],
        };
        for node in order {
            start(scope, &mut state, *node);
            if from == Start::Cold {
                continue;
            }
            self.settle(&mut state);
            if from == Start::OwnerStandsBy && *node == 1 {
                let node = State::name(2);
                for draining in [true, false] {
                    tell(scope, &mut state, 2, Event::Drain { node: node.clone(), draining });
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

    /// Lets everything happen that will, in one order.
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
            // A cluster without a manager, or with nobody who could take the shard, rests as well.
            state.broken = None;
        }
    }

    /// Takes a step in place.
    fn step(&self, state: &mut State, step: Step) {
        let scope = &self.scope;
        match step {
            Step::Call(node) => call(scope, state, node),
            Step::Watch(node) => hear_watch(scope, state, node),
            Step::Hear(from, to) => hear(scope, state, from, to),
            Step::Shard(node, of) => shard(scope, state, node, of),
            Step::Pass => *state = pass(scope, state),
            Step::Stray(at) => {
                let (from, to, talk) = state.strays.remove(at);
                tell(scope, state, to, Event::Heard { from, talk });
            }
            Step::Late(at) => match state.late.remove(at) {
                Late::Write(node, write) => {
                    let _ = apply(scope, state, node, &write);
                }
                Late::Claim(late) => {
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
                state.budget.duplicates -= 1;
                if let Some((life, talk)) =
                    state.links.get(&(from, to)).and_then(|queue| queue.front()).cloned()
                {
                    state.strays.push((life, to, talk));
                }
            }
            Step::LoseTalk(from, to) => {
                state.budget.losses -= 1;
                state.links.get_mut(&(from, to)).and_then(|queue| queue.pop_front());
            }
            Step::LoseRequest(node) | Step::LoseAnswer(node) | Step::Delay(node) => {
                state.budget.losses -= 1;
                self.lose(state, node, step);
            }
            Step::Cut(_)
            | Step::Heal(_)
            | Step::Lag(_)
            | Step::CatchUp(_)
            | Step::Pause(_)
            | Step::Wake(_) => self.hold_up(state, step),
            Step::Drain => {
                state.budget.drains -= 1;
                if let Some(owner) = owner(state) {
                    let by = if state.nodes[1].is_some() { 1 } else { 2 };
                    tell(scope, state, by, Event::Drain { node: owner, draining: true });
                }
            }
        }
        hurry(scope, state);
    }

    fn lose(&self, state: &mut State, node: usize, step: Step) {
        let Some(process) = &mut state.nodes[node] else { return };
        let number = match process.calls.pop_front() {
            Some(Call::Write(write)) => {
                let number = write.number;
                if matches!(step, Step::Delay(_)) {
                    state.late.push(Late::Write(node, write));
                }
                number
            }
            Some(Call::Answer(_, number, _)) => number,
            _ => return,
        };
        let result = Err(WriteError::Unknown);
        tell(&self.scope, state, node, Event::Written { number, result });
    }

    fn hold_up(&self, state: &mut State, step: Step) {
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
                if let Some(Call::Answer(_, _, result)) = process.calls.front_mut() {
                    *result = Err(WriteError::Unknown);
                }
            }
            Step::Heal(_) => {
                process.cut = false;
                tell(&self.scope, state, node, Event::WatchLost);
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
                tell(&self.scope, state, node, Event::Tick);
            }
            _ => {}
        }
    }

    fn faults(&self, state: &State, steps: &mut Vec<Step>) {
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
                    Some(Call::Write(_)) => {
                        steps.extend([Step::LoseRequest(node), Step::Delay(node)]);
                    }
                    Some(Call::Answer(..)) => steps.push(Step::LoseAnswer(node)),
                    _ => {}
                }
            }
        }
        for (from, to) in state.links.keys() {
            if budget.duplicates > 0 {
                steps.push(Step::Duplicate(*from, *to));
            }
            if budget.losses > 0 {
                steps.push(Step::LoseTalk(*from, *to));
            }
        }
        if budget.drains > 0 && owner(state).is_some() && state.nodes[1].is_some() {
            steps.push(Step::Drain);
        }
    }

    fn note(&self, before: &State, after: &State, step: Step) {
        self.seen.add(match step {
            Step::Call(_) => 0,
            Step::Watch(_) => 1,
            Step::Hear(..) => 2,
            Step::Shard(..) => 3,
            Step::Pass => 4,
            Step::Stray(_) => 5,
            Step::Late(_) => 6,
            Step::Crash(_) => 7,
            Step::Restart(_) => 8,
            Step::Duplicate(..) => 9,
            Step::LoseTalk(..) => 10,
            Step::LoseRequest(_) => 11,
            Step::LoseAnswer(_) => 12,
            Step::Delay(_) => 13,
            Step::Cut(_) => 14,
            Step::Heal(_) => 15,
            Step::Lag(_) => 16,
            Step::CatchUp(_) => 17,
            Step::Pause(_) => 18,
            Step::Wake(_) => 19,
            Step::Drain => 20,
        });
        for (key, (row, at)) in &after.rows {
            let Some((old, before_at)) = before.rows.get(key) else { continue };
            if before_at == at {
                continue;
            }
            match (old, row) {
                (Row::Shards(old), Row::Shards(new)) => {
                    for (old, new) in old.shards.iter().zip(&new.shards) {
                        if old.epoch != new.epoch
                            && let Some(owner) = &old.owner
                        {
                            self.seen.add(if before.over(owner) { 22 } else { 21 });
                        }
                    }
                }
                (Row::Manager(old), Row::Manager(new)) if old.term != new.term => self.seen.add(23),
                _ => {}
            }
        }
    }
}

fn owner(state: &State) -> Option<ostraca_sharding::ids::NodeId> {
    match state.rows.get(&Key::Shards(0)) {
        Some((Row::Shards(row), _)) => Some(row.shards.first()?.owner.clone()?.node),
        _ => None,
    }
}

fn crash(state: &mut State, node: usize) {
    state.budget.crashes -= 1;
    let Some(process) = state.nodes[node].take() else { return };
    for hosted in process.hosted.into_values() {
        if hosted.phase == Phase::Claiming {
            state.late.push(Late::Claim(hosted.claim));
        }
    }
    for call in process.calls {
        if let Call::Write(write) = call {
            state.late.push(Late::Write(node, write));
        }
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
            for from in 0..NODES {
                if state.links.contains_key(&(from, node)) {
                    steps.push(Step::Hear(from, node));
                }
            }
            for (shard, hosted) in &process.hosted {
                if hosted.phase != Phase::Serving {
                    steps.push(Step::Shard(node, *shard));
                }
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
        steps.extend((0..state.late.len()).map(Step::Late));
        self.faults(state, steps);
    }

    fn next_state(&self, before: &State, step: Step) -> Option<State> {
        let mut state = before.clone();
        self.step(&mut state, step);
        self.note(before, &state, step);
        (step != Step::Pass || state != *before).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        macro_rules! kept {
            ($($rule:ident),*) => {
                vec![$(Property::always(rules::$rule, |_: &Self, state: &State| {
                    state.broken != Some(rules::$rule)
                })),*]
            };
        }
        let mut all =
            kept![NAMED, ONE_LIFE, OVER, TERMS, EPOCHS, SEALED, DEAD, LEASE, AHEAD, FINAL, REST];
        all.push(Property::always(ONE_ANSWERS, one_serves));
        all.push(Property::sometimes(SERVED_AGAIN, |_, state: &State| {
            state.awake().any(|(_, process)| {
                process.hosted.values().any(|hosted| {
                    hosted.phase == Phase::Serving
                        && state.named.keys().any(|(of, epoch)| {
                            *of == hosted.claim.shard.shard && *epoch < hosted.claim.epoch
                        })
                })
            })
        }));
        all
    }
}

fn one_serves(model: &Cluster, state: &State) -> bool {
    model.scope.all_shards().all(|shard| {
        let serving = state.awake().filter(|(_, process)| {
            !process.suspended
                && process.hosted.get(&shard).is_some_and(|hosted| hosted.phase.serves())
        });
        serving.count() <= 1
    })
}
