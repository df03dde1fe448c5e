//! The lanes of sending entities (R19).
//!
//! A client's lane may be dropped at any time: the client then learns that its message is too old. A sending entity may
//! have to resend a tell after any length of time, so its lane is dropped only when the entity confirms that it has
//! nothing more to send up to the lane's last sequence. Senders are asked one at a time, starting with the one whose
//! lane has been unused longest.
//!
//! Late copies of tells that ran in a dropped lane are refused by a watermark of creation times, as for clients. This
//! watermark is separate from the one for clients, so a tell that it refuses and that its sender still has never ran,
//! and may get a new creation time.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{Lanes, Settings};
use crate::ids::{Entity, ScopedSessionId};
use crate::message::Message;
use crate::records::Lane;

#[derive(Clone, Debug, Default)]
pub(super) struct SenderLanes {
    /// The lanes by the time of their last use.
    by_use: BTreeSet<(u64, ScopedSessionId)>,
    watermark: u64,
    /// The sender that was asked, and the number of the last tell that ran in its lane.
    asked: Option<(ScopedSessionId, u64)>,
    /// Whether a lane was dropped since the last commit.
    unsaved: bool,
}

impl SenderLanes {
    pub(super) fn new(watermark: u64) -> Self {
        Self { watermark, ..Self::default() }
    }

    pub(super) fn watermark(&self) -> u64 {
        self.watermark
    }

    pub(super) fn len(&self) -> usize {
        self.by_use.len()
    }

    pub(super) fn insert(&mut self, lane: &Lane) {
        self.by_use.insert((lane.used_at, lane.session));
    }

    /// Records that the lane is used at `now`. The caller then updates `used_at` in the lane.
    pub(super) fn used(&mut self, lane: &Lane, now: u64) {
        self.by_use.remove(&(lane.used_at, lane.session));
        self.by_use.insert((now, lane.session));
    }

    /// Records that the lane is dropped: from now on, copies of what ran in it are refused.
    pub(super) fn drop_lane(&mut self, lane: &Lane) {
        self.by_use.remove(&(lane.used_at, lane.session));
        self.watermark = self.watermark.max(lane.newest_created);
        self.unsaved = true;
    }

    pub(super) fn saved(&mut self) {
        self.unsaved = false;
    }
}

impl Lanes {
    /// Whether a tell that may run is the first of its sender, and the entity remembers as many senders as it may.
    pub(super) fn lacks_sender_room(&self, message: &Message, settings: &Settings) -> bool {
        message.sender.is_some() && self.senders.len() >= settings.max_lanes
    }

    /// The sending entity to ask whether its lane is still needed, if that lane was not used for `lane_ttl`, or if
    /// there are more than half of the maximum number of such lanes. One sender is asked at a time.
    pub(in crate::shard) fn sender_to_ask(
        &mut self,
        now: u64,
        settings: &Settings,
    ) -> Option<Entity> {
        if self.senders.asked.is_some() {
            return None;
        }
        let (used_at, session) = *self.senders.by_use.first()?;
        let is_old = used_at.saturating_add(settings.lane_ttl) < now;
        if !is_old && self.senders.len() * 2 <= settings.max_lanes {
            return None;
        }
        let lane = &self.lanes.get(&session)?.lane;
        let sender = lane.sender().ok()??;
        self.senders.asked = Some((session, lane.last_sequence));
        Some(sender)
    }

    /// Whether the entity must stay in memory because an answer is awaited or a drop must be committed.
    pub(in crate::shard) fn needs_memory(&self) -> bool {
        self.senders.asked.is_some() || self.senders.unsaved
    }

    /// Whether a sender was asked and has yet to answer.
    pub(in crate::shard) fn awaits_sender(&self) -> bool {
        self.senders.asked.is_some()
    }

    /// Whether the drop of a sender's lane must be committed.
    pub(in crate::shard) fn has_unsaved_drop(&self) -> bool {
        self.senders.unsaved
    }

    /// Handles the sender's answer: the number of its first tell to this entity, if it has one. The outer `None` means
    /// that the sender did not answer.
    pub(in crate::shard) fn on_sender_answered(
        &mut self,
        sender: &Entity,
        first: Option<Option<u64>>,
        now: u64,
        settings: &Settings,
    ) {
        let session = ScopedSessionId::of_entity(sender);
        let Some((_, asked)) = self.senders.asked.take_if(|(asked, _)| *asked == session) else {
            return;
        };
        let Some(known) = self.lanes.get_mut(&session) else { return };
        // The answer does not cover a tell that has run since the question.
        let covered = known.lane.last_sequence == asked;
        if covered && first.is_some_and(|first| first.is_none_or(|first| first > asked)) {
            return self.drop_lane(&session, settings);
        }
        // Other senders are asked before this one is asked again.
        self.senders.used(&known.lane, now);
        Arc::make_mut(&mut known.lane).used_at = now;
    }
}
