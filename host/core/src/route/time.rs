//! What ends by time, and how it is refused.

use super::table::{Entry, shard_of};
use super::{Mutation, Refusal, Router, Step};
use crate::message::codes;

impl<T> Entry<T> {
    /// Gives it back unsent.
    pub(super) fn refused(
        self,
        code: &'static str,
        message: String,
        retry_after: Option<u32>,
    ) -> Step<T> {
        let refusal = Refusal { code, message, retry_after, in_doubt: self.in_doubt };
        Step::Refuse { item: self.item, refusal }
    }
}

impl<T: Clone> Router<T> {
    /// When [`Self::tick`] has something to do, if nothing else comes before; it may lie in the past.
    #[must_use]
    pub fn wake(&self) -> Option<u64> {
        let timer = self.timers.first().map(|(at, _)| *at);
        let expiry = self.expiries.first().map(|(at, ..)| *at);
        timer.into_iter().chain(expiry).min()
    }

    /// Sends again what has waited for its retry, and refuses what has waited too long. Sending comes first, so
    /// that a buffer at its end asks the owner before it gives up (R12).
    pub fn tick(&mut self, now: u64, out: &mut Vec<Step<T>>) {
        while let Some(&(at, index)) = self.timers.first()
            && at <= now
        {
            self.settle(now, index, out);
        }
        while let Some(&(at, index, place)) = self.expiries.first()
            && at <= now
        {
            // Never none: both change together. Were it none, this would be an endless loop.
            self.expiries.pop_first();
            let Some(entry) = self.unhold(now, index, place) else { continue };
            out.push(self.expired(now, index, entry));
            if self.slots[index].held.is_empty() {
                self.withdraw(index);
            }
        }
    }

    /// The node is about to stop: gives back what waits. What is in flight may still be answered.
    pub fn turn_away(&mut self, now: u64, out: &mut Vec<Step<T>>) {
        for index in 0..self.slots.len() {
            if self.slots[index].held.is_empty() {
                continue;
            }
            self.withdraw(index);
            while let Some((place, _)) = self.slots[index].first() {
                let Some(entry) = self.unhold(now, index, place) else { break };
                let message = "the node that the message was sent through stops".into();
                out.push(entry.refused(codes::REBALANCING, message, self.retry_after()));
            }
        }
    }

    /// A round of a node's stop: gives back what waits, and from `until` on everything, see [`Self::close`]. Whether nothing
    /// is left: until then, it is called again and again.
    pub fn wind_down(&mut self, now: u64, until: u64, out: &mut Vec<Step<T>>) -> bool {
        self.turn_away(now, out);
        let left = self.held > 0 || !self.flights.is_empty();
        if left && now < until {
            return false;
        }
        self.close(now, out);
        true
    }

    /// The node stops: gives everything back. What is in flight is in doubt.
    pub fn close(&mut self, now: u64, out: &mut Vec<Step<T>>) {
        for index in 0..self.slots.len() {
            self.withdraw(index);
            let tags: Vec<u64> = self.slots[index].flying.values().copied().collect();
            for mut flight in tags.into_iter().filter_map(|tag| self.take(tag)).collect::<Vec<_>>()
            {
                if !self.mutated(Mutation::CloseWithoutDoubt) {
                    self.doubt(&mut flight.entry);
                }
                self.hold_entry(now, index, flight.place, flight.entry);
            }
        }
        self.turn_away(now, out);
        self.freed.clear();
        self.links.clear();
    }

    /// Says why a message that waited is given up.
    pub(super) fn expired(&self, now: u64, index: usize, entry: Entry<T>) -> Step<T> {
        let slot = &self.slots[index];
        let shard = shard_of(index);
        let (code, why) = match &slot.owner {
            _ if self.target(index).is_none() => {
                (codes::NO_OWNER, format!("shard {shard} has no live owner"))
            }
            Some(owner) if slot.waiting.is_some() => {
                let (messages, bytes) = (self.settings.link_messages, self.settings.link_bytes);
                let limits = format!("`link-messages` ({messages}) or `link-bytes` ({bytes})");
                (codes::OVERLOADED, format!("as much is under way to {owner} as {limits} allows"))
            }
            _ if slot.hold.is_some() => {
                (codes::REBALANCING, format!("shard {shard} is on its way to another node"))
            }
            _ => (codes::NO_OWNER, format!("the owner of shard {shard} did not take the message")),
        };
        if entry.is_late(now) {
            let message = format!("the sender's deadline passed while the message waited: {why}");
            return entry.refused(codes::DEADLINE, message, None);
        }
        let message = format!("{why}; waited for {} ms (`hold-wait`)", self.settings.hold_wait);
        entry.refused(code, message, self.retry_after())
    }

    /// Why no further message may wait for the shard, if none may.
    pub(super) fn full(&self, index: usize, bytes: usize) -> Option<String> {
        let (messages, all) = (self.settings.held_messages, self.settings.held_bytes);
        let shard = shard_of(index);
        if self.slots[index].held.len() >= messages {
            let what = format!("as many messages wait for shard {shard}");
            return Some(format!("{what} as `held-messages` ({messages}) allows"));
        }
        (self.held_bytes.saturating_add(bytes) > all)
            .then(|| format!("as many bytes wait on this node as `held-bytes` ({all}) allows"))
    }

    /// When a refused message may fare better.
    pub(super) fn retry_after(&self) -> Option<u32> {
        Some(u32::try_from(self.settings.retry).unwrap_or(u32::MAX))
    }
}
