//! The passage of time: by one renewal interval, at all nodes simultaneously.
//!
//! All clocks run at the same rate; the margin covers differences, which the simulator tests. Time passes only when
//! everything that was sent, written or watched has arrived, unless a fault delays it: a cut, a lagging watch, a paused
//! process, a copy, or an abandoned request. So messages are fast compared with leases, except where the budget allows
//! delays.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ostraca_core::ids::{NodeId, ShardId};
use ostraca_core::node::{Canonicalizer, Event, WriteError};
use ostraca_core::rows::{Row, RowKey};

use crate::pruning::clear;
use crate::rules;
use crate::scope::Scope;
use crate::state::{Call, DelayedRequest, NOW, Phase, State};
use crate::stateless;
use crate::world::{handle_event, hurry};

/// All times older than this are equivalent: a lease and its margin have ended by then.
const OLD: u64 = 4;
/// A time further in the future than this counts as never.
const NEVER: u64 = 100_000;

/// Whether all steps that take no time are done.
pub fn may_pass(state: &State) -> bool {
    state.awake().all(|(node, process)| {
        process.calls.is_empty()
            && (process.lag || process.watch.as_ref().is_none_or(|watch| watch.is_empty()))
            && process.hosted.values().all(|hosted| hosted.phase == Phase::Serving)
            && (0..state.nodes.len()).all(|from| !state.links.contains_key(&(from, node)))
    })
}

/// Lets time pass by one interval.
pub fn pass(scope: &Scope, before: &State) -> State {
    let mut state = before.clone();
    relate(&mut state, &Back);
    let awake: Vec<_> = state.awake().map(|(node, _)| node).collect();
    for node in awake {
        handle_event(scope, &mut state, node, Event::StoreResponded { sent_at: NOW });
        handle_event(scope, &mut state, node, Event::Tick);
        hurry(scope, &mut state);
    }
    clear(&mut state);
    let seen = NumberCollector::default();
    relate(&mut state, &seen);
    relate(&mut state, &seen.ranks());
    if state == *before && !rests_well(scope, &state) {
        state.break_rule(rules::REST);
    }
    state
}

/// Whether a cluster at rest serves every shard and has completed every drain, unless a fault still holds it up.
fn rests_well(scope: &Scope, state: &State) -> bool {
    let held_up = state.nodes.iter().flatten().any(|node| node.cut || node.lag || node.paused);
    if scope.stateless {
        return held_up || stateless::rests_well(scope, state);
    }
    held_up
        || scope.all_shards().all(|shard| {
            let row = state.rows.iter().find_map(|(key, (row, _))| match (key, row) {
                (key, Row::Assignments(row)) if *key == RowKey::for_shard(shard) => {
                    row.assignments.get(ostraca_core::rows::index_in_chunk(shard))
                }
                _ => None,
            });
            let Some(row) = row else { return false };
            let Some(owner) = &row.owner else { return false };
            let drains = matches!(
                state.rows.get(&RowKey::Node(owner.node.clone())),
                Some((Row::Node(row), _)) if row.draining
            );
            let process = state.nodes[State::number(&owner.node)].as_ref();
            row.hand_off.is_none()
                && !drains
                && process.is_some_and(|process| {
                    !process.suspended
                        && process.hosted.get(&shard).is_some_and(|hosted| {
                            hosted.claim.epoch == row.epoch && hosted.phase == Phase::Serving
                        })
                })
        })
}

fn relate(state: &mut State, to: &dyn Numbers) {
    for process in state.nodes.iter_mut().flatten() {
        Arc::make_mut(&mut process.machine).canonicalize(to);
        process.digest();
        if let Some(whole) = &mut process.whole
            && !to.looks()
        {
            Arc::make_mut(whole).canonicalize(to);
        }
        for hosted in process.hosted.values_mut() {
            hosted.lease_until = to.map_deadline(hosted.lease_until);
        }
        for call in &mut process.calls {
            match call {
                Call::Write(write) => {
                    write.expected = write.expected.map(|at| to.map_revision(&write.key, at));
                    to.canonicalize_row(&write.key, &mut write.row);
                }
                Call::Response(key, _, Ok(at)) => *at = to.map_revision(key, *at),
                Call::Response(key, _, Err(WriteError::Conflict(Some((row, at))))) => {
                    to.canonicalize_row(key, row);
                    *at = to.map_revision(key, *at);
                }
                _ => {}
            }
        }
        for (key, row, at) in process.watch.iter_mut().flatten() {
            to.canonicalize_row(key, row);
            *at = to.map_revision(key, *at);
        }
    }
    for (key, (row, at)) in &mut state.rows {
        to.canonicalize_row(key, row);
        *at = to.map_revision(key, *at);
    }
    for at in state.renewed.values_mut() {
        *at = to.map_time(*at);
    }
    for (_, message) in state.links.values_mut().flatten() {
        to.canonicalize_message(message);
    }
    for (_, _, message) in &mut state.strays {
        to.canonicalize_message(message);
    }
    if let Some(proof) = &mut state.proof
        && !to.looks()
    {
        Arc::make_mut(proof).canonicalize(to);
    }
    for late in &mut state.delayed_requests {
        if let DelayedRequest::Write(_, write) = late {
            write.expected = write.expected.map(|at| to.map_revision(&write.key, at));
            to.canonicalize_row(&write.key, &mut write.row);
        }
    }
}

/// How the numbers in a state are normalized.
trait Numbers: Canonicalizer {
    /// Whether this pass only reads the numbers.
    fn looks(&self) -> bool {
        false
    }
}

impl Numbers for Back {}

impl Numbers for Ranks {}

impl Numbers for NumberCollector {
    fn looks(&self) -> bool {
        true
    }
}

/// Moves all times back by one.
struct Back;

impl Canonicalizer for Back {
    fn map_time(&self, at: u64) -> u64 {
        match at {
            _ if at >= NOW + NEVER => at,
            _ if at <= NOW - OLD + 1 => 0,
            _ => at - 1,
        }
    }

    fn map_deadline(&self, at: u64) -> u64 {
        Unchanged.map_deadline(if at >= NOW + NEVER { at } else { at.saturating_sub(1) })
    }

    fn map_revision(&self, _: &RowKey, at: u64) -> u64 {
        at
    }

    fn map_renewals(&self, _: &NodeId, count: u64) -> u64 {
        count
    }
}

/// Leaves times unchanged, except that every deadline that is due becomes 0.
pub struct Unchanged;

impl Canonicalizer for Unchanged {
    fn map_time(&self, at: u64) -> u64 {
        at
    }

    fn map_deadline(&self, at: u64) -> u64 {
        if at <= NOW { 0 } else { at }
    }

    fn never(&self, at: u64) -> bool {
        at >= NOW + NEVER
    }

    fn map_revision(&self, _: &RowKey, at: u64) -> u64 {
        at
    }

    fn map_renewals(&self, _: &NodeId, count: u64) -> u64 {
        count
    }
}

/// Collects all revisions and renewal counts.
#[derive(Default)]
struct NumberCollector {
    revisions: RefCell<BTreeMap<RowKey, BTreeSet<u64>>>,
    renewals: RefCell<BTreeMap<NodeId, BTreeSet<u64>>>,
    shard_renewals: RefCell<BTreeMap<ShardId, BTreeSet<u64>>>,
}

impl NumberCollector {
    fn ranks(self) -> Ranks {
        Ranks {
            revisions: self.revisions.into_inner(),
            renewals: self.renewals.into_inner(),
            shard_renewals: self.shard_renewals.into_inner(),
        }
    }
}

impl Canonicalizer for NumberCollector {
    fn map_time(&self, at: u64) -> u64 {
        at
    }

    fn map_deadline(&self, at: u64) -> u64 {
        at
    }

    fn map_revision(&self, key: &RowKey, at: u64) -> u64 {
        self.revisions.borrow_mut().entry(key.clone()).or_default().insert(at);
        at
    }

    fn map_renewals(&self, node: &NodeId, count: u64) -> u64 {
        self.renewals.borrow_mut().entry(node.clone()).or_default().insert(count);
        count
    }

    fn map_shard_renewals(&self, shard: ShardId, count: u64) -> u64 {
        self.shard_renewals.borrow_mut().entry(shard).or_default().insert(count);
        count
    }
}

/// Renumbers revisions and renewal counts in order, from 1.
struct Ranks {
    revisions: BTreeMap<RowKey, BTreeSet<u64>>,
    renewals: BTreeMap<NodeId, BTreeSet<u64>>,
    shard_renewals: BTreeMap<ShardId, BTreeSet<u64>>,
}

impl Canonicalizer for Ranks {
    fn map_time(&self, at: u64) -> u64 {
        at
    }

    fn map_deadline(&self, at: u64) -> u64 {
        at
    }

    fn map_revision(&self, key: &RowKey, at: u64) -> u64 {
        match self.revisions.get(key) {
            Some(all) if at > 0 => all.range(1..=at).count() as u64,
            _ => at,
        }
    }

    fn map_renewals(&self, node: &NodeId, count: u64) -> u64 {
        match self.renewals.get(node) {
            // The first write of an incarnation is not a renewal.
            Some(all) if count > 0 => all.range(1..=count).count() as u64,
            _ => count,
        }
    }

    fn map_shard_renewals(&self, shard: ShardId, count: u64) -> u64 {
        match self.shard_renewals.get(&shard) {
            Some(all) if count > 0 => all.range(1..=count).count() as u64,
            _ => count,
        }
    }
}
