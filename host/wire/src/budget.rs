//! Budgets: bounds on the bytes that a node holds for its senders.
//!
//! A message is charged from the time it is read until its reply has been handed to QUIC, and the reply from the time
//! it is made. What QUIC then holds unacknowledged is bounded by the connection's send window, which is smaller for
//! each further connection. A charge counts on three levels: connection, principal and node. (A session has its own
//! window, in `message_stream`.) A message forwarded by another node is charged to the principal that sent it and to
//! the node; a share of the link's reply budget takes the place of the connection.
//!
//! A level can be over its limit in two ways:
//!
//! - Messages and replies together reach the limit: no further message is accepted.
//! - Replies alone reach the limit: no turn starts, and a reply made elsewhere is dropped.
//!
//! So a sender that fills its budget with messages still gets replies, and no level ever holds more than twice
//! its limit.
//!
//! Pages of channels on their way to subscribers count like messages. They can be read again, so one is admitted only
//! if, with it, at most half of each limit is in use ([`Account::charge_page`]).

mod account;
mod pages;
mod permits;
mod principals;

pub(crate) use account::ReplyBudget;
pub use account::{Account, BudgetExceeded, Charge};
pub use permits::{LimitReached, Permit};
pub use principals::Budgets;

/// Bytes charged for each message on top of its frame: queue and table entries, and a short reply.
pub const OVERHEAD: u64 = 1 << 10;

/// The smallest send window of a connection.
const LEAST_WINDOW: u64 = 64 << 10;

/// The send window, in bytes, of a principal's `of_principal`th connection, which is the node's `of_node`th. The first
/// connection gets a quarter of each budget, the second half as much, the third a third as much, and so on. So the
/// windows of a principal add up to less than twice `principal_bytes`, and those of a node to less than twice
/// `node_bytes`.
pub(crate) fn send_window(limits: &crate::Limits, of_principal: usize, of_node: usize) -> u64 {
    let share = |of: u64, place: usize| of / 4 / (place.max(1) as u64);
    let share = share(limits.principal_bytes, of_principal).min(share(limits.node_bytes, of_node));
    limits.send_window.min(share.max(LEAST_WINDOW))
}

#[cfg(test)]
mod tests;
