//! What nodes say to each other about shards. Nothing here is relied upon: rows decide.

use serde::{Deserialize, Serialize};

use crate::codec::DecodeError;
use crate::extensions::{Extensible, Extensions};
use crate::ids::{Epoch, Incarnation, NodeId, ShardId};
use crate::rows::{HandOffId, Key, Row};

/// One thing said by a node to another. Variants are only added at the end: their numbers are on the wire. A hand-off's parts match by term, shard, epoch, incarnation and id (R11).
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Talk {
    /// Manager to all: a row that it wrote, so that nobody waits for the watch (S4).
    Wrote {
        /// Which row.
        key: Key,
        /// Its value.
        row: Row,
        /// The store's revision of it.
        revision: u64,
    },
    /// Manager to all: hold messages for this shard back (K24, A7).
    BeginHandOff {
        /// The manager's term.
        term: u64,
        /// Which shard.
        shard: ShardId,
        /// The epoch that ends.
        epoch: Epoch,
        /// The owner's life.
        incarnation: Incarnation,
        /// Which hand-off.
        id: HandOffId,
        /// The revision of the row that has the intent.
        revision: u64,
    },
    /// Its answer, whether or not the shard was known (A8).
    BeginHandOffAck {
        /// As asked.
        term: u64,
        /// As asked.
        shard: ShardId,
        /// As asked.
        epoch: Epoch,
        /// As asked.
        id: HandOffId,
    },
    /// Manager to the owner: give the shard up (A9).
    HandOff {
        /// The manager's term.
        term: u64,
        /// Which shard.
        shard: ShardId,
        /// The epoch that ends.
        epoch: Epoch,
        /// The owner's life.
        incarnation: Incarnation,
        /// Which hand-off.
        id: HandOffId,
    },
    /// Owner to manager: no instance of the shard lives, no commit of it is under way, and under this
    /// epoch none ever will be (A16). Final.
    ShardStopped {
        /// As asked.
        term: u64,
        /// As asked.
        shard: ShardId,
        /// As asked.
        epoch: Epoch,
        /// The owner's life.
        incarnation: Incarnation,
        /// As asked.
        id: HandOffId,
    },
    /// Node to manager, with each renewal and when something changed: all that it holds (R11).
    Report(Box<Report>),
    /// Anybody to the manager: balance now, whatever the interval.
    Rebalance,
    /// Anybody to the manager: this node does not answer me (S12). It hastens nothing that a lease forbids.
    Unreachable {
        /// Who does not.
        node: NodeId,
    },
}

impl Talk {
    /// How many kinds this release knows; it ignores those with a higher number.
    pub const KINDS: u32 = 8;
}

/// All that a node holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Report {
    /// Which life of the node.
    pub incarnation: Incarnation,
    /// The revision of each chunk, by number, that the node has acted on: a shard that is missing counts
    /// as missing only if the node had seen its assignment.
    pub seen: Vec<(u32, u64)>,
    /// Its shards.
    pub held: Vec<Held>,
    /// Whether the `EntityStore` answers it (R9): while it does not, it would give up whatever it got. Its row says the
    /// same, but only with its next renewal.
    pub store_answers: bool,
    /// Shards whose claim was refused, and the epoch that stands in the store (R5).
    pub refused: Vec<(ShardId, Epoch, Epoch)>,
    /// Fields of later releases.
    pub extensions: Extensions<Report>,
}

impl Extensible for Report {
    const NAME: &'static str = "Report";
    const FIELDS: &'static [u32] = &[Self::UNRUNNABLE, Self::NUMBER];
}

impl Report {
    const UNRUNNABLE: u32 = 4;
    const NUMBER: u32 = 6;
    /// Types that it names at most: one is as bad as many.
    pub const MAX_UNRUNNABLE: usize = 16;

    /// Deployed types that the node cannot run (R24).
    #[must_use]
    pub fn unrunnable(&self) -> Vec<String> {
        // Bytes that are no list of names say nothing.
        self.extensions.get(Self::UNRUNNABLE).ok().flatten().unwrap_or_default()
    }

    /// Sets them; at most [`Self::MAX_UNRUNNABLE`].
    ///
    /// # Errors
    /// They take more bytes than a block may.
    pub fn set_unrunnable(&mut self, types: &[String]) -> Result<(), DecodeError> {
        if types.is_empty() {
            return Ok(());
        }
        let named: Vec<_> = types.iter().take(Self::MAX_UNRUNNABLE).collect();
        self.extensions.set(Self::UNRUNNABLE, &named)
    }

    /// Takes the report's number out. Each report of a process has a higher number than those before it, so one that
    /// comes late is told from a new one. A release that does not number its reports gives `None`.
    pub fn take_number(&mut self) -> Option<u64> {
        self.extensions.take(Self::NUMBER).ok().flatten()
    }

    /// Sets the report's number.
    ///
    /// # Errors
    /// The block has no room for it.
    pub fn set_number(&mut self, number: u64) -> Result<(), DecodeError> {
        self.extensions.set(Self::NUMBER, &number)
    }
}

/// A shard that a node holds.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Held {
    /// Which.
    pub shard: ShardId,
    /// Under which epoch.
    pub epoch: Epoch,
    /// Whether its claim stands and it serves; else it is claiming or stopping.
    pub serving: bool,
}
