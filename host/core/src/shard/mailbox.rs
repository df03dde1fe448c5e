//! The messages of one entity that wait for a turn: queued in the order in which they run, or parked until their
//! predecessor has run. No call examines messages that it does not concern, since a mailbox may be long.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::ids::{MessageId, ScopedSessionId};

/// The number of messages in all mailboxes that share the counter.
pub(super) type QueuedTotal = Arc<AtomicUsize>;

#[derive(Clone, Debug)]
pub(super) struct Mailbox {
    messages: BTreeMap<MessageId, QueuedMessage>,
    /// The queued messages, by their position in the queue.
    ready: BTreeMap<i64, MessageId>,
    /// Those of the queued messages that a second instance may run, by their position in the queue.
    ready_queries: BTreeMap<i64, MessageId>,
    parked: BTreeSet<MessageId>,
    /// The parked messages, by session, by the sequence that must run first, and by their own sequence.
    parked_by_predecessor: BTreeSet<(ScopedSessionId, u64, u64)>,
    /// The parked messages, by the time until which they wait.
    park_deadlines: BTreeSet<(u64, MessageId)>,
    /// The messages that have a deadline, by deadline.
    deadlines: BTreeSet<(u64, MessageId)>,
    total: QueuedTotal,
    /// The number of messages examined, for tests.
    #[cfg(test)]
    pub(super) touched: std::cell::Cell<usize>,
}

#[derive(Clone, Copy, Debug)]
struct QueuedMessage {
    position: Position,
    deadline: Option<u64>,
    /// Whether a second instance may run it.
    is_reentrant: bool,
}

#[derive(Clone, Copy, Debug)]
enum Position {
    Ready(i64),
    Parked { after: u64, until: u64 },
}

impl Mailbox {
    pub(super) fn new(total: QueuedTotal) -> Self {
        Self {
            messages: BTreeMap::new(),
            ready: BTreeMap::new(),
            ready_queries: BTreeMap::new(),
            parked: BTreeSet::new(),
            parked_by_predecessor: BTreeSet::new(),
            park_deadlines: BTreeSet::new(),
            deadlines: BTreeSet::new(),
            total,
            #[cfg(test)]
            touched: Default::default(),
        }
    }

    /// Counts the messages that a call examines. Tests check that it examines only those that it concerns.
    fn touch(&self, _messages: usize) {
        #[cfg(test)]
        self.touched.set(self.touched.get() + _messages);
    }

    pub(super) fn len(&self) -> usize {
        self.messages.len()
    }

    /// Whether a message is queued; others may be parked.
    pub(super) fn has_next(&self) -> bool {
        !self.ready.is_empty()
    }

    /// The first queued message.
    pub(super) fn front(&self) -> Option<MessageId> {
        self.ready.first_key_value().map(|(_, id)| *id)
    }

    /// The first queued message that a second instance may run.
    pub(super) fn front_query(&self) -> Option<MessageId> {
        self.ready_queries.first_key_value().map(|(_, id)| *id)
    }

    /// Lets a second instance run the message, if it is in the mailbox.
    pub(super) fn set_reentrant(&mut self, id: &MessageId) {
        if let Some(waiting) = self.messages.get_mut(id) {
            waiting.is_reentrant = true;
            if let Position::Ready(place) = waiting.position {
                self.ready_queries.insert(place, *id);
            }
        }
    }

    /// Whether a message is queued or parked.
    pub(super) fn contains(&self, id: &MessageId) -> bool {
        self.messages.contains_key(id)
    }

    pub(super) fn push_back(&mut self, id: MessageId, deadline: Option<u64>) {
        let place = self.ready.last_key_value().map_or(0, |(place, _)| place + 1);
        self.insert_at(id, Position::Ready(place), deadline);
    }

    pub(super) fn push_front(&mut self, id: MessageId, deadline: Option<u64>) {
        let place = self.ready.first_key_value().map_or(0, |(place, _)| place - 1);
        self.insert_at(id, Position::Ready(place), deadline);
    }

    /// Parks a message until its session's message with that sequence has run, or until the given time.
    pub(super) fn park(&mut self, id: MessageId, after: u64, until: u64) {
        let deadline = self.messages.get(&id).and_then(|waiting| waiting.deadline);
        self.insert_at(id, Position::Parked { after, until }, deadline);
    }

    /// Changes the deadline of a message, if it is in the mailbox.
    pub(super) fn set_deadline(&mut self, id: &MessageId, deadline: Option<u64>) {
        if let Some(waiting) = self.messages.get(id).copied() {
            self.insert(*id, QueuedMessage { deadline, ..waiting });
        }
    }

    fn insert_at(&mut self, id: MessageId, position: Position, deadline: Option<u64>) {
        let is_reentrant = self.messages.get(&id).is_some_and(|waiting| waiting.is_reentrant);
        self.insert(id, QueuedMessage { position, deadline, is_reentrant });
    }

    fn insert(&mut self, id: MessageId, waiting: QueuedMessage) {
        self.remove(&id);
        self.touch(1);
        match waiting.position {
            Position::Ready(place) => {
                self.ready.insert(place, id);
                if waiting.is_reentrant {
                    self.ready_queries.insert(place, id);
                }
            }
            Position::Parked { after, until } => {
                self.parked.insert(id);
                self.parked_by_predecessor.insert((id.session, after, id.sequence));
                self.park_deadlines.insert((until, id));
            }
        }
        self.deadlines.extend(waiting.deadline.map(|at| (at, id)));
        self.messages.insert(id, waiting);
        self.total.fetch_add(1, Ordering::Relaxed);
    }

    /// Removes a message, whether it is queued or parked.
    pub(super) fn remove(&mut self, id: &MessageId) {
        let Some(waiting) = self.messages.remove(id) else { return };
        self.touch(1);
        match waiting.position {
            Position::Ready(place) => {
                self.ready.remove(&place);
                self.ready_queries.remove(&place);
            }
            Position::Parked { after, until } => {
                self.parked.remove(id);
                self.parked_by_predecessor.remove(&(id.session, after, id.sequence));
                self.park_deadlines.remove(&(until, *id));
            }
        }
        if let Some(deadline) = waiting.deadline {
            self.deadlines.remove(&(deadline, *id));
        }
        self.total.fetch_sub(1, Ordering::Relaxed);
    }

    pub(super) fn last_parked(&self) -> Option<MessageId> {
        self.parked.last().copied()
    }

    /// Moves the parked messages that may run after `run` to the front of the queue, in order.
    pub(super) fn unpark(&mut self, run: &MessageId) {
        let of_session = (run.session, 0, 0)..=(run.session, run.sequence, u64::MAX);
        let mut ready: Vec<_> = self
            .parked_by_predecessor
            .range(of_session)
            .map(|(session, _, sequence)| MessageId { session: *session, sequence: *sequence })
            .collect();
        ready.sort_unstable();
        self.touch(ready.len());
        for id in ready.into_iter().rev() {
            let deadline = self.messages.get(&id).and_then(|waiting| waiting.deadline);
            self.push_front(id, deadline);
        }
    }

    /// Moves the parked messages to the end of the queue.
    pub(super) fn unpark_all(&mut self) {
        for id in std::mem::take(&mut self.parked) {
            let deadline = self.messages.get(&id).and_then(|waiting| waiting.deadline);
            self.push_back(id, deadline);
        }
    }

    /// The parked messages whose time is up at `now`.
    pub(super) fn park_expired(&self, now: u64) -> Vec<MessageId> {
        self.due(&self.park_deadlines, now)
    }

    /// The earliest time at which a parked message's time is up.
    pub(super) fn first_parked_until(&self) -> Option<u64> {
        self.park_deadlines.first().map(|(until, _)| *until)
    }

    /// Extends the time of parked messages to at least the given time.
    pub(super) fn extend_park_deadlines(&mut self, least: u64) {
        let sooner: Vec<_> =
            self.park_deadlines.iter().take_while(|(until, _)| *until < least).copied().collect();
        for (until, id) in sooner {
            self.park_deadlines.remove(&(until, id));
            self.park_deadlines.insert((least, id));
            if let Some(QueuedMessage { position: Position::Parked { until, .. }, .. }) =
                self.messages.get_mut(&id)
            {
                *until = least;
            }
        }
    }

    /// The messages whose deadline has passed.
    pub(super) fn expired(&self, now: u64) -> Vec<MessageId> {
        self.due(&self.deadlines, now)
    }

    pub(super) fn first_deadline(&self) -> Option<u64> {
        self.deadlines.first().map(|(at, _)| *at)
    }

    pub(super) fn clear(&mut self) {
        let total = std::mem::take(&mut self.total);
        total.fetch_sub(self.len(), Ordering::Relaxed);
        *self = Self::new(total);
    }

    fn due(&self, times: &BTreeSet<(u64, MessageId)>, now: u64) -> Vec<MessageId> {
        let due: Vec<_> =
            times.iter().take_while(|(at, _)| *at <= now).map(|(_, id)| *id).collect();
        self.touch(due.len());
        due
    }

    /// All messages: the queued ones, then the parked ones.
    pub(super) fn all(&self) -> Vec<MessageId> {
        self.touch(self.len());
        self.ready.values().chain(&self.parked).copied().collect()
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

    fn id(sequence: u64) -> MessageId {
        MessageId { session: ScopedSessionId::derive("client/x", b"s"), sequence }
    }

    fn full(mailbox: &mut Mailbox) {
        (1..=5).for_each(|sequence| mailbox.push_back(id(sequence), Some(100 + sequence)));
    }

    #[test]
    fn messages_keep_their_order_when_any_one_is_removed() {
        let total = QueuedTotal::default();
        let mut mailbox = Mailbox::new(total.clone());
        full(&mut mailbox);
        mailbox.park(id(2), 1, 70);
        mailbox.park(id(9), 8, 50);
        mailbox.remove(&id(4));
        mailbox.push_front(id(7), None);
        assert_eq!(mailbox.all(), [7, 1, 3, 5, 2, 9].map(id));
        assert_eq!((mailbox.len(), total.load(Ordering::Relaxed)), (6, 6));
        mailbox.unpark_all();
        assert_eq!(mailbox.all(), [7, 1, 3, 5, 2, 9].map(id));
        assert_eq!(mailbox.first_parked_until(), None);
        mailbox.push_front(id(2), None);
        assert_eq!(mailbox.all(), [2, 7, 1, 3, 5, 9].map(id), "each message occurs once");
        mailbox.clear();
        assert_eq!((mailbox.len(), total.load(Ordering::Relaxed)), (0, 0));
        mailbox.push_back(id(1), None);
        drop(mailbox);
        assert_eq!(total.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn deadlines_apply_only_to_messages_in_the_mailbox() {
        let mut mailbox = Mailbox::new(QueuedTotal::default());
        full(&mut mailbox);
        mailbox.remove(&id(1));
        assert_eq!(
            mailbox.first_deadline(),
            Some(102),
            "the deadline of a removed message does not count"
        );
        mailbox.park(id(2), 1, 70);
        assert_eq!(mailbox.expired(103), [2, 3].map(id), "parked messages expire too");
        mailbox.set_deadline(&id(2), Some(200));
        mailbox.set_deadline(&id(3), None);
        mailbox.set_deadline(&id(1), Some(1));
        assert_eq!((mailbox.expired(199), mailbox.len()), ([4, 5].map(id).to_vec(), 4));
        mailbox.unpark(&id(1));
        assert_eq!(mailbox.all(), [2, 3, 4, 5].map(id));
        assert_eq!(mailbox.expired(200), [4, 5, 2].map(id));
        mailbox.clear();
        assert_eq!(mailbox.first_deadline(), None);
    }

    #[test]
    fn queries_for_a_second_instance_keep_their_order() {
        let mut mailbox = Mailbox::new(QueuedTotal::default());
        full(&mut mailbox);
        assert_eq!(mailbox.front_query(), None);
        for sequence in [4, 2, 9] {
            mailbox.set_reentrant(&id(sequence));
        }
        assert_eq!(mailbox.front_query(), Some(id(2)));
        mailbox.park(id(2), 1, 70);
        assert_eq!(mailbox.front_query(), Some(id(4)), "a parked message cannot run");
        mailbox.unpark(&id(1));
        assert_eq!((mailbox.front(), mailbox.front_query()), (Some(id(2)), Some(id(2))));
        mailbox.remove(&id(2));
        mailbox.push_front(id(2), None);
        assert_eq!(mailbox.front_query(), Some(id(4)), "it was removed");
        mailbox.clear();
        assert_eq!(mailbox.front_query(), None);
    }

    #[test]
    fn parked_messages_are_released_by_their_predecessor() {
        let mut mailbox = Mailbox::new(QueuedTotal::default());
        let other = MessageId { session: ScopedSessionId::derive("client/y", b"s"), sequence: 2 };
        mailbox.push_back(id(20), None);
        for (sequence, after) in [(5, 3), (6, 2), (7, 4), (8, 3)] {
            mailbox.park(id(sequence), after, 100 - sequence);
        }
        mailbox.park(other, 1, 99);
        assert_eq!(mailbox.last_parked(), [id(8), other].into_iter().max());
        assert_eq!(mailbox.park_expired(93), [8, 7].map(id));
        mailbox.extend_park_deadlines(95);
        assert_eq!(mailbox.first_parked_until(), Some(95));
        assert_eq!(mailbox.park_expired(95), [5, 6, 7, 8].map(id));
        mailbox.unpark(&id(3));
        assert_eq!(mailbox.all()[..4], [5, 6, 8, 20].map(id));
        assert_eq!(mailbox.len(), 6, "7 and the other session's message keep waiting");
        assert_eq!(mailbox.park_expired(95), [id(7)]);
    }
}
