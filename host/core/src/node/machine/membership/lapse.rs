//! A lease that lapsed, and what is to be seen to before this life goes on (R9).

use super::*;

impl Machine {
    /// A node stops on its own clock, before anybody else may take its shards (R9, E14).
    pub(in super::super) fn check_lapse(&mut self, now: Now) {
        let off = self.has_mutation(Mutation::SkipSuspend);
        let Membership::Registered(life) = &mut self.membership else { return };
        if !life.suspended && now.mono.saturating_sub(life.lease_start) >= life.lease && !off {
            life.suspended = true;
            life.claims_unverified = true;
            life.claim_check = None;
            self.actions.push_back(Action::Suspend);
            self.notify(Notice::LeaseLapsed);
        }
    }

    /// Whether the `EntityStore` answered within the last lease (R9).
    pub(in super::super) fn is_store_available(&self, now: Now) -> bool {
        now.mono.saturating_sub(self.store_last_responded) < self.settings.lease
    }

    /// Whether a node that could use its `EntityStore` has not been answered for one lease (R9). While its own lease
    /// is lapsed nobody can say.
    pub(in super::super) fn has_lost_store(&self, now: Now) -> bool {
        let lease = self.settings.lease;
        let Membership::Registered(life) = &self.membership else { return false };
        let lapsed = now.mono.saturating_sub(life.lease_start) >= life.lease;
        !lapsed
            && now.mono.saturating_sub(self.store_last_responded.max(life.recovered_at)) >= lease
    }

    /// After a lapse: a renewal of the same life, then its claims read back unchanged (R9).
    pub(super) fn try_resume(&mut self, now: Now) {
        let blindly = self.has_mutation(Mutation::ResumeWithoutClaimCheck);
        // Those that claim too: word that a claim was granted may be on its way.
        let held: Vec<_> =
            self.held_shards.iter().map(|(shard, own)| (*shard, own.epoch)).collect();
        let Membership::Registered(life) = &mut self.membership else { return };
        let lapsed = now.mono.saturating_sub(life.lease_start) >= life.lease;
        if !life.suspended || lapsed || life.claim_check.is_some() {
            return;
        }
        if life.claims_unverified && !held.is_empty() && !blindly {
            if now.mono < life.claims_at {
                return;
            }
            self.last_request_id += 1;
            let number = self.last_request_id;
            let shards = held.iter().map(|(shard, _)| *shard).collect();
            life.claim_check = Some((number, held));
            self.actions.push_back(Action::ReadClaims { request_id: number, shards });
            return;
        }
        life.suspended = false;
        life.claims_unverified = false;
        self.store_last_responded = self.store_last_responded.max(now.mono);
        self.actions.push_back(Action::Resume);
        self.notify(Notice::LeaseRecovered);
        self.reapply_all_chunks();
    }

    pub(in super::super) fn on_claims(
        &mut self,
        now: Now,
        number: u64,
        claims: Option<Vec<Option<Claim>>>,
    ) {
        let Membership::Registered(life) = &mut self.membership else { return };
        let Some((_, asked)) = life.claim_check.take_if(|(asked, _)| *asked == number) else {
            return;
        };
        let Some(claims) = claims else {
            life.claims_at = now.mono + self.settings.store_retry_interval;
            return;
        };
        life.claims_unverified = false;
        let me = life.member.clone();
        let mut changed = Vec::new();
        for ((shard, epoch), claim) in asked.into_iter().zip(claims) {
            let mine = claim.as_ref().is_some_and(|claim| {
                claim.epoch == epoch && claim.node == me.node && claim.incarnation == me.incarnation
            });
            if !mine {
                changed.push((shard, epoch, claim.map(|claim| claim.epoch)));
            }
        }
        for (shard, epoch, standing) in changed {
            // One that claims has not its claim yet, and will be told if another stands above it.
            let lost =
                |own: &HeldShard| own.epoch == epoch && (own.serving || standing > Some(epoch));
            if self.held_shards.get(&shard).is_some_and(lost) {
                self.actions.push_back(Action::DropShard { shard, epoch });
                self.on_lost(now, shard, epoch, standing);
            }
        }
    }
}
