//! Moves a range of shards to another database: writes the map, and says how far the move is (R26).
//!
//! A request takes at most about two seconds and can be repeated, so a client that goes away leaves nothing undone that
//! the next request does not do.

use std::time::Duration;

use ostraca_catalog::pool;
use ostraca_catalog::rows::{self, StoresRow};
use ostraca_codes::codes;
use ostraca_core::ids::{ShardId, ShardPath};
use ostraca_core::pools::{Pool, PoolUse, Pools};
use ostraca_core::rows::NodeRow;
use ostraca_store_ranges::{RangeMove, RangedStore, ShardMap};
use ostraca_wire::outcome::permanent_problem as problem;
use ostraca_wire::proto::{MoveShardsProgress, MoveShardsRequest, NodeIssue, Problem, ShardRange};
use ostraca_wire::server::AdminOutput;

use super::{AdminService, store_failed};

/// How long a request may remove what moved shards have left behind.
const LIMIT: Duration = Duration::from_secs(2);
/// Maximum attempts when the row changes concurrently.
const ATTEMPTS: usize = 8;

impl AdminService {
    pub(super) async fn move_shards(
        &self,
        request: MoveShardsRequest,
    ) -> Result<AdminOutput, Problem> {
        let Some(stores) = self.ranges.get() else {
            let text = "this node knows one store of the state only";
            let help = "name the other databases under `postgres.databases` in the configuration of every node, and \
                        restart them";
            return Err(problem(codes::UNKNOWN_STORE, text, help));
        };
        let wanted = match request.wanted {
            Some(wanted) => Some(self.checked(stores, &wanted)?),
            None => None,
        };
        for _ in 0..ATTEMPTS {
            let (row, revision) = self.stores_row().await?;
            let map = row.map().map_err(invalid)?;
            let next = match (map.moving, wanted) {
                (None, None) => return Ok(ended(&map)),
                (None, Some(wanted)) if is_done(&map, wanted) => return Ok(ended(&map)),
                (None, Some(wanted)) => {
                    self.check_hosts(wanted.to).await?;
                    ShardMap { version: map.version + 1, moving: Some(wanted), ..map }
                }
                (Some(running), Some(wanted)) if running != wanted => {
                    return Err(running_problem(running));
                }
                (Some(running), _) => {
                    let pools = self.gateway.pools.get();
                    let path = |shard| owned_path(&pools, shard);
                    let progress = stores.advance_move(&map, path, LIMIT).await;
                    let progress = progress.map_err(|error| store_failed(&error))?;
                    if !progress.is_complete() {
                        return Ok(AdminOutput::MoveShards(MoveShardsProgress {
                            running: Some(range(running)),
                            shards: progress.shards,
                            moved: progress.moved,
                            ranges: ranges(&map),
                        }));
                    }
                    ShardMap { ranges: map.ranges_after(), moving: None, ..map }
                }
            };
            let row = row.with_map(&next).map_err(invalid)?;
            let store = &*self.deployer.cluster_store;
            match rows::write(store, &rows::stores_key(), Some(revision), &row).await {
                Ok(_) => stores.set_map(next),
                Err(ostraca_catalog::Error::RowConflict(_)) => {}
                Err(error) => return Err(invalid(error)),
            }
        }
        Err(invalid(ostraca_catalog::Error::RowConflict(rows::stores_key())))
    }

    fn checked(&self, stores: &RangedStore, wanted: &ShardRange) -> Result<RangeMove, Problem> {
        let ShardRange { first, last, store_id } = wanted;
        let (first, last) = (*first, *last);
        if first == 0 || first > last || last > self.shard_count() {
            let text =
                format!("shards {first} to {last} are not a range of 1 to {}", self.shard_count());
            return Err(problem(codes::INVALID_REQUEST, text, "`ostraca shards` lists them"));
        }
        check_pools(&self.gateway.pools.get(), first, last)?;
        let id = <[u8; 16]>::try_from(&store_id[..]).map(u128::from_be_bytes);
        match id {
            Ok(to) if stores.knows(to) => Ok(RangeMove { first, last, to }),
            _ => {
                let id = id.map_or_else(|_| "that id".into(), |id| format!("the id {id:032x}"));
                let known: Vec<_> = stores.ids().map(|id| format!("{id:032x}")).collect();
                let help = format!("this node knows {}", known.join(" and "));
                Err(problem(codes::UNKNOWN_STORE, format!("no store has {id}"), &help))
            }
        }
    }

    /// Refuses a move to a store that a live host cannot use. That host would keep its shards where they are, and so the
    /// move would not end. A node that starts later does not start without the store.
    async fn check_hosts(&self, to: u128) -> Result<(), Problem> {
        let is_host = |row: &NodeRow| row.is_host() && !row.is_draining_or_leaving();
        for answer in self.figures_of(is_host).await {
            let figures = answer.map_err(|NodeIssue { node, reason }| {
                let text =
                    format!("the node `{node}` does not say which stores it can use: {reason}");
                problem(codes::NODE_UNREACHABLE, text, "repeat the command when it responds")
            })?;
            if !figures.stores.iter().any(|id| **id == to.to_be_bytes()) {
                let node = figures.node;
                let text = format!("the node `{node}` cannot use the store {to:032x}");
                let help = "add its database to `postgres.databases` in that node's configuration, and restart it";
                return Err(problem(codes::UNKNOWN_STORE, text, help));
            }
        }
        Ok(())
    }

    async fn stores_row(&self) -> Result<(StoresRow, u64), Problem> {
        let store = &*self.deployer.cluster_store;
        let found = rows::read::<StoresRow>(store, &rows::stores_key()).await.map_err(invalid)?;
        found.ok_or_else(|| {
            let text = format!("the cluster has no row `{}`", rows::stores_key());
            problem(codes::INVALID_ROW, text, "")
        })
    }
}

fn invalid(error: ostraca_catalog::Error) -> Problem {
    match error {
        ostraca_catalog::Error::Store(error) => store_failed(&error),
        error => problem(error.code(), error.to_string(), ""),
    }
}

/// The path of a shard that a node owns or may own. A pool whose entities are all in another one is never used again.
fn owned_path(pools: &Pools, shard: ShardId) -> Option<ShardPath> {
    (!pools.of(shard).is_some_and(Pool::is_left)).then(|| pool::path(pools, shard))
}

/// Refuses a range with shards of a pool that is being copied: nobody may own them, so they would not move, and the copy
/// could not go on with its state in several databases.
fn check_pools(pools: &Pools, first: u32, last: u32) -> Result<(), Problem> {
    for pool in pools.iter().filter(|pool| pool.first.0 <= last && first <= pool.last().0) {
        let (from, to) = match &pool.usage {
            PoolUse::Leaving(to) => (&pool.name, to),
            PoolUse::Filling(from) => (from, &pool.name),
            PoolUse::Open | PoolUse::Left(_) => continue,
        };
        let text = format!("the pool `{from}` is being copied to `{to}`");
        let help = format!("finish that first: `ostraca pool copy {from} {to}`");
        return Err(problem(codes::POOL_NOT_COPIED, text, &help));
    }
    Ok(())
}

/// Whether all shards of a range are where they are to go.
fn is_done(map: &ShardMap, wanted: RangeMove) -> bool {
    let moved = ShardMap { moving: Some(wanted), ..map.clone() };
    moved.ranges_after() == map.ranges
}

fn range(moving: RangeMove) -> ShardRange {
    let store_id = moving.to.to_be_bytes().to_vec().into();
    ShardRange { first: moving.first, last: moving.last, store_id }
}

/// The ranges of the map, each up to the next one.
fn ranges(map: &ShardMap) -> Vec<ShardRange> {
    let ends = map.ranges.iter().skip(1).map(|(first, _)| first.saturating_sub(1));
    let ends = ends.chain([u32::MAX]);
    let all = map
        .ranges
        .iter()
        .zip(ends)
        .map(|(&(first, to), last)| range(RangeMove { first, last, to }));
    all.collect()
}

fn ended(map: &ShardMap) -> AdminOutput {
    let ranges = ranges(map);
    AdminOutput::MoveShards(MoveShardsProgress { running: None, shards: 0, moved: 0, ranges })
}

fn running_problem(running: RangeMove) -> Problem {
    let RangeMove { first, last, to } = running;
    let text = format!("shards {first} to {last} are still being moved to store {to:032x}");
    problem(
        codes::MOVE_IN_PROGRESS,
        text,
        "`ostraca store move` without a range shows and ends that move",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r26_shards_of_copied_pools_are_not_moved() {
        let mut pools = Pools::one(2);
        pools.add(Pool::new("new", 3, &pools)).expect("a pool");
        let owned = |pools: &Pools| {
            let shards = (1..=5).map(ShardId);
            shards.filter(|shard| owned_path(pools, *shard).is_some()).collect::<Vec<_>>()
        };
        assert_eq!(owned(&pools), [1, 2, 3, 4, 5].map(ShardId));
        for (is_copied, moved) in [(false, &[1, 2, 3, 4, 5][..]), (true, &[3, 4, 5])] {
            pools.set_copied("default", "new", is_copied).expect("two pools");
            let moved: Vec<_> = moved.iter().copied().map(ShardId).collect();
            assert_eq!(owned(&pools), moved, "copied: {is_copied}");
        }
        for usage_is_final in [false, true] {
            let mut pools = Pools::one(2);
            pools.add(Pool::new("new", 3, &pools)).expect("a pool");
            pools.add(Pool::new("third", 3, &pools)).expect("a pool");
            pools.set_copied("default", "new", usage_is_final).expect("two pools");
            for (first, last, is_copied) in
                [(1, 1, true), (2, 8, true), (5, 6, true), (6, 8, false)]
            {
                let refused = check_pools(&pools, first, last).is_err();
                assert_eq!(refused, is_copied && !usage_is_final, "{first} to {last}");
            }
        }
        let path = owned_path(&pools, ShardId(3)).expect("a path");
        assert_eq!((&*path.pool, path.shard), ("new", ShardId(3)));
    }
}
