//! The guard's checks of assignment rows: terms, seals, epochs, former owners, hand-offs (R5, R7, R10, R12).

use ostraca_core::ids::{Epoch, ShardId};
use ostraca_core::rows::{
    Assignment, AssignmentsRow, Member, chunk_count, is_stateless_chunk, shard_at,
};

use super::World;
use super::guard::Applied;
use crate::violation::ViolationKind;

impl World {
    pub(super) fn guard_shards(
        &mut self,
        applied: &Applied,
        chunk: u32,
        old: &AssignmentsRow,
        row: &AssignmentsRow,
    ) {
        if row.term < old.term {
            self.violations.push(
                ViolationKind::TermOrder
                    .because(format!("term {} follows {} (R10)", row.term, old.term)),
            );
        }
        if row.term > old.term && !old.assignments.is_empty() {
            self.tally.count("transition: row sealed");
        }
        self.guard.sealed.insert((chunk, row.term));
        let none = Assignment::default();
        let mut decided = false;
        for (place, after) in row.assignments.iter().enumerate() {
            let before = old.assignments.get(place).unwrap_or(&none);
            let shard = shard_at(chunk, place);
            if self.pools.all.is_stateless(shard) {
                self.guard_lease(applied, shard, before, after);
                continue;
            }
            decided |= before != after;
            if let Some(moving) = &after.hand_off {
                if before.hand_off.as_ref().map(|m| m.id) != Some(moving.id) {
                    self.tally.count("transition: hand-off started");
                }
                self.guard.intents.insert(moving.id);
            }
            if before.hand_off.is_some() && after.hand_off.is_none() && before.epoch == after.epoch
            {
                self.tally.count("transition: hand-off aborted");
                self.guard_acks(applied, shard, before);
            }
            if before.owner != after.owner || before.epoch != after.epoch {
                self.guard_owner(applied, shard, before, after);
            }
        }
        // A manager decides only from rows that it has sealed (R10). Its successor may have sealed some of them since:
        // it may still change the others.
        // Rows that only a pool needs which was added later may be unknown to it until somebody has written them.
        let initial = chunk_count(self.pools.initial.min(self.shards));
        let exists = |other: u32| {
            let is_written =
                || self.guard.sealed.range((other, 0)..=(other, u64::MAX)).next().is_some();
            !is_stateless_chunk(&self.pools.all, other) && (other < initial || is_written())
        };
        let sealed = (0..chunk_count(self.shards))
            .all(|other| !exists(other) || self.guard.sealed.contains(&(other, row.term)));
        let by_hand_off =
            row.assignments.iter().zip(&old.assignments).all(|(a, b)| a.owner == b.owner);
        if decided
            && !old.assignments.is_empty()
            && (!sealed || old.term != row.term)
            && !by_hand_off
        {
            self.violations.push(
                ViolationKind::DecidedUnsealed
                    .because(format!("term {} decided before sealing all rows (R10)", row.term)),
            );
        }
    }

    pub(super) fn guard_owner(
        &mut self,
        applied: &Applied,
        shard: ShardId,
        before: &Assignment,
        after: &Assignment,
    ) {
        let Some(owner) = &after.owner else {
            if before.owner.is_some() && after.epoch < before.epoch {
                self.violations.push(
                    ViolationKind::EpochOrder
                        .because(format!("shard {shard} lost its owner and its epoch")),
                );
            }
            return;
        };
        if after.epoch <= before.epoch && before.owner.is_some() {
            self.violations.push(ViolationKind::EpochOrder.because(format!(
                "shard {shard} went to {owner} under {:?} after {:?} (R5)",
                after.epoch, before.epoch
            )));
        }
        if self.guard.owners.is_empty() && self.guard.hosts.len() < self.min_hosts {
            let (hosts, min) = (self.guard.hosts.len(), self.min_hosts);
            let text =
                format!("shard {shard} went to {owner} while {hosts} of {min} hosts existed");
            self.violations.push(ViolationKind::AllocatedEarly.because(text));
        }
        self.guard_pool(shard, owner);
        self.guard_one_owner(shard, after.epoch, owner);
        let Some(former) = &before.owner else {
            return self.tally.count("transition: assigned for the first time");
        };
        self.guard_slow(shard, before, after);
        let named = (former.clone(), shard, before.epoch);
        if self.guard.has_ended(former) {
            return self.tally.count("transition: assigned after a death");
        }
        if applied.living.contains(&shard) {
            self.violations.push(ViolationKind::OwnerReplacedAlive.because(format!(
                "shard {shard} went from {former} to {owner} while the former owner held it (R7)"
            )));
        }
        let stopped = self.guard.stopped.contains(&named);
        if stopped && former == owner {
            self.tally.count("transition: handed off to the same owner");
        }
        self.tally.count(if stopped {
            "transition: assigned by hand-off"
        } else if self.guard.refused.contains(&named) {
            "transition: assigned after a refused claim"
        } else {
            "transition: assigned after silence"
        });
    }

    /// Checks that an epoch of a shard has one owner (R5).
    pub(super) fn guard_one_owner(&mut self, shard: ShardId, epoch: Epoch, owner: &Member) {
        let other = self.guard.owners.insert((shard, epoch), owner.clone());
        if other.as_ref().is_some_and(|other| other != owner) {
            let text = format!("shard {shard} has two owners under {epoch:?}");
            self.violations.push(ViolationKind::EpochOrder.because(text));
        }
    }

    /// Checks a hand-off that was aborted: even if some node did not acknowledge it, the owner must have been asked in
    /// time (R12).
    pub(super) fn guard_acks(&mut self, applied: &Applied, shard: ShardId, before: &Assignment) {
        let Some(moving) = &before.hand_off else { return };
        let it = &self.processes[applied.by];
        let Some((begun, told)) = it.begun.get(&moving.id) else { return };
        let since = it.world_time(*begun);
        if before.owner.as_ref().is_some_and(|owner| owner.node == it.node) {
            // The manager is the owner itself: no cut affects its messages to itself.
            return;
        }
        // Whether neither a pause of the manager nor a slow write of a row is the cause.
        let steady = it.woke < since
            && it.control_since < since
            && it.lapsed_at < since
            && it.held_up_at < since;
        if !told && steady && applied.at > since + 2 * it.settings.ack_timeout {
            self.violations.push(ViolationKind::WaitedForAcks.because(format!(
                "the hand-off of shard {shard} waited for acknowledgements until it timed out (R12)"
            )));
        }
    }
}

#[cfg(test)]
mod tests {
    use ostraca_core::ids::Incarnation;
    use ostraca_core::rows::{Row, RowKey, SHARDS_PER_CHUNK};

    use super::*;
    use crate::cluster::Options;

    /// Two chunks that the manager of term 1 has sealed, without owners.
    fn two_sealed_chunks() -> World {
        let mut world = World::planned(1, Options::default());
        world.shards = 2 * SHARDS_PER_CHUNK;
        world.pools.initial = world.shards;
        for chunk in [0, 1] {
            assert!(!decides_unsealed(&mut world, chunk, 1, 0));
        }
        world
    }

    /// Writes a chunk's row under a term. An epoch other than the row's gives its shard a new owner. Returns whether
    /// the guard sees a decision from unsealed rows.
    fn decides_unsealed(world: &mut World, chunk: u32, term: u64, epoch: u64) -> bool {
        let key = RowKey::Assignments(chunk);
        let stored = world.rows.applied(&key).cloned();
        let incarnation = Incarnation { counter: epoch, nonce: epoch };
        let owner = (epoch > 0).then(|| Member { node: "a".into(), incarnation });
        let assignment = Assignment { epoch: Epoch(epoch), owner, ..Assignment::default() };
        let assignments = vec![assignment];
        let new =
            Row::Assignments(AssignmentsRow { term, assignments, ..AssignmentsRow::default() });
        let expected = stored.as_ref().map(|(_, revision)| *revision);
        world.rows.write(&key, expected, new.clone()).expect("the revision is current");
        let old = stored.map(|(row, _)| row);
        world.violations.clear();
        world.guard_applied(&Applied { key, old, new, by: 0, living: Vec::new(), at: world.now });
        world.violations.iter().any(|it| it.kind == ViolationKind::DecidedUnsealed)
    }

    #[test]
    fn r10_a_deposed_manager_may_write_rows_not_yet_resealed() {
        let mut world = two_sealed_chunks();
        assert!(!decides_unsealed(&mut world, 0, 1, 1));
        assert!(!decides_unsealed(&mut world, 1, 2, 0), "the successor seals the second row");
        assert!(!decides_unsealed(&mut world, 0, 1, 2), "the first row is still the predecessor's");
        assert!(!decides_unsealed(&mut world, 0, 2, 2), "the successor seals the first row");
        assert!(!decides_unsealed(&mut world, 0, 2, 3));
    }

    #[test]
    fn r10_a_row_sealed_only_by_a_successor_counts_as_unsealed() {
        let mut world = two_sealed_chunks();
        assert!(!decides_unsealed(&mut world, 0, 2, 0), "term 2 seals the first row only");
        assert!(decides_unsealed(&mut world, 0, 2, 1));
        assert!(!decides_unsealed(&mut world, 1, 3, 0), "term 3 seals the second row");
        assert!(decides_unsealed(&mut world, 0, 2, 2), "term 2 has not sealed it");
    }
}
