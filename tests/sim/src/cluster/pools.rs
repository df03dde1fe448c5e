//! Two pools in one cluster, the second one with a role of its own (K39). In some runs, an operator adds it while the
//! cluster runs, and each process learns of it at another time. In some, it has no manager (E5). In some, both pools are
//! closed for a while: a copy of one to the other is begun and given up (R23).

use ostraca_core::assign::BuiltinStrategy;
use ostraca_core::hash::HashFunction;
use ostraca_core::ids::{Epoch, NodeId, ShardId};
use ostraca_core::node::Event;
use ostraca_core::pools::{DEFAULT_POOL, Pool, Pools};
use ostraca_core::rows::{Assignment, Member};

use super::process::Pid;
use super::{LEASE, Options, SimEvent, World};
use crate::rng::Rng;
use crate::violation::ViolationKind;

/// What follows `host.` in the role of the second pool's hosts.
const ROLE: &str = "second";

/// The second pool.
const SECOND: &str = "second";

fn two_pools(first: u32, second: Pool) -> Pools {
    let mut pools = Pools::one(first);
    // The rest of the shards follow the first ones.
    assert_eq!(pools.add(second), Ok(()));
    pools
}

/// What a seed decides about pools.
#[derive(Debug)]
pub(super) struct PoolPlan {
    /// All pools, at the end of the run.
    pub(super) all: Pools,
    /// How many shards there were at the start.
    pub(super) initial: u32,
    /// The pools that a process knows which starts now.
    pub(super) current: Pools,
    /// What the pools are while they are closed, if they will be.
    closed: Option<Pools>,
    rng: Rng,
}

impl PoolPlan {
    /// Divides the shards. Uses a separate random generator, so that the seed's other choices do not change.
    pub(super) fn draw(seed: u64, shards: u32, options: &Options) -> Self {
        let mut rng = Rng::new(seed ^ 0x0070_6f6f_6c73);
        let one = Pools::one(shards);
        if seed % 6 != 1 {
            return Self { all: one.clone(), initial: shards, current: one, closed: None, rng };
        }
        let first = rng.range(1, u64::from(shards)) as u32;
        let before = Pools::one(first);
        let mut second = Pool::new(SECOND, shards - first, &before);
        second.role = Some(ROLE.into());
        second.hash = HashFunction::Fnv1a;
        if seed % 12 == 7 && !options.has_one_fault() {
            second.strategy = Some(BuiltinStrategy::Stateless);
        }
        let mut all = two_pools(first, second.clone());
        let mut current = if rng.chance(40) { before } else { all.clone() };
        let mut closed = None;
        // Broken shards show it only while they have owners.
        let may_close = options.shard_mutations.is_empty() && !options.has_one_fault();
        if seed % 18 == 13 && may_close {
            current = all.clone();
            let mut copied = all.clone();
            assert_eq!(copied.set_copied(DEFAULT_POOL, SECOND, false), Ok(()), "seed {seed}");
            closed = Some(copied);
            all = two_pools(first, Pool { given_up: 1, ..second });
        }
        Self { all, initial: current.shard_count(), current, closed, rng }
    }

    /// Whether there are two pools.
    fn are_two(&self) -> bool {
        self.all.iter().count() > 1
    }

    /// The roles of the host that is created as this one. The second and the third always host both pools.
    pub(super) fn roles(&mut self, site: usize, host: bool) -> (bool, Vec<String>) {
        if !host || !self.are_two() {
            return (host, Vec::new());
        }
        let both = site == 1 || site == 2 || self.rng.chance(40);
        let first = both || self.rng.chance(50);
        (first, if both || !first { vec![ROLE.into()] } else { Vec::new() })
    }
}

impl World {
    /// Plans when the second pool is added, if it is not there from the start, or when both are closed.
    pub(super) fn plan_pools(&mut self) {
        if self.pools.closed.is_some() {
            let when = self.pools.rng.range(300, 2_000);
            let until = when + self.pools.rng.range(50, 4 * LEASE);
            self.healed = self.healed.max(until + 1);
            self.at(when, SimEvent::ClosePools);
            self.at(until, SimEvent::OpenPools);
        } else if self.pools.current != self.pools.all {
            let when = self.pools.rng.range(300, 2_000);
            self.healed = self.healed.max(when + 1);
            self.at(when, SimEvent::AddPool);
        }
    }

    pub(super) fn add_pool(&mut self) {
        self.tally.count("operator: pool added");
        self.change_pools(self.pools.all.clone());
    }

    /// The copy of one pool to the other begins.
    pub(super) fn close_pools(&mut self) {
        if let Some(closed) = self.pools.closed.clone() {
            self.tally.count("operator: pools closed");
            self.change_pools(closed);
        }
    }

    /// The copy is given up.
    pub(super) fn open_pools(&mut self) {
        let is_given_up = |shard: &ShardId, row: &Assignment| {
            let of_default = self.pools.all.of(*shard).is_some_and(|it| it.name == DEFAULT_POOL);
            of_default && row.owner.is_none() && row.epoch > Epoch(0)
        };
        if self.shard_rows().iter().any(|(shard, row)| is_given_up(shard, row)) {
            self.tally.count("transition: shard of a closed pool given up");
        }
        self.change_pools(self.pools.all.clone());
    }

    /// Each process learns of the change at another time.
    fn change_pools(&mut self, pools: Pools) {
        self.pools.current = pools;
        for pid in 0..self.processes.len() {
            if self.processes[pid].alive {
                let late = self.pools.rng.chance(50);
                let delay = if late { self.pools.rng.range(1, LEASE) } else { 1 };
                self.heal_by(delay);
                self.at(delay, SimEvent::LearnPools { pid });
            }
        }
    }

    pub(super) fn learn_pools(&mut self, pid: Pid) {
        if !self.processes[pid].alive {
            return;
        }
        let pools = self.pools.current.clone();
        self.processes[pid].gateway.router.grow(pools.shard_count());
        self.enqueue_node_event(pid, Event::PoolsChanged(pools));
    }

    /// The shard of an entity. Ids are divided among the pools, as types would be.
    pub(super) fn shard_of(&self, id: &str) -> ShardId {
        let pools: Vec<_> = self.pools.all.iter().collect();
        let at = HashFunction::JavaString.index(id, pools.len() as u32) as usize;
        pools[at].shard_of(id)
    }

    /// Whether a site may own shards of a pool.
    pub(super) fn may_host(&self, site: usize, pool: &Pool) -> bool {
        let it = &self.sites[site];
        pool.role.as_ref().map_or(it.roles.host, |role| it.pool_roles.contains(role))
    }

    /// Checks that a shard went to a node with the role of its pool.
    pub(super) fn guard_pool(&mut self, shard: ShardId, owner: &Member) {
        let Some(pool) = self.pools.all.of(shard).filter(|_| self.pools.are_two()) else { return };
        let pool = pool.clone();
        let is_owner = |node: &NodeId| *node == owner.node;
        let site = (0..self.sites.len()).find(|at| is_owner(&self.sites[*at].node));
        if site.is_some_and(|site| !self.may_host(site, &pool)) {
            let role = pool.host_role();
            let text = format!("shard {shard} went to {owner}, which has no role `{role}` (K39)");
            self.violations.push(ViolationKind::WrongPool.because(text));
        }
        if pool.role.is_some() {
            self.tally.count("transition: shard of the second pool assigned");
        }
    }
}
