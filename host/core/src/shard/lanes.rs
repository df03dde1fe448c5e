//! What an entity remembers about its sessions: dedup, order and bounded memory in one mechanism (R17).
//!
//! A lane has one home for as long as it exists: in the head while there is room, else a record beside it. It never
//! moves back. Any lane may be dropped at any time: the watermark then refuses what could be a copy of
//! something that ran in it. `space` does that, and drops replies before their lanes.

mod eviction;
mod space;

use std::collections::{BTreeMap, BTreeSet};

use self::eviction::EvictionOrder;
use super::settings::{Mutation, Settings};
use crate::codec;
use crate::extensions::Extensions;
use crate::ids::ScopedSessionId;
use crate::message::{Message, MessageKind};
use crate::records::{GuestReply, Lane, LoadedEntity, RecordKey, RecordWrite, RecordedReply};

/// Records beside the head that a turn deletes, at most: the rest goes with later turns.
const MAX_DELETES_PER_TURN: usize = 64;
/// Records beside the head that a turn writes again because their replies were dropped, at most. Each turn adds one
/// reply at most, so this keeps up.
const MAX_REWRITES_PER_TURN: usize = 2;
/// Obsolete bytes that a record may hold before it is worth rewriting.
const REWRITE_THRESHOLD_BYTES: usize = 512;

/// What may be done with a message whose turn has come.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum LaneDecision {
    /// Run it.
    Run,
    /// It ran: this is its outcome.
    Replay(RecordedReply),
    /// Its sequence has passed and its outcome is unknown.
    Superseded,
    /// Its session has no lane, and it may be a copy of what ran in one that was dropped.
    SessionForgotten,
    /// Its id belongs to another message.
    IdReused,
    /// The one that it must follow has not run yet.
    Wait,
    /// The one that it must follow was refused here.
    OutOfOrder,
}

#[derive(Debug)]
struct LaneState {
    lane: Lane,
    spilled: bool,
    /// Bytes of its replies, counted against the entity's bound.
    unsettled: usize,
    /// Obsolete bytes in its record beside the head.
    stale: usize,
}

/// What is known about a session only while the entity is in memory.
#[derive(Debug, Default)]
struct TransientSession {
    /// The last sequence that was answered, queries included.
    last_answered: u64,
    /// The last sequence that was refused for good.
    refused: u64,
}

#[derive(Debug, Default)]
pub(super) struct Lanes {
    lanes: BTreeMap<ScopedSessionId, LaneState>,
    /// Those whose home is the head: as few as `head_lane_bytes` allows.
    inline: Vec<ScopedSessionId>,
    transient: BTreeMap<ScopedSessionId, TransientSession>,
    /// Lanes beside the head that were dropped and whose records are to be deleted.
    dropped: BTreeSet<ScopedSessionId>,
    /// Whatever ran in a dropped lane was created at this time or before.
    watermark: u64,
    /// Which lane goes first.
    eviction_order: EvictionOrder,
    /// Sessions by the versions of their replies that are kept whole: the oldest goes first.
    full_replies: BTreeMap<u64, ScopedSessionId>,
    /// The same of those whose answer was dropped.
    stubs: BTreeMap<u64, ScopedSessionId>,
    /// Lanes whose records hold obsolete bytes, by how many.
    stale: BTreeSet<(usize, ScopedSessionId)>,
    unsettled: usize,
    /// When the lanes were last scanned for old ones, in cluster time.
    purged_at: u64,
}

/// Bytes of a reply as the bounds count it. An empty one counts too: else there could be any number of them.
fn reply_bytes(reply: &RecordedReply) -> usize {
    40 + reply.reply.len()
}

impl Lanes {
    /// Takes the lanes as loaded; those unused for `lane_ttl` milliseconds of cluster time are dropped. What was
    /// refused is kept in mind, so that what follows it need not wait.
    pub(super) fn reload(&mut self, loaded: &mut LoadedEntity, now: u64, settings: &Settings) {
        let mut passing = std::mem::take(&mut self.transient);
        passing.values_mut().for_each(|passing| passing.last_answered = 0);
        *self = Self { transient: passing, ..Self::default() };
        self.watermark = loaded.head.as_ref().map_or(0, |head| head.watermark);
        let in_head = loaded.head.iter_mut().flat_map(|head| std::mem::take(&mut head.lanes));
        for (lane, beside) in
            in_head.map(|lane| (lane, false)).chain(loaded.lanes.drain(..).map(|lane| (lane, true)))
        {
            let session = lane.session;
            if self.lanes.contains_key(&session) {
                // The head has the lane: the record beside it is a former one's, and goes with the next commit.
                self.dropped.insert(session);
                continue;
            }
            if !beside {
                self.inline.push(session);
            }
            let mut unsettled = 0;
            for reply in &lane.replies {
                unsettled += reply_bytes(reply);
                let by_version = if reply.reply == GuestReply::Dropped {
                    &mut self.stubs
                } else {
                    &mut self.full_replies
                };
                by_version.insert(reply.version, session);
            }
            self.unsettled += unsettled;
            self.eviction_order.insert(lane.principal_tag, lane.newest_created, session);
            self.lanes.insert(session, LaneState { lane, spilled: beside, unsettled, stale: 0 });
        }
        self.purge(now, settings);
        self.trim(None, settings.unsettled_bytes);
    }

    /// Below this or at it, a command of a session without a lane is refused.
    pub(super) fn watermark(&self) -> u64 {
        self.watermark
    }

    /// Judges a message by its lane.
    pub(super) fn check(
        &self,
        message: &Message,
        compare_digests: bool,
        ordered: bool,
    ) -> LaneDecision {
        let session = &message.id.session;
        let sequence = message.id.sequence;
        let mut seen = 0;
        if let Some(LaneState { lane, .. }) = self.lanes.get(session) {
            if sequence <= lane.last_sequence {
                return match lane.replies.iter().find(|reply| reply.sequence == sequence) {
                    // By the digest alone: a deploy may have made a query of the command since.
                    Some(reply) if reply.digest == message.digest || !compare_digests => {
                        LaneDecision::Replay(reply.clone())
                    }
                    Some(_) => LaneDecision::IdReused,
                    None => LaneDecision::Superseded,
                };
            }
            seen = lane.last_sequence;
        } else if message.created_ms <= self.watermark && message.kind == MessageKind::Command {
            return LaneDecision::SessionForgotten;
        }
        let passing = self.transient.get(session);
        seen = seen.max(passing.map_or(0, |passing| passing.last_answered));
        if !ordered || message.after <= seen {
            LaneDecision::Run
        } else if passing.is_some_and(|passing| message.after <= passing.refused) {
            LaneDecision::OutOfOrder
        } else {
            LaneDecision::Wait
        }
    }

    /// Records that a query was answered, so that what follows it may run.
    pub(super) fn record_query_answered(&mut self, message: &Message, bound: usize) {
        let passing = self.transient_mut(message.id.session, bound);
        passing.last_answered = passing.last_answered.max(message.id.sequence);
    }

    /// Records that a message was refused for good, so that what follows it need not wait.
    pub(super) fn record_refused(&mut self, message: &Message, bound: usize) {
        let passing = self.transient_mut(message.id.session, bound);
        passing.refused = passing.refused.max(message.id.sequence);
    }

    fn transient_mut(&mut self, session: ScopedSessionId, bound: usize) -> &mut TransientSession {
        // Beyond the bound the notes are dropped: followers then wait out their bound and are sent again.
        if self.transient.len() >= bound && !self.transient.contains_key(&session) {
            self.transient.clear();
        }
        self.transient.entry(session).or_default()
    }

    /// Records a command's outcome, dropping what there is no room for; returns the same as [`Lanes::take_head_and_writes`].
    pub(super) fn record(
        &mut self,
        message: &Message,
        recorded: RecordedReply,
        now: u64,
        settings: &Settings,
    ) -> (Vec<Lane>, u32, Vec<RecordWrite>) {
        let session = message.id.session;
        if !self.lanes.contains_key(&session) {
            self.make_room(now, settings);
            let principal = eviction::principal_tag(&message.context.principal);
            let newest_created = message.created_ms;
            self.inline.push(session);
            self.eviction_order.insert(principal, newest_created, session);
            let lane = Lane {
                session,
                last_sequence: 0,
                used_at: now,
                newest_created,
                principal_tag: principal,
                replies: Vec::new(),
                extensions: Extensions::default(),
            };
            self.lanes.insert(session, LaneState { lane, spilled: false, unsettled: 0, stale: 0 });
        }
        if let Some(LaneState { lane, unsettled, .. }) = self.lanes.get_mut(&session) {
            if lane.newest_created < message.created_ms {
                self.eviction_order.remove(lane.principal_tag, lane.newest_created, session);
                self.eviction_order.insert(lane.principal_tag, message.created_ms, session);
                lane.newest_created = message.created_ms;
            }
            let bytes = reply_bytes(&recorded);
            self.unsettled += bytes;
            *unsettled += bytes;
            self.full_replies.insert(recorded.version, session);
            lane.last_sequence = recorded.sequence;
            lane.used_at = now;
            lane.replies.push(recorded);
        }
        self.trim(Some(&session), settings.unsettled_bytes);
        if self.lanes.get(&session).is_some_and(|known| !known.spilled) {
            let in_head = self.inline.iter().filter_map(|in_head| self.lanes.get(in_head));
            if in_head.map(|known| 40 + known.unsettled).sum::<usize>() > settings.inline_lane_bytes
            {
                self.inline.retain(|other| *other != session);
                self.lanes.entry(session).and_modify(|known| known.spilled = true);
            }
        }
        self.take_head_and_writes(Some(&session))
    }

    /// The lanes of a new head, how many records lie beside it, and what to write there: the lane of `changed`, if that
    /// is its home, some of those that hold too much, and the end of some that were dropped. A dropped lane that came
    /// back to the head leaves a record beside it that must go at once: loaded later, it would take the place of the
    /// new one.
    pub(super) fn take_head_and_writes(
        &mut self,
        changed: Option<&ScopedSessionId>,
    ) -> (Vec<Lane>, u32, Vec<RecordWrite>) {
        let mut writes = Vec::new();
        let came_back = changed.filter(|session| self.dropped.contains(session)).copied();
        let others: Vec<_> = self.dropped.iter().take(MAX_DELETES_PER_TURN).copied().collect();
        for session in came_back.into_iter().chain(others) {
            let gone = self.dropped.remove(&session);
            if gone && self.lanes.get(&session).is_none_or(|known| !known.spilled) {
                writes.push(RecordWrite { key: RecordKey::Lane(session), value: None });
            }
        }
        let largest = self.stale.iter().rev().filter(|(_, session)| Some(session) != changed);
        let rewritten: Vec<_> =
            largest.take(MAX_REWRITES_PER_TURN).map(|(_, session)| *session).collect();
        for session in changed.copied().into_iter().chain(rewritten) {
            let Some(known) = self.lanes.get_mut(&session).filter(|known| known.spilled) else {
                continue;
            };
            self.stale.remove(&(std::mem::take(&mut known.stale), session));
            // A lane of plain numbers and bytes always encodes; an empty record would be refused at load.
            let value = codec::encode(&known.lane).unwrap_or_default();
            writes.push(RecordWrite { key: RecordKey::Lane(session), value: Some(value.into()) });
        }
        let in_head = self.inline.iter().filter_map(|session| self.lanes.get(session));
        let lanes: Vec<_> = in_head.map(|known| known.lane.clone()).collect();
        let beside = self.lanes.len() - lanes.len() + self.dropped.len();
        (lanes, u32::try_from(beside).unwrap_or(u32::MAX), writes)
    }
}
