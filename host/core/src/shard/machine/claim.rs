//! The right to write: claiming, claiming again after an unknown outcome, and losing (R1, R3, R5).

use super::*;

impl Machine {
    pub(super) fn on_claimed(&mut self, now: Now, number: u64, outcome: ClaimOutcome) {
        if number != self.claim.number || !self.claim_pending {
            return;
        }
        self.claim_pending = false;
        match outcome {
            ClaimOutcome::Granted => {
                self.claim_wait = self.settings.claim_backoff;
                if self.phase == Phase::Claiming {
                    self.phase = Phase::Serving;
                }
                for mut commit in std::mem::take(&mut self.unsent_commits) {
                    commit.claim = self.claim.clone();
                    self.outstanding += 1;
                    self.actions.push_back(Action::Commit(Box::new(commit)));
                }
                self.advance_stalled(now);
            }
            ClaimOutcome::Refused { current: standing } => {
                let message = format!(
                    "shard {} belongs to {} since epoch {}",
                    self.ownership.shard, standing.node, standing.epoch.0
                );
                self.lose_shard(Some(standing), message);
            }
            ClaimOutcome::OtherCluster { store_cluster: store } => {
                let message = format!("the store belongs to cluster {store}");
                self.lose_shard(None, message);
            }
            ClaimOutcome::Failed(why) => {
                if self.phase == Phase::Claiming {
                    self.claim_at = Some(now.mono + self.claim_wait);
                    self.wake_by(now.mono + self.claim_wait);
                    self.claim_wait = (self.claim_wait * 2).min(self.settings.claim_backoff * 16);
                }
                self.store_failed(&why);
            }
        }
    }

    /// Claims the shard again once every commit under the old number is answered (R3).
    pub(super) fn maybe_claim(&mut self) {
        if self.phase == Phase::Claiming
            && self.outstanding == 0
            && !self.claim_pending
            && self.claim_at.is_none()
        {
            let mut claim = Claim::clone(&self.claim);
            claim.number += 1;
            self.claim = Arc::new(claim);
            self.send_claim();
        }
    }

    pub(super) fn send_claim(&mut self) {
        self.claim_pending = true;
        self.claim_at = None;
        self.actions.push_back(Action::Claim(self.claim.clone()));
    }

    /// The store could not grant the claim: what waits is told so, and what ran ahead is dropped.
    pub(super) fn store_failed(&mut self, why: &str) {
        let outcome = Outcome::not_run_retryable(
            codes::STORE_UNAVAILABLE,
            format!("the store failed: {why}"),
            1_000,
        );
        self.drop_unsent_commits(None, &outcome);
        for entity in self.entities.keys().cloned().collect::<Vec<_>>() {
            self.give_up(&entity, &outcome);
        }
    }

    /// The shard is another's. A machine that was told to stop still ends by `Stopped`: somebody waits for it.
    pub(super) fn lose_shard(&mut self, standing: Option<Box<Claim>>, message: String) {
        self.owner_hint = standing.as_deref().map(OwnerHint::from);
        let outcome = Outcome::not_run_retryable(codes::NOT_OWNER, message.clone(), 100)
            .with_owner_hint(self.owner_hint.clone());
        self.drop_unsent_commits(None, &outcome);
        for entity in self.entities.keys().cloned().collect::<Vec<_>>() {
            self.give_up(&entity, &outcome);
        }
        if self.phase != Phase::Stopping {
            self.phase = Phase::Lost;
            self.actions.push_back(Action::Lost { current: standing, message });
        }
    }

    /// The same when the node knows it, and nothing is waited for: what a commit under way came to is never told here.
    pub(super) fn on_drop(&mut self) {
        self.phase = Phase::Lost;
        self.claim_pending = false;
        self.claim_at = None;
        self.stop_at = None;
        self.next_wake = None;
        let ended = OwnerHint { epoch: self.ownership.epoch, owner: None };
        self.owner_hint.get_or_insert(ended);
        let text = format!("shard {} belongs to another node", self.ownership.shard);
        let outcome = Outcome::not_run_retryable(codes::NOT_OWNER, text, 100)
            .with_owner_hint(self.owner_hint.clone());
        self.drop_unsent_commits(None, &outcome);
        for entity in self.entities.keys().cloned().collect::<Vec<_>>() {
            self.give_up(&entity, &outcome);
            let Some(state) = self.entities.get_mut(&entity) else { continue };
            for gated in std::mem::take(&mut state.gate) {
                for (query, ..) in gated.queries {
                    self.finish(&entity, &query, outcome.clone(), false);
                }
                let message =
                    "the shard went to another node before the turn was known to be durable";
                let unknown = Outcome::Unknown { message: message.into() };
                if let Some(command) = gated.message {
                    self.finish(&entity, &command, unknown, false);
                }
            }
        }
        self.entities.clear();
        self.timers.clear();
        self.stalled.clear();
    }

    pub(super) fn on_stop(&mut self, now: Now, reason: StopReason) {
        if !matches!(self.phase, Phase::Serving | Phase::Claiming) {
            return;
        }
        self.phase = Phase::Stopping;
        self.stop_at = Some(now.mono + self.settings.stop_timeout);
        self.wake_by(now.mono + self.settings.stop_timeout);
        let outcome = self.handing_off_outcome();
        self.claim_at = None;
        // What waits for a claim is not worth waiting for; nor is an instance that ran ahead with it.
        for entity in
            self.unsent_commits.iter().map(|commit| commit.entity.clone()).collect::<Vec<_>>()
        {
            self.drop_instance(&entity);
        }
        self.drop_unsent_commits(None, &outcome);
        for entity in self.entities.keys().cloned().collect::<Vec<_>>() {
            let Some(state) = self.entities.get(&entity) else { continue };
            if !state.stage.has_instance() {
                self.give_up(&entity, &outcome);
                continue;
            }
            for id in state.mailbox.all() {
                self.finish(&entity, &id, outcome.clone(), false);
            }
            self.stop_when_idle(now, &entity, reason);
        }
    }
}
