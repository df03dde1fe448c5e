//! A node that released its shards because the store did not respond gets none for a while if others can own them
//! (R9).
//!
//! A store that responds in time to an idle node may be too slow for a node with shards, so that the node releases
//! its shards each time it gets some. Doubling the probation limits how often that moves shards.

use super::{Context, Holdings, Membership, Mutation, Notice, ObservedCluster};
#[cfg(any(test, feature = "testing"))]
use crate::node::Canonicalizer;

/// For how many leases a node is on probation after it released its shards because the store did not respond.
const PROBATION: u64 = 4;
/// The longest probation, in leases. The probation doubles each time the node releases its shards again soon after
/// getting some.
const LONGEST_PROBATION: u64 = 64;

#[derive(Clone, Copy, Debug, Hash)]
pub(super) struct Probation {
    /// When the shards were released.
    started_at: u64,
    /// Duration in milliseconds.
    duration: u64,
    /// When the node first held a shard again.
    first_held_again_at: Option<u64>,
}

impl Probation {
    /// The probation of a node that releases its shards now. It is longer than the last one if the node held shards for
    /// a shorter time than the last probation lasted.
    fn after(last: Option<Self>, now: u64, lease: u64) -> Self {
        // The time spent waiting for shards after the last probation does not count: the manager may have assigned
        // none.
        let soon = |last: &Self| {
            last.first_held_again_at.is_none_or(|back| now.saturating_sub(back) < last.duration)
        };
        let duration = match last.filter(soon) {
            Some(last) => (last.duration * 2).min(lease * LONGEST_PROBATION),
            None => lease * PROBATION,
        };
        Self { started_at: now, duration, first_held_again_at: None }
    }

    fn has_ended(self, now: u64) -> bool {
        now.saturating_sub(self.started_at) >= self.duration
    }

    pub(super) fn on_shard_held(&mut self, now: u64) {
        self.first_held_again_at.get_or_insert(now);
    }

    #[cfg(any(test, feature = "testing"))]
    pub(super) fn canonicalize(&mut self, to: &dyn Canonicalizer) {
        self.started_at = to.map_time(self.started_at);
        self.first_held_again_at = self.first_held_again_at.map(|at| to.map_time(at));
    }
}

impl Holdings {
    /// A node that could commit nothing for one lease releases its shards (R9). Returns whether it did.
    ///
    /// The lease begins anew when the node gets shards again: if no other host can have them, it gets them at once, and
    /// would release them before the store could answer a claim, again and again.
    pub(in super::super) fn release_without_store(
        &mut self,
        context: &mut Context,
        observed: &ObservedCluster,
        membership: &Membership,
    ) -> bool {
        let held_again = self.probation.and_then(|it| it.first_held_again_at);
        if self.shards.is_empty()
            || !membership.has_lost_store_since(context, held_again.unwrap_or_default())
            || context.has_mutation(Mutation::KeepShardsWithoutStore)
        {
            return false;
        }
        let last = self.probation.filter(|_| !context.has_mutation(Mutation::ConstantProbation));
        let probation = Probation::after(last, context.mono(), context.settings.lease);
        self.probation = Some(probation);
        context.notify(Notice::ShardsReleased {
            shards: self.shards.len(),
            probation: probation.duration,
        });
        self.drop_all(context, observed, membership.member());
        self.report_soon(context);
        true
    }

    pub(in super::super) fn on_probation(&self, context: &Context) -> bool {
        self.probation.is_some_and(|probation| !probation.has_ended(context.mono()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r9_a_probation_doubles_only_soon_after_the_last() {
        let last =
            |back| Some(Probation { started_at: 0, duration: 400, first_held_again_at: back });
        let span = |last, now| Probation::after(last, now, 100).duration;
        assert_eq!(span(None, 1_000), 4 * 100);
        assert_eq!(span(last(None), 1_000), 800, "the node has held no shard since");
        assert_eq!(span(last(Some(1_000)), 1_399), 800);
        assert_eq!(
            span(last(Some(1_000)), 1_400),
            400,
            "the node held shards for as long as the probation"
        );
        let longest = Some(Probation { started_at: 0, duration: 6_000, first_held_again_at: None });
        assert_eq!(span(longest, 1), 64 * 100);
    }
}
