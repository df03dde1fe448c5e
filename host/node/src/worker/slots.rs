//! The machines of a worker, and what is kept beside each.
//!
//! A machine's end is not its slot's: futures may still hold an instance of it, and the store may still owe it an
//! answer. The slot goes when neither is so. What comes for a slot that is gone finds nothing, as serials are never
//! used again, though places are: a worker sees many adoptions in its life.

use std::collections::HashMap;

use ostraca_sharding::ids::{Entity, Epoch, ShardId};
use ostraca_sharding::shard::{Machine, Phase};
use ostraca_wasm::{Instance, Interrupt};

/// An instance, where the worker has it.
pub(super) enum Live {
    Idle(Box<Instance>),
    Busy(Interrupt),
    /// Being made: nothing to interrupt yet.
    Starting,
}

/// One machine.
pub(super) struct Slot {
    pub(super) machine: Machine,
    pub(super) instances: HashMap<Entity, (u64, Live)>,
    /// Futures under way that hold an instance: "stopped" is said only when there is none.
    pub(super) running: usize,
    /// Claims, commits and loads that the store has not answered.
    pub(super) asked: usize,
    pub(super) serving: bool,
    /// "Stopped" is to be said when it is true.
    pub(super) owes_stopped: bool,
}

impl Slot {
    pub(super) fn new(machine: Machine) -> Self {
        Self {
            machine,
            instances: HashMap::new(),
            running: 0,
            asked: 0,
            serving: false,
            owes_stopped: false,
        }
    }

    pub(super) fn shard(&self) -> ShardId {
        self.machine.owner().shard.shard
    }

    pub(super) fn epoch(&self) -> Epoch {
        self.machine.owner().epoch
    }

    /// Whether the machine is at its end: stopped, lost or forgotten.
    pub(super) fn ended(&self) -> bool {
        matches!(self.machine.phase(), Phase::Stopped | Phase::Lost)
    }
}

/// Names a slot for the worker's whole life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SlotId {
    place: usize,
    pub(super) serial: u64,
}

/// All slots.
#[derive(Default)]
pub(super) struct Slots {
    places: Vec<Option<(u64, Slot)>>,
    free: Vec<usize>,
    made: u64,
}

impl Slots {
    pub(super) fn insert(&mut self, slot: Slot) -> SlotId {
        self.made += 1;
        let entry = Some((self.made, slot));
        let place = match self.free.pop() {
            Some(place) => {
                self.places[place] = entry;
                place
            }
            None => {
                self.places.push(entry);
                self.places.len() - 1
            }
        };
        SlotId { place, serial: self.made }
    }

    /// The name of no slot.
    #[cfg(test)]
    pub(super) fn unknown() -> SlotId {
        SlotId { place: usize::MAX, serial: 0 }
    }

    pub(super) fn get(&self, id: SlotId) -> Option<&Slot> {
        let (serial, slot) = self.places.get(id.place)?.as_ref()?;
        (*serial == id.serial).then_some(slot)
    }

    pub(super) fn get_mut(&mut self, id: SlotId) -> Option<&mut Slot> {
        let (serial, slot) = self.places.get_mut(id.place)?.as_mut()?;
        (*serial == id.serial).then_some(slot)
    }

    pub(super) fn remove(&mut self, id: SlotId) {
        if self.get(id).is_some() {
            self.places[id.place] = None;
            self.free.push(id.place);
        }
    }

    /// How many places there are, for going through them while slots come and go.
    pub(super) fn places(&self) -> usize {
        self.places.len()
    }

    /// The slot at a place, if one is there and its machine is not at its end.
    pub(super) fn standing(&self, place: usize) -> Option<SlotId> {
        let (serial, slot) = self.places.get(place)?.as_ref()?;
        (!slot.ended()).then_some(SlotId { place, serial: *serial })
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (SlotId, &Slot)> {
        self.places.iter().enumerate().filter_map(|(place, entry)| {
            let (serial, slot) = entry.as_ref()?;
            Some((SlotId { place, serial: *serial }, slot))
        })
    }
}

#[cfg(test)]
mod tests {
    use ostraca_sharding::ids::{ClusterId, Incarnation, ShardKey};
    use ostraca_sharding::shard::{Owner, Settings};

    use super::*;

    fn slot(shard: u32) -> Slot {
        let shard = ShardKey { namespace: "n".into(), pool: "p".into(), shard: ShardId(shard) };
        let incarnation = Incarnation::default();
        let (cluster, epoch, node) = (ClusterId(1), Epoch(1), "a".into());
        Slot::new(Machine::new(
            Settings::default(),
            Owner { cluster, shard, epoch, node, incarnation },
        ))
    }

    #[test]
    fn a_place_is_used_again_and_the_name_of_what_was_there_finds_nothing() {
        let mut slots = Slots::default();
        let (first, other) = (slots.insert(slot(1)), slots.insert(slot(2)));
        slots.remove(first);
        let second = slots.insert(slot(3));
        assert_eq!((slots.places(), slots.iter().count()), (2, 2));
        assert!(slots.get(first).is_none() && slots.get_mut(first).is_none());
        slots.remove(first);
        assert_eq!(slots.get(second).map(Slot::shard), Some(ShardId(3)));
        assert_eq!(slots.get(other).map(Slot::shard), Some(ShardId(2)));
    }
}
