//! Copies the state of a pool to another one, in a stopped cluster (K4, M1, R23).
//!
//! The row `pools` says how far the copy is: its entry of the new pool names the old one and the stage. From the first
//! stage on, no manager gives the shards of either pool to anybody, and the change to the last stage is the switch: then the
//! old pool's name stands for the new pool, in bindings and in manifests of every revision.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use futures::FutureExt;
use ostraca_catalog::pool::{PoolFill, PoolsRow, path};
use ostraca_catalog::rows::{self, BindingRow, POOLS, TypeRow};
use ostraca_config::Config;
use ostraca_core::hash::ShardKeyRule;
use ostraca_core::ids::{Entity, ShardId};
use ostraca_core::pools::{Pool, PoolUse, Pools};
use ostraca_core::rows::Member;
use ostraca_store::pool_copy::{OnPoolCopy, PoolCopy, PoolCopyError, PoolCopyStage};
use ostraca_store::transfer::ItemKind;
use ostraca_store::{ClusterStore, StoreError};

use crate::blocking::block_on_own_thread;
use crate::error::NodeError;
use crate::pool_not_copied::PoolNotCopied;
use crate::repair::{self, OnWait};
use crate::stores::{StoppedStores, check_state_store, open_stopped};

/// What was copied of a type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopiedType {
    /// The type.
    pub name: String,
    /// Number of its entities.
    pub entities: u64,
    /// Number of their other records.
    pub records: u64,
    /// Size of all in bytes, roughly.
    pub bytes: u64,
}

/// A pool that was copied.
#[derive(Clone, Debug)]
pub struct CopiedPool {
    /// Where the state is, in words.
    pub place: String,
    /// The cluster's name.
    pub cluster_name: String,
    /// The role of the hosts of the new pool.
    pub role: String,
    /// What was copied now, by type; empty if an earlier call has finished the copy.
    pub types: Vec<CopiedType>,
    /// Whether the types had been switched by an earlier call.
    pub was_done: bool,
}

fn refused(why: impl Into<String>) -> NodeError {
    PoolNotCopied::Refused(why.into()).into()
}

/// Copies the state of all entities of the pool `from` into the shards of the pool `to`, compares both, lets the types of
/// the first pool be in the second one, and removes what is left in the first. All nodes must be stopped; the
/// configuration is that of the node with the store, or of any node if both the rows and the state are outside the nodes.
/// Continues an interrupted copy. Blocks, also for the time of a lease if other nodes may live, of which `on_wait` is
/// told.
///
/// # Errors
/// [`NodeError::PoolNotCopied`] says what to do; [`NodeError::NodesRun`] if nodes live; and the errors of opening a
/// store, also if a node has it open.
pub fn copy_pool(
    config: &Config,
    (from, to): (&str, &str),
    on_wait: OnWait<'_>,
    on_progress: &mut OnPoolCopy<'_>,
) -> Result<CopiedPool, NodeError> {
    block_on_own_thread(async {
        let began = Instant::now();
        let stores = open_stopped(config).await?;
        copy(&config.node, &stores, (from, to), began, on_wait, on_progress).await
    })
}

/// Copies a pool within stores that were opened after `began`.
async fn copy(
    node: &str,
    stores: &StoppedStores,
    (from, to): (&str, &str),
    began: Instant,
    on_wait: OnWait<'_>,
    on_progress: &mut OnPoolCopy<'_>,
) -> Result<CopiedPool, NodeError> {
    let Some(state) = stores.movable.clone() else {
        let why = "the state of this cluster is in several databases: this release copies pools only within one";
        return Err(refused(why));
    };
    // The rows may name further stores that the configuration lacks.
    check_state_store(&*stores.rows, &state.identity()).await?;
    let snapshot = repair::read(node, stores).await?;
    let (row, revision, pools) = read_pools(&*stores.rows).await?;
    let fill = check_pools(&row, &pools, from, to)?;
    let Some((old, new)) = pools.get(from).zip(pools.get(to)) else {
        return Err(refused("the pools changed meanwhile"));
    };
    let is_new = fill.is_none();
    let fill = fill.unwrap_or_else(|| PoolFill {
        from: from.into(),
        attempt: rand::random(),
        stage: PoolCopyStage::Marking,
    });
    let was_done = fill.stage == PoolCopyStage::Done;
    if !was_done {
        repair::wait_for_leases(node, stores, &snapshot, began, on_wait).await?;
    }
    let keys = shard_keys(&*stores.rows, &pools, from).await?;
    if is_new {
        check_rollouts(&*stores.rows, keys.keys()).await?;
    }
    let places = |entity: &Entity| {
        let key = keys.get(&*entity.entity_type)?.shard_key(&entity.id);
        Some((old.shard_of(key), new.shard_of(key)))
    };
    let of = |pool: &Pool| {
        let all = (pool.first.0..=pool.last().0).map(ShardId);
        all.map(|shard| path(&pools, shard)).collect::<Vec<_>>()
    };
    let copy = PoolCopy {
        store: &*state,
        from: of(old),
        to: of(new),
        places: &places,
        claimant: claimant(&*stores.rows).await?,
        attempt: fill.attempt,
    };
    if is_new {
        copy.check(on_progress).await.map_err(PoolNotCopied::from)?;
    }
    let log = StageLog {
        rows: stores.rows.clone(),
        to: to.into(),
        fill: fill.clone(),
        revision: Arc::new(AtomicU64::new(revision)),
    };
    if !was_done {
        log.clone().save(fill.stage).await.map_err(PoolNotCopied::from)?;
    }
    if fill.stage == PoolCopyStage::Marking {
        // Nodes that were started since do not know that both pools are closed. Any later one does.
        let checked = async {
            let (snapshot, began) = (repair::read(node, stores).await?, Instant::now());
            repair::wait_for_leases(node, stores, &snapshot, began, on_wait).await?;
            check_rollouts(&*stores.rows, keys.keys()).await?;
            copy.check(on_progress).await.map_err(PoolNotCopied::from)?;
            Ok::<(), NodeError>(())
        };
        if let Err(error) = checked.await {
            give_up(&copy, &log, is_new, &error).await;
            return Err(error);
        }
    }
    let save = |stage| log.clone().save(stage).boxed();
    let copied = copy.run(fill.stage, &save, on_progress).await.map_err(PoolNotCopied::from)?;
    let types = copied.iter().map(|(name, summary)| CopiedType {
        name: name.to_string(),
        entities: summary.of(ItemKind::Heads).count,
        records: summary.of(ItemKind::Records).count,
        bytes: summary.total().1,
    });
    Ok(CopiedPool {
        place: stores.place.clone(),
        cluster_name: stores.identity.cluster_name.clone(),
        role: new.host_role(),
        types: types.collect(),
        was_done,
    })
}

/// Removes a copy that has made no claim yet, after this error, so that both pools can be used again. If that fails, the
/// copy can be continued, as after any other error.
async fn give_up(copy: &PoolCopy<'_>, log: &StageLog, is_new: bool, error: &NodeError) {
    let is_permanent = match error {
        NodeError::PoolNotCopied(why) => {
            !matches!(why, PoolNotCopied::Copy(PoolCopyError::Store(_)))
        }
        _ => false,
    };
    // An earlier process may have made claims, or still be about to.
    let given_up = match is_new {
        true => Ok(true),
        false if is_permanent => copy.give_up().await,
        false => Ok(false),
    };
    let removed = match given_up {
        Ok(true) => log.remove().await.map(|()| true),
        other => other,
    };
    match removed {
        Ok(true) => tracing::info!("the copy was given up, and nothing has changed"),
        Ok(false) => {}
        Err(why) => tracing::warn!(error = %why, "the copy was not given up"),
    }
}

/// The row of the pools, its revision, and the pools.
async fn read_pools(store: &dyn ClusterStore) -> Result<(PoolsRow, u64, Pools), NodeError> {
    let first = rows::read::<rows::PoolRow>(store, &rows::pool_key()).await?;
    let Some((first, _)) = first else {
        return Err(refused("the rows do not say which pools there are: see `ostraca repair`"));
    };
    let Some((row, revision)) = rows::read::<PoolsRow>(store, POOLS).await? else {
        let why = "the cluster has only the pool `default`: create another one with `ostraca pool create`";
        return Err(refused(why));
    };
    let pools = row.add_to(&first.pools()?)?;
    Ok((row, revision, pools))
}

/// Checks that one pool can be copied to the other. Returns how far that is, if it has begun.
fn check_pools(
    row: &PoolsRow,
    pools: &Pools,
    from: &str,
    to: &str,
) -> Result<Option<PoolFill>, NodeError> {
    for name in [from, to] {
        if pools.get(name).is_none() {
            let known: Vec<_> = pools.iter().map(|pool| format!("`{}`", pool.name)).collect();
            let known = known.join(", ");
            return Err(PoolNotCopied::Unknown { name: name.into(), known }.into());
        }
    }
    if from == to {
        return Err(refused(
            "the pools are the same: create another one with `ostraca pool create`",
        ));
    }
    let usage = |name| pools.get(name).map(|pool| pool.usage.clone()).unwrap_or_default();
    let fill = row.pools.iter().find(|entry| entry.name == to).map(|entry| entry.fill());
    let fill = fill.transpose()?.flatten();
    match (usage(from), usage(to), fill) {
        (PoolUse::Leaving(target) | PoolUse::Left(target), _, fill) if target == to => Ok(fill),
        (PoolUse::Left(target), ..) => {
            Err(refused(format!("the pool `{from}` was copied to `{target}`: copy from there")))
        }
        (PoolUse::Leaving(target), ..) => Err(refused(format!(
            "the pool `{from}` is being copied to `{target}`: finish that first"
        ))),
        (PoolUse::Filling(source), ..) => Err(refused(format!(
            "the pool `{source}` is being copied to `{from}`: finish that first"
        ))),
        (PoolUse::Open, PoolUse::Open, None) if to != ostraca_core::pools::DEFAULT_POOL => Ok(None),
        _ => Err(refused(format!(
            "the pool `{to}` was in use before: create another one with `ostraca pool create`"
        ))),
    }
}

/// The shard keys of the types whose entities the pool has.
async fn shard_keys(
    store: &dyn ClusterStore,
    pools: &Pools,
    from: &str,
) -> Result<BTreeMap<String, ShardKeyRule>, NodeError> {
    let mut keys = BTreeMap::new();
    for stored in store.list(rows::BINDINGS).await?.0 {
        let Some(name) = rows::binding_type(&stored.key) else { continue };
        let bound: BindingRow = rows::decode(&stored)?;
        // The copy itself decides when the pool's name stands for the other one.
        let home = match pools.get(from) {
            Some(pool) if bound.pool == pool.name => Some(pool),
            _ => pools.home(&bound.pool),
        };
        if home.is_some_and(|pool| pool.name == from) {
            keys.insert(name.into_owned(), bound.shard_key);
        }
    }
    Ok(keys)
}

/// Checks that none of the types is being rolled out: a shard of the new pool may not run the revision that an entity's
/// shard in the old pool runs already (R24).
async fn check_rollouts(
    store: &dyn ClusterStore,
    names: impl Iterator<Item = &String>,
) -> Result<(), NodeError> {
    for name in names {
        let row = rows::read::<TypeRow>(store, &rows::type_key(name)).await?;
        let rollout = row.map(|(row, _)| row.rollout()).transpose();
        let damaged = |error: ostraca_core::codec::CodecError| {
            refused(format!("the row of the type `{name}` cannot be read: {error}"))
        };
        if rollout.map_err(damaged)?.flatten().is_some() {
            return Err(refused(format!(
                "the type `{name}` is being rolled out: start the nodes, and finish or abort that first"
            )));
        }
    }
    Ok(())
}

/// A node of the cluster, which has ended.
async fn claimant(store: &dyn ClusterStore) -> Result<Member, NodeError> {
    for stored in store.list("nodes/").await?.0 {
        if let Some((
            ostraca_core::rows::RowKey::Node(node),
            ostraca_core::rows::Row::Node(row),
            _,
        )) = rows::decode_row(&stored)?
        {
            return Ok(Member { node, incarnation: row.incarnation });
        }
    }
    Err(refused("no node has ever run, so there is nothing to copy"))
}

/// Saves how far the copy is in the row of the pools. Only the process that wrote the row last can write it again: another
/// one that continues the copy has overtaken it.
#[derive(Clone)]
struct StageLog {
    rows: Arc<dyn ClusterStore>,
    to: String,
    fill: PoolFill,
    /// The revision of the row as this process read it first, or wrote it last.
    revision: Arc<AtomicU64>,
}

impl StageLog {
    async fn save(self, stage: PoolCopyStage) -> Result<(), PoolCopyError> {
        self.write(Some(stage)).await
    }

    /// Removes the copy from the row.
    async fn remove(&self) -> Result<(), PoolCopyError> {
        self.write(None).await
    }

    async fn write(&self, stage: Option<PoolCopyStage>) -> Result<(), PoolCopyError> {
        let failed = |error: ostraca_catalog::Error| match error {
            ostraca_catalog::Error::Store(error) => PoolCopyError::Store(error),
            ostraca_catalog::Error::RowConflict(_) => PoolCopyError::Overtaken,
            error => StoreError::Stopped(format!("cannot save the progress: {error}")).into(),
        };
        let found = rows::read::<PoolsRow>(&*self.rows, POOLS).await.map_err(failed)?;
        let gone = || StoreError::Corrupt(format!("the row `{POOLS}` has no pool `{}`", self.to));
        let (mut row, revision) = found.ok_or_else(gone)?;
        if revision != self.revision.load(Ordering::Relaxed) {
            return Err(PoolCopyError::Overtaken);
        }
        let entry = row.pools.iter_mut().find(|entry| entry.name == self.to).ok_or_else(gone)?;
        match stage {
            Some(stage) => entry.set_fill(&PoolFill { stage, ..self.fill.clone() }),
            None => entry.remove_fill(),
        }
        .map_err(failed)?;
        let written = rows::write(&*self.rows, POOLS, Some(revision), &row).await;
        self.revision.store(written.map_err(failed)?, Ordering::Relaxed);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
