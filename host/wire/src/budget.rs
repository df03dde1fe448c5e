//! Budgets: the bytes that a node holds for those who send to it.
//!
//! A message is charged from its reading until its reply was handed to QUIC; the reply is charged from its making.
//! What QUIC then holds unacknowledged is bounded by each connection's send window, sized by how many there are. A
//! charge counts on three levels: the connection, the principal and the node. (A session has a window of its own,
//! in `flow`.) Messages that another node passes on count for the principal that sent them and for
//! the node; a share of the link's replies takes the connection's place.
//!
//! Confusing at first: there are two ways to be over a budget. A level is *full* when its messages and replies
//! together reach its limit: then no further message is taken. It is *clogged* when its replies alone reach the
//! limit: then no turn starts for it, and a reply that was made elsewhere is given up. So a sender that fills its
//! budget with messages still has them answered, and no level ever holds more than twice its limit.

mod account;
mod permits;
mod principals;

pub(crate) use account::ReplyBudget;
pub use account::{Account, BudgetExceeded, Charge};
pub use permits::{LimitReached, Permit};
pub use principals::Budgets;

/// Charged for each message beside its frame: what it costs in queues and tables, and a short reply.
pub const OVERHEAD: u64 = 1 << 10;

/// The smallest send window of a connection.
const LEAST_WINDOW: u64 = 64 << 10;

/// Bytes that may wait unacknowledged on the `of_principal`th connection of a principal, which is the `of_node`th
/// of the node: of a quarter of each budget the first has all, the second half, the third a third, and so on. So all
/// windows of a principal together stay below twice `principal_bytes`, and those of a node below twice `node_bytes`.
pub(crate) fn send_window(limits: &crate::Limits, of_principal: usize, of_node: usize) -> u64 {
    let share = |of: u64, place: usize| of / 4 / (place.max(1) as u64);
    let share = share(limits.principal_bytes, of_principal).min(share(limits.node_bytes, of_node));
    limits.send_window.min(share.max(LEAST_WINDOW))
}

#[cfg(test)]
mod tests;
