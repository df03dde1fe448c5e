//! What an entity remembers of its sessions: deduplication, order and bounded memory in one mechanism (R17).
//!
//! A lane is stored in the head while there is space, otherwise it is *spilled* into its own record and never moves
//! back. A client's lane may be dropped at any time: the watermark then refuses every message that could be a copy of
//! one that ran in it. The module `space` drops lanes, and drops their replies first. The module `senders` decides when
//! the lane of a sending entity may be dropped.

mod eviction;
mod keyed;
mod senders;
mod space;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use self::eviction::EvictionOrder;
use self::keyed::KeyedLanes;
use self::senders::SenderLanes;
use super::settings::{Mutation, Settings};
use crate::codec;
use crate::extensions::Extensions;
use crate::ids::ScopedSessionId;
use crate::message::{Message, MessageKind};
use crate::records::{GuestReply, Lane, LoadedEntity, RecordKey, RecordWrite, RecordedReply};

/// Maximum number of spilled records that one turn deletes; later turns delete the rest.
const MAX_DELETES_PER_TURN: usize = 64;
/// Maximum number of spilled records that one turn rewrites because their replies were dropped. A turn adds at most one
/// reply, so this is enough.
const MAX_REWRITES_PER_TURN: usize = 2;
/// Number of obsolete bytes that make a spilled record worth rewriting.
const REWRITE_THRESHOLD_BYTES: usize = 512;

/// What to do with the message that is next in the mailbox.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum LaneDecision {
    /// Run it.
    Run,
    /// It has run, and this reply is recorded.
    Replay(RecordedReply),
    /// A later sequence has run, and no reply to this one is recorded.
    Superseded,
    /// Its session has no lane, and it may be a copy of a message that ran in a dropped lane.
    SessionForgotten,
    /// Its id was used for another message.
    IdReused,
    /// Its predecessor has not run yet.
    Wait,
    /// Its predecessor was refused permanently.
    OutOfOrder,
    /// It is the first tell from a sending entity, and the target already remembers the maximum number of senders.
    TooManySenders,
    /// It has a new idempotency key, and the entity has no room for its reply.
    TooManyKeys,
}

/// Whose lane it is, which decides how long it is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LaneKind {
    /// A client's session. The lane may be dropped at any time.
    Session,
    /// A sending entity. The lane is dropped when the entity confirms that it is not needed.
    Sender,
    /// An idempotency key. The lane is kept for a time.
    Key,
}

impl LaneKind {
    /// The kind of a lane. One whose fields cannot be decoded is kept like a sender's.
    fn of(lane: &Lane) -> Self {
        match (lane.sender(), lane.is_keyed()) {
            (Ok(None), Ok(false)) => Self::Session,
            (Ok(None), Ok(true)) => Self::Key,
            _ => Self::Sender,
        }
    }

    /// How long a client's lane is kept after its last use, in milliseconds.
    fn ttl(self, settings: &Settings) -> u64 {
        if self == Self::Key { settings.idempotency_ttl } else { settings.lane_ttl }
    }
}

#[derive(Clone, Debug)]
struct LaneState {
    /// Shared with the heads of commits that are on their way.
    lane: Arc<Lane>,
    spilled: bool,
    /// Size of its replies in bytes, which counts towards the entity's limit for unsettled replies or for keys.
    unsettled: usize,
    /// Number of obsolete bytes in its spilled record.
    stale: usize,
}

/// Facts about a session that are known only while the entity is in memory.
#[derive(Clone, Debug, Default)]
struct TransientSession {
    /// The highest sequence of a query that was answered.
    last_answered: u64,
    /// The highest sequence that was refused permanently.
    refused: u64,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Lanes {
    lanes: BTreeMap<ScopedSessionId, LaneState>,
    /// Lanes that are stored in the head; `inline_lane_bytes` limits their size.
    inline: Vec<ScopedSessionId>,
    transient: BTreeMap<ScopedSessionId, TransientSession>,
    /// Sessions whose spilled records are obsolete and must be deleted.
    dropped: BTreeSet<ScopedSessionId>,
    /// Every message that ran in a dropped lane was created at this time or earlier.
    watermark: u64,
    /// The order in which lanes are dropped.
    eviction_order: EvictionOrder,
    /// Sessions by the versions of their complete replies. The oldest reply is dropped first.
    full_replies: BTreeMap<u64, ScopedSessionId>,
    /// Sessions by the versions of those replies whose content was dropped.
    stubs: BTreeMap<u64, ScopedSessionId>,
    /// Lanes whose spilled records are worth rewriting, by their number of obsolete bytes.
    stale: BTreeSet<(usize, ScopedSessionId)>,
    unsettled: usize,
    /// Cluster time of the last scan for expired lanes.
    purged_at: u64,
    /// The lanes of sending entities.
    senders: SenderLanes,
    /// The lanes of idempotency keys.
    keyed: KeyedLanes,
}

/// Size of a reply in bytes, as the limits count it. An empty reply also counts, or their number would be unlimited.
fn reply_bytes(reply: &RecordedReply) -> usize {
    40 + reply.reply.len()
}

impl Lanes {
    /// Adopts the loaded lanes, except for clients' lanes that were unused for `lane_ttl` milliseconds of cluster time.
    /// Refused sequences are still remembered, so that their successors need not wait.
    pub(super) fn reload(&mut self, loaded: &mut LoadedEntity, now: u64, settings: &Settings) {
        let mut passing = std::mem::take(&mut self.transient);
        passing.values_mut().for_each(|passing| passing.last_answered = 0);
        *self = Self { transient: passing, ..Self::default() };
        self.watermark = loaded.head.as_ref().map_or(0, |head| head.watermark);
        let watermark = loaded.head.as_ref().map(|head| head.tell_watermark().unwrap_or(u64::MAX));
        self.senders = SenderLanes::new(watermark.unwrap_or(0));
        let in_head = loaded.head.iter_mut().flat_map(|head| std::mem::take(&mut head.lanes));
        let beside = loaded.lanes.drain(..).map(|lane| (Arc::new(lane), true));
        for (lane, beside) in in_head.map(|lane| (lane, false)).chain(beside) {
            let session = lane.session;
            if self.lanes.contains_key(&session) {
                // The lane is in the head, so its spilled record is obsolete, and a later commit deletes it.
                self.dropped.insert(session);
                continue;
            }
            if !beside {
                self.inline.push(session);
            }
            let unsettled = lane.replies.iter().map(reply_bytes).sum();
            self.index(&lane, unsettled);
            let is_keyed = LaneKind::of(&lane) == LaneKind::Key;
            for reply in lane.replies.iter().filter(|_| !is_keyed) {
                self.unsettled += reply_bytes(reply);
                let by_version = if reply.reply == GuestReply::Dropped {
                    &mut self.stubs
                } else {
                    &mut self.full_replies
                };
                by_version.insert(reply.version, session);
            }
            self.lanes.insert(session, LaneState { lane, spilled: beside, unsettled, stale: 0 });
        }
        self.purge(now, settings);
        self.trim(None, settings.unsettled_bytes);
    }

    /// Adds a lane with this many bytes of replies to the order in which lanes are dropped.
    fn index(&mut self, lane: &Lane, bytes: usize) {
        match LaneKind::of(lane) {
            LaneKind::Key => self.keyed.insert(lane, bytes),
            LaneKind::Sender => self.senders.insert(lane),
            LaneKind::Session => {
                let (principal, created) = (lane.principal_tag, lane.newest_created);
                self.eviction_order.insert(principal, created, lane.session);
            }
        }
    }

    /// Like [`Lanes::watermark`], but for tells.
    pub(super) fn tell_watermark(&self) -> u64 {
        self.senders.watermark()
    }

    /// Until when the lanes or the watermarks are needed, in cluster time: a lane until it can be dropped, a watermark
    /// until `lane_ttl` after it.
    pub(super) fn needed_until(&self, settings: &Settings) -> u64 {
        let lanes = self.lanes.values().map(|known| &known.lane);
        let used = lanes.map(|lane| {
            lane.used_at.saturating_add(1).saturating_add(LaneKind::of(lane).ttl(settings))
        });
        let marks = [self.watermark, self.tell_watermark()].into_iter().filter(|mark| *mark > 0);
        let marks = marks.map(|mark| mark.saturating_add(settings.lane_ttl));
        used.chain(marks).max().unwrap_or(0)
    }

    /// Whether there is a lane, or there are more obsolete records than one commit deletes.
    pub(super) fn has_remains(&self) -> bool {
        !self.lanes.is_empty() || self.dropped.len() > MAX_DELETES_PER_TURN
    }

    /// A client's command is refused if its session has no lane and it was created at this time or earlier.
    pub(super) fn watermark(&self) -> u64 {
        self.watermark
    }

    /// Decides what to do with a message, based on its session's lane and on the limits of new lanes, if there are any.
    pub(super) fn check(
        &self,
        message: &Message,
        compare_digests: bool,
        ordered: bool,
        limits: Option<&Settings>,
    ) -> LaneDecision {
        let session = &message.id.session;
        let sequence = message.id.sequence;
        let mut seen = 0;
        if let Some(LaneState { lane, .. }) = self.lanes.get(session) {
            if sequence <= lane.last_sequence {
                return match lane.replies.iter().find(|reply| reply.sequence == sequence) {
                    // Only the digest is compared, since a deployment may have turned the command into a query.
                    Some(reply) if reply.digest == message.digest || !compare_digests => {
                        LaneDecision::Replay(reply.clone())
                    }
                    Some(_) => LaneDecision::IdReused,
                    None => LaneDecision::Superseded,
                };
            }
            // A key stands for one command, and nothing would bound the replies to more.
            if LaneKind::of(lane) == LaneKind::Key {
                return LaneDecision::IdReused;
            }
            seen = lane.last_sequence;
        } else if message.is_keyed && sequence != 1 {
            return LaneDecision::IdReused;
        } else if message.kind == MessageKind::Command {
            let watermark = match message.sender {
                Some(_) => self.senders.watermark(),
                None => self.watermark,
            };
            // Without a watermark, no lane has been dropped.
            let skew = message.asked_by.as_ref().filter(|_| watermark > 0);
            let skew = skew.map_or(0, |origin| origin.created_skew);
            if message.created_ms <= watermark.saturating_add(skew) {
                return LaneDecision::SessionForgotten;
            }
            if limits.is_some_and(|limits| self.lacks_sender_room(message, limits)) {
                return LaneDecision::TooManySenders;
            }
            if limits.is_some_and(|limits| self.lacks_key_room(message, limits)) {
                return LaneDecision::TooManyKeys;
            }
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

    /// Records that a query was answered, so that its successor may run.
    pub(super) fn record_query_answered(&mut self, message: &Message, bound: usize) {
        let passing = self.transient_mut(message.id.session, bound);
        passing.last_answered = passing.last_answered.max(message.id.sequence);
    }

    /// Records that a message was refused permanently, so that its successor need not wait.
    pub(super) fn record_refused(&mut self, message: &Message, bound: usize) {
        let passing = self.transient_mut(message.id.session, bound);
        passing.refused = passing.refused.max(message.id.sequence);
    }

    fn transient_mut(&mut self, session: ScopedSessionId, bound: usize) -> &mut TransientSession {
        // Beyond the limit, all of these are dropped: successors then wait until they time out, and are sent again.
        if self.transient.len() >= bound && !self.transient.contains_key(&session) {
            self.transient.clear();
        }
        self.transient.entry(session).or_default()
    }

    /// Records a command's outcome, and drops what no longer fits. Returns the result of
    /// [`Lanes::take_head_and_writes`].
    pub(super) fn record(
        &mut self,
        message: &Message,
        recorded: RecordedReply,
        now: u64,
        settings: &Settings,
    ) -> (Vec<Arc<Lane>>, u32, Vec<RecordWrite>) {
        let session = message.id.session;
        let is_keyed = message.is_keyed && !settings.has_mutation(Mutation::DropKeyedLanes);
        if !self.lanes.contains_key(&session) {
            if message.sender.is_none() && !is_keyed {
                self.make_room(now, settings);
            }
            // The lane of a key has one reply, which later turns need not write again.
            if !is_keyed {
                self.inline.push(session);
            }
            let mut lane = Lane {
                session,
                last_sequence: 0,
                used_at: now,
                newest_created: message.created_ms,
                principal_tag: eviction::principal_tag(&message.context.principal),
                replies: Vec::new(),
                extensions: Extensions::default(),
            };
            if let Some(sender) = &message.sender {
                let set = lane.set_sender(sender);
                debug_assert!(set.is_ok(), "a name fits: {set:?}");
            } else if is_keyed {
                let set = lane.set_keyed();
                debug_assert!(set.is_ok(), "a flag fits: {set:?}");
            }
            self.index(&lane, 0);
            let (lane, spilled) = (Arc::new(lane), is_keyed);
            self.lanes.insert(session, LaneState { lane, spilled, unsettled: 0, stale: 0 });
        }
        if let Some(LaneState { lane, unsettled, .. }) = self.lanes.get_mut(&session) {
            let lane = Arc::make_mut(lane);
            let bytes = reply_bytes(&recorded);
            let kind = LaneKind::of(lane);
            let newest = lane.newest_created.max(message.created_ms);
            match kind {
                LaneKind::Key => self.keyed.used(lane, now, bytes),
                LaneKind::Sender => self.senders.used(lane, now),
                LaneKind::Session if lane.newest_created == newest => {}
                LaneKind::Session => {
                    self.eviction_order.remove(lane.principal_tag, lane.newest_created, session);
                    self.eviction_order.insert(lane.principal_tag, newest, session);
                }
            }
            lane.newest_created = newest;
            *unsettled += bytes;
            if kind != LaneKind::Key {
                self.unsettled += bytes;
                self.full_replies.insert(recorded.version, session);
            }
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

    /// Returns the lanes of a new head, the number of spilled records, and the writes to these records: the lane of
    /// `changed`, if it is spilled; some records that hold obsolete bytes; and deletions of some obsolete records. If a
    /// dropped lane has returned to the head, its old record must be deleted in the same commit: if it were loaded
    /// after the new lane was dropped, it would be taken for the current lane.
    pub(super) fn take_head_and_writes(
        &mut self,
        changed: Option<&ScopedSessionId>,
    ) -> (Vec<Arc<Lane>>, u32, Vec<RecordWrite>) {
        self.senders.saved();
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
            let value = codec::encode(&*known.lane).unwrap_or_default();
            writes.push(RecordWrite { key: RecordKey::Lane(session), value: Some(value.into()) });
        }
        let in_head = self.inline.iter().filter_map(|session| self.lanes.get(session));
        let lanes: Vec<_> = in_head.map(|known| known.lane.clone()).collect();
        let beside = self.lanes.len() - lanes.len() + self.dropped.len();
        (lanes, u32::try_from(beside).unwrap_or(u32::MAX), writes)
    }
}
