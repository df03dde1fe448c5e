//! What a router asks its node to do with a message, and how an attempt to send one ended.

use ostraca_codes::Code;

use crate::ids::{Epoch, ShardId};
use crate::rows::Member;

/// What the node must do with a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action<T> {
    /// Hand it to this node's own machine of the shard (S11.3).
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
    /// Send it to the owner (S11.4). It is never sent on from there.
    Remote {
        /// The owner: a link to another incarnation of its node does not reach it.
        to: Member,
        /// The epoch of the route.
        epoch: Epoch,
        /// Identifies this attempt for [`Router::on_attempt_result`](super::Router::on_attempt_result).
        attempt_id: u64,
        /// The message.
        item: T,
    },
    /// It waits in the router, which returns it later.
    Buffered,
    /// Refuse it; the router has forgotten it.
    Refuse {
        /// The message.
        item: T,
        /// Why.
        refusal: Refusal,
    },
}

/// Why the router gives a message back unsent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Stable.
    pub code: Code,
    /// What happened; names the setting where a bound was met.
    pub message: String,
    /// Milliseconds after which a retry may succeed; none if it will not without other changes.
    pub retry_after: Option<u32>,
    /// Whether an earlier copy of it may have run: it ends as `unknown`, not as `not-run` (R16).
    pub in_doubt: bool,
}

/// How an attempt ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttemptResult {
    /// The owner answered it, with any outcome: the reply goes to the sender.
    Answered,
    /// It did not run there: the shard is another's (S11.6).
    NotOwner {
        /// The epoch that the node which was asked knows.
        epoch: Epoch,
        /// Who owns the shard under it, if that node knows.
        owner: Option<Member>,
    },
    /// It did not run there: the shard is being given up.
    Rebalancing,
    /// It never left this node: there is no link to that incarnation, or no machine of the shard here.
    NotSent,
}

/// What a router currently holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RouterStats {
    /// Messages that wait.
    pub buffered: usize,
    /// Their bytes.
    pub buffered_bytes: usize,
    /// Messages that were given out and not answered, to this node's own machines included.
    pub in_flight: usize,
}
