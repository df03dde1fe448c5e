//! What is left of a cluster's sharding after a reset: the highest epoch of each shard, the highest term, and the last
//! incarnation of each node. Hosts of pools without a manager take their numbers again (E5).
//!
//! These numbers are kept because nodes may remember them. A node that was cut off may still believe that it is the
//! manager; with a lower term, its rows would win over those of its successor (R10). Nodes keep routes in caches, which
//! move to higher epochs only (R13), and take an incarnation for ended only if they see a later one (R7).

use std::collections::BTreeMap;

use ostraca_catalog::Error;
use ostraca_core::ids::{Epoch, NodeId};
use ostraca_core::pools::Pools;
use ostraca_core::rows::{Assignment, AssignmentsRow, NodeRow, NodeStatus, chunk_count, shard_at};

use super::chunks::{
    lost_assignment, lost_chunk, lost_chunks, lost_shards, shards_in, write_chunk,
};
use super::contradiction::Findings;
use super::manager;
use super::nodes::{ended_row, lost_row, remove, write_node};
use super::snapshot::{HIGHEST, LOST_RAISES, Snapshot};
use super::types;

/// What a reset removes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Removed {
    /// The nodes whose leases end.
    pub(crate) nodes: Vec<String>,
    /// How many shards have owners.
    pub(crate) owned_shards: usize,
    /// How many shards have a hand-off.
    pub(crate) hand_offs: usize,
    /// How many rows are written or removed.
    pub(crate) rows: usize,
}

/// The changes of a reset.
///
/// # Errors
/// [`Error::InvalidRow`] if a row cannot be encoded, or if a type's pool is not known: assignments beyond the known
/// pools may be those of its shards.
pub(crate) fn plan(snapshot: &Snapshot, pools: &Pools) -> Result<(Findings, Removed), Error> {
    if !types::check(snapshot, &mut Findings::default())? {
        let why = "the rows do not say which pools the types have: restore the row `pools`, or run `ostraca repair`";
        return Err(Error::InvalidRow(why.into()));
    }
    let mut changes = Findings::default();
    let mut removed = Removed::default();
    let nodes = plan_nodes(snapshot, &mut changes, &mut removed)?;
    plan_chunks(snapshot, pools, &mut changes, &mut removed)?;
    for found in snapshot.numbers.values() {
        changes.change(remove(found));
    }
    let term = snapshot.highest_term();
    if snapshot.manager.is_some() || term > 0 {
        manager::write(snapshot, &nodes, term + LOST_RAISES, &mut changes)?;
    }
    removed.rows = changes.changes.len();
    Ok((changes, removed))
}

fn plan_nodes(
    snapshot: &Snapshot,
    changes: &mut Findings,
    removed: &mut Removed,
) -> Result<BTreeMap<NodeId, NodeRow>, Error> {
    let mut after = BTreeMap::new();
    let mut write = |node: &NodeId, expected, row: NodeRow, changes: &mut Findings| {
        changes.change(write_node(node, expected, row.clone())?);
        after.insert(node.clone(), row);
        Ok::<_, Error>(())
    };
    for (node, found) in &snapshot.nodes {
        let expected = Some(found.revision);
        match &found.row {
            Ok(row) => {
                let highest = snapshot.highest_named(node);
                if row.status == NodeStatus::Live {
                    removed.nodes.push(node.to_string());
                }
                let counter = row.incarnation.counter.max(highest.unwrap_or(0));
                let ended = ended_row(counter + 1, NodeStatus::Left);
                let row = NodeRow { draining: row.draining, ..ended };
                write(node, expected, row, changes)?;
            }
            Err(_) => {
                write(node, expected, lost_row(snapshot, NodeStatus::Left), changes)?;
            }
        }
    }
    for node in snapshot.named_in_rows.keys() {
        if !snapshot.nodes.contains_key(node) {
            let counter = snapshot.highest_named(node).unwrap_or(0) + LOST_RAISES;
            write(node, None, ended_row(counter, NodeStatus::Left), changes)?;
        }
    }
    Ok(after)
}

fn plan_chunks(
    snapshot: &Snapshot,
    pools: &Pools,
    changes: &mut Findings,
    removed: &mut Removed,
) -> Result<(), Error> {
    let claims = &snapshot.facts.claims;
    let term = snapshot.highest_term();
    for (&chunk, found) in &snapshot.chunks {
        if chunk >= chunk_count(pools.shard_count()) {
            changes.change(remove(found));
            continue;
        }
        let shards = shards_in(pools, chunk);
        let row = match &found.row {
            Err(_) => lost_chunk(claims, chunk, shards, term),
            Ok(row) => {
                let owned = row.assignments.iter().filter(|it| it.owner.is_some());
                removed.owned_shards += owned.count();
                let moving = row.assignments.iter().filter(|it| it.hand_off.is_some());
                removed.hand_offs += moving.count();
                let kept = |(place, it): (usize, &Assignment)| {
                    let shard = shard_at(chunk, place);
                    let claimed = claims.get(&shard).map_or(Epoch(0), |claim| claim.epoch);
                    match it.epoch < claimed || it.epoch.0 > HIGHEST {
                        true => lost_assignment(claims, shard),
                        false => Assignment { epoch: it.epoch, ..Assignment::default() },
                    }
                };
                let kept = row.assignments.iter().enumerate().take(shards).map(kept);
                let lost = lost_shards(claims, chunk, row.assignments.len(), shards);
                let lost = lost.into_iter().map(|shard| lost_assignment(claims, shard));
                let assignments = kept.chain(lost).collect();
                AssignmentsRow { term, assignments, extensions: row.extensions.clone() }
            }
        };
        changes.change(write_chunk(chunk, Some(found.revision), row)?);
    }
    for chunk in lost_chunks(snapshot, pools) {
        let row = lost_chunk(claims, chunk, shards_in(pools, chunk), term);
        changes.change(write_chunk(chunk, None, row)?);
    }
    Ok(())
}
