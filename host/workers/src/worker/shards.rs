//! The lifecycle of shards: adopting, stopping, dropping and inspecting them.
//!
//! Reporting "stopped" guarantees that no instance of the shard's machine is left in this process. An
//! interrupted instance is gone only when its future has completed, so the report may come later than the
//! machine's own action.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ostraca_core::ids::{Entity, Epoch, ShardId};
use ostraca_core::shard::{Event, Machine, Ownership, Phase, StopReason};

use super::Worker;
use super::activity;
use super::machines::{MachineEntry, MachineId};
use crate::recording::Frame;
use crate::{EntityInspection, ShardFigures, ShardInspection, WorkerReport};

impl Worker {
    /// Creates a machine for an assigned shard, replacing one of a lower epoch.
    pub(super) fn adopt(&mut self, owner: Ownership) {
        let shard = owner.shard.shard;
        let before = self
            .by_shard
            .get(&shard)
            .and_then(|id| self.machines.get(*id))
            .map(MachineEntry::epoch);
        if let Some(before) = before {
            if before >= owner.epoch {
                return;
            }
            self.forget(shard, before);
        }
        let id = self
            .machines
            .insert(MachineEntry::new(Machine::new(self.deps.settings.clone(), owner)));
        self.by_shard.insert(shard, id);
        self.execute_actions(id, None);
        for entry in self.types.values().cloned().collect::<Vec<_>>() {
            self.handle_event(
                id,
                Event::TypeDeployed { entity_type: entry.name.clone(), settings: entry.settings() },
            );
        }
        if let Some((sent, lease)) = self.renewed {
            self.handle_event(id, Event::LeaseRenewed { sent_at: sent, lease });
        }
        if self.suspended {
            self.handle_event(id, Event::Suspend);
        }
        if !self.full.is_empty() {
            self.handle_event(id, Event::NamespacesFull(self.full.clone()));
        }
    }

    /// Tells a shard of a pool without a manager about its own lease (E8).
    pub(super) fn renew_shard_lease(
        &mut self,
        shard: ShardId,
        epoch: Epoch,
        sent_at: u64,
        lease: u64,
    ) {
        let Some(id) = self.by_shard.get(&shard).copied() else { return };
        if self.machines.get(id).is_some_and(|slot| slot.epoch() == epoch) {
            self.handle_event(id, Event::ShardLeaseRenewed { sent_at, lease });
        }
    }

    /// Stops a shard. A duplicate or late request is answered again, because the first answer may have been lost.
    pub(super) fn stop_shard(&mut self, shard: ShardId, epoch: Epoch, reason: StopReason) {
        let present = self.by_shard.get(&shard).and_then(|id| self.machines.get(*id));
        if present.is_some_and(|slot| slot.epoch() > epoch) {
            return;
        }
        let is_requested = |slot: &MachineEntry| slot.shard() == shard && slot.epoch() == epoch;
        let present = self.by_shard.get(&shard).copied();
        let present = present.filter(|id| self.machines.get(*id).is_some_and(is_requested));
        // A dropped machine may still exist, which is rare.
        let former = || self.machines.iter().find(|(_, slot)| is_requested(slot)).map(|(id, _)| id);
        let found = present.or_else(former);
        let Some((id, ended)) = found.and_then(|id| Some((id, self.machines.get(id)?.has_ended())))
        else {
            return self.report(WorkerReport::ShardStopped(shard, epoch));
        };
        if !ended {
            return self.handle_event(id, Event::Stop(reason));
        }
        if let Some(slot) = self.machines.get_mut(id) {
            slot.owes_stopped = true;
        }
        self.remove_if_finished(id);
    }

    /// Drops a shard's machine. Its entry remains, without receiving messages, until no instance of it is held and no
    /// store call is pending.
    pub(super) fn forget(&mut self, shard: ShardId, epoch: Epoch) {
        let Some(id) = self.by_shard.get(&shard).copied() else { return };
        if self.machines.get(id).is_some_and(|slot| slot.epoch() == epoch) {
            self.by_shard.remove(&shard);
            self.deps.stats.failing_entities.remove_shard(shard);
            self.handle_event(id, Event::Drop);
        }
    }

    pub(super) fn stop_all(&mut self, reason: StopReason) {
        self.broadcast_event(&|| Event::Stop(reason));
    }

    /// Passes an event to every machine that has not ended.
    pub(super) fn broadcast_event(&mut self, event: &dyn Fn() -> Event) {
        for place in 0..self.machines.capacity() {
            if let Some(id) = self.machines.active_at(place) {
                self.handle_event(id, event());
            }
        }
    }

    /// Reports that a machine has stopped as soon as that is true, and removes an entry for which nothing can arrive
    /// any more.
    pub(super) fn remove_if_finished(&mut self, id: MachineId) {
        let Some(slot) = self.machines.get_mut(id) else { return };
        if !slot.has_ended() || slot.running > 0 {
            return;
        }
        let (shard, epoch, quiet) = (slot.shard(), slot.epoch(), slot.pending_store_calls == 0);
        // A stopped machine has no pending commit; for one that was lost or dropped, the store must confirm that.
        let stopped = quiet || slot.machine.phase() == Phase::Stopped;
        if stopped && std::mem::take(&mut slot.owes_stopped) {
            self.report(WorkerReport::ShardStopped(shard, epoch));
        }
        if quiet {
            self.machines.remove(id);
            self.unlist(shard, id);
            self.write_frame(&Frame::Removed { machine: id.serial });
        }
    }

    /// Stops sending the shard's messages to an entry, unless a later entry has already replaced it.
    pub(super) fn unlist(&mut self, shard: ShardId, id: MachineId) {
        if self.by_shard.get(&shard) == Some(&id) {
            self.by_shard.remove(&shard);
            self.deps.stats.failing_entities.remove_shard(shard);
        }
    }

    /// What this worker holds in memory for a shard's entities.
    pub(super) fn inspect(&self, shard: ShardId, entities: &[Entity]) -> ShardInspection {
        let Some(slot) = self.by_shard.get(&shard).and_then(|id| self.machines.get(*id)) else {
            return ShardInspection::default();
        };
        let entities = entities.iter().map(|entity| EntityInspection {
            active: slot.instances.contains_key(entity),
            mailbox_length: slot.machine.queued_messages(entity).unwrap_or(0),
            activity: Some(activity::to_wire(slot.machine.activity(entity))),
            last_failure: self.deps.stats.failing_entities.last_failure(shard, entity),
            running_revision: slot.machine.running_revision(entity).unwrap_or(0),
            failed_migration: slot.machine.failed_migration(entity),
        });
        ShardInspection { held: true, entities: entities.collect() }
    }

    /// Counts the entities of a type that have an instance, by the revision that it runs.
    pub(super) fn count_live(&self, entity_type: &str) -> BTreeMap<u64, u64> {
        let mut counts = BTreeMap::new();
        for (_, slot) in self.machines.iter() {
            let of_type = slot.instances.keys().filter(|it| *it.entity_type == *entity_type);
            for revision in of_type.filter_map(|entity| slot.machine.running_revision(entity)) {
                *counts.entry(revision).or_default() += 1;
            }
        }
        counts
    }

    /// The figures of each shard whose machine has not ended.
    pub(super) fn measure_shards(&self) -> Vec<ShardFigures> {
        let memory = self.instance_slots.held_bytes_by_shard();
        let running = self.machines.iter().filter(|(_, slot)| !slot.has_ended());
        let figures = running.map(|(_, slot)| {
            let mut live: BTreeMap<Arc<str>, u64> = BTreeMap::new();
            for entity in slot.instances.keys() {
                *live.entry(entity.entity_type.clone()).or_default() += 1;
            }
            ShardFigures {
                shard: slot.shard(),
                epoch: slot.epoch(),
                serving: slot.serving,
                turns: slot.turns,
                committed_bytes: slot.committed_bytes,
                memory_bytes: memory.get(&slot.shard()).copied().unwrap_or_default(),
                queued: slot.machine.stats().1 as u64,
                live,
                stored: slot.machine.stored(),
            }
        });
        figures.collect()
    }

    pub(super) fn report(&self, report: WorkerReport) {
        (self.deps.reports)(report);
    }

    /// Updates the gauges. Machines that have ended are not counted.
    pub(super) fn gauge(&self) {
        let gauges = &self.deps.gauges;
        let totals = self.machines.totals();
        gauges.entities.store(totals.entities, Ordering::Relaxed);
        gauges.queued.store(totals.queued, Ordering::Relaxed);
        gauges.serving.store(totals.serving, Ordering::Relaxed);
        gauges.shards.store(totals.shards, Ordering::Relaxed);
        gauges.live.store(self.instance_slots.granted() as u64, Ordering::Relaxed);
        gauges.live_bytes.store(self.instance_slots.held_bytes(), Ordering::Relaxed);
    }
}
