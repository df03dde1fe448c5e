//! The actions that a router requests for a message, and the results of attempts to send one.

use ostraca_codes::Code;

use crate::ids::{Epoch, ShardId};
use crate::rows::Member;

/// What the node must do with a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action<T> {
    /// Hand it to this node's own machine for the shard (S11.3).
    Local {
        /// The shard.
        shard: ShardId,
        /// The epoch of the route.
        epoch: Epoch,
        /// Identifies this attempt for [`Router::on_attempt_result`](super::Router::on_attempt_result).
        attempt_id: u64,
        /// The message.
        item: T,
    },
    /// Send it to the owner (S11.4), which never forwards it.
    Remote {
        /// The owner. A link to another incarnation of its node must not be used.
        to: Member,
        /// The epoch of the route.
        epoch: Epoch,
        /// Identifies this attempt for [`Router::on_attempt_result`](super::Router::on_attempt_result).
        attempt_id: u64,
        /// The message.
        item: T,
    },
    /// It is buffered in the router, which returns it later.
    Buffered,
    /// Refuse it; the router no longer keeps it.
    Refuse {
        /// The message.
        item: T,
        /// The reason.
        refusal: Refusal,
    },
}

/// Why the router returns a message unsent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The stable code.
    pub code: Code,
    /// What happened; names the setting if a limit was reached.
    pub message: String,
    /// Milliseconds after which a retry may succeed; `None` if it cannot succeed without other changes.
    pub retry_after: Option<u32>,
    /// Whether an earlier copy of it may have run: then it ends as `unknown`, not as `not-run` (R16).
    pub in_doubt: bool,
}

/// The result of an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttemptResult {
    /// The owner answered it, with any outcome: the reply is passed to the sender.
    Answered,
    /// It did not run there: the shard belongs to another owner (S11.6).
    NotOwner {
        /// The epoch that the contacted node knows.
        epoch: Epoch,
        /// The shard's owner under that epoch, if known.
        owner: Option<Member>,
    },
    /// It did not run there: the shard is being released.
    Rebalancing,
    /// It never left this node: there is no link to that incarnation, or no machine for the shard here.
    NotSent,
}

/// What a router currently holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RouterStats {
    /// Number of buffered messages.
    pub buffered: usize,
    /// Total bytes of the buffered messages.
    pub buffered_bytes: usize,
    /// Number of messages that were sent and not answered, including those sent to this node's own machines.
    pub in_flight: usize,
}
