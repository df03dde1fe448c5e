//! What a node's machine tells its node to do.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::control_message::ControlMessage;
use crate::assign::InvalidMove;
use crate::ids::{Epoch, NodeId, ShardId};
use crate::rows::{Member, Row, RowKey};
use crate::shard::StopReason;

/// One thing to do. Those with an answer get it as an event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Action {
    /// Read all rows of nodes, manager and shards, and begin a watch from there: [`Event::RowsListed`](super::Event::RowsListed).
    ListRows,
    /// Read one row: [`Event::RowObserved`](super::Event::RowObserved).
    ReadRow(RowKey),
    /// Write one row by compare-and-set: [`Event::RowWritten`](super::Event::RowWritten).
    WriteRow {
        /// Comes back with the answer.
        request_id: u64,
        /// Which row.
        key: RowKey,
        /// The revision that it must have; none: it must not exist.
        expected: Option<u64>,
        /// Its new value.
        row: Row,
    },
    /// Say something to another node; whether it comes is not told.
    Send {
        /// To whom.
        to: NodeId,
        /// What.
        message: ControlMessage,
    },
    /// This life of the node is registered: `hello`s name it from now on, shards are claimed in its name.
    Registered(Member),
    /// The lease was renewed by a request sent at this time of the node's clock: shards are told (R8).
    LeaseRenewed {
        /// When it was sent.
        sent_at: u64,
        /// How long it may be relied on. The last one told counts.
        lease: u64,
    },
    /// The lease lapsed: shards suspend turns, queries and asks, and keep their instances (R9).
    Suspend,
    /// The lease is good again and the claims stand: shards go on (R9).
    Resume,
    /// Read the claims that stand on these shards: [`Event::ClaimsRead`](super::Event::ClaimsRead).
    ReadClaims {
        /// Comes back with the answer.
        request_id: u64,
        /// Which.
        shards: Vec<ShardId>,
    },
    /// Make a machine for a shard: it claims and serves. One of an earlier epoch, if any, is at its end.
    StartShard {
        /// Which.
        shard: ShardId,
        /// Under which epoch.
        epoch: Epoch,
        /// In whose name.
        member: Member,
    },
    /// Give a shard up in good order: [`Event::ShardStopped`](super::Event::ShardStopped) follows.
    StopShard {
        /// Which.
        shard: ShardId,
        /// Under which epoch.
        epoch: Epoch,
        /// Why.
        reason: StopReason,
    },
    /// Drop a shard at once: it is another's. Nothing follows.
    DropShard {
        /// Which.
        shard: ShardId,
        /// Under which epoch.
        epoch: Epoch,
    },
    /// A shard's route, for the [`Router`](crate::route::Router). It comes with each change of the shard's row.
    UpdateRoute {
        /// Which.
        shard: ShardId,
        /// Under which epoch.
        epoch: Epoch,
        /// The owner, if it is alive as far as rows say; none: messages are held.
        owner: Option<Member>,
        /// Messages are held: a hand-off of it is under way.
        hand_off_in_progress: bool,
    },
    /// A hand-off begins: messages for this shard are held, before its row says so.
    BufferShard {
        /// Which.
        shard: ShardId,
        /// The epoch that ends.
        epoch: Epoch,
    },
    /// A node's row changed: its addresses and standing, for links.
    UpdatePeer {
        /// Which life.
        member: Member,
        /// Whether it is alive as far as its row says. If not, what was sent to it will not be answered.
        alive: bool,
        /// Where it is reached.
        addresses: Vec<String>,
    },
    /// Something that operators may want to see (`ostraca events`).
    Notify(Notice),
    /// This life of the node is over although its process lives: all its shards were forgotten; it registers anew.
    Fenced,
    /// The node has left: nothing more follows.
    Left,
}

/// Something that happened in the cluster, as this node saw it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Notice {
    /// A node joined.
    NodeJoined(Member),
    /// A node was marked dead, or left.
    NodeGone {
        /// Who.
        member: Member,
        /// Whether it said goodbye.
        left_gracefully: bool,
    },
    /// A node drains, or does no more.
    DrainChanged(Member, bool),
    /// Another node manages.
    ManagerChanged {
        /// Who.
        holder: Member,
        /// In which term.
        term: u64,
    },
    /// A hand-off began.
    HandOffStarted {
        /// Which shard.
        shard: ShardId,
        /// From whom.
        from: Member,
    },
    /// A shard has a new owner.
    ShardAssigned {
        /// Which shard.
        shard: ShardId,
        /// Its new epoch.
        epoch: Epoch,
        /// Who.
        owner: Member,
    },
    /// A hand-off was given up: the shard stays where it is, unless it stops after all.
    HandOffFailed {
        /// Which shard.
        shard: ShardId,
        /// Who did not answer.
        owner: Member,
    },
    /// This node manages and hears no other host: it gives the leadership on.
    ManagerSteppedDown {
        /// To whom.
        to: NodeId,
    },
    /// This node's lease lapsed.
    LeaseLapsed,
    /// This node's lease is good again.
    LeaseRecovered,
    /// This node gave its shards up: the `EntityStore` did not answer it for one lease (R9).
    ShardsReleased {
        /// How many.
        shards: usize,
        /// For how many milliseconds it gets none where others can have them.
        probation: u64,
    },
    /// The allocation strategy proposed moves that must not be made; they were not.
    MovesRejected {
        /// The strategy's name.
        strategy: String,
        /// How many.
        moves: usize,
        /// What was wrong with them.
        reason: InvalidMove,
    },
    /// Another process renews the lease of this node's name: is its data directory a copy?
    NodeNameInUse(Member),
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NodeJoined(member) => write!(f, "node {member} joined"),
            Self::NodeGone { member, left_gracefully: true } => {
                write!(f, "node {member} said goodbye")
            }
            Self::NodeGone { member, left_gracefully: false } => {
                write!(f, "node {member} was marked dead")
            }
            Self::DrainChanged(member, true) => write!(f, "node {member} drains"),
            Self::DrainChanged(member, false) => write!(f, "node {member} drains no more"),
            Self::ManagerChanged { holder, term } => {
                write!(f, "node {holder} manages, in term {term}")
            }
            Self::HandOffStarted { shard, from } => write!(f, "shard {shard} leaves {from}"),
            Self::ShardAssigned { shard, epoch, owner } => {
                write!(f, "shard {shard} belongs to {owner}, epoch {}", epoch.0)
            }
            Self::HandOffFailed { shard, owner } => {
                write!(f, "shard {shard} stays with {owner} for now")
            }
            Self::ManagerSteppedDown { to } => write!(
                f,
                "no report of another host reaches this manager: it gives the leadership to {to}"
            ),
            Self::LeaseLapsed => write!(f, "this node's lease lapsed: its shards wait"),
            Self::LeaseRecovered => write!(f, "this node's lease is good again"),
            Self::ShardsReleased { shards, probation } => write!(
                f,
                "the store did not answer this node for one lease: it gave {shards} shards up, and gets none that others can have for {probation} ms"
            ),
            Self::MovesRejected { strategy, moves, reason: why } => write!(
                f,
                "allocation strategy `{strategy}` proposed {moves} moves {why}: they are not made"
            ),
            Self::NodeNameInUse(member) => {
                write!(f, "another process renews the lease of {member}: is its folder a copy?")
            }
        }
    }
}
