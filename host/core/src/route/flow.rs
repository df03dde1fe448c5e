//! How messages move between held and in flight.
//!
//! A shard that holds messages stands in exactly one place: in `timers` if it is shut until a time, in its link's
//! `waiting` if the window is full, or in none if it has no live owner, so that only a route can help. [`Router::ready`]
//! puts it there and [`Router::withdraw`] takes it away; whoever changes what this depends on calls
//! [`Router::settle`].

use super::table::{Entry, Flight, Held, Hold, shard_of};
use super::{Mutation, Router, Step};
use crate::ids::Epoch;
use crate::rows::Member;

/// The first pause after nobody took a message, as a part of the longest.
const FIRST_PAUSE: u64 = 16;

impl<T: Clone> Router<T> {
    /// Whom the route names, unless that is a former life of this node.
    pub(super) fn target(&self, index: usize) -> Option<&Member> {
        self.slots[index].owner.as_ref().filter(|owner| {
            self.me.as_ref() == Some(owner) || self.node.as_ref() != Some(&owner.node)
        })
    }

    /// To whom a message of so many bytes may leave now. If it may not, the shard stands where it is woken from.
    pub(super) fn ready(&mut self, now: u64, index: usize, bytes: usize) -> Option<Member> {
        let to = self.target(index)?.clone();
        let until = self.slots[index].shut_until();
        if now < until {
            self.slots[index].timer = Some(until);
            self.timers.insert((until, index));
            return None;
        }
        // The machines of this node have bounds of their own: mailboxes.
        if self.me.as_ref() != Some(&to)
            && let Some(link) = self.links.get_mut(&to)
            && (!link.waiting.is_empty() || !link.takes(&self.settings, bytes))
        {
            link.waiting.push_back(index);
            self.slots[index].waiting = Some(to);
            return None;
        }
        Some(to)
    }

    /// Takes a shard from where it waits.
    pub(super) fn withdraw(&mut self, index: usize) {
        if let Some(at) = self.slots[index].timer.take() {
            self.timers.remove(&(at, index));
        }
        if let Some(member) = self.slots[index].waiting.take()
            && let Some(link) = self.links.get_mut(&member)
        {
            link.waiting.retain(|other| *other != index);
        }
    }

    /// Lets go what may leave, in order, and has the rest wait in the right place.
    pub(super) fn settle(&mut self, now: u64, index: usize, out: &mut Vec<Step<T>>) {
        self.withdraw(index);
        while let Some((place, bytes)) = self.slots[index].first() {
            let Some(to) = self.ready(now, index, bytes) else { return };
            self.let_go(now, index, place, to, out);
        }
    }

    /// Gives the windows that have room again to the shards that wait for them, a message each in turn.
    pub(super) fn pump(&mut self, now: u64, out: &mut Vec<Step<T>>) {
        while let Some(member) = self.freed.pop() {
            while let Some(link) = self.links.get_mut(&member)
                && let Some(&index) = link.waiting.front()
            {
                let first = self.slots[index].first();
                // The first one is waited for even if a smaller one would fit: else it might never.
                if first.is_some_and(|(_, bytes)| !link.takes(&self.settings, bytes)) {
                    break;
                }
                link.waiting.pop_front();
                self.slots[index].waiting = None;
                let Some((place, _)) = first else { continue };
                self.let_go(now, index, place, member.clone(), out);
                if !self.slots[index].held.is_empty()
                    && let Some(link) = self.links.get_mut(&member)
                {
                    link.waiting.push_back(index);
                    self.slots[index].waiting = Some(member.clone());
                }
            }
        }
    }

    /// Sends a held message, unless its deadline has passed meanwhile (R22), or its time had run out before it came
    /// back from its last chance.
    fn let_go(&mut self, now: u64, index: usize, place: u64, to: Member, out: &mut Vec<Step<T>>) {
        let spent = self.slots[index].held.get(&place).is_some_and(|h| h.expires <= h.since);
        let Some(entry) = self.unhold(now, index, place) else { return };
        out.push(if spent || entry.is_late(now) {
            self.expired(now, index, entry)
        } else {
            self.send(index, place, entry, to)
        });
    }

    /// Gives a message out under a new tag.
    pub(super) fn send(
        &mut self,
        index: usize,
        place: u64,
        entry: Entry<T>,
        to: Member,
    ) -> Step<T> {
        self.tags += 1;
        let tag = self.tags;
        let slot = &mut self.slots[index];
        let epoch = slot.epoch;
        slot.flying.insert(place, tag);
        if !self.links.contains_key(&to) {
            self.links.insert(to.clone(), super::Link::default());
        }
        if let Some(link) = self.links.get_mut(&to) {
            link.flying.insert(tag);
            link.bytes = link.bytes.saturating_add(entry.bytes);
        }
        let item = entry.item.clone();
        let local = self.me.as_ref() == Some(&to);
        let flight = Flight { entry, place, index, to: to.clone(), epoch };
        self.flights.insert(tag, flight);
        if local {
            Step::Local { shard: shard_of(index), epoch, tag, item }
        } else {
            Step::Remote { to, epoch, tag, item }
        }
    }

    /// Takes a message back from where it was sent; that attempt's answer will not be known any more.
    pub(super) fn take(&mut self, tag: u64) -> Option<Flight<T>> {
        let flight = self.flights.remove(&tag)?;
        self.slots[flight.index].flying.remove(&flight.place);
        if let Some(link) = self.links.get_mut(&flight.to) {
            link.flying.remove(&tag);
            link.bytes = link.bytes.saturating_sub(flight.entry.bytes);
            if !link.waiting.is_empty() {
                self.freed.push(flight.to.clone());
            }
        }
        Some(flight)
    }

    /// Has a message wait at its place. Whether there is room is asked only of those that come anew: one that
    /// comes back was let in once, and refusing it would turn a bounce into an error.
    pub(super) fn hold_entry(&mut self, now: u64, index: usize, place: u64, entry: Entry<T>) {
        let left = self.settings.hold_wait.saturating_sub(entry.waited);
        let expires = now.saturating_add(left).min(entry.deadline.unwrap_or(u64::MAX));
        self.held += 1;
        self.held_bytes = self.held_bytes.saturating_add(entry.bytes);
        self.expiries.insert((expires, index, place));
        self.slots[index].held.insert(place, Held { entry, since: now, expires });
    }

    /// Ends a message's wait.
    pub(super) fn unhold(&mut self, now: u64, index: usize, place: u64) -> Option<Entry<T>> {
        let Held { mut entry, since, expires } = self.slots[index].held.remove(&place)?;
        self.expiries.remove(&(expires, index, place));
        self.held = self.held.saturating_sub(1);
        self.held_bytes = self.held_bytes.saturating_sub(entry.bytes);
        entry.waited = entry.waited.saturating_add(now.saturating_sub(since));
        Some(entry)
    }

    /// Writes a route. What was sent under a lower epoch comes back in doubt, to its place before all that came
    /// after it. The caller settles the shard.
    pub(super) fn reroute(
        &mut self,
        now: u64,
        index: usize,
        epoch: Epoch,
        owner: Option<Member>,
        moving: bool,
    ) {
        self.withdraw(index);
        let until = now.saturating_add(self.settings.hold_wait);
        let slot = &mut self.slots[index];
        let rises = epoch != slot.epoch;
        let ends =
            slot.hold.is_some_and(|hold| epoch > hold.epoch || (epoch == hold.epoch && !moving));
        if rises || ends || slot.owner != owner {
            slot.retry_at = 0;
            slot.pause = 0;
        }
        if ends {
            slot.hold = None;
        }
        if moving && slot.hold.is_none() {
            slot.hold = Some(Hold { epoch, until });
        }
        slot.epoch = epoch;
        let former = std::mem::replace(&mut slot.owner, owner);
        if rises {
            let flights = &self.flights;
            let sent_before = |tag: &u64| flights.get(tag).is_some_and(|f| f.epoch < epoch);
            let back: Vec<u64> = slot.flying.values().copied().filter(sent_before).collect();
            for mut flight in back.into_iter().filter_map(|tag| self.take(tag)).collect::<Vec<_>>()
            {
                self.doubt(&mut flight.entry);
                self.hold_entry(now, index, flight.place, flight.entry);
            }
        }
        if (rises || moving) && self.mutated(Mutation::DropHeld) {
            let places: Vec<u64> = self.slots[index].held.keys().copied().collect();
            places.into_iter().for_each(|place| drop(self.unhold(now, index, place)));
        }
        // A life that nothing is sent to any more is forgotten.
        if let Some(former) = former
            && self.links.get(&former).is_some_and(|l| l.flying.is_empty() && l.waiting.is_empty())
        {
            self.links.remove(&former);
        }
    }

    /// Nothing of the shard leaves before a pause has passed, which grows as long as nothing is answered. The first is
    /// short: a new owner that hears of its shard a moment after its senders is no longer waited for than that.
    pub(super) fn retry_later(&mut self, now: u64, index: usize) {
        let longest = self.settings.retry;
        let slot = &mut self.slots[index];
        // Many that were sent together come back one after the other.
        if slot.retry_at <= now {
            let first = longest / FIRST_PAUSE;
            slot.pause = (slot.pause * 2).max(first).max(1).min(longest.max(1));
            slot.retry_at = now.saturating_add(slot.pause);
        }
    }

    /// A copy of it may run, although nobody waits for that copy's answer any more.
    pub(super) fn doubt(&self, entry: &mut Entry<T>) {
        entry.in_doubt = !self.mutated(Mutation::ForgetDoubt);
    }
}
