//! A lapsed lease, and what must happen before its incarnation resumes (R9).

use super::{Action, Context, Epoch, Membership, Mutation, Notice, ShardId};
use crate::records::{Claim, Presence};

/// A shard whose claim is no longer the one that this incarnation was granted.
pub(in super::super) struct ChangedClaim {
    pub(in super::super) shard: ShardId,
    /// The epoch in which this node holds the shard.
    pub(in super::super) epoch: Epoch,
    /// The epoch of the current claim; `None` if there is none.
    pub(in super::super) current: Option<Epoch>,
}

impl Membership {
    /// Suspends the node, by its own clock, before another node may take its shards (R9, E14).
    pub(in super::super) fn check_lapse(&mut self, context: &mut Context) {
        let now = context.mono();
        let Some(own) = self.registration_mut() else { return };
        if !own.suspended
            && own.lease_has_lapsed(now)
            && !context.has_mutation(Mutation::SkipSuspend)
        {
            own.suspended = true;
            own.claims_unverified = true;
            own.claim_check = None;
            context.push(Action::Suspend);
            context.notify(Notice::LeaseLapsed);
        }
    }

    pub(in super::super) fn on_store_responded(&mut self, sent_at: u64) {
        self.store_last_responded = self.store_last_responded.max(sent_at);
    }

    /// Whether the `EntityStore` responded within the last lease (R9).
    pub(in super::super) fn is_store_available(&self, context: &Context) -> bool {
        context.mono().saturating_sub(self.store_last_responded) < context.settings.lease
    }

    /// Whether a node that could use its `EntityStore` got no response for one lease (R9). While the node's own lease
    /// has lapsed, this is unknown, and the result is false.
    pub(in super::super) fn has_lost_store(&self, context: &Context) -> bool {
        self.has_lost_store_since(context, 0)
    }

    /// As [`Self::has_lost_store`], but the lease begins at this time at the earliest.
    pub(in super::super) fn has_lost_store_since(&self, context: &Context, begin: u64) -> bool {
        let now = context.mono();
        self.registration().is_some_and(|own| {
            let since = self.store_last_responded.max(own.recovered_at).max(begin);
            !own.lease_has_lapsed(now) && now.saturating_sub(since) >= context.settings.lease
        })
    }

    /// After a lapse: resumes once a renewal of the same incarnation has succeeded and its claims have been read (R9).
    /// Returns whether it resumes now.
    pub(super) fn try_resume(
        &mut self,
        context: &mut Context,
        held: impl FnOnce() -> Vec<(ShardId, Epoch)>,
    ) -> bool {
        let now = context.mono();
        let has_lost = self.has_lost;
        let Some(own) = self.registration_mut() else { return false };
        if has_lost || !own.suspended || own.lease_has_lapsed(now) || own.claim_check.is_some() {
            return false;
        }
        if own.claims_unverified && !context.has_mutation(Mutation::ResumeWithoutClaimCheck) {
            // Shards that are being claimed count too: the answer that granted their claim may be in transit.
            let held = held();
            if !held.is_empty() {
                if now >= own.claims_at {
                    let request_id = context.requests.next_id();
                    let shards = held.iter().map(|(shard, _)| *shard).collect();
                    own.claim_check = Some((request_id, held));
                    context.push(Action::ReadClaims { request_id, shards });
                }
                return false;
            }
        }
        own.suspended = false;
        own.claims_unverified = false;
        self.on_store_responded(now);
        context.push(Action::Resume);
        context.notify(Notice::LeaseRecovered);
        true
    }

    /// Handles the claims that were read, and returns those that changed.
    pub(in super::super) fn on_claims(
        &mut self,
        context: &Context,
        request_id: u64,
        claims: Option<Vec<Option<Claim>>>,
    ) -> Vec<ChangedClaim> {
        let Some(own) = self.registration_mut() else { return Vec::new() };
        let Some((_, held)) = own.claim_check.take_if(|(pending, _)| *pending == request_id) else {
            return Vec::new();
        };
        let Some(claims) = claims else {
            own.claims_at = context.mono() + context.settings.store_retry_interval;
            return Vec::new();
        };
        own.claims_unverified = false;
        let me = &own.member;
        let changed = held.into_iter().zip(claims).filter(|((_, epoch), claim)| {
            // A claim that says that the data was moved keeps its owner and its epoch (R26).
            let is_same = |claim: &Claim| {
                claim.epoch == *epoch
                    && claim.owner == *me
                    && claim.presence() == Ok(Presence::Here)
            };
            !claim.as_ref().is_some_and(is_same)
        });
        changed
            .map(|((shard, epoch), claim)| ChangedClaim {
                shard,
                epoch,
                current: claim.map(|claim| claim.epoch),
            })
            .collect()
    }
}
