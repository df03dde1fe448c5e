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
    pub(super) fn note_waiting(&mut self, now: Now, me: &Member, shard: ShardId, row: &ShardRow) {
        let waits = row.owner.as_ref() == Some(me)
            && match self.held.get(&shard) {
                None => true,
                Some(own) => row.moving.is_some() && !own.stopping,
            };
        if waits {
            self.waiting.entry(shard).or_insert(now.mono + self.settings.unheard);
        } else {
            self.waiting.remove(&shard);
        }
    }

    /// Counts from now on how long the manager has not heard.
    pub(super) fn wait_anew(&mut self, now: Now) {
        let until = now.mono + self.settings.unheard;
        for at in self.waiting.values_mut() {
            *at = until;
        }
    }

    /// Ends this life once the manager has not heard it for long.
    pub(super) fn drive_unheard(&mut self, now: Now) {
        if self.waiting.is_empty() {
            return;
        }
        if !self.could_be_heard(now) {
            return self.wait_anew(now);
        }
        let over = self.waiting.values().any(|until| now.mono >= *until);
        if !over || self.off(Mutation::StayUnheard) {
            return;
        }
        match (self.leaving, &mut self.membership) {
            (Leaving::No, Membership::In(life)) => life.ending = true,
            // Its goodbye does not wait for hand-offs any longer.
            (Leaving::Drained, _) => self.leaving = Leaving::Now,
            _ => {}
        }
    }

    /// Whether another node manages and is at work, as far as rows show, and could do what this one waits for.
    fn could_be_heard(&self, now: Now) -> bool {
        let Some((row, _)) = &self.view.manager else { return false };
        let holder = &row.holder;
        holder.node != self.identity.node
            && self.watching
            && !self.suspended()
            && self.view.alive(holder)
            && !self.view.still(&holder.node, now.mono, self.settings.lease)
            && self
                .view
                .hosts()
                .any(|(host, _)| host.node != self.identity.node || self.store_answers(now))
    }
}
