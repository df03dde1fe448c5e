//! A slow way to the entities' store: it answers a host that has nothing to do, and is too slow for one that has.
//!
//! Such a host gives its shards up for want of the store (R9), is well again without them, gets them back, and so on.
//! How often that moves a shard is bounded by the host's growing probation.

use ostraca_sharding::ids::{Epoch, ShardId};

use super::net::{ConnId, Way};
use super::{LEASE, World};
use crate::finding::Broken;

/// Leases of a node's first probation and of its longest; it doubles in between.
const FIRST: u64 = 4;
const LONGEST: u64 = 64;

/// The host that is slow, and the epochs that shards had when that began.
#[derive(Debug)]
pub(super) struct Slow {
    site: usize,
    gap: u64,
    since: u64,
    until: u64,
    epochs: Vec<Epoch>,
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
        let (since, until) = (self.now, self.now + millis);
        self.slow = Some(Slow { site, gap, since, until, epochs });
    }

    /// For how long a host may still be given nothing once the store answers as it should again: a host that gave its
    /// shards up gets its share only when its probation is over (R9).
    pub(super) fn longest_probation(&self) -> u64 {
        // By another lease it is twice as long at most, and a clock may run slow by a twentieth.
        let lease = if self.agreed.revision > 0 { LEASE * 2 } else { LEASE };
        let gave_up = self.tally.0.contains_key("transition: shards given up without the store");
        if self.slow.is_some() || gave_up { lease * LONGEST * 20 / 19 } else { 0 }
    }

    /// How much later than the frame before it a frame arrives at the earliest.
    pub(super) fn frame_gap(&self, conn: ConnId) -> u64 {
        let Some(slow) = self.slow.as_ref().filter(|slow| slow.until > self.now) else { return 0 };
        let it = &self.conns[conn];
        let slowed =
            it.way == Way::Bulk && it.ends.iter().any(|pid| self.processes[*pid].site == slow.site);
        if slowed { slow.gap } else { 0 }
    }

    /// Where nothing else is wrong, a shard comes to the slow host and leaves it once between two probations.
    pub(super) fn guard_slow(&mut self, shard: ShardId, epoch: Epoch) {
        let Some(slow) = self.slow.as_ref().filter(|_| self.options.slow_store) else { return };
        let before = slow.epochs.get(shard.0 as usize - 1).map_or(0, |epoch| epoch.0);
        // One may have been on its way when it began.
        let mut most = 3;
        // A clock may run fast by a twentieth.
        let (mut span, mut left) = (LEASE * FIRST, (self.now - slow.since) * 20 / 19);
        while left >= span {
            left -= span;
            span = (span * 2).min(LEASE * LONGEST);
            most += 2;
        }
        let raised = epoch.0.saturating_sub(before);
        if raised > most {
            self.breaches.push(Broken::MovedTooOften.because(format!(
                "shard {shard} was moved {raised} times while the store was slow to one host, at most {most} are due (R9)"
            )));
        }
    }
}
