//! A worker's machines, and the state that is kept with each.
//!
//! An entry outlives its machine: futures may still hold an instance of it, and store calls may be pending. The
//! entry is removed when neither is the case. Events for a removed entry find nothing: indices are reused, since a
//! worker adopts many shards in its lifetime, but serials never are.

use std::collections::{BTreeSet, HashMap};

use ostraca_core::ids::{Entity, Epoch, ShardId};
use ostraca_core::shard::{Machine, Phase};
use ostraca_wasm::{AskReply, CallRelease, Instance, InterruptHandle};

/// The state of an instance, as the worker sees it.
pub(super) enum InstanceState {
    Idle(Box<Instance>),
    /// A turn is running.
    Busy(InterruptHandle, WaitingTurn),
    /// The instance is being created: there is nothing to interrupt yet.
    Starting,
}

/// What the asks and calls of a running turn wait for, by place.
#[derive(Default)]
pub(super) struct WaitingTurn {
    /// Open asks.
    pub(super) asks: HashMap<u32, AskReply>,
    /// Calls that may not be made yet.
    pub(super) calls: HashMap<u32, CallRelease>,
}

/// One machine.
pub(super) struct MachineEntry {
    pub(super) machine: Machine,
    pub(super) instances: HashMap<Entity, (u64, InstanceState)>,
    /// The second instances of entities whose turns wait (R20).
    pub(super) second_instances: HashMap<Entity, (u64, InstanceState)>,
    /// Running futures that hold an instance: "stopped" is reported only when there are none.
    pub(super) running: usize,
    /// Number of claims, commits, loads and scans for wake-ups that the store has not answered.
    pub(super) pending_store_calls: usize,
    pub(super) serving: bool,
    /// Turns of its entities that have begun, of any kind.
    pub(super) turns: u64,
    /// Bytes of its commits that were sent to the store.
    pub(super) committed_bytes: u64,
    /// Whether "stopped" must be reported once no instance is left.
    pub(super) owes_stopped: bool,
    /// The values at the last [`MachineTable::refresh`].
    noted: Noted,
}

/// Totals over all entries, maintained incrementally because a worker may have tens of thousands of entries and
/// needs the totals every 20 ms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Totals {
    /// Machines that have not ended.
    pub(super) shards: u64,
    pub(super) serving: u64,
    /// Entities in memory.
    pub(super) entities: u64,
    /// Messages that wait for a turn.
    pub(super) queued: u64,
}

/// An entry's share of the totals, and the time at which its machine must be woken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Noted {
    totals: Totals,
    wake: Option<u64>,
}

impl MachineEntry {
    pub(super) fn new(machine: Machine) -> Self {
        Self {
            machine,
            instances: HashMap::new(),
            second_instances: HashMap::new(),
            running: 0,
            pending_store_calls: 0,
            serving: false,
            turns: 0,
            committed_bytes: 0,
            owes_stopped: false,
            noted: Noted::default(),
        }
    }

    /// The instance of the entity with this generation: its first or its second one.
    pub(super) fn instance_mut(
        &mut self,
        entity: &Entity,
        generation: u64,
    ) -> Option<&mut InstanceState> {
        let first = self.instances.get_mut(entity).filter(|(held, _)| *held == generation);
        let live = match first {
            None if self.second_instances.is_empty() => None,
            None => self.second_instances.get_mut(entity).filter(|(held, _)| *held == generation),
            first => first,
        };
        live.map(|(_, live)| live)
    }

    /// Removes the instance of the entity with this generation.
    pub(super) fn remove_instance(
        &mut self,
        entity: &Entity,
        generation: u64,
    ) -> Option<InstanceState> {
        for instances in [&mut self.instances, &mut self.second_instances] {
            if instances.get(entity).is_some_and(|(held, _)| *held == generation) {
                return instances.remove(entity).map(|(_, live)| live);
            }
        }
        None
    }

    fn note(&self) -> Noted {
        let (entities, queued) = self.machine.stats();
        let live = !self.has_ended();
        let totals = Totals {
            shards: u64::from(live),
            serving: u64::from(self.serving),
            entities: entities as u64,
            queued: queued as u64,
        };
        Noted { totals, wake: self.machine.next_wake().filter(|_| live) }
    }

    pub(super) fn shard(&self) -> ShardId {
        self.machine.ownership().shard.shard
    }

    pub(super) fn epoch(&self) -> Epoch {
        self.machine.ownership().epoch
    }

    /// Whether the machine has ended: stopped, lost or dropped.
    pub(super) fn has_ended(&self) -> bool {
        matches!(self.machine.phase(), Phase::Stopped | Phase::Lost)
    }
}

/// Identifies an entry, uniquely for the worker's whole lifetime.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct MachineId {
    index: usize,
    pub(super) serial: u64,
}

/// All entries.
#[derive(Default)]
pub(super) struct MachineTable {
    entries: Vec<Option<(u64, MachineEntry)>>,
    free: Vec<usize>,
    next_serial: u64,
    timers: BTreeSet<(u64, MachineId)>,
    totals: Totals,
}

impl MachineTable {
    pub(super) fn insert(&mut self, slot: MachineEntry) -> MachineId {
        self.next_serial += 1;
        let entry = Some((self.next_serial, slot));
        let place = match self.free.pop() {
            Some(place) => {
                self.entries[place] = entry;
                place
            }
            None => {
                self.entries.push(entry);
                self.entries.len() - 1
            }
        };
        MachineId { index: place, serial: self.next_serial }
    }

    /// An id that matches no entry.
    #[cfg(test)]
    pub(super) fn unknown() -> MachineId {
        MachineId { index: usize::MAX, serial: 0 }
    }

    pub(super) fn get(&self, id: MachineId) -> Option<&MachineEntry> {
        let (serial, slot) = self.entries.get(id.index)?.as_ref()?;
        (*serial == id.serial).then_some(slot)
    }

    pub(super) fn get_mut(&mut self, id: MachineId) -> Option<&mut MachineEntry> {
        let (serial, slot) = self.entries.get_mut(id.index)?.as_mut()?;
        (*serial == id.serial).then_some(slot)
    }

    pub(super) fn remove(&mut self, id: MachineId) {
        let Some(noted) = self.get(id).map(|slot| slot.noted) else { return };
        self.renote(id, noted, Noted::default());
        self.entries[id.index] = None;
        self.free.push(id.index);
    }

    /// Updates the totals and the wake-up time of an entry. Called after each event that its machine has handled.
    pub(super) fn refresh(&mut self, id: MachineId) {
        let Some(slot) = self.get_mut(id) else { return };
        let noted = slot.note();
        let before = std::mem::replace(&mut slot.noted, noted);
        self.renote(id, before, noted);
    }

    fn renote(&mut self, id: MachineId, before: Noted, now: Noted) {
        if before.wake != now.wake {
            if let Some(wake) = before.wake {
                self.timers.remove(&(wake, id));
            }
            self.timers.extend(now.wake.map(|wake| (wake, id)));
        }
        let totals = &mut self.totals;
        totals.shards = totals.shards - before.totals.shards + now.totals.shards;
        totals.serving = totals.serving - before.totals.serving + now.totals.serving;
        totals.entities = totals.entities - before.totals.entities + now.totals.entities;
        totals.queued = totals.queued - before.totals.queued + now.totals.queued;
    }

    /// Entries whose machines are due to be woken.
    pub(super) fn due(&self, now: u64) -> Vec<MachineId> {
        self.timers.iter().take_while(|(wake, _)| *wake <= now).map(|(_, id)| *id).collect()
    }

    /// When the first machine must be woken.
    #[cfg(feature = "stepped")]
    pub(super) fn next_wake(&self) -> Option<u64> {
        self.timers.first().map(|(wake, _)| *wake)
    }

    pub(super) fn totals(&self) -> Totals {
        self.totals
    }

    /// Number of indices, for iterating while entries are added and removed.
    pub(super) fn capacity(&self) -> usize {
        self.entries.len()
    }

    /// The entry at an index, if there is one whose machine has not ended.
    pub(super) fn active_at(&self, place: usize) -> Option<MachineId> {
        let (serial, slot) = self.entries.get(place)?.as_ref()?;
        (!slot.has_ended()).then_some(MachineId { index: place, serial: *serial })
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (MachineId, &MachineEntry)> {
        self.entries.iter().enumerate().filter_map(|(place, entry)| {
            let (serial, slot) = entry.as_ref()?;
            Some((MachineId { index: place, serial: *serial }, slot))
        })
    }
}

#[cfg(test)]
mod tests {
    use ostraca_core::ids::{ClusterId, Incarnation, ShardPath};
    use ostraca_core::message::Now;
    use ostraca_core::records::ClaimOutcome;
    use ostraca_core::rows::Member;
    use ostraca_core::shard::{Event, Ownership, Settings};

    use super::*;

    fn slot(shard: u32) -> MachineEntry {
        let shard = ShardPath { namespace: "n".into(), pool: "p".into(), shard: ShardId(shard) };
        let incarnation = Incarnation::default();
        let (cluster, epoch, node) = (ClusterId(1), Epoch(1), "a".into());
        MachineEntry::new(Machine::new(
            Settings::default(),
            Ownership { cluster, shard, epoch, owner: Member { node, incarnation } },
        ))
    }

    #[test]
    fn a_slot_is_reused_and_its_old_id_finds_nothing() {
        let mut slots = MachineTable::default();
        let (first, other) = (slots.insert(slot(1)), slots.insert(slot(2)));
        slots.remove(first);
        let second = slots.insert(slot(3));
        assert_eq!((slots.capacity(), slots.iter().count()), (2, 2));
        assert!(slots.get(first).is_none() && slots.get_mut(first).is_none());
        slots.remove(first);
        assert_eq!(slots.get(second).map(MachineEntry::shard), Some(ShardId(3)));
        assert_eq!(slots.get(other).map(MachineEntry::shard), Some(ShardId(2)));
    }

    #[test]
    fn only_due_slots_are_woken_and_totals_follow_each_slot() {
        let mut slots = MachineTable::default();
        let ids: Vec<_> = (1..=1_000).map(|shard| slots.insert(slot(shard))).collect();
        for id in &ids {
            slots.refresh(*id);
        }
        let claiming = Totals { shards: 1_000, ..Totals::default() };
        assert_eq!((slots.totals(), slots.due(u64::MAX).len()), (claiming, 0));
        // The claims of two machines fail: they must be woken later.
        for (id, at) in [(ids[7], 0), (ids[3], 100)] {
            let now = Now { mono: at, cluster_time: at, utc: 0 };
            let outcome = ClaimOutcome::Failed("no".into());
            let machine = &mut slots.get_mut(id).expect("the slot exists").machine;
            machine.handle(now, Event::ClaimResult { number: 1, outcome });
            slots.refresh(id);
            slots.refresh(id);
        }
        assert_eq!(slots.due(249), []);
        assert_eq!(slots.due(250), [ids[7]]);
        assert_eq!(slots.due(350), [ids[7], ids[3]]);
        slots.get_mut(ids[7]).expect("the slot exists").serving = true;
        slots.refresh(ids[7]);
        assert_eq!(slots.totals(), Totals { serving: 1, ..claiming });
        slots.remove(ids[7]);
        assert_eq!(slots.due(350), [ids[3]]);
        let machine = &mut slots.get_mut(ids[3]).expect("the slot exists").machine;
        machine.handle(Now { mono: 100, cluster_time: 100, utc: 0 }, Event::Drop);
        slots.refresh(ids[3]);
        assert_eq!((slots.totals().shards, slots.due(u64::MAX).len()), (998, 0));
        ids.iter().for_each(|id| slots.remove(*id));
        assert_eq!(slots.totals(), Totals::default());
    }
}
