//! Clients that break every rule, against machines that share one limit on instances. Whatever the clients do, every
//! request is answered exactly once, no turn takes effect twice, each lane is stored in one place, and nothing remains
//! in memory at the end.
//!
//! The world of `world.rs` checks that honest clients get what is promised. Here, clients are honest about nothing but
//! a message's creation time, and not even about that in every message. Ticks, the store's answers and the results of
//! turns arrive in any order that their contracts allow.

mod actions;
mod answers;
mod clients;
mod quiet;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use ostraca_core::ids::{
    ClusterId, Entity, Epoch, Incarnation, MessageId, ShardId, ShardPath, TurnId,
};
use ostraca_core::message::ReplyToken;
use ostraca_core::records::Claim;
use ostraca_core::rows::Member;
use ostraca_core::shard::{
    Event, Machine, Ownership, Settings, StopReason, TypeSettings, WorkerSlots,
};

use crate::guest::Work;
use crate::rng::Rng;
use crate::store::{Request, Store};
use crate::timers::Firings;

const LEASE: u64 = 600;
const LANE_TTL: u64 = 1_500;
const MAILBOX: usize = 6;

/// The result of a run.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// All broken promises.
    pub violations: Vec<String>,
    /// The number of answered requests, by outcome.
    pub ends: BTreeMap<String, u64>,
    /// The number of firings.
    pub firings: u64,
}

/// A pending operation of a shard's node.
enum Pending {
    Store(Request, u64),
    Turn { entity: Entity, generation: u64, turn: TurnId, work: Work },
}

struct Shard {
    machine: Machine,
    store: Store,
    /// Pending calls, which the store answers in this order.
    asked: VecDeque<Pending>,
    turns: Vec<Pending>,
    instances: BTreeMap<Entity, u64>,
    epoch: u64,
    /// Whether a claim of this machine was granted.
    granted: bool,
    over: bool,
}

struct Harness {
    rng: Rng,
    now: u64,
    shards: Vec<Shard>,
    cap: WorkerSlots,
    most: usize,
    tokens: u64,
    open: BTreeSet<ReplyToken>,
    first_sent: BTreeMap<(Entity, MessageId), u64>,
    ran: BTreeMap<TurnId, (Entity, MessageId)>,
    firings: Firings,
    revision: u64,
    report: Report,
    faults: bool,
}

/// Runs a seed.
#[must_use]
pub fn run(seed: u64) -> Report {
    let mut rng = Rng::new(seed);
    let most = rng.range(1, 4) as usize;
    let mut rig = Harness {
        now: 10_000,
        shards: Vec::new(),
        cap: WorkerSlots::with_instances(most),
        most,
        tokens: 0,
        open: BTreeSet::new(),
        first_sent: BTreeMap::new(),
        ran: BTreeMap::new(),
        firings: Firings::default(),
        revision: 1,
        report: Report::default(),
        faults: true,
        rng,
    };
    for number in 0..2 {
        let machine = rig.machine(number, 1);
        rig.shards.push(Shard {
            machine,
            store: Store::new(Vec::new()),
            asked: VecDeque::new(),
            turns: Vec::new(),
            instances: BTreeMap::new(),
            epoch: 1,
            granted: false,
            over: false,
        });
        rig.begin(number);
    }
    for _ in 0..1_500 {
        rig.step();
        if !rig.report.violations.is_empty() {
            return rig.report;
        }
    }
    rig.quiet();
    rig.report
}

impl Harness {
    fn machine(&mut self, shard: usize, epoch: u64) -> Machine {
        let settings = Settings {
            order_timeout: 60,
            max_gated_turns: 3,
            max_copies: 3,
            max_lanes: 4,
            lane_ttl: LANE_TTL,
            unsettled_bytes: 900,
            inline_lane_bytes: self.rng.range(0, 250) as usize,
            instance_slot_timeout: 200,
            claim_backoff: 20,
            stop_timeout: 150,
            max_timer_entities: self.rng.range(1, 4) as usize,
            timer_page: self.rng.range(2, 6) as usize,
            timer_attempts: 3,
            timer_backoff: 20,
            timer_max_backoff: 200,
            ..Settings::default()
        };
        let shard = ShardPath {
            namespace: "n".into(),
            pool: "p".into(),
            shard: ShardId(u32::try_from(shard).unwrap_or(0)),
        };
        let incarnation = Incarnation { counter: 1, nonce: 7 };
        let cluster = ClusterId(1);
        Machine::new(
            settings,
            Ownership {
                cluster,
                shard,
                epoch: Epoch(epoch),
                owner: Member { node: "a".into(), incarnation },
            },
        )
    }

    fn begin(&mut self, shard: usize) {
        self.carry_out(shard);
        self.deploy(shard);
        self.handle_event(shard, Event::LeaseRenewed { sent_at: self.now, lease: LEASE });
    }

    fn deploy(&mut self, shard: usize) {
        for (kind, has_stop) in [("plain", false), ("stops", true)] {
            let settings = TypeSettings {
                revision: self.revision,
                mailbox_capacity: MAILBOX,
                idle_timeout: 120,
                has_stop_hook: has_stop,
                ..TypeSettings::default()
            };
            self.handle_event(shard, Event::TypeDeployed { entity_type: kind.into(), settings });
        }
    }

    fn step(&mut self) {
        let shard = self.rng.range(0, 2) as usize;
        match self.rng.range(0, 100) {
            0..=34 => self.send(shard),
            35..=59 => self.store(shard),
            60..=79 => self.turn(shard),
            80..=93 => self.pass(1, 30),
            94 => self.pass(100, 900),
            95 if self.rng.chance(30) => {
                self.revision += 1;
                (0..2).for_each(|shard| self.deploy(shard));
            }
            96 if self.rng.chance(30) => {
                self.handle_event(shard, Event::Stop(StopReason::HandedOff))
            }
            97 if self.rng.chance(30) => self.steal(shard),
            97 if self.rng.chance(30) => self.forget(shard),
            98 => self.pass(500, 3_000),
            99 => self.suspend_or_resume(shard),
            _ => self.renew(),
        }
        self.again();
    }

    /// Drops the shard, as when its node learns that another owns it. Nothing may remain, whatever was in progress.
    fn forget(&mut self, shard: usize) {
        self.handle_event(shard, Event::Drop);
        let it = &mut self.shards[shard];
        it.over = true;
        if it.machine.stats().0 > 0 || !it.instances.is_empty() {
            self.report.violations.push("a dropped shard still has entities or instances".into());
        }
    }

    fn suspend_or_resume(&mut self, shard: usize) {
        let suspended = self.shards[shard].machine.is_suspended();
        self.handle_event(shard, if suspended { Event::Resume } else { Event::Suspend });
    }

    /// Reassigns shards whose machines have ended.
    fn again(&mut self) {
        for shard in 0..self.shards.len() {
            let it = &self.shards[shard];
            let at_rest = it.asked.is_empty() && it.turns.is_empty();
            if self.faults && it.over && at_rest && self.rng.chance(20) {
                let epoch = it.epoch + 2;
                let machine = self.machine(shard, epoch);
                let it = &mut self.shards[shard];
                (it.machine, it.epoch) = (machine, epoch);
                (it.granted, it.over) = (false, false);
                self.begin(shard);
            }
        }
    }

    /// Lets another node claim the shard.
    fn steal(&mut self, shard: usize) {
        let it = &mut self.shards[shard];
        let current = Claim::clone(it.machine.claim());
        let owner = Member { node: "b".into(), ..current.owner };
        let claim = Claim { epoch: Epoch(it.epoch + 1), owner, ..current };
        it.store.request(0, Request::Claim(claim.into()));
        it.store.sync();
    }

    fn pass(&mut self, low: u64, high: u64) {
        self.now += self.rng.range(low, high);
        for shard in 0..self.shards.len() {
            if self.shards[shard].machine.next_wake().is_some_and(|wake| wake <= self.now) {
                self.handle_event(shard, Event::Tick);
            }
        }
        if self.rng.chance(60) {
            self.renew();
        }
    }

    fn renew(&mut self) {
        (0..self.shards.len()).for_each(|shard| {
            self.handle_event(shard, Event::LeaseRenewed { sent_at: self.now, lease: LEASE })
        });
    }
}
