//! Message timeouts and refusals.

use ostraca_codes::{Code, codes};

use super::table::{RoutedMessage, shard_at};
use super::{Action, Mutation, Refusal, Router};

impl<T> RoutedMessage<T> {
    /// Turns the message into a refusal.
    pub(super) fn into_refusal(
        self,
        code: Code,
        message: String,
        retry_after: Option<u32>,
    ) -> Action<T> {
        let refusal = Refusal { code, message, retry_after, in_doubt: self.in_doubt };
        Action::Refuse { item: self.item, refusal }
    }
}

impl<T: Clone> Router<T> {
    /// When [`Self::tick`] is next due, unless an event comes first; may lie in the past.
    #[must_use]
    pub fn next_wake(&self) -> Option<u64> {
        let timer = self.timers.first().map(|(at, _)| *at);
        let expiry = self.expiries.first().map(|(at, ..)| *at);
        timer.into_iter().chain(expiry).min()
    }

    /// Sends the messages whose retry is due, and refuses those that waited too long. Sending comes first, so that
    /// a message that reaches its buffer timeout is sent to the owner once more before it is refused (R12).
    pub fn tick(&mut self, now: u64, out: &mut Vec<Action<T>>) {
        while let Some(&(at, index)) = self.timers.first()
            && at <= now
        {
            self.flush_shard(now, index, out);
        }
        while let Some(&(at, index, place)) = self.expiries.first()
            && at <= now
        {
            // Removed here, not only by `unbuffer`, so that this cannot become an endless loop.
            self.expiries.pop_first();
            let Some(entry) = self.unbuffer(now, index, place) else { continue };
            out.push(self.refuse_expired(now, index, entry));
            if self.routes[index].buffered.is_empty() {
                self.withdraw(index);
            }
        }
    }

    /// Refuses all buffered messages, because the node is about to stop. Messages in flight may still be answered.
    pub fn refuse_buffered(&mut self, now: u64, out: &mut Vec<Action<T>>) {
        for index in 0..self.routes.len() {
            if self.routes[index].buffered.is_empty() {
                continue;
            }
            self.withdraw(index);
            while let Some((place, _)) = self.routes[index].first() {
                let Some(entry) = self.unbuffer(now, index, place) else { break };
                let message = "the gateway is shutting down".into();
                out.push(entry.into_refusal(codes::REBALANCING, message, self.retry_after()));
            }
        }
    }

    /// One round of a node's stop: refuses the buffered messages, and, once `until` has passed, all messages (see
    /// [`Self::close`]). Returns true once no messages are left; the caller repeats the call until it does.
    pub fn shut_down_step(&mut self, now: u64, until: u64, out: &mut Vec<Action<T>>) -> bool {
        self.refuse_buffered(now, out);
        let left = self.buffered > 0 || !self.in_flight.is_empty();
        if left && now < until {
            return false;
        }
        self.close(now, out);
        true
    }

    /// Refuses all messages, because the node stops. Those in flight are in doubt.
    pub fn close(&mut self, now: u64, out: &mut Vec<Action<T>>) {
        for index in 0..self.routes.len() {
            self.withdraw(index);
            let tags: Vec<u64> = self.routes[index].in_flight.values().copied().collect();
            for mut flight in
                tags.into_iter().filter_map(|tag| self.recall(tag)).collect::<Vec<_>>()
            {
                if !self.has_mutation(Mutation::CloseWithoutInDoubt) {
                    self.mark_in_doubt(&mut flight.message);
                }
                self.buffer(now, index, flight.arrival, flight.message);
            }
        }
        self.refuse_buffered(now, out);
        self.unblocked.clear();
        self.windows.clear();
    }

    /// The reason for refusing a buffered message at its timeout.
    pub(super) fn refuse_expired(
        &self,
        now: u64,
        index: usize,
        entry: RoutedMessage<T>,
    ) -> Action<T> {
        let slot = &self.routes[index];
        let shard = shard_at(index);
        let (code, why) = match &slot.owner {
            _ if self.target(index).is_none() => {
                (codes::NO_OWNER, format!("shard {shard} has no live owner"))
            }
            Some(owner) if slot.waiting_for.is_some() => {
                let (messages, bytes) = (self.settings.link_messages, self.settings.link_bytes);
                let limits = format!("`link-messages` ({messages}) or `link-bytes` ({bytes})");
                (codes::OVERLOADED, format!("the link to {owner} reached its limit, {limits}"))
            }
            _ if slot.buffering.is_some() => {
                (codes::REBALANCING, format!("shard {shard} is moving to another node"))
            }
            _ => {
                (codes::NO_OWNER, format!("the owner of shard {shard} did not accept the message"))
            }
        };
        if entry.deadline_passed(now) {
            let message = format!("the sender's deadline passed while the message waited: {why}");
            return entry.into_refusal(codes::DEADLINE_EXCEEDED, message, None);
        }
        let message =
            format!("{why}; waited for {} ms (`buffer-timeout`)", self.settings.buffer_timeout);
        entry.into_refusal(code, message, self.retry_after())
    }

    /// Why no further message may be buffered for the shard; `None` if another one may.
    pub(super) fn buffer_full_reason(&self, index: usize, bytes: usize) -> Option<String> {
        let (messages, all) = (self.settings.buffered_messages, self.settings.buffered_bytes);
        let shard = shard_at(index);
        if self.routes[index].buffered.len() >= messages {
            let what = format!("messages buffered for shard {shard} reached the limit");
            return Some(format!("{what}, `buffered-messages` ({messages})"));
        }
        (self.buffered_bytes.saturating_add(bytes) > all).then(|| {
            format!("bytes buffered on this node reached the limit, `buffered-bytes` ({all})")
        })
    }

    /// Milliseconds after which a retry of a refused message may succeed.
    pub(super) fn retry_after(&self) -> Option<u32> {
        Some(u32::try_from(self.settings.max_backoff).unwrap_or(u32::MAX))
    }
}
