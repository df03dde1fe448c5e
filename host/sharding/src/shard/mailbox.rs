//! The messages of one entity that wait for a turn: in the order in which they run, or parked behind one that has not
//! come. Nothing here looks at every message: a mailbox may be as long as its type allows.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::ids::MessageId;

/// How many messages wait in all mailboxes that share it.
pub(super) type Total = Arc<AtomicUsize>;

#[derive(Debug)]
pub(super) struct Mailbox {
    order: BTreeMap<i64, MessageId>,
    places: BTreeMap<MessageId, i64>,
    /// Until when each parked message waits.
    parked: BTreeMap<MessageId, u64>,
    parked_until: BTreeSet<(u64, MessageId)>,
    total: Total,
}

impl Mailbox {
    pub(super) fn new(total: Total) -> Self {
        Self {
            order: BTreeMap::new(),
            places: BTreeMap::new(),
            parked: BTreeMap::new(),
            parked_until: BTreeSet::new(),
            total,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.order.len() + self.parked.len()
    }

    /// Whether no message is in line; some may be parked.
    pub(super) fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    pub(super) fn contains(&self, id: &MessageId) -> bool {
        self.places.contains_key(id) || self.parked.contains_key(id)
    }

    pub(super) fn front(&self) -> Option<MessageId> {
        self.order.first_key_value().map(|(_, id)| *id)
    }

    pub(super) fn push_back(&mut self, id: MessageId) {
        let place = self.order.last_key_value().map_or(0, |(place, _)| place + 1);
        self.insert(place, id);
    }

    pub(super) fn push_front(&mut self, id: MessageId) {
        let place = self.order.first_key_value().map_or(0, |(place, _)| place - 1);
        self.insert(place, id);
    }

    fn insert(&mut self, place: i64, id: MessageId) {
        self.remove(&id);
        self.order.insert(place, id);
        self.places.insert(id, place);
        self.total.fetch_add(1, Ordering::Relaxed);
    }

    /// Takes a message out, wherever it is.
    pub(super) fn remove(&mut self, id: &MessageId) {
        let lined_up = self.places.remove(id).map(|place| self.order.remove(&place)).is_some();
        let parked = self.parked.remove(id).map(|until| self.parked_until.remove(&(until, *id)));
        if lined_up || parked.is_some() {
            self.total.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Sets a message aside until its predecessor has run, or until then.
    pub(super) fn park(&mut self, id: MessageId, until: u64) {
        self.remove(&id);
        self.parked.insert(id, until);
        self.parked_until.insert((until, id));
        self.total.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn last_parked(&self) -> Option<MessageId> {
        self.parked.keys().next_back().copied()
    }

    /// The parked messages of a session.
    pub(super) fn parked_of(&self, id: &MessageId) -> impl Iterator<Item = MessageId> {
        let session = id.session;
        let range = MessageId { session, sequence: 0 }..=MessageId { session, sequence: u64::MAX };
        self.parked.range(range).map(|(id, _)| *id)
    }

    /// The parked messages that waited until `now` in vain.
    pub(super) fn parked_in_vain(&self, now: u64) -> impl Iterator<Item = MessageId> {
        self.parked_until.iter().take_while(move |(until, _)| *until <= now).map(|(_, id)| *id)
    }

    /// When the first of the parked messages has waited long enough.
    pub(super) fn first_parked_until(&self) -> Option<u64> {
        self.parked_until.first().map(|(until, _)| *until)
    }

    /// Parked messages wait until then at least.
    pub(super) fn wait_until(&mut self, least: u64) {
        let sooner: Vec<_> =
            self.parked_until.iter().take_while(|(until, _)| *until < least).copied().collect();
        for (until, id) in sooner {
            self.parked_until.remove(&(until, id));
            self.parked_until.insert((least, id));
            self.parked.insert(id, least);
        }
    }

    /// Puts the parked messages in line, at its end.
    pub(super) fn unpark_all(&mut self) {
        let parked: Vec<_> = self.parked.keys().copied().collect();
        parked.into_iter().for_each(|id| self.push_back(id));
    }

    pub(super) fn clear(&mut self) {
        self.total.fetch_sub(self.len(), Ordering::Relaxed);
        self.order.clear();
        self.places.clear();
        self.parked.clear();
        self.parked_until.clear();
    }

    /// All of them: those in line, then those parked.
    pub(super) fn all(&self) -> Vec<MessageId> {
        self.order.values().copied().chain(self.parked.keys().copied()).collect()
    }
}

impl Drop for Mailbox {
    fn drop(&mut self) {
        self.total.fetch_sub(self.len(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Session;

    fn id(sequence: u64) -> MessageId {
        MessageId { session: Session::of("client/x", b"s"), sequence }
    }

    #[test]
    fn messages_keep_their_order_wherever_one_is_taken_out() {
        let total = Total::default();
        let mut mailbox = Mailbox::new(total.clone());
        (1..=5).for_each(|sequence| mailbox.push_back(id(sequence)));
        mailbox.park(id(2), 70);
        mailbox.park(id(9), 50);
        mailbox.remove(&id(4));
        mailbox.push_front(id(7));
        assert_eq!(mailbox.all(), [7, 1, 3, 5, 2, 9].map(id));
        assert_eq!((mailbox.len(), total.load(Ordering::Relaxed)), (6, 6));
        assert_eq!(mailbox.parked_in_vain(60).collect::<Vec<_>>(), [id(9)]);
        mailbox.wait_until(60);
        assert_eq!(mailbox.first_parked_until(), Some(60));
        mailbox.unpark_all();
        assert_eq!(mailbox.all(), [7, 1, 3, 5, 2, 9].map(id));
        mailbox.push_front(id(2));
        assert_eq!(mailbox.all(), [2, 7, 1, 3, 5, 9].map(id), "no message is there twice");
        mailbox.clear();
        assert_eq!((mailbox.len(), total.load(Ordering::Relaxed)), (0, 0));
        mailbox.push_back(id(1));
        drop(mailbox);
        assert_eq!(total.load(Ordering::Relaxed), 0);
    }
}
