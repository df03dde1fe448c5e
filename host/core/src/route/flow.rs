//! Moves messages between the states *buffered* and *in flight*.
//!
//! A shard with buffered messages is in exactly one place: in `timers` if it is blocked until a time, in its link's
//! `waiting_shards` if the window is full, or in neither if it has no live owner, so that only a new route can help.
//! [`Router::destination_or_wait`] puts it there and [`Router::withdraw`] removes it. A function that changes what
//! this depends on must call [`Router::flush_shard`].

use ostraca_codes::codes;

use super::table::{BufferedMessage, Buffering, InFlightMessage, RoutedMessage, shard_at};
use super::{Action, Mutation, Router};
use crate::ids::Epoch;
use crate::rows::Member;

/// The first pause after a message was not accepted, as a fraction of the longest pause.
const FIRST_PAUSE: u64 = 16;

impl<T: Clone> Router<T> {
    /// The owner that the route names, unless that is a former incarnation of this node.
    pub(super) fn target(&self, index: usize) -> Option<&Member> {
        self.routes[index].owner.as_ref().filter(|owner| {
            self.local.as_ref() == Some(owner) || self.local_node.as_ref() != Some(&owner.node)
        })
    }

    /// The owner to which a message of this size may be sent now. Otherwise, the shard is put where it will be woken.
    pub(super) fn destination_or_wait(
        &mut self,
        now: u64,
        index: usize,
        bytes: usize,
    ) -> Option<Member> {
        let to = self.target(index)?.clone();
        let until = self.routes[index].blocked_until();
        if now < until {
            self.routes[index].timer = Some(until);
            self.timers.insert((until, index));
            return None;
        }
        // This node's machines have their own bounds: mailboxes.
        if self.local.as_ref() != Some(&to)
            && let Some(link) = self.windows.get_mut(&to)
            && (!link.waiting_shards.is_empty() || !link.takes(&self.settings, bytes))
        {
            link.waiting_shards.push_back(index);
            self.routes[index].waiting_for = Some(to);
            return None;
        }
        Some(to)
    }

    /// Removes a shard from where it waits.
    pub(super) fn withdraw(&mut self, index: usize) {
        if let Some(at) = self.routes[index].timer.take() {
            self.timers.remove(&(at, index));
        }
        if let Some(member) = self.routes[index].waiting_for.take()
            && let Some(link) = self.windows.get_mut(&member)
        {
            link.waiting_shards.retain(|other| *other != index);
        }
    }

    /// Sends the messages that may be sent, in order, and leaves the shard waiting in the right place for the rest.
    pub(super) fn flush_shard(&mut self, now: u64, index: usize, out: &mut Vec<Action<T>>) {
        self.withdraw(index);
        while let Some((place, bytes)) = self.routes[index].first() {
            let Some(to) = self.destination_or_wait(now, index, bytes) else { return };
            self.send_buffered(now, index, place, to, out);
        }
    }

    /// Lets the shards that wait for a window send again if it has space, one message each in turn.
    pub(super) fn pump(&mut self, now: u64, out: &mut Vec<Action<T>>) {
        while let Some(member) = self.unblocked.pop() {
            while let Some(link) = self.windows.get_mut(&member)
                && let Some(&index) = link.waiting_shards.front()
            {
                let first = self.routes[index].first();
                // The first message has priority even if a smaller one would fit: otherwise it might never be sent.
                if first.is_some_and(|(_, bytes)| !link.takes(&self.settings, bytes)) {
                    break;
                }
                link.waiting_shards.pop_front();
                self.routes[index].waiting_for = None;
                let Some((place, _)) = first else { continue };
                self.send_buffered(now, index, place, member.clone(), out);
                if !self.routes[index].buffered.is_empty()
                    && let Some(link) = self.windows.get_mut(&member)
                {
                    link.waiting_shards.push_back(index);
                    self.routes[index].waiting_for = Some(member.clone());
                }
            }
        }
    }

    /// Sends a buffered message, unless its deadline has passed in the meantime (R22), or its buffer timeout had
    /// passed before its last attempt was returned.
    fn send_buffered(
        &mut self,
        now: u64,
        index: usize,
        place: u64,
        to: Member,
        out: &mut Vec<Action<T>>,
    ) {
        let spent =
            self.routes[index].buffered.get(&place).is_some_and(|h| h.expires <= h.buffered_at);
        let Some(entry) = self.unbuffer(now, index, place) else { return };
        out.push(if spent || entry.deadline_passed(now) {
            self.refuse_expired(now, index, entry)
        } else {
            self.send(index, place, entry, to)
        });
    }

    /// Sends a message under a new tag.
    pub(super) fn send(
        &mut self,
        index: usize,
        place: u64,
        entry: RoutedMessage<T>,
        to: Member,
    ) -> Action<T> {
        self.last_attempt_id += 1;
        let tag = self.last_attempt_id;
        let slot = &mut self.routes[index];
        let epoch = slot.epoch;
        slot.in_flight.insert(place, tag);
        if !self.windows.contains_key(&to) {
            self.windows.insert(to.clone(), super::LinkWindow::default());
        }
        if let Some(link) = self.windows.get_mut(&to) {
            link.in_flight.insert(tag);
            link.bytes = link.bytes.saturating_add(entry.bytes);
        }
        let item = entry.item.clone();
        let local = self.local.as_ref() == Some(&to);
        let flight =
            InFlightMessage { message: entry, arrival: place, index, to: to.clone(), epoch };
        self.in_flight.insert(tag, flight);
        if local {
            Action::Local { shard: shard_at(index), epoch, attempt_id: tag, item }
        } else {
            Action::Remote { to, epoch, attempt_id: tag, item }
        }
    }

    /// Recalls a message from where it was sent; the answer to that attempt will no longer be recognized.
    pub(super) fn recall(&mut self, tag: u64) -> Option<InFlightMessage<T>> {
        let flight = self.in_flight.remove(&tag)?;
        self.routes[flight.index].in_flight.remove(&flight.arrival);
        if let Some(link) = self.windows.get_mut(&flight.to) {
            link.in_flight.remove(&tag);
            link.bytes = link.bytes.saturating_sub(flight.message.bytes);
            if !link.waiting_shards.is_empty() {
                self.unblocked.push(flight.to.clone());
            }
        }
        Some(flight)
    }

    /// Buffers a message at its place. Limits apply only to new messages: a returned message was admitted before,
    /// and refusing it would turn a bounce into an error.
    pub(super) fn buffer(&mut self, now: u64, index: usize, place: u64, entry: RoutedMessage<T>) {
        let left = self.settings.buffer_timeout.saturating_sub(entry.waited);
        let expires = now.saturating_add(left).min(entry.deadline.unwrap_or(u64::MAX));
        self.buffered += 1;
        self.buffered_bytes = self.buffered_bytes.saturating_add(entry.bytes);
        self.expiries.insert((expires, index, place));
        self.routes[index]
            .buffered
            .insert(place, BufferedMessage { message: entry, buffered_at: now, expires });
    }

    /// Removes a message from the buffer.
    pub(super) fn unbuffer(
        &mut self,
        now: u64,
        index: usize,
        place: u64,
    ) -> Option<RoutedMessage<T>> {
        let BufferedMessage { message: mut entry, buffered_at: since, expires } =
            self.routes[index].buffered.remove(&place)?;
        self.expiries.remove(&(expires, index, place));
        self.buffered = self.buffered.saturating_sub(1);
        self.buffered_bytes = self.buffered_bytes.saturating_sub(entry.bytes);
        entry.waited = entry.waited.saturating_add(now.saturating_sub(since));
        Some(entry)
    }

    /// Sets a route. Messages that were sent under a lower epoch return in doubt, to their places ahead of all
    /// later messages. The caller flushes the shard.
    pub(super) fn set_route(
        &mut self,
        now: u64,
        index: usize,
        epoch: Epoch,
        owner: Option<Member>,
        moving: bool,
        out: &mut Vec<Action<T>>,
    ) {
        self.withdraw(index);
        let until = now.saturating_add(self.settings.buffer_timeout);
        let slot = &mut self.routes[index];
        let rises = epoch != slot.epoch;
        let ends = slot
            .buffering
            .is_some_and(|hold| epoch > hold.epoch || (epoch == hold.epoch && !moving));
        if rises || ends || slot.owner != owner {
            slot.backoff_until = 0;
            slot.backoff = 0;
        }
        if ends {
            slot.buffering = None;
        }
        if moving && slot.buffering.is_none() {
            slot.buffering = Some(Buffering { epoch, until });
        }
        slot.epoch = epoch;
        let former = std::mem::replace(&mut slot.owner, owner);
        if rises {
            let flights = &self.in_flight;
            let sent_before = |tag: &u64| flights.get(tag).is_some_and(|f| f.epoch < epoch);
            let back: Vec<u64> = slot.in_flight.values().copied().filter(sent_before).collect();
            for flight in back.into_iter().filter_map(|tag| self.recall(tag)).collect::<Vec<_>>() {
                self.return_in_doubt(now, flight, out);
            }
        }
        if (rises || moving) && self.has_mutation(Mutation::DropBuffered) {
            let places: Vec<u64> = self.routes[index].buffered.keys().copied().collect();
            places.into_iter().for_each(|place| drop(self.unbuffer(now, index, place)));
        }
        // Forget an incarnation to which nothing will be sent any more.
        if let Some(former) = former
            && self
                .windows
                .get(&former)
                .is_some_and(|l| l.in_flight.is_empty() && l.waiting_shards.is_empty())
        {
            self.windows.remove(&former);
        }
    }

    /// Blocks the shard for a pause, which grows as long as nothing is answered. The first pause is short, for a
    /// new owner that learns of its shard a moment after its senders.
    pub(super) fn retry_later(&mut self, now: u64, index: usize) {
        let longest = self.settings.max_backoff;
        let slot = &mut self.routes[index];
        // Of many messages that were sent together, each is returned separately: only the first extends the pause.
        if slot.backoff_until <= now {
            let first = longest / FIRST_PAUSE;
            slot.backoff = (slot.backoff * 2).max(first).max(1).min(longest.max(1));
            slot.backoff_until = now.saturating_add(slot.backoff);
        }
    }

    /// Buffers a recalled message whose copy may still run, at its place; or ends it, if no other copy may be sent (K18).
    pub(super) fn return_in_doubt(
        &mut self,
        now: u64,
        mut flight: InFlightMessage<T>,
        out: &mut Vec<Action<T>>,
    ) {
        self.mark_in_doubt(&mut flight.message);
        if flight.message.once {
            let message = "the owner did not answer, and the message is sent only once".into();
            out.push(flight.message.into_refusal(codes::CONNECTION_LOST, message, None));
            return;
        }
        self.buffer(now, flight.index, flight.arrival, flight.message);
    }

    /// Marks a message whose copy may still run although its answer is no longer awaited.
    pub(super) fn mark_in_doubt(&self, entry: &mut RoutedMessage<T>) {
        entry.in_doubt = !self.has_mutation(Mutation::ForgetInDoubt);
    }
}
