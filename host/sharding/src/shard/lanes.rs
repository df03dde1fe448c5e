//! What an entity remembers of its sessions: dedup, order and bounded memory in one mechanism (R17).
//!
//! A lane has one home for its life: in the head while there is room, else a record beside it. It never
//! moves back, so a turn writes at most the head and one lane.

use std::collections::BTreeMap;

use crate::ids::Session;
use crate::message::{Kind, Message};
use crate::records::{Lane, Loaded, RecordKey, Recorded, Write};

/// What may be done with a message whose turn has come.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Run it.
    Run,
    /// It ran: this is its outcome.
    Answer(Recorded),
    /// Its sequence has passed and nothing is known of it.
    Superseded,
    /// Its id belongs to another message.
    Reused,
    /// The one that it must follow has not run yet.
    Wait,
    /// The one that it must follow was refused here.
    OutOfOrder,
}

#[derive(Debug)]
struct Known {
    lane: Lane,
    beside: bool,
}

/// What is known of a session only while the entity is in memory.
#[derive(Debug, Default)]
struct Passing {
    /// The last sequence that was answered, queries included.
    seen: u64,
    /// The last sequence that was refused for good.
    refused: u64,
}

#[derive(Debug, Default)]
pub(super) struct Lanes {
    known: BTreeMap<Session, Known>,
    /// Those whose home is the head: as few as `head_lane_bytes` allows.
    in_head: Vec<Session>,
    passing: BTreeMap<Session, Passing>,
    /// Lanes beside the head that were purged and are to be deleted with the next commit.
    purged: Vec<Session>,
    unsettled: usize,
}

fn size(lane: &Lane) -> usize {
    40 + lane.replies.iter().map(|reply| 40 + reply.answer.len()).sum::<usize>()
}

fn reply_bytes(lane: &Lane) -> usize {
    lane.replies.iter().map(|reply| reply.answer.len()).sum()
}

impl Lanes {
    /// Takes the lanes as loaded; those unused for `life` milliseconds of cluster time are purged. What was
    /// refused is kept in mind, so that what follows it need not wait.
    pub(super) fn reload(&mut self, loaded: &mut Loaded, now: u64, life: u64) {
        let mut passing = std::mem::take(&mut self.passing);
        passing.values_mut().for_each(|passing| passing.seen = 0);
        *self = Self { passing, ..Self::default() };
        let in_head = loaded.head.iter_mut().flat_map(|head| std::mem::take(&mut head.lanes));
        for (lane, beside) in
            in_head.map(|lane| (lane, false)).chain(loaded.lanes.drain(..).map(|lane| (lane, true)))
        {
            if !beside {
                self.in_head.push(lane.session);
            }
            self.unsettled += reply_bytes(&lane);
            self.known.insert(lane.session, Known { lane, beside });
        }
        self.purge(now, life);
    }

    fn purge(&mut self, now: u64, life: u64) {
        let old: Vec<_> = self
            .known
            .iter()
            .filter(|(_, known)| known.lane.used_at.saturating_add(life) < now)
            .map(|(session, _)| *session)
            .collect();
        for session in old {
            if let Some(known) = self.known.remove(&session) {
                self.unsettled -= reply_bytes(&known.lane);
                if known.beside {
                    self.purged.push(session);
                } else {
                    self.in_head.retain(|other| *other != session);
                }
            }
        }
    }

    /// Judges a message by its lane.
    pub(super) fn judge(&self, message: &Message, compare_digests: bool, ordered: bool) -> Verdict {
        let session = &message.id.session;
        let sequence = message.id.sequence;
        let mut seen = 0;
        if let Some(Known { lane, .. }) = self.known.get(session) {
            if sequence <= lane.last {
                return match lane.replies.iter().find(|reply| reply.sequence == sequence) {
                    Some(reply)
                        if message.kind == Kind::Command
                            && (reply.digest == message.digest || !compare_digests) =>
                    {
                        Verdict::Answer(reply.clone())
                    }
                    Some(_) => Verdict::Reused,
                    None => Verdict::Superseded,
                };
            }
            seen = lane.last;
        }
        let passing = self.passing.get(session);
        seen = seen.max(passing.map_or(0, |passing| passing.seen));
        if !ordered || message.after <= seen {
            Verdict::Run
        } else if passing.is_some_and(|passing| message.after <= passing.refused) {
            Verdict::OutOfOrder
        } else {
            Verdict::Wait
        }
    }

    /// Forgets replies that the session has settled; written with the lane's next commit.
    pub(super) fn settle(&mut self, session: &Session, settled: u64) {
        if let Some(Known { lane, .. }) = self.known.get_mut(session)
            && lane.replies.first().is_some_and(|reply| reply.sequence < settled)
        {
            let before = reply_bytes(lane);
            lane.replies.retain(|reply| reply.sequence >= settled);
            self.unsettled -= before - reply_bytes(lane);
        }
    }

    /// Notes that a query was answered, so that what follows it may run.
    pub(super) fn answered_query(&mut self, message: &Message, bound: usize) {
        let passing = self.passing_mut(message.id.session, bound);
        passing.seen = passing.seen.max(message.id.sequence);
    }

    /// Notes that a message was refused for good, so that what follows it need not wait.
    pub(super) fn refused(&mut self, message: &Message, bound: usize) {
        let passing = self.passing_mut(message.id.session, bound);
        passing.refused = passing.refused.max(message.id.sequence);
    }

    fn passing_mut(&mut self, session: Session, bound: usize) -> &mut Passing {
        // Beyond the bound the notes are dropped: followers then wait out their bound and are sent again.
        if self.passing.len() >= bound && !self.passing.contains_key(&session) {
            self.passing.clear();
        }
        self.passing.entry(session).or_default()
    }

    /// Whether one more session fits, after forgetting the old ones if need be.
    pub(super) fn has_room(&mut self, session: &Session, most: usize, now: u64, life: u64) -> bool {
        if self.known.contains_key(session) || self.known.len() < most {
            return true;
        }
        self.purge(now, life);
        self.known.len() < most
    }

    /// Bytes of replies that are not settled.
    pub(super) fn unsettled_bytes(&self) -> usize {
        self.unsettled
    }

    /// Records a command's outcome; gives the lanes of the new head, how many lie beside, and what to write there.
    pub(super) fn record(
        &mut self,
        message: &Message,
        recorded: Recorded,
        now: u64,
        head_bytes: usize,
    ) -> (Vec<Lane>, u32, Vec<Write>) {
        let session = message.id.session;
        let known = self.known.entry(session).or_insert_with(|| {
            self.in_head.push(session);
            let lane = Lane { session, last: 0, used_at: now, replies: Vec::new() };
            Known { lane, beside: false }
        });
        self.unsettled += recorded.answer.len();
        known.lane.last = recorded.sequence;
        known.lane.used_at = now;
        known.lane.replies.push(recorded);

        let mut writes: Vec<Write> = self
            .purged
            .drain(..)
            .filter(|purged| *purged != session)
            .map(|purged| Write { key: RecordKey::Lane(purged), value: None })
            .collect();
        let total: usize = self
            .in_head
            .iter()
            .map(|in_head| self.known.get(in_head).map_or(0, |k| size(&k.lane)))
            .sum();
        if let Some(known) = self.known.get_mut(&session) {
            if !known.beside && total > head_bytes {
                known.beside = true;
                self.in_head.retain(|other| *other != session);
            }
            if known.beside {
                // A lane of plain numbers and bytes always encodes; an empty record would be refused at load.
                let value = postcard::to_stdvec(&known.lane).unwrap_or_default();
                writes.push(Write { key: RecordKey::Lane(session), value: Some(value.into()) });
            }
        }
        let (lanes, beside) = self.for_head();
        (lanes, beside, writes)
    }

    /// The lanes that a head carries, and how many lie beside it.
    pub(super) fn for_head(&self) -> (Vec<Lane>, u32) {
        let lanes: Vec<_> = self
            .in_head
            .iter()
            .filter_map(|session| self.known.get(session))
            .map(|known| known.lane.clone())
            .collect();
        let beside = self.known.len() - lanes.len();
        (lanes, u32::try_from(beside).unwrap_or(u32::MAX))
    }
}
