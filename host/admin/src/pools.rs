//! Lists the cluster's pools, and creates more of them (K4, K39, M1), by compare-and-set on their row.

use std::collections::HashMap;

use ostraca_catalog as catalog;
use ostraca_catalog::pool::{PoolEntry, PoolsRow};
use ostraca_catalog::rows::{self, POOLS};
use ostraca_codes::codes;
use ostraca_config::Manifest;
use ostraca_config::config::{MAX_MIN_HOSTS, MAX_SHARDS};
use ostraca_control::view::ClusterView;
use ostraca_core::extensions::Extensions;
use ostraca_core::hash::HashFunction;
use ostraca_core::ids::ShardId;
use ostraca_core::pools::{DEFAULT_POOL, Pool, PoolUse, Pools, check_name, parse_host_role};
use ostraca_core::rows::{NodeRow, NodeStatus, Row, RowKey};
use ostraca_wire::outcome::permanent_problem as problem;
use ostraca_wire::proto::{self, NumberedHost, PoolInfo, PoolsRequest, Problem};
use ostraca_wire::server::AdminOutput;

use super::catalog_problem::to_problem;
use super::{AdminService, store_failed};

/// Maximum number of pools in a cluster. No setting: one row has all of them, which has at most 64 KiB, and an entry may
/// take several hundred bytes.
const MAX_POOLS: usize = 64;

impl AdminService {
    pub(super) async fn pools(
        &self,
        principal: &str,
        request: PoolsRequest,
    ) -> Result<AdminOutput, Problem> {
        if let Some(wanted) = request.create {
            self.create_pool(principal, wanted).await?;
        }
        let (row, pools) = self.read_pools().await?;
        let mut numbers = self.read_numbers().await?;
        let view = self.current_view();
        let info = |pool: &Pool| {
            let entry = row.pools.iter().find(|entry| entry.name == pool.name);
            let numbers = numbers.remove(&pool.name).unwrap_or_default();
            to_wire(&view, pool, entry, numbers)
        };
        Ok(AdminOutput::Pools(proto::Pools { pools: pools.iter().map(info).collect() }))
    }

    /// Reads the pools that there are now. This node knows them from then on: its watch may deliver them later.
    pub(super) async fn read_pools(&self) -> Result<(PoolsRow, Pools), Problem> {
        let store = &*self.deployer.cluster_store;
        let row = rows::read::<PoolsRow>(store, POOLS).await.map_err(to_problem)?;
        let row = row.map_or_else(PoolsRow::default, |(row, _)| row);
        let pools = row.add_to(&self.gateway.pools.get()).map_err(to_problem)?;
        self.gateway.learn_pools(&pools);
        Ok((row, pools))
    }

    /// Which host has which number (E5), by pool.
    async fn read_numbers(&self) -> Result<HashMap<String, Vec<NumberedHost>>, Problem> {
        let store = &*self.deployer.cluster_store;
        let (all, _) = store.list("numbers/").await.map_err(|error| store_failed(&error))?;
        let mut numbers = HashMap::new();
        for stored in &all {
            if let Some((RowKey::Numbers(pool), Row::Numbers(row), _)) =
                rows::decode_row(stored).map_err(to_problem)?
            {
                let of_pool = row
                    .holders
                    .iter()
                    .map(|it| NumberedHost { node: it.member.node.to_string(), number: it.number });
                numbers.insert(pool.to_string(), of_pool.collect());
            }
        }
        Ok(numbers)
    }

    /// Adds a pool behind the others, unless the cluster has it already.
    async fn create_pool(&self, principal: &str, wanted: proto::NewPool) -> Result<(), Problem> {
        let store = &*self.deployer.cluster_store;
        let mut entry = checked(wanted)?;
        entry.by = principal.into();
        entry.at_ms = self.gateway.clock.now().utc;
        let found = rows::read::<PoolsRow>(store, POOLS).await.map_err(to_problem)?;
        let (mut row, revision) = match found {
            Some((row, revision)) => (row, Some(revision)),
            None => (PoolsRow::default(), None),
        };
        if let Some(known) = row.pools.iter().find(|known| known.name == entry.name) {
            return check_same(known, &entry);
        }
        let mut pools = row.add_to(&self.gateway.pools.get()).map_err(to_problem)?;
        check_space(&pools, entry.shards)?;
        let pool = entry.pool(&pools).map_err(invalid)?;
        pools.add(pool).map_err(|error| invalid(error.to_string()))?;
        self.check_nodes_know_pools().await?;
        tracing::info!(pool = entry.name, shards = entry.shards, "a pool is created");
        row.pools.push(entry);
        rows::write(store, POOLS, revision, &row).await.map_err(to_problem)?;
        Ok(())
    }

    /// A node of an older release would not know who owns the shards of the new pool.
    async fn check_nodes_know_pools(&self) -> Result<(), Problem> {
        let store = &*self.deployer.cluster_store;
        let (all, _) = store.list("nodes/").await.map_err(|error| store_failed(&error))?;
        let mut behind = Vec::new();
        for stored in &all {
            if let Some((RowKey::Node(name), Row::Node(node), _)) =
                rows::decode_row(stored).map_err(to_problem)?
                && node.status == NodeStatus::Live
                && !node.knows_pools()
            {
                behind.push(name.to_string());
            }
        }
        match behind.is_empty() {
            true => Ok(()),
            false => {
                let text = format!("not every live node knows pools: {}", behind.join(", "));
                Err(to_problem(catalog::Error::FormatNotSupported(text)))
            }
        }
    }

    /// How many shards the cluster has.
    pub(super) fn shard_count(&self) -> u32 {
        self.gateway.pools.get().shard_count()
    }

    /// The shard of an entity of the type with this manifest.
    pub(super) fn shard_of(&self, manifest: &Manifest, id: &str) -> Result<ShardId, Problem> {
        let pools = self.gateway.pools.get();
        let shard = catalog::pool::shard_of(&pools, manifest, id);
        shard.ok_or_else(|| unknown_pool(&pools, &manifest.pool))
    }

    /// The pool that has the entities of types that are bound to the pool with this name.
    pub(super) fn home(&self, name: &str) -> Result<Pool, Problem> {
        let pools = self.gateway.pools.get();
        pools.home(name).cloned().ok_or_else(|| unknown_pool(&pools, name))
    }
}

pub(super) fn unknown_pool(pools: &Pools, name: &str) -> Problem {
    let known: Vec<_> = pools.iter().map(|pool| format!("`{}`", pool.name)).collect();
    problem(
        codes::UNKNOWN_POOL,
        format!("unknown pool `{name}`; this cluster has {}", known.join(", ")),
        "`ostraca pool create` creates one; without `pool`, a type is in `default`",
    )
}

fn invalid(text: String) -> Problem {
    problem(codes::INVALID_POOL, text, "`ostraca pool list` shows the pools")
}

/// Refuses a pool beyond the limits of a cluster.
fn check_space(pools: &Pools, shards: u32) -> Result<(), Problem> {
    let (count, used) = (pools.iter().count(), pools.shard_count());
    if count >= MAX_POOLS {
        return Err(invalid(format!("a cluster has at most {MAX_POOLS} pools, and has {count}")));
    }
    if used.saturating_add(shards) > MAX_SHARDS {
        return Err(invalid(format!(
            "{shards} more shards are too many: a cluster has at most {MAX_SHARDS}, of which {used} are in use"
        )));
    }
    Ok(())
}

/// The pool that is wanted, with every default, as its row will contain it.
fn checked(wanted: proto::NewPool) -> Result<PoolEntry, Problem> {
    let proto::NewPool { name, shards, hash, role, strategy, min_hosts } = wanted;
    check_name(&name).map_err(|why| invalid(format!("the pool's name: {why}")))?;
    if name == DEFAULT_POOL {
        let text = format!("the pool `{DEFAULT_POOL}` was created with the cluster");
        return Err(invalid(text));
    }
    if !(1..=MAX_SHARDS).contains(&shards) {
        return Err(invalid(format!("{shards} shards, must be 1 to {MAX_SHARDS}")));
    }
    if min_hosts > MAX_MIN_HOSTS {
        let text = format!("`min-hosts` is {min_hosts}, must be 1 to {MAX_MIN_HOSTS}");
        return Err(invalid(text));
    }
    let role = match role.as_str() {
        "" => "",
        role => {
            parse_host_role(role).map_err(|why| invalid(format!("the role: {why}")))?.unwrap_or("")
        }
    };
    let hash = match hash.as_str() {
        "" => HashFunction::default(),
        name => HashFunction::from_name(name).map_err(|error| invalid(error.to_string()))?,
    };
    Ok(PoolEntry {
        name,
        shards,
        hash: hash.name().into(),
        role: role.into(),
        strategy,
        min_hosts: min_hosts.max(1),
        at_ms: 0,
        by: String::new(),
        extensions: Extensions::default(),
    })
}

/// Creating a pool again changes nothing; a pool never changes (R23).
fn check_same(known: &PoolEntry, wanted: &PoolEntry) -> Result<(), Problem> {
    let number = |it: u32| it.to_string();
    let differs = [
        ("shards", number(known.shards), number(wanted.shards)),
        ("hash", known.hash.clone(), wanted.hash.clone()),
        ("role", known.role.clone(), wanted.role.clone()),
        ("strategy", known.strategy.clone(), wanted.strategy.clone()),
        ("min-hosts", number(known.min_hosts), number(wanted.min_hosts)),
    ];
    let Some((what, known, wanted)) = differs.into_iter().find(|(_, a, b)| a != b) else {
        return Ok(());
    };
    Err(problem(
        codes::POOL_IMMUTABLE,
        format!("the pool exists with `{what}` = {known:?}, not {wanted:?}, which never changes"),
        "create a pool with another name",
    ))
}

fn to_wire(
    view: &ClusterView,
    pool: &Pool,
    entry: Option<&PoolEntry>,
    numbers: Vec<NumberedHost>,
) -> PoolInfo {
    let is_host = |row: &&NodeRow| row.status == NodeStatus::Live && row.hosts(pool);
    let (copied_to, filled_from) = match &pool.usage {
        PoolUse::Open => ("", ""),
        PoolUse::Filling(from) => ("", from.as_str()),
        PoolUse::Leaving(to) | PoolUse::Left(to) => (to.as_str(), ""),
    };
    let owned = (pool.first.0..=pool.last().0).filter(|it| view.owner(ShardId(*it)).is_some());
    PoolInfo {
        name: pool.name.clone(),
        first_shard: pool.first.0,
        shards: pool.shards,
        hash: pool.hash.name().into(),
        role: pool.host_role(),
        strategy: pool.strategy.map_or("", |strategy| strategy.name()).into(),
        min_hosts: pool.min_hosts,
        hosts: u32::try_from(view.nodes.values().filter(is_host).count()).unwrap_or(u32::MAX),
        shards_owned: u32::try_from(owned.count()).unwrap_or(u32::MAX),
        created_unix_ms: entry.map_or(0, |entry| entry.at_ms),
        created_by: entry.map_or_else(String::new, |entry| entry.by.clone()),
        copied_to: copied_to.into(),
        copied: pool.is_left(),
        filled_from: filled_from.into(),
        numbers,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(shards: u32, min_hosts: u32) -> proto::NewPool {
        proto::NewPool { name: "orders".into(), shards, min_hosts, ..proto::NewPool::default() }
    }

    #[test]
    fn a_pool_beyond_a_limit_is_refused_with_the_limit() {
        assert!(checked(wanted(MAX_SHARDS, MAX_MIN_HOSTS)).is_ok());
        let mut pools = Pools::one(64);
        for number in 1..MAX_POOLS {
            assert_eq!(check_space(&pools, 1), Ok(()));
            pools.add(Pool::new(&format!("p{number}"), 1, &pools)).expect("a pool");
        }
        for (refused, limit) in [
            (checked(wanted(MAX_SHARDS + 1, 1)).err(), "1 to 65536"),
            (checked(wanted(1, MAX_MIN_HOSTS + 1)).err(), "1 to 10000"),
            (check_space(&Pools::one(64), MAX_SHARDS - 63).err(), "at most 65536, of which 64"),
            (check_space(&pools, 1).err(), "at most 64 pools"),
        ] {
            let problem = refused.expect(limit);
            assert_eq!(problem.code, codes::INVALID_POOL.as_str());
            assert!(problem.message.contains(limit), "{}", problem.message);
        }
    }
}
