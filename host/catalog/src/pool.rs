//! The cluster's pools (K4, M1): their rows, and which of them a node knows.

use std::sync::{Arc, PoisonError, RwLock};

use ostraca_config::Manifest;
use ostraca_core::assign::BuiltinStrategy;
use ostraca_core::extensions::{Extensible, Extensions};
use ostraca_core::hash::HashFunction;
use ostraca_core::ids::{ShardId, ShardPath};
use ostraca_core::pools::{DEFAULT_POOL, Pool, PoolUse, Pools};
use ostraca_store::pool_copy::PoolCopyStage;
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::rows::{POOLS, PoolRow};

/// The only namespace of 0.1.
pub use ostraca_wire::envelope::NAMESPACE;

/// The hash of the pool `default` (M1).
pub const HASH: &str = HashFunction::Murmur3.name();

/// `pools`: the pools beside `default`, in the order of their shards, which follow those of `default`. Missing if there
/// are none. Pools are only added.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolsRow {
    /// In the order in which they were created.
    pub pools: Vec<PoolEntry>,
    /// Fields of later releases.
    pub extensions: Extensions<Self>,
}

impl Extensible for PoolsRow {
    const NAME: &'static str = "PoolsRow";
}

/// One pool beside `default`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolEntry {
    /// The pool's name.
    pub name: String,
    /// Number of shards.
    pub shards: u32,
    /// The name of its hash.
    pub hash: String,
    /// What follows `host.` in the role of its hosts; empty for the role `host`.
    pub role: String,
    /// The name of its strategy; empty for the manager's own.
    pub strategy: String,
    /// How many of its hosts there must be before its shards are allocated for the first time (K27).
    pub min_hosts: u32,
    /// When it was created, in milliseconds of UTC since 1970.
    pub at_ms: u64,
    /// Who created it.
    pub by: String,
    /// Fields of later releases.
    pub extensions: Extensions<Self>,
}

impl Extensible for PoolEntry {
    const NAME: &'static str = "PoolEntry";
    const FIELDS: &'static [u32] = &[Self::FILL, Self::GIVEN_UP];
}

/// The copy of another pool's state into a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolFill {
    /// The pool that is copied, or was.
    pub from: String,
    /// A random number, which distinguishes the copy from others.
    pub attempt: u64,
    /// A random number of the process that runs it: one that continues it takes it over.
    pub runner: u64,
    /// How far it is.
    pub stage: PoolCopyStage,
}

impl PoolRow {
    /// The pools of a cluster that has only this one.
    ///
    /// # Errors
    /// [`Error::InvalidRow`] if it has no shards, or a hash that this program does not know.
    pub fn pools(&self) -> Result<Pools, Error> {
        let invalid = |why| Error::InvalidRow(format!("the pool `{DEFAULT_POOL}`: {why}"));
        if self.shards == 0 {
            return Err(invalid("it has no shards".into()));
        }
        let hash =
            HashFunction::from_name(&self.hash).map_err(|error| invalid(error.to_string()))?;
        Ok(Pools::one(self.shards).with_hash(hash))
    }
}

impl PoolsRow {
    /// Adds these pools to the pool `default`.
    ///
    /// # Errors
    /// [`Error::InvalidRow`] names the pool that this program cannot use.
    pub fn add_to(&self, first: &Pools) -> Result<Pools, Error> {
        let mut pools = Pools::one(first.iter().next().map_or(0, |pool| pool.shards));
        if let Some(default) = first.iter().next() {
            pools = pools.with_hash(default.hash);
        }
        for entry in &self.pools {
            let pool = entry.pool(&pools).map_err(|why| entry.invalid(&why))?;
            pools.add(pool).map_err(|error| entry.invalid(&error.to_string()))?;
        }
        for entry in &self.pools {
            let Some(fill) = entry.fill()? else { continue };
            let is_done = fill.stage == PoolCopyStage::Done;
            let set = pools.set_copied(&fill.from, &entry.name, is_done);
            set.map_err(|error| entry.invalid(&error.to_string()))?;
        }
        Ok(pools)
    }
}

impl PoolEntry {
    /// The field with the copy of another pool into this one ([`PoolFill`]); absent if there was none. Required: a
    /// release without it would use the other pool's shards.
    const FILL: u32 = 1;
    /// The field with the number of copies into this pool that were begun and given up; absent if there was none.
    const GIVEN_UP: u32 = 2;

    /// The copy of another pool into this one, unfinished or not.
    ///
    /// # Errors
    /// [`Error::InvalidRow`] if its field cannot be decoded.
    pub fn fill(&self) -> Result<Option<PoolFill>, Error> {
        if self.extensions.is_empty() {
            return Ok(None);
        }
        self.extensions.get(Self::FILL).map_err(|error| self.invalid(&error.to_string()))
    }

    /// Notes how far the copy of another pool into this one is.
    ///
    /// # Errors
    /// [`Error::InvalidRow`] if fields of later releases leave no space for it.
    pub fn set_fill(&mut self, fill: &PoolFill) -> Result<(), Error> {
        let set = self.extensions.set(Self::FILL, fill);
        set.map_err(|error| self.invalid(&error.to_string()))
    }

    /// How many copies of another pool into this one were begun and given up.
    ///
    /// # Errors
    /// [`Error::InvalidRow`] if its field cannot be decoded.
    pub fn given_up(&self) -> Result<u32, Error> {
        if self.extensions.is_empty() {
            return Ok(0);
        }
        let number = self.extensions.get(Self::GIVEN_UP);
        number.map(Option::unwrap_or_default).map_err(|error| self.invalid(&error.to_string()))
    }

    /// Gives up the copy of another pool into this one.
    ///
    /// # Errors
    /// [`Error::InvalidRow`] if a field cannot be decoded, or if fields of later releases leave no space.
    pub fn give_up_fill(&mut self) -> Result<(), Error> {
        let given_up = self.given_up()?.saturating_add(1);
        let taken = self.extensions.take::<PoolFill>(Self::FILL).map(drop);
        let set = taken.and_then(|()| self.extensions.set(Self::GIVEN_UP, &given_up));
        set.map_err(|error| self.invalid(&error.to_string()))
    }

    fn invalid(&self, why: &str) -> Error {
        Error::InvalidRow(format!("`{POOLS}`: the pool `{}`: {why}", self.name))
    }

    /// The pool, behind those before it.
    ///
    /// # Errors
    /// Why this program cannot use it.
    pub fn pool(&self, before: &Pools) -> Result<Pool, String> {
        let strategy = Some(self.strategy.as_str()).filter(|name| !name.is_empty());
        let strategy = strategy.map(BuiltinStrategy::from_name).transpose();
        Ok(Pool {
            hash: HashFunction::from_name(&self.hash).map_err(|error| error.to_string())?,
            role: Some(self.role.clone()).filter(|role| !role.is_empty()),
            strategy: strategy.map_err(|error| error.to_string())?,
            min_hosts: self.min_hosts,
            given_up: self.given_up().map_err(|error| error.to_string())?,
            ..Pool::new(&self.name, self.shards, before)
        })
    }
}

/// The rows of these pools, without who created them: for a cache.
pub fn rows_of(pools: &Pools) -> (PoolRow, PoolsRow) {
    let mut all = pools.iter();
    let (shards, hash) = all.next().map_or((0, HASH), |pool| (pool.shards, pool.hash.name()));
    let others = all.map(|pool| {
        let mut entry = PoolEntry {
            name: pool.name.clone(),
            shards: pool.shards,
            hash: pool.hash.name().into(),
            role: pool.role.clone().unwrap_or_default(),
            strategy: pool.strategy.map_or("", BuiltinStrategy::name).into(),
            min_hosts: pool.min_hosts,
            at_ms: 0,
            by: String::new(),
            extensions: Extensions::default(),
        };
        let fill =
            |from: &Pool, stage| PoolFill { from: from.name.clone(), attempt: 0, runner: 0, stage };
        let fill = pools.iter().find_map(|from| match &from.usage {
            PoolUse::Left(to) if *to == pool.name => Some(fill(from, PoolCopyStage::Done)),
            PoolUse::Leaving(to) if *to == pool.name => Some(fill(from, PoolCopyStage::Marking)),
            _ => None,
        });
        // An empty block has space for both.
        if let Some(fill) = fill {
            let _ = entry.set_fill(&fill);
        }
        if pool.given_up > 0 {
            let _ = entry.extensions.set(PoolEntry::GIVEN_UP, &pool.given_up);
        }
        entry
    });
    let others = PoolsRow { pools: others.collect(), extensions: Extensions::default() };
    (PoolRow { hash: hash.into(), shards, extensions: Extensions::default() }, others)
}

/// The pools that a node knows. Clones share them; they grow while the node runs, and may be copied.
#[derive(Clone, Debug)]
pub struct KnownPools(Arc<RwLock<Arc<Pools>>>);

impl KnownPools {
    /// These pools.
    #[must_use]
    pub fn new(pools: Pools) -> Self {
        Self(Arc::new(RwLock::new(Arc::new(pools))))
    }

    /// The pools as they are now.
    #[must_use]
    pub fn get(&self) -> Arc<Pools> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Learns the cluster's pools. Returns whether that are more than were known, or some were copied; fewer or others
    /// change nothing.
    pub fn learn(&self, pools: &Pools) -> bool {
        let mut known = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let is_new = pools != &**known && pools.extend(&known);
        if is_new {
            *known = Arc::new(pools.clone());
        }
        is_new
    }

    /// The path of a shard in the store.
    #[must_use]
    pub fn path(&self, shard: ShardId) -> ShardPath {
        path(&self.get(), shard)
    }
}

/// The path of a shard in the store. A shard that does not exist gets one in the pool `default`, where nothing has its
/// number.
#[must_use]
pub fn path(pools: &Pools, shard: ShardId) -> ShardPath {
    let pool = pools.of(shard).map_or(DEFAULT_POOL, |pool| &pool.name);
    ShardPath { namespace: NAMESPACE.into(), pool: pool.into(), shard }
}

/// The shard of an entity whose type has this manifest. `None`: the pool is not known (yet).
#[must_use]
pub fn shard_of(pools: &Pools, manifest: &Manifest, id: &str) -> Option<ShardId> {
    Some(pools.home(&manifest.pool)?.shard_of(manifest.shard_key.shard_key(id)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pools() -> Pools {
        let mut pools = Pools::one(12);
        let orders = Pool {
            hash: HashFunction::JavaString,
            role: Some("orders".into()),
            strategy: Some(BuiltinStrategy::Ranges),
            min_hosts: 2,
            ..Pool::new("orders", 5, &pools)
        };
        pools.add(orders).expect("a pool");
        pools.add(Pool::new("plain", 3, &pools)).expect("a pool");
        pools
    }

    #[test]
    fn pools_survive_their_rows() {
        let (first, others) = rows_of(&pools());
        let all = others.add_to(&first.pools().expect("a pool")).expect("pools");
        assert_eq!(all, pools());
        assert_eq!(path(&all, ShardId(13)).to_string(), "default/orders/13");
        assert_eq!(path(&all, ShardId(12)).to_string(), "default/default/12");
    }

    #[test]
    fn r23_copies_of_pools_survive_their_rows() {
        for is_done in [false, true] {
            let mut copied = pools();
            copied.set_copied(DEFAULT_POOL, "plain", is_done).expect("two pools");
            let (first, others) = rows_of(&copied);
            let all = others.add_to(&first.pools().expect("a pool")).expect("pools");
            assert_eq!(all, copied);
            let known = KnownPools::new(pools());
            assert!(known.learn(&copied) && !known.learn(&pools()), "a late row changes nothing");
            let home = known.get().home(DEFAULT_POOL).map(|pool| pool.name.clone());
            assert_eq!(home.as_deref(), Some(if is_done { "plain" } else { DEFAULT_POOL }));
        }
    }

    #[test]
    fn r23_a_copy_that_was_given_up_opens_the_pools_again() {
        let (first, mut row) = rows_of(&pools());
        let first = first.pools().expect("a pool");
        let known = KnownPools::new(pools());
        for given_up in 1..=2 {
            let fill = PoolFill {
                from: DEFAULT_POOL.into(),
                attempt: 7,
                runner: 1,
                stage: PoolCopyStage::Marking,
            };
            row.pools[1].set_fill(&fill).expect("set");
            let closed = row.add_to(&first).expect("pools");
            assert!(known.learn(&closed));
            assert_eq!(closed.closed().count(), 2);
            row.pools[1].give_up_fill().expect("given up");
            assert_eq!(row.pools[1].fill().expect("none"), None);
            let open = row.add_to(&first).expect("pools");
            assert!(known.learn(&open) && !known.learn(&closed), "a late row changes nothing");
            assert_eq!(known.get().closed().count(), 0);
            let (_, cached) = rows_of(&open);
            assert_eq!(cached.pools[1].given_up().expect("a number"), given_up);
        }
    }

    #[test]
    fn rows_that_make_no_pools_are_refused_by_name() {
        let (first, others) = rows_of(&pools());
        let first = first.pools().expect("a pool");
        let refused = |edit: fn(&mut PoolEntry)| {
            let mut row = others.clone();
            edit(&mut row.pools[1]);
            row.add_to(&first).expect_err("refused").to_string()
        };
        for (edit, why) in [
            ((|it| it.hash = "md5".into()) as fn(&mut PoolEntry), "`plain`: `md5` is not a hash"),
            (|it| it.strategy = "mine".into(), "`plain`: `mine` is not an allocation strategy"),
            (|it| it.shards = 0, "`plain`: a pool needs at least one shard"),
            (|it| it.name = "orders".into(), "`orders`: the cluster has a pool with this name"),
        ] {
            let error = refused(edit);
            assert!(error.contains(why), "{error}");
        }
        let none = PoolRow { shards: 0, ..rows_of(&pools()).0 };
        assert!(none.pools().is_err());
    }

    #[test]
    fn known_pools_only_grow() {
        let known = KnownPools::new(Pools::one(12));
        assert!(!known.learn(&Pools::one(13)) && known.learn(&pools()) && !known.learn(&pools()));
        assert!(!known.learn(&Pools::one(12)));
        assert_eq!(*known.get(), pools());
    }
}
