//! The state that a router keeps for each shard, each link and each message.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::settings::Settings;
use crate::ids::{Epoch, ShardId};
use crate::rows::Member;

/// A message in any state.
#[derive(Debug)]
pub(super) struct RoutedMessage<T> {
    pub(super) item: T,
    pub(super) bytes: usize,
    pub(super) deadline: Option<u64>,
    /// How long it was buffered before the current wait. Only time in the buffer counts: a message that spent its
    /// time in flight to a node that died still gets its chance with the next owner.
    pub(super) waited: u64,
    pub(super) in_doubt: bool,
    /// Whether no other copy may be sent while it is in doubt (K18).
    pub(super) once: bool,
}

impl<T> RoutedMessage<T> {
    pub(super) fn deadline_passed(&self, now: u64) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= now)
    }
}

/// A buffered message.
#[derive(Debug)]
pub(super) struct BufferedMessage<T> {
    pub(super) message: RoutedMessage<T>,
    pub(super) buffered_at: u64,
    pub(super) expires: u64,
}

/// A message in flight.
#[derive(Debug)]
pub(super) struct InFlightMessage<T> {
    pub(super) message: RoutedMessage<T>,
    pub(super) arrival: u64,
    pub(super) index: usize,
    pub(super) to: Member,
    pub(super) epoch: Epoch,
}

/// A hand-off that was announced, or that the route shows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Buffering {
    /// The epoch that ends with it.
    pub(super) epoch: Epoch,
    pub(super) until: u64,
}

/// A shard. Each message has a *place*, a number that counts the arrivals, so a map keyed by it is in order of
/// arrival.
#[derive(Debug)]
pub(super) struct ShardRoute<T> {
    pub(super) epoch: Epoch,
    pub(super) owner: Option<Member>,
    pub(super) buffering: Option<Buffering>,
    /// No message is sent before this time.
    pub(super) backoff_until: u64,
    /// How long the last such pause was; 0 if a message has been answered or the route has changed since.
    pub(super) backoff: u64,
    pub(super) buffered: BTreeMap<u64, BufferedMessage<T>>,
    /// Tags by place.
    pub(super) in_flight: BTreeMap<u64, u64>,
    /// When its timer is due.
    pub(super) timer: Option<u64>,
    /// The link whose window it waits for.
    pub(super) waiting_for: Option<Member>,
}

impl<T> ShardRoute<T> {
    pub(super) fn new() -> Self {
        Self {
            epoch: Epoch(0),
            owner: None,
            buffering: None,
            backoff_until: 0,
            backoff: 0,
            buffered: BTreeMap::new(),
            in_flight: BTreeMap::new(),
            timer: None,
            waiting_for: None,
        }
    }

    /// The time from which messages may be sent.
    pub(super) fn blocked_until(&self) -> u64 {
        self.buffering.map_or(0, |hold| hold.until).max(self.backoff_until)
    }

    /// The next message to send: its place and bytes.
    pub(super) fn first(&self) -> Option<(u64, usize)> {
        self.buffered.first_key_value().map(|(place, held)| (*place, held.message.bytes))
    }
}

/// Messages in flight to one incarnation of a node.
#[derive(Debug, Default)]
pub(super) struct LinkWindow {
    /// Tags in ascending order, which is the order of sending.
    pub(super) in_flight: BTreeSet<u64>,
    pub(super) bytes: usize,
    /// Shards that wait for the window, each listed once; each sends one message in turn.
    pub(super) waiting_shards: VecDeque<usize>,
}

impl LinkWindow {
    /// Whether the window has space for a message of this size. One message may always be sent, whatever its size.
    pub(super) fn takes(&self, settings: &Settings, bytes: usize) -> bool {
        self.in_flight.is_empty()
            || (self.in_flight.len() < settings.link_messages
                && self.bytes.saturating_add(bytes) <= settings.link_bytes)
    }
}

/// The index of a shard in the table.
pub(super) fn index_of(shard: ShardId, shards: usize) -> Option<usize> {
    usize::try_from(shard.0).ok()?.checked_sub(1).filter(|index| *index < shards)
}

/// The shard at an index of the table.
pub(super) fn shard_at(index: usize) -> ShardId {
    ShardId(u32::try_from(index).unwrap_or(u32::MAX).saturating_add(1))
}
