//! A slow way to the entities' store: it answers a host that has nothing to do, and is too slow for one that has.
//!
//! Such a host gives its shards up for want of the store (R9), is well again without them, gets them back, and so on.
//! How often that moves a shard is bounded by the host's growing probation.

use std::collections::BTreeSet;

use ostraca_core::ids::{Epoch, NodeId, ShardId};
use ostraca_core::node::NodeReport;
use ostraca_core::rows::{Assignment, HandOffId};

use super::net::{ConnId, ConnKind};
use super::process::Pid;
use super::{LEASE, World};
use crate::violation::ViolationKind;

/// Leases of a node's first probation and of its longest; it doubles in between.
const FIRST: u64 = 4;
const LONGEST: u64 = 64;

/// The host that is slow, and the epochs that shards had when that began.
#[derive(Debug)]
pub(super) struct SlowStoreHost {
    site: usize,
    gap: u64,
    until: u64,
    epochs: Vec<Epoch>,
    /// How often the host was given shards again after it had given its own up.
    over: u64,
    /// The one that is due, as it follows from when the host gave its shards up and for how long it had held them.
    due: Option<Due>,
}

/// A probation that is due.
#[derive(Clone, Debug)]
struct Due {
    since: u64,
    /// Milliseconds of the host's clock.
    span: u64,
    /// When the host was first given a shard again.
    back: Option<u64>,
    /// The hand-offs that a manager had decided when it first heard of the probation.
    decided: Option<BTreeSet<HandOffId>>,
}

impl Due {
    /// The world's milliseconds: a clock may run fast by a twentieth.
    fn has_ended(&self, now: u64) -> bool {
        now >= self.since + self.span * 19 / 20
    }
}

impl World {
    pub(super) fn slow_down(&mut self, millis: u64, gap: u64) {
        let site = self.any_site(false);
        if self.slow.is_some() || !self.sites[site].roles.host || !self.spare(site) {
            return;
        }
        self.tally.count("fault: entity store slow to one host");
        self.heal_by(millis);
        let epochs = (1..=self.shards)
            .map(|shard| self.guard.newest(ShardId(shard)).unwrap_or_default())
            .collect();
        let until = self.now + millis;
        self.slow = Some(SlowStoreHost { site, gap, until, epochs, over: 0, due: None });
    }

    /// A host gave its shards up, and is on probation.
    pub(super) fn on_shards_released(&mut self, pid: Pid, probation: u64) {
        self.tally.count("transition: shards released without the store");
        let (now, site) = (self.now, self.processes[pid].site);
        if let Some(slow) = self.slow.as_mut().filter(|slow| slow.site == site) {
            // It doubles if the host held its shards for less than the last one took.
            let held = |back: u64| (now - back) * 20 / 19;
            let soon = |last: &Due| last.back.is_none_or(|back| held(back) < last.span);
            let last = slow.due.take().filter(soon);
            let span = last.map_or(LEASE * FIRST, |last| (last.span * 2).min(LEASE * LONGEST));
            slow.due = Some(Due { since: now, span, back: None, decided: None });
        }
        // Where no fault is left, no store is slow: who gives shards up long after the last one gets no time for it.
        if self.now < self.healed + 2 * LEASE {
            let until = self.processes[pid].mono(self.now) + probation;
            self.probations.insert(pid, until);
        }
    }

    /// A node heard a report. A manager that hears of the slow host's probation goes on only with what it has decided.
    pub(super) fn on_report(&mut self, from: &NodeId, report: &NodeReport) {
        let Some(slow) = self.slow.as_mut().filter(|slow| self.sites[slow.site].node == *from)
        else {
            return;
        };
        if let Some(due) = slow.due.as_mut().filter(|_| !report.store_available) {
            due.decided.get_or_insert_with(|| self.guard.asked.clone());
        }
    }

    /// Notes when a host was last on probation, by its own clock: it is given its share only after that (R9).
    pub(super) fn check_probations(&mut self) {
        let (now, processes) = (self.now, &self.processes);
        self.probations
            .retain(|pid, until| processes[*pid].alive && processes[*pid].mono(now) < *until);
        if !self.probations.is_empty() {
            self.on_probation_at = now;
        }
    }

    /// How much later than the frame before it a frame arrives at the earliest.
    pub(super) fn frame_gap(&self, conn: ConnId) -> u64 {
        let Some(slow) = self.slow.as_ref().filter(|slow| slow.until > self.now) else { return 0 };
        let it = &self.conns[conn];
        let slowed = it.kind == ConnKind::Bulk
            && it.ends.iter().any(|pid| self.processes[*pid].site == slow.site);
        if slowed { slow.gap } else { 0 }
    }

    /// Where nothing else is wrong, the slow host gets no shard while it is on probation, but by a hand-off that was
    /// decided before the manager heard of it; and each time that it gets some, a shard comes to it and leaves it once.
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
                    "shard {shard} was given to {host} {} ms after it gave its shards up, on a probation of {} ms (R9)",
                    now - due.since,
                    due.span
                )));
            }
            slow.over += u64::from(due.back.is_none());
            due.back.get_or_insert(now);
        }
        let first = slow.epochs.get(shard.0 as usize - 1).map_or(0, |epoch| epoch.0);
        let waits = slow.due.as_ref().is_some_and(|due| due.back.is_none() && due.has_ended(now));
        let most = 2 * (1 + slow.over + u64::from(waits));
        let raised = after.epoch.0.saturating_sub(first);
        if raised > most {
            self.violations.push(ViolationKind::MovedTooOften.because(format!(
                "shard {shard} was moved {raised} times while the store was slow to one host, at most {most} are due (R9)"
            )));
        }
    }
}
