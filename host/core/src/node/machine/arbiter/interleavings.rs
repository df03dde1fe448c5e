//! Interleavings of one partition of three nodes, with the arbiter's own code: when each node sees the row, notices
//! that the partition has ended, and takes the lease; writes whose answers are lost; flags that are late or lost.
//!
//! A depth-first search over all states. In each one, no number has two winners, and no node loses that was not
//! named, or that had the winner's flag. From a state, if the partition lasts, one side ends and the other goes on: this
//! is checked for one in 16 states. `MODEL=all` lets each clock advance once more, which makes 40 times as many states.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use super::{Arbiter, Context, KeepAlives, ObservedCluster};
use crate::extensions::Extensions;
use crate::ids::Incarnation;
use crate::message::Now;
use crate::node::machine::NodeIdentity;
use crate::node::{Action, ControlMessage, Mutation, Settings, WriteError};
use crate::pools::Pools;
use crate::rows::{ArbiterRow, Member, NodeRow, NodeStatus, Roles, Row};

const NODES: [&str; 3] = ["a", "b", "c"];
/// The first node is alone.
const SIDES: [&[usize]; 2] = [&[0], &[1, 2]];
const STEP: u64 = 4_000;
/// How often each node's clock may advance before the partition is left to itself: a side needs two ticks to take the
/// lease, and the other side one more to end.
const TICKS: u64 = 3;

#[derive(Clone)]
struct Node {
    arbiter: Arbiter,
    context: Context,
    observed: ObservedCluster,
    keep_alives: KeepAlives,
    ticks: u64,
    /// A write that the store has not received yet.
    write: Option<(u64, Option<u64>, ArbiterRow)>,
    /// The numbers whose flags it got.
    flags: BTreeSet<u64>,
    has_lost: bool,
}

#[derive(Clone)]
struct World {
    nodes: Vec<Node>,
    /// How often each clock may advance.
    ticks: u64,
    row: Option<(ArbiterRow, u64)>,
    decided: BTreeMap<u64, ArbiterRow>,
    /// Flags on their way: sender, receiver, number.
    flags: BTreeSet<(usize, usize, u64)>,
    has_healed: bool,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Tick(usize),
    SeeRow(usize),
    Write(usize, bool),
    Flag((usize, usize, u64), bool),
    Heal,
    /// A node's keep-alives are answered again.
    Reach(usize),
    /// The row of a node that has lost shows it.
    End(usize),
}

fn is_large() -> bool {
    std::env::var_os("MODEL").is_some_and(|model| model == "all")
}

fn member(node: usize) -> Member {
    Member { node: NODES[node].into(), incarnation: Incarnation { counter: 1, nonce: node as u64 } }
}

fn row(node: usize, status: NodeStatus) -> NodeRow {
    let row = NodeRow {
        incarnation: member(node).incarnation,
        renewals: 0,
        status,
        draining: false,
        store_available: true,
        roles: Roles { store: false, ..Roles::ALL },
        version: 1,
        registered_at: node as u64,
        addresses: Vec::new(),
        format: 3,
        lease: 3_000,
        settings_revision: 0,
        extensions: Extensions::default(),
    };
    row.with_keep_alives(true)
}

fn other_side(node: usize) -> &'static [usize] {
    SIDES[usize::from(node == 0)]
}

impl Node {
    fn new(me: usize, mutations: Vec<Mutation>) -> Self {
        let identity = NodeIdentity {
            node: NODES[me].into(),
            roles: Roles::ALL,
            version: 1,
            addresses: Vec::new(),
            pool_roles: Vec::new(),
            weight: 1,
            pools: Pools::one(1),
            seed: 1,
        };
        let settings = Settings {
            keep_alive_interval: Some(1_000),
            arbiter: true,
            arbiter_timeout: STEP / 2,
            mutations,
            ..Settings::default()
        };
        let mut context = Context::new(settings, identity);
        let mut observed = ObservedCluster::new(1);
        for (node, name) in NODES.into_iter().enumerate() {
            let name = name.into();
            observed.learn_node(&mut context, name, row(node, NodeStatus::Live), node as u64 + 1);
        }
        let mut keep_alives = KeepAlives::default();
        for round in 1..=10 {
            context.now.mono = round * 1_000;
            observed.restart_lease_timers(context.mono());
            keep_alives.drive(&mut context, &observed);
            let near = (0..3).filter(|node| !other_side(me).contains(node));
            near.for_each(|node| keep_alives.on_ack(&member(node), round));
        }
        while context.poll().is_some() {}
        Self {
            arbiter: Arbiter::default(),
            context,
            observed,
            keep_alives,
            ticks: 0,
            write: None,
            flags: BTreeSet::new(),
            has_lost: false,
        }
    }
}

impl World {
    fn new(mutations: &[Mutation]) -> Self {
        Self {
            nodes: (0..3).map(|node| Node::new(node, mutations.to_vec())).collect(),
            ticks: TICKS + u64::from(is_large()),
            row: None,
            decided: BTreeMap::new(),
            flags: BTreeSet::new(),
            has_healed: false,
        }
    }

    fn number_of_state(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        for node in &self.nodes {
            (&node.arbiter, node.context.mono(), node.ticks, &node.write).hash(&mut hasher);
            (&node.flags, node.has_lost, &node.observed).hash(&mut hasher);
            node.keep_alives.unanswered().count().hash(&mut hasher);
        }
        (&self.row, &self.decided, &self.flags, self.has_healed).hash(&mut hasher);
        hasher.finish()
    }

    fn has_ended(&self, node: usize) -> bool {
        self.nodes[0].observed.has_ended(&member(node)) == Some(true)
    }

    fn steps(&self) -> Vec<Step> {
        // The last step is taken first: what happens while the partition lasts.
        let mut steps = Vec::new();
        if !self.has_healed {
            steps.push(Step::Heal);
        }
        for (at, node) in self.nodes.iter().enumerate() {
            let runs = !node.has_lost;
            if runs && node.ticks < self.ticks {
                steps.push(Step::Tick(at));
            }
            if runs && self.row.as_ref().map(|row| row.1) > node.arbiter.known_revision() {
                steps.push(Step::SeeRow(at));
            }
            if node.write.is_some() {
                steps.extend([Step::Write(at, true), Step::Write(at, false)]);
            }
            if runs && self.has_healed && node.keep_alives.unanswered().count() > 0 {
                steps.push(Step::Reach(at));
            }
            if node.has_lost && !self.has_ended(at) {
                steps.push(Step::End(at));
            }
        }
        for flag in &self.flags {
            steps.extend([Step::Flag(*flag, true), Step::Flag(*flag, false)]);
        }
        steps
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Tick(at) => self.tick(at),
            Step::SeeRow(at) => {
                if let Some((row, revision)) = self.row.clone() {
                    self.learn(at, row, revision);
                }
            }
            Step::Write(at, is_answered) => self.write(at, is_answered),
            Step::Flag(flag, arrives) => {
                self.flags.remove(&flag);
                let (from, to, number) = flag;
                if arrives && !self.nodes[to].has_lost {
                    self.nodes[to].arbiter.on_flag(&member(from), number);
                    if self.decided.get(&number).is_some_and(|row| row.winner == member(from)) {
                        self.nodes[to].flags.insert(number);
                    }
                }
            }
            Step::Heal => self.has_healed = true,
            Step::Reach(at) => self.nodes[at].keep_alives.restart(),
            Step::End(at) => {
                for node in &mut self.nodes {
                    let (name, row) = (NODES[at].into(), row(at, NodeStatus::Left));
                    node.observed.learn_node(&mut node.context, name, row, 100 + at as u64);
                    while node.context.poll().is_some() {}
                }
            }
        }
    }

    fn tick(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        node.ticks += 1;
        node.context.now = Now { mono: node.context.mono() + STEP, ..Now::default() };
        // Everybody renews.
        node.observed.restart_lease_timers(node.context.mono());
        let (context, observed) = (&mut node.context, &node.observed);
        let loses = node.arbiter.drive(context, observed, &node.keep_alives, &member(at), true);
        self.run_actions(at);
        if loses {
            self.nodes[at].has_lost = true;
            let (row, _) = self.nodes[at].arbiter.row.clone().expect("a row");
            assert!(row.unreachable.contains(&member(at)), "{at} was not named: {row:?}");
            assert_eq!(self.decided.get(&row.number), Some(&row), "not decided");
            assert!(!self.nodes[at].flags.contains(&row.number), "{at} had the flag: {row:?}");
        }
    }

    fn run_actions(&mut self, at: usize) {
        while let Some(action) = self.nodes[at].context.poll() {
            match action {
                Action::WriteRow { request_id, expected, row: Row::Arbiter(row), .. } => {
                    self.nodes[at].write = Some((request_id, expected, row));
                }
                Action::Send { to, message: ControlMessage::ArbiterFlag { number } } => {
                    let to = NODES.iter().position(|name| *name == &*to.0).expect("a node");
                    if self.has_healed || !other_side(at).contains(&to) {
                        self.flags.insert((at, to, number));
                    }
                }
                _ => {}
            }
        }
    }

    fn learn(&mut self, at: usize, row: ArbiterRow, revision: u64) {
        let node = &mut self.nodes[at];
        node.arbiter.learn(&mut node.context, &node.observed, row, revision);
        self.run_actions(at);
    }

    fn write(&mut self, at: usize, is_answered: bool) {
        let Some((request, expected, row)) = self.nodes[at].write.take() else { return };
        let standing = self.row.as_ref().map(|(_, revision)| *revision);
        let result = match standing == expected {
            true => {
                let revision = 10 + self.decided.len() as u64;
                let before = self.decided.insert(row.number, row.clone());
                assert_eq!(before, None, "two winners of {}", row.number);
                self.row = Some((row.clone(), revision));
                Ok(revision)
            }
            false => {
                Err(WriteError::Conflict(self.row.clone().map(|(row, at)| (Row::Arbiter(row), at))))
            }
        };
        let node = &mut self.nodes[at];
        node.context.requests.finish_write(request);
        let result = if is_answered { result } else { Err(WriteError::Unknown) };
        node.arbiter.on_lease_written(&mut node.context, &result);
        match result {
            Ok(revision) => self.learn(at, row, revision),
            Err(WriteError::Conflict(Some((Row::Arbiter(row), revision)))) => {
                self.learn(at, row, revision);
            }
            // The row is read.
            _ => self.take(Step::SeeRow(at)),
        }
    }

    /// Lets everything happen in order, and returns the sides of which a node goes on.
    fn finish(mut self) -> Vec<usize> {
        for _ in 0..12 {
            for at in 0..3 {
                self.take(Step::SeeRow(at));
                self.write(at, true);
                if self.has_healed {
                    self.take(Step::Reach(at));
                }
                if !self.nodes[at].has_lost {
                    self.tick(at);
                } else if !self.has_ended(at) {
                    self.take(Step::End(at));
                }
                for flag in self.flags.clone() {
                    self.take(Step::Flag(flag, true));
                }
            }
        }
        let goes_on = |side: &usize| SIDES[*side].iter().any(|at| !self.nodes[*at].has_lost);
        (0..2).filter(goes_on).collect()
    }
}

/// Takes every step from every state that it finds, and returns how many states there are.
fn explore(mutations: &[Mutation], check: impl Fn(&World)) -> usize {
    let mut seen = HashSet::new();
    let mut left = vec![World::new(mutations)];
    while let Some(world) = left.pop() {
        check(&world);
        for step in world.steps() {
            let mut next = world.clone();
            next.take(step);
            if seen.insert(next.number_of_state()) {
                left.push(next);
            }
        }
    }
    seen.len()
}

fn one_side_goes_on(world: &World) {
    if world.has_healed || !world.number_of_state().is_multiple_of(16) {
        return;
    }
    let sides = world.clone().finish();
    assert_eq!(sides.len(), 1, "of a partition that lasts, {sides:?} go on");
}

#[test]
fn e13_every_interleaving_has_one_winner() {
    let states = explore(&[], one_side_goes_on);
    eprintln!("{states} states");
    assert!(states > 500_000, "only {states} states");
}

#[test]
#[should_panic(expected = "of a partition that lasts")]
fn e13_a_loser_that_goes_on_breaks_the_model() {
    explore(&[Mutation::IgnoreLostArbitration], one_side_goes_on);
}
