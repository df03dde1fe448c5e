//! What an entity remembers of its sessions: dedup, order and bounded memory in one mechanism (R17).
//!
//! A lane has one home for its life: in the head while there is room, else a record beside it. It never
//! moves back. Any lane may be dropped at any time: the watermark then refuses what could be a copy of
//! something that ran in it. `space` does that, and drops replies before their lanes.

mod order;
mod space;

use std::collections::{BTreeMap, BTreeSet};

use self::order::Order;
use super::settings::{Mutation, Settings};
use crate::codec;
use crate::extensions::Extensions;
use crate::ids::Session;
use crate::message::{Kind, Message};
use crate::records::{Answer, Lane, Loaded, RecordKey, Recorded, Write};

/// Records beside the head that a turn deletes, at most: the rest goes with later turns.
const DELETED_A_TURN: usize = 64;
/// Records beside the head that a turn writes again because their replies were dropped, at most. Each turn adds one
/// reply at most, so this keeps up.
const REWRITTEN_A_TURN: usize = 2;
/// Bytes that a record may hold too much before it is worth being written again.
const WORTH_REWRITING: usize = 512;

/// What may be done with a message whose turn has come.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Run it.
    Run,
    /// It ran: this is its outcome.
    Answer(Recorded),
    /// Its sequence has passed and nothing is known of it.
    Superseded,
    /// Its session has no lane, and it may be a copy of what ran in one that was dropped.
    Forgotten,
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
    /// Bytes that its record beside the head holds too much.
    stale: usize,
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
    /// Lanes beside the head that were dropped and whose records are to be deleted.
    dropped: BTreeSet<Session>,
    /// Whatever ran in a dropped lane was created at this time or before.
    watermark: u64,
    /// Which lane goes first.
    order: Order,
    /// Sessions by the versions of their replies that are kept whole: the oldest goes first.
    whole: BTreeMap<u64, Session>,
    /// The same of those whose answer was dropped.
    stubs: BTreeMap<u64, Session>,
    /// Lanes whose records hold too much, by how much.
    stale: BTreeSet<(usize, Session)>,
    unsettled: usize,
    /// When the lanes were last gone through for old ones, in cluster time.
    purged_at: u64,
}

/// Bytes of a reply as the bounds count it. An empty one counts too: else there could be any number of them.
fn reply_bytes(reply: &Recorded) -> usize {
    40 + reply.answer.len()
}

impl Lanes {
    /// Takes the lanes as loaded; those unused for `lane_life` milliseconds of cluster time are dropped. What was
    /// refused is kept in mind, so that what follows it need not wait.
    pub(super) fn reload(&mut self, loaded: &mut Loaded, now: u64, settings: &Settings) {
        let mut passing = std::mem::take(&mut self.passing);
        passing.values_mut().for_each(|passing| passing.seen = 0);
        *self = Self { passing, ..Self::default() };
        self.watermark = loaded.head.as_ref().map_or(0, |head| head.watermark);
        let in_head = loaded.head.iter_mut().flat_map(|head| std::mem::take(&mut head.lanes));
        for (lane, beside) in
            in_head.map(|lane| (lane, false)).chain(loaded.lanes.drain(..).map(|lane| (lane, true)))
        {
            let session = lane.session;
            if self.known.contains_key(&session) {
                // The head has the lane: the record beside it is a former one's, and goes with the next commit.
                self.dropped.insert(session);
                continue;
            }
            if !beside {
                self.in_head.push(session);
            }
            let mut unsettled = 0;
            for reply in &lane.replies {
                unsettled += reply_bytes(reply);
                let by_version =
                    if reply.answer == Answer::Dropped { &mut self.stubs } else { &mut self.whole };
                by_version.insert(reply.version, session);
            }
            self.unsettled += unsettled;
            self.order.insert(lane.principal, lane.newest_created, session);
            self.known.insert(session, Known { lane, beside, unsettled, stale: 0 });
        }
        self.purge(now, settings);
        self.trim(None, settings.unsettled_bytes);
    }

    /// Below this or at it, a command of a session without a lane is refused.
    pub(super) fn watermark(&self) -> u64 {
        self.watermark
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
        } else if message.created <= self.watermark && message.kind == Kind::Command {
            return Verdict::Forgotten;
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

    /// Records a command's outcome, dropping what there is no room for; gives what [`Lanes::written`] gives.
    pub(super) fn record(
        &mut self,
        message: &Message,
        recorded: Recorded,
        now: u64,
        settings: &Settings,
    ) -> (Vec<Lane>, u32, Vec<Write>) {
        let session = message.id.session;
        if !self.known.contains_key(&session) {
            self.make_room(now, settings);
            let principal = order::tag(&message.context.principal);
            let newest_created = message.created;
            self.in_head.push(session);
            self.order.insert(principal, newest_created, session);
            let lane = Lane {
                session,
                last: 0,
                used_at: now,
                newest_created,
                principal,
                replies: Vec::new(),
                extensions: Extensions::default(),
            };
            self.known.insert(session, Known { lane, beside: false, unsettled: 0, stale: 0 });
        }
        if let Some(Known { lane, unsettled, .. }) = self.known.get_mut(&session) {
            if lane.newest_created < message.created {
                self.order.remove(lane.principal, lane.newest_created, session);
                self.order.insert(lane.principal, message.created, session);
                lane.newest_created = message.created;
            }
            let bytes = reply_bytes(&recorded);
            self.unsettled += bytes;
            *unsettled += bytes;
            self.whole.insert(recorded.version, session);
            lane.last = recorded.sequence;
            lane.used_at = now;
            lane.replies.push(recorded);
        }
        self.trim(Some(&session), settings.unsettled_bytes);
        if self.known.get(&session).is_some_and(|known| !known.beside) {
            let in_head = self.in_head.iter().filter_map(|in_head| self.known.get(in_head));
            if in_head.map(|known| 40 + known.unsettled).sum::<usize>() > settings.head_lane_bytes {
                self.in_head.retain(|other| *other != session);
                self.known.entry(session).and_modify(|known| known.beside = true);
            }
        }
        self.written(Some(&session))
    }

    /// The lanes of a new head, how many records lie beside it, and what to write there: the lane of `changed`, if that
    /// is its home, some of those that hold too much, and the end of some that were dropped. A dropped lane that came
    /// back to the head leaves a record beside it that must go at once: loaded later, it would take the place of the
    /// new one.
    pub(super) fn written(&mut self, changed: Option<&Session>) -> (Vec<Lane>, u32, Vec<Write>) {
        let mut writes = Vec::new();
        let came_back = changed.filter(|session| self.dropped.contains(session)).copied();
        let others: Vec<_> = self.dropped.iter().take(DELETED_A_TURN).copied().collect();
        for session in came_back.into_iter().chain(others) {
            let gone = self.dropped.remove(&session);
            if gone && self.known.get(&session).is_none_or(|known| !known.beside) {
                writes.push(Write { key: RecordKey::Lane(session), value: None });
            }
        }
        let largest = self.stale.iter().rev().filter(|(_, session)| Some(session) != changed);
        let rewritten: Vec<_> =
            largest.take(REWRITTEN_A_TURN).map(|(_, session)| *session).collect();
        for session in changed.copied().into_iter().chain(rewritten) {
            let Some(known) = self.known.get_mut(&session).filter(|known| known.beside) else {
                continue;
            };
            self.stale.remove(&(std::mem::take(&mut known.stale), session));
            // A lane of plain numbers and bytes always encodes; an empty record would be refused at load.
            let value = codec::encode(&known.lane).unwrap_or_default();
            writes.push(Write { key: RecordKey::Lane(session), value: Some(value.into()) });
        }
        let in_head = self.in_head.iter().filter_map(|session| self.known.get(session));
        let lanes: Vec<_> = in_head.map(|known| known.lane.clone()).collect();
        let beside = self.known.len() - lanes.len() + self.dropped.len();
        (lanes, u32::try_from(beside).unwrap_or(u32::MAX), writes)
    }
}
