//! What an entity remembers of its sessions: dedup, order and bounded memory in one mechanism (R17).
//!
//! A lane has one home for its life: in the head while there is room, else a record beside it. It never
//! moves back, so a turn writes at most the head and one lane.

use std::collections::BTreeMap;

use crate::codec;
use crate::extensions::Extensions;
use crate::ids::Session;
use crate::message::Message;
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
    /// What its replies take of the entity's bound.
    unsettled: usize,
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
    /// When the lanes were last gone through for old ones, in cluster time.
    purged_at: u64,
}

/// Bytes of a reply as the bounds count it. An empty one counts too: else there could be any number of them.
fn reply_bytes(reply: &Recorded) -> usize {
    40 + reply.answer.len()
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
            let unsettled = lane.replies.iter().map(reply_bytes).sum();
            self.unsettled += unsettled;
            self.known.insert(lane.session, Known { lane, beside, unsettled });
        }
        self.purge(now, life);
    }

    fn purge(&mut self, now: u64, life: u64) {
        self.purged_at = now;
        let old: Vec<_> = self
            .known
            .iter()
            .filter(|(_, known)| known.lane.used_at.saturating_add(life) < now)
            .map(|(session, _)| *session)
            .collect();
        for session in old {
            if let Some(known) = self.known.remove(&session) {
                self.unsettled -= known.unsettled;
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
                    // By the digest alone: a deploy may have made a query of the command since.
                    Some(reply) if reply.digest == message.digest || !compare_digests => {
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
        let Some(known) = self.known.get_mut(session) else { return };
        let replies = &mut known.lane.replies;
        let old = replies.partition_point(|reply| reply.sequence < settled);
        let freed: usize = replies.drain(..old).map(|reply| reply_bytes(&reply)).sum();
        known.unsettled -= freed;
        self.unsettled -= freed;
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
        self.purge_if_due(now, life);
        self.known.len() < most
    }

    /// Whether one more reply fits, after forgetting old sessions if need be. One session may take half of the
    /// bound: so one that never settles does not end all others.
    pub(super) fn has_reply_room(
        &mut self,
        session: &Session,
        most: usize,
        now: u64,
        life: u64,
    ) -> bool {
        if self.unsettled >= most {
            self.purge_if_due(now, life);
        }
        let own = self.known.get(session).map_or(0, |known| known.unsettled);
        self.unsettled < most && own < most.div_ceil(2)
    }

    /// Forgets old sessions, unless it was done a short part of a lane's life ago: all are looked at.
    fn purge_if_due(&mut self, now: u64, life: u64) {
        if now.saturating_sub(self.purged_at) > life / 64 {
            self.purge(now, life);
        }
    }

    /// Records a command's outcome; gives what [`Lanes::written`] gives.
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
            let lane = Lane {
                session,
                last: 0,
                used_at: now,
                replies: Vec::new(),
                extensions: Extensions::default(),
            };
            Known { lane, beside: false, unsettled: 0 }
        });
        let bytes = reply_bytes(&recorded);
        self.unsettled += bytes;
        known.unsettled += bytes;
        known.lane.last = recorded.sequence;
        known.lane.used_at = now;
        known.lane.replies.push(recorded);
        if !known.beside {
            let in_head = self.in_head.iter().filter_map(|in_head| self.known.get(in_head));
            if in_head.map(|known| 40 + known.unsettled).sum::<usize>() > head_bytes {
                self.in_head.retain(|other| *other != session);
                self.known.entry(session).and_modify(|known| known.beside = true);
            }
        }
        self.written(Some(&session))
    }

    /// The lanes of a new head, how many lie beside it, and what to write there: the lane of `changed`, if that is
    /// its home, and the end of those that were purged. A purged lane that came back to the head leaves a record
    /// beside it that must go: loaded later, it would take the place of the new one.
    pub(super) fn written(&mut self, changed: Option<&Session>) -> (Vec<Lane>, u32, Vec<Write>) {
        let beside = |session: &Session| self.known.get(session).filter(|known| known.beside);
        let mut writes: Vec<Write> = self
            .purged
            .iter()
            .filter(|session| beside(session).is_none())
            .map(|session| Write { key: RecordKey::Lane(*session), value: None })
            .collect();
        if let Some(known) = changed.and_then(beside) {
            // A lane of plain numbers and bytes always encodes; an empty record would be refused at load.
            let value = codec::encode(&known.lane).unwrap_or_default();
            writes.push(Write {
                key: RecordKey::Lane(known.lane.session),
                value: Some(value.into()),
            });
        }
        let in_head = self.in_head.iter().filter_map(|session| self.known.get(session));
        let lanes: Vec<_> = in_head.map(|known| known.lane.clone()).collect();
        let beside = u32::try_from(self.known.len() - lanes.len()).unwrap_or(u32::MAX);
        self.purged.clear();
        (lanes, beside, writes)
    }
}
