//! Two hosts after one number and one shard of a pool without a manager: every order of their reads, writes, answers and
//! watched changes, with a lost request or answer, and with the death of a host (E5, E8).
//!
//! Time stands still while anything is in transit, so no lease lapses: a shard changes its owner only after a release or
//! a death. Registrations and renewals of nodes happen at once. What a host has sent may still arrive after its death.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::hash::{Hash, Hasher};

use crate::assign::BuiltinStrategy;
use crate::ids::{Epoch, NodeId, ShardId};
use crate::message::Now;
use crate::node::{Action, Event, Machine, Mutation, NodeIdentity, Settings, WriteError};
use crate::pools::{Pool, Pools};
use crate::rows::{Member, NodeRow, NodeStatus, Roles, Row, RowKey};

const SHARD: ShardId = ShardId(2);
/// More states than any scope here has.
const MOST: usize = 3_000_000;

#[derive(Clone, Hash)]
enum Call {
    Write { number: u64, key: RowKey, expected: Option<u64>, row: Row },
    Read(RowKey),
    Claim(Epoch, Member),
}

#[derive(Clone)]
struct Host {
    machine: Machine,
    alive: bool,
    calls: VecDeque<Call>,
    answers: VecDeque<Event>,
    watched: VecDeque<Event>,
}

#[derive(Clone)]
struct World {
    now: u64,
    hosts: Vec<Host>,
    rows: BTreeMap<RowKey, (Row, u64)>,
    revision: u64,
    claim: Option<(Epoch, Member)>,
    owners: BTreeMap<Epoch, Member>,
    losses: u8,
    deaths: u8,
    ticks: u8,
    /// Whether the store ignores what a write expects.
    ignores_revisions: bool,
    broken: Option<String>,
}

#[derive(Clone, Copy)]
enum Step {
    Call(usize),
    Lose { host: usize, applies: bool },
    Answer(usize),
    Watch(usize),
    Die(usize),
    MarkDead(usize),
}

fn name(host: usize) -> NodeId {
    ["a", "b"][host].into()
}

impl World {
    fn new(losses: u8, deaths: u8, mutations: &[Mutation]) -> Self {
        let mut pools = Pools::one(1);
        let mut free = Pool::new("free", 1, &pools);
        free.strategy = Some(BuiltinStrategy::Stateless);
        pools.add(free).expect("a pool");
        let settings = Settings { mutations: mutations.to_vec(), ..Settings::default() };
        let machine = |host: usize| {
            let identity = NodeIdentity {
                node: name(host),
                roles: Roles { manager: false, ..Roles::ALL },
                version: 1,
                addresses: Vec::new(),
                pool_roles: Vec::new(),
                weight: 1,
                pools: pools.clone(),
                seed: host as u64,
            };
            Machine::new(settings.clone(), identity, BuiltinStrategy::Average.build())
        };
        let host = |at| Host {
            machine: machine(at),
            alive: true,
            calls: VecDeque::new(),
            answers: VecDeque::new(),
            watched: VecDeque::new(),
        };
        let mut world = Self {
            now: 1_000,
            hosts: vec![host(0), host(1)],
            rows: BTreeMap::new(),
            revision: 0,
            claim: None,
            owners: BTreeMap::new(),
            losses,
            deaths,
            ticks: 4,
            ignores_revisions: false,
            broken: None,
        };
        for host in 0..2 {
            world.handle(host, Event::Tick);
        }
        world
    }

    fn handle(&mut self, host: usize, event: Event) {
        if !self.hosts[host].alive {
            return;
        }
        let now = Now { mono: self.now, cluster_time: self.now, utc: 0 };
        self.hosts[host].machine.handle(now, Event::StoreResponded { sent_at: self.now });
        self.hosts[host].machine.handle(now, event);
        while let Some(action) = self.hosts[host].machine.poll() {
            self.carry_out(host, action);
        }
        let holders = self
            .hosts
            .iter()
            .filter(|it| it.alive && it.machine.held_shards().any(|(shard, ..)| shard == SHARD));
        if holders.count() > 1 {
            self.broken = Some("two live hosts hold the shard".into());
        }
    }

    fn carry_out(&mut self, host: usize, action: Action) {
        match action {
            Action::ListRows => {
                let rows = self.rows.iter().map(|(key, (row, at))| (key.clone(), row.clone(), *at));
                let rows = rows.collect();
                self.handle(host, Event::RowsListed(Some(rows)));
            }
            Action::WriteRow { request_id, key: key @ RowKey::Node(_), expected, row } => {
                let result = self.write(&key, expected, &row);
                self.handle(host, Event::RowWritten { request_id, result });
            }
            Action::WriteRow { request_id: number, key, expected, row } => {
                self.hosts[host].calls.push_back(Call::Write { number, key, expected, row });
            }
            Action::ReadRow(key) => self.hosts[host].calls.push_back(Call::Read(key)),
            Action::StartShard { shard: SHARD, epoch, member } => {
                self.hosts[host].calls.push_back(Call::Claim(epoch, member));
            }
            Action::StopShard { shard, epoch, .. } => {
                self.hosts[host].answers.push_back(Event::ShardStopped { shard, epoch });
            }
            _ => {}
        }
    }

    fn write(&mut self, key: &RowKey, expected: Option<u64>, row: &Row) -> Result<u64, WriteError> {
        let standing = self.rows.get(key).cloned();
        if standing.as_ref().map(|(_, at)| *at) != expected && !self.ignores_revisions {
            return Err(WriteError::Conflict(standing));
        }
        if let Row::Assignments(row) = row
            && let Some(row) = row.assignments.get(1)
            && let Some(owner) = &row.owner
            && self.owners.insert(row.epoch, owner.clone()).is_some_and(|other| other != *owner)
        {
            self.broken = Some("an epoch has two owners (R5)".into());
        }
        self.revision += 1;
        self.rows.insert(key.clone(), (row.clone(), self.revision));
        for host in self.hosts.iter_mut().filter(|host| host.alive) {
            let value = Some((row.clone(), self.revision));
            host.watched.push_back(Event::RowObserved { key: key.clone(), value });
        }
        Ok(self.revision)
    }

    fn execute(&mut self, call: Call) -> Event {
        match call {
            Call::Write { number: request_id, key, expected, row } => {
                Event::RowWritten { request_id, result: self.write(&key, expected, &row) }
            }
            Call::Read(key) => {
                let value = self.rows.get(&key).cloned();
                Event::RowObserved { key, value }
            }
            Call::Claim(epoch, member) => {
                if self.owners.get(&epoch) != Some(&member) {
                    self.broken = Some("a claim that no row assigns".into());
                }
                match &self.claim {
                    Some((standing, _)) if *standing >= epoch => {
                        let current_epoch = Some(*standing);
                        Event::ShardLost { shard: SHARD, epoch, current_epoch }
                    }
                    _ => {
                        self.claim = Some((epoch, member));
                        Event::ShardServing { shard: SHARD, epoch }
                    }
                }
            }
        }
    }

    fn steps(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        for (at, host) in self.hosts.iter().enumerate() {
            if let Some(call) = host.calls.front() {
                steps.push(Step::Call(at));
                if self.losses > 0 && matches!(call, Call::Write { .. }) {
                    steps.push(Step::Lose { host: at, applies: true });
                    steps.push(Step::Lose { host: at, applies: false });
                }
            }
            if host.alive && !host.answers.is_empty() {
                steps.push(Step::Answer(at));
            }
            if host.alive && !host.watched.is_empty() {
                steps.push(Step::Watch(at));
            }
            if host.alive && self.deaths > 0 {
                steps.push(Step::Die(at));
            }
            let row = self.rows.get(&RowKey::Node(name(at)));
            if !host.alive
                && matches!(row, Some((Row::Node(row), _)) if row.status == NodeStatus::Live)
            {
                steps.push(Step::MarkDead(at));
            }
        }
        steps
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Call(at) => {
                let Some(call) = self.hosts[at].calls.pop_front() else { return };
                let answer = self.execute(call);
                self.hosts[at].answers.push_back(answer);
            }
            Step::Lose { host, applies } => {
                let Some(call) = self.hosts[host].calls.pop_front() else { return };
                self.losses -= 1;
                let Call::Write { number: request_id, .. } = call else { return };
                if applies {
                    let _ = self.execute(call);
                }
                let result = Err(WriteError::Unknown);
                self.hosts[host].answers.push_back(Event::RowWritten { request_id, result });
            }
            Step::Answer(at) => {
                let Some(event) = self.hosts[at].answers.pop_front() else { return };
                self.handle(at, event);
            }
            Step::Watch(at) => {
                let Some(event) = self.hosts[at].watched.pop_front() else { return };
                self.handle(at, event);
            }
            Step::Die(at) => {
                self.deaths -= 1;
                let host = &mut self.hosts[at];
                host.alive = false;
                host.answers.clear();
                host.watched.clear();
            }
            Step::MarkDead(at) => {
                let key = RowKey::Node(name(at));
                let Some((Row::Node(row), revision)) = self.rows.get(&key).cloned() else { return };
                let row = Row::Node(NodeRow { status: NodeStatus::Dead, ..row });
                let _ = self.write(&key, Some(revision), &row);
            }
        }
    }

    /// Whether the shard is served by its owner, which is the last of the live hosts.
    fn is_served(&self) -> bool {
        let Some((Row::Assignments(row), _)) = self.rows.get(&RowKey::Assignments(0)) else {
            return false;
        };
        let row = &row.assignments[1];
        let serves = |host: &Host| {
            host.alive
                && host.machine.member() == row.owner
                && host.machine.held_shards().any(|held| held == (SHARD, row.epoch, true))
        };
        self.claim == row.owner.clone().map(|owner| (row.epoch, owner))
            && self.hosts.iter().any(serves)
    }

    fn digest(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        for host in &self.hosts {
            (&host.machine, host.alive, &host.calls).hash(&mut hasher);
            (&host.answers, &host.watched).hash(&mut hasher);
        }
        (&self.rows, &self.claim, &self.owners, self.now).hash(&mut hasher);
        (self.losses, self.deaths, self.ticks).hash(&mut hasher);
        hasher.finish()
    }
}

/// Explores every state. Returns how many there are, or what broke.
fn explore(first: World) -> Result<usize, String> {
    let (mut seen, mut open) = (HashSet::new(), vec![first]);
    while let Some(mut world) = open.pop() {
        if let Some(why) = world.broken {
            return Err(why);
        }
        if !seen.insert(world.digest()) {
            continue;
        }
        assert!(seen.len() < MOST, "too many states");
        let steps = world.steps();
        if steps.is_empty() {
            if world.is_served() {
                continue;
            }
            if world.ticks == 0 {
                return Err("at rest, nobody serves the shard".into());
            }
            // What was lost is repeated after a while.
            world.ticks -= 1;
            world.now += 250;
            for host in 0..2 {
                world.handle(host, Event::Tick);
            }
            open.push(world);
            continue;
        }
        for step in steps {
            let mut next = world.clone();
            next.take(step);
            open.push(next);
        }
    }
    Ok(seen.len())
}

#[test]
fn e5_two_hosts_after_one_number_never_share_a_shard() {
    for (losses, deaths) in [(0, 0), (1, 0), (0, 1)] {
        let states = explore(World::new(losses, deaths, &[]));
        eprintln!("{losses} losses, {deaths} deaths: {states:?} states");
        assert!(states.expect("holds") > 50);
    }
}

#[test]
fn e5_without_compare_and_set_an_epoch_gets_two_owners() {
    let mut world = World::new(0, 0, &[]);
    world.ignores_revisions = true;
    assert_eq!(explore(world), Err("an epoch has two owners (R5)".into()));
}

#[test]
fn e8_without_the_lease_two_hosts_hold_a_shard() {
    let world = World::new(0, 0, &[Mutation::TakeUnlapsedShardLease]);
    assert_eq!(explore(world), Err("two live hosts hold the shard".into()));
}
