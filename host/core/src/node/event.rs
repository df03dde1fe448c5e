//! What a node's machine is told.

use serde::{Deserialize, Serialize};

use super::control_message::ControlMessage;
use super::settings::LeaseSettings;
use crate::ids::{Epoch, NodeId, ShardId};
use crate::records::Claim;
use crate::rows::{Member, Row, RowKey};

/// One thing that happened.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Event {
    /// Time passed: [`Machine::next_wake`](super::Machine::next_wake) said so.
    Tick,
    /// The answer to [`Action::ListRows`](super::Action::ListRows): every row of nodes, manager and shards, as of
    /// one revision, from which a watch was begun. None: the store did not answer; it is asked again later.
    RowsListed(Option<Vec<(RowKey, Row, u64)>>),
    /// A row was changed, as the watch says, or as [`Action::ReadRow`](super::Action::ReadRow) found it (`None`: it is not there).
    RowObserved {
        /// Which.
        key: RowKey,
        /// Its value and revision.
        value: Option<(Row, u64)>,
    },
    /// The watch missed changes or broke: everything is listed anew.
    WatchLost,
    /// The answer to [`Action::WriteRow`](super::Action::WriteRow).
    RowWritten {
        /// The action's number.
        request_id: u64,
        /// The new revision, or why there is none.
        result: Result<u64, WriteError>,
    },
    /// Another node says something. It is who it says: its certificate and hello named it.
    Received {
        /// Who.
        from: Member,
        /// What.
        message: ControlMessage,
    },
    /// A shard's machine serves: its claim stands.
    ShardServing {
        /// Which.
        shard: ShardId,
        /// Under which epoch.
        epoch: Epoch,
    },
    /// A shard's machine has stopped: no instance lives, no commit is under way.
    ShardStopped {
        /// Which.
        shard: ShardId,
        /// Under which epoch.
        epoch: Epoch,
    },
    /// A shard's claim was refused: the machine is gone.
    ShardLost {
        /// Which.
        shard: ShardId,
        /// Under which epoch.
        epoch: Epoch,
        /// The epoch of the claim that stands, where the store told it.
        current_epoch: Option<Epoch>,
    },
    /// The `EntityStore` answered a request *sent* at this time of the node's clock (R9).
    StoreResponded {
        /// When it was sent.
        sent_at: u64,
    },
    /// The answer to [`Action::ReadClaims`](super::Action::ReadClaims), in its order; none: the store did not answer.
    ClaimsRead {
        /// The action's number.
        request_id: u64,
        /// What stands.
        claims: Option<Vec<Option<Claim>>>,
    },
    /// Rows from a cache on disk, told before any list: for sending only, nothing is owned by them (R13, S8).
    CachedRows(Vec<(RowKey, Row, u64)>),
    /// These deployed types cannot be run on this node, and no others (R24).
    UnrunnableTypes(Vec<String>),
    /// The cluster's settings, as their row says now. Older ones than those that are known change nothing.
    LeaseSettingsChanged(LeaseSettings),
    /// An operator wants a node's shards elsewhere, or takes that back (R12).
    Drain {
        /// Which node.
        node: NodeId,
        /// Whether it is to drain.
        draining: bool,
    },
    /// Somebody asks this node to see to a rebalance now; it is passed on to the manager.
    Rebalance,
    /// A peer did not answer this node's messages for long (S12).
    NodeUnreachable {
        /// Which.
        node: NodeId,
    },
    /// Leave the cluster in good order: drain, then say goodbye (S10, K35).
    Leave,
    /// The time for leaving in good order is over: stop what is left, and say goodbye.
    LeaveNow,
}

/// Why a write was not made.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum WriteError {
    /// The row had another revision: this is how it is (`None`: it is not there).
    Conflict(Option<(Row, u64)>),
    /// Nobody knows whether it was written.
    Unknown,
}
