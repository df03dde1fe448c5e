//! The guard's checks of assignment rows: terms, seals, epochs, former owners, hand-offs (R5, R7, R10, R12).

use ostraca_core::ids::ShardId;
use ostraca_core::rows::{Assignment, AssignmentsRow, RowKey, shard_at};

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
        self.guard.terms.insert(applied.key.clone(), row.term);
        let none = Assignment::default();
        let mut decided = false;
        for (place, after) in row.assignments.iter().enumerate() {
            let before = old.assignments.get(place).unwrap_or(&none);
            let shard = shard_at(chunk, place);
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
        // A manager decides only from rows that it has sealed (R10).
        let chunks = ostraca_core::rows::chunk_count(self.shards);
        let sealed = (0..chunks).all(|other| {
            other == chunk || self.guard.terms.get(&RowKey::Assignments(other)) == Some(&row.term)
        });
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
        let other = self.guard.owners.insert((shard, after.epoch), owner.clone());
        if other.as_ref().is_some_and(|other| other != owner) {
            self.violations.push(
                ViolationKind::EpochOrder
                    .because(format!("shard {shard} has two owners under {:?}", after.epoch)),
            );
        }
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
        self.tally.count(if self.guard.stopped.contains(&named) {
            "transition: assigned by hand-off"
        } else if self.guard.refused.contains(&named) {
            "transition: assigned after a refused claim"
        } else {
            "transition: assigned after silence"
        });
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
