//! When the manager does not hear this node, though both live.
//!
//! Each renews its lease in the store, and words from one to the other go nowhere. Then rows go on to name this
//! life for shards that it gave up, since "stopped" and every report were said in vain (R11), or want shards
//! elsewhere that nobody told it to stop. What cannot be said is written: the life stops what it has, says
//! goodbye on its own row, and the next one registers. That row everybody sees, so every shard of the former
//! life gets a new owner and a new epoch (R7).
//!
//! Confusing at first: nothing here says that the manager is at fault or gone. Time counts only while it is
//! seen to be at work, in one term, and while a node whose `EntityStore` answers could have the shards; and a life
//! that holds nothing and is named by no row waits for nothing. So no life ends for want of a manager or of a store, and none ends
//! again before a manager has given its successor a shard.

use super::*;

impl Machine {
    /// Notes whether the manager is yet to hear something of a shard: a row names this life for it and it is not
    /// held, or it is to be handed off and was not told to stop.
    pub(super) fn track_awaiting_manager(
        &mut self,
        now: Now,
        me: &Member,
        shard: ShardId,
        row: &Assignment,
    ) {
        let waits = row.owner.as_ref() == Some(me)
            && match self.held_shards.get(&shard) {
                None => true,
                Some(own) => row.hand_off.is_some() && !own.stopping,
            };
        if waits {
            self.awaiting_manager
                .entry(shard)
                .or_insert(now.mono + self.settings.manager_silence_timeout);
        } else {
            self.awaiting_manager.remove(&shard);
        }
    }

    /// Counts from now on how long the manager has not heard.
    pub(super) fn restart_manager_silence_timers(&mut self, now: Now) {
        let until = now.mono + self.settings.manager_silence_timeout;
        for at in self.awaiting_manager.values_mut() {
            *at = until;
        }
    }

    /// Ends this life once the manager has not heard it for long.
    pub(super) fn drive_manager_silence(&mut self, now: Now) {
        if self.awaiting_manager.is_empty() {
            return;
        }
        if !self.manager_should_respond(now) {
            return self.restart_manager_silence_timers(now);
        }
        let over = self.awaiting_manager.values().any(|until| now.mono >= *until);
        if !over || self.has_mutation(Mutation::IgnoreManagerSilence) {
            return;
        }
        match (self.leave_mode, &mut self.membership) {
            (LeaveMode::Stay, Membership::Registered(life)) => life.is_retiring = true,
            // Its goodbye does not wait for hand-offs any longer.
            (LeaveMode::AfterDrain, _) => self.leave_mode = LeaveMode::Immediate,
            _ => {}
        }
    }

    /// Whether another node manages and is at work, as far as rows show, and could do what this one waits for.
    fn manager_should_respond(&self, now: Now) -> bool {
        let Some((row, _)) = &self.view.manager else { return false };
        let holder = &row.holder;
        holder.node != self.identity.node
            && self.watching
            && !self.is_suspended()
            && self.view.alive(holder)
            && !self.view.lease_unchanged_for(&holder.node, now.mono, self.settings.lease)
            && self
                .view
                .eligible_hosts()
                .any(|(host, _)| host.node != self.identity.node || self.is_store_available(now))
    }
}
