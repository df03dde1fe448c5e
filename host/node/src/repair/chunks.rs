//! Checks the rows of assignments against the pools and the claims: a claim says which epoch a shard has reached.
//!
//! A manager sees no claims. With an epoch below that of a claim, it would assign the shard, be told that the claim was
//! refused, and assign it above the claim: that costs time only. A repair prevents it, and restores what a manager
//! cannot: a row that does not decode, or whose term is later than the manager's.

use std::collections::BTreeMap;

use ostraca_catalog::rows;
use ostraca_core::extensions::Extensions;
use ostraca_core::ids::{Epoch, ShardId};
use ostraca_core::pools::Pools;
use ostraca_core::records::Claim;
use ostraca_core::rows::{
    Assignment, AssignmentsRow, Row, RowKey, SHARDS_PER_CHUNK, chunk_count, shard_at,
};
use ostraca_store::CompareAndSet;

use super::contradiction::{ContradictionKind, Findings, Remedy};
use super::nodes::remove;
use super::snapshot::{FoundRow, HIGHEST, LOST_RAISES, Snapshot};

type Claims = BTreeMap<ShardId, Claim>;

/// How many shards of the pools are in a chunk.
pub(super) fn shards_in(pools: &Pools, chunk: u32) -> usize {
    let first = chunk.saturating_mul(SHARDS_PER_CHUNK);
    pools.shard_count().saturating_sub(first).min(SHARDS_PER_CHUNK) as usize
}

/// The assignment of a shard whose true one is lost.
pub(super) fn lost_assignment(claims: &Claims, shard: ShardId) -> Assignment {
    let claimed = claims.get(&shard).map_or(0, |claim| claim.epoch.0);
    Assignment { epoch: Epoch(claimed.saturating_add(LOST_RAISES)), ..Assignment::default() }
}

/// The row of a chunk whose true one is lost.
pub(super) fn lost_chunk(claims: &Claims, chunk: u32, shards: usize, term: u64) -> AssignmentsRow {
    let assignments =
        (0..shards).map(|place| lost_assignment(claims, shard_at(chunk, place))).collect();
    AssignmentsRow { term, assignments, extensions: Extensions::default() }
}

/// The shards that a row of this length lacks although one of them was claimed. Those of a new pool are added by the
/// next manager; these were lost.
pub(super) fn lost_shards(
    claims: &Claims,
    chunk: u32,
    length: usize,
    shards: usize,
) -> Vec<ShardId> {
    let missing: Vec<_> = (length..shards).map(|place| shard_at(chunk, place)).collect();
    match missing.iter().any(|shard| claims.contains_key(shard)) {
        true => missing,
        false => Vec::new(),
    }
}

/// The chunks without a row, although a shard of them was claimed. A new cluster has no rows yet, and a new pool none
/// either.
pub(super) fn lost_chunks(snapshot: &Snapshot, pools: &Pools) -> Vec<u32> {
    let is_lost = |chunk: &u32| {
        !snapshot.chunks.contains_key(chunk)
            && !lost_shards(&snapshot.facts.claims, *chunk, 0, shards_in(pools, *chunk)).is_empty()
    };
    (0..chunk_count(pools.shard_count())).filter(is_lost).collect()
}

/// The change that writes a chunk.
pub(super) fn write_chunk(
    chunk: u32,
    expected: Option<u64>,
    row: AssignmentsRow,
) -> Result<CompareAndSet, ostraca_catalog::Error> {
    let key = rows::key_text(&RowKey::Assignments(chunk));
    Ok(CompareAndSet { key, expected, value: Some(rows::encode_row(&Row::Assignments(row))?) })
}

/// Checks the rows of assignments. `pools_are_complete` is false if a type is bound to a pool that the rows lack: then
/// no shard is removed.
pub(super) fn check(
    snapshot: &Snapshot,
    pools: &Pools,
    pools_are_complete: bool,
    findings: &mut Findings,
) -> Result<(), ostraca_catalog::Error> {
    let claims = &snapshot.facts.claims;
    let term = snapshot.highest_term();
    let chunks = chunk_count(pools.shard_count());
    for chunk in lost_chunks(snapshot, pools) {
        let shards = shards_in(pools, chunk);
        let key = rows::key_text(&RowKey::Assignments(chunk));
        let what = format!("{} have no assignments, but were claimed", range(chunk, shards));
        let remedy = Remedy::Fix("writes it anew, without owners, above the claimed epochs".into());
        findings.report(ContradictionKind::MissingAssignments, &key, what, remedy);
        findings.change(write_chunk(chunk, None, lost_chunk(claims, chunk, shards, term))?);
    }
    for (&chunk, found) in &snapshot.chunks {
        let shards = shards_in(pools, chunk);
        if chunk >= chunks {
            let what = format!("the cluster has only the shards 1 to {}", pools.shard_count());
            surplus(
                ContradictionKind::SurplusAssignments,
                found,
                what,
                pools_are_complete,
                findings,
            );
            if pools_are_complete {
                findings.change(remove(found));
            }
            continue;
        }
        let row = match &found.row {
            Ok(row) => row,
            Err(why) => {
                let what =
                    format!("the assignments of {} cannot be decoded: {why}", range(chunk, shards));
                let remedy =
                    Remedy::Fix("writes it anew, without owners, above the claimed epochs".into());
                findings.report(ContradictionKind::UnreadableAssignments, &found.key, what, remedy);
                let row = lost_chunk(claims, chunk, shards, term);
                findings.change(write_chunk(chunk, Some(found.revision), row)?);
                continue;
            }
        };
        let mut fixed = row.clone();
        check_length(snapshot, chunk, found, shards, pools_are_complete, &mut fixed, findings);
        for (place, assignment) in fixed.assignments.iter_mut().enumerate().take(shards) {
            let shard = shard_at(chunk, place);
            check_assignment(&found.key, row.term, shard, claims.get(&shard), assignment, findings);
        }
        if fixed != *row {
            findings.change(write_chunk(chunk, Some(found.revision), fixed)?);
        }
    }
    Ok(())
}

fn range(chunk: u32, shards: usize) -> String {
    let last = shard_at(chunk, shards.saturating_sub(1));
    format!("the shards {} to {last}", shard_at(chunk, 0))
}

fn surplus<T>(
    kind: ContradictionKind,
    found: &FoundRow<T>,
    what: String,
    pools_are_complete: bool,
    findings: &mut Findings,
) {
    let remedy = match pools_are_complete {
        true => Remedy::Fix("removes what no pool has".into()),
        false => Remedy::Manual("see `unknown-pool`: a pool may be missing".into()),
    };
    findings.report(kind, &found.key, what, remedy);
}

fn check_length(
    snapshot: &Snapshot,
    chunk: u32,
    found: &FoundRow<AssignmentsRow>,
    shards: usize,
    pools_are_complete: bool,
    fixed: &mut AssignmentsRow,
    findings: &mut Findings,
) {
    let (claims, length) = (&snapshot.facts.claims, fixed.assignments.len());
    let lost = lost_shards(claims, chunk, length, shards);
    if length > shards {
        let what = format!("it has {length} shards, but the pools have only {shards} of them");
        surplus(ContradictionKind::LongAssignments, found, what, pools_are_complete, findings);
        if pools_are_complete {
            fixed.assignments.truncate(shards);
        }
    } else if !lost.is_empty() {
        let what =
            format!("it has {length} shards instead of {shards}, and the others were claimed");
        let remedy =
            Remedy::Fix("adds the others, without owners, above the claimed epochs".into());
        findings.report(ContradictionKind::ShortAssignments, &found.key, what, remedy);
        fixed.assignments.extend(lost.into_iter().map(|shard| lost_assignment(claims, shard)));
    }
}

/// Checks and fixes one shard's assignment.
fn check_assignment(
    key: &str,
    term: u64,
    shard: ShardId,
    claim: Option<&Claim>,
    assignment: &mut Assignment,
    findings: &mut Findings,
) {
    let unowned = |epoch: Epoch| Assignment { epoch, ..Assignment::default() };
    let mut report = |kind, what: String, does: &str| {
        findings.report(kind, key, what, Remedy::Fix(does.into()));
    };
    let claimed = claim.map_or(0, |claim| claim.epoch.0);
    let (epoch, raised) = (assignment.epoch.0, Epoch(claimed.saturating_add(LOST_RAISES)));
    let is_plausible = |counter: u64| counter <= HIGHEST;
    let owner_is_plausible =
        assignment.owner.as_ref().is_none_or(|owner| is_plausible(owner.incarnation.counter));
    if !is_plausible(epoch) || !owner_is_plausible {
        let what =
            format!("the epoch or the owner of shard {shard} is beyond what a cluster reaches");
        report(
            ContradictionKind::ImplausibleEpoch,
            what,
            "removes the owner, above the claimed epoch",
        );
        *assignment = unowned(raised);
    } else if epoch < claimed {
        let what = format!("shard {shard} is in epoch {epoch}, but was claimed in epoch {claimed}");
        report(ContradictionKind::EpochBehind, what, "removes the owner, above the claimed epoch");
        *assignment = unowned(raised);
    } else if let (Some(claim), Some(owner)) = (claim, &assignment.owner)
        && epoch == claimed
        && claim.owner != *owner
    {
        let what = format!(
            "shard {shard} belongs to {owner} in epoch {epoch}, but {} claimed it in that epoch",
            claim.owner
        );
        report(
            ContradictionKind::OwnerDiffers,
            what,
            "removes the owner; the next one gets a later epoch",
        );
        *assignment = unowned(assignment.epoch);
    }
    let Some(hand_off) = &assignment.hand_off else { return };
    if assignment.owner.is_none() {
        let what = format!("shard {shard} has a hand-off, but no owner");
        report(ContradictionKind::HandOffWithoutOwner, what, "removes the hand-off");
        assignment.hand_off = None;
    } else if hand_off.id.term > term {
        let what = format!(
            "the hand-off of shard {shard} was begun in term {}, but its row is of term {term}",
            hand_off.id.term
        );
        report(ContradictionKind::HandOffOfLaterTerm, what, "removes the hand-off");
        assignment.hand_off = None;
    }
}
