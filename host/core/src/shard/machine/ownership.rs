//! How a claim's answer, a stop or a loss affects the entities of the shard (R1, R3, R5).

use super::{Machine, Outcome, codes};
use crate::records::{Claim, ClaimOutcome};
use crate::shard::StopReason;

impl Machine {
    pub(super) fn on_claimed(&mut self, number: u64, outcome: ClaimOutcome) {
        if !self.claim.take_answer(number) {
            return;
        }
        match outcome {
            ClaimOutcome::Granted => {
                self.claim.on_granted(&self.context);
                self.gate.send_unsent(&mut self.context, &self.claim);
                self.wakes.reset();
                self.recovery.reset();
                self.advance_stalled();
            }
            ClaimOutcome::Refused { current } => {
                let message = format!(
                    "shard {} belongs to {} since epoch {}",
                    self.claim.ownership().shard,
                    current.owner.node,
                    current.epoch.0
                );
                self.lose_shard(Some(current), message);
            }
            ClaimOutcome::OtherCluster { store_cluster } => {
                let message = format!("the store belongs to cluster {store_cluster}");
                self.lose_shard(None, message);
            }
            ClaimOutcome::Failed(why) => {
                if let Some(at) = self.claim.on_failed(&self.context) {
                    self.schedule.wake_by(at);
                }
                self.give_all_up(&Outcome::not_run_retryable(
                    codes::STORE_UNAVAILABLE,
                    format!("the store failed: {why}"),
                    1_000,
                ));
            }
        }
    }

    /// Ends all pending messages whose commits are not with the store, and discards what ran ahead of the store.
    pub(super) fn give_all_up(&mut self, outcome: &Outcome) {
        self.drop_unsent_commits(None, outcome);
        for entity in self.residents.names() {
            self.give_up(&entity, outcome);
        }
    }

    /// Handles the loss of the shard to another node.
    pub(super) fn lose_shard(&mut self, current: Option<Box<Claim>>, message: String) {
        let outcome = self.claim.on_lost(current.as_deref(), &message);
        self.give_all_up(&outcome);
        self.claim.end_lost(&mut self.context, current, message);
    }

    /// Handles a loss of the shard that the node itself reports. Nothing is awaited, since the outcome of a pending
    /// commit never arrives here.
    pub(super) fn on_drop(&mut self) {
        let outcome = self.claim.drop_shard();
        self.drop_unsent_commits(None, &outcome);
        for entity in self.residents.names() {
            self.give_up(&entity, &outcome);
            let Some(state) = self.residents.get_mut(&entity) else { continue };
            for gated in std::mem::take(&mut state.gate) {
                for (query, ..) in gated.queries {
                    self.finish(&entity, &query, outcome.clone(), false);
                }
                let message =
                    "the shard moved to another node before the commit's outcome was known";
                let unknown = Outcome::Unknown { message: message.into() };
                if let Some(command) = gated.message {
                    self.finish(&entity, &command, unknown, false);
                }
            }
        }
        self.residents.clear();
        self.schedule.clear();
    }

    pub(super) fn on_stop(&mut self, reason: StopReason) {
        let Some(stop_at) = self.claim.stop(&self.context) else { return };
        self.schedule.wake_by(stop_at);
        let outcome = self.claim.handing_off_outcome();
        // Neither commits that are queued for a claim nor the instances that ran ahead of them are worth waiting for.
        for entity in self.gate.entities_with_unsent() {
            self.drop_instance(&entity);
        }
        self.drop_unsent_commits(None, &outcome);
        for entity in self.residents.names() {
            self.end_second(&entity);
            let Some(state) = self.residents.get(&entity) else { continue };
            // A turn that waits for an ask could wait for an entity of this shard (R15).
            if !state.stage.has_instance() || self.waits_for_others(state) {
                self.give_up(&entity, &outcome);
                continue;
            }
            for id in state.mailbox.all() {
                self.finish(&entity, &id, outcome.clone(), false);
            }
            self.refuse_channel_reads(&entity, &outcome);
            self.stop_when_idle(&entity, reason);
        }
    }
}
