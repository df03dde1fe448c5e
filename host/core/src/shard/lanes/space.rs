//! What an entity drops when its lanes exceed their limits: replies first, then whole lanes.

use super::{
    Arc, BTreeMap, GuestReply, LaneKind, LaneState, Lanes, Mutation, REWRITE_THRESHOLD_BYTES,
    RecordedReply, ScopedSessionId, Settings, reply_bytes,
};

impl Lanes {
    /// Removes replies that the session has settled.
    pub(in crate::shard) fn drop_settled_replies(
        &mut self,
        session: &ScopedSessionId,
        settled: u64,
    ) {
        let Some(known) = self.lanes.get_mut(session) else { return };
        if LaneKind::of(&known.lane) == LaneKind::Key {
            return;
        }
        let old = known.lane.replies.partition_point(|reply| reply.sequence < settled);
        if old == 0 {
            return;
        }
        let mut freed = 0;
        for reply in Arc::make_mut(&mut known.lane).replies.drain(..old) {
            freed += reply_bytes(&reply);
            forget_version(&mut self.full_replies, &mut self.stubs, &reply);
        }
        known.unsettled -= freed;
        self.unsettled -= freed;
        self.add_stale_bytes(session, freed);
    }

    /// Drops clients' lanes that have not been used for `lane_ttl`, and lanes of keys after `idempotency_ttl`.
    pub(in crate::shard) fn purge(&mut self, now: u64, settings: &Settings) {
        self.purged_at = now;
        let old: Vec<_> = self
            .lanes
            .iter()
            .filter(|(_, known)| {
                let kind = LaneKind::of(&known.lane);
                known.lane.used_at.saturating_add(kind.ttl(settings)) < now
                    && (kind != LaneKind::Sender
                        || settings.has_mutation(Mutation::DropSenderLanes))
            })
            .map(|(session, _)| *session)
            .collect();
        for session in old {
            self.drop_lane(&session, settings);
        }
    }

    /// Makes space for one more lane.
    pub(super) fn make_room(&mut self, now: u64, settings: &Settings) {
        let most = settings.max_lanes.max(1);
        // A purge examines every lane, so it does not run for every message.
        let most = most + self.senders.len() + self.keyed.len();
        if self.lanes.len() >= most && now.saturating_sub(self.purged_at) > settings.lane_ttl / 64 {
            self.purge(now, settings);
        }
        while self.lanes.len() >= most
            && let Some(session) = self.eviction_order.next_victim()
        {
            self.drop_lane(&session, settings);
        }
    }

    /// Drops a lane. The commit that removes it also raises the watermark, since copies of messages that ran in the
    /// lane may still arrive.
    pub(super) fn drop_lane(&mut self, session: &ScopedSessionId, settings: &Settings) {
        let Some(LaneState { lane, spilled: beside, unsettled, stale }) =
            self.lanes.remove(session)
        else {
            return;
        };
        let kind = LaneKind::of(&lane);
        match kind {
            LaneKind::Key => self.keyed.remove(&lane, unsettled),
            LaneKind::Sender => self.senders.drop_lane(&lane),
            LaneKind::Session => {
                self.eviction_order.remove(lane.principal_tag, lane.newest_created, *session);
            }
        }
        if kind != LaneKind::Sender && !settings.has_mutation(Mutation::DropLaneWithoutWatermark) {
            self.watermark = self.watermark.max(lane.newest_created);
        }
        if kind != LaneKind::Key {
            self.unsettled -= unsettled;
            for reply in &lane.replies {
                forget_version(&mut self.full_replies, &mut self.stubs, reply);
            }
        }
        self.stale.remove(&(stale, *session));
        if beside {
            self.dropped.insert(*session);
        } else {
            self.inline.retain(|other| other != session);
        }
    }

    /// Drops replies until the rest fit. While the session that was just used takes more than half of the limit, its
    /// own replies are dropped, so that a session that never settles does not harm the others; then the oldest replies
    /// of all sessions are dropped.
    pub(super) fn trim(&mut self, used: Option<&ScopedSessionId>, most: usize) {
        if let Some(session) = used {
            // What keys keep has a limit of its own.
            let own = |lanes: &Self| {
                let known = lanes.lanes.get(session);
                let known = known.filter(|known| LaneKind::of(&known.lane) != LaneKind::Key);
                known.map_or(0, |known| known.unsettled)
            };
            while own(self) > most.div_ceil(2) && self.drop_reply(session) {}
        }
        while self.unsettled > most {
            let oldest =
                self.full_replies.first_key_value().or_else(|| self.stubs.first_key_value());
            let Some(session) = oldest.map(|(_, session)| *session) else { return };
            if !self.drop_reply(&session) {
                return;
            }
        }
    }

    /// Drops the content of a session's oldest complete reply. If no reply is complete, drops the oldest one entirely.
    fn drop_reply(&mut self, session: &ScopedSessionId) -> bool {
        let Some(known) = self.lanes.get_mut(session) else { return false };
        let replies = &mut Arc::make_mut(&mut known.lane).replies;
        // Contents are dropped oldest first, so replies without content come first.
        let whole = replies.partition_point(|reply| reply.reply == GuestReply::Dropped);
        let freed = match replies.get_mut(whole) {
            Some(reply) => {
                let freed = reply.reply.len();
                reply.reply = GuestReply::Dropped;
                self.full_replies.remove(&reply.version);
                self.stubs.insert(reply.version, *session);
                freed
            }
            None => {
                if whole == 0 {
                    return false;
                }
                let reply = replies.remove(0);
                self.stubs.remove(&reply.version);
                reply_bytes(&reply)
            }
        };
        known.unsettled -= freed;
        self.unsettled -= freed;
        self.add_stale_bytes(session, freed);
        true
    }

    fn add_stale_bytes(&mut self, session: &ScopedSessionId, freed: usize) {
        let Some(known) = self.lanes.get_mut(session).filter(|known| known.spilled) else { return };
        self.stale.remove(&(known.stale, *session));
        known.stale += freed;
        if known.stale >= REWRITE_THRESHOLD_BYTES {
            self.stale.insert((known.stale, *session));
        }
    }
}

fn forget_version(
    whole: &mut BTreeMap<u64, ScopedSessionId>,
    stubs: &mut BTreeMap<u64, ScopedSessionId>,
    reply: &RecordedReply,
) {
    whole.remove(&reply.version);
    stubs.remove(&reply.version);
}
