//! The actions that a node's machine requests of its node.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::control_message::ControlMessage;
use crate::assign::InvalidMove;
use crate::ids::{Epoch, NodeId, ShardId};
use crate::rows::{Member, Row, RowKey};
use crate::shard::StopReason;

/// One action. Its answer, if there is one, arrives as an event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Action {
    /// Read all rows of nodes, manager and shards, and start a watch from there. The answer is
    /// [`Event::RowsListed`](super::Event::RowsListed).
    ListRows,
    /// Read one row. The answer is [`Event::RowObserved`](super::Event::RowObserved).
    ReadRow(RowKey),
    /// Write one row by compare-and-set. The answer is [`Event::RowWritten`](super::Event::RowWritten).
    WriteRow {
        /// Returned with the answer.
        request_id: u64,
        /// The row.
        key: RowKey,
        /// The revision that the row must have; `None`: the row must not exist.
        expected: Option<u64>,
        /// Its new value.
        row: Row,
    },
    /// Send a message to another node. Nothing reports whether it arrives.
    Send {
        /// The recipient.
        to: NodeId,
        /// The message to send.
        message: ControlMessage,
    },
    /// This incarnation of the node is registered: each `hello` names it from now on, and shards are claimed in its
    /// name.
    Registered(Member),
    /// The lease was renewed by a request sent at `sent_at` on the node's clock. All shards are notified (R8).
    LeaseRenewed {
        /// When the request was sent.
        sent_at: u64,
        /// How long the lease may be relied on, in milliseconds. The most recent action counts.
        lease: u64,
    },
    /// The lease of one shard was renewed by a request sent at `sent_at` on the node's clock (E8). The shard's machine
    /// relies on it and on the node's lease. Emitted only for shards of pools without a manager; follows the shard's
    /// [`Action::StartShard`].
    ShardLeaseRenewed {
        /// The shard.
        shard: ShardId,
        /// The epoch of its assignment.
        epoch: Epoch,
        /// When the request was sent.
        sent_at: u64,
        /// How long the lease may be relied on, in milliseconds; 0 if none was written yet.
        lease: u64,
    },
    /// The lease lapsed: shards suspend turns, queries and asks, and keep their instances (R9).
    Suspend,
    /// The lease is valid again and the claims are unchanged: shards resume (R9).
    Resume,
    /// Read the current claims of these shards. The answer is [`Event::ClaimsRead`](super::Event::ClaimsRead).
    ReadClaims {
        /// Returned with the answer.
        request_id: u64,
        /// The shards.
        shards: Vec<ShardId>,
    },
    /// Start a machine for a shard: it claims and serves. A machine of an earlier epoch, if any, has ended.
    StartShard {
        /// The shard.
        shard: ShardId,
        /// The epoch of its assignment.
        epoch: Epoch,
        /// The incarnation that claims it.
        member: Member,
    },
    /// Stop a shard gracefully. [`Event::ShardStopped`](super::Event::ShardStopped) follows.
    StopShard {
        /// The shard.
        shard: ShardId,
        /// The epoch of its assignment.
        epoch: Epoch,
        /// Why it stops.
        reason: StopReason,
    },
    /// Drop a shard immediately: it belongs to another owner. No event follows.
    DropShard {
        /// The shard.
        shard: ShardId,
        /// The epoch of its assignment.
        epoch: Epoch,
    },
    /// A shard's route, for the [`Router`](crate::route::Router). Emitted at each change of the shard's row.
    UpdateRoute {
        /// The shard.
        shard: ShardId,
        /// The epoch of its assignment.
        epoch: Epoch,
        /// The owner, if it is alive according to the rows. Without one, messages are buffered.
        owner: Option<Member>,
        /// Whether a hand-off is in progress: messages are buffered.
        hand_off_in_progress: bool,
    },
    /// A hand-off begins: buffer messages for this shard, before its row shows the hand-off.
    BufferShard {
        /// The shard.
        shard: ShardId,
        /// The epoch that ends.
        epoch: Epoch,
    },
    /// A node's row changed. Links use its addresses and whether it is alive.
    UpdatePeer {
        /// The incarnation.
        member: Member,
        /// Whether it is alive according to its row. If not, messages that were sent to it will get no answer.
        alive: bool,
        /// Its addresses.
        addresses: Vec<String>,
    },
    /// Find out whether the process of this incarnation has ended (S7). If it is known that it has,
    /// [`Event::ProcessEnded`](super::Event::ProcessEnded) follows; otherwise nothing does.
    CheckProcess {
        /// The incarnation.
        member: Member,
    },
    /// An event that operators may want to see (`ostraca events`).
    Notify(Notice),
    /// This incarnation has ended although its process still runs: all its shards were dropped. The node registers
    /// again.
    Fenced,
    /// This node lost an arbitration (E13): its shards are suspended and stop, and its process must end. The node marks
    /// its own row as left if it can; [`Action::Left`] follows then, but the process must not wait for it for long.
    ArbitrationLost {
        /// The number of the arbitration.
        number: u64,
        /// The node that won it.
        winner: Member,
    },
    /// The node has left: no action follows.
    Left,
}

/// Something that happened in the cluster, as this node saw it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Notice {
    /// A node joined.
    NodeJoined(Member),
    /// A node was marked dead, or left.
    NodeGone {
        /// Its incarnation.
        member: Member,
        /// Whether it left voluntarily.
        left_gracefully: bool,
    },
    /// A node started or stopped draining.
    DrainChanged(Member, bool),
    /// Another node became the manager.
    ManagerChanged {
        /// The new manager.
        holder: Member,
        /// Its term.
        term: u64,
    },
    /// A hand-off began.
    HandOffStarted {
        /// The shard.
        shard: ShardId,
        /// The owner that hands it off.
        from: Member,
    },
    /// A shard has a new owner.
    ShardAssigned {
        /// The shard.
        shard: ShardId,
        /// Its new epoch.
        epoch: Epoch,
        /// Its new owner.
        owner: Member,
    },
    /// A hand-off was abandoned: the shard stays where it is, unless it stops after all.
    HandOffFailed {
        /// The shard.
        shard: ShardId,
        /// The owner, which did not stop it.
        owner: Member,
    },
    /// The failure of one of a shard's entities is escalated (K33).
    ShardEscalated {
        /// The shard.
        shard: ShardId,
        /// Its owner, which reported that.
        owner: Member,
        /// Where it moves; `None` if it stays.
        target: Option<NodeId>,
        /// The limit on such moves, if the shard stays because of it.
        limit: Option<usize>,
    },
    /// This manager receives no reports from other hosts: it hands the leadership to the next candidate.
    ManagerSteppedDown {
        /// The next candidate.
        to: NodeId,
    },
    /// This node's lease lapsed.
    LeaseLapsed,
    /// This node's lease is valid again.
    LeaseRecovered,
    /// This node released its shards: the `EntityStore` did not respond to it for one lease (R9).
    ShardsReleased {
        /// How many shards were released.
        shards: usize,
        /// Milliseconds for which it gets no shards that other hosts can have.
        probation: u64,
    },
    /// No shard of a pool has had an owner yet, and none gets one before there are more hosts, in the cluster or of the
    /// pool (K27).
    AllocationWaits {
        /// The pool.
        pool: String,
        /// How many hosts there are.
        hosts: usize,
        /// How many there must be.
        min: usize,
    },
    /// A shard was not served in time by its owner, and moves (K14).
    ShardStartedLate {
        /// The shard.
        shard: ShardId,
        /// The owner that did not serve it.
        owner: Member,
        /// Where it moves.
        target: NodeId,
    },
    /// The outside program that places a pool has said nothing for too long: the pool is placed as by `average` (E9).
    PlacementTimedOut {
        /// The pool.
        pool: String,
        /// Milliseconds since it last said something.
        silent: u64,
    },
    /// The allocation strategy proposed invalid moves. They were not made.
    MovesRejected {
        /// The strategy's name.
        strategy: String,
        /// The number of invalid moves.
        moves: usize,
        /// Why they are invalid.
        reason: InvalidMove,
    },
    /// The allocation strategy panicked. It counts as having proposed no moves; shards without an owner get one by the
    /// default strategy.
    StrategyPanicked {
        /// The strategy's name.
        strategy: String,
    },
    /// A node took the arbiter's lease: the members that it cannot reach end themselves (E13).
    ArbitrationDecided {
        /// The number of the arbitration.
        number: u64,
        /// The node that took the lease.
        winner: Member,
        /// The members that it cannot reach.
        unreachable: Vec<Member>,
    },
    /// This node lost an arbitration, and ends (E13).
    ArbitrationLost {
        /// The number of the arbitration.
        number: u64,
        /// The node that won it.
        winner: Member,
    },
    /// Another process renews the lease of this node's name: is its data directory a copy?
    NodeNameInUse(Member),
    /// A revision no longer reaches further entities by itself (R24).
    RolloutStopped {
        /// The type.
        entity_type: Arc<str>,
        /// The revision.
        revision: u64,
        /// Why: the reason of a migration that failed.
        why: String,
    },
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NodeJoined(member) => write!(f, "node {member} joined"),
            Self::NodeGone { member, left_gracefully: true } => {
                write!(f, "node {member} left")
            }
            Self::NodeGone { member, left_gracefully: false } => {
                write!(f, "node {member} was marked dead")
            }
            Self::DrainChanged(member, true) => write!(f, "node {member} is draining"),
            Self::DrainChanged(member, false) => write!(f, "node {member} is no longer draining"),
            Self::ManagerChanged { holder, term } => {
                write!(f, "node {holder} became manager in term {term}")
            }
            Self::HandOffStarted { shard, from } => {
                write!(f, "hand-off of shard {shard} from {from} started")
            }
            Self::ShardAssigned { shard, epoch, owner } => {
                write!(f, "shard {shard} was assigned to {owner}, epoch {}", epoch.0)
            }
            Self::HandOffFailed { shard, owner } => {
                write!(f, "hand-off of shard {shard} failed: it stays with {owner} for now")
            }
            Self::ShardEscalated { shard, owner, target: Some(target), .. } => write!(
                f,
                "shard {shard} moves from {owner} to {target}: an entity failed whose type escalates failures"
            ),
            Self::ShardEscalated { shard, owner, limit: Some(limit), .. } => write!(
                f,
                "an entity of shard {shard} failed whose type escalates failures, but the shard stays with {owner}: it has moved {limit} times for that reason within `hand-off.escalation-period` (`hand-off.max-escalations`)"
            ),
            Self::ShardEscalated { shard, owner, .. } => write!(
                f,
                "an entity of shard {shard} failed whose type escalates failures, but the shard stays with {owner}: no other host can take it"
            ),
            Self::ManagerSteppedDown { to } => write!(
                f,
                "no reports from other hosts reach this manager: it hands the leadership to {to}"
            ),
            Self::LeaseLapsed => write!(f, "this node's lease lapsed: its shards are suspended"),
            Self::LeaseRecovered => write!(f, "this node's lease is valid again"),
            Self::ShardsReleased { shards, probation } => write!(
                f,
                "the store did not respond to this node for one lease: the node released {shards} shards, and gets none that another host can take for {probation} ms"
            ),
            Self::StrategyPanicked { strategy } => write!(
                f,
                "the strategy {strategy} panicked: nothing is balanced by it, and shards without an owner get one by the \
                 default strategy; correct the program that brings the strategy"
            ),
            Self::MovesRejected { strategy, moves, reason: why } => write!(
                f,
                "allocation strategy `{strategy}` proposed {moves} invalid moves ({why}): they were ignored"
            ),
            Self::ShardStartedLate { shard, owner, target } => write!(
                f,
                "shard {shard} moves from {owner} to {target}: it was not served within `hand-off.shard-start-timeout`"
            ),
            Self::PlacementTimedOut { pool, silent } => write!(
                f,
                "the program that places pool `{pool}` has said nothing for {silent} ms (`rebalance.external-timeout`): until it does, the pool is placed as by `average`"
            ),
            Self::AllocationWaits { pool, hosts, min } => write!(
                f,
                "the shards of pool `{pool}` are not given to hosts before there are {min} (`rebalance.min-hosts`, or the pool's own number): there are {hosts}"
            ),
            Self::RolloutStopped { entity_type, revision, why } => {
                write!(f, "the rollout of revision {revision} of `{entity_type}` stopped: {why}")
            }
            Self::ArbitrationDecided { number, winner, unreachable } => {
                let names: Vec<_> = unreachable.iter().map(ToString::to_string).collect();
                let names = names.join(", ");
                write!(
                    f,
                    "node {winner} took the arbiter's lease, number {number}: it cannot reach {names}, which must end"
                )
            }
            Self::ArbitrationLost { number, winner } => write!(
                f,
                "this node lost arbitration {number}: node {winner} took the arbiter's lease and cannot reach this node, so its shards stop and its process ends"
            ),
            Self::NodeNameInUse(member) => {
                write!(
                    f,
                    "another process renews the lease of {member}: is its data directory a copy?"
                )
            }
        }
    }
}
