//! Finds contradictions in the rows of a cluster and fixes them, or resets its sharding (K36).
//!
//! `snapshot` decodes what the store has. `nodes`, `chunks`, `manager`, `numbers`, `catalog` and `types` check it,
//! without I/O: each adds what it finds to `contradiction::Findings`, with one change for each row that can be fixed.
//! `reset` plans a reset in the same way. Here is the I/O: the rows, the claims and a sample of the entities are read, and
//! the changes are written by compare-and-set.
//!
//! No record of an entity and no claim is ever written. Claims say which epochs shards have reached (R5), so a repair
//! can trust them, and a mistake in a row costs time, but no promise: an owner with a wrong epoch gets no claim.

mod catalog;
mod chunks;
mod contradiction;
mod manager;
mod nodes;
mod numbers;
mod reset;
mod snapshot;
#[cfg(test)]
mod tests;
mod types;
mod watch;

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use ostraca_catalog::pool::{NAMESPACE, path};
use ostraca_catalog::rows::{self, TypeRow};
use ostraca_config::config::{Config, MAX_SHARDS};
use ostraca_control::cache::RouteCache;
use ostraca_core::ids::{NodeId, ShardId, ShardPath};
use ostraca_core::pools::{DEFAULT_POOL, Pools};
use ostraca_store::{
    CompareAndSetError, EntityStore, Scan, ScanKind, ScannedRecord, StoreError, StoredRow,
};

use crate::blocking::block_on_own_thread;
use crate::error::NodeError;
use crate::stores::{StoppedStores, open_stopped};
use contradiction::Findings;
use snapshot::{Snapshot, StateFacts};

pub use contradiction::{Contradiction, ContradictionKind, Remedy};

/// How many claims are read at a time.
const CLAIMS: usize = 1_000;
/// How many entities of a shard are checked: one is enough to see that its pool or its type's binding is wrong.
const SAMPLE: usize = 20;
/// How often rows are checked again after their contradictions were fixed.
const ROUNDS: usize = 3;

/// Is told for how long a repair or a reset is about to wait until the leases of other nodes have lapsed.
pub type OnWait<'a> = &'a (dyn Fn(Duration) + Sync);

/// What a check or a repair has found.
#[derive(Clone, Debug)]
pub struct RepairReport {
    /// Where the rows are, in words.
    pub place: String,
    /// The cluster's name.
    pub cluster_name: String,
    /// All that was found.
    pub found: Vec<Contradiction>,
    /// Contradictions that remain, except harmless ones.
    pub remaining: Vec<Contradiction>,
    /// How many rows were written or removed.
    pub changed_rows: usize,
}

/// What a reset has removed, or would remove.
#[derive(Clone, Debug)]
pub struct ResetReport {
    /// Where the rows are, in words.
    pub place: String,
    /// The cluster's name.
    pub cluster_name: String,
    /// The nodes whose leases end.
    pub nodes: Vec<String>,
    /// How many shards had owners.
    pub owned_shards: usize,
    /// How many shards were being handed off.
    pub hand_offs: usize,
    /// How many rows are written or removed.
    pub rows: usize,
    /// Whether the node had a cache of routes.
    pub had_cache: bool,
}

/// Checks the rows of a cluster for contradictions, and fixes them with `apply`. The configuration is that of the node
/// with the store, or of any node if both the rows and the state are outside the nodes. Without `apply`, no row is
/// written, and nodes without a store of their own may run. Blocks; with `apply`, for the time of a lease if other
/// nodes may live, of which `on_wait` is told.
///
/// # Errors
/// [`NodeError::NodesRun`] or [`NodeError::RowsChanged`] if nodes live; [`NodeError::Catalog`] if a newer release wrote
/// a row or the store fails; and the errors of opening a store, also if a node has it open.
pub fn repair_rows(
    config: &Config,
    apply: bool,
    on_wait: OnWait<'_>,
) -> Result<RepairReport, NodeError> {
    block_on_own_thread(async {
        let began = Instant::now();
        repair(&config.node, open_stopped(config).await?, apply, began, on_wait).await
    })
}

/// Repairs stores that were opened after `began`. `node` is the one whose configuration names them.
async fn repair(
    node: &str,
    stores: StoppedStores,
    apply: bool,
    began: Instant,
    on_wait: OnWait<'_>,
) -> Result<RepairReport, NodeError> {
    let mut snapshot = read(node, &stores).await?;
    let findings = check(&snapshot)?;
    let (found, mut now, mut changed_rows) = (findings.found.clone(), findings, 0);
    if apply && !now.changes.is_empty() {
        wait_for_leases(node, &stores, &snapshot, began, on_wait).await?;
        for _ in 0..ROUNDS {
            changed_rows += write(&stores, &now).await?;
            snapshot = read(node, &stores).await?;
            now = check(&snapshot)?;
            if now.changes.is_empty() {
                break;
            }
        }
    }
    let does_harm = |it: &Contradiction| !matches!(it.remedy, Remedy::Ignore(_));
    Ok(RepairReport {
        place: stores.place,
        cluster_name: stores.identity.cluster_name,
        found,
        remaining: now.found.into_iter().filter(does_harm).collect(),
        changed_rows,
    })
}

/// Removes leases, owners, hand-offs and the numbers of hosts from the rows of a cluster, and the node's cache of
/// routes; without `apply`, says what it would remove. The numbers of epochs, terms and incarnations are kept. Entities,
/// types, pools and the policy are not touched. Blocks as [`repair_rows`] does.
///
/// # Errors
/// As for [`repair_rows`]; also [`NodeError::Catalog`] if the rows do not say which pools there are, or which
/// one a type has.
pub fn reset_sharding(
    config: &Config,
    apply: bool,
    on_wait: OnWait<'_>,
) -> Result<ResetReport, NodeError> {
    block_on_own_thread(async {
        let began = Instant::now();
        let stores = open_stopped(config).await?;
        let snapshot = read(&config.node, &stores).await?;
        let Some(pools) = &snapshot.pools else {
            let why = "the rows do not say which pools there are: see `ostraca repair`";
            return Err(ostraca_catalog::Error::InvalidRow(why.into()).into());
        };
        let (plan, removed) = reset::plan(&snapshot, pools)?;
        let cache = RouteCache::dir(&config.data);
        let had_cache = cache.exists();
        if apply {
            wait_for_leases(&config.node, &stores, &snapshot, began, on_wait).await?;
            write(&stores, &plan).await?;
            remove_cache(&cache)?;
        }
        Ok(ResetReport {
            place: stores.place,
            cluster_name: stores.identity.cluster_name,
            nodes: removed.nodes,
            owned_shards: removed.owned_shards,
            hand_offs: removed.hand_offs,
            rows: removed.rows,
            had_cache,
        })
    })
}

/// Checks rows, without I/O.
fn check(snapshot: &Snapshot) -> Result<Findings, ostraca_catalog::Error> {
    let mut findings = Findings::default();
    catalog::check(snapshot, &mut findings)?;
    let pools_are_complete = types::check(snapshot, &mut findings)?;
    let nodes = nodes::check(snapshot, &mut findings)?;
    if let Some(pools) = &snapshot.pools {
        chunks::check(snapshot, pools, pools_are_complete, &mut findings)?;
    }
    manager::check(snapshot, &nodes, &mut findings)?;
    numbers::check(snapshot, &nodes, &mut findings);
    Ok(findings)
}

/// Reads rows and claims. Claims come first: those of a cluster that runs follow its rows, so no epoch that is read here
/// is above that of a row that is read after it.
async fn read(node: &str, stores: &StoppedStores) -> Result<Snapshot, NodeError> {
    let (first, _) = stores.rows.list("").await?;
    if let Some(cluster) = snapshot::cluster_row(&first)? {
        cluster.adopt_format()?;
    }
    let mut facts = StateFacts {
        node: node.into(),
        embedded: stores.is_embedded.then_some(stores.identity.store_id),
        state_stores: stores.state_stores.clone(),
        ..StateFacts::default()
    };
    if let Some(pools) = snapshot::pools_of(&first)? {
        read_state(&*stores.state, &pools, &mut facts).await?;
    }
    let (stored, _) = stores.rows.list("").await?;
    facts.without_component = types_without_component(&*stores.state, &stored).await?;
    Ok(Snapshot::new(stored, facts)?)
}

/// Reads the claims, and a sample of the entities.
async fn read_state(
    state: &dyn EntityStore,
    pools: &Pools,
    facts: &mut StateFacts,
) -> Result<(), NodeError> {
    let shards: Vec<_> = (1..=pools.shard_count()).map(ShardId).collect();
    for some in shards.chunks(CLAIMS) {
        let paths = some.iter().map(|shard| path(pools, *shard)).collect();
        let claims = state.current_claims(paths).await?;
        let found = some.iter().zip(claims).filter_map(|(shard, claim)| Some((*shard, claim?)));
        facts.claims.extend(found);
    }
    // If the pool `default` had more shards once, they are still claimed.
    let last = pools.iter().next().map_or(0, |pool| pool.last().0);
    let beyond: Vec<_> = (last + 1..=MAX_SHARDS).map(ShardId).collect();
    for some in beyond.chunks(CLAIMS) {
        let in_default = |shard: &ShardId| ShardPath {
            namespace: NAMESPACE.into(),
            pool: DEFAULT_POOL.into(),
            shard: *shard,
        };
        let claims = state.current_claims(some.iter().map(in_default).collect()).await?;
        let found = some.iter().zip(claims).filter(|(_, claim)| claim.is_some());
        facts.unknown_shards.extend(found.map(|(shard, _)| *shard));
    }
    for shard in facts.claims.keys().copied().collect::<Vec<_>>() {
        let scan = Scan {
            shard: path(pools, shard),
            kind: ScanKind::Heads,
            after: None,
            max_records: SAMPLE,
            max_bytes: 1 << 20,
        };
        for record in state.scan(scan).await?.records {
            if let ScannedRecord::Head(entity, head) = record
                && !head.deleted
            {
                facts.entities.push((shard, entity));
            }
        }
    }
    Ok(())
}

/// The types whose component is missing or damaged.
async fn types_without_component(
    state: &dyn EntityStore,
    stored: &[StoredRow],
) -> Result<BTreeSet<String>, NodeError> {
    let mut without = BTreeSet::new();
    for row in stored {
        let Some(name) = rows::type_name(&row.key) else { continue };
        // The check reports a row that does not decode.
        let Ok(decoded) = rows::decode::<TypeRow>(row) else { continue };
        match state.get_blob(decoded.component_digest).await {
            Ok(Some(_)) => {}
            Ok(None) | Err(StoreError::Corrupt(_)) => drop(without.insert(name.into_owned())),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(without)
}

/// Waits until the leases of all nodes that may live have lapsed. The stores were opened at `began`.
async fn wait_for_leases(
    node: &str,
    stores: &StoppedStores,
    snapshot: &Snapshot,
    began: Instant,
    on_wait: OnWait<'_>,
) -> Result<(), NodeError> {
    // The lock of the store's directory proves that its node has stopped, and that nobody renews a lease.
    let stopped = stores.is_embedded.then(|| NodeId::from(node));
    let began = if stores.is_embedded { began } else { Instant::now() };
    if let Some(wait) = watch::time_to_watch(snapshot, stopped.as_ref()) {
        tracing::info!(?wait, "waiting until the leases of other nodes have lapsed");
        let rest = wait.saturating_sub(began.elapsed());
        if !rest.is_zero() {
            on_wait(rest);
        }
        watch::watch_nodes(&*stores.rows, began, wait).await?;
    }
    Ok(())
}

/// Writes the changes. Returns how many there are.
///
/// # Errors
/// [`NodeError::RowsChanged`] says how many were written before a row had another revision.
async fn write(stores: &StoppedStores, findings: &Findings) -> Result<usize, NodeError> {
    let planned = findings.changes.len();
    for (written, change) in findings.changes.values().enumerate() {
        stores.rows.compare_and_set(change.clone()).await.map_err(|error| match error {
            CompareAndSetError::RevisionMismatch(_) => {
                NodeError::RowsChanged { key: change.key.clone(), written, planned }
            }
            CompareAndSetError::Store(error) => error.into(),
        })?;
    }
    Ok(planned)
}

fn remove_cache(dir: &Path) -> Result<(), NodeError> {
    match std::fs::remove_dir_all(dir) {
        Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
            Err(NodeError::File { action: "remove", path: dir.into(), source })
        }
        _ => Ok(()),
    }
}
