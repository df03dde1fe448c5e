//! What a router keeps of each shard, each link and each message.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::settings::Settings;
use crate::ids::{Epoch, ShardId};
use crate::rows::Member;

/// A message, wherever it is.
#[derive(Debug)]
pub(super) struct Entry<T> {
    pub(super) item: T,
    pub(super) bytes: usize,
    pub(super) deadline: Option<u64>,
    /// How long it was held before it was held now. Only waiting counts: a message that spent its
    /// time in flight to a node that died still gets its chance with the next owner.
    pub(super) waited: u64,
    pub(super) in_doubt: bool,
}

impl<T> Entry<T> {
    pub(super) fn is_late(&self, now: u64) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= now)
    }
}

/// A message that waits.
#[derive(Debug)]
pub(super) struct Held<T> {
    pub(super) entry: Entry<T>,
    pub(super) since: u64,
    pub(super) expires: u64,
}

/// A message that was given out.
#[derive(Debug)]
pub(super) struct Flight<T> {
    pub(super) entry: Entry<T>,
    pub(super) place: u64,
    pub(super) index: usize,
    pub(super) to: Member,
    pub(super) epoch: Epoch,
}

/// A hand-off that was announced, or that the route shows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hold {
    /// The epoch that it ends.
    pub(super) epoch: Epoch,
    pub(super) until: u64,
}

/// A shard. Messages have a *place*: it counts all that came, so a map by it is in the order of coming.
#[derive(Debug)]
pub(super) struct Slot<T> {
    pub(super) epoch: Epoch,
    pub(super) owner: Option<Member>,
    pub(super) hold: Option<Hold>,
    /// Nothing leaves before this time.
    pub(super) retry_at: u64,
    /// How long the last such wait was; none since something was answered.
    pub(super) pause: u64,
    pub(super) held: BTreeMap<u64, Held<T>>,
    /// Tags by place.
    pub(super) flying: BTreeMap<u64, u64>,
    /// When the timer is that stands for it.
    pub(super) timer: Option<u64>,
    /// The link whose window it waits for.
    pub(super) waiting: Option<Member>,
}

impl<T> Slot<T> {
    pub(super) fn new() -> Self {
        Self {
            epoch: Epoch(0),
            owner: None,
            hold: None,
            retry_at: 0,
            pause: 0,
            held: BTreeMap::new(),
            flying: BTreeMap::new(),
            timer: None,
            waiting: None,
        }
    }

    /// From when on messages may leave.
    pub(super) fn shut_until(&self) -> u64 {
        self.hold.map_or(0, |hold| hold.until).max(self.retry_at)
    }

    /// The one that leaves next: its place and bytes.
    pub(super) fn first(&self) -> Option<(u64, usize)> {
        self.held.first_key_value().map(|(place, held)| (*place, held.entry.bytes))
    }
}

/// What is under way to one life of a node.
#[derive(Debug, Default)]
pub(super) struct Link {
    /// Tags; ascending, so in the order of sending.
    pub(super) flying: BTreeSet<u64>,
    pub(super) bytes: usize,
    /// Shards that wait for the window, each once, and each takes one turn at a time.
    pub(super) waiting: VecDeque<usize>,
}

impl Link {
    /// Whether the window has room. Whatever its size, one message may always go.
    pub(super) fn takes(&self, settings: &Settings, bytes: usize) -> bool {
        self.flying.is_empty()
            || (self.flying.len() < settings.link_messages
                && self.bytes.saturating_add(bytes) <= settings.link_bytes)
    }
}

/// The place of a shard in the table.
pub(super) fn index_of(shard: ShardId, shards: usize) -> Option<usize> {
    usize::try_from(shard.0).ok()?.checked_sub(1).filter(|index| *index < shards)
}

/// The shard at a place of the table.
pub(super) fn shard_of(index: usize) -> ShardId {
    ShardId(u32::try_from(index).unwrap_or(u32::MAX).saturating_add(1))
}
