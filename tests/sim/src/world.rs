//! The world: events in virtual time, faults, and the judgement at the end.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap};
use std::sync::Arc;

use ostraca_oracle::{Counter, End, Operation, check};
use ostraca_sharding::ids::{
    ClusterId, Digest, Entity, Epoch, Incarnation, MessageId, NodeId, ShardId, ShardKey, TurnId,
};
use ostraca_sharding::message::{Kind, Message, Now, Outcome, Token, codes};
use ostraca_sharding::records::{ClaimOutcome, Commit, CommitOutcome, Refusal};
use ostraca_sharding::shard::{
    Action, Activation, Event, LiveCap, Machine, Mutation, Owner, Settings, StopReason, Turn,
    TurnResult, TypeSettings,
};

use crate::client::{Client, Pending};
use crate::guest::{Instance, LIMIT};
use crate::node::Node;
use crate::rng::Rng;
use crate::store::{self, Answer, Breach, Request, Store};
use crate::tally::Tally;

/// What a run does differently from the rules.
#[derive(Clone, Debug)]
pub struct Options {
    /// Rules of the core switched off.
    pub mutations: Vec<Mutation>,
    /// Rules of the store switched off.
    pub breaches: Vec<Breach>,
    /// The guest keeps the effects of refused turns (R21).
    pub keep_errors: bool,
    /// Messages in the run.
    pub messages: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self { mutations: Vec::new(), breaches: Vec::new(), keep_errors: false, messages: 220 }
    }
}

/// What came of a run.
#[derive(Clone, Debug)]
pub struct Report {
    /// Every promise that was broken, one sentence each.
    pub breaches: Vec<String>,
    /// What occurred.
    pub tally: Tally,
    /// What the clients saw.
    pub history: Vec<Operation>,
}

#[derive(Clone, Copy, Debug)]
enum Fault {
    NodeCrash,
    StoreCrash { power: bool },
    SyncFails,
    Reset,
    Pause { millis: u64 },
    Move,
    Redeploy,
}

#[derive(Debug)]
enum Happening {
    Issue {
        client: usize,
    },
    Arrive {
        node: usize,
        client: usize,
        probe: bool,
        message: Box<Message>,
    },
    Reply {
        client: usize,
        sequence: u64,
        probe: bool,
        outcome: Outcome,
    },
    /// Sends again, unless a copy went out since.
    Again {
        client: usize,
        sequence: u64,
        copies: u32,
    },
    AtStore {
        node: usize,
        incarnation: Incarnation,
        connection: u64,
        tag: u64,
        request: Request,
    },
    Sync,
    FromStore {
        node: usize,
        incarnation: Incarnation,
        connection: u64,
        tag: u64,
        answer: Answer,
    },
    Ran {
        node: usize,
        incarnation: Incarnation,
        event: Event,
        run: Option<Arc<Message>>,
    },
    Tick {
        node: usize,
        incarnation: Incarnation,
    },
    Renew {
        node: usize,
    },
    RenewalSeen {
        node: usize,
        incarnation: Incarnation,
        sent: u64,
    },
    Renewed {
        node: usize,
        incarnation: Incarnation,
        sent: u64,
    },
    Manage,
    Assigned {
        node: usize,
        incarnation: Incarnation,
        epoch: Epoch,
    },
    Strike(Fault),
    NodeUp {
        node: usize,
        incarnation: Incarnation,
    },
    StoreUp,
}

struct Timed(u64, u64, Happening);

impl PartialEq for Timed {
    fn eq(&self, other: &Self) -> bool {
        (self.0, self.1) == (other.0, other.1)
    }
}
impl Eq for Timed {}
impl PartialOrd for Timed {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Timed {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.0, self.1).cmp(&(other.0, other.1))
    }
}

const LEASE: u64 = 600;
const RENEW: u64 = 150;
/// After the last fault everything must be answered within this, in virtual milliseconds.
const SETTLE: u64 = 120_000;

struct World {
    rng: Rng,
    options: Options,
    now: u64,
    order: u64,
    queue: BinaryHeap<Reverse<Timed>>,
    nodes: Vec<Node>,
    clients: Vec<Client>,
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
    revision: u64,
    issued: u64,
    loss: u64,
    turns: HashMap<TurnId, Arc<Message>>,
    deadlines: HashMap<(usize, MessageId), Option<u64>>,
    last_request: BTreeMap<(usize, u64), u64>,
    /// Turns whose commit was refused: a second delivery of the same call must not let them in.
    refused: BTreeSet<TurnId>,
    breaches: Vec<String>,
    tally: Tally,
}

/// Runs a seed.
#[must_use]
pub fn run(seed: u64, options: Options) -> Report {
    let mut rng = Rng::new(seed);
    let clients = rng.range(2, 5) as usize;
    let mut world = World {
        store: Store::new(options.breaches.clone()),
        options,
        now: 0,
        order: 0,
        queue: BinaryHeap::new(),
        nodes: Vec::new(),
        clients: (0..clients).map(|number| Client::new(number as u64)).collect(),
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
        revision: 1,
        issued: 0,
        loss: if rng.chance(50) { 0 } else { rng.range(1, 15) },
        turns: HashMap::new(),
        deadlines: HashMap::new(),
        last_request: BTreeMap::new(),
        refused: BTreeSet::new(),
        breaches: Vec::new(),
        tally: Tally::default(),
        rng,
    };
    world.start();
    world.live();
    world.judge()
}

impl World {
    fn at(&mut self, delay: u64, happening: Happening) {
        self.order += 1;
        self.queue.push(Reverse(Timed(self.now + delay, self.order, happening)));
    }

    fn start(&mut self) {
        for _ in 0..2 {
            let node = self.process();
            self.nodes.push(node);
        }
        for node in 0..2 {
            self.at(0, Happening::Renew { node });
        }
        self.at(1, Happening::Manage);
        for client in 0..self.clients.len() {
            self.at(5, Happening::Issue { client });
        }
        for _ in 0..self.rng.range(1, 6) {
            let fault = match self.rng.range(0, 8) {
                0 => Fault::NodeCrash,
                1 => Fault::StoreCrash { power: false },
                2 => Fault::StoreCrash { power: true },
                3 => Fault::SyncFails,
                4 => Fault::Reset,
                5 => Fault::Pause { millis: self.rng.range(50, LEASE * 3) },
                6 => Fault::Move,
                _ => Fault::Redeploy,
            };
            let when = self.rng.range(50, 2_500);
            self.at(when, Happening::Strike(fault));
        }
    }

    fn process(&mut self) -> Node {
        self.incarnations += 1;
        let rate = if self.rng.chance(50) {
            1000
        } else {
            self.tally.count("fault: node clock drifts");
            self.rng.range(950, 1051)
        };
        Node {
            incarnation: Incarnation { counter: self.incarnations, nonce: self.rng.draw() },
            alive: true,
            paused_until: 0,
            offset: self.rng.range(0, 1_000_000),
            rate,
            machine: None,
            instances: BTreeMap::new(),
            cap: LiveCap::new(self.rng.range(1, 5) as usize),
            connection: 0,
            asked: BTreeMap::new(),
            starting: HashMap::new(),
            tokens: BTreeMap::new(),
            armed: None,
            script: Vec::new(),
        }
    }

    fn live(&mut self) {
        let mut last_fault = 0;
        let mut steps = 0_u64;
        while let Some(Reverse(Timed(when, _, happening))) = self.queue.pop() {
            self.now = when;
            steps += 1;
            if matches!(happening, Happening::Strike(_)) {
                last_fault = when;
            }
            self.happen(happening);
            let done = self.issued >= self.options.messages
                && self.clients.iter().all(|client| client.pending.is_empty());
            if done && self.now > 2_600 {
                return;
            }
            if self.now > last_fault.max(3_000) + SETTLE || steps > 2_000_000 {
                let left: usize = self.clients.iter().map(|client| client.pending.len()).sum();
                self.breaches.push(format!(
                    "{left} messages were not resolved in time after the last fault"
                ));
                return;
            }
        }
    }

    // ---- what happens ----

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Issue { client } => self.issue(client),
            Happening::Arrive { node, client, probe, message } => {
                self.arrive(node, client, probe, message);
            }
            Happening::Reply { client, sequence, probe, outcome } => {
                if probe {
                    if matches!(outcome, Outcome::Final { .. }) {
                        self.breaches.push(format!("a reused id was answered: {outcome:?}"));
                    }
                    return;
                }
                let superseded =
                    matches!(&outcome, Outcome::NotRun { code, .. } if code == codes::SUPERSEDED);
                // A query whose answer was lost may be overtaken; a command never.
                let pending = self.clients[client].pending.get(&sequence);
                if superseded && pending.is_some_and(|pending| pending.kind == Kind::Command) {
                    self.breaches
                        .push(format!("{sequence} was overtaken in its lane, and never ran"));
                }
                if let Some(delay) = self.clients[client].reply(sequence, self.now, outcome) {
                    self.again(delay, client, sequence);
                }
            }
            Happening::Again { client, sequence, copies } => {
                let pending = self.clients[client].pending.get(&sequence);
                if pending.is_some_and(|pending| pending.copies == copies) {
                    self.send(client, sequence);
                }
            }
            Happening::AtStore { node, incarnation, connection, tag, request } => {
                self.at_store(node, incarnation, connection, tag, request);
            }
            Happening::Sync => self.sync(),
            Happening::FromStore { node, incarnation, connection, tag, answer } => {
                self.heard_store(node, incarnation, connection, tag, answer);
            }
            Happening::Ran { node, incarnation, event, run } => {
                self.ran(node, incarnation, event, run);
            }
            Happening::Tick { node, incarnation } => {
                if self.nodes[node].incarnation == incarnation {
                    self.nodes[node].armed = None;
                }
                let paused = self.nodes[node].paused_until;
                if self.nodes[node].incarnation != incarnation || !self.nodes[node].alive {
                } else if paused > self.now {
                    self.nodes[node].armed = Some(paused);
                    self.at(paused - self.now, Happening::Tick { node, incarnation });
                } else {
                    let due = self.nodes[node].machine.as_ref().and_then(Machine::wake);
                    let mono = self.nodes[node].mono(self.now);
                    if due.is_some_and(|due| due <= mono) {
                        self.tell(node, Event::Tick);
                    } else {
                        self.arm(node);
                    }
                }
            }
            Happening::Renew { node } => self.renew(node),
            Happening::RenewalSeen { node, incarnation, sent } => {
                // A dead incarnation cannot renew, and registering over a live lease waits until it lapses (R7).
                let held_by_another =
                    self.owner.is_some_and(|(at, owner)| at == node && owner != incarnation);
                if self.nodes[node].incarnation == incarnation
                    && !self.dead.contains(&incarnation.counter)
                    && !held_by_another
                {
                    self.renewed[node] = self.now;
                    let delay = self.rng.range(1, 10);
                    self.at(delay, Happening::Renewed { node, incarnation, sent });
                }
            }
            Happening::Renewed { node, incarnation, sent } => {
                self.when_awake(node, incarnation, Event::Renewed { sent });
            }
            Happening::Manage => self.manage(),
            Happening::Assigned { node, incarnation, epoch } => {
                self.assigned(node, incarnation, epoch);
            }
            Happening::Strike(fault) => self.strike(fault),
            Happening::NodeUp { node, incarnation } => {
                if self.nodes[node].incarnation != incarnation {
                    return;
                }
                let process = self.process();
                self.nodes[node] = process;
                self.at(1, Happening::Renew { node });
            }
            Happening::StoreUp if !self.store_up => {
                self.store.reopen();
                self.store_up = true;
            }
            Happening::StoreUp => {}
        }
    }

    fn issue(&mut self, client: usize) {
        if self.issued >= self.options.messages {
            return;
        }
        let delay = self.rng.range(1, 40);
        self.at(delay, Happening::Issue { client });
        if self.clients[client].pending.len() >= 8 {
            return;
        }
        for _ in 0..self.rng.range(1, 4) {
            self.issued += 1;
            let id = self.rng.range(0, 4);
            let kind = if id == 3 { "starter" } else { "counter" };
            let (kind_of, method, by) = match self.rng.range(0, 10) {
                0..=2 => (Kind::Query, "get", 0),
                3..=4 => (Kind::Command, "take", self.rng.range(1, 20)),
                _ => (Kind::Command, "add", self.rng.range(1, 10)),
            };
            let patience = self.rng.chance(15).then(|| self.rng.range(5, 200));
            let sent = self.now;
            let it = &mut self.clients[client];
            it.last += 1;
            let sequence = it.last;
            let entity = Entity::new(kind, format!("{id}"));
            let pending = Pending {
                entity,
                kind: kind_of,
                method,
                by,
                sent,
                patience,
                copies: 0,
                refused: 0,
            };
            it.pending.insert(sequence, pending);
            self.send(client, sequence);
        }
    }

    fn send(&mut self, client: usize, sequence: u64) {
        let Some(message) = self.clients[client].copy(sequence, self.now) else { return };
        let doubled = self.rng.chance(4);
        if doubled {
            self.tally.count("fault: message doubled");
        }
        let burst = if self.rng.chance(1) { 20 } else { 1 };
        for _ in 0..if doubled { 1 + burst } else { 1 } {
            if let Some(pending) = self.clients[client].pending.get_mut(&sequence) {
                pending.copies += 1;
            }
            self.post(client, false, message.clone());
        }
        if self.rng.chance(2) {
            // Somebody uses the same id for something else, after it was answered or long before it is settled.
            let sequences: Vec<u64> =
                self.clients[client].history.iter().rev().take(3).map(|o| o.sequence).collect();
            if let Some(sequence) = sequences.first() {
                let mut probe = message;
                probe.id.sequence = *sequence;
                probe.after = 0;
                probe.settled = 0;
                probe.kind = Kind::Command;
                probe.method = "add".into();
                probe.body = 777_u64.to_le_bytes().to_vec().into();
                if let Some(o) =
                    self.clients[client].history.iter().rev().find(|o| o.sequence == *sequence)
                    && let Some((kind, id)) = o.entity.split_once('/')
                    && o.command
                    && matches!(o.outcome, ostraca_oracle::Outcome::Final { .. })
                {
                    probe.target = Entity::new(kind, id);
                    probe.digest = Digest::of(&probe.target, "add", &probe.body);
                    self.post(client, true, probe);
                }
            }
        }
        let timeout = self.rng.range(150, 600);
        self.again(timeout, client, sequence);
    }

    fn again(&mut self, delay: u64, client: usize, sequence: u64) {
        if let Some(pending) = self.clients[client].pending.get(&sequence) {
            let copies = pending.copies;
            self.at(delay, Happening::Again { client, sequence, copies });
        }
    }

    fn post(&mut self, client: usize, probe: bool, message: Message) {
        if self.rng.chance(self.loss) {
            self.tally.count("fault: message lost");
            return;
        }
        let routed = self.owner.map_or(0, |(node, _)| node);
        let node = if self.rng.chance(85) { routed } else { 1 - routed };
        let delay = self.rng.range(1, 30);
        self.at(delay, Happening::Arrive { node, client, probe, message: Box::new(message) });
    }

    fn arrive(&mut self, node: usize, client: usize, probe: bool, mut message: Box<Message>) {
        let it = &mut self.nodes[node];
        if !it.alive || it.machine.is_none() {
            return;
        }
        if it.paused_until > self.now {
            let delay = it.paused_until - self.now;
            return self.at(delay, Happening::Arrive { node, client, probe, message });
        }
        self.tokens += 1;
        message.token = Token(self.tokens);
        message.arrived = it.mono(self.now);
        message.deadline = message.deadline.map(|patience| message.arrived + patience);
        it.tokens.insert(message.token, (client, message.id.sequence, probe));
        // Copies share a turn: it may start while one of them still waits.
        let latest = self.deadlines.entry((node, message.id)).or_insert(message.deadline);
        *latest = latest.zip(message.deadline).map(|(one, other)| one.max(other));
        self.tell(node, Event::Message(message));
    }

    fn renew(&mut self, node: usize) {
        let it = &self.nodes[node];
        if !it.alive {
            return;
        }
        let delay = it.paused_until.saturating_sub(self.now);
        if delay > 0 {
            return self.at(delay, Happening::Renew { node });
        }
        let (incarnation, sent) = (it.incarnation, it.mono(self.now));
        let travel = self.rng.range(1, 20);
        self.at(travel, Happening::RenewalSeen { node, incarnation, sent });
        self.at(RENEW, Happening::Renew { node });
    }

    /// The manager's stand-in: gives the shard to somebody once its owner is known to be dead.
    fn manage(&mut self) {
        self.at(40, Happening::Manage);
        if let Some((node, incarnation)) = self.owner {
            if self.now <= self.renewed[node] + LEASE + LEASE / 5 {
                return;
            }
            self.tally.count("transition: assigned anew after a lapse");
            self.owner = None;
            self.dead.insert(incarnation.counter);
            let it = &self.nodes[node];
            if it.alive && it.incarnation == incarnation {
                // Paused, it wakes as a zombie, and learns after a while that it is dead.
                let delay = it.paused_until.saturating_sub(self.now) + 700;
                self.at(delay, Happening::NodeUp { node, incarnation });
            }
        }
        let first = self.rng.range(0, 2) as usize;
        for node in [first, 1 - first] {
            let it = &self.nodes[node];
            let live = it.alive && !self.dead.contains(&it.incarnation.counter);
            if live && it.paused_until <= self.now && self.renewed[node] + LEASE > self.now {
                self.assign(node);
                return;
            }
        }
    }

    fn assign(&mut self, node: usize) {
        self.epoch += 1;
        let incarnation = self.nodes[node].incarnation;
        self.owner = Some((node, incarnation));
        let delay = self.rng.range(1, 15);
        self.at(delay, Happening::Assigned { node, incarnation, epoch: Epoch(self.epoch) });
    }

    fn assigned(&mut self, node: usize, incarnation: Incarnation, epoch: Epoch) {
        if self.nodes[node].incarnation != incarnation || !self.nodes[node].alive {
            return;
        }
        let settings = Settings {
            lease: LEASE,
            order_wait: 60,
            gate: 4,
            copies: 6,
            lanes: if self.rng.chance(5) { 2 } else { 10 },
            lane_life: 20_000,
            head_lane_bytes: self.rng.range(0, 600) as usize,
            activation_wait: 400,
            claim_retry: 20,
            stop_deadline: 300,
            mutations: self.options.mutations.clone(),
            ..Settings::default()
        };
        let shard =
            ShardKey { namespace: "default".into(), pool: "default".into(), shard: ShardId(1) };
        let owner = Owner {
            cluster: ClusterId(1),
            shard,
            epoch,
            node: NodeId::from(["a", "b"][node]),
            incarnation,
        };
        let machine = Machine::new(settings.clone(), owner.clone());
        if let Some(old) = self.nodes[node].machine.replace(machine) {
            self.replay(node, old);
        }
        self.nodes[node].script.clear();
        self.nodes[node].instances.clear();
        let most = self.rng.range(1, 5) as usize;
        self.nodes[node].cap = LiveCap::new(most);
        self.deploy(node);
        let sent = self.nodes[node].mono(self.renewed[node].saturating_sub(20));
        self.tell(node, Event::Renewed { sent });
    }

    fn deploy(&mut self, node: usize) {
        for (kind, has_stop) in [("counter", false), ("starter", true)] {
            let settings =
                TypeSettings { revision: self.revision, mailbox: 8, idle: 250, has_stop };
            self.tell(node, Event::Type { kind: kind.into(), settings });
        }
    }

    /// The same events must give the same actions: else nothing recorded could be replayed.
    fn replay(&mut self, node: usize, old: Machine) {
        let script = std::mem::take(&mut self.nodes[node].script);
        let Some(settings) = script.first().map(|_| old.settings().clone()) else { return };
        let mut again = Machine::new(settings, old.owner().clone());
        for (now, event, actions) in script {
            again.handle(now, event.clone());
            let mut same = Vec::new();
            while let Some(action) = again.poll() {
                same.push(action);
            }
            if same != actions {
                self.breaches
                    .push(format!("replayed, {event:?} gave {same:?} and not {actions:?}"));
                return;
            }
        }
    }

    fn strike(&mut self, fault: Fault) {
        let owner = self.owner.map_or(0, |(node, _)| node);
        match fault {
            Fault::NodeCrash => {
                self.tally.count("fault: node crash");
                let node = if self.rng.chance(80) { owner } else { 1 - owner };
                self.nodes[node].alive = false;
                self.nodes[node].machine = None;
                let incarnation = self.nodes[node].incarnation;
                let delay = self.rng.range(10, 2_000);
                self.at(delay, Happening::NodeUp { node, incarnation });
            }
            Fault::StoreCrash { power } => {
                self.tally.count(if power {
                    "fault: store power loss"
                } else {
                    "fault: store crash"
                });
                self.store.crash(power, &mut self.rng);
                self.store_down();
            }
            Fault::SyncFails => self.sync_fails = true,
            Fault::Reset => {
                self.tally.count("fault: store connection reset");
                self.reset(owner);
            }
            Fault::Pause { millis } => {
                self.tally.count("fault: owner paused");
                if millis > LEASE * 3 / 2 {
                    self.tally.count("fault: owner paused past its lease");
                }
                self.nodes[owner].paused_until = self.now + millis;
            }
            Fault::Move => {
                if self.nodes[owner].machine.is_some() {
                    self.when_awake(
                        owner,
                        self.nodes[owner].incarnation,
                        Event::Stop(StopReason::HandedOff),
                    );
                }
            }
            Fault::Redeploy => {
                self.tally.count("transition: redeployed");
                self.revision += 1;
                for node in 0..2 {
                    if self.nodes[node].alive && self.nodes[node].machine.is_some() {
                        self.deploy(node);
                    }
                }
            }
        }
    }

    fn store_down(&mut self) {
        self.store_up = false;
        for node in 0..2 {
            self.reset(node);
        }
        let delay = self.rng.range(5, 400);
        self.at(delay, Happening::StoreUp);
    }

    /// A connection to the store is given up: what was asked on it may still arrive, nobody hears the answer.
    fn reset(&mut self, node: usize) {
        self.nodes[node].connection += 1;
        for (_, request) in std::mem::take(&mut self.nodes[node].asked) {
            let answer = match &request {
                Request::Commit(_) => {
                    store::unknown(store::refusal(&request, "reset"), "the connection broke")
                }
                _ => store::refusal(&request, "the connection broke"),
            };
            self.answered(node, answer);
        }
    }

    // ---- the store ----

    fn ask(&mut self, node: usize, request: Request) {
        self.tags += 1;
        let tag = self.tags;
        let it = &mut self.nodes[node];
        it.asked.insert(tag, request.clone());
        let (incarnation, connection) = (it.incarnation, it.connection);
        let slow = self.rng.chance(3);
        let delay = self.rng.range(1, if slow { 300 } else { 6 });
        // One connection keeps its order; two do not.
        let last = self.last_request.entry((node, connection)).or_default();
        let when = (self.now + delay).max(*last);
        *last = when;
        let happening = Happening::AtStore { node, incarnation, connection, tag, request };
        self.at(when - self.now, happening);
    }

    fn at_store(
        &mut self,
        node: usize,
        incarnation: Incarnation,
        connection: u64,
        tag: u64,
        mut request: Request,
    ) {
        if let Request::Commit(commits) = &mut request
            && connection == u64::MAX
            && !self.options.breaches.contains(&Breach::RefusalsPass)
        {
            commits.retain(|commit| !self.refused.contains(&commit.head.turn));
        }
        if !self.store_up {
            let answer = store::refusal(&request, "the store is down");
            return self.at(1, Happening::FromStore { node, incarnation, connection, tag, answer });
        }
        if matches!(request, Request::Commit(_)) && self.rng.chance(2) {
            // Too large a record, a full queue: this one is refused, and those behind it go on without it.
            self.tally.count("fault: one commit refused for a limit");
            let answer = store::refusal(&request, "full");
            return self.at(1, Happening::FromStore { node, incarnation, connection, tag, answer });
        }
        let late = self.nodes[node].connection != connection
            || self.nodes[node].incarnation != incarnation;
        if late && matches!(request, Request::Commit(_)) {
            self.tally.count("fault: commit arrives late, from a connection that was given up");
        }
        self.asked.insert(tag, (node, incarnation, connection));
        if let Request::Commit(_) = request
            && self.rng.chance(3)
        {
            // Delivered twice: the second time nobody waits for it.
            self.tags += 1;
            let tag = self.tags;
            let delay = self.rng.range(1, 400);
            let request = request.clone();
            self.at(
                delay,
                Happening::AtStore { node, incarnation, connection: u64::MAX, tag, request },
            );
        }
        let idle = !self.store.needs_sync();
        if matches!(request, Request::Commit(_)) && self.rng.chance(3) {
            // The first answer is lost, and the connection asks again before it asks anything else.
            self.tags += 1;
            let unheard = self.store.request(self.tags, request.clone());
            self.deliver(unheard);
        }
        let answers = self.store.request(tag, request);
        self.deliver(answers);
        if idle && self.store.needs_sync() {
            let delay = self.rng.range(1, 8);
            self.at(delay, Happening::Sync);
        }
    }

    fn sync(&mut self) {
        if !self.store_up || !self.store.needs_sync() {
            return;
        }
        if std::mem::take(&mut self.sync_fails) {
            self.tally.count("fault: sync failed");
            let answers = self.store.fail_sync(&mut self.rng);
            self.deliver(answers);
            self.store_up = false;
            let delay = self.rng.range(5, 400);
            return self.at(delay, Happening::StoreUp);
        }
        let answers = self.store.sync();
        self.deliver(answers);
    }

    fn deliver(&mut self, answers: Vec<(u64, Answer)>) {
        for (tag, answer) in answers {
            if let Answer::Commit(outcomes) = &answer {
                let refused = outcomes.iter().filter(|o| matches!(o.2, CommitOutcome::Refused(_)));
                self.refused.extend(refused.map(|(_, turn, _)| *turn));
            }
            let Some((node, incarnation, connection)) = self.asked.remove(&tag) else { continue };
            let delay = self.rng.range(1, 6);
            self.at(delay, Happening::FromStore { node, incarnation, connection, tag, answer });
        }
    }

    fn heard_store(
        &mut self,
        node: usize,
        incarnation: Incarnation,
        connection: u64,
        tag: u64,
        answer: Answer,
    ) {
        let it = &self.nodes[node];
        if !it.alive || it.incarnation != incarnation || it.connection != connection {
            return;
        }
        if it.paused_until > self.now {
            let delay = it.paused_until - self.now;
            return self
                .at(delay, Happening::FromStore { node, incarnation, connection, tag, answer });
        }
        if self.nodes[node].asked.remove(&tag).is_some() {
            self.answered(node, answer);
        }
    }

    fn answered(&mut self, node: usize, answer: Answer) {
        let Some(machine) = &self.nodes[node].machine else { return };
        match answer {
            Answer::Claim(outcome) => {
                let number = machine.claim().number;
                self.tally.count(match &outcome {
                    ClaimOutcome::Granted if number > 1 => {
                        "transition: claimed again after an unknown outcome"
                    }
                    ClaimOutcome::Granted => "transition: claim granted",
                    ClaimOutcome::Refused { .. } => "transition: claim refused",
                    _ => "transition: claim failed",
                });
                self.tell(node, Event::Claimed { number, outcome });
            }
            Answer::Commit(outcomes) => {
                for (_, _, outcome) in &outcomes {
                    self.tally.count(match outcome {
                        CommitOutcome::Done => "transition: commit done",
                        CommitOutcome::Already => "transition: commit already",
                        CommitOutcome::Refused(Refusal::Claim { .. }) => {
                            "transition: commit refused for its claim"
                        }
                        CommitOutcome::Refused(Refusal::Version { .. }) => {
                            "transition: commit refused for its version"
                        }
                        CommitOutcome::Refused(Refusal::Limit(_)) => {
                            "transition: commit refused for a limit"
                        }
                        CommitOutcome::Unknown(_) => "transition: commit unknown",
                    });
                }
                self.tell(node, Event::Committed(outcomes));
            }
            Answer::Load(entity, result) => {
                let generation = self.nodes[node].starting.remove(&load_key(&entity)).unwrap_or(0);
                self.tell(node, Event::Loaded { entity, generation, result });
            }
            Answer::State(entity, result) => {
                let Some(generation) = self.nodes[node].starting.remove(&entity) else { return };
                let result = match result {
                    Ok(state) => {
                        let mut instance = Instance::new(generation, state);
                        let turn = instance.hook("starts", &*entity.kind == "starter");
                        if !turn.writes.is_empty() {
                            self.tally.count("transition: start turn with effects");
                        }
                        self.nodes[node].instances.insert(entity.clone(), instance);
                        Activation::Started(turn)
                    }
                    Err(why) => Activation::Failed {
                        code: "store-unavailable".into(),
                        message: why,
                        retry_after: Some(20),
                    },
                };
                self.tell(node, Event::Activated { entity, generation, result });
            }
        }
    }

    // ---- nodes ----

    fn when_awake(&mut self, node: usize, incarnation: Incarnation, event: Event) {
        let it = &self.nodes[node];
        if !it.alive || it.incarnation != incarnation {
            return;
        }
        if it.paused_until > self.now {
            let delay = it.paused_until - self.now;
            return self.at(delay, Happening::Ran { node, incarnation, event, run: None });
        }
        self.tell(node, event);
    }

    /// A turn's time has passed: now it is run, unless its instance is gone.
    fn ran(
        &mut self,
        node: usize,
        incarnation: Incarnation,
        event: Event,
        run: Option<Arc<Message>>,
    ) {
        let it = &self.nodes[node];
        if it.alive && it.incarnation == incarnation && it.paused_until > self.now {
            let delay = it.paused_until - self.now;
            return self.at(delay, Happening::Ran { node, incarnation, event, run });
        }
        let event = match (event, run) {
            (Event::TurnDone { entity, generation, turn, result }, run) => {
                let fails = self.rng.chance(2) && run.is_some();
                let passivate = self.rng.chance(3);
                let keep_errors = self.options.keep_errors;
                let Some(instance) = self.nodes[node].instances.get_mut(&entity) else { return };
                if instance.generation != generation {
                    return;
                }
                let result = match run {
                    _ if fails => {
                        self.tally.count("fault: guest failed");
                        let failed = TurnResult::Failed {
                            code: "trap".into(),
                            message: String::new(),
                            retry_after: None,
                        };
                        Turn { result: failed, ..result }
                    }
                    Some(message) => {
                        if passivate {
                            self.tally.count("transition: passivation by the guest");
                        }
                        instance.message(&message, keep_errors, passivate)
                    }
                    None => instance.hook("stops", true),
                };
                Event::TurnDone { entity, generation, turn, result }
            }
            (event, _) => event,
        };
        self.when_awake(node, incarnation, event);
    }

    fn tell(&mut self, node: usize, event: Event) {
        let now = Now { mono: self.nodes[node].mono(self.now), cluster: self.now };
        let Some(machine) = &mut self.nodes[node].machine else { return };
        machine.handle(now, event.clone());
        let mut actions = Vec::new();
        while let Some(action) = machine.poll() {
            actions.push(action);
        }
        self.nodes[node].script.push((now, event, actions.clone()));
        let mut commits: Vec<Commit> = Vec::new();
        for action in actions {
            self.act(node, now, action, &mut commits);
        }
        if !commits.is_empty() {
            self.ask(node, Request::Commit(commits));
        }
        self.arm(node);
        self.give_room(node);
    }

    fn arm(&mut self, node: usize) {
        let it = &self.nodes[node];
        if let Some(wake) = it.machine.as_ref().and_then(Machine::wake) {
            let when = it.world_time(wake).max(self.now + 1);
            if it.armed.is_some_and(|armed| armed <= when) {
                return;
            }
            let (delay, incarnation) = (when - self.now, it.incarnation);
            self.nodes[node].armed = Some(when);
            self.at(delay, Happening::Tick { node, incarnation });
        }
    }

    fn give_room(&mut self, node: usize) {
        while let Some(((_, entity), generation)) = self.nodes[node].cap.grant() {
            self.tell(node, Event::Slot { entity, generation });
        }
        if let Some((_, entity)) = self.nodes[node].cap.evict() {
            self.tally.count("transition: eviction");
            self.tell(node, Event::Evict { entity });
        }
    }

    fn act(&mut self, node: usize, now: Now, action: Action, commits: &mut Vec<Commit>) {
        let incarnation = self.nodes[node].incarnation;
        let Some(shard) = self.nodes[node].machine.as_ref().map(|m| m.owner().shard.clone()) else {
            return;
        };
        match action {
            Action::Claim(claim) => self.ask(node, Request::Claim(claim)),
            Action::Commit(commit) => commits.push(*commit),
            Action::Load { entity, generation } => {
                self.nodes[node].starting.insert(load_key(&entity), generation);
                self.ask(node, Request::Load(entity));
            }
            Action::WantSlot { entity, generation } => {
                self.nodes[node].cap.want((shard, entity), generation)
            }
            Action::FreeSlot { entity, generation } => {
                self.nodes[node].cap.free(&(shard, entity), generation)
            }
            Action::Busy { entity } => {
                self.tally.count("transition: eviction refused, busy");
                self.nodes[node].cap.refused(&(shard, entity));
            }
            Action::Idle { entity } => self.nodes[node].cap.idle((shard, entity)),
            Action::Activate { entity, generation, reason, .. } => {
                self.tally.count("transition: activation");
                if reason == ostraca_sharding::shard::StartReason::FirstMessage {
                    self.tally.count("transition: first activation");
                }
                self.nodes[node].starting.insert(entity.clone(), generation);
                self.ask(node, Request::State(entity));
            }
            Action::Run { generation, turn, message, .. } => {
                // A busy instance stays among the idle ones now and then, as a late note would leave it.
                if !self.rng.chance(20) {
                    self.nodes[node].cap.busy(&(shard, message.target.clone()));
                }
                let deadline = self.deadlines.get(&(node, message.id)).copied().flatten();
                if deadline.is_some_and(|deadline| deadline <= now.mono) {
                    self.breaches
                        .push(format!("a turn started after its deadline: {:?}", message.id));
                }
                self.turns.insert(turn, message.clone());
                self.start_turn(
                    node,
                    incarnation,
                    message.target.clone(),
                    generation,
                    turn,
                    Some(message),
                );
            }
            Action::Stop { entity, generation, turn, reason } => {
                self.tally.count("transition: stop turn");
                if reason == StopReason::Idle {
                    self.tally.count("transition: idle passivation");
                }
                self.start_turn(node, incarnation, entity, generation, turn, None);
            }
            Action::Drop { entity, generation } => {
                let instances = &mut self.nodes[node].instances;
                if instances.get(&entity).is_some_and(|instance| instance.generation == generation)
                {
                    instances.remove(&entity);
                }
            }
            Action::Reply { token, outcome } => self.reply(node, token, outcome),
            Action::Lost { .. } => {
                self.tally.count("transition: shard lost");
            }
            Action::Stopped => {
                self.tally.count("transition: shard stopped in good order");
                if !self.nodes[node].instances.is_empty() {
                    self.breaches.push("stopped was said while an instance lived".into());
                }
                if self.owner == Some((node, incarnation)) {
                    let to = 1 - node;
                    let to = if self.nodes[to].alive { to } else { node };
                    self.assign(to);
                }
            }
        }
    }

    fn start_turn(
        &mut self,
        node: usize,
        incarnation: Incarnation,
        entity: Entity,
        generation: u64,
        turn: TurnId,
        run: Option<Arc<Message>>,
    ) {
        let result = Turn {
            result: TurnResult::Answered(ostraca_sharding::records::Answer::Result(
                bytes::Bytes::new(),
            )),
            writes: Vec::new(),
            state_bytes: None,
            passivate: false,
        };
        let delay = self.rng.range(0, 12);
        let event = Event::TurnDone { entity, generation, turn, result };
        self.at(delay, Happening::Ran { node, incarnation, event, run });
    }

    fn reply(&mut self, node: usize, token: Token, outcome: Outcome) {
        let Some((client, sequence, probe)) = self.nodes[node].tokens.remove(&token) else {
            self.breaches.push(format!("a second reply to {token:?}: {outcome:?}"));
            return;
        };
        match &outcome {
            Outcome::Final { answer, .. } => {
                self.tally.count("reply: final");
                if matches!(answer, ostraca_sharding::records::Answer::Error { .. }) {
                    self.tally.count("reply: application error");
                }
                if let Some(pending) = self.clients[client].pending.get(&sequence) {
                    if pending.kind == Kind::Query {
                        self.tally.count("reply: query");
                    }
                } else if self.clients[client]
                    .history
                    .iter()
                    .any(|o| o.sequence == sequence && o.command)
                {
                    self.tally.count("reply: recorded outcome");
                }
            }
            Outcome::Unknown { .. } => self.tally.count("reply: unknown"),
            Outcome::NotRun { code, .. } => {
                if let Some(kind) = crate::tally::KINDS
                    .iter()
                    .find(|kind| kind.strip_prefix("not run: ") == Some(code))
                {
                    self.tally.count(kind);
                }
            }
        }
        if self.rng.chance(self.loss) {
            self.tally.count("fault: reply lost");
            return;
        }
        let delay = self.rng.range(1, 25);
        self.at(delay, Happening::Reply { client, sequence, probe, outcome });
    }

    // ---- the end ----

    fn judge(mut self) -> Report {
        for node in 0..2 {
            if let Some(machine) = self.nodes[node].machine.take() {
                self.replay(node, machine);
            }
        }
        self.store.crash(true, &mut self.rng);
        self.store.reopen();
        let image = self.store.durable();
        let versions =
            image.heads.iter().map(|(entity, head)| (entity.to_string(), head.version)).collect();
        let mut own_turns: BTreeMap<String, BTreeSet<u64>> = BTreeMap::new();
        for (entity, version, turn) in &image.turns {
            if !self.turns.contains_key(turn) {
                own_turns.entry(entity.to_string()).or_default().insert(*version);
            }
        }
        let durable: BTreeMap<MessageId, u64> = image
            .turns
            .iter()
            .filter_map(|(_, version, turn)| Some((self.turns.get(turn)?.id, *version)))
            .collect();
        for client in &self.clients {
            for operation in &client.history {
                let id = MessageId { session: client.session, sequence: operation.sequence };
                let told_not_run = operation.outcome == ostraca_oracle::Outcome::NotRun;
                if let Some(version) = durable.get(&id).filter(|_| told_not_run) {
                    self.breaches
                        .push(format!("told not run, but made version {version}: {operation:?}"));
                }
            }
        }
        let end = End { versions, own_turns };
        let history: Vec<Operation> =
            self.clients.into_iter().flat_map(|client| client.history).collect();
        self.breaches.extend(check(|_| Counter { value: 0, limit: LIMIT }, &history, &end));
        Report { breaches: self.breaches, tally: self.tally, history }
    }
}

/// Loads and activations of one entity are told apart by this.
fn load_key(entity: &Entity) -> Entity {
    Entity::new(format!("load:{}", entity.kind), entity.id.clone())
}
