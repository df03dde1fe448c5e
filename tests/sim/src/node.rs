//! A simulated node: it executes a machine's actions with delays, and has its own clock.

use std::collections::{BTreeMap, HashMap};

use ostraca_core::ids::{Entity, Incarnation};
use ostraca_core::message::{MessageKind, Now, ReplyToken};
use ostraca_core::shard::{Machine, WorkerSlots};

use crate::guest::Instance;

/// Who waits for a reply.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReplyTo {
    pub(crate) client: usize,
    /// The connection on which the copy arrived. `None` if the reply is lost.
    pub(crate) line: Option<u64>,
    /// Whether the message is a probe that reuses an id.
    pub(crate) probe: bool,
    pub(crate) sequence: u64,
    pub(crate) kind: MessageKind,
}

/// One process.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) incarnation: Incarnation,
    pub(crate) alive: bool,
    pub(crate) paused_until: u64,
    /// Until when the node's renewals are lost.
    pub(crate) drop_renewals_until: u64,
    /// When the node sent its last successful renewal, by its own clock.
    pub(crate) renewed: Option<u64>,
    /// The delay between a lapse and the notification of the node's shards.
    pub(crate) lapse_late: u64,
    /// Whether the lease lapsed by the node's own clock, and the node has not read its claims since (R9).
    pub(crate) suspended: bool,
    /// The node's clock has a random start, and runs slightly fast or slow: its rate is in thousandths.
    pub(crate) offset: u64,
    pub(crate) rate: u64,
    pub(crate) machine: Option<Machine>,
    pub(crate) instances: BTreeMap<Entity, Instance>,
    pub(crate) cap: WorkerSlots,
    /// The number of the node's connection to the store, incremented when a connection is given up.
    pub(crate) connection: u64,
    /// The epoch of the last claim that the node knows to be granted.
    pub(crate) granted: Option<ostraca_core::ids::Epoch>,
    /// Unanswered requests to the store, by tag.
    pub(crate) asked: BTreeMap<u64, crate::store::Request>,
    /// Loads and activations that wait for the store, with their generations.
    pub(crate) starting: HashMap<Entity, u64>,
    /// The waiting senders, by reply token.
    pub(crate) tokens: BTreeMap<ReplyToken, ReplyTo>,
    /// When the next tick is due.
    pub(crate) armed: Option<u64>,
    /// All events and actions of the machine, for the replay.
    pub(crate) script: Vec<(Now, ostraca_core::shard::Event, Vec<ostraca_core::shard::Action>)>,
}

impl Node {
    pub(crate) fn mono(&self, now: u64) -> u64 {
        self.offset + now * self.rate / 1000
    }

    /// The world's time at which this node's clock shows `mono`.
    pub(crate) fn world_time(&self, mono: u64) -> u64 {
        mono.saturating_sub(self.offset) * 1000 / self.rate + 1
    }
}
