//! The node's lease as this shard knows it, and its lapse (R8, R9).
//!
//! Confusing at first: suspension is not a phase. A machine may be suspended while it claims, serves or stops. Turns
//! that ran before may still be made durable, since the store fences commits by their claim. Messages wait in the
//! mailbox, within its limit and their deadlines.

use super::context::Context;
use crate::shard::Mutation;

#[derive(Clone, Debug, Default)]
pub(super) struct Lease {
    /// When the last successful renewal was sent.
    start: Option<u64>,
    /// How long the lease is valid from then on.
    length: u64,
    /// The same of the shard's own lease, if it has one (E8).
    own: Option<(u64, u64)>,
    suspended: bool,
}

impl Lease {
    pub(super) fn on_renewed(&mut self, sent_at: u64, length: u64) {
        self.start = self.start.max(Some(sent_at));
        self.length = length;
    }

    pub(super) fn on_own_renewed(&mut self, sent_at: u64, length: u64) {
        let before = self.own.map_or(0, |(start, _)| start);
        self.own = Some((before.max(sent_at), length));
    }

    pub(super) fn suspend(&mut self) {
        self.suspended = true;
    }

    /// Ends the suspension, and returns whether there was one.
    pub(super) fn resume(&mut self) -> bool {
        std::mem::take(&mut self.suspended)
    }

    pub(super) fn is_suspended(&self) -> bool {
        self.suspended
    }

    /// Whether no turn may start now.
    pub(super) fn is_paused(&self, context: &Context) -> bool {
        self.suspended && !context.has_mutation(Mutation::RunWhileSuspended)
    }

    /// Whether a query's answer may be sent: no other node can have written newer state (R8, R9).
    pub(super) fn may_reply(&self, context: &Context) -> bool {
        self.is_valid(context) && !self.is_paused(context)
            || context.has_mutation(Mutation::QueryWithoutLease)
    }

    /// Whether less than 80 % of the lease, and of the shard's own lease, has passed.
    fn is_valid(&self, context: &Context) -> bool {
        let is_young = |start: u64, length: u64| {
            let length = match context.has_mutation(Mutation::DoubleLease) {
                true => length * 2,
                false => length / 5 * 4,
            };
            context.mono().saturating_sub(start) < length
        };
        let own = self.own.filter(|_| !context.has_mutation(Mutation::IgnoreShardLease));
        self.start.is_some_and(|start| is_young(start, self.length))
            && own.is_none_or(|(start, length)| is_young(start, length))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Now;
    use crate::shard::Settings;

    #[test]
    fn r8_a_lease_counts_from_the_latest_renewal_for_80_percent() {
        let mut context = Context::new(Settings::default());
        let mut lease = Lease::default();
        assert!(!lease.may_reply(&context), "no renewal is known");
        lease.on_renewed(1_000, 1_000);
        lease.on_renewed(500, 1_000);
        let mut at = |mono, lease: &Lease| {
            context.now = Now { mono, cluster_time: 0, utc: 0 };
            lease.may_reply(&context)
        };
        assert!(at(1_799, &lease) && !at(1_800, &lease));
        lease.suspend();
        assert!(!at(1_100, &lease), "suspended");
        assert!(lease.resume() && at(1_100, &lease) && !lease.resume());
    }

    #[test]
    fn e8_a_query_needs_the_shards_own_lease_too() {
        let mut context = Context::new(Settings::default());
        context.now = Now { mono: 2_000, cluster_time: 0, utc: 0 };
        let mut lease = Lease::default();
        lease.on_renewed(2_000, 1_000);
        lease.on_own_renewed(0, 0);
        assert!(!lease.may_reply(&context), "no lease of the shard is known yet");
        lease.on_own_renewed(1_201, 1_000);
        assert!(lease.may_reply(&context));
        lease.on_own_renewed(1_200, 1_000);
        assert!(lease.may_reply(&context), "an older renewal changes nothing");
        context.now.mono = 2_001;
        assert!(!lease.may_reply(&context), "80 % of the shard's lease has passed");
        lease.on_own_renewed(2_001, 1_000);
        context.now.mono = 2_800;
        assert!(!lease.may_reply(&context), "80 % of the node's lease has passed");
    }
}
