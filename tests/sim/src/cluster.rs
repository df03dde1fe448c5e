//! A whole cluster in virtual time: 3 to 7 nodes with the core's own machines, an unreliable store and network, clients
//! that use any gateway, and operators. A run is identified by its seed.
//!
//! Each process has a node's machine, a machine for each shard that it holds, and a router. Short delays between them
//! stand for the switches between threads. `net` carries frames between nodes, and `client_conns` between clients and
//! gateways. `gateway` and `admission` call production code to decide what gateways accept and how they reply. `rows`
//! and `storage` keep the rows and the entities. `guard` sees the whole cluster and checks every write of a row;
//! `final_check` checks the end of the run.
//!
//! After the last fault has ended, every shard must be served within [`SERVED`], and all messages must be answered and
//! the shards balanced within [`SETTLED`], or later while clients still get an answer every [`PROGRESS`].

mod admission;
mod arbiter;
mod asks;
mod channels;
mod client_conns;
mod client_cuts;
mod clients;
mod control;
mod databases;
mod escalations;
mod faults;
mod final_check;
mod forgetting;
mod gateway;
mod guard;
mod guard_shards;
mod health;
mod inject;
mod kinds;
mod leases;
mod lifecycle;
mod net;
mod orders;
mod passivation;
mod placements;
mod plan;
mod pools;
mod process;
mod rows;
mod shards;
mod slow;
mod stateless;
mod storage;
mod store_node;
mod stored;
mod tells;
mod trace;
mod unrunnable_types;
mod watches;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Instant;

use ostraca_client::ledger;
use ostraca_core::ids::{Entity, Epoch, MessageDigest, MessageId, NodeId, ShardId, TurnId};
use ostraca_core::message::Message;
use ostraca_core::node::{self, ControlMessage};
use ostraca_core::route;
use ostraca_core::rows::Member;
use ostraca_core::shard;
use ostraca_core::shard::ChannelKeep;
use ostraca_oracle::Operation;
use ostraca_wire::proto;

use crate::asks::AskCheck;
use crate::channels::Subscriber;
use crate::queue::Queue;
use crate::rng::Rng;
use crate::run_digest::RunDigest;
use crate::store::{Store, StoreMutation};
use crate::subscriptions::SeenTopics;
use crate::tally::Tally;
use crate::timers::Firings;
use crate::violation::{Violation, ViolationKind};
use admission::{Bounds, SimType};
use client_conns::{ClientConn, ClientConnId, ClientFrame};
use client_cuts::{ActiveClientCut, Endpoint};
use clients::{Client, Session};
use databases::ShardMap;
use faults::{Fault, StepTrap};
use guard::{Applied, Guard};
use leases::{DelayedResponse, StaleReadProbe};
use lifecycle::Site;
use net::{Conn, ConnId, ConnKind, Cut, Frame, Scope};
use process::{Pid, Process};
use rows::Rows;
use shards::Running;
use slow::SlowStoreHost;
use storage::{PendingStoreCall, StoreCall, StoreResponse};
use watches::Watcher;

pub use admission::Mutation as GatewayMutation;
pub use kinds::KINDS;

/// How a run deviates from the rules.
#[derive(Clone, Debug)]
pub struct Options {
    /// Disabled rules of the nodes' machines.
    pub node_mutations: Vec<node::Mutation>,
    /// Disabled rules of the routers.
    pub route_mutations: Vec<route::Mutation>,
    /// Disabled rules of the shards' machines.
    pub shard_mutations: Vec<shard::Mutation>,
    /// Disabled rules of the `EntityStore`.
    pub store_mutations: Vec<StoreMutation>,
    /// The `ClusterStore` answers writes before they are durable (R2).
    pub early_rows: bool,
    /// The only fault is that nodes are paused past their lease, while their clocks continue (R8).
    pub pauses: bool,
    /// Clocks stop in pauses, so a process that resumes relies on a lease that has lapsed.
    pub clocks_stop: bool,
    /// The only fault is a slow connection of one host to the `EntityStore` (R9).
    pub slow_store: bool,
    /// The only fault is that the store answers no claim of one host, which joins late (K14).
    pub claims_hang: bool,
    /// Mutations of the clients' ledgers.
    pub client_mutations: Vec<ledger::Mutation>,
    /// Leases change in every run (R8).
    pub settings: bool,
    /// Disabled rules of the gateways.
    pub gateway_mutations: Vec<GatewayMutation>,
    /// Gateways have small buffers and short timeouts in every run.
    pub tight: bool,
    /// Every ask has a long deadline, so that cycles of asks last.
    pub long_asks: bool,
    /// Nodes leave in every run without waiting, and most callers have short deadlines.
    pub leaves: bool,
    /// Connections between clients and gateways are cut in every run.
    pub client_cuts: bool,
    /// Clients treat silence as proof: when a connection falls silent, they send its unanswered messages again under
    /// another id (R16).
    pub anew_after_silence: bool,
    /// An operator moves shards to other databases in every run (R26).
    pub moves_data: bool,
    /// No run has health checks: leases alone end nodes.
    pub leases_alone: bool,
    /// A health check takes every process that does not renew its lease for one that has ended (R9).
    pub guesses_health: bool,
    /// The only fault is that nodes cannot reach each other for good, while all of them reach the store (E13).
    pub arbitrates: bool,
    /// The number of messages in the run.
    pub messages: u64,
    /// The run prints what happens.
    pub trace: bool,
    /// The shard whose events and actions the trace shows too.
    pub trace_shard: Option<u32>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            node_mutations: Vec::new(),
            route_mutations: Vec::new(),
            shard_mutations: Vec::new(),
            store_mutations: Vec::new(),
            early_rows: false,
            pauses: false,
            clocks_stop: false,
            slow_store: false,
            claims_hang: false,
            client_mutations: Vec::new(),
            settings: false,
            gateway_mutations: Vec::new(),
            tight: false,
            long_asks: false,
            leaves: false,
            client_cuts: false,
            anew_after_silence: false,
            moves_data: false,
            leases_alone: false,
            guesses_health: false,
            arbitrates: false,
            messages: 150,
            trace: false,
            trace_shard: None,
        }
    }
}

impl Options {
    /// Whether the run has only one kind of fault.
    fn has_one_fault(&self) -> bool {
        self.pauses || self.slow_store || self.claims_hang || self.arbitrates
    }
}

/// The result of a run.
#[derive(Clone, Debug)]
pub struct Report {
    /// All broken promises.
    pub violations: Vec<Violation>,
    /// Counts of what occurred.
    pub tally: Tally,
    /// What the clients saw.
    pub history: Vec<Operation>,
    /// The number of events handled.
    pub steps: u64,
    /// The time from the last fault until every shard was served, in virtual milliseconds.
    pub served_after: u64,
    /// A digest of what the machines decided and what the clients saw.
    pub digest: u64,
}

#[derive(Debug)]
enum SimEvent {
    Issue {
        session: usize,
    },
    /// A session's ledger has something to do.
    Session {
        session: usize,
    },
    Connect {
        client: usize,
    },
    ClientConnReset {
        connection: ClientConnId,
    },
    ClientConnLost {
        connection: ClientConnId,
    },
    /// One end of a connection has received nothing for a long time, because the connection is still cut or the other
    /// end is closed.
    ClientConnSilent {
        connection: ClientConnId,
        end: Endpoint,
        cut: Option<usize>,
    },
    StaleReadProbe {
        probe: usize,
    },
    StopRowUpdates {
        site: usize,
    },
    /// An operator adds the second pool.
    AddPool,
    /// A copy of one pool to the other begins.
    ClosePools,
    /// The copy is given up.
    OpenPools,
    /// A process learns of the pools as they are now.
    LearnPools {
        pid: Pid,
    },
    /// An operator pins shards, and moves one.
    PlaceShards,
    /// The program that places shards says what it wants.
    ProgramSays {
        changes: bool,
    },
    /// A process learns the pins and the wishes as they are now.
    LearnPlacements {
        pid: Pid,
    },
    /// Nodes measure the loads of their shards.
    MeasureLoads,
    /// A host joins whose claims get no answer.
    JoinHanging,
    /// A process learns a new map of shards to databases.
    LearnMap {
        pid: Pid,
        map: Arc<ShardMap>,
    },
    Arrive {
        post: Box<ClientFrame>,
    },
    Reply {
        connection: ClientConnId,
        session: usize,
        reply: Box<proto::Reply>,
        /// Whether a cut dropped the reply, so that it arrives only if retransmitted.
        cut: bool,
    },
    Pump {
        conn: ConnId,
        from: usize,
    },
    DelayedFrame {
        conn: ConnId,
        from: usize,
        frame: Frame,
    },
    ConnBroken {
        pid: Pid,
        conn: ConnId,
    },
    NotSent {
        pid: Pid,
        tag: u64,
    },
    ControlMessage {
        from: usize,
        to: usize,
        member: Member,
        message: ControlMessage,
    },
    ProcessChecked {
        pid: Pid,
        member: Member,
    },
    NodeEvent {
        pid: Pid,
        event: node::Event,
    },
    FromStore {
        pid: Pid,
        tag: u64,
        reply: StoreResponse,
    },
    Reconnect {
        pid: Pid,
        kind: ConnKind,
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
    ShardReport {
        pid: Pid,
    },
    Ran {
        pid: Pid,
        shard: ShardId,
        epoch: Epoch,
        running: Running,
    },
    /// A subscriber reads its channel.
    ReadChannel {
        subscriber: usize,
        /// The number of its last read; the event is void if it has read again since.
        after: u64,
    },
    /// An operator's command to forget an entity.
    ForgetEntity {
        command: forgetting::ForgetCommand,
    },
    /// An operator's command on a dead letter.
    DeadLetters {
        command: tells::DeadLetterCommand,
    },
    Woke {
        pid: Pid,
        stood: u64,
    },
    PauseDetected {
        pid: Pid,
    },
    CutDetected {
        from: usize,
        to: usize,
        what: Scope,
    },
    Crash {
        site: usize,
        back: Option<u64>,
        power: bool,
    },
    StartProcess {
        site: usize,
    },
    /// A stopping node checks whether its gateway has answered everything.
    WindDown {
        pid: Pid,
    },
    /// The gateway has answered everything.
    Closed {
        pid: Pid,
    },
    InjectFault(Fault),
    /// The process of a node that lost an arbitration ends, if it still runs.
    EndLoser {
        pid: Pid,
    },
    CheckProgress,
}

impl SimEvent {
    /// The process that the event belongs to. While the process is paused, the event waits; once the process has ended,
    /// the event is dropped.
    fn whose(&self) -> Option<Pid> {
        match self {
            Self::ConnBroken { pid, .. }
            | Self::NotSent { pid, .. }
            | Self::NodeEvent { pid, .. }
            | Self::FromStore { pid, .. }
            | Self::Reconnect { pid, .. }
            | Self::Begin { pid }
            | Self::Probe { pid }
            | Self::NodeTick { pid }
            | Self::ShardTick { pid, .. }
            | Self::RouterTick { pid }
            | Self::Order { pid }
            | Self::ShardReport { pid }
            | Self::WindDown { pid }
            | Self::Closed { pid }
            | Self::LearnMap { pid, .. }
            | Self::LearnPools { pid }
            | Self::LearnPlacements { pid }
            | Self::Ran { pid, .. } => Some(*pid),
            _ => None,
        }
    }
}

impl SimEvent {
    /// The process whose control thread handles the event. While that thread is stalled, the event waits.
    fn control(&self) -> Option<Pid> {
        match self {
            Self::NodeEvent { pid, .. }
            | Self::FromStore { pid, .. }
            | Self::NodeTick { pid }
            | Self::ShardReport { pid } => Some(*pid),
            _ => None,
        }
    }
}

const LEASE: u64 = 600;
const RENEW: u64 = 150;
/// How long messages between the manager and a host may be lost before both act on it.
const MANAGER_SILENCE: u64 = LEASE * 2;
/// The time after the last fault within which every shard must be served, in virtual milliseconds: ten leases.
pub const SERVED: u64 = 6_000;
/// The time after the last fault within which all messages must be answered and the shards balanced.
pub const SETTLED: u64 = 30_000;
/// The time between two answers to clients in a run that has not settled within [`SETTLED`]. Where few instances may be
/// live, turns that wait for each other's slots can make a run slow, but not stuck: its messages are limited.
pub const PROGRESS: u64 = 3_000;
/// Counts the runs that took longer than [`SETTLED`].
pub const SLOW: &str = "run: slow to settle";
/// A run that handles more events than this counts as endless.
const STEPS: u64 = 600_000;

struct World {
    rng: Rng,
    /// Whether the guests set timers.
    timers: bool,
    /// Draws everything that concerns timers, so that runs without timers do not depend on it.
    timer_rng: Rng,
    firings: Firings,
    /// Whether the guests send tells, and the generator that draws them.
    tells: bool,
    tell_rng: Rng,
    /// Whether some entities are remembered, and the generator that decides which.
    remembers: bool,
    /// Whether owners count what they store.
    counts_stored: bool,
    /// Whether the namespace uses up its quotas at times.
    has_quotas: bool,
    rng_of_marks: Rng,
    /// What follows a failure of a guest.
    on_failure: shard::OnFailure,
    /// The moves of escalated shards that each process has noted since another process became manager.
    escalations: BTreeMap<(Pid, ShardId), usize>,
    /// The pools, and who knows of them.
    placements: placements::PlacementPlan,
    arbiter: arbiter::ArbiterPlan,
    pools: pools::PoolPlan,
    /// How many hosts there must be before the first allocation.
    min_hosts: usize,
    /// Whether an operator moves shards to other databases, and the generator that decides which, and how long that
    /// takes.
    moves_data: bool,
    rng_of_moves: Rng,
    /// The map of shards to databases.
    map: Arc<ShardMap>,
    /// Whether guests choose how long their instances are kept.
    passivates: bool,
    rng_of_delays: Rng,
    /// Whether clients delete entities, and the generator that decides when.
    deletes: bool,
    rng_of_deletions: Rng,
    /// Whether clients send some commands with idempotency keys.
    uses_keys: bool,
    rng_of_keys: Rng,
    /// The time to live of entities in milliseconds; 0 for none.
    time_to_live: u64,
    /// When each turn ran that left its entity deleted, by its node's UTC.
    deleted_at: BTreeMap<TurnId, u64>,
    /// Whether the types' revisions have schemas, and the generator that decides which migrations fail.
    migrates: bool,
    rng_of_migrations: Rng,
    /// Whether the guests append to journals, and the generator that draws the changes.
    journals: bool,
    rng_of_journals: Rng,
    /// Whether the guests emit on channels, who follows them, and the generator that draws both.
    channels: bool,
    /// Whether entities subscribe to each other's channels.
    subscribes: bool,
    rng_of_topics: Rng,
    topics: SeenTopics,
    subscribers: Vec<Subscriber>,
    rng_of_channels: Rng,
    keep: ChannelKeep,
    /// Whether the guests ask, and the generator of the running time of turns that ask.
    asks: bool,
    /// Whether queries run beside turns that wait for asks.
    reentrant: bool,
    rng_of_asks: Rng,
    ask_check: AskCheck,
    /// Whether gateways have low limits on messages and bytes.
    small_gateways: bool,
    /// How often nodes check the processes of others, if they do.
    health_check: Option<u64>,
    /// Which processes were told that an incarnation's process has ended.
    found_ended: BTreeSet<(Pid, Member)>,
    /// When a message between entities was last refused for lack of room, or a note about asks was last lost.
    held_up: u64,
    options: Options,
    now: u64,
    queue: Queue<SimEvent>,
    sites: Vec<Site>,
    processes: Vec<Process>,
    conns: Vec<Conn>,
    cuts: Vec<Cut>,
    slow: Option<SlowStoreHost>,
    /// Until when each process is on probation, by its own clock.
    probations: BTreeMap<Pid, u64>,
    /// When a process was last on probation.
    on_probation_at: u64,
    shards: u32,
    stores: Vec<Store>,
    rows: Rows,
    /// When each revision of the rows became durable.
    revised: BTreeMap<u64, u64>,
    applied: Vec<Applied>,
    watchers: Vec<Watcher>,
    /// Draws what watches repeat.
    rng_of_repeats: Rng,
    /// Calls waiting for the next sync.
    held: Vec<(ConnId, u64, StoreCall, Option<StoreResponse>)>,
    store_up: bool,
    syncing: bool,
    sync_fails: bool,
    forced_claims: u64,
    asked: BTreeMap<u64, PendingStoreCall>,
    /// By tag, the connection that waits for the engine's answer.
    told: BTreeMap<u64, (ConnId, ShardId, Epoch)>,
    writes: BTreeMap<(Pid, u64), (&'static str, u64)>,
    last_control_message: BTreeMap<(Pid, usize), u64>,
    traps: Vec<StepTrap>,
    delayed_responses: Vec<DelayedResponse>,
    stale_read_probes: Vec<StaleReadProbe>,
    drained: Vec<NodeId>,
    clients: Vec<Client>,
    sessions: Vec<Session>,
    client_conns: Vec<ClientConn>,
    client_cuts: Vec<ActiveClientCut>,
    /// The gateways' bounds.
    bounds: Bounds,
    /// The deployed types.
    types: [SimType; 2],
    /// The instant at which the ledgers' clock starts.
    begun: Instant,
    entities: u64,
    /// Percentage of reconnects that go to a different gateway.
    spread: u64,
    /// Whether sessions may have only few messages in flight.
    narrow: bool,
    loss: u64,
    clocks_stop: bool,
    hand_off_timeout: u64,
    idle: u64,
    revision: u64,
    issued: u64,
    /// Whether entities keep few lanes and few replies.
    forgetful: bool,
    /// Number of copies that may still reach a gateway although their connection broke or was cut.
    late_copies: u64,
    tags: u64,
    tokens: u64,
    turns: HashMap<TurnId, Arc<Message>>,
    /// Turns whose commit was refused: a second delivery of the same call must not commit them.
    refused: BTreeSet<TurnId>,
    guard: Guard,
    /// The cluster's settings that a starting process uses.
    agreed: node::LeaseSettings,
    /// When the last fault known so far ends.
    healed: u64,
    served_at: Option<u64>,
    /// When a client last got an answer.
    answered_at: u64,
    violations: Vec<Violation>,
    /// The UTC that each message's first turn read.
    turn_times: HashMap<(Entity, MessageId, MessageDigest), u64>,
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
    fn at(&mut self, delay: u64, happening: SimEvent) {
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
            let look = matches!(happening, SimEvent::CheckProgress);
            self.happen(happening);
            if (look && self.settled()) || !self.violations.is_empty() {
                return;
            }
            if self.steps_taken > STEPS {
                let now = self.now;
                return self.violations.push(
                    ViolationKind::Endless.because(format!("the run took {STEPS} steps by {now}")),
                );
            }
        }
    }

    /// How long the process with the store is still paused. `None` if it is not paused.
    fn store_paused(&self) -> Option<u64> {
        let until = self.sites[0].pid.map_or(0, |pid| self.processes[pid].paused_until);
        (until > self.now).then(|| until - self.now)
    }

    /// How long a process's control thread is still stalled. `None` if it is not stalled.
    fn stalled(&self, pid: Pid) -> Option<u64> {
        let it = &self.processes[pid];
        (it.alive && it.stalled_until > self.now).then(|| it.stalled_until - self.now)
    }

    fn enqueue_node_event(&mut self, pid: Pid, event: node::Event) {
        self.at(0, SimEvent::NodeEvent { pid, event });
    }

    fn happen(&mut self, happening: SimEvent) {
        match happening {
            SimEvent::Issue { session } => self.issue(session),
            SimEvent::Session { session } => self.session_tick(session),
            SimEvent::Connect { client } => self.connect_client(client),
            SimEvent::ClientConnReset { connection: line } => self.on_conn_reset(line),
            SimEvent::ClientConnLost { connection: line } => self.on_conn_lost(line),
            SimEvent::ClientConnSilent { connection: line, end, cut } => {
                self.silent(line, end, cut)
            }
            SimEvent::StaleReadProbe { probe: vigil } => self.probe_stale_reads(vigil),
            SimEvent::StopRowUpdates { site } => self.stop_row_updates(site),
            SimEvent::LearnMap { pid, map } => self.learn_map(pid, map),
            SimEvent::AddPool => self.add_pool(),
            SimEvent::ClosePools => self.close_pools(),
            SimEvent::OpenPools => self.open_pools(),
            SimEvent::LearnPools { pid } => self.learn_pools(pid),
            SimEvent::PlaceShards => self.place_shards(),
            SimEvent::ProgramSays { changes } => self.program_says(changes),
            SimEvent::LearnPlacements { pid } => self.learn_placements(pid, false),
            SimEvent::MeasureLoads => self.measure_loads(),
            SimEvent::JoinHanging => self.join_hanging(),
            SimEvent::Arrive { post } => self.arrive_at(post),
            SimEvent::Reply { connection: line, session, reply, cut } => {
                self.reply_came(line, session, reply, cut);
            }
            SimEvent::Pump { conn, from } => self.pump(conn, from),
            SimEvent::DelayedFrame { conn, from, frame } => self.deliver_delayed(conn, from, frame),
            SimEvent::ConnBroken { pid, conn } => self.broken(pid, conn),
            SimEvent::NotSent { pid, tag } => self.not_sent(pid, tag),
            SimEvent::ControlMessage { from, to, member, message } => {
                self.deliver_control_message(from, to, member, message)
            }
            SimEvent::ProcessChecked { pid, member } => self.process_checked(pid, member),
            SimEvent::NodeEvent { pid, event } => self.handle_node_event(pid, event),
            SimEvent::FromStore { pid, tag, reply } => self.store_replied(pid, tag, reply),
            SimEvent::Reconnect { pid, kind: way } => self.reconnect(pid, way),
            SimEvent::Sync => match self.store_paused() {
                Some(delay) => self.at(delay, SimEvent::Sync),
                None => self.sync(),
            },
            SimEvent::Watch { conn } => self.watch(conn),
            SimEvent::Begin { pid } => self.begin(pid),
            SimEvent::Probe { pid } => self.probe(pid),
            SimEvent::NodeTick { pid } => self.node_tick(pid),
            SimEvent::ShardTick { pid, shard } => self.shard_tick(pid, shard),
            SimEvent::RouterTick { pid } => self.router_tick(pid),
            SimEvent::Order { pid } => self.ordered(pid),
            SimEvent::ShardReport { pid } => {
                if let Some(event) = self.processes[pid].shard_reports.pop_front() {
                    self.handle_node_event(pid, event);
                }
            }
            SimEvent::Ran { pid, shard, epoch, running } => self.ran(pid, shard, epoch, running),
            SimEvent::ReadChannel { subscriber, after } => self.read_channel(subscriber, after),
            SimEvent::DeadLetters { command } => self.handle_dead_letter(command),
            SimEvent::ForgetEntity { command } => self.forget_entity(command),
            SimEvent::Woke { pid, stood } => self.woke(pid, stood),
            SimEvent::PauseDetected { pid } => {
                if self.processes[pid].paused_until > self.now && self.processes[pid].alive {
                    self.break_all(pid, |_| true);
                    self.break_lines(pid);
                }
            }
            SimEvent::CutDetected { from, to, what } => self.cut_ends(from, to, what),
            SimEvent::Crash { site, back, power } => self.crash(site, back, power),
            SimEvent::StartProcess { site } => self.start_process(site),
            SimEvent::WindDown { pid } => self.wind_down(pid),
            SimEvent::Closed { pid } => self.closed(pid),
            SimEvent::InjectFault(fault) => self.inject_fault(fault),
            SimEvent::EndLoser { pid } => self.end_loser(pid),
            SimEvent::CheckProgress => self.check_progress(),
        }
    }

    fn deliver_control_message(
        &mut self,
        from: usize,
        to: usize,
        member: Member,
        message: ControlMessage,
    ) {
        if self.is_cut(from, to, ConnKind::ControlMessages) {
            return self.tally.count("fault: control messages cut off");
        }
        let Some(pid) = self.sites[to].pid else { return };
        let paused = self.processes[pid].paused_until;
        if paused > self.now {
            let delay = paused - self.now;
            return self.at(delay, SimEvent::ControlMessage { from, to, member, message });
        }
        if let Some(delay) = self.stalled(pid) {
            return self.at(delay, SimEvent::ControlMessage { from, to, member, message });
        }
        self.heard(pid, member, message);
    }
}
