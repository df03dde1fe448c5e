//! The events that a node's machine handles.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::control_message::ControlMessage;
use super::settings::LeaseSettings;
use crate::ids::{Epoch, NodeId, ShardId};
use crate::pools::Pools;
use crate::records::Claim;
use crate::rows::{Member, Row, RowKey};

/// One event.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Event {
    /// The time given by [`Machine::next_wake`](super::Machine::next_wake) has come.
    Tick,
    /// The answer to [`Action::ListRows`](super::Action::ListRows): every row of nodes, manager and shards at one
    /// revision, from which a watch was started. `None`: the store did not respond; the machine lists again later.
    RowsListed(Option<Vec<(RowKey, Row, u64)>>),
    /// A row changed according to the watch, or was read by [`Action::ReadRow`](super::Action::ReadRow) (`None`: it
    /// does not exist).
    RowObserved {
        /// The row.
        key: RowKey,
        /// Its value and revision.
        value: Option<(Row, u64)>,
    },
    /// The watch missed changes or broke: all rows must be listed again.
    WatchLost,
    /// The answer to [`Action::WriteRow`](super::Action::WriteRow).
    RowWritten {
        /// The action's request id.
        request_id: u64,
        /// The new revision, or why the write failed.
        result: Result<u64, WriteError>,
    },
    /// A message from another node, whose certificate and hello authenticate it.
    Received {
        /// The sender.
        from: Member,
        /// The message.
        message: ControlMessage,
    },
    /// A shard's machine is serving: its claim was granted.
    ShardServing {
        /// The shard.
        shard: ShardId,
        /// The epoch of its assignment.
        epoch: Epoch,
    },
    /// A shard's machine has stopped: no instance lives, and no commit is pending.
    ShardStopped {
        /// The shard.
        shard: ShardId,
        /// The epoch of its assignment.
        epoch: Epoch,
    },
    /// A failure of one of the shard's entities is escalated: the shard must move to another host, if possible (K33).
    ShardEscalated {
        /// The shard.
        shard: ShardId,
        /// The epoch of its assignment.
        epoch: Epoch,
    },
    /// A shard's claim was refused, and its machine has ended.
    ShardLost {
        /// The shard.
        shard: ShardId,
        /// The epoch of its assignment.
        epoch: Epoch,
        /// The epoch of the current claim, if the store returned it.
        current_epoch: Option<Epoch>,
    },
    /// The `EntityStore` answered a request that was *sent* at `sent_at` on the node's clock (R9).
    StoreResponded {
        /// When the request was sent.
        sent_at: u64,
    },
    /// The answer to [`Action::ReadClaims`](super::Action::ReadClaims), in the order of the request; `None`: the store
    /// did not respond.
    ClaimsRead {
        /// The action's request id.
        request_id: u64,
        /// The current claims.
        claims: Option<Vec<Option<Claim>>>,
    },
    /// Rows from a cache on disk, before any list: used only to route messages; they confer no ownership (R13, S8).
    CachedRows(Vec<(RowKey, Row, u64)>),
    /// The complete list of deployed types that this node cannot run (R24).
    UnrunnableTypes(Vec<String>),
    /// The complete list of held shards whose state is in another database than the one that the map names, each with
    /// the epoch of its assignment (R26). A shard that is still being claimed, or held under another epoch, does not
    /// count: its claim moves the state.
    MisplacedShards(Vec<(ShardId, Epoch)>),
    /// The cluster's settings, as their row contains them now. A revision older than the known one changes nothing.
    LeaseSettingsChanged(LeaseSettings),
    /// The cluster's pools, as their rows contain them now. Pools are only added behind those that are known; anything
    /// else changes nothing.
    PoolsChanged(Pools),
    /// Which shards operators have pinned to which nodes, as their row contains them now. A revision of the row that is
    /// not newer than the known one changes nothing.
    PinsChanged {
        /// The row's revision in the store.
        revision: u64,
        /// All pins.
        pins: BTreeMap<ShardId, NodeId>,
    },
    /// Where an outside program wants the shards of a pool, as its row contains that now (E9). A revision of the row that
    /// is not newer than the known one changes nothing; a newer one counts as said now, even if it says the same.
    PlacementChanged {
        /// The pool's name.
        pool: String,
        /// The row's revision in the store.
        revision: u64,
        /// Whether the row was found when all rows were listed. Then nobody knows how old it is, so it counts as said now
        /// only if this node knows an older revision.
        is_listed: bool,
        /// All shards of the pool for which it names a node.
        shards: BTreeMap<ShardId, NodeId>,
    },
    /// The load of each shard that this node has served for long enough to measure it: only proportions matter (A4).
    LoadsMeasured(Vec<(ShardId, u32)>),
    /// The state of these shards, from the first to the last, is being moved to another database (R26): their owners may
    /// take as long as they need until they serve them. `None`: no state is being moved.
    StateMoves(Option<(ShardId, ShardId)>),
    /// An operator wants a shard moved to a node, once. A node that is not the manager forwards it. The manager tries for
    /// as long as a hand-off may take; a manager that follows does not know of it.
    MoveShard {
        /// The shard.
        shard: ShardId,
        /// The node.
        to: NodeId,
    },
    /// An operator wants a node's shards moved elsewhere, or revokes that (R12).
    Drain {
        /// The node to drain.
        node: NodeId,
        /// Whether to drain it, or to revoke the drain.
        draining: bool,
    },
    /// An operator requests a rebalance now. A node that is not the manager forwards it.
    Rebalance,
    /// A peer has not responded to this node's messages for a long time (S12).
    NodeUnreachable {
        /// The peer.
        node: NodeId,
    },
    /// The process of this incarnation is *known* to have ended (R9). Otherwise this event breaks promises: a process
    /// that does not respond, or cannot be reached, may still run.
    ProcessEnded {
        /// The incarnation.
        member: Member,
    },
    /// Leave the cluster gracefully: drain, then write the row as left (S10, K35).
    Leave,
    /// The time allowed for draining has passed: stop the remaining shards, and write the row as left.
    LeaveNow,
}

/// Why a write failed.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum WriteError {
    /// The row had another revision; this is its current value (`None`: it does not exist).
    Conflict(Option<(Row, u64)>),
    /// It is unknown whether the row was written.
    Unknown,
}
