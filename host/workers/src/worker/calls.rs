//! Passes outgoing HTTP calls of running guests from the sandbox to the shard's machine, and releases them (R20).

use std::sync::Arc;

use ostraca_core::ids::{Entity, TurnId};
use ostraca_core::shard::{CallDigest, Event, IdempotencyKey};
use ostraca_wasm::{CallRelease, CallSink, GuestCall};
use tokio::sync::mpsc;

use super::Worker;
use super::machines::{InstanceState, MachineId};
use crate::guest_types;

/// What happened to a call of a running guest.
pub(super) struct CallUpdate {
    id: MachineId,
    entity: Entity,
    generation: u64,
    turn: TurnId,
    place: u32,
    change: CallChange,
}

enum CallChange {
    Started(CallDigest, CallRelease),
    Ended,
}

/// Passes the calls of one turn to the worker that runs it.
#[derive(Debug)]
struct TurnCalls {
    id: MachineId,
    entity: Entity,
    generation: u64,
    turn: TurnId,
    updates: mpsc::UnboundedSender<CallUpdate>,
}

impl TurnCalls {
    fn send(&self, place: u32, change: CallChange) {
        let Self { id, generation, turn, .. } = *self;
        let entity = self.entity.clone();
        // If the worker has ended, the release is dropped and the call fails.
        let _ = self.updates.send(CallUpdate { id, entity, generation, turn, place, change });
    }
}

impl CallSink for TurnCalls {
    fn start(&self, place: u32, call: GuestCall, release: CallRelease) {
        self.send(place, CallChange::Started(guest_types::call_digest(&call), release));
    }

    fn end(&self, place: u32) {
        self.send(place, CallChange::Ended);
    }
}

impl Worker {
    /// A sink for the calls of one turn of this instance; `None` if its type may not call.
    pub(super) fn call_sink(
        &self,
        id: MachineId,
        entity: &Entity,
        (generation, turn): (u64, TurnId),
    ) -> Option<Arc<dyn CallSink>> {
        if !self.types.get(&entity.entity_type).is_some_and(|entry| entry.may_call()) {
            return None;
        }
        let (entity, updates) = (entity.clone(), self.call_updates.0.clone());
        Some(Arc::new(TurnCalls { id, entity, generation, turn, updates }))
    }

    /// Passes what happened to calls to their machines. Returns whether there was anything. Like an ask, a started call
    /// must arrive before the completion of its turn.
    pub(super) fn update_calls(&mut self) -> bool {
        let mut found = false;
        while let Ok(update) = self.call_updates.1.try_recv() {
            self.update_call(update);
            found = true;
        }
        found
    }

    pub(super) fn update_call(&mut self, update: CallUpdate) {
        let CallUpdate { id, entity, generation, turn, place, change } = update;
        match change {
            CallChange::Started(..) => self.open_calls += 1,
            CallChange::Ended => self.open_calls = self.open_calls.saturating_sub(1),
        }
        let Some(slot) = self.machines.get_mut(id) else { return };
        match change {
            CallChange::Started(digest, release) => {
                // The turn may have ended, or its instance may have been dropped.
                if let Some(InstanceState::Busy(_, waiting)) =
                    slot.instance_mut(&entity, generation)
                {
                    waiting.calls.insert(place, release);
                    self.handle_event(id, Event::CallStarted { entity, turn, place, digest });
                }
            }
            CallChange::Ended => {
                self.handle_event(id, Event::CallEnded { entity, turn, place });
            }
        }
    }

    pub(super) fn release_call(
        &mut self,
        id: MachineId,
        entity: &Entity,
        generation: u64,
        place: u32,
        key: IdempotencyKey,
    ) {
        let Some(slot) = self.machines.get_mut(id) else { return };
        if let Some(InstanceState::Busy(_, waiting)) = slot.instance_mut(entity, generation)
            && let Some(release) = waiting.calls.remove(&place)
        {
            release.release(key.to_string());
        }
    }
}
