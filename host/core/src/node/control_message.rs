//! Messages between nodes about shards. Nothing depends on their delivery: rows decide.

use serde::{Deserialize, Serialize};

use crate::codec::CodecError;
use crate::extensions::{Extensible, Extensions};
use crate::ids::{Epoch, Incarnation, NodeId, ShardId};
use crate::rows::{HandOffId, Row, RowKey};

/// A message from node to node. Variants are only added at the end: their numbers are on the wire.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ControlMessage {
    /// Manager to all: a row that it wrote, so that no node has to wait for the watch (S4).
    RowUpdate {
        /// The row's key.
        key: RowKey,
        /// Its value.
        row: Row,
        /// The store's revision of it.
        revision: u64,
    },
    /// Manager to all: hold messages for the shard back (K24, A7).
    BeginHandOff {
        /// The hand-off that begins.
        hand_off: HandOff,
        /// The revision of the row that has the intent.
        revision: u64,
    },
    /// The answer to it, whether or not the shard was known (A8). It does not name the owner's incarnation: the id does.
    BeginHandOffAck {
        /// The term of the manager that asked.
        term: u64,
        /// The shard of the hand-off.
        shard: ShardId,
        /// The epoch that ends.
        epoch: Epoch,
        /// The hand-off's id.
        id: HandOffId,
    },
    /// Manager to the owner: give the shard up (A9).
    HandOff(HandOff),
    /// Owner to manager: no instance of the shard is alive, no commit of it is pending, and under this
    /// epoch none ever will be (A16). Final.
    ShardStopped(HandOff),
    /// Node to manager, with each renewal and when something changed: everything that it holds (R11).
    Report(Box<NodeReport>),
    /// Any node to the manager: balance now, whatever the interval.
    Rebalance,
    /// Any node to the manager: a node does not answer the sender (S12). It does not shorten any lease.
    NodeUnreachable {
        /// The node that does not answer.
        node: NodeId,
    },
}

/// Names a hand-off in every message about it. A message counts only if all parts match (R11).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct HandOff {
    /// The term of the manager that runs it: not always the one that began it.
    pub term: u64,
    /// The shard that moves.
    pub shard: ShardId,
    /// The epoch that ends.
    pub epoch: Epoch,
    /// The owner's incarnation.
    pub incarnation: Incarnation,
    /// The id that its first manager gave it.
    pub id: HandOffId,
}

impl ControlMessage {
    /// How many kinds this release knows; it ignores those with a higher number.
    pub const KIND_COUNT: u32 = 8;
}

/// Everything that a node holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct NodeReport {
    /// The node's incarnation.
    pub incarnation: Incarnation,
    /// The revision of each chunk, by number, that the node has acted on: a shard that is missing counts
    /// as missing only if the node had seen its assignment.
    pub applied_chunks: Vec<(u32, u64)>,
    /// Its shards.
    pub shards: Vec<ReportedShard>,
    /// Whether the `EntityStore` answers it (R9): while it does not, the node would release any shard it got. Its row says the
    /// same, but only with its next renewal.
    pub store_available: bool,
    /// Shards whose claim was refused, in which epoch, and the epoch of the store's current claim (R5).
    pub refused_claims: Vec<(ShardId, Epoch, Epoch)>,
    /// Fields of later releases.
    pub extensions: Extensions<NodeReport>,
}

impl Extensible for NodeReport {
    const NAME: &'static str = "NodeReport";
    const FIELDS: &'static [u32] = &[Self::UNRUNNABLE, Self::NUMBER];
}

impl NodeReport {
    const UNRUNNABLE: u32 = 4;
    const NUMBER: u32 = 6;
    /// Maximum number of types that it names: one is as bad as many.
    pub const MAX_UNRUNNABLE_TYPES: usize = 16;

    /// Deployed types that the node cannot run (R24).
    #[must_use]
    pub fn unrunnable_types(&self) -> Vec<String> {
        // Bytes that do not decode as a list of names count as none.
        self.extensions.get(Self::UNRUNNABLE).ok().flatten().unwrap_or_default()
    }

    /// Sets them; at most [`Self::MAX_UNRUNNABLE_TYPES`].
    ///
    /// # Errors
    /// They take more bytes than a block may.
    pub fn set_unrunnable_types(&mut self, types: &[String]) -> Result<(), CodecError> {
        if types.is_empty() {
            return Ok(());
        }
        let named: Vec<_> = types.iter().take(Self::MAX_UNRUNNABLE_TYPES).collect();
        self.extensions.set(Self::UNRUNNABLE, &named)
    }

    /// Takes the report's number out. Each report of a process has a higher number than those before it, so one that
    /// arrives late is recognized. A release that does not number its reports gives `None`.
    pub fn take_number(&mut self) -> Option<u64> {
        self.extensions.take(Self::NUMBER).ok().flatten()
    }

    /// Sets the report's number.
    ///
    /// # Errors
    /// The block has no room for it.
    pub fn set_number(&mut self, number: u64) -> Result<(), CodecError> {
        self.extensions.set(Self::NUMBER, &number)
    }
}

/// A shard that a node holds.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ReportedShard {
    /// The shard.
    pub shard: ShardId,
    /// The epoch of its assignment.
    pub epoch: Epoch,
    /// Whether it serves; else it is claiming or stopping.
    pub serving: bool,
}
