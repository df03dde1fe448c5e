//! Pools: named spaces of shards, each with its own number of shards, hash, hosts and strategy (K4, K39, M1).
//!
//! The shards of all pools of a cluster are numbered together: the first pool has the shards 1 to N, the next one those
//! from N + 1 on. So a shard's number alone identifies it, in rows, claims, messages and commands. A pool is added
//! behind the others, and none ever changes: the number of an entity's shard stays the same (K8, R23). For another number
//! of shards or another hash, the state of a pool is copied into another pool, which has its entities from then on.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::assign::BuiltinStrategy;
use crate::hash::HashFunction;
use crate::ids::ShardId;

/// The pool that every cluster has from its start.
pub const DEFAULT_POOL: &str = "default";

/// The role of the nodes that host a pool that names no role.
pub const HOST_ROLE: &str = "host";

/// What begins the roles that pools name: `host.orders`.
pub const HOST_ROLE_PREFIX: &str = "host.";

/// Whether the entities of a pool are copied to another one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum PoolUse {
    /// They are not.
    #[default]
    Open,
    /// Those of the pool with this name are copied to it.
    Filling(String),
    /// They are copied to the pool with this name.
    Leaving(String),
    /// They have been in the pool with this name since a copy.
    Left(String),
}

/// One pool.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Pool {
    /// Its name.
    pub name: String,
    /// Its first shard.
    pub first: ShardId,
    /// How many shards it has.
    pub shards: u32,
    /// Maps the shard key of an entity to a shard.
    pub hash: HashFunction,
    /// What follows `host.` in the role of the nodes that host it. `None`: nodes with the role `host` do.
    pub role: Option<String>,
    /// Decides which host gets which shard. `None`: the manager's own strategy does.
    pub strategy: Option<BuiltinStrategy>,
    /// How many of its hosts there must be before its shards are allocated for the first time (K27).
    pub min_hosts: u32,
    /// Whether its entities are copied to another pool, or from one.
    pub usage: PoolUse,
    /// How many copies of another pool to this one were begun and given up.
    pub given_up: u32,
}

impl Pool {
    /// A pool of this name and size, with every default, whose shards follow those of `before`.
    #[must_use]
    pub fn new(name: &str, shards: u32, before: &Pools) -> Self {
        Self {
            name: name.into(),
            first: ShardId(before.shard_count().saturating_add(1)),
            shards,
            hash: HashFunction::default(),
            role: None,
            strategy: None,
            min_hosts: 1,
            usage: PoolUse::Open,
            given_up: 0,
        }
    }

    /// The shard of a shard key (M1, S6).
    #[must_use]
    pub fn shard_of(&self, key: &str) -> ShardId {
        ShardId(self.first.0 + self.hash.index(key, self.shards))
    }

    /// Its last shard.
    #[must_use]
    pub fn last(&self) -> ShardId {
        ShardId(self.first.0 + self.shards.saturating_sub(1))
    }

    /// Whether a shard belongs to it.
    #[must_use]
    pub fn contains(&self, shard: ShardId) -> bool {
        (self.first..=self.last()).contains(&shard)
    }

    /// Whether its hosts divide its shards among themselves, without a manager (E5).
    #[must_use]
    pub fn is_stateless(&self) -> bool {
        self.strategy == Some(BuiltinStrategy::Stateless)
    }

    /// The role of the nodes that host it, as configurations name it.
    #[must_use]
    pub fn host_role(&self) -> String {
        self.role.as_ref().map_or(HOST_ROLE.into(), |role| format!("{HOST_ROLE_PREFIX}{role}"))
    }

    /// Whether nobody may own its shards: its entities are being copied, or are in another pool.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.usage != PoolUse::Open
    }

    /// Whether all its entities are in another pool, so that it is never used again.
    #[must_use]
    pub fn is_left(&self) -> bool {
        matches!(self.usage, PoolUse::Left(_))
    }

    /// The number of a shard within the pool, from 1 on, as strategies see it.
    pub(crate) fn to_local(&self, shard: ShardId) -> ShardId {
        ShardId(shard.0.saturating_sub(self.first.0) + 1)
    }

    /// The shard with this number within the pool.
    pub(crate) fn to_global(&self, local: ShardId) -> ShardId {
        ShardId(self.first.0 + local.0.saturating_sub(1))
    }
}

/// All pools of a cluster, in the order of their shards. Never empty.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Pools(Vec<Pool>);

impl Pools {
    /// The pools of a cluster that has only [`DEFAULT_POOL`], with this number of shards.
    #[must_use]
    pub fn one(shards: u32) -> Self {
        let none = Self(Vec::new());
        Self(vec![Pool::new(DEFAULT_POOL, shards, &none)])
    }

    /// The same, with this hash for the first pool.
    #[must_use]
    pub fn with_hash(mut self, hash: HashFunction) -> Self {
        if let Some(first) = self.0.first_mut() {
            first.hash = hash;
        }
        self
    }

    /// Adds a pool behind the others.
    ///
    /// # Errors
    /// [`InvalidPool`] if the cluster cannot have it; nothing has changed then.
    pub fn add(&mut self, pool: Pool) -> Result<(), InvalidPool> {
        if self.get(&pool.name).is_some() {
            return Err(InvalidPool::Exists);
        }
        if pool.shards == 0 {
            return Err(InvalidPool::NoShards);
        }
        if pool.first.0 != self.shard_count() + 1 || pool.first.0.checked_add(pool.shards).is_none()
        {
            return Err(InvalidPool::OutOfPlace);
        }
        self.0.push(pool);
        Ok(())
    }

    /// How many shards there are, in all pools.
    #[must_use]
    pub fn shard_count(&self) -> u32 {
        self.0.last().map_or(0, |pool| pool.last().0)
    }

    /// The pools in the order of their shards.
    pub fn iter(&self) -> impl Iterator<Item = &Pool> {
        self.0.iter()
    }

    /// The pool with this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Pool> {
        self.0.iter().find(|pool| pool.name == name)
    }

    /// The pool that a shard belongs to. `None`: there is no such shard.
    #[must_use]
    pub fn of(&self, shard: ShardId) -> Option<&Pool> {
        let after = self.0.partition_point(|pool| pool.first <= shard);
        self.0.get(after.checked_sub(1)?).filter(|pool| pool.contains(shard))
    }

    /// The pools whose shards nobody may own.
    pub fn closed(&self) -> impl Iterator<Item = &Pool> {
        self.iter().filter(|pool| pool.is_closed())
    }

    /// The pools without a manager.
    pub fn stateless(&self) -> impl Iterator<Item = &Pool> {
        self.iter().filter(|pool| pool.is_stateless())
    }

    /// Whether the manager does not decide about a shard (E5).
    #[must_use]
    pub fn is_stateless(&self, shard: ShardId) -> bool {
        self.of(shard).is_some_and(Pool::is_stateless)
    }

    /// Lets any host have any shard.
    pub(crate) fn forget_roles(&mut self) {
        for pool in &mut self.0 {
            pool.role = None;
        }
    }

    /// The pool that has the entities of types that are bound to the pool with this name: that one, or the one to which
    /// they were copied.
    #[must_use]
    pub fn home(&self, name: &str) -> Option<&Pool> {
        let mut pool = self.get(name)?;
        // A pool is never copied to one that has left, so this ends; the bound keeps a damaged row from hanging a node.
        for _ in 0..self.0.len() {
            match &pool.usage {
                PoolUse::Left(to) => pool = self.get(to)?,
                _ => break,
            }
        }
        Some(pool)
    }

    /// Notes that the entities of a pool are copied to another one, or were. Copies of several pools may be noted in any
    /// order.
    ///
    /// # Errors
    /// [`InvalidPool::NoSuchCopy`] if there are no two such pools; nothing has changed then.
    pub fn set_copied(&mut self, from: &str, to: &str, is_done: bool) -> Result<(), InvalidPool> {
        if from == to || self.get(from).is_none() || self.get(to).is_none() {
            return Err(InvalidPool::NoSuchCopy);
        }
        for pool in &mut self.0 {
            if pool.name == from {
                pool.usage = match is_done {
                    true => PoolUse::Left(to.into()),
                    false => PoolUse::Leaving(to.into()),
                };
            }
            if pool.name == to {
                pool.usage = match (is_done, &pool.usage) {
                    (false, _) => PoolUse::Filling(from.into()),
                    // It was filled, and then copied to a third one.
                    (true, PoolUse::Leaving(_) | PoolUse::Left(_)) => continue,
                    (true, _) => PoolUse::Open,
                };
            }
        }
        Ok(())
    }

    /// Rises with each copy of a pool that begins, ends or is given up.
    fn copy_steps(&self) -> u64 {
        let steps = |pool: &Pool| match &pool.usage {
            PoolUse::Open | PoolUse::Filling(_) => 0,
            PoolUse::Leaving(_) => 1,
            PoolUse::Left(_) => 2,
        };
        self.0.iter().map(|pool| steps(pool) + 2 * u64::from(pool.given_up)).sum()
    }

    /// Whether these are the other's pools, and perhaps more behind them, with the same copies of pools or later ones.
    #[must_use]
    pub fn extend(&self, other: &Self) -> bool {
        let same = |(one, other): (&Pool, &Pool)| {
            let (usage, given_up) = (one.usage.clone(), one.given_up);
            *one == Pool { usage, given_up, ..other.clone() }
        };
        self.0.len() >= other.0.len()
            && self.0.iter().zip(&other.0).all(same)
            && self.copy_steps() >= other.copy_steps()
    }
}

/// Checks the name of a pool or of a role, after `host.`: a path of the store contains the one, a configuration the
/// other.
///
/// # Errors
/// What a name may be.
pub fn check_name(name: &str) -> Result<(), String> {
    let is_valid = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let begins = name.bytes().next().is_some_and(|first| first.is_ascii_lowercase());
    if begins && name.len() <= 32 && name.bytes().all(is_valid) {
        return Ok(());
    }
    Err(format!(
        "{name:?} must be 1 to 32 lower-case letters, digits and `-`, and begin with a letter"
    ))
}

/// The role of a pool's hosts, as a command or a manifest names it: `host` or `host.NAME`. Returns the name.
///
/// # Errors
/// What a role may be.
pub fn parse_host_role(role: &str) -> Result<Option<&str>, String> {
    match role.strip_prefix(HOST_ROLE_PREFIX) {
        _ if role == HOST_ROLE => Ok(None),
        Some(name) => check_name(name).map(|()| Some(name)),
        None => Err(format!("{role:?} is no role of hosts; use `host`, or `host.NAME`")),
    }
}

/// Why a cluster cannot have a pool. Not retryable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InvalidPool {
    /// It has a pool with this name.
    Exists,
    /// A pool needs a shard.
    NoShards,
    /// Its shards do not follow the last one, or exceed what a number of 32 bits can count.
    OutOfPlace,
    /// A pool cannot be copied to itself, or to or from one that does not exist.
    NoSuchCopy,
}

impl fmt::Display for InvalidPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Exists => "the cluster has a pool with this name",
            Self::NoShards => "a pool needs at least one shard",
            Self::OutOfPlace => "the shards of a pool follow those of the pool before it",
            Self::NoSuchCopy => "it is filled from a pool that does not exist, or from itself",
        })
    }
}

impl std::error::Error for InvalidPool {}

#[cfg(test)]
mod tests {
    use super::*;

    fn three() -> Pools {
        let mut pools = Pools::one(12);
        for (name, shards) in [("orders", 5), ("search", 1)] {
            pools.add(Pool::new(name, shards, &pools)).expect("a pool");
        }
        pools
    }

    #[test]
    fn m1_each_shard_belongs_to_one_pool() {
        let pools = three();
        assert_eq!(pools.shard_count(), 18);
        let of = |shard| pools.of(ShardId(shard)).map(|pool| pool.name.as_str());
        let names: Vec<_> = (0..20).map(of).collect();
        assert_eq!(names[0], None);
        assert!(names[1..=12].iter().all(|name| *name == Some("default")));
        assert!(names[13..=17].iter().all(|name| *name == Some("orders")));
        assert_eq!(names[18..], [Some("search"), None]);
        for pool in pools.iter() {
            for shard in pool.first.0..=pool.last().0 {
                assert_eq!(pool.to_global(pool.to_local(ShardId(shard))), ShardId(shard));
            }
            assert_eq!(pool.to_local(pool.first), ShardId(1));
        }
    }

    #[test]
    fn k8_a_key_stays_in_its_shard_when_pools_are_added() {
        let (old, new) = (Pools::one(12), three());
        assert!(new.extend(&old) && !old.extend(&new));
        for key in ["a", "b", "cart/7"] {
            let of = |pools: &Pools| pools.get(DEFAULT_POOL).map(|pool| pool.shard_of(key));
            assert_eq!(of(&old), of(&new));
            let orders = new.get("orders").expect("a pool");
            assert!(orders.contains(orders.shard_of(key)));
        }
    }

    #[test]
    fn a_pool_that_does_not_fit_is_refused() {
        let mut pools = three();
        let before = pools.clone();
        let refused = |pools: &mut Pools, pool| pools.add(pool).expect_err("refused");
        let again = Pool::new("orders", 4, &pools);
        assert_eq!(refused(&mut pools, again), InvalidPool::Exists);
        let empty = Pool::new("empty", 0, &pools);
        assert_eq!(refused(&mut pools, empty), InvalidPool::NoShards);
        let overlaps = Pool::new("overlaps", 4, &Pools::one(12));
        assert_eq!(refused(&mut pools, overlaps), InvalidPool::OutOfPlace);
        let huge = Pool::new("huge", u32::MAX, &pools);
        assert_eq!(refused(&mut pools, huge), InvalidPool::OutOfPlace);
        assert_eq!(pools, before);
    }

    #[test]
    fn r23_a_copied_pool_is_found_by_its_former_names() {
        let mut pools = three();
        let home = |pools: &Pools, name| pools.home(name).map(|pool| pool.name.clone());
        let begun = |from, to, is_done, pools: &mut Pools| {
            let before = pools.clone();
            pools.set_copied(from, to, is_done).expect("two pools");
            assert!(pools.extend(&before) && !before.extend(pools), "{from} to {to}");
        };
        begun("default", "orders", false, &mut pools);
        assert_eq!(home(&pools, "default").as_deref(), Some("default"), "until it is done");
        let is_closed = |pools: &Pools, name| pools.get(name).expect("a pool").is_closed();
        assert_eq!(
            ["default", "orders", "search"].map(|it| is_closed(&pools, it)),
            [true, true, false]
        );
        let mut done = three();
        begun("default", "orders", true, &mut done);
        assert!(done.extend(&pools));
        let mut given_up = three();
        let of_target = given_up.0.iter_mut().find(|pool| pool.name == "orders").expect("a pool");
        of_target.given_up = 1;
        assert!(given_up.extend(&pools) && !pools.extend(&given_up), "it is open again");
        begun("default", "orders", false, &mut given_up);
        begun("orders", "search", true, &mut done);
        assert_eq!(
            ["default", "orders", "search"].map(|it| is_closed(&done, it)),
            [true, true, false]
        );
        for name in ["default", "orders", "search"] {
            assert_eq!(home(&done, name).as_deref(), Some("search"));
        }
        // The pools of the second copy may be older than those of the first.
        for is_done in [false, true] {
            let mut reversed = three();
            for (from, to, is_done) in [("search", "orders", is_done), ("default", "search", true)]
            {
                reversed.set_copied(from, to, is_done).expect("two pools");
            }
            assert_eq!(is_closed(&reversed, "orders"), !is_done);
            assert!(is_closed(&reversed, "search"), "done: {is_done}");
            let expected = if is_done { "orders" } else { "search" };
            assert_eq!(home(&reversed, "default").as_deref(), Some(expected));
        }
        assert_eq!(home(&done, "other"), None);
        for (from, to) in [("orders", "orders"), ("orders", "other"), ("other", "orders")] {
            assert_eq!(done.set_copied(from, to, true), Err(InvalidPool::NoSuchCopy));
        }
    }

    #[test]
    fn names_and_roles_are_checked() {
        for name in ["orders", "a", "eu-1"] {
            assert_eq!(check_name(name), Ok(()));
            assert_eq!(parse_host_role(&format!("host.{name}")), Ok(Some(name)));
        }
        for name in ["", "Orders", "1a", "-a", "a/b", "a.b", "ä", &"a".repeat(33)] {
            assert!(check_name(name).is_err(), "{name:?}");
            assert!(parse_host_role(&format!("host.{name}")).is_err(), "{name:?}");
        }
        assert_eq!(parse_host_role("host"), Ok(None));
        assert!(parse_host_role("gateway").is_err());
    }
}
