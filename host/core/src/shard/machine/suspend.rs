//! After a lapse of the node's lease (R9): everything stays where it is, and no turn starts.
//!
//! It is no phase: a machine may be suspended while it claims, serves or stops. What a suspended one ran before may
//! still be made durable, as the store fences commits by their claim; what it was asked to run waits in the mailbox,
//! within the limit and the deadlines that hold there.

use super::*;

impl Machine {
    /// Whether turns must not start now.
    pub(super) fn is_paused(&self) -> bool {
        self.suspended && !self.has_mutation(Mutation::RunWhileSuspended)
    }

    /// Whether an answer that changes nothing may leave: only this node may have written what it says (R8, R9).
    pub(super) fn may_reply(&self, now: Now) -> bool {
        self.lease_good(now) && !self.is_paused() || self.has_mutation(Mutation::QueryWithoutLease)
    }

    pub(super) fn on_suspend(&mut self) {
        self.suspended = true;
        if !self.is_paused() {
            return;
        }
        for (entity, state) in &mut self.entities {
            if let Stage::AwaitingSlot(_) = state.stage {
                let entity = entity.clone();
                let generation = state.generation;
                self.actions.push_back(Action::ReleaseSlot { entity, generation });
                // Room that was granted meanwhile is not taken for what is asked for after the resumption.
                self.last_generation += 1;
                state.generation = self.last_generation;
                state.stage = Stage::Loaded;
            }
        }
    }

    pub(super) fn on_resume(&mut self, now: Now) {
        if !std::mem::take(&mut self.suspended) {
            return;
        }
        let until = now.mono + self.settings.order_timeout;
        for state in self.entities.values_mut() {
            // What a parked message must follow may have waited all the while.
            state.mailbox.extend_park_deadlines(until);
        }
        self.stalled.clear();
        for entity in self.entities.keys().cloned().collect::<Vec<_>>() {
            self.advance(now, &entity);
        }
    }
}
