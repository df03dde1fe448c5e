//! What happens when the manager does not receive this node's messages although both are alive.
//!
//! Both renew their leases in the store, but messages between them are lost. Then rows continue to name this
//! incarnation as the owner of shards that it released, since "stopped" and every report were lost (R11), or a hand-off
//! waits for a shard that this node was never asked to stop. This node cannot send this information, but it can write
//! it: the incarnation stops its shards and writes its own row as left, and the next one registers. Every node sees
//! that row, so every shard of the former incarnation gets a new owner and a new epoch (R7).
//!
//! Confusing at first: this does not imply that the manager has failed. Time counts only while the manager is seen
//! to be active, in one term, and while a node whose `EntityStore` responds could own the shards. An incarnation
//! that holds nothing and is named by no row waits for nothing. So no incarnation ends for lack of a manager or of
//! a store, and its successor does not end in the same way before a manager has given it a shard.

use super::{
    Assignment, Context, Holdings, Member, Membership, Mutation, ObservedCluster, ShardId,
};

impl Holdings {
    /// Records whether the manager has yet to act on a shard: a row names this incarnation as the shard's owner
    /// although the shard is not held, or the shard's hand-off has begun although its stop was not requested.
    pub(super) fn track_awaiting_manager(
        &mut self,
        context: &Context,
        me: &Member,
        shard: ShardId,
        row: &Assignment,
    ) {
        let waits = row.owner.as_ref() == Some(me)
            && !context.identity.pools.is_stateless(shard)
            && match self.shards.get(&shard) {
                None => true,
                Some(held) => row.hand_off.is_some() && !held.stopping,
            };
        if waits {
            self.awaiting_manager
                .entry(shard)
                .or_insert(context.mono() + context.settings.manager_silence_timeout);
        } else {
            self.awaiting_manager.remove(&shard);
        }
    }

    /// Restarts the measurement of the manager's silence.
    pub(in super::super) fn restart_manager_silence_timers(&mut self, context: &Context) {
        let until = context.mono() + context.settings.manager_silence_timeout;
        for at in self.awaiting_manager.values_mut() {
            *at = until;
        }
    }

    /// Whether the manager has failed to act for so long that this incarnation must end.
    pub(in super::super) fn manager_is_silent(
        &mut self,
        context: &Context,
        observed: &ObservedCluster,
        membership: &Membership,
    ) -> bool {
        if self.awaiting_manager.is_empty() {
            return false;
        }
        if !self.manager_should_respond(context, observed, membership) {
            self.restart_manager_silence_timers(context);
            return false;
        }
        self.awaiting_manager.values().any(|until| context.mono() >= *until)
            && !context.has_mutation(Mutation::IgnoreManagerSilence)
    }

    /// Whether another node is the manager and is active, as far as rows show, and could take the action that this node
    /// waits for.
    fn manager_should_respond(
        &self,
        context: &Context,
        observed: &ObservedCluster,
        membership: &Membership,
    ) -> bool {
        let me = &context.identity.node;
        let Some(holder) = observed.manager_row().map(|row| &row.holder) else { return false };
        let mut waiting =
            context.identity.pools.iter().filter(|pool| {
                self.awaiting_manager.range(pool.first..=pool.last()).next().is_some()
            });
        holder.node != *me
            && observed.is_watching()
            && !membership.is_suspended()
            && observed.alive(holder)
            && !observed.lease_unchanged_for(&holder.node, context.mono(), context.settings.lease)
            && waiting.any(|pool| {
                observed
                    .eligible_hosts(pool)
                    .any(|(host, _)| host.node != *me || membership.is_store_available(context))
            })
    }
}
