//! Partitions in which every node reaches the store, and the arbiter's lease that ends them (E12, E13).
//!
//! The node with the store takes one side, or is reached by both. In an ordinary run, the cut ends and losers return; in
//! a run with no other fault, the cut lasts, losers stay away, and the rest of the cluster must serve everything.

use std::collections::{BTreeMap, BTreeSet};

use ostraca_core::ids::ShardId;
use ostraca_core::rows::{ArbiterRow, Member, Row};

use super::faults::Fault;
use super::guard::Applied;
use super::net::{Cut, Scope};
use super::plan::{FROM, TO};
use super::process::{Pid, Process};
use super::{LEASE, Options, RENEW, SimEvent, World};
use crate::rng::Rng;
use crate::violation::ViolationKind;

pub(super) const INTERVAL: u64 = 60;
pub(super) const TIMEOUT: u64 = LEASE;
pub(super) const FLAG_TIMEOUT: u64 = LEASE / 2;
/// How soon after a cut it must have ended, if nothing else fails.
const DECIDED: u64 = LEASE * 8;
/// How long a loser may go on that reads the rows without interruption.
const GOES_ON: u64 = FLAG_TIMEOUT + LEASE * 2;
/// How long an order takes from the node's machine to its shards, at most.
const ORDERED: u64 = 60;
/// How long the process of a loser lives at most.
const ENDS: u64 = LEASE * 3;

/// What a seed decides about the arbiter, and what has happened.
#[derive(Debug)]
pub(super) struct ArbiterPlan {
    pub(super) enabled: bool,
    /// The durable rows by number, and when each was applied.
    decided: BTreeMap<u64, (ArbiterRow, u64)>,
    rng: Rng,
}

impl ArbiterPlan {
    /// Uses a separate random generator, so that the seed's other choices do not change.
    pub(super) fn draw(seed: u64, options: &Options) -> Self {
        let mut rng = Rng::new(seed ^ 0x6172_6269_7465_7221);
        let enabled = options.arbitrates || (rng.chance(12) && !options.has_one_fault());
        Self { enabled, decided: BTreeMap::new(), rng }
    }
}

impl World {
    pub(super) fn plan_splits(&mut self) {
        if !self.arbiter.enabled {
            return;
        }
        let dice = &mut self.arbiter.rng;
        let mut plan = Vec::new();
        if self.options.arbitrates {
            plan.push((dice.range(FROM, TO), None));
        } else {
            for _ in 0..dice.range(1, 3) {
                plan.push((dice.range(FROM, TO), Some(dice.range(LEASE / 2, LEASE * 8))));
            }
        }
        for (when, millis) in plan {
            self.healed = self.healed.max(when + 1);
            self.at(when, SimEvent::InjectFault(Fault::Split { millis }));
        }
    }

    /// Cuts two groups of nodes off from each other. If that is for good, either of them could serve all shards.
    pub(super) fn split(&mut self, millis: Option<u64>) {
        let sites = self.sites.len();
        let store_is_cut = self.arbiter.rng.chance(40);
        let from = if store_is_cut { 0 } else { 1 };
        let sides = (0..20).find_map(|_| {
            let dice = &mut self.arbiter.rng;
            let share = dice.range(20, 60);
            let other: BTreeSet<_> = (from.max(1)..sites).filter(|_| dice.chance(share)).collect();
            let one: BTreeSet<_> = (from..sites).filter(|at| !other.contains(at)).collect();
            let serves = |side: &BTreeSet<usize>| {
                let may = |pool| side.iter().any(|at| self.may_host(*at, pool));
                self.pools.all.iter().all(may)
            };
            let is_fit = !one.is_empty()
                && !other.is_empty()
                && (millis.is_some() || (serves(&one) && (store_is_cut || serves(&other))));
            is_fit.then_some((one, other))
        });
        let Some((one, other)) = sides else { return };
        self.tally.count("fault: nodes cut off from each other, store reachable");
        self.print(|| format!("split: {one:?} from {other:?} for {millis:?}"));
        let until = millis.map_or(u64::MAX, |millis| self.now + millis);
        let what = Scope::Nodes;
        for (a, b) in one.iter().flat_map(|a| other.iter().map(move |b| (*a, *b))) {
            for (from, to) in [(a, b), (b, a)] {
                self.cuts.push(Cut { from, to, what, until });
                let delay = self.arbiter.rng.range(50, 400);
                self.at(delay, SimEvent::CutDetected { from, to, what });
            }
        }
        self.heal_by(millis.unwrap_or(DECIDED));
    }

    // What nodes do.

    pub(super) fn on_flag(&mut self, pid: Pid, number: u64, from: &Member) {
        self.tally.count("transition: arbiter flag received");
        let it = &mut self.processes[pid];
        it.flags.insert((number, from.clone()));
        let row = self.arbiter.decided.get(&number).map(|(row, _)| row);
        let was_unreachable = row
            .is_some_and(|row| it.member.as_ref().is_some_and(|me| row.unreachable.contains(me)));
        if was_unreachable {
            self.tally.count("transition: arbiter flag received by a member that was unreachable");
        }
    }

    /// Checks that a node that ends itself was named by the winner and did not get its flag.
    pub(super) fn on_arbitration_lost(&mut self, pid: Pid, number: u64, winner: &Member) {
        self.tally.count("transition: arbitration lost");
        let it = &mut self.processes[pid];
        (it.lost_at, it.leaving) = (Some(self.now), true);
        let named = |row: &ArbiterRow| {
            row.winner == *winner
                && it.member.as_ref().is_some_and(|me| row.unreachable.contains(me))
        };
        let is_named = self.arbiter.decided.get(&number).is_some_and(|(row, _)| named(row));
        if !is_named || it.flags.contains(&(number, winner.clone())) {
            let why = format!("{} ended itself in arbitration {number} of {winner}", it.node);
            self.violations.push(ViolationKind::EndedWithoutLoss.because(why));
        }
        self.at(ENDS, SimEvent::EndLoser { pid });
    }

    /// Ends a process that could not write its row as left in time.
    pub(super) fn end_loser(&mut self, pid: Pid) {
        let site = self.processes[pid].site;
        if self.sites[site].pid == Some(pid) {
            let back = self.loser_returns_after(pid);
            self.crash(site, back, false);
        }
    }

    /// When a loser is started again; `None` if never, or if the process has not lost.
    pub(super) fn loser_returns_after(&mut self, pid: Pid) -> Option<u64> {
        if self.processes[pid].lost_at.is_none() || self.options.arbitrates {
            return None;
        }
        let back = self.arbiter.rng.range(20, LEASE * 5);
        self.heal_by(back);
        Some(back)
    }

    // Checks.

    pub(super) fn guard_arbiter(&mut self, applied: &Applied, row: &ArbiterRow) {
        self.tally.count("transition: arbiter lease taken");
        let before = match &applied.old {
            Some(Row::Arbiter(old)) => old.number,
            _ => 0,
        };
        if row.number <= before || self.arbiter.decided.contains_key(&row.number) {
            let why = format!("{} took number {} after {before} (E13)", row.winner, row.number);
            self.violations.push(ViolationKind::ArbiterOrder.because(why));
        }
        self.arbiter.decided.insert(row.number, (row.clone(), applied.at));
    }

    /// Checks that no turn starts after its node lost an arbitration.
    pub(super) fn check_loser_turn(&mut self, pid: Pid, shard: ShardId) {
        let it = &self.processes[pid];
        if it.lost_at.is_some_and(|at| self.now > at.max(it.woke_late()) + ORDERED) {
            let why = format!("{} started a turn of shard {shard} (E13)", it.node);
            self.violations.push(ViolationKind::LoserWentOn.because(why));
        }
    }

    /// Checks that a loser which reads the rows ends soon, if the winner goes on and has not reached it.
    pub(super) fn check_losers(&mut self) {
        let Some((number, (row, at))) = self.arbiter.decided.last_key_value() else { return };
        let now = self.now;
        let is_steady = |it: &Process| {
            let since =
                it.control_since.max(it.woke_late()).max(it.registered_at).max(it.lapsed_at);
            it.awake(now)
                && it.control.is_some()
                && it.suspended.is_none()
                && now > since.max(*at) + GOES_ON
                && now < it.heard_at + RENEW * 2
        };
        let process = |member: &Member| {
            self.processes.iter().find(|it| it.alive && it.member.as_ref() == Some(member))
        };
        if !process(&row.winner).is_some_and(is_steady) {
            return;
        }
        let flag = (*number, row.winner.clone());
        let goes_on = row.unreachable.iter().find(|member| {
            process(member).is_some_and(|it| {
                is_steady(it) && it.lost_at.is_none() && !it.flags.contains(&flag) && !it.leaving
            })
        });
        if let Some(member) = goes_on {
            let ago = now - at;
            let why = format!("{member} goes on {ago} ms after it lost arbitration {number} (E13)");
            self.violations.push(ViolationKind::LoserWentOn.because(why));
        }
    }
}
