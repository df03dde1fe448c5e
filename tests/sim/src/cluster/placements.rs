//! Where operators and outside programs want shards: weights, pins, moves on request, a program that places all shards,
//! and measured loads (A4, E9, K14). What a seed decides here is checked at the end of its run.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use ostraca_core::assign::{AllocationStrategy, BuiltinStrategy};
use ostraca_core::ids::{NodeId, ShardId};
use ostraca_core::node::Event;
use ostraca_core::pools::Pool;

use super::plan::{FROM, TO};
use super::process::Pid;
use super::storage::StoreCall;
use super::{LEASE, Options, SimEvent, World};
use crate::rng::Rng;
use crate::store::Request;

/// How long what the program wants counts.
pub(super) const EXTERNAL_TIMEOUT: u64 = 2_000;
/// How often the program says it.
const SAYS: u64 = 700;
/// How often nodes measure loads, and for how long they must have served a shard before.
const MEASURES: u64 = 400;

/// What a seed decides about placement.
#[derive(Debug)]
pub(super) struct PlacementPlan {
    pub(super) strategy: BuiltinStrategy,
    /// How long the owner of a shard may take to serve it.
    pub(super) shard_start_timeout: u64,
    weights: bool,
    pins: BTreeMap<ShardId, NodeId>,
    wishes: BTreeMap<ShardId, NodeId>,
    /// Raised with each change, as the revision of a row.
    revision: u64,
    /// When the program ends, if it does.
    ends_at: u64,
    /// The load of each shard.
    loads: Vec<u32>,
    /// The host whose claims get no answer.
    hanging: Option<usize>,
    rng: Rng,
}

impl PlacementPlan {
    /// Uses a separate random generator, so that the seed's other choices do not change.
    pub(super) fn draw(seed: u64, shards: u32, options: &Options) -> Self {
        let mut rng = Rng::new(seed ^ 0x0070_6c61_6365);
        let strategy = match seed % 12 {
            _ if options.has_one_fault() => BuiltinStrategy::Average,
            5 => BuiltinStrategy::External,
            11 => BuiltinStrategy::Load,
            _ => BuiltinStrategy::Average,
        };
        let is_late = options.claims_hang || (seed % 8 == 7 && !options.has_one_fault());
        let shard_start_timeout = if is_late { rng.range(250, 1_200) } else { 10_000 };
        let ends_at = if rng.chance(50) { rng.range(FROM, TO) } else { u64::MAX };
        let loads = (0..shards).map(|_| match rng.chance(30) {
            true => rng.range(50, 400) as u32,
            false => rng.range(0, 12) as u32,
        });
        Self {
            strategy,
            shard_start_timeout,
            weights: seed % 10 == 3,
            pins: BTreeMap::new(),
            wishes: BTreeMap::new(),
            revision: 0,
            ends_at,
            loads: loads.collect(),
            hanging: None,
            rng,
        }
    }

    pub(super) fn build_strategy(&self) -> Box<dyn AllocationStrategy> {
        self.strategy.build()
    }

    /// The weight of the site that is created as this one.
    pub(super) fn weight(&mut self) -> u32 {
        if self.weights { self.rng.range(1, 4) as u32 } else { 1 }
    }
}

impl World {
    pub(super) fn plan_placements(&mut self, seed: u64) {
        let another_alone = self.options.has_one_fault();
        if !another_alone && seed % 7 == 4 {
            for _ in 0..self.placements.rng.range(1, 5) {
                let when = self.placements.rng.range(FROM, TO);
                self.healed = self.healed.max(when + 1);
                self.at(when, SimEvent::PlaceShards);
            }
        }
        match self.placements.strategy {
            BuiltinStrategy::External => self.at(FROM, SimEvent::ProgramSays { changes: true }),
            BuiltinStrategy::Load => self.at(MEASURES, SimEvent::MeasureLoads),
            _ => {}
        }
    }

    /// An operator pins some shards, unpins others, and moves one.
    pub(super) fn place_shards(&mut self) {
        self.tally.count("operator: shards pinned");
        let nodes = self.some_hosts();
        for _ in 0..self.placements.rng.range(1, 4) {
            let shard = self.a_shard();
            match self.placements.rng.chance(70) {
                true => {
                    let node = nodes[self.placements.rng.range(0, nodes.len() as u64) as usize];
                    let node = self.sites[node].node.clone();
                    self.placements.pins.insert(shard, node);
                }
                false => drop(self.placements.pins.remove(&shard)),
            }
        }
        self.placements.revision += 1;
        self.tell_placements(true);
        let (shard, site) = (self.a_shard(), self.any_site(false));
        let to = nodes[self.placements.rng.range(0, nodes.len() as u64) as usize];
        let to = self.sites[to].node.clone();
        if let Some(pid) = self.sites[site].pid {
            self.tally.count("operator: shard moved");
            self.enqueue_node_event(pid, Event::MoveShard { shard, to });
        }
    }

    /// The outside program says what it wants: something new, or the same again.
    pub(super) fn program_says(&mut self, changes: bool) {
        if self.now >= self.placements.ends_at {
            self.tally.count("operator: placing program ended");
            // What it wanted counts until its time is over, for the node that heard of it last.
            return self.heal_by(EXTERNAL_TIMEOUT + LEASE * 2);
        }
        self.placements.revision += 1;
        if changes {
            let nodes = self.some_hosts();
            for shard in (1..=self.shards).map(ShardId) {
                let node = nodes[self.placements.rng.range(0, nodes.len() as u64) as usize];
                let node = self.sites[node].node.clone();
                match self.placements.rng.chance(90) {
                    true => drop(self.placements.wishes.insert(shard, node)),
                    false => drop(self.placements.wishes.remove(&shard)),
                }
            }
        }
        self.tell_placements(changes);
        let changes = self.now < TO && self.placements.rng.chance(20);
        self.at(SAYS, SimEvent::ProgramSays { changes });
    }

    /// Each process learns the rows as they are then, at another time.
    fn tell_placements(&mut self, changes: bool) {
        for pid in 0..self.processes.len() {
            if self.processes[pid].alive {
                let late = changes && self.placements.rng.chance(30);
                let delay = if late { self.placements.rng.range(1, LEASE) } else { 1 };
                if changes {
                    self.heal_by(delay);
                }
                self.at(delay, SimEvent::LearnPlacements { pid });
            }
        }
    }

    /// `is_listed`: at its start, when it lists all rows.
    pub(super) fn learn_placements(&mut self, pid: Pid, is_listed: bool) {
        if !self.processes[pid].alive || self.placements.revision == 0 {
            return;
        }
        let PlacementPlan { strategy, pins, wishes, revision, .. } = &self.placements;
        let (revision, pins) = (*revision, pins.clone());
        let mut events = vec![Event::PinsChanged { revision, pins }];
        if *strategy == BuiltinStrategy::External {
            events.extend(self.pools.all.iter().map(|pool| {
                let shards = wishes.range(pool.first..=pool.last());
                let shards = shards.map(|(shard, node)| (*shard, node.clone())).collect();
                let pool = pool.name.clone();
                Event::PlacementChanged { pool, revision, is_listed, shards }
            }));
        }
        for event in events {
            self.enqueue_node_event(pid, event);
        }
    }

    /// Every node reports the loads of the shards that it has served for a while.
    pub(super) fn measure_loads(&mut self) {
        for pid in 0..self.processes.len() {
            let it = &self.processes[pid];
            if !it.alive {
                continue;
            }
            let served = it.machine.held_shards().filter(|(.., serving)| *serving);
            let served: BTreeSet<_> = served.map(|(shard, epoch, _)| (shard, epoch)).collect();
            let known = served.intersection(&it.measured);
            let loads: Vec<_> = known
                .map(|(shard, _)| (*shard, self.placements.loads[shard.0 as usize - 1]))
                .collect();
            self.processes[pid].measured = served;
            if !loads.is_empty() {
                self.tally.count("transition: loads reported");
            }
            self.enqueue_node_event(pid, Event::LoadsMeasured(loads));
        }
        self.at(MEASURES, SimEvent::MeasureLoads);
    }

    /// Plans when a host joins whose claims get no answer. Nothing else goes wrong.
    pub(super) fn plan_hanging_claims(&mut self) {
        self.healed = FROM + 1;
        self.at(FROM, SimEvent::JoinHanging);
    }

    pub(super) fn join_hanging(&mut self) {
        let site = self.join(false);
        self.placements.hanging = Some(site);
    }

    /// Whether the store never answers this call.
    pub(super) fn is_hanging(&self, pid: Pid, call: &StoreCall) -> bool {
        let is_claim =
            matches!(call, StoreCall::Entity(.., Request::Claim(_) | Request::ClaimIn { .. }));
        is_claim && self.placements.hanging == Some(self.processes[pid].site)
    }

    /// Whether the claims of this node get no answer.
    pub(super) fn is_hanging_node(&self, node: &NodeId) -> bool {
        self.placements.hanging.is_some_and(|site| self.sites[site].node == *node)
    }

    /// Shards that are not where an operator has pinned them, or where the outside program wants them, although that
    /// host can have them and the owner's reports reach the manager.
    pub(super) fn unplaced(&self) -> Vec<(ShardId, NodeId)> {
        let owners = self.owners();
        let mut unplaced = Vec::new();
        for pool in self.pools.all.iter().filter(|pool| !pool.is_stateless()) {
            let hosts: BTreeSet<_> = self.counts(pool).into_keys().collect();
            let of_pool = owners.range(pool.first..=pool.last());
            unplaced.extend(of_pool.filter_map(|(shard, owner)| {
                let wanted = self.wanted(*shard, &hosts).filter(|node| *node != owner)?;
                (!self.owner_is_silenced(*shard)).then(|| (*shard, wanted.clone()))
            }));
        }
        unplaced
    }

    /// The host at which a shard must be.
    fn wanted(&self, shard: ShardId, hosts: &BTreeSet<NodeId>) -> Option<&NodeId> {
        let PlacementPlan { pins, wishes, strategy, ends_at, .. } = &self.placements;
        let follows = *strategy == BuiltinStrategy::External && self.now < *ends_at;
        let pin = pins.get(&shard).filter(|node| hosts.contains(*node));
        let wish = wishes.get(&shard).filter(|node| follows && hosts.contains(*node));
        pin.or(wish)
    }

    fn a_shard(&mut self) -> ShardId {
        ShardId(self.placements.rng.range(1, u64::from(self.shards) + 1) as u32)
    }

    /// The hosts of any pool.
    fn some_hosts(&self) -> Vec<usize> {
        (0..self.sites.len()).filter(|site| self.sites[*site].is_host()).collect()
    }

    fn weight(&self, node: &NodeId) -> u64 {
        let site = self.sites.iter().find(|site| site.node == *node);
        site.map_or(1, |site| site.weight.into())
    }

    /// Whether the shards of a pool are where they should be, with these owners. `hosts` are those that may have them.
    pub(super) fn is_placed(
        &self,
        pool: &Pool,
        hosts: &BTreeSet<NodeId>,
        owners: &BTreeMap<ShardId, NodeId>,
    ) -> bool {
        let owners: BTreeMap<_, _> =
            owners.range(pool.first..=pool.last()).map(|(shard, node)| (*shard, node)).collect();
        if pool.is_stateless() {
            return self.is_divided(pool, hosts, &owners);
        }
        let wanted = |shard: &ShardId| self.wanted(*shard, hosts);
        if owners.iter().any(|(shard, owner)| wanted(shard).is_some_and(|node| node != *owner)) {
            return false;
        }
        let strategy = self.placements.strategy;
        if strategy == BuiltinStrategy::External && self.now < self.placements.ends_at {
            return true;
        }
        let can_move = |shard: &ShardId| wanted(shard).is_none();
        let cost = |shard: &ShardId| match strategy {
            BuiltinStrategy::Load => u64::from(self.placements.loads[shard.0 as usize - 1]) + 1,
            _ => 1,
        };
        let has = |host: &NodeId| {
            let of_host = owners.iter().filter(|(_, owner)| **owner == host);
            of_host.map(|(shard, _)| cost(shard)).sum::<u64>()
        };
        let all: u64 = owners.keys().map(cost).sum();
        let weights: u64 = hosts.iter().map(|host| self.weight(host)).sum();
        let is_off = |host: &NodeId| {
            let (has, fair) = (has(host) * weights * 100, all * self.weight(host));
            has > fair * 120 || has < fair * 80
        };
        if strategy == BuiltinStrategy::Load && !hosts.iter().any(is_off) {
            return true;
        }
        // Otherwise no shard can move from one host to another and make the two more even.
        hosts.iter().all(|from| {
            let shards: Vec<_> = owners
                .iter()
                .filter(|(shard, owner)| **owner == from && can_move(shard))
                .map(|(shard, _)| cost(shard))
                .collect();
            let (heavy, from_has) = (self.weight(from), has(from));
            let least = hosts
                .iter()
                .min_by_key(|to| (has(to) * 10_000 / self.weight(to), Reverse(self.weight(to))));
            let others = hosts.iter().filter(|to| match strategy {
                BuiltinStrategy::Load => least == Some(*to) && from_has * weights > all * heavy,
                _ => true,
            });
            others.filter(|to| *to != from).all(|to| {
                let (light, to_has) = (self.weight(to), has(to));
                shards.iter().all(|cost| match strategy {
                    // A host that gets a shard must have clearly less afterwards than the other one had.
                    BuiltinStrategy::Load => (to_has + cost) * heavy * 10 > from_has * light * 9,
                    _ => (to_has + cost) * heavy >= from_has * light,
                })
            })
        })
    }
}
