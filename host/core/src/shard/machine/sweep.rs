//! Removing the heads of deleted entities (E17).
//!
//! A head stays after a deletion because it holds what must never fall. Once the entity has no lanes, no tells and no
//! other records, the shard's floor can hold that instead (see [`HeadFloor`](crate::records::HeadFloor)), and a commit
//! removes the head. That is `lane_ttl` after the last use of the entity's last lane: the watermarks that go into the
//! floor then concern no message that is younger, whichever entity of the shard it is for.
//!
//! A deleted head says in `expires_at` when it is examined. The entity's wake-up leads to that time, so sweeping takes
//! the places of woken entities, and is as bounded as they are. A head that is still needed is examined again later.

use super::gate::Effects;
use super::{Entity, Machine, Mutation};
use crate::shard::entity::ResidentEntity;
use crate::shard::lanes::Lanes;

/// The highest version of the heads that this machine has removed. The floor in the store is at least as high.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Floor(u64);

impl Floor {
    /// Raises the version of an entity without a head that was loaded before the floor rose.
    pub(super) fn lift(self, state: &mut ResidentEntity) {
        if state.is_headless && state.head.version < self.0 {
            (state.head.version, state.head.deleted) = (self.0, true);
        }
    }

    /// Handles a durable commit: it may have removed a head.
    pub(super) fn on_committed(&mut self, state: &ResidentEntity, version: u64) {
        if state.head.deleted
            && state.head.version == version
            && state.head.is_removed() == Ok(true)
        {
            self.0 = self.0.max(version);
        }
    }
}

impl Machine {
    /// Whether the head of a deleted entity must be examined now, and nothing uses the entity.
    pub(super) fn may_sweep(&self, entity: &Entity, state: &ResidentEntity) -> bool {
        let utc = self.context.now.utc;
        state.sweep_at().is_some_and(|at| utc > 0 && at <= utc)
            && state.entries.is_empty()
            && state.channels.is_unused()
            && !state.lanes.awaits_sender()
            && self.wakes.postponed_until(&self.context, entity).is_none()
    }

    /// Removes the head of a deleted entity that is loaded, or lets it be examined later. Returns whether the entity
    /// must wait.
    pub(super) fn sweep(&mut self, entity: &Entity) -> bool {
        let Some(state) = self.residents.get(entity) else { return false };
        if !self.may_sweep(entity, state) {
            return false;
        }
        self.wakes.hold(entity);
        let ignores_lanes = self.context.has_mutation(Mutation::SweepEarly);
        let (now, settings) = (self.context.now, &self.context.settings);
        let Some(state) = self.residents.get_mut(entity) else { return false };
        if ignores_lanes {
            state.lanes = Lanes::default();
        }
        state.lanes.purge(now.cluster_time, settings);
        let wait = state.lanes.needed_until(settings).saturating_sub(now.cluster_time);
        if wait == 0 {
            // What remains are the lanes of senders. Each answer drops one, or makes it wait for `lane_ttl`: a sender
            // whose lane is needed must not be asked again and again.
            self.ask_sender(entity);
        }
        let turn = self.claim.next_turn();
        let settings = &self.context.settings;
        let Some(state) = self.residents.get_mut(entity) else { return false };
        if state.lanes.awaits_sender() {
            return true;
        }
        // Tells that are done are deleted, too.
        let version = state.head.version + 1;
        let records = state.outbox.apply(Vec::new(), version, now.cluster_time);
        if wait > 0 || state.has_remains() {
            let lane_ttl = settings.lane_ttl.max(1);
            let wait = if wait == 0 { lane_ttl } else { wait.min(lane_ttl) };
            state.head.expires_at = Some(now.utc.saturating_add(wait));
            self.commit(entity, turn, Effects::of_records(records));
            return true;
        }
        state.head.expires_at = None;
        // This fails only if a later release has filled the head with its own fields.
        let set = state.head.set_removed(true);
        debug_assert!(set.is_ok(), "{set:?}");
        self.commit(entity, turn, Effects::of_records(records));
        self.drop_instance(entity);
        true
    }
}
