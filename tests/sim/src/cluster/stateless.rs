//! A pool without a manager: checks of its rows (E3, E5, E8).

use std::collections::{BTreeMap, BTreeSet};

use ostraca_core::assign::contiguous_range;
use ostraca_core::ids::{NodeId, ShardId};
use ostraca_core::pools::Pool;
use ostraca_core::rows::{Assignment, NumbersRow, Row, RowKey};

use super::World;
use super::guard::Applied;
use crate::violation::ViolationKind;

impl World {
    /// Counts a write that lost against another one.
    pub(super) fn count_conflict(&mut self, key: &RowKey, row: &Row) {
        match (key, row) {
            (RowKey::Numbers(_), _) => self.tally.count("transition: number conflict"),
            (_, Row::Assignments(row)) if row.assignments.iter().any(|it| it.lease().is_some()) => {
                self.tally.count("transition: shard lease conflict");
            }
            _ => {}
        }
    }

    /// Checks the numbers of a pool's hosts: each number and each host occurs once, in order.
    pub(super) fn guard_numbers(&mut self, old: &NumbersRow, row: &NumbersRow) {
        let is_sorted = row.holders.windows(2).all(|pair| pair[0].number < pair[1].number);
        let nodes: BTreeSet<_> = row.holders.iter().map(|holder| &holder.member).collect();
        if !is_sorted || nodes.len() != row.holders.len() {
            let text = format!("numbers {row:?} follow {old:?} (E5)");
            self.violations.push(ViolationKind::NumberTwice.because(text));
        }
        for holder in &row.holders {
            if !old.holders.contains(holder) {
                self.tally.count("transition: number taken");
            }
        }
        for holder in &old.holders {
            if !row.holders.contains(holder) {
                self.tally.count("transition: number released");
            }
            // Another incarnation of the same node may have it by then.
            let moved = row.holders.iter().find(|it| it.member == holder.member);
            if moved.is_some_and(|moved| moved.number != holder.number) {
                let text = format!("{} changed its number (E5)", holder.member);
                self.violations.push(ViolationKind::NumberTwice.because(text));
            }
        }
    }

    /// Checks a change of a shard's lease: it is taken only if nobody has it, or its holder has ended, or it has lapsed
    /// (E8), and it is released only when the shard has stopped (E7).
    pub(super) fn guard_lease(
        &mut self,
        applied: &Applied,
        shard: ShardId,
        before: &Assignment,
        after: &Assignment,
    ) {
        if before == after {
            return;
        }
        let is_alive = applied.living.contains(&shard);
        if (&before.owner, before.epoch) == (&after.owner, after.epoch) {
            self.tally.count("transition: shard lease renewed");
            self.guard.shard_leases.insert((shard, after.epoch), applied.at);
            return;
        }
        let Some(owner) = &after.owner else {
            self.tally.count("transition: shard lease released");
            if is_alive || after.epoch != before.epoch {
                let text = format!("{before:?} of shard {shard} was released as {after:?} (E7)");
                self.violations.push(ViolationKind::OwnerReplacedAlive.because(text));
            }
            return;
        };
        if after.epoch <= before.epoch {
            let (new, old) = (after.epoch, before.epoch);
            let text = format!("shard {shard} went to {owner} under {new:?} after {old:?} (R5)");
            self.violations.push(ViolationKind::EpochOrder.because(text));
        }
        self.guard_pool(shard, owner);
        self.guard_one_owner(shard, after.epoch, owner);
        self.guard.shard_leases.insert((shard, after.epoch), applied.at);
        let Some(former) = &before.owner else {
            return self.tally.count("transition: shard lease taken while free");
        };
        if self.guard.has_ended(former) {
            return self.tally.count("transition: shard lease taken after a death");
        }
        if former == owner {
            if is_alive {
                let text = format!("{owner} took shard {shard} again while it held it");
                self.violations.push(ViolationKind::OwnerReplacedAlive.because(text));
            }
            return self.tally.count("transition: shard lease taken again");
        }
        let renewed = self.guard.shard_leases.get(&(shard, before.epoch)).copied();
        let ago = applied.at - renewed.unwrap_or(0).min(applied.at);
        let lease = before.lease().map_or(0, |lease| lease.lease);
        if ago < lease {
            let text = format!(
                "shard {shard} went from {former} to {owner} {ago} ms after its lease was renewed (E8)"
            );
            self.violations.push(ViolationKind::ShardLeaseTaken.because(text));
        }
        self.tally.count("transition: shard lease taken after it lapsed");
    }

    /// Whether the hosts of a pool without a manager divide its shards as their numbers say.
    pub(super) fn is_divided(
        &self,
        pool: &Pool,
        hosts: &BTreeSet<NodeId>,
        owners: &BTreeMap<ShardId, &NodeId>,
    ) -> bool {
        let key = RowKey::Numbers(pool.name.clone());
        let Some((Row::Numbers(row), _)) = self.rows.durable().get(&key) else { return false };
        let holders: Vec<_> = row.holders.iter().map(|holder| &holder.member.node).collect();
        let is_owner = |place: usize, holder: &NodeId| {
            contiguous_range(place, holders.len(), pool.shards)
                .all(|at| owners.get(&ShardId(pool.first.0 + at)) == Some(&holder))
        };
        holders.iter().copied().cloned().collect::<BTreeSet<_>>() == *hosts
            && (0..).zip(&holders).all(|(place, holder)| is_owner(place, holder))
    }
}
