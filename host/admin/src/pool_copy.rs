//! Copies the state of a pool to another one while the cluster runs, with only the types of the pool stopped (K4, M1, R23).
//!
//! The row `pools` says how far the copy is: its entry of the new pool names the old one and the stage. From the first
//! stage on, nobody may own the shards of either pool, so their owners give them up; then the state is copied. The change
//! to the last stage is the switch: from it on, the old pool's name stands for the new pool, in bindings and in manifests
//! of every revision.
//!
//! The claims of a copy fence every owner, so that a node with an old view of the cluster commits nothing. What it could
//! do is answer queries from memory. So the copy waits twice until the rows name no live owner: before its first claim,
//! and before the switch, since no shard can be claimed in between.

mod failure;
mod owners;
mod stage_log;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use ostraca_catalog::pool::{PoolFill, PoolsRow, path};
use ostraca_catalog::rows::{self, BindingRow, POOLS, StoresRow, TypeRow};
use ostraca_codes::codes;
use ostraca_core::hash::ShardKeyRule;
use ostraca_core::ids::{Entity, ShardId};
use ostraca_core::pools::{DEFAULT_POOL, Pool, PoolUse, Pools};
use ostraca_core::rows::{Member, Row, RowKey};
use ostraca_store::pool_copy::{
    OnPoolCopy, Places, PoolCopy, PoolCopyProgress, PoolCopyStage, PoolCopyStep, PoolSummary,
};
use ostraca_store::transfer::ItemKind;
use ostraca_store::{ClusterStore, MovableShards};
use ostraca_wire::outcome::permanent_problem as problem;
use ostraca_wire::proto::{self, Problem};
use ostraca_wire::server::{AdminOutput, AdminUpdate, update_channel};

use super::AdminService;
use failure::CopyFailure;
use owners::Owners;
use stage_log::StageLog;

/// How long a copy waits for the owners of the pools' shards to give them up, unless the request says otherwise.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(300);

impl AdminService {
    /// Starts a copy of a pool, or continues one. It goes on if the client goes away.
    pub(super) fn copy_pool(
        &self,
        request: proto::PoolCopyRequest,
    ) -> Result<AdminOutput, Problem> {
        let state = self.movable.get().cloned().ok_or_else(|| self.state_is_elsewhere())?;
        let turn = self.pool_copy_turn.clone().try_lock_owned().map_err(|_| {
            let text = "this node is copying a pool already";
            let help =
                "wait until `ostraca pool list` shows that it is done, then repeat the command";
            problem(codes::POOL_NOT_COPIED, text, help)
        })?;
        let copying = Copying {
            rows: self.deployer.cluster_store.clone(),
            state,
            release_timeout: match request.release_timeout_ms {
                0 => RELEASE_TIMEOUT,
                millis => Duration::from_millis(millis),
            },
        };
        let (updates, answer) = update_channel();
        tokio::spawn(async move {
            let (from, to) = (request.from, request.to);
            // Progress for which a slow client has no room is left out.
            let mut on_progress =
                |now| drop(updates.try_send(Ok(AdminUpdate::PoolCopy(progress(now)))));
            let copied = copying.run((&from, &to), &mut on_progress).await;
            if let Err(error) = &copied {
                tracing::warn!(from, to, error = error.message, "a pool was not copied");
            }
            let end = |end| {
                let end = Some(end);
                AdminUpdate::PoolCopy(proto::PoolCopyProgress { end, ..Default::default() })
            };
            drop(turn);
            // The client may have gone.
            let _ = updates.send(copied.map(end)).await;
        });
        Ok(answer)
    }

    fn state_is_elsewhere(&self) -> Problem {
        if self.ranges.get().is_some() {
            let text = "this node's configuration names several databases (`postgres.databases`)";
            let help = "this release copies pools only within one: ask a node whose configuration names one, which is \
                        possible until state is moved to another";
            return problem(codes::POOL_NOT_COPIED, text, help);
        }
        self.no_store()
    }
}

fn progress(now: PoolCopyProgress) -> proto::PoolCopyProgress {
    let PoolCopyProgress { step, shards, all_shards, items, bytes } = now;
    let step = match step {
        PoolCopyStep::Checking => proto::PoolCopyStep::Checking,
        PoolCopyStep::Releasing => proto::PoolCopyStep::Releasing,
        PoolCopyStep::Marking => proto::PoolCopyStep::Marking,
        PoolCopyStep::Copying => proto::PoolCopyStep::Copying,
        PoolCopyStep::ReadingOld => proto::PoolCopyStep::ReadingOld,
        PoolCopyStep::ReadingNew => proto::PoolCopyStep::ReadingNew,
        PoolCopyStep::Finishing => proto::PoolCopyStep::Finishing,
        PoolCopyStep::Removing => proto::PoolCopyStep::Removing,
    };
    proto::PoolCopyProgress { step: step.into(), shards, all_shards, items, bytes, end: None }
}

/// The stores of a cluster in which a pool is copied.
struct Copying {
    rows: Arc<dyn ClusterStore>,
    state: Arc<dyn MovableShards>,
    /// How long the owners of shards have to give them up.
    release_timeout: Duration,
}

impl Copying {
    /// Copies the state of all entities of the pool `from` into the shards of the pool `to`, compares both, lets the types
    /// of the first pool be in the second one, and removes what is left in the first. Continues an interrupted copy.
    async fn run(
        &self,
        names: (&str, &str),
        on_progress: &mut OnPoolCopy<'_>,
    ) -> Result<proto::PoolCopyEnd, Problem> {
        let failed = match self.copy(names, on_progress).await {
            Ok(end) => return Ok(end),
            Err(error) => error.into_problem(),
        };
        // Whether the copy was given up, or has begun at all, may not be known from the error.
        let Ok(found) = Found::read(&*self.rows, names).await else { return Err(failed) };
        let now = match found.old.usage {
            PoolUse::Leaving(_) => {
                "both pools stay closed until the command is repeated and the copy is done"
            }
            PoolUse::Left(_) => {
                "the types are in the new pool: repeat the command to remove what is left in the old one"
            }
            PoolUse::Open | PoolUse::Filling(_) => "nothing has changed",
        };
        Err(Problem { message: format!("{}; {now}", failed.message), ..failed })
    }

    async fn copy(
        &self,
        names: (&str, &str),
        on_progress: &mut OnPoolCopy<'_>,
    ) -> Result<proto::PoolCopyEnd, CopyFailure> {
        self.check_stores().await?;
        let runner = rand::random();
        self.begin(names, runner, on_progress).await?;
        self.proceed(names, runner, on_progress).await
    }

    /// Closes the pools, if they can be copied and no copy of them has begun.
    async fn begin(
        &self,
        names: (&str, &str),
        runner: u64,
        on_progress: &mut OnPoolCopy<'_>,
    ) -> Result<(), CopyFailure> {
        let found = Found::read(&*self.rows, names).await?;
        if found.fill.is_some() {
            return Ok(());
        }
        let (from, attempt) = (names.0.to_owned(), rand::random());
        check_rollouts(&*self.rows, found.keys.keys()).await?;
        let places = |entity: &Entity| found.place(entity);
        found.copy(&*self.state, &places, attempt).check(on_progress).await?;
        let fill = PoolFill { from, attempt, runner, stage: PoolCopyStage::Marking };
        let log = StageLog::new(self.rows.clone(), names.1, runner);
        Ok(log.begin(&fill, found.revision).await?)
    }

    /// Copies pools that are closed.
    async fn proceed(
        &self,
        names: (&str, &str),
        runner: u64,
        on_progress: &mut OnPoolCopy<'_>,
    ) -> Result<proto::PoolCopyEnd, CopyFailure> {
        // Types may have been deployed until the pools were closed.
        let found = Found::read(&*self.rows, names).await?;
        let Some(fill) = found.fill.clone() else {
            return Err(CopyFailure::refused("another process has given the copy up meanwhile"));
        };
        let was_done = fill.stage == PoolCopyStage::Done;
        // Otherwise, another process has run the copy, and may be making its claims.
        let is_new = fill.runner == runner;
        let places = |entity: &Entity| found.place(entity);
        let copy = found.copy(&*self.state, &places, fill.attempt);
        let log = StageLog::new(self.rows.clone(), names.1, runner);
        if !was_done {
            log.take_over(&fill).await?;
        }
        let owners = || Owners::new(self.rows.clone(), [found.old.clone(), found.new.clone()]);
        if fill.stage == PoolCopyStage::Marking {
            // Until the nodes knew that both pools are closed, anything could change.
            let checked = async {
                owners().released(self.release_timeout, on_progress).await?;
                check_rollouts(&*self.rows, found.keys.keys()).await?;
                copy.check(on_progress).await?;
                Ok(())
            };
            if let Err(error) = checked.await {
                give_up(&copy, &log, is_new, &error).await;
                return Err(error);
            }
        }
        let save = |stage| {
            let (log, owners, limit) = (log.clone(), owners(), self.release_timeout);
            async move {
                if stage == PoolCopyStage::Done {
                    let released = owners.released(limit, &mut |_| ()).await;
                    released.map_err(CopyFailure::into_copy_error)?;
                }
                log.save(stage).await
            }
            .boxed()
        };
        let copied = copy.run(fill.stage, &save, on_progress).await?;
        Ok(proto::PoolCopyEnd { types: types(&copied), role: found.new.host_role(), was_done })
    }

    /// Checks that the rows name no other store with state (R5).
    async fn check_stores(&self) -> Result<(), CopyFailure> {
        let row = rows::read::<StoresRow>(&*self.rows, &rows::stores_key()).await?;
        let map = row.map(|(row, _)| row.map()).transpose()?;
        let own = self.state.identity().store_id;
        if map.is_some_and(|map| map.stores().any(|store| store != own)) {
            return Err(CopyFailure::refused(
                "the state of this cluster is in several databases: this release copies pools only within one",
            ));
        }
        Ok(())
    }
}

fn types(copied: &PoolSummary) -> Vec<proto::CopiedType> {
    let of_type = copied.iter().map(|(name, summary)| proto::CopiedType {
        r#type: name.to_string(),
        entities: summary.of(ItemKind::Heads).count,
        records: summary.of(ItemKind::Records).count,
        bytes: summary.total().1,
    });
    of_type.collect()
}

/// Gives up a copy that has made no claim yet, after this error, so that both pools can be used again. If that fails, the
/// copy can be continued, as after any other error.
async fn give_up(copy: &PoolCopy<'_>, log: &StageLog, is_new: bool, error: &CopyFailure) {
    // An earlier process may have made claims, or still be about to.
    let given_up = match is_new {
        true => Ok(true),
        false if error.is_permanent() => copy.give_up().await,
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

/// What the rows say about a copy.
struct Found {
    pools: Pools,
    /// The revision of the row of the pools.
    revision: u64,
    old: Pool,
    new: Pool,
    /// How far the copy is, if it has begun.
    fill: Option<PoolFill>,
    /// The shard keys of the types whose entities the old pool has.
    keys: BTreeMap<String, ShardKeyRule>,
    claimant: Member,
}

impl Found {
    /// Reads the rows, and checks that one pool can be copied to the other.
    async fn read(store: &dyn ClusterStore, (from, to): (&str, &str)) -> Result<Self, CopyFailure> {
        let (row, revision, pools) = read_pools(store).await?;
        let fill = check_pools(&row, &pools, from, to)?;
        let Some((old, new)) = pools.get(from).cloned().zip(pools.get(to).cloned()) else {
            return Err(CopyFailure::refused("the pools changed meanwhile"));
        };
        let keys = shard_keys(store, &pools, from).await?;
        let claimant = claimant(store).await?;
        Ok(Self { pools, revision, old, new, fill, keys, claimant })
    }

    /// The shard of an entity in the old pool and in the new one.
    fn place(&self, entity: &Entity) -> Option<(ShardId, ShardId)> {
        let key = self.keys.get(&*entity.entity_type)?.shard_key(&entity.id);
        Some((self.old.shard_of(key), self.new.shard_of(key)))
    }

    fn copy<'a>(
        &'a self,
        store: &'a dyn MovableShards,
        places: &'a Places<'a>,
        attempt: u64,
    ) -> PoolCopy<'a> {
        let of = |pool: &Pool| {
            let all = (pool.first.0..=pool.last().0).map(ShardId);
            all.map(|shard| path(&self.pools, shard)).collect()
        };
        let (from, to) = (of(&self.old), of(&self.new));
        PoolCopy { store, from, to, places, claimant: self.claimant.clone(), attempt }
    }
}

/// The row of the pools, its revision, and the pools.
async fn read_pools(store: &dyn ClusterStore) -> Result<(PoolsRow, u64, Pools), CopyFailure> {
    let first = rows::read::<rows::PoolRow>(store, &rows::pool_key()).await?;
    let Some((first, _)) = first else {
        return Err(CopyFailure::refused(
            "the rows do not say which pools there are: see `ostraca repair`",
        ));
    };
    let Some((row, revision)) = rows::read::<PoolsRow>(store, POOLS).await? else {
        return Err(CopyFailure::refused(
            "the cluster has only the pool `default`: create another one with `ostraca pool create`",
        ));
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
) -> Result<Option<PoolFill>, CopyFailure> {
    let refused = |why: String| Err(CopyFailure::refused(why));
    for name in [from, to] {
        if pools.get(name).is_none() {
            return Err(CopyFailure::Refused(Box::new(super::pools::unknown_pool(pools, name))));
        }
    }
    if from == to {
        return refused(
            "the pools are the same: create another one with `ostraca pool create`".into(),
        );
    }
    let usage = |name| pools.get(name).map(|pool| pool.usage.clone()).unwrap_or_default();
    let fill = row.pools.iter().find(|entry| entry.name == to).map(|entry| entry.fill());
    let fill = fill.transpose()?.flatten();
    match (usage(from), usage(to), fill) {
        (PoolUse::Leaving(target) | PoolUse::Left(target), _, fill) if target == to => Ok(fill),
        (PoolUse::Left(target), ..) => {
            refused(format!("the pool `{from}` was copied to `{target}`: copy from there"))
        }
        (PoolUse::Leaving(target), ..) => {
            refused(format!("the pool `{from}` is being copied to `{target}`: finish that first"))
        }
        (PoolUse::Filling(source), ..) => {
            refused(format!("the pool `{source}` is being copied to `{from}`: finish that first"))
        }
        (PoolUse::Open, PoolUse::Open, None) if to != DEFAULT_POOL => Ok(None),
        _ => refused(format!(
            "the pool `{to}` was in use before: create another one with `ostraca pool create`"
        )),
    }
}

/// The shard keys of the types whose entities the pool has.
async fn shard_keys(
    store: &dyn ClusterStore,
    pools: &Pools,
    from: &str,
) -> Result<BTreeMap<String, ShardKeyRule>, CopyFailure> {
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
) -> Result<(), CopyFailure> {
    for name in names {
        let row = rows::read::<TypeRow>(store, &rows::type_key(name)).await?;
        let rollout = row.map(|(row, _)| row.rollout()).transpose();
        let damaged = |error: ostraca_core::codec::CodecError| {
            CopyFailure::refused(format!("the row of the type `{name}` cannot be read: {error}"))
        };
        if rollout.map_err(damaged)?.flatten().is_some() {
            return Err(CopyFailure::refused(format!(
                "the type `{name}` is being rolled out: finish or abort that first"
            )));
        }
    }
    Ok(())
}

/// A node of the cluster, in whose name shards are claimed that nobody has claimed yet.
async fn claimant(store: &dyn ClusterStore) -> Result<Member, CopyFailure> {
    for stored in store.list("nodes/").await?.0 {
        if let Some((RowKey::Node(node), Row::Node(row), _)) = rows::decode_row(&stored)? {
            return Ok(Member { node, incarnation: row.incarnation });
        }
    }
    Err(CopyFailure::refused("no node has ever run, so there is nothing to copy"))
}
