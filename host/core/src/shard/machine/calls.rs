//! Outgoing HTTP calls of running turns: when they may be made, and that a turn with a pending call waits (R8, R15,
//! R20).
//!
//! A call is released once the earlier turns of its entity are durable, since it may reveal their effects, and only
//! under a valid lease. Its timeouts and its retries are the node's and the guest's business.

use super::{Action, Entity, Machine, Mutation, TurnId};
use crate::shard::calls::{CallDigest, IdempotencyKey};
use crate::shard::entity::{ResidentEntity, Stage};

impl Machine {
    pub(super) fn on_call_started(
        &mut self,
        entity: &Entity,
        turn: TurnId,
        place: u32,
        digest: &CallDigest,
    ) {
        let Some(state) = self.residents.get(entity).filter(|state| runs(state, turn)) else {
            return;
        };
        // The node refuses a query's calls; without a release they would not be made either.
        let Some(calling) =
            self.asking_turn(entity, state, state.generation).filter(|it| !it.query_only)
        else {
            return;
        };
        if self.claim.is_stopping() && !self.context.has_mutation(Mutation::KeepWaitingTurns) {
            let outcome = self.claim.handing_off_outcome();
            return self.give_up(entity, &outcome);
        }
        let owned = self.claim.ownership();
        let cluster = (owned.cluster, &*owned.shard.namespace);
        let key = IdempotencyKey::derive(cluster, entity, &calling.key, place, digest);
        if let Some(state) = self.residents.get_mut(entity) {
            state.calls.start(place, key);
            self.advance(entity);
        }
    }

    pub(super) fn on_call_ended(&mut self, entity: &Entity, turn: TurnId, place: u32) {
        if let Some(state) = self.residents.get_mut(entity).filter(|state| runs(state, turn)) {
            state.calls.end(place);
        }
    }

    /// Releases the calls that wait, if they may be made now.
    pub(super) fn release_calls(&mut self, entity: &Entity) {
        let waits = |state: &ResidentEntity| state.calls.has_unreleased();
        if !self.residents.get(entity).is_some_and(waits) {
            return;
        }
        if !self.claim.may_commit() || !self.lease.may_reply(&self.context) {
            return self.schedule.stall(entity);
        }
        let early = self.context.has_mutation(Mutation::AskBeforeCommit);
        let Some(state) = self.residents.get_mut(entity) else { return };
        if !state.gate.is_empty() && !early {
            return;
        }
        let generation = state.generation;
        for (place, key) in state.calls.release() {
            let entity = entity.clone();
            self.context.push(Action::ReleaseCall { entity, generation, place, key });
        }
    }
}

fn runs(state: &ResidentEntity, turn: TurnId) -> bool {
    matches!(state.stage, Stage::Running(running, _) | Stage::Firing(running, _) if running == turn)
}
