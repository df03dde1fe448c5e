//! A whole cluster in virtual time: 3 to 7 nodes with the core's own machines, one bad store, a bad network, clients
//! that go to any gateway, and operators. A run is named by its seed.
//!
//! Each process has a node's machine, a machine for each shard that it holds, and a router; their threads are
//! modelled by short delays between them. What carries frames is `net`, between clients and gateways `lines`; what
//! gateways take, and how they answer, is the product's own code, which `gateway` and `door` call; what keeps rows and
//! entities is `rows` and `storage`; `guard` sees all at once and judges every write of a row; `judge` has the last word.
//!
//! After the last fault has ended, every shard must be served within [`SERVED`], and all messages answered and shards
//! balanced within [`SETTLED`].

mod clients;
mod control;
mod door;
mod faults;
mod gateway;
mod guard;
mod guard_shards;
mod judge;
mod keeper;
mod kinds;
mod leases;
mod life;
mod line_cuts;
mod lines;
mod net;
mod orders;
mod plan;
mod process;
mod rows;
mod shards;
mod slow;
mod storage;
mod strikes;
mod trace;
mod unfit;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Instant;

use ostraca_client::ledger;
use ostraca_core::ids::{Epoch, NodeId, ShardId, TurnId};
use ostraca_core::message::Message;
use ostraca_core::node::{self, ControlMessage};
use ostraca_core::route;
use ostraca_core::rows::Member;
use ostraca_core::shard;
use ostraca_oracle::Operation;
use ostraca_wire::proto;

use crate::finding::{Broken, Finding};
use crate::queue::Queue;
use crate::rng::Rng;
use crate::run_digest::RunDigest;
use crate::store::{Breach, Store};
use crate::tally::Tally;
use clients::{Client, Session};
use faults::{Fault, Trap};
use gateway::{Bounds, SimType};
use guard::{Applied, Guard};
use leases::{Late, Vigil};
use life::Site;
use line_cuts::{End, LineCut};
use lines::{Line, LineId, Post};
use net::{Conn, ConnId, Cut, Frame, Scope, Way};
use process::{Pid, Process};
use rows::Rows;
use shards::Running;
use slow::Slow;
use storage::{Asked, Call, Reply, Watcher};

pub use gateway::Mutation as GatewayMutation;
pub use kinds::KINDS;

/// What a run does differently from the rules.
#[derive(Clone, Debug)]
pub struct Options {
    /// Rules of the nodes' machines switched off.
    pub node: Vec<node::Mutation>,
    /// Rules of the routers switched off.
    pub route: Vec<route::Mutation>,
    /// Rules of the shards' machines switched off.
    pub shard: Vec<shard::Mutation>,
    /// Rules of the entities' store switched off.
    pub store: Vec<Breach>,
    /// The rows' store answers a write before it is durable (R2).
    pub early_rows: bool,
    /// The only fault is that nodes are paused past their lease, while their clocks go on (R8).
    pub pauses: bool,
    /// The only fault is that the way to the entities' store is slow for one host (R9).
    pub slow_store: bool,
    /// Rules of the clients' books switched off.
    pub client: Vec<ledger::Mutation>,
    /// Leases change in every run (R8).
    pub settings: bool,
    /// Rules of the gateways switched off.
    pub gateway: Vec<GatewayMutation>,
    /// Gateways have little room for messages, and give them little time, in every run.
    pub tight: bool,
    /// Nodes leave in every run, at once, and most callers do not wait for long.
    pub leaves: bool,
    /// The way between clients and gateways is cut in every run.
    pub line_cuts: bool,
    /// Clients take silence for proof: what was unanswered when a connection fell silent is sent under another id (R16).
    pub anew_after_silence: bool,
    /// Messages in the run.
    pub messages: u64,
    /// Prints what happens.
    pub trace: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            node: Vec::new(),
            route: Vec::new(),
            shard: Vec::new(),
            store: Vec::new(),
            early_rows: false,
            pauses: false,
            slow_store: false,
            client: Vec::new(),
            settings: false,
            gateway: Vec::new(),
            tight: false,
            leaves: false,
            line_cuts: false,
            anew_after_silence: false,
            messages: 150,
            trace: false,
        }
    }
}

/// What came of a run.
#[derive(Clone, Debug)]
pub struct Report {
    /// Every promise that was broken.
    pub breaches: Vec<Finding>,
    /// What occurred.
    pub tally: Tally,
    /// What the clients saw.
    pub history: Vec<Operation>,
    /// Events handled.
    pub steps: u64,
    /// How long after the last fault every shard was served, in virtual milliseconds.
    pub served_after: u64,
    /// A digest of what the machines decided and the clients saw.
    pub digest: u64,
}

#[derive(Debug)]
enum Happening {
    Issue {
        session: usize,
    },
    /// A session's books have something to do.
    Session {
        session: usize,
    },
    Connect {
        client: usize,
    },
    LineBreaks {
        line: LineId,
    },
    LineLost {
        line: LineId,
    },
    /// An end of a connection has heard nothing for long: of a cut, if it still stands, or of an end that is gone.
    Silent {
        line: LineId,
        end: End,
        cut: Option<usize>,
    },
    Vigil {
        vigil: usize,
    },
    Hush {
        site: usize,
    },
    Arrive {
        post: Box<Post>,
    },
    Reply {
        line: LineId,
        session: usize,
        reply: Box<proto::Reply>,
        /// A cut has swallowed it: it comes only if it is sent again.
        cut: bool,
    },
    Pump {
        conn: ConnId,
        from: usize,
    },
    Late {
        conn: ConnId,
        from: usize,
        frame: Frame,
    },
    Broken {
        pid: Pid,
        conn: ConnId,
    },
    NotSent {
        pid: Pid,
        tag: u64,
    },
    Talk {
        from: usize,
        to: usize,
        member: Member,
        talk: ControlMessage,
    },
    Told {
        pid: Pid,
        event: node::Event,
    },
    FromStore {
        pid: Pid,
        tag: u64,
        reply: Reply,
    },
    Reconnect {
        pid: Pid,
        way: Way,
    },
    Sync,
    Watch {
        conn: ConnId,
    },
    Begin {
        pid: Pid,
    },
    Probe {
        pid: Pid,
    },
    NodeTick {
        pid: Pid,
    },
    ShardTick {
        pid: Pid,
        shard: ShardId,
    },
    RouterTick {
        pid: Pid,
    },
    Order {
        pid: Pid,
    },
    Tiding {
        pid: Pid,
    },
    Ran {
        pid: Pid,
        shard: ShardId,
        epoch: Epoch,
        running: Running,
    },
    Woke {
        pid: Pid,
        stood: u64,
    },
    PauseFelt {
        pid: Pid,
    },
    CutFelt {
        from: usize,
        to: usize,
        what: Scope,
    },
    Crash {
        site: usize,
        back: Option<u64>,
        power: bool,
    },
    Up {
        site: usize,
    },
    /// A node that stops looks whether its gateway has answered all.
    WindDown {
        pid: Pid,
    },
    /// It has.
    Closed {
        pid: Pid,
    },
    Strike(Fault),
    Look,
}

impl Happening {
    /// Whose it is: it waits while that process is paused, and is void once it has ended.
    fn whose(&self) -> Option<Pid> {
        match self {
            Self::Broken { pid, .. }
            | Self::NotSent { pid, .. }
            | Self::Told { pid, .. }
            | Self::FromStore { pid, .. }
            | Self::Reconnect { pid, .. }
            | Self::Begin { pid }
            | Self::Probe { pid }
            | Self::NodeTick { pid }
            | Self::ShardTick { pid, .. }
            | Self::RouterTick { pid }
            | Self::Order { pid }
            | Self::Tiding { pid }
            | Self::WindDown { pid }
            | Self::Closed { pid }
            | Self::Ran { pid, .. } => Some(*pid),
            _ => None,
        }
    }
}

impl Happening {
    /// Whose control thread it is for: it waits while that one stands still.
    fn control(&self) -> Option<Pid> {
        match self {
            Self::Told { pid, .. }
            | Self::FromStore { pid, .. }
            | Self::NodeTick { pid }
            | Self::Tiding { pid } => Some(*pid),
            _ => None,
        }
    }
}

const LEASE: u64 = 600;
const RENEW: u64 = 150;
/// For how long the manager may seem not to hear a node.
const UNHEARD: u64 = LEASE * 2;
/// Within this after the last fault every shard is served, in virtual milliseconds: ten leases.
pub const SERVED: u64 = 6_000;
/// Within this after the last fault all messages are answered and the shards are balanced.
pub const SETTLED: u64 = 30_000;
/// A run that handles more events than this does not end.
const STEPS: u64 = 600_000;

struct World {
    rng: Rng,
    options: Options,
    now: u64,
    queue: Queue<Happening>,
    sites: Vec<Site>,
    processes: Vec<Process>,
    conns: Vec<Conn>,
    cuts: Vec<Cut>,
    slow: Option<Slow>,
    /// Until when each process is on probation, by its own clock.
    probations: BTreeMap<Pid, u64>,
    /// When one of them last was.
    on_probation_at: u64,
    shards: u32,
    stores: Vec<Store>,
    rows: Rows,
    /// When each revision of the rows became durable.
    revised: BTreeMap<u64, u64>,
    applied: Vec<Applied>,
    watchers: Vec<Watcher>,
    /// Calls that wait for the next sync.
    held: Vec<(ConnId, u64, Call, Option<Reply>)>,
    store_up: bool,
    syncing: bool,
    sync_fails: bool,
    ghosts: u64,
    asked: BTreeMap<u64, Asked>,
    /// Which connection waits for the engine's answer to a tag.
    told: BTreeMap<u64, (ConnId, ShardId, Epoch)>,
    writes: BTreeMap<(Pid, u64), (&'static str, u64)>,
    last_talk: BTreeMap<(Pid, usize), u64>,
    traps: Vec<Trap>,
    late_answers: Vec<Late>,
    vigils: Vec<Vigil>,
    drained: Vec<NodeId>,
    clients: Vec<Client>,
    sessions: Vec<Session>,
    lines: Vec<Line>,
    line_cuts: Vec<LineCut>,
    /// What gateways have room and time for.
    bounds: Bounds,
    /// What is deployed.
    types: [SimType; 2],
    /// What the books take for the beginning of time.
    begun: Instant,
    entities: u64,
    /// How often, of a hundred, a client that connects again goes to another gateway than before.
    spread: u64,
    /// Sessions may have few messages in flight.
    narrow: bool,
    loss: u64,
    clocks_stop: bool,
    handoff_timeout: u64,
    idle: u64,
    revision: u64,
    issued: u64,
    /// Entities keep few lanes and few replies.
    forgetful: bool,
    /// Copies that still come to a gateway though their connection broke.
    late_copies: u64,
    tags: u64,
    tokens: u64,
    turns: HashMap<TurnId, Arc<Message>>,
    /// Turns whose commit was refused: a second delivery of the same call must not let them in.
    refused: BTreeSet<TurnId>,
    guard: Guard,
    /// The cluster's settings, as a process that starts has them.
    agreed: node::LeaseSettings,
    /// When the last fault known so far ends.
    healed: u64,
    served_at: Option<u64>,
    breaches: Vec<Finding>,
    tally: Tally,
    trace: bool,
    keep_scripts: bool,
    steps_taken: u64,
    digest: RunDigest,
}

/// Runs a seed.
#[must_use]
pub fn run(seed: u64, options: Options) -> Report {
    let mut world = World::planned(seed, options);
    world.live();
    world.judge()
}

impl World {
    fn at(&mut self, delay: u64, happening: Happening) {
        self.queue.put(self.now + delay, happening);
    }

    fn live(&mut self) {
        while let Some((when, happening)) = self.queue.take() {
            self.now = when;
            self.steps_taken += 1;
            if let Some(pid) = happening.whose() {
                let it = &self.processes[pid];
                if !it.alive {
                    continue;
                }
                if it.paused_until > self.now {
                    let delay = it.paused_until - self.now;
                    self.at(delay, happening);
                    continue;
                }
            }
            if let Some(pid) = happening.control()
                && let Some(delay) = self.stalled(pid)
            {
                self.at(delay, happening);
                continue;
            }
            let look = matches!(happening, Happening::Look);
            self.happen(happening);
            if (look && self.settled()) || !self.breaches.is_empty() {
                return;
            }
            if self.steps_taken > STEPS {
                let now = self.now;
                return self
                    .breaches
                    .push(Broken::Endless.because(format!("{STEPS} steps were taken by {now}")));
            }
        }
    }

    /// Whether the process that keeps the store runs now; if it is paused, when to try again.
    fn store_paused(&self) -> Option<u64> {
        let until = self.sites[0].pid.map_or(0, |pid| self.processes[pid].paused_until);
        (until > self.now).then(|| until - self.now)
    }

    /// For how long a process's control thread stands still.
    fn stalled(&self, pid: Pid) -> Option<u64> {
        let it = &self.processes[pid];
        (it.alive && it.stalled_until > self.now).then(|| it.stalled_until - self.now)
    }

    fn tell_awake(&mut self, pid: Pid, event: node::Event) {
        self.at(0, Happening::Told { pid, event });
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Issue { session } => self.issue(session),
            Happening::Session { session } => self.session_tick(session),
            Happening::Connect { client } => self.connect_client(client),
            Happening::LineBreaks { line } => self.line_breaks(line),
            Happening::LineLost { line } => self.line_lost(line),
            Happening::Silent { line, end, cut } => self.silent(line, end, cut),
            Happening::Vigil { vigil } => self.vigil(vigil),
            Happening::Hush { site } => self.hush(site),
            Happening::Arrive { post } => self.arrive_at(post),
            Happening::Reply { line, session, reply, cut } => {
                self.reply_came(line, session, reply, cut);
            }
            Happening::Pump { conn, from } => self.pump(conn, from),
            Happening::Late { conn, from, frame } => self.late(conn, from, frame),
            Happening::Broken { pid, conn } => self.broken(pid, conn),
            Happening::NotSent { pid, tag } => self.not_sent(pid, tag),
            Happening::Talk { from, to, member, talk } => self.talk(from, to, member, talk),
            Happening::Told { pid, event } => self.tell_node(pid, event),
            Happening::FromStore { pid, tag, reply } => self.store_replied(pid, tag, reply),
            Happening::Reconnect { pid, way } => self.reconnect(pid, way),
            Happening::Sync => match self.store_paused() {
                Some(delay) => self.at(delay, Happening::Sync),
                None => self.sync(),
            },
            Happening::Watch { conn } => self.watch(conn),
            Happening::Begin { pid } => self.begin(pid),
            Happening::Probe { pid } => self.probe(pid),
            Happening::NodeTick { pid } => self.node_tick(pid),
            Happening::ShardTick { pid, shard } => self.shard_tick(pid, shard),
            Happening::RouterTick { pid } => self.router_tick(pid),
            Happening::Order { pid } => self.ordered(pid),
            Happening::Tiding { pid } => {
                if let Some(event) = self.processes[pid].tidings.pop_front() {
                    self.tell_node(pid, event);
                }
            }
            Happening::Ran { pid, shard, epoch, running } => self.ran(pid, shard, epoch, running),
            Happening::Woke { pid, stood } => self.woke(pid, stood),
            Happening::PauseFelt { pid } => {
                if self.processes[pid].paused_until > self.now && self.processes[pid].alive {
                    self.break_all(pid, |_| true);
                    self.break_lines(pid);
                }
            }
            Happening::CutFelt { from, to, what } => self.cut_ends(from, to, what),
            Happening::Crash { site, back, power } => self.crash(site, back, power),
            Happening::Up { site } => self.up(site),
            Happening::WindDown { pid } => self.wind_down(pid),
            Happening::Closed { pid } => self.closed(pid),
            Happening::Strike(fault) => self.strike(fault),
            Happening::Look => self.look(),
        }
    }

    fn talk(&mut self, from: usize, to: usize, member: Member, talk: ControlMessage) {
        if self.is_cut(from, to, Way::Words) {
            return self.tally.count("fault: talk cut off");
        }
        let Some(pid) = self.sites[to].pid else { return };
        let paused = self.processes[pid].paused_until;
        if paused > self.now {
            let delay = paused - self.now;
            return self.at(delay, Happening::Talk { from, to, member, talk });
        }
        if let Some(delay) = self.stalled(pid) {
            return self.at(delay, Happening::Talk { from, to, member, talk });
        }
        self.heard(pid, member, talk);
    }
}
