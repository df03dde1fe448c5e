//! The manager's cost per event: `cargo run --release -p ostraca-core --example deciding [-- SHARDS]`.
//!
//! One machine manages 4,096 shards (or the given number) on 100 idle hosts. It handles 1,000 events of each kind:
//! those that hosts repeat (a renewal, a report), and one that changes something (a host reports that it no longer
//! has a shard). Then a host is drained: hosts and store respond instantly, and the manager's own time is divided
//! by the number of moved shards.
#![allow(clippy::print_stdout, reason = "a measurement on a terminal")]

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use ostraca_core::assign::BuiltinStrategy;
use ostraca_core::extensions::Extensions;
use ostraca_core::ids::{Incarnation, NodeId, ShardId};
use ostraca_core::message::Now;
use ostraca_core::node::{
    Action, ControlMessage, Event, HandOff, Machine, NodeIdentity, NodeReport, ReportedShard,
    Settings,
};
use ostraca_core::pools::Pools;
use ostraca_core::rows::{Member, NodeRow, NodeStatus, Roles, Row, RowKey, shard_at};

const HOSTS: u64 = 100;
const EVENTS: u64 = 1_000;

struct World {
    machine: Machine,
    rows: BTreeMap<RowKey, (Row, u64)>,
    revision: u64,
    /// The number of assignment rows written.
    assigned: u64,
    now: u64,
}

impl World {
    fn tell(&mut self, event: Event) -> Duration {
        let (mut queue, mut took) = (VecDeque::from([event]), Duration::ZERO);
        while let Some(event) = queue.pop_front() {
            let (now, begun) =
                (Now { mono: self.now, cluster_time: self.now, utc: 0 }, Instant::now());
            self.machine.handle(now, event);
            took += begun.elapsed();
            while let Some(action) = self.machine.poll() {
                match action {
                    Action::ListRows => {
                        let all = self
                            .rows
                            .iter()
                            .map(|(key, (row, at))| (key.clone(), row.clone(), *at));
                        queue.push_back(Event::RowsListed(Some(all.collect())));
                    }
                    Action::ReadRow(key) => {
                        let value = self.rows.get(&key).cloned();
                        queue.push_back(Event::RowObserved { key, value });
                    }
                    Action::WriteRow { request_id: number, key, row, .. } => {
                        self.put(key, row);
                        queue.push_back(Event::RowWritten {
                            request_id: number,
                            result: Ok(self.revision),
                        });
                    }
                    Action::StartShard { shard, epoch, .. } => {
                        queue.push_back(Event::ShardServing { shard, epoch });
                    }
                    Action::Send { to, message: ControlMessage::BeginHandOff { hand_off, .. } } => {
                        let HandOff { term, shard, epoch, id, .. } = hand_off;
                        let message = ControlMessage::BeginHandOffAck { term, shard, epoch, id };
                        queue
                            .extend(self.member(&to).map(|from| Event::Received { from, message }));
                    }
                    Action::Send { to, message: ControlMessage::HandOff(hand_off) } => {
                        let message = ControlMessage::ShardStopped(hand_off);
                        queue
                            .extend(self.member(&to).map(|from| Event::Received { from, message }));
                    }
                    _ => {}
                }
            }
        }
        took
    }

    fn member(&self, node: &NodeId) -> Option<Member> {
        match self.rows.get(&RowKey::Node(node.clone())) {
            Some((Row::Node(row), _)) => {
                Some(Member { node: node.clone(), incarnation: row.incarnation })
            }
            _ => None,
        }
    }

    fn owners(&self) -> Vec<Option<Member>> {
        let rows = self.rows.values().filter_map(|(row, _)| match row {
            Row::Assignments(row) => Some(&row.assignments),
            _ => None,
        });
        rows.flatten().map(|row| row.owner.clone()).collect()
    }

    /// Runs the manager until no more shards move, and prints the time per moved shard.
    fn settle(&mut self, name: &str, event: Event) {
        let before = self.owners();
        let mut took = self.tell(event);
        let (mut last, mut quiet) = (self.assigned, 0);
        while quiet < 200 {
            self.now += 10;
            took += self.tell(Event::Tick);
            if self.now % 500 < 10 {
                for host in 0..HOSTS {
                    let renewal = self.renewal(host);
                    took += self.tell(renewal);
                    let report = self.report(host, None);
                    took += self.tell(report);
                }
            }
            quiet = if self.assigned == last { quiet + 1 } else { 0 };
            last = self.assigned;
        }
        let moved = before.iter().zip(self.owners()).filter(|(old, new)| **old != *new).count();
        let each = took.as_secs_f64() * 1e6 / moved.max(1) as f64;
        println!("{name}: {moved} shards moved, {each:.1} µs each");
    }

    fn put(&mut self, key: RowKey, row: Row) -> Event {
        self.revision += 1;
        self.assigned += u64::from(matches!(row, Row::Assignments(_)));
        self.rows.insert(key.clone(), (row.clone(), self.revision));
        Event::RowObserved { key, value: Some((row, self.revision)) }
    }

    fn host(number: u64) -> Member {
        let node = NodeId::from(format!("host-{number:03}").as_str());
        Member { node, incarnation: Incarnation { counter: 1, nonce: number } }
    }

    fn renewal(&mut self, number: u64) -> Event {
        let member = Self::host(number);
        let key = RowKey::Node(member.node.clone());
        if let Some((Row::Node(row), _)) = self.rows.get(&key) {
            let row = NodeRow { renewals: row.renewals + 1, ..row.clone() };
            return self.put(key, Row::Node(row));
        }
        let row = NodeRow {
            incarnation: member.incarnation,
            renewals: 0,
            status: NodeStatus::Live,
            draining: false,
            store_available: true,
            roles: Roles { host: true, ..Roles::default() },
            version: 1,
            registered_at: 5,
            addresses: vec!["127.0.0.1:7411".into()],
            format: 3,
            lease: 3_000,
            settings_revision: 0,
            extensions: Extensions::default(),
        };
        self.put(key, Row::Node(row))
    }

    /// A host's report, without its `skip`th shard.
    fn report(&self, number: u64, skip: Option<usize>) -> Event {
        let from = Self::host(number);
        let (mut seen, mut held) = (Vec::new(), Vec::new());
        for (key, (row, at)) in &self.rows {
            let (RowKey::Assignments(chunk), Row::Assignments(row)) = (key, row) else { continue };
            seen.push((*chunk, *at));
            for (place, row) in row.assignments.iter().enumerate() {
                if row.owner.as_ref() == Some(&from) {
                    let shard: ShardId = shard_at(*chunk, place);
                    held.push(ReportedShard { shard, epoch: row.epoch, serving: true });
                }
            }
        }
        if let Some(skip) = skip.filter(|skip| *skip < held.len()) {
            held.remove(skip);
        }
        let (incarnation, refused) = (from.incarnation, Vec::new());
        let extensions = Extensions::default();
        let report = NodeReport {
            incarnation,
            applied_chunks: seen,
            shards: held,
            store_available: true,
            refused_claims: refused,
            extensions,
        };
        Event::Received { from, message: ControlMessage::Report(Box::new(report)) }
    }
}

fn main() {
    let shards = std::env::args().nth(1).map_or(4_096, |text| text.parse().expect("a number"));
    let identity = NodeIdentity {
        node: "manager".into(),
        roles: Roles { manager: true, ..Roles::default() },
        version: 1,
        addresses: Vec::new(),
        pool_roles: Vec::new(),
        weight: 1,
        pools: Pools::one(shards),
        seed: 1,
    };
    let machine = Machine::new(Settings::default(), identity, BuiltinStrategy::Average.build());
    let mut world = World { machine, rows: BTreeMap::new(), revision: 0, assigned: 0, now: 1_000 };
    for host in 0..HOSTS {
        world.renewal(host);
    }
    world.tell(Event::Tick);
    for _ in 0..50 {
        world.now += 10;
        world.tell(Event::Tick);
    }
    for host in 0..HOSTS {
        let report = world.report(host, None);
        world.tell(report);
    }
    let mut line = |name: &str, event: &mut dyn FnMut(&mut World, u64) -> Event| {
        let mut took = Duration::ZERO;
        for number in 0..EVENTS {
            world.now += u64::from(number % 4 == 0);
            let event = event(&mut world, number);
            took += world.tell(event);
        }
        println!("{name}: {:.1} µs an event", took.as_secs_f64() * 1e6 / EVENTS as f64);
    };
    line("a renewal", &mut |world, number| world.renewal(number % HOSTS));
    line("a report without changes", &mut |world, number| world.report(number % HOSTS, None));
    line("a report of a lost shard, and its reassignment", &mut |world, number| {
        world.report(number % HOSTS, Some(0))
    });

    let member = World::host(0);
    let Some((Row::Node(row), _)) = world.rows.get(&RowKey::Node(member.node.clone())) else {
        return;
    };
    let row = NodeRow { draining: true, ..row.clone() };
    let drained = world.put(RowKey::Node(member.node), Row::Node(row));
    world.settle("a host is drained", drained);
}
