//! A slow connection to the `EntityStore`: fast enough for an idle host, but too slow for a busy one.
//!
//! Such a host gives up its shards because of the store (R9), recovers without them, gets them back, and so on. The
//! host's growing probation limits how often a shard moves that way.

use std::collections::{BTreeMap, BTreeSet};

use ostraca_core::ids::{NodeId, ShardId};
use ostraca_core::node::NodeReport;
use ostraca_core::rows::{Assignment, HandOffId};

use super::net::{ConnId, ConnKind};
use super::process::Pid;
use super::{LEASE, World};
use crate::violation::ViolationKind;

/// The length of a node's first probation and of its longest, in leases. A probation doubles in between.
const FIRST: u64 = 4;
const LONGEST: u64 = 64;

/// The slow host, and how often each shard has changed its owner since the slowness began.
#[derive(Debug)]
pub(super) struct SlowStoreHost {
    site: usize,
    gap: u64,
    until: u64,
    moves: BTreeMap<ShardId, u64>,
    /// How often the host got shards again after it had given up its own.
    over: u64,
    /// The expected probation, derived from when the host gave up its shards and how long it had held them.
    due: Option<Due>,
}

/// An expected probation.
#[derive(Clone, Debug)]
struct Due {
    since: u64,
    /// Its duration in milliseconds of the host's clock.
    span: u64,
    /// When the host first got a shard again.
    back: Option<u64>,
    /// The hand-offs that a manager had decided when it first learnt of the probation.
    decided: Option<BTreeSet<HandOffId>>,
}

impl Due {
    /// Whether the probation has ended, by the world's clock: the host's clock may run a twentieth fast.
    fn has_ended(&self, now: u64) -> bool {
        now >= self.since + self.span * 19 / 20
    }
}

impl World {
    pub(super) fn slow_down(&mut self, millis: u64, gap: u64) {
        let site = self.any_site(false);
        if self.slow.is_some() || !self.sites[site].is_host() || !self.spare(site) {
            return;
        }
        self.tally.count("fault: entity store slow to one host");
        self.heal_by(millis);
        let until = self.now + millis;
        let moves = BTreeMap::new();
        self.slow = Some(SlowStoreHost { site, gap, until, moves, over: 0, due: None });
    }

    /// Records that a host gave up its shards and is on probation.
    pub(super) fn on_shards_released(&mut self, pid: Pid, probation: u64) {
        self.tally.count("transition: shards released without the store");
        let (now, site) = (self.now, self.processes[pid].site);
        if let Some(slow) = self.slow.as_mut().filter(|slow| slow.site == site) {
            // The probation doubles if the host held its shards for less time than the last probation took.
            let held = |back: u64| (now - back) * 20 / 19;
            let soon = |last: &Due| last.back.is_none_or(|back| held(back) < last.span);
            let last = slow.due.take().filter(soon);
            let span = last.map_or(LEASE * FIRST, |last| (last.span * 2).min(LEASE * LONGEST));
            slow.due = Some(Due { since: now, span, back: None, decided: None });
        }
        // After the last fault, no store is slow, so no probation is expected for shards that are given up long after
        // it.
        if self.now < self.healed + 2 * LEASE {
            let until = self.processes[pid].mono(self.now) + probation;
            self.probations.insert(pid, until);
        }
    }

    /// Handles a report at a node. A manager that learns of the slow host's probation continues only the hand-offs
    /// that it has already decided.
    pub(super) fn on_report(&mut self, from: &NodeId, report: &NodeReport) {
        let Some(slow) = self.slow.as_mut().filter(|slow| self.sites[slow.site].node == *from)
        else {
            return;
        };
        if let Some(due) = slow.due.as_mut().filter(|_| !report.store_available) {
            due.decided.get_or_insert_with(|| self.guard.asked.clone());
        }
    }

    /// Records when a host was last on probation, by its own clock: it gets its share only after that (R9).
    pub(super) fn check_probations(&mut self) {
        let (now, processes) = (self.now, &self.processes);
        self.probations
            .retain(|pid, until| processes[*pid].alive && processes[*pid].mono(now) < *until);
        if !self.probations.is_empty() {
            self.on_probation_at = now;
        }
    }

    /// The minimum delay between two frames.
    pub(super) fn frame_gap(&self, conn: ConnId) -> u64 {
        let Some(slow) = self.slow.as_ref().filter(|slow| slow.until > self.now) else { return 0 };
        let it = &self.conns[conn];
        let slowed = it.kind == ConnKind::Bulk
            && it.ends.iter().any(|pid| self.processes[*pid].site == slow.site);
        if slowed { slow.gap } else { 0 }
    }

    /// Checks the slow host, if there are no other faults. It must get no shard during its probation, except by a
    /// hand-off that was decided before the manager learnt of the probation. Each time that the host gets shards, a
    /// shard may move to it and away from it once.
    pub(super) fn guard_slow(&mut self, shard: ShardId, before: &Assignment, after: &Assignment) {
        let now = self.now;
        let Some(slow) = self.slow.as_mut().filter(|_| self.options.slow_store) else { return };
        let host = &self.sites[slow.site].node;
        let to_host = after.owner.as_ref().is_some_and(|owner| owner.node == *host);
        if let Some(due) = slow.due.as_mut().filter(|_| to_host) {
            let moving = before.hand_off.as_ref().map(|moving| moving.id);
            let decided = |all: &BTreeSet<_>| moving.is_some_and(|id| all.contains(&id));
            if !due.has_ended(now) && !due.decided.as_ref().is_none_or(decided) {
                self.violations.push(ViolationKind::MovedTooOften.because(format!(
                    "{host} was given shard {shard} {} ms after it released its shards, on a probation of {} ms (R9)",
                    now - due.since,
                    due.span
                )));
            }
            slow.over += u64::from(due.back.is_none());
            due.back.get_or_insert(now);
        }
        let waits = slow.due.as_ref().is_some_and(|due| due.back.is_none() && due.has_ended(now));
        let most = 2 * (1 + slow.over + u64::from(waits));
        // A hand-off that ends where it began raises the epoch, but moves nothing.
        let node = |row: &Assignment| row.owner.as_ref().map(|owner| owner.node.clone());
        let moves = slow.moves.entry(shard).or_default();
        *moves += u64::from(node(after).is_some() && node(before) != node(after));
        if *moves > most {
            self.violations.push(ViolationKind::MovedTooOften.because(format!(
                "shard {shard} moved {moves} times while the store was slow for one host; the limit is {most} (R9)"
            )));
        }
    }
}
