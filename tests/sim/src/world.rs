//! The world: events in virtual time, faults, and the check at the end.

mod clients;
mod event;
mod faults;
mod lease;
mod manager;
mod nodes;
mod plan;
mod storage;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Instant;

use ostraca_client::ledger;
use ostraca_core::ids::{Entity, Incarnation, MessageId, TurnId};
use ostraca_core::message::{Message, Outcome};
use ostraca_core::shard::{Event, Machine, Mutation};
use ostraca_oracle::Operation;

use self::clients::Client;
use self::event::SimEvent;
use crate::history_check::HistoryCheck;
use crate::node::{Node, ReplyTo};
use crate::queue::Queue;
use crate::rng::Rng;
use crate::run_digest::RunDigest;
use crate::store::{Store, StoreMutation};
use crate::tally::Tally;
use crate::timers::{self, Firings};
use crate::violation::{Violation, ViolationKind};

/// How a run deviates from the rules.
#[derive(Clone, Debug)]
pub struct Options {
    /// Disabled rules of the core.
    pub mutations: Vec<Mutation>,
    /// Disabled rules of the store.
    pub store_mutations: Vec<StoreMutation>,
    /// The guest keeps the effects of refused turns (R21).
    pub keep_errors: bool,
    /// A deploy changes the shards of existing entities (R23).
    pub rebind: bool,
    /// Mutations of the clients' ledgers.
    pub client_mutations: Vec<ledger::Mutation>,
    /// Every fault loses renewals, and the thread that watches a lease may be late, so zombies answer for a long time
    /// (R8).
    pub zombies: bool,
    /// How many out of ten messages are queries.
    pub queries: u64,
    /// How many out of a hundred messages have short deadlines: their clients treat a refusal as final.
    pub impatient: u64,
    /// How many out of a hundred calls with commits the store refuses because of a limit.
    pub refused_calls: u64,
    /// How many out of a hundred calls with commits are delivered a second time.
    pub repeated_calls: u64,
    /// The number of messages in the run.
    pub messages: u64,
    /// Node b learns of each redeployment late, and node a receives the older one a second time (R24).
    pub late_redeployments: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            mutations: Vec::new(),
            store_mutations: Vec::new(),
            keep_errors: false,
            rebind: false,
            client_mutations: Vec::new(),
            zombies: false,
            queries: 3,
            impatient: 15,
            refused_calls: 2,
            repeated_calls: 3,
            messages: 220,
            late_redeployments: false,
        }
    }
}

/// The result of a run.
#[derive(Clone, Debug)]
pub struct Report {
    /// All broken promises.
    pub breaches: Vec<Violation>,
    /// Counts of what occurred.
    pub tally: Tally,
    /// What the clients saw.
    pub history: Vec<Operation>,
    /// A digest of what the machines decided and what the clients saw.
    pub digest: u64,
}

const LEASE: u64 = 600;
const RENEW: u64 = 150;
/// The time after the last fault within which everything must be answered, in virtual milliseconds.
const SETTLE: u64 = 120_000;

struct World {
    rng: Rng,
    options: Options,
    now: u64,
    queue: Queue<SimEvent>,
    nodes: Vec<Node>,
    clients: Vec<Client>,
    /// The instant at which the ledgers' clock starts.
    begun: Instant,
    store: Store,
    store_up: bool,
    sync_fails: bool,
    asked: BTreeMap<u64, (usize, Incarnation, u64)>,
    tags: u64,
    tokens: u64,
    incarnations: u64,
    epoch: u64,
    owner: Option<(usize, Incarnation)>,
    renewed: [u64; 2],
    dead: BTreeSet<u64>,
    /// The revision that each node has learnt of.
    revisions: [u64; 2],
    issued: u64,
    /// Whether entities keep few lanes and few replies.
    forgetful: bool,
    /// Number of copies that a gateway holds for a long time.
    held_copies: u64,
    loss: u64,
    turns: HashMap<TurnId, Arc<Message>>,
    /// Whether the guests set timers.
    timers: bool,
    /// Draws everything that concerns timers, so that runs without timers do not depend on it.
    timer_rng: Rng,
    firings: Firings,
    deadlines: HashMap<(usize, MessageId), Option<u64>>,
    last_request: BTreeMap<(usize, u64), u64>,
    /// Turns whose commit was refused: a second delivery of the same call must not commit them.
    refused: BTreeSet<TurnId>,
    violations: Vec<Violation>,
    tally: Tally,
    digest: RunDigest,
}

/// Runs a seed.
#[must_use]
pub fn run(seed: u64, options: Options) -> Report {
    let mut rng = Rng::new(seed);
    let clients = rng.range(2, 5) as usize;
    let mut world = World {
        store: Store::new(options.store_mutations.clone()),
        options,
        now: 0,
        queue: Queue::new(),
        nodes: Vec::new(),
        clients: Vec::new(),
        begun: Instant::now(),
        store_up: true,
        sync_fails: false,
        asked: BTreeMap::new(),
        tags: 0,
        tokens: 0,
        incarnations: 0,
        epoch: 0,
        owner: None,
        renewed: [0; 2],
        dead: BTreeSet::new(),
        revisions: [1; 2],
        issued: 0,
        forgetful: rng.chance(50),
        held_copies: 0,
        loss: if rng.chance(50) { 0 } else { rng.range(1, 15) },
        turns: HashMap::new(),
        timers: seed.is_multiple_of(2),
        timer_rng: Rng::new(seed ^ 0x7469_6d65_7273),
        firings: Firings::default(),
        deadlines: HashMap::new(),
        last_request: BTreeMap::new(),
        refused: BTreeSet::new(),
        violations: Vec::new(),
        tally: Tally::default(),
        digest: RunDigest::default(),
        rng,
    };
    for _ in 0..clients {
        world.a_client();
    }
    world.start();
    world.live();
    world.finish()
}

impl World {
    /// UTC as a node sees it.
    fn utc(&self, node: usize) -> u64 {
        timers::utc(self.now, self.nodes[node].incarnation.counter)
    }

    fn at(&mut self, delay: u64, happening: SimEvent) {
        self.queue.put(self.now + delay, happening);
    }

    fn live(&mut self) {
        let mut last_fault = 0;
        let mut steps = 0_u64;
        while let Some((when, happening)) = self.queue.take() {
            self.now = when;
            steps += 1;
            if matches!(happening, SimEvent::InjectFault(_)) {
                last_fault = when;
            }
            self.handle(happening);
            let done = self.issued >= self.options.messages
                && self.clients.iter().all(|client| client.session.unresolved.is_empty());
            if done
                && self.now > 2_600
                && self.held_copies == 0
                && timers::pending(self.store.durable()).is_empty()
            {
                return;
            }
            if self.now > last_fault.max(3_000) + SETTLE || steps > 2_000_000 {
                let left: usize = self.clients.iter().map(|it| it.session.unresolved.len()).sum();
                let timers = timers::pending(self.store.durable());
                if left == 0 && !timers.is_empty() {
                    self.violations.push(ViolationKind::TimerNotFired.because(format!(
                        "at {}, these timers have not fired: {timers:?}",
                        timers::utc(self.now, 0)
                    )));
                    return;
                }
                self.violations.push(ViolationKind::Unanswered.because(format!(
                    "{left} messages were not resolved in time after the last fault"
                )));
                return;
            }
        }
    }

    fn handle(&mut self, happening: SimEvent) {
        match happening {
            SimEvent::Issue { client } => self.issue(client),
            SimEvent::Session { client } => self.session_tick(client),
            SimEvent::Arrive { node, copy } => self.arrive(node, copy),
            SimEvent::Release { copy } => self.release(copy),
            SimEvent::Reply { asker, epoch, outcome } => {
                let ReplyTo { client, line, probe, sequence, kind } = asker;
                if !probe {
                    self.replied(client, line, (sequence, kind, epoch), outcome);
                } else if matches!(outcome, Outcome::Final { .. }) {
                    let why = format!("a reused id was answered: {outcome:?}");
                    self.violations.push(ViolationKind::ReusedIdAnswered.because(why));
                }
            }
            SimEvent::Missed { client, line, sequence, copies } => {
                self.missed(client, line, sequence, copies);
            }
            SimEvent::AtStore { node, incarnation, connection, tag, request } => {
                self.at_store(node, incarnation, connection, tag, request);
            }
            SimEvent::Sync => self.sync(),
            SimEvent::FromStore { node, incarnation, connection, tag, response: answer } => {
                self.store_responded(node, incarnation, connection, tag, answer);
            }
            SimEvent::Ran { node, incarnation, event, run } => {
                self.ran(node, incarnation, event, run);
            }
            SimEvent::Tick { node, incarnation } => {
                if self.nodes[node].incarnation == incarnation {
                    self.nodes[node].armed = None;
                }
                let paused = self.nodes[node].paused_until;
                if self.nodes[node].incarnation != incarnation || !self.nodes[node].alive {
                } else if paused > self.now {
                    self.nodes[node].armed = Some(paused);
                    self.at(paused - self.now, SimEvent::Tick { node, incarnation });
                } else {
                    let due = self.nodes[node].machine.as_ref().and_then(Machine::next_wake);
                    let mono = self.nodes[node].mono(self.now);
                    if due.is_some_and(|due| due <= mono) {
                        self.handle_event(node, Event::Tick);
                    } else {
                        self.arm(node);
                    }
                }
            }
            SimEvent::Renew { node } => self.renew(node),
            SimEvent::RenewalSeen { node, incarnation, sent } => {
                self.renewal_seen(node, incarnation, sent);
            }
            SimEvent::Renewed { node, incarnation, sent } => {
                self.renewed(node, incarnation, sent);
            }
            SimEvent::Lapse { node, incarnation } => self.lapse(node, incarnation),
            SimEvent::ReadClaims { node, incarnation } => self.read_claims(node, incarnation),
            SimEvent::Manage => self.manage(),
            SimEvent::Assigned { node, incarnation, epoch } => {
                self.assigned(node, incarnation, epoch);
            }
            SimEvent::InjectFault(fault) => self.inject_fault(fault),
            SimEvent::Redeployed { node, revision } => self.redeployed(node, revision),
            SimEvent::NodeUp { node, incarnation } => {
                if self.nodes[node].incarnation != incarnation {
                    return;
                }
                let process = self.process();
                self.nodes[node] = process;
                self.at(1, SimEvent::Renew { node });
            }
            SimEvent::StoreUp if !self.store_up => {
                self.store.reopen();
                self.store_up = true;
            }
            SimEvent::StoreUp => {}
        }
    }

    fn finish(mut self) -> Report {
        for node in 0..2 {
            if let Some(machine) = self.nodes[node].machine.take() {
                self.replay(node, machine);
            }
        }
        self.store.crash(true, &mut self.rng);
        self.store.reopen();
        let mut verdict = HistoryCheck::default();
        let message_of = |turn: &TurnId| self.turns.get(turn).map(|message| message.id);
        verdict.durable(self.store.durable(), message_of);
        // A run that ends early leaves messages without an outcome.
        self.close_clients();
        let seen = self.clients.into_iter().map(|it| (it.session.key, it.session.history));
        let (broken, history) = verdict.of(seen.collect());
        self.violations.extend(broken);
        self.violations.extend(self.firings.judge(self.store.durable()));
        let digest = self.digest.finish(&history);
        Report { breaches: self.violations, tally: self.tally, history, digest }
    }
}

/// The key of an entity's load, which differs from the key of its activation.
fn load_key(entity: &Entity) -> Entity {
    Entity::new(format!("load:{}", entity.entity_type), entity.id.clone())
}
