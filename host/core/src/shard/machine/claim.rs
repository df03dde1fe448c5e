//! The right to write: how the shard is claimed, claimed again after an unknown outcome, and lost (R1, R3, R5).

use std::sync::Arc;

use ostraca_codes::codes;

use super::context::Context;
use super::{Ownership, Phase};
use crate::extensions::Extensions;
use crate::ids::TurnId;
use crate::message::{Outcome, OwnerHint};
use crate::records::Claim;
use crate::shard::Action;

/// The machine's claim of its shard, and the phase that follows from it.
#[derive(Clone, Debug)]
pub(super) struct ShardClaim {
    ownership: Ownership,
    phase: Phase,
    claim: Arc<Claim>,
    /// Whether a claim was sent and has not been answered.
    pending: bool,
    /// Whether any claim of this machine was granted.
    was_granted: bool,
    /// When to claim again after a failed claim.
    retry_at: Option<u64>,
    /// The pause after the next failure.
    backoff: u64,
    /// When a stopping shard interrupts the turns that are still running.
    stop_at: Option<u64>,
    /// The shard's owner, if the shard was lost and the store named its owner.
    owner_hint: Option<OwnerHint>,
    last_turn: u64,
}

impl ShardClaim {
    /// Claims the shard.
    pub(super) fn new(context: &mut Context, ownership: Ownership) -> Self {
        let claim = Arc::new(Claim {
            cluster: ownership.cluster,
            shard: ownership.shard.clone(),
            epoch: ownership.epoch,
            owner: ownership.owner.clone(),
            number: 1,
            extensions: Extensions::default(),
        });
        context.push(Action::Claim(claim.clone()));
        Self {
            ownership,
            phase: Phase::Claiming,
            claim,
            pending: true,
            was_granted: false,
            retry_at: None,
            backoff: context.settings.claim_backoff,
            stop_at: None,
            owner_hint: None,
            last_turn: 0,
        }
    }

    pub(super) fn phase(&self) -> Phase {
        self.phase
    }

    pub(super) fn is_serving(&self) -> bool {
        self.phase == Phase::Serving
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.phase == Phase::Stopping
    }

    pub(super) fn ownership(&self) -> &Ownership {
        &self.ownership
    }

    pub(super) fn current(&self) -> &Arc<Claim> {
        &self.claim
    }

    /// Whether a stopping machine must wait for the answer to a claim. A machine that was never granted one has written
    /// nothing, and never will: it need not wait for a store that may not answer (K14).
    pub(super) fn is_awaited(&self) -> bool {
        self.pending && self.was_granted
    }

    /// Whether commits can use the claim now. If not, they wait until it is granted.
    pub(super) fn may_commit(&self) -> bool {
        self.phase != Phase::Claiming && !self.pending
    }

    pub(super) fn next_turn(&mut self) -> TurnId {
        self.last_turn += 1;
        TurnId {
            nonce: self.ownership.owner.incarnation.nonce,
            shard: self.ownership.shard.shard.0,
            epoch: self.ownership.epoch,
            number: self.last_turn,
        }
    }

    /// Whether this machine ran the turn, and not an earlier machine of the same shard.
    pub(super) fn ran(&self, turn: &TurnId) -> bool {
        turn.epoch == self.ownership.epoch && turn.nonce == self.ownership.owner.incarnation.nonce
    }

    // Claiming.

    /// Handles a claim's answer. Returns whether it belongs to the pending claim.
    pub(super) fn take_answer(&mut self, number: u64) -> bool {
        number == self.claim.number && std::mem::take(&mut self.pending)
    }

    pub(super) fn on_granted(&mut self, context: &Context) {
        self.backoff = context.settings.claim_backoff;
        self.was_granted = true;
        if self.phase == Phase::Claiming {
            self.phase = Phase::Serving;
        }
    }

    /// Handles a failed claim. Returns when it will be retried, if it will.
    pub(super) fn on_failed(&mut self, context: &Context) -> Option<u64> {
        if self.phase != Phase::Claiming {
            return None;
        }
        let retry_at = context.mono() + self.backoff;
        self.retry_at = Some(retry_at);
        self.backoff = (self.backoff * 2).min(context.settings.claim_backoff * 16);
        Some(retry_at)
    }

    /// Handles a commit whose outcome is unknown: the shard must be claimed again (R3).
    pub(super) fn on_unknown_commit(&mut self) {
        if self.phase == Phase::Serving {
            self.phase = Phase::Claiming;
        }
    }

    /// Claims the shard again, if that is needed. Every commit under the old number must have been answered (R3).
    pub(super) fn claim_again(&mut self, context: &mut Context) {
        if self.phase == Phase::Claiming && !self.pending && self.retry_at.is_none() {
            let mut claim = Claim::clone(&self.claim);
            claim.number += 1;
            self.claim = Arc::new(claim);
            self.send(context);
        }
    }

    /// Retries a failed claim if its time has come; otherwise returns that time.
    pub(super) fn retry(&mut self, context: &mut Context) -> Option<u64> {
        let at = self.retry_at?;
        if at > context.mono() {
            return Some(at);
        }
        self.send(context);
        None
    }

    fn send(&mut self, context: &mut Context) {
        self.pending = true;
        self.retry_at = None;
        context.push(Action::Claim(self.claim.clone()));
    }

    // The end.

    /// Begins to stop, and returns when running turns will be interrupted. Returns `None` if the shard is already
    /// stopping, has stopped or was lost.
    pub(super) fn stop(&mut self, context: &Context) -> Option<u64> {
        if !matches!(self.phase, Phase::Serving | Phase::Claiming) {
            return None;
        }
        self.phase = Phase::Stopping;
        self.retry_at = None;
        self.stop_at = Some(context.mono() + context.settings.stop_timeout);
        self.stop_at
    }

    /// When running turns will be interrupted.
    pub(super) fn stop_at(&self) -> Option<u64> {
        self.stop_at
    }

    /// Records that the stop deadline has passed.
    pub(super) fn on_stop_deadline(&mut self) {
        self.stop_at = None;
    }

    pub(super) fn on_stopped(&mut self, context: &mut Context) {
        self.phase = Phase::Stopped;
        // An answer that comes later changes nothing.
        self.pending = false;
        context.push(Action::Stopped);
    }

    /// Whether a refused commit can still make this machine lose the shard. While a claim is pending, its answer
    /// decides.
    pub(super) fn may_be_lost_by_commit(&self) -> bool {
        !matches!(self.phase, Phase::Lost | Phase::Claiming)
    }

    /// Handles the loss of the shard as the store reports it. Returns the outcome for waiting messages.
    pub(super) fn on_lost(&mut self, current: Option<&Claim>, message: &str) -> Outcome {
        self.owner_hint = current.map(OwnerHint::from);
        self.not_owner(message)
    }

    /// Ends as lost. A machine that was told to stop still ends with `Stopped`, since its node waits for that.
    pub(super) fn end_lost(
        &mut self,
        context: &mut Context,
        current: Option<Box<Claim>>,
        message: String,
    ) {
        if self.phase != Phase::Stopping {
            self.phase = Phase::Lost;
            context.push(Action::Lost { current, message });
        }
    }

    /// Handles the node's report that another node owns the shard. Returns the outcome for waiting messages.
    pub(super) fn drop_shard(&mut self) -> Outcome {
        self.phase = Phase::Lost;
        self.pending = false;
        self.retry_at = None;
        self.stop_at = None;
        let ended = OwnerHint { epoch: self.ownership.epoch, owner: None };
        self.owner_hint.get_or_insert(ended);
        self.not_owner(&self.belongs_to_another())
    }

    // Refusals.

    /// The refusal of messages in this phase, if there is one.
    pub(super) fn refusal(&self) -> Option<Outcome> {
        match self.phase {
            Phase::Lost => Some(self.not_owner(&self.belongs_to_another())),
            Phase::Stopping | Phase::Stopped => Some(self.handing_off_outcome()),
            Phase::Claiming if self.retry_at.is_some() => {
                let text = "the store does not respond; retrying";
                Some(Outcome::not_run_retryable(codes::STORE_UNAVAILABLE, text, 1_000))
            }
            Phase::Claiming | Phase::Serving => None,
        }
    }

    pub(super) fn belongs_to_another(&self) -> String {
        format!("shard {} belongs to another node", self.ownership.shard)
    }

    fn not_owner(&self, message: &str) -> Outcome {
        Outcome::not_run_retryable(codes::NOT_OWNER, message, 100)
            .with_owner_hint(self.owner_hint.clone())
    }

    pub(super) fn handing_off_outcome(&self) -> Outcome {
        let text = format!("shard {} is being handed off", self.ownership.shard);
        self.rebalancing_outcome(text)
    }

    pub(super) fn rebalancing_outcome(&self, text: impl Into<String>) -> Outcome {
        let ends = OwnerHint { epoch: self.ownership.epoch, owner: None };
        Outcome::not_run_retryable(codes::REBALANCING, text, 100).with_owner_hint(Some(ends))
    }
}
