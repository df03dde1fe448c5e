//! The possible steps, and how often each kind occurred.

use std::sync::atomic::{AtomicU64, Ordering};

use ostraca_core::ids::{Epoch, ShardId};
use ostraca_core::rows::Row;

use crate::state::{Phase, State};

/// One possible step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Step {
    /// A node's first call reaches its store, or the response arrives.
    Call(usize),
    /// A node's watch delivers a change.
    Watch(usize),
    /// The second node receives the first one's message.
    Deliver(usize, usize),
    /// A node's machine for a shard advances.
    Shard(usize, ShardId),
    /// A manager decides again, as it does when it receives something that it already knows.
    Nudge(usize),
    /// Time passes.
    Pass,
    /// A copy of a message arrives.
    Stray(usize),
    /// An abandoned request reaches its store.
    DeliverDelayed(usize),
    /// A process dies.
    Crash(usize),
    /// A dead process is restarted.
    Restart(usize),
    /// The second node receives the first one's message, and will receive it again.
    Duplicate(usize, usize),
    /// The first node's message to the second is lost.
    LoseMessage(usize, usize),
    /// The first node's message to the second is delayed, and later messages overtake it.
    DelayMessage(usize, usize),
    /// The response to a write is lost.
    LoseResponse(usize),
    /// A write reaches the store late or never; its writer gets no response.
    Delay(usize),
    /// A node is cut off from the `ClusterStore`.
    Cut(usize),
    /// A node's cut ends.
    Heal(usize),
    /// A node's watch begins to lag.
    Lag(usize),
    /// A node's watch catches up.
    CatchUp(usize),
    /// A process is paused by a signal.
    Pause(usize),
    /// A paused process continues.
    Wake(usize),
    /// An operator drains the owner of the first shard, through the node that can succeed the manager.
    Drain,
}

/// How often each kind of step occurred, to show that a run is not vacuous.
#[derive(Debug, Default)]
pub struct StepCounts {
    counts: [AtomicU64; 28],
}

impl StepCounts {
    const NAMES: [&str; 28] = [
        "calls",
        "watched",
        "messages received",
        "claims and stops",
        "timer ticks",
        "duplicates received",
        "late requests",
        "crashes",
        "restarts",
        "messages duplicated",
        "messages lost",
        "messages delayed",
        "responses lost",
        "requests lost or delayed",
        "cuts",
        "heals",
        "lags",
        "catch-ups",
        "pauses",
        "wakes",
        "drains",
        "owners by hand-off",
        "owners by fail-over",
        "managers by fail-over",
        "second owners that serve",
        "nudges",
        "shards taken by their leases",
        "changes of numbers",
    ];

    /// Counts a step and its result.
    pub fn record(&self, before: &State, after: &State, step: Step) {
        self.add(match step {
            Step::Call(_) => 0,
            Step::Watch(_) => 1,
            Step::Deliver(..) => 2,
            Step::Shard(..) => 3,
            Step::Pass => 4,
            Step::Stray(_) => 5,
            Step::DeliverDelayed(_) => 6,
            Step::Crash(_) => 7,
            Step::Restart(_) => 8,
            Step::Duplicate(..) => 9,
            Step::LoseMessage(..) => 10,
            Step::DelayMessage(..) => 11,
            Step::LoseResponse(_) => 12,
            Step::Delay(_) => 13,
            Step::Cut(_) => 14,
            Step::Heal(_) => 15,
            Step::Lag(_) => 16,
            Step::CatchUp(_) => 17,
            Step::Pause(_) => 18,
            Step::Wake(_) => 19,
            Step::Drain => 20,
            Step::Nudge(_) => 25,
        });
        if let Step::Shard(node, shard) = step
            && let Some(process) = &after.nodes[node]
            && let Some(hosted) = process.hosted.get(&shard)
            && hosted.phase == Phase::Serving
            && hosted.claim.epoch > Epoch(1)
        {
            self.add(24);
        }
        for (key, (row, at)) in &after.rows {
            let Some((old, before_at)) = before.rows.get(key) else { continue };
            if before_at == at {
                continue;
            }
            match (old, row) {
                (Row::Assignments(old), Row::Assignments(new)) => {
                    for (old, new) in old.assignments.iter().zip(&new.assignments) {
                        if old.epoch != new.epoch
                            && let Some(owner) = &old.owner
                        {
                            self.add(match (new.lease(), before.has_ended(owner)) {
                                (Some(_), _) => 26,
                                (None, true) => 22,
                                (None, false) => 21,
                            });
                        }
                    }
                }
                (Row::Numbers(old), Row::Numbers(new)) if old.holders != new.holders => {
                    self.add(27);
                }
                (Row::Manager(old), Row::Manager(new)) if old.term != new.term => self.add(23),
                _ => {}
            }
        }
    }

    fn add(&self, at: usize) {
        self.counts[at].fetch_add(1, Ordering::Relaxed);
    }

    /// All names with their counts.
    pub fn all(&self) -> impl Iterator<Item = (&'static str, u64)> {
        Self::NAMES.into_iter().zip(self.counts.iter().map(|count| count.load(Ordering::Relaxed)))
    }

    /// The count of one kind.
    pub fn count(&self, name: &str) -> u64 {
        self.all().find(|(one, _)| *one == name).map_or(0, |(_, count)| count)
    }
}
