//! Messages between nodes about shards. Nothing depends on their delivery: rows decide.

use serde::{Deserialize, Serialize};

use crate::codec::CodecError;
use crate::extensions::{Extensible, Extensions};
use crate::ids::{Epoch, Incarnation, NodeId, ShardId};
use crate::rows::{HandOffId, Row, RowKey};

/// A message from one node to another. Variants are only added at the end: their numbers are part of the protocol.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ControlMessage {
    /// Manager to all nodes: a row that it wrote, so that nodes need not wait for the watch (S4).
    RowUpdate {
        /// The row's key.
        key: RowKey,
        /// The row's value.
        row: Row,
        /// The row's revision in the store.
        revision: u64,
    },
    /// Manager to all nodes: buffer messages for the shard (K24, A7).
    BeginHandOff {
        /// The hand-off that begins.
        hand_off: HandOff,
        /// The revision of the row that contains the intent.
        revision: u64,
    },
    /// Acknowledges a begin-hand-off, whether or not the shard was known (A8). It does not name the owner's
    /// incarnation: the id implies it.
    BeginHandOffAck {
        /// The term of the manager that sent the request.
        term: u64,
        /// The shard of the hand-off.
        shard: ShardId,
        /// The epoch that ends.
        epoch: Epoch,
        /// The hand-off's id.
        id: HandOffId,
    },
    /// Manager to the owner: stop the shard and release it (A9).
    HandOff(HandOff),
    /// Owner to manager: no instance of the shard is alive, no commit of it is pending, and under this
    /// epoch none ever will be (A16). Final.
    ShardStopped(HandOff),
    /// Node to manager, with each renewal and after each change: everything that the node holds (R11).
    Report(Box<NodeReport>),
    /// Any node to the manager: balance now, whatever the interval.
    Rebalance,
    /// Any node to the manager: a node does not respond to the sender (S12). This does not shorten any lease.
    NodeUnreachable {
        /// The node that does not respond.
        node: NodeId,
    },
    /// Node to manager: the load of each shard that it has served for long enough to measure it (A4).
    Loads(Vec<(ShardId, u32)>),
    /// Any node to the manager: an operator wants a shard moved, once.
    MoveShard {
        /// The shard.
        shard: ShardId,
        /// Its next owner.
        to: NodeId,
    },
    /// To every live member: are you reachable (E12)?
    KeepAlive {
        /// The incarnation that is meant; another one does not answer.
        to: Incarnation,
        /// Rises with each keep-alive of the sender's process to the receiver.
        number: u64,
    },
    /// Answers a keep-alive.
    KeepAliveAck {
        /// The incarnation that sent the keep-alive.
        to: Incarnation,
        /// The number of the keep-alive.
        number: u64,
    },
    /// Winner of an arbitration to every member that it reaches: it stays (E13). Counts only from the winner itself, so
    /// no node can relay it.
    ArbiterFlag {
        /// The number of the arbitration.
        number: u64,
    },
}

/// Identifies a hand-off in every message about it. A message counts only if all parts match (R11).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct HandOff {
    /// The term of the manager that runs it, which may differ from the one that began it.
    pub term: u64,
    /// The shard that moves.
    pub shard: ShardId,
    /// The epoch that ends.
    pub epoch: Epoch,
    /// The owner's incarnation.
    pub incarnation: Incarnation,
    /// The id that the manager gave it at its start.
    pub id: HandOffId,
}

impl ControlMessage {
    /// How many kinds this release knows. It ignores messages of higher kinds.
    pub const KIND_COUNT: u32 = 13;
}

/// Everything that a node holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct NodeReport {
    /// The reporting incarnation.
    pub incarnation: Incarnation,
    /// The revision of each chunk, by number, that the node has acted on. The absence of a shard from the report
    /// counts only if the node had seen the shard's assignment.
    pub applied_chunks: Vec<(u32, u64)>,
    /// The shards that it holds.
    pub shards: Vec<ReportedShard>,
    /// Whether the `EntityStore` responds to the node (R9). While it does not, the node would release any shard it got.
    /// The node's row says the same, but only from its next renewal on.
    pub store_available: bool,
    /// Shards whose claim was refused, each with its epoch and the epoch of the store's current claim (R5).
    pub refused_claims: Vec<(ShardId, Epoch, Epoch)>,
    /// Fields of later releases.
    pub extensions: Extensions<NodeReport>,
}

impl Extensible for NodeReport {
    const NAME: &'static str = "NodeReport";
    const FIELDS: &'static [u32] =
        &[Self::UNRUNNABLE, Self::NUMBER, Self::ESCALATED, Self::MISPLACED];
}

impl NodeReport {
    const UNRUNNABLE: u32 = 4;
    const NUMBER: u32 = 6;
    const ESCALATED: u32 = 20;
    const MISPLACED: u32 = 22;
    /// Maximum number of types that a report names: for the manager, one is as bad as many.
    pub const MAX_UNRUNNABLE_TYPES: usize = 16;

    /// Maximum number of escalated shards that a report names.
    pub const MAX_ESCALATED: usize = 256;

    /// Maximum number of misplaced shards that a report names: many times more than are relocated at the same time.
    pub const MAX_MISPLACED: usize = 256;

    /// Shards that must be handed off because their state is in another database than the one that the map names, with
    /// their epochs (R26).
    #[must_use]
    pub fn misplaced(&self) -> Vec<(ShardId, Epoch)> {
        // Bytes that do not decode count as an empty list.
        self.extensions.get(Self::MISPLACED).ok().flatten().unwrap_or_default()
    }

    /// Sets these shards, which must be in ascending order. The report names the lowest ones, at most
    /// [`Self::MAX_MISPLACED`] and no more than fit into the extension block: the others follow in later reports, once
    /// these are in place.
    pub fn set_misplaced(&mut self, shards: &[(ShardId, Epoch)]) {
        let mut named = &shards[..shards.len().min(Self::MAX_MISPLACED)];
        while !named.is_empty() && self.extensions.set(Self::MISPLACED, &named).is_err() {
            named = &named[..named.len() / 2];
        }
    }

    /// Shards that must move to another host because a failure of one of their entities is escalated, with their
    /// epochs (K33).
    #[must_use]
    pub fn escalated(&self) -> Vec<(ShardId, Epoch)> {
        // Bytes that do not decode count as an empty list.
        self.extensions.get(Self::ESCALATED).ok().flatten().unwrap_or_default()
    }

    /// Sets these shards, of which at most [`Self::MAX_ESCALATED`] are kept.
    ///
    /// # Errors
    /// [`CodecError`] if they need more bytes than an extension block may have.
    pub fn set_escalated(&mut self, shards: &[(ShardId, Epoch)]) -> Result<(), CodecError> {
        if shards.is_empty() {
            return Ok(());
        }
        let named: Vec<_> = shards.iter().take(Self::MAX_ESCALATED).collect();
        self.extensions.set(Self::ESCALATED, &named)
    }

    /// Deployed types that the node cannot run (R24).
    #[must_use]
    pub fn unrunnable_types(&self) -> Vec<String> {
        // Bytes that do not decode as a list of names count as an empty list.
        self.extensions.get(Self::UNRUNNABLE).ok().flatten().unwrap_or_default()
    }

    /// Sets the types, of which at most [`Self::MAX_UNRUNNABLE_TYPES`] are kept.
    ///
    /// # Errors
    /// [`CodecError`] if they need more bytes than an extension block may have.
    pub fn set_unrunnable_types(&mut self, types: &[String]) -> Result<(), CodecError> {
        if types.is_empty() {
            return Ok(());
        }
        let named: Vec<_> = types.iter().take(Self::MAX_UNRUNNABLE_TYPES).collect();
        self.extensions.set(Self::UNRUNNABLE, &named)
    }

    /// Removes and returns the report's number. Each report of a process has a higher number than those before it, so a
    /// late one is recognized. `None` for a report from a release that does not number reports.
    pub fn take_number(&mut self) -> Option<u64> {
        self.extensions.take(Self::NUMBER).ok().flatten()
    }

    /// Sets the report's number.
    ///
    /// # Errors
    /// [`CodecError`] if the block has no space for the number.
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
    /// Whether it is being served; otherwise it is being claimed or stopped.
    pub serving: bool,
}
