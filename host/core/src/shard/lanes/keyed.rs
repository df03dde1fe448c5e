//! The lanes of idempotency keys.
//!
//! A client that cannot keep a session may give a command a key. The command is then the only one of a session that is
//! made from the key, so whoever repeats it, through whatever node, gets the recorded reply. Since the client does not
//! say when it has received that reply, the lane and its reply are kept for `idempotency_ttl` after the command ran, and
//! are never dropped earlier to make room: when there is none, commands with new keys are refused.
//!
//! A principal may use as much of the room as is left. So one that uses many keys gets half of it, and there is always
//! some left for another.

use std::collections::{BTreeMap, BTreeSet};

use super::eviction::principal_tag;
use super::{Lanes, Settings};
use crate::ids::ScopedSessionId;
use crate::message::Message;
use crate::records::Lane;

#[derive(Clone, Debug, Default)]
pub(super) struct KeyedLanes {
    /// The lanes by the time of their last use.
    by_use: BTreeSet<(u64, ScopedSessionId)>,
    by_principal: BTreeMap<u32, Room>,
    used: Room,
}

/// A number of lanes, and the size of their replies in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Room {
    keys: usize,
    bytes: usize,
}

impl KeyedLanes {
    pub(super) fn len(&self) -> usize {
        self.used.keys
    }

    /// Adds a lane with this many bytes of replies.
    pub(super) fn insert(&mut self, lane: &Lane, bytes: usize) {
        self.by_use.insert((lane.used_at, lane.session));
        self.change(lane.principal_tag, |room| {
            room.keys += 1;
            room.bytes += bytes;
        });
    }

    /// Records that the lane is used at `now`, for a reply of this size. The caller then updates `used_at` in the lane.
    pub(super) fn used(&mut self, lane: &Lane, now: u64, bytes: usize) {
        self.by_use.remove(&(lane.used_at, lane.session));
        self.by_use.insert((now, lane.session));
        self.change(lane.principal_tag, |room| room.bytes += bytes);
    }

    /// Removes a lane with this many bytes of replies.
    pub(super) fn remove(&mut self, lane: &Lane, bytes: usize) {
        self.by_use.remove(&(lane.used_at, lane.session));
        self.change(lane.principal_tag, |room| {
            room.keys -= 1;
            room.bytes -= bytes;
        });
    }

    fn change(&mut self, principal: u32, change: impl Fn(&mut Room)) {
        change(&mut self.used);
        let own = self.by_principal.entry(principal).or_default();
        change(own);
        if *own == Room::default() {
            self.by_principal.remove(&principal);
        }
    }

    /// Whether the principal may not use a new key.
    fn is_full(&self, principal: u32, settings: &Settings) -> bool {
        let own = self.by_principal.get(&principal).copied().unwrap_or_default();
        let left_keys = settings.idempotency_keys.saturating_sub(self.used.keys);
        let left_bytes = settings.idempotency_bytes.saturating_sub(self.used.bytes);
        own.keys >= left_keys || own.bytes >= left_bytes
    }
}

impl Lanes {
    /// Drops lanes of keys that have been kept long enough.
    pub(in crate::shard) fn expire_keys(&mut self, now: u64, settings: &Settings) {
        while let Some((used_at, session)) = self.keyed.by_use.first().copied()
            && used_at.saturating_add(settings.idempotency_ttl) < now
        {
            self.drop_lane(&session, settings);
        }
    }

    /// Whether a command that may run has a new idempotency key, and there is no room for it.
    pub(super) fn lacks_key_room(&self, message: &Message, settings: &Settings) -> bool {
        message.is_keyed && self.keyed.is_full(principal_tag(&message.context.principal), settings)
    }
}
